"""The same program on one device and on eight: equal numbers, cut parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from budgets.clock import Clock
from budgets.labels import Labels
from budgets.ledger import Ledger
from grpo_jax import (
    build,
    config,
    engine,
    keys,
    learner,
    meter,
    models,
    packing,
    resident,
    rollout,
    setup,
    sharding,
    states,
)
from grpo_jax.base import Batch
from grpo_jax.compilations import Watch
from tests import helpers

MESHES = [(2, 2, 2), (1, 4, 2), (8, 1, 1), (1, 8, 1)]


def prepared(shape):
    data, fsdp, tensor = shape
    table = {
        "model": {
            "width": 32,
            "num_layers": 2,
            "num_heads": 4,
            "head_dim": 8,
            "ffw": 64,
        },
        "task": {"num_train": 40, "num_eval": 16},
        "sampling": {"prompts_per_update": 4, "group_size": 4, "max_new_tokens": 8},
        "optimizer": {"learning_rate": 1e-3, "microbatches": 2, "weight_decay": 0.1},
        "evaluation": {"batch_prompts": 8},
        "mesh": {"data": data, "fsdp": fsdp, "tensor": tensor},
    }
    return setup.prepare(config.from_table(table))


def sample(parts):
    prompts = [problem.prompt for problem in parts.task.train[:4]]
    asked = rollout.of_prompts(prompts, num_samples=4, limit=8)
    held = resident.Resident(parts.functions, parts.train)
    return held.sample(states.load_params(parts), asked, keys.root(7))[0]


def learn(parts, out):
    watch = Watch()
    try:
        books = meter.Meter(
            models={},
            ledger=Ledger(),
            clock=Clock(jax.block_until_ready),
            watch=watch,
            labels=Labels(),
            verify=parts.task.verify,
            decode=setup.decoder(parts),
        )
        method = build.method(parts.config, parts.functions, None, parts.tokenizer)
        tx = build.optimizer(parts.config)
        advantage = np.linspace(-1, 1, out.tokens.size, dtype=np.float32)
        batch = Batch(
            rollout=jax.tree.map(np.asarray, out),
            advantage=advantage.reshape(out.tokens.shape),
            mask=np.asarray(out.sampled),
            targets={},
        )
        step = learner.learner(
            objective=method.objective,
            tx=tx,
            meter=books,
            shape=parts.shape,
            microbatches=2,
            row_sharding=parts.row_sharding,
        )
        state = states.first(parts, states.load_params(parts), tx)
        return step(state, batch, {}, keys.root(0))
    finally:
        watch.close()


@pytest.fixture(scope="module")
def alone():
    parts = prepared((1, 1, 1))
    out = sample(parts)
    kept = jax.tree.map(np.asarray, states.load_params(parts))
    state, metrics = learn(parts, out)
    return kept, out, state, metrics


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_a_rollout_and_a_step_equal_those_of_one_device(shape, alone):
    first, out, state, metrics = alone
    parts = prepared(shape)
    helpers.trees_close(
        first, jax.tree.map(np.asarray, states.load_params(parts)), rtol=0
    )
    together = sample(parts)
    np.testing.assert_array_equal(together.tokens, out.tokens)
    np.testing.assert_allclose(together.logp, out.logp, atol=1e-5)
    other, found = learn(parts, together)
    helpers.trees_close(
        jax.tree.map(np.asarray, other.params),
        jax.tree.map(np.asarray, state.params),
        atol=1e-5,
    )
    for name, value in metrics.items():
        assert found[name] == pytest.approx(value, abs=1e-5), name


def test_the_compiled_step_cuts_parameters_and_moments():
    """Each device holds a quarter of a matrix on a 2 x 2 x 2 mesh, also afterwards."""
    parts = prepared((2, 2, 2))
    out = sample(parts)
    state, _ = learn(parts, out)
    moments = [
        leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(state.opt_state)[0]
        if leaf.ndim == 4
    ]
    assert moments
    for leaf in (*moments, state.params["layers"]["q"], state.params["embed"]):
        shard = leaf.addressable_shards[0].data
        assert shard.size * 4 == leaf.size, leaf.sharding
    whole = sum(x.size for x in jax.tree.leaves(state.params))
    held = sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(state.params))
    assert held < 0.3 * whole


def test_the_compiled_step_keeps_no_whole_matrix_between_layers():
    """The program's own input is the shard, not the matrix."""
    parts = prepared((1, 8, 1))
    method = build.method(parts.config, parts.functions, None, parts.tokenizer)
    tx = build.optimizer(parts.config)
    state = states.first(parts, states.load_params(parts), tx)
    from grpo_jax import step

    out = jax.tree.map(np.asarray, sample(parts))
    batch = Batch(
        rollout=out,
        advantage=np.zeros(out.tokens.shape, np.float32),
        mask=out.sampled,
        targets={},
    )
    batch = jax.device_put(batch, parts.row_sharding)
    text = (
        jax.jit(functools.partial(step.train_step, objective=method.objective, tx=tx))
        .lower(state, batch)
        .compile()
        .as_text()
    )
    # gate is [2, 32, 64]; cut in eight along its width it enters as [2, 4, 64]
    entry = text[text.index("ENTRY") :]
    assert "f32[2,4,64]" in entry
    assert not any(
        "f32[2,32,64]" in line and " parameter(" in line for line in entry.splitlines()
    )


def test_the_slots_are_spread_over_the_devices():
    parts = prepared((2, 2, 2))
    made = engine.Engine(parts.functions, parts.train.geometry)
    layout = made.layout(states.load_params(parts))
    cache = made.blank(layout, made.geometry.slots)
    for leaf in jax.tree.leaves(cache):  # of [slots, kv_heads, ...]
        assert leaf.shape[:2] == (16, 2)
        assert leaf.addressable_shards[0].data.shape[:2] == (16 // 4, 2 // 2)


def test_a_mesh_larger_than_the_machine_is_refused():
    with pytest.raises(ValueError, match="devices"):
        sharding.make_mesh(data=64)


def test_bf16_compute_keeps_fp32_masters():
    table = {
        "model": {"width": 32, "num_layers": 1, "compute_dtype": "bfloat16"},
        "task": {"num_train": 40, "num_eval": 16},
        "sampling": {"prompts_per_update": 4, "group_size": 4, "max_new_tokens": 8},
        "optimizer": {"learning_rate": 1e-3},
    }
    parts = setup.prepare(config.from_table(table))
    state, metrics = learn(parts, sample(parts))
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(state.params))
    assert np.isfinite(metrics["loss"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_step_and_the_rollout_lower_for_accelerators(platform, dtype):
    """Lowering needs no device; it fails where an operation has no rule there.

    cuDNN looks for its library while it is traced: here XLA's attention stands for it.
    """
    from grpo_jax import step

    parts = prepared((1, 1, 1))
    out = jax.tree.map(np.asarray, sample(parts))
    where = {"cuda": "gpu", "tpu": "tpu"}[platform]
    functions = models.functions(
        parts.model,
        compute_dtype=dtype,
        backend=where,
        implementation="xla" if where == "gpu" else None,
    )
    method = build.method(parts.config, functions, None, parts.tokenizer)
    tx = build.optimizer(parts.config)
    state = states.abstract(parts, tx)
    batch = Batch(
        rollout=out,
        advantage=np.zeros(out.tokens.shape, np.float32),
        mask=out.sampled,
        targets={},
    )
    trained = jax.jit(
        functools.partial(step.train_step, objective=method.objective, tx=tx)
    )
    assert trained.trace(state, batch).lower(lowering_platforms=(platform,)).as_text()
    lengths, columns = np.asarray(out.length), out.tokens.shape[1]
    plan = packing.plan(lengths, packing.layouts(len(lengths), columns)[-1])
    packed = jax.jit(
        lambda plan, state, batch: step.train_step(
            state, batch, objective=method.objective, tx=tx, plan=plan
        )
    )
    traced = packed.trace(plan, state, batch)
    assert traced.lower(lowering_platforms=(platform,)).as_text()
    made = engine.Engine(functions, parts.train.geometry)
    layout = jax.eval_shape(functions.decode_layout, state.params)
    for traced in made.traced(layout, parts.train.stop_ids, parts.train.decoding):
        assert traced.lower(lowering_platforms=(platform,)).as_text()
