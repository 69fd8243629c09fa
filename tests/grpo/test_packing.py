import dataclasses
import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax import losses, objectives, packing, step
from tests import helpers
from tests.grpo import packed_cases as cases

quick = hypothesis.settings(deadline=None, max_examples=60)
AGGREGATIONS = {
    "token": losses.per_token,
    "sequence": losses.per_sequence,
    "sum": losses.sequence_sum,
    "constant": functools.partial(losses.constant_length, length=7),
}


@st.composite
def asked(draw):
    shards = draw(st.sampled_from([1, 2, 4]))
    own, columns = draw(st.integers(1, 30)), draw(st.sampled_from([9, 600, 1100]))
    micro = draw(st.integers(0, own))
    choices = packing.layouts(
        shards * own, columns, shards=shards, microbatches=micro, part_tokens=1500
    )
    longest = draw(st.integers(0, columns))
    lengths = draw(
        st.lists(st.integers(0, longest), min_size=shards * own, max_size=shards * own)
    )
    return choices, np.array(lengths, np.int32)


@quick
@hypothesis.given(asked())
def test_each_sequence_lies_once_inside_a_row_and_beside_the_others(case):
    choices, lengths = case
    layout = packing.fitting(choices, int(lengths.max()))
    plan = packing.plan(lengths, layout)
    assert 1 <= plan.count <= layout.parts
    there = plan.segment > 0
    for shard, own in enumerate(lengths.reshape(layout.shards, -1)):
        found = plan.index[:, shard][there[:, shard]]
        assert sorted(found) == list(range(layout.sequences))
        for part in range(layout.parts):
            taken = np.zeros((layout.rows, layout.width), int)
            seen = set()
            for slot in np.flatnonzero(there[part, shard]):
                at = part, shard, slot
                length = own[plan.index[at]]
                assert plan.start[at] + length <= layout.width
                taken[plan.row[at], plan.start[at] : plan.start[at] + length] += 1
                seen.add((plan.row[at], plan.segment[at]))
            assert taken.max() <= 1
            assert len(seen) == there[part, shard].sum()
            assert part < plan.count or not seen
    # An empty slot points past the end, where nothing is written back.
    assert (plan.index[~there] == layout.sequences).all()
    again = packing.plan(lengths, layout)
    helpers.trees_close(plan, again, rtol=0)


@quick
@hypothesis.given(asked())
def test_the_shapes_of_a_plan_follow_from_the_configuration(case):
    choices, lengths = case
    layout = packing.fitting(choices, int(lengths.max()))
    shape = lambda plan: jax.tree.map(np.shape, plan)
    assert shape(packing.plan(lengths, layout)) == shape(packing.empty(layout))
    assert len(choices) <= 3
    widths = [c.width for c in choices]
    assert widths == sorted(set(widths))
    assert min(widths) >= min(256, widths[-1])


def lengths(count, seed=0):
    """Prompts of 64 tokens, completions log-normal: sigma 0.8, mean 64, at most 512."""
    draw = np.random.default_rng(seed)
    new = draw.lognormal(np.log(64) - 0.8**2 / 2, 0.8, count)
    return 64 + np.clip(np.round(new), 1, 512).astype(np.int32)


def test_padding_is_less_than_a_tenth_on_log_normal_lengths():
    found = lengths(1024)
    choices = packing.layouts(1024, 64 + 512)
    plan = packing.plan(found, packing.fitting(choices, int(found.max())))
    share = 1 - found.sum() / plan.cells
    assert 0 < share < 0.1
    assert 1 - found.sum() / (1024 * (64 + 512)) > 0.7  # one to a row


def test_first_fit_by_hand():
    """Rows of 10: 7 | 6 | 4 goes with 6, 3 with 7, 2 needs a third row."""
    layout = packing.Layout(1, 5, rows=2, width=10, slots=5, parts=3)
    plan = packing.plan(np.array([4, 7, 2, 6, 3]), layout)
    where = {
        int(plan.index[p, 0, s]): (p, *(x[p, 0, s] for x in (plan.row, plan.start)))
        for p in range(3)
        for s in range(5)
        if plan.segment[p, 0, s]
    }
    assert where == {
        1: (0, 0, 0),
        4: (0, 0, 7),
        3: (0, 1, 0),
        0: (0, 1, 6),
        2: (1, 0, 0),
    }
    assert plan.count == 2
    assert plan.cells == 2 * 2 * 10


def test_a_part_holds_what_was_asked():
    by_share = packing.layouts(64, 100, microbatches=4)
    assert [(c.rows, c.width, c.parts) for c in by_share] == [(16, 100, 4)]
    wide = packing.layouts(1024, 1000, shards=2, part_tokens=1536)
    assert [(c.rows, c.width) for c in wide] == [(8, 256), (4, 512), (2, 1000)]
    assert packing.layouts(8, 9000)[-1].rows == 1


def test_what_no_layout_can_hold_is_refused():
    with pytest.raises(ValueError, match="multiple of 4 shards"):
        packing.layouts(6, 10, shards=4)
    with pytest.raises(ValueError, match="exceeds the 10 columns"):
        packing.fitting(packing.layouts(6, 10), 11)


def planned(batch, *, shards=1, **options):
    """A plan of several parts, in which rows hold several sequences."""
    length = np.asarray(batch.rollout.length)
    choices = packing.layouts(
        len(length), 2 * cases.COLUMNS, shards=shards, part_tokens=48, **options
    )
    return packing.plan(length, choices[-1])


OBJECTIVES = {
    **{
        name: {"reduce": reduce, "kl": losses.kl_k3_k2, "kl_coefficient": 0.5}
        for name, reduce in AGGREGATIONS.items()
    },
    "gspo": {"level": losses.sequence_level, "reduce": losses.per_sequence},
    "cispo": {"loss": losses.cispo, "temperature": 0.7},
    "dual clip": {"loss": functools.partial(losses.clipped_surrogate, dual_clip=1.5)},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_packing_changes_no_loss_no_gradient_and_no_metric(name, getkey):
    params = cases.params(getkey())
    objective = objectives.surrogate(cases.FUNCTIONS, chunk_size=5, **OBJECTIVES[name])
    f = jax.jit(functools.partial(step.gradient, objective=objective))
    for masked in (False, True):
        batch = cases.batch(3, mask_truncated=masked, rows=15)
        plan = planned(batch)
        assert plan.count > 2
        assert (plan.segment[: plan.count] == 0).any()  # an empty slot
        want, got = f(params, batch, ()), f(params, batch, (), plan=plan)
        helpers.trees_close(got, want, rtol=1e-5, atol=1e-5)
        assert got[1]["loss"].weight == want[1]["loss"].weight


def test_what_masked_entries_hold_changes_nothing_in_packed_rows(getkey):
    params, batch = cases.params(getkey()), cases.batch(4, mask_truncated=True)
    objective = objectives.surrogate(
        cases.FUNCTIONS, chunk_size=5, kl=losses.kl_k3_k2, kl_coefficient=0.5
    )
    f = jax.jit(functools.partial(step.gradient, objective=objective))
    plan = planned(batch)
    poison = lambda x: jnp.where(batch.mask, x, jnp.nan)
    poisoned = dataclasses.replace(
        batch,
        rollout=dataclasses.replace(batch.rollout, logp=poison(batch.rollout.logp)),
        advantage=poison(batch.advantage),
        targets=jax.tree.map(poison, batch.targets),
    )
    want = f(params, batch, (), plan=plan)
    helpers.trees_close(f(params, poisoned, (), plan=plan), want, rtol=1e-6)


def read(params, rollout, plan):
    """Log-probabilities of every part, in the places of the whole."""
    out = jnp.zeros(rollout.tokens.shape)
    for number in range(int(plan.count)):
        some = packing.rollout(rollout, plan, jnp.int32(number))
        logp, _ = objectives.read(
            cases.FUNCTIONS, params, some, packed=packing.place(plan, jnp.int32(number))
        )
        out = packing.put_back(plan, jnp.int32(number), out, logp)
    return out


def test_sequences_of_one_row_do_not_see_each_other(getkey):
    params, rollout = cases.params(getkey()), cases.batch(5).rollout
    plan = planned(cases.batch(5))
    f = jax.jit(functools.partial(read, plan=plan))
    before = np.asarray(f(params, rollout))
    for row in (0, 7):
        changed = rollout.tokens.at[row].set((rollout.tokens[row] + 11) % 31)
        after = np.asarray(f(params, dataclasses.replace(rollout, tokens=changed)))
        others = np.arange(len(before)) != row
        np.testing.assert_array_equal(after[others], before[others])
        assert (after[row] != before[row]).any()


def test_positions_start_again_with_every_sequence():
    """What the model is given, seen by a model that returns it."""
    batch = cases.batch(6)
    plan = planned(batch)
    seen = []

    def hidden(params, tokens, positions, segments):
        seen.append((tokens, positions, segments))
        return jnp.zeros((*tokens.shape, 2))

    functions = helpers.TABLE._replace(
        hidden=hidden, unembed=lambda params: jnp.zeros((2, 31))
    )
    some = packing.batch(batch, plan, jnp.int32(0))
    objectives.read(functions, {}, some.rollout, packed=some.packed)
    ((tokens, positions, segments),) = (tuple(map(np.asarray, x)) for x in seen)
    given = batch.rollout
    for slot in np.flatnonzero(plan.segment[0, 0]):
        index, start = plan.index[0, 0, slot], plan.start[0, 0, slot]
        length = int(given.length[index])
        at = plan.row[0, 0, slot], slice(start, start + length)
        np.testing.assert_array_equal(tokens[at], given.tokens[index, :length])
        np.testing.assert_array_equal(positions[at], np.arange(length))
        np.testing.assert_array_equal(segments[at], plan.segment[0, 0, slot])
    held = [int(given.length[i]) for i in plan.index[0, 0] if i < len(given.length)]
    assert (segments > 0).sum() == sum(held)


def test_eight_shards_on_eight_devices_equal_one(getkey):
    params, batch = cases.params(getkey()), cases.batch(7, rows=32)
    objective = objectives.surrogate(cases.FUNCTIONS, chunk_size=5)
    f = functools.partial(step.gradient, objective=objective)
    want = jax.jit(f)(params, batch, ())
    plan = planned(batch, shards=8)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    at = lambda *names: jax.NamedSharding(mesh, jax.P(*names))
    where = jax.tree.map(lambda x: at(None, "data") if x.ndim else at(), plan)
    placed = (
        jax.device_put(params, at()),
        jax.device_put(batch, at("data")),
        jax.device_put(plan, where),
    )
    program = (
        jax.jit(lambda p, b, plan: f(p, b, (), plan=plan)).lower(*placed).compile()
    )
    helpers.trees_close(program(*placed), want, rtol=1e-5, atol=1e-5)
    text, layout = program.as_text(), plan.layout
    # A device runs its own rows and gathers its own sequences.
    assert f"f32[{layout.rows},{layout.width},16]" in text
    assert f"f32[{8 * layout.rows},{layout.width},16]" not in text
    assert not any("all-gather" in line for line in text.splitlines())
