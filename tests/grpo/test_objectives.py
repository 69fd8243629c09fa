"""How a policy reads a rollout, one row a sequence or packed."""

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import objectives, packing
from tests import helpers
from tests.grpo import packed_cases as cases


def packed(rollout, *, width=2 * cases.COLUMNS):
    """The whole rollout as one part of packed rows, and where it lies in them."""
    length = np.asarray(rollout.length)
    (layout,) = packing.layouts(len(length), width, part_tokens=len(length) * width)
    plan = packing.plan(length, layout)
    at = jnp.int32(0)
    return packing.rollout(rollout, plan, at), packing.place(plan, at), plan


def test_packed_rows_give_sampled_tokens_what_their_own_rows_give(getkey):
    params, rollout = cases.params(getkey()), cases.batch(1).rollout
    read = jax.jit(
        lambda *x: objectives.read(cases.FUNCTIONS, *x[:2], packed=x[2], chunk_size=4)
    )
    whole = read(params, rollout, None)
    some, place, plan = packed(rollout)
    for got, want in zip(read(params, some, place), whole, strict=True):
        back = packing.put_back(plan, jnp.int32(0), jnp.zeros(want.shape), got)
        np.testing.assert_allclose(
            back, jnp.where(rollout.sampled, want, 0), rtol=1e-5, atol=1e-5
        )


def test_the_first_token_of_a_sequence_is_predicted_by_nothing(getkey):
    """Even if a mask asks for it: in its row another sequence comes before."""
    params, rollout = cases.params(getkey()), cases.batch(2).rollout
    some, place, _ = packed(rollout)
    logp, _ = objectives.read(
        cases.FUNCTIONS,
        params,
        some,
        mask=jnp.arange(cases.COLUMNS)[None] < some.length[:, None],
        packed=place,
    )
    assert (logp[:, 1] != 0).any()
    np.testing.assert_array_equal(logp[:, 0], np.zeros(len(logp)))


def test_states_that_predict_nothing_read_are_never_multiplied():
    """Those before a token that is not read are nan, and so are those of padding."""
    some, place, _ = packed(cases.batch(3).rollout)
    mask = some.sampled & (jnp.roll(some.tokens, 1, axis=1) > 9)
    assert 0 < mask.sum() < some.sampled.sum()

    def hidden(params, tokens, positions, segments):
        del positions
        good = (tokens > 9) & (segments > 0)
        return jnp.where(good[..., None], params["x"], jnp.nan)

    functions = helpers.TABLE._replace(
        hidden=hidden, unembed=lambda params: params["w"]
    )

    def total(params):
        read = objectives.read(
            functions, params, some, mask=mask, packed=place, chunk_size=999
        )
        return read[0].sum()  # one chunk, so that it holds all of them

    params = {"x": jnp.ones(2)[None, None], "w": jnp.ones((2, 31))}
    value, gradient = jax.value_and_grad(total)(params)
    np.testing.assert_allclose(value, -np.log(31) * mask.sum(), rtol=1e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
