import jax
import jax.numpy as jnp
import numpy as np
import pytest

from budgets import flops
from budgets.ledger import Phase
from grpo_jax import keys, learner, objectives, optim, packing, step
from grpo_jax.compilations import Watch
from grpo_jax.meter import Meter
from tests import helpers

SHAPE = flops.ModelShape(
    layers=1, width=4, heads=1, kv_heads=1, head_dim=4, ffw=8, vocab=3
)


class FakeMeter(Meter):
    """Remembers what it was charged with."""

    def __init__(self):
        self.charges, self.released = [], False

    def idle(self):
        pass

    def release(self):
        self.released = True

    def charge(self, phase, cost, *, done=None, role="policy"):
        jax.block_until_ready(done)
        self.charges.append((phase, cost))


def made(getkey, *, reduce=None, **options):
    options = {"reduce": reduce} if reduce else {}, options
    params = helpers.random_table(getkey())
    tx = optim.adamw(learning_rate=0.1)
    meter = FakeMeter()
    learn = learner.learner(
        objective=objectives.surrogate(helpers.TABLE, chunk_size=2, **options[0]),
        tx=tx,
        meter=meter,
        shape=SHAPE,
        **options[1],
    )
    rollout = helpers.all_rollouts(params)
    rollout = jax.tree.map(lambda x: x[:12], rollout)
    advantage = jax.random.normal(getkey(), rollout.tokens.shape)
    batch = helpers.make_batch(rollout, advantage)
    return learn, step.init(params, tx), batch, meter, tx


def test_epochs_of_minibatches_are_that_many_optimiser_steps(getkey):
    learn, state, batch, meter, _ = made(getkey, epochs=2, minibatches=3)
    state, metrics = learn(state, batch, {}, getkey())
    assert int(state.step) == 6
    ((phase, cost),) = meter.charges
    assert meter.released  # what sampling held is no memory of the step
    assert phase == Phase.TRAIN
    sampled = int(np.asarray(batch.mask).sum())
    assert cost.trained == 2 * sampled
    lengths = np.asarray(batch.rollout.length).tolist()
    assert cost.flops == 2 * flops.train(SHAPE, lengths, heads=sampled)
    assert np.isfinite(metrics["loss"])


def test_minibatches_that_do_not_divide_the_rows_are_refused(getkey):
    learn, state, batch, _, _ = made(getkey, minibatches=5)
    with pytest.raises(ValueError, match="minibatches=5 must divide the 12 sequences"):
        learn(state, batch, {}, getkey())


def test_one_step_is_the_train_step_of_the_whole_batch(getkey):
    learn, state, batch, _, tx = made(getkey)
    objective = objectives.surrogate(helpers.TABLE, chunk_size=2)
    want, _ = step.train_step(state, batch, {}, objective=objective, tx=tx)
    got, _ = learn(jax.tree.map(jnp.copy, state), batch, {}, getkey())
    helpers.trees_close(got.params, want.params, rtol=1e-6)


def test_every_row_is_read_once_an_epoch_in_another_order_each(getkey):
    key = getkey()
    orders = [np.asarray(x) for x in learner._orders(key, 12, 2, 3)]
    first, second = np.concatenate(orders[:3]), np.concatenate(orders[3:])
    assert sorted(first) == sorted(second) == list(range(12))
    assert (first != second).any()
    again = [np.asarray(x) for x in learner._orders(key, 12, 2, 3)]
    np.testing.assert_array_equal(orders, again)


def test_a_bad_step_changes_nothing_and_is_the_last_of_its_update(getkey):
    learn, state, batch, _, _ = made(getkey, minibatches=4)
    key = keys.root(3)
    bad_row = 7
    # The step whose mini-batch holds the bad row, by the order that will be drawn.
    at = next(i for i, x in enumerate(learner._orders(key, 12, 1, 4)) if bad_row in x)
    poisoned = batch.advantage.at[bad_row].set(jnp.nan)
    batch = helpers.make_batch(batch.rollout, poisoned)
    state, metrics = learn(state, batch, {}, key)
    assert int(state.step) == at
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    assert not np.isfinite(metrics["loss"])


def test_an_update_with_nothing_to_read_has_no_mean_and_moves_nothing(getkey):
    learn, state, batch, _, _ = made(getkey)
    empty = jnp.zeros_like(batch.mask)
    batch = type(batch)(
        rollout=batch.rollout, advantage=batch.advantage, mask=empty, targets={}
    )
    before = jax.tree.map(np.asarray, state.params)
    state, metrics = learn(state, batch, {}, getkey())
    assert metrics["loss"] is None
    assert metrics["grad_norm"] == 0
    helpers.trees_close(state.params, before, rtol=0)


def test_tokens_are_those_that_the_steps_multiplied(getkey):
    """Rows of four: 12 sequences of 2 to 4 tokens, each step in one part."""
    learn, state, batch, _, _ = made(getkey, epochs=2, minibatches=3)
    _, metrics = learn(state, batch, {}, keys.root(0))
    lengths = np.asarray(batch.rollout.length)
    assert metrics["tokens_real"] == 2 * lengths.sum()
    layouts = packing.layouts(4, batch.mask.shape[1])
    steps = [np.asarray(x) for x in learner._orders(keys.root(0), 12, 2, 3)]
    cells = sum(packing.plan(lengths[rows], layouts[-1]).cells for rows in steps)
    assert metrics["tokens_padded"] == cells - 2 * lengths.sum()


def with_lengths(low, high, columns=1100):
    """Sixteen sequences of a vocabulary of three, in the columns of a long batch."""
    draw = np.random.default_rng(high)
    length = draw.integers(low, high + 1, 16).astype(np.int32)
    column = np.arange(columns)[None]
    tokens = draw.integers(0, helpers.VOCAB, (16, columns))
    tokens = np.where(column < length[:, None], tokens, -1)
    sampled = (tokens >= 0) & (column > 0)
    rollout = helpers.teacher_forced(
        {"table": jnp.zeros((helpers.VOCAB, helpers.VOCAB))}, tokens, sampled
    )
    return helpers.make_batch(rollout, jnp.ones(tokens.shape))


def test_lengths_first_seen_late_compile_nothing(getkey):
    """Three widths, 320, 576 and 1,100, of which the first update takes one."""
    learn, state, _, _, _ = made(getkey)
    state = jax.device_put(state, jax.devices()[0])
    batches = [with_lengths(*x) for x in ((2, 300), (2, 2), (400, 570), (2, 1100))]
    state, first = learn(state, batches[0], {}, keys.root(0))
    watch, padded = Watch(), {first["tokens_padded"]}
    try:
        for i, batch in enumerate(batches[1:]):
            state, metrics = learn(state, batch, {}, keys.root(i))
            padded.add(metrics["tokens_padded"])
        assert watch.take()[0] == 0
    finally:
        watch.close()
    assert len(padded) == 4


@pytest.mark.parametrize("minibatches", [1, 3])
def test_a_second_update_compiles_nothing(minibatches, getkey):
    learn, state, batch, _, _ = made(getkey, minibatches=minibatches)
    state = jax.device_put(state, jax.devices()[0])  # as `states.first` leaves it
    state, _ = learn(state, batch, {}, keys.root(0))
    watch = Watch()
    try:
        learn(state, batch, {}, keys.root(1))
        assert watch.take()[0] == 0
    finally:
        watch.close()
