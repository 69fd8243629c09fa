import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import objectives
from grpo_jax.base import Rollout
from tests import helpers

COLUMNS, WINDOW = 9, 4


@pytest.fixture
def rollout(getkey):
    """Prompts of 1, 2 and 5 tokens, completions of 4, 2 and 4."""
    start = np.array([1, 2, 5], np.int32)
    end = np.array([5, 4, 9], np.int32)
    column = np.arange(COLUMNS)[None]
    return Rollout(
        tokens=jax.random.randint(getkey(), (3, COLUMNS), 0, helpers.VOCAB),
        sampled=jnp.asarray((column >= start[:, None]) & (column < end[:, None])),
        logp=jnp.zeros((3, COLUMNS)),
        prompt_length=jnp.asarray(start),
        length=jnp.asarray(end),
        truncated=jnp.zeros(3, bool),
    )


def read(params, rollout, window):
    return objectives.read(helpers.TABLE, params, rollout, chunk_size=2, window=window)


@pytest.mark.parametrize("window", [WINDOW, WINDOW + 1, COLUMNS - 1, 99])
def test_a_window_gives_completions_what_the_whole_row_gives(window, rollout, getkey):
    params = helpers.random_table(getkey())
    for whole, part in zip(
        read(params, rollout, None), read(params, rollout, window), strict=True
    ):
        np.testing.assert_allclose(
            jnp.where(rollout.sampled, part, 0),
            jnp.where(rollout.sampled, whole, 0),
            rtol=1e-6,
        )


def test_a_window_changes_no_gradient(rollout, getkey):
    params = helpers.random_table(getkey())
    weight = jnp.where(
        rollout.sampled, jax.random.normal(getkey(), rollout.tokens.shape), 0.0
    )

    def gradient(window):
        return jax.grad(lambda p: (weight * read(p, rollout, window)[0]).sum())(params)

    helpers.trees_close(gradient(None), gradient(WINDOW), rtol=1e-5, atol=1e-6)


def test_a_window_multiplies_the_vocabulary_at_its_positions_only(rollout, getkey):
    """FLOPs of the head fall with the window: 5 of 9 positions, in whole chunks."""
    wide = {"table": jnp.zeros((helpers.VOCAB, 64))}
    functions = helpers.TABLE._replace(unembed=lambda params: jnp.zeros((64, 1000)))

    def flops(window):
        call = jax.jit(
            lambda p: objectives.read(
                functions, p, rollout, chunk_size=99, window=window
            )[0]
        )
        return call.lower(wide).compile().cost_analysis()["flops"]

    assert flops(WINDOW) < 0.6 * flops(None)
