import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax import losses, objectives, optim, step
from grpo_jax.base import Batch, Functions, Ratio, Rollout
from tests import helpers

TX = optim.adamw(learning_rate=1e-2, weight_decay=0.1)
OBJECTIVE = objectives.surrogate(helpers.TABLE, chunk_size=2)
STEP = functools.partial(step.train_step, objective=OBJECTIVE, tx=TX)
GRADIENT = jax.jit(functools.partial(step.gradient, objective=OBJECTIVE))
AGGREGATIONS = {
    "token": losses.per_token,
    "sequence": losses.per_sequence,
    "sum": losses.sequence_sum,
    "constant": functools.partial(losses.constant_length, length=7),
}
every_aggregation = pytest.mark.parametrize(
    "reduce", AGGREGATIONS.values(), ids=AGGREGATIONS
)


def make(getkey, rows=16):
    """A policy that has moved a little since it sampled completions of all lengths."""
    old = helpers.random_table(getkey())
    rollout = helpers.all_rollouts(old)
    rollout = jax.tree.map(lambda x: jnp.resize(x, (rows, *x.shape[1:])), rollout)
    params = {"table": old["table"] + 0.1 * jax.random.normal(getkey(), (3, 3))}
    advantage = jax.random.normal(getkey(), rollout.tokens.shape)
    batch = helpers.make_batch(
        rollout, advantage, logp_ref=rollout.logp - 0.1 * jnp.abs(advantage)
    )
    return params, batch


def with_kl(reduce):
    return objectives.surrogate(
        helpers.TABLE,
        chunk_size=2,
        reduce=reduce,
        kl=losses.kl_k3_k2,
        kl_coefficient=0.5,
    )


@every_aggregation
def test_gradient_is_that_of_the_mean_whatever_the_microbatches(reduce, getkey):
    params, batch = make(getkey)
    objective = with_kl(reduce)

    def mean(params):
        loss, metrics = objective(params, batch, ())
        return loss.total / loss.weight, metrics | {"loss": loss}

    want = jax.jit(jax.grad(mean, has_aux=True))(params)
    f = functools.partial(step.gradient, objective=objective)
    for count in (1, 8):
        got = jax.jit(functools.partial(f, microbatches=count))(params, batch, ())
        helpers.trees_close(got, want, rtol=1e-5, atol=1e-6)


@every_aggregation
def test_padding_and_what_masked_entries_hold_change_nothing(reduce, getkey):
    params, batch = make(getkey)
    f = jax.jit(functools.partial(step.gradient, objective=with_kl(reduce)))
    want = f(params, batch, ())
    # Three columns and four rows of filler, no token of which is read, and nan in
    # every entry that is masked.
    more = jax.tree.map(
        lambda x: jnp.concatenate([x, jnp.zeros((4, *x.shape[1:]), x.dtype)]),
        helpers.widen(batch, 3),
    )
    poison = lambda x: jnp.where(more.mask, x, jnp.nan)
    poisoned = Batch(
        rollout=dataclasses.replace(more.rollout, logp=poison(more.rollout.logp)),
        advantage=poison(more.advantage),
        mask=more.mask,
        targets=jax.tree.map(poison, more.targets),
    )
    helpers.trees_close(f(params, more, ()), want, rtol=1e-5, atol=1e-6)
    helpers.trees_close(f(params, poisoned, ()), want, rtol=1e-5, atol=1e-6)


def test_a_step_that_reads_no_token_moves_nothing(getkey):
    params, batch = make(getkey)
    empty = Batch(
        rollout=batch.rollout,
        advantage=batch.advantage,
        mask=jnp.zeros_like(batch.mask),
        targets=batch.targets,
    )
    grads, metrics = GRADIENT(params, empty, ())
    np.testing.assert_array_equal(grads["table"], np.zeros((3, 3)))
    assert metrics["loss"] == (0.0, 0.0)


def test_microbatches_that_do_not_divide_the_rows_are_refused(getkey):
    params, batch = make(getkey)
    with pytest.raises(ValueError, match="microbatches=3 must divide the 16 sequences"):
        step.gradient(params, batch, (), objective=OBJECTIVE, microbatches=3)


def test_grad_norm_is_the_norm_before_clipping(getkey):
    params, batch = make(getkey)
    grads, _ = GRADIENT(params, batch, ())
    tx = optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(1.0))
    state = step.init(params, tx)
    f = jax.jit(functools.partial(step.train_step, objective=OBJECTIVE, tx=tx))
    after, metrics = f(state, batch)
    norm = np.sqrt((np.asarray(grads["table"]) ** 2).sum())
    np.testing.assert_allclose(metrics["grad_norm"].total, norm, rtol=1e-5)
    assert metrics["grad_norm"].weight == 1
    moved = np.asarray(after.params["table"] - params["table"])
    np.testing.assert_allclose(np.sqrt((moved**2).sum()), 1e-3, rtol=1e-3)
    assert (int(state.step), int(after.step)) == (0, 1)


def test_frozen_weights_reach_the_objective_and_get_no_gradient(getkey):
    params, batch = make(getkey)

    def objective(params, batch, frozen):
        gap = params["table"] - frozen["reference"]["table"]
        total = (gap**2).sum() * batch.mask.sum().astype(jnp.float32)
        return Ratio(total, batch.mask.sum().astype(jnp.float32)), {}

    frozen = {"reference": helpers.random_table(getkey())}
    grads, _ = step.gradient(params, batch, frozen, objective=objective, microbatches=4)
    want = 2 * (params["table"] - frozen["reference"]["table"])
    np.testing.assert_allclose(grads["table"], want, rtol=1e-5)


def test_step_compiles_once_with_its_state_donated(getkey):
    params, batch = make(getkey)
    traces = []

    def counted(state, batch):
        traces.append(None)
        return STEP(state, batch)

    f, state = jax.jit(counted, donate_argnums=0), step.init(params, TX)
    for _ in range(3):
        state, _ = f(state, batch)
    assert len(traces) == 1
    assert int(state.step) == 3


def test_eight_devices_agree_with_one(getkey):
    params, batch = make(getkey)
    state = step.init(params, TX)
    f = functools.partial(STEP, microbatches=2)
    alone = jax.jit(f)(state, batch)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rep, data = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    f = jax.jit(f, in_shardings=(rep, data), out_shardings=(rep, rep))
    together = f(jax.device_put(state, rep), jax.device_put(batch, data))
    helpers.trees_close(alone, together, rtol=1e-5, atol=1e-6)


def embedding_model():
    def hidden(params, tokens, positions, segments):
        del positions, segments
        return jnp.tanh(params["embed"].astype(jnp.bfloat16)[tokens])

    nothing = lambda *args: None
    return Functions(
        hidden=hidden,
        unembed=lambda params: params["head"],
        prefill=nothing,
        decode=nothing,
        decode_layout=nothing,
    )


def test_bfloat16_compute_keeps_fp32_masters_and_no_array_of_all_logits(getkey):
    rows, length, width, vocab, chunk = 4, 32, 8, 96, 8
    params = {
        "embed": jax.random.normal(getkey(), (vocab, width)),
        "head": jax.random.normal(getkey(), (width, vocab)),
    }
    tokens = jax.random.randint(getkey(), (rows, length), 0, vocab)
    sampled = jnp.broadcast_to(jnp.arange(length)[None] >= 5, tokens.shape)
    rollout = Rollout(
        tokens=tokens,
        sampled=sampled,
        logp=jnp.where(sampled, -4.0, 0.0),
        prompt_length=jnp.full((rows,), 5),
        length=jnp.full((rows,), length),
        truncated=jnp.zeros((rows,), bool),
    )
    batch = helpers.make_batch(rollout, jnp.ones(tokens.shape))
    objective = objectives.surrogate(embedding_model(), chunk_size=chunk)
    f = functools.partial(step.train_step, objective=objective, tx=TX, microbatches=2)
    compiled = jax.jit(f).lower(step.init(params, TX), batch).compile()
    state, metrics = compiled(step.init(params, TX), batch)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert all(np.isfinite(r.total) for r in metrics.values())
    shapes = re.findall(r"(?:f32|bf16)\[([\d,]+)\]", compiled.as_text())
    largest = max(np.prod([int(n) for n in s.split(",")]) for s in shapes)
    assert largest <= rows // 2 * chunk * vocab
    assert largest < rows // 2 * (length - 1) * vocab
