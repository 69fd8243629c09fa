"""Continuous batching: the same sequences whatever the slots, the order, the caches."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax import decoding, keys, models, resident, rollout, slots
from grpo_jax.base import Forks
from grpo_jax.compilations import Watch
from grpo_jax.engine import Engine, Geometry

CONFIG = models.ModelConfig(
    family="qwen3",
    qk_norm=True,
    vocab_size=97,
    width=32,
    ffw=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    tied=False,
)
FUNCTIONS = models.functions(CONFIG)
STOPS = [5, 6]
NEW = 150  # more than a chunk, and over several segments of the cache
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(7, 97, n).tolist() for n in (3, 40, 1, 70, 17)]


@pytest.fixture(scope="module")
def params():
    return jax.jit(functools.partial(models.init, CONFIG))(keys.root(1))


def geometry(num_slots, *, group=1, rows=2, widths=(20, 80)):
    return Geometry(num_slots, 256, widths, rows, group)


@functools.lru_cache
def engine(sizes):
    return Engine(FUNCTIONS, sizes)


def asked(samples=3, prompts=PROMPTS):
    """Limits of all lengths, so that sequences end at different times."""
    made = rollout.of_prompts(prompts, num_samples=samples, limit=NEW)
    limits = np.random.default_rng(1).integers(1, NEW, len(made)).tolist()
    return [r._replace(limit=n) for r, n in zip(made, limits, strict=True)]


def sample(params, requests, sizes, stop_ids=STOPS, **options):
    made = engine(sizes)
    how, stop = rollout.decoding(1.0), rollout.stops(stop_ids)
    layout = made.layout(params)
    done = slots.run(made, layout, requests, stop, how, keys.root(3), **options)
    return rollout.assemble(requests, done, stop_ids, width=80 + NEW), done


@pytest.fixture(scope="module")
def alone(params):
    """Every sequence in a call of its own."""
    return [
        sample(params, [r._replace(row=0)], geometry(1, rows=1))[0] for r in asked()
    ]


@pytest.mark.parametrize("num_slots", [2, 7, 15, 32])
@pytest.mark.parametrize("order", ["given", "reversed"])
def test_a_sequence_depends_on_neither_slot_nor_neighbours(
    num_slots, order, params, alone
):
    requests = asked()
    queued = requests if order == "given" else requests[::-1]
    out, _ = sample(params, queued, geometry(num_slots))
    for r, own in zip(requests, alone, strict=True):
        np.testing.assert_array_equal(out.tokens[r.row], own.tokens[0])
        np.testing.assert_allclose(out.logp[r.row], own.logp[0], atol=1e-5)
        assert out.length[r.row] == own.length[0]
        assert out.truncated[r.row] == own.truncated[0]


@pytest.mark.parametrize("group", [3, 5])
def test_reading_a_common_prefix_once_changes_nothing(group, params, alone):
    """15 slots in groups: of one prompt at first, mixed as they are refilled."""
    prompts = [PROMPTS[3] + p for p in PROMPTS]  # 70 tokens in common, 64 in a segment
    requests = asked(prompts=[p[:80] for p in prompts])
    plain, _ = sample(params, requests, geometry(15))
    out, _ = sample(params, requests, geometry(15, group=group))
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_allclose(out.logp, plain.logp, atol=1e-5)


def test_what_slots_have_in_common_is_found(params):
    state = slots._Run(engine(geometry(6, group=3)), None, STOPS, None, None)
    one, two = tuple(range(9)), (*range(5), 8, 8, 8, 8)
    for slot, prefix in enumerate([one, one, two, two, two]):
        state._occupy(slot, slots.Request(slot, prefix, 4, 0, slot))
    assert state._alike() == 5  # `two` in the first group differs after five
    state.held.live[2] = False
    assert state._alike() == 9
    state._occupy(5, slots.Request(5, (1, 2), 4, 0, 5))
    assert state._alike() == 0


def test_a_prompt_is_prefilled_once_for_its_whole_group(params, monkeypatch):
    read = []
    own = Engine.prefill

    def counted(self, layout, prompts):
        read.extend(tuple(p) for p in prompts)
        return own(self, layout, prompts)

    monkeypatch.setattr(Engine, "prefill", counted)
    sample(params, asked(samples=6), geometry(4))
    assert sorted(read) == sorted(tuple(p) for p in PROMPTS)


def test_a_slot_is_refilled_at_once(params):
    """With limits of 1 and 40 and two slots, forty steps do 40 + 40 of the tokens."""
    requests = rollout.of_prompts([[9]], num_samples=41, limit=1)
    requests = [r._replace(limit=40 if r.row == 0 else 1) for r in requests]
    _, done = sample(params, requests, geometry(2), stop_ids=[])
    assert done.slot_steps == 2 * 40


def test_an_earlier_calls_cache_is_not_read(params, alone):
    requests = asked()
    _, done = sample(params, requests[::-1], geometry(7))
    out, _ = sample(params, requests, geometry(7), cache=done.cache)
    for r, own in zip(requests, alone, strict=True):
        np.testing.assert_array_equal(out.tokens[r.row], own.tokens[0])


def test_a_request_for_nothing_gets_nothing(params):
    requests = [r._replace(limit=0) for r in asked()]
    out, done = sample(params, requests, geometry(4))
    assert not out.sampled.any()
    assert not out.truncated.any()
    assert done.slot_steps == 0


def held(kept_bytes=2**30):
    sampler = resident.Sampler(
        decoding=rollout.decoding(1.0),
        stop_ids=rollout.stops(STOPS),
        geometry=geometry(6),
        max_new_tokens=NEW,
        kept_bytes=kept_bytes,
    )
    return resident.Resident(FUNCTIONS, sampler)


def forked(of, parent):
    """Forks at the prompt's end, inside, and before and after the last token."""
    start, length = np.asarray(parent.prompt_length), np.asarray(parent.length)
    rows = [r for r in range(len(start)) if length[r] - start[r] > 3]
    pairs = [
        (row, at)
        for row in rows
        for at in (start[row], start[row] + 1, length[row] - 1, length[row])
    ]
    forks = Forks(parent, [r for r, _ in pairs], [int(a) for _, a in pairs])
    return (forks, *of.forks(forks, num_samples=2, first=7))


def test_a_fork_draws_what_its_prefix_as_a_prompt_draws(params, monkeypatch):
    """The cache is copied: ids are those of reading the prefix, which is not read."""
    of = held()
    requests = rollout.of_prompts(PROMPTS, num_samples=3, limit=NEW)
    parent, _ = of.sample(params, requests, keys.root(3), keep=True)
    forks, wanted, kept = forked(of, parent)
    assert all(r.parent is not None for r in wanted)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "prefill", None)  # would raise if it were called
        out, _ = of.sample(params, wanted, keys.root(4), parents=kept)
    assert out.sampled.any()
    again = [r._replace(parent=None) for r in wanted]
    plain, _ = held().sample(params, again, keys.root(4))
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_allclose(out.logp, plain.logp, atol=1e-5)
    tokens, before = np.asarray(out.tokens), np.asarray(parent.tokens)
    for i, (row, at) in enumerate(zip(forks.rows, forks.positions, strict=True)):
        limit = int(parent.prompt_length[row]) + NEW
        assert (tokens[2 * i : 2 * i + 2, :at] == before[row, :at]).all()
        assert (np.asarray(out.length)[2 * i : 2 * i + 2] <= limit).all()


def test_forks_that_may_become_long_go_first(params):
    """Two slots end together after 30 steps; in the order given they would take 45."""
    requests = rollout.of_prompts([[9]], num_samples=1, limit=2)
    _, first = sample(params, requests, geometry(2), stop_ids=[], keep=1)
    limits = [15, 15, 30]
    forks = [
        requests[0]._replace(row=i, limit=limit, sample=i, parent=0)
        for i, limit in enumerate(limits)
    ]
    out, done = sample(params, forks, geometry(2), stop_ids=[], parents=first.kept)
    assert done.slot_steps == 2 * 30
    assert np.asarray(out.sampled).sum(1).tolist() == limits


def test_what_does_not_fit_is_prefilled_again(params):
    of = held(kept_bytes=0)
    requests = rollout.of_prompts(PROMPTS, num_samples=3, limit=NEW)
    parent, _ = of.sample(params, requests, keys.root(3), keep=True)
    _, wanted, kept = forked(of, parent)
    assert all(r.parent is None for r in wanted)
    row = of._engine.row_bytes(of._layout[1])
    some = held(kept_bytes=row * 8)
    parent, _ = some.sample(params, requests, keys.root(3), keep=True)
    _, mixed, kept = forked(some, parent)
    assert len(kept.place) == 8
    assert {r.parent is None for r in mixed} == {True, False}
    out, _ = some.sample(params, mixed, keys.root(4), parents=kept)
    plain, _ = held().sample(params, wanted, keys.root(4))
    np.testing.assert_array_equal(out.tokens, plain.tokens)


def test_caches_are_of_the_rollout_that_kept_them_and_can_be_released(params):
    of = held()
    requests = rollout.of_prompts(PROMPTS, num_samples=2, limit=NEW)
    first, _ = of.sample(params, requests, keys.root(3), keep=True)
    second, _ = of.sample(params, requests, keys.root(5), keep=True)
    assert of.forks(Forks(first, [0], [4]), num_samples=1)[1] is None
    assert of.forks(Forks(second, [0], [4]), num_samples=1)[1] is not None
    of.release()
    assert of.forks(Forks(second, [0], [4]), num_samples=1)[1] is None


def test_forks_of_forks_have_what_the_first_rollouts_limit_had_left(params):
    of = held()
    requests = rollout.of_prompts(PROMPTS, num_samples=1, limit=NEW)
    first, _ = of.sample(params, requests, keys.root(3), keep=True)
    row = int(np.argmax(first.length - first.prompt_length))
    start, length = int(first.prompt_length[row]), int(first.length[row])
    asked, kept = of.forks(Forks(first, [row], [length - 1]), num_samples=2)
    again, _ = of.sample(params, asked, keys.root(4), parents=kept, keep=True)
    wanted, kept = of.forks(Forks(again, [1], [length]), num_samples=1)
    assert wanted[0].limit == start + NEW - length
    out, _ = of.sample(params, wanted, keys.root(5), parents=kept)
    assert out.length[0] <= start + NEW


def test_a_cache_of_other_weights_is_not_continued(params):
    """A teacher of the same shape has the same programs, and other keys and values."""
    teacher = jax.jit(functools.partial(models.init, CONFIG))(keys.root(2))
    of = held()
    requests = rollout.of_prompts(PROMPTS, num_samples=1, limit=NEW)
    parent, _ = of.sample(params, requests, keys.root(3), keep=True)
    forks = Forks(parent, [0, 3], [2, 71])
    ours, kept = of.forks(forks, num_samples=2, params=params)
    assert all(r.parent is not None for r in ours)
    with pytest.raises(ValueError, match="caches of other weights"):
        of.sample(teacher, ours, keys.root(4), parents=kept)
    theirs, none = of.forks(forks, num_samples=2, params=teacher)
    assert none is None
    assert all(r.parent is None for r in theirs)
    out, _ = of.sample(teacher, theirs, keys.root(4), parents=none)
    plain, _ = held().sample(teacher, theirs, keys.root(4))
    np.testing.assert_array_equal(out.tokens, plain.tokens)


@pytest.mark.parametrize(
    ("row", "at", "said"),
    [
        (0, 0, "position 0: it must keep at least one"),
        (0, 10_000, "position 10000: .* at most"),
        (5, 3, "row 5: the rollout has 5"),
        (-1, 3, "row -1: the rollout has 5"),
    ],
)
def test_a_fork_of_nothing_is_refused(row, at, said, params):
    of = held()
    requests = rollout.of_prompts(PROMPTS, num_samples=1, limit=2)
    parent, _ = of.sample(params, requests, keys.root(3))
    with pytest.raises(ValueError, match=said):
        of.forks(Forks(parent, [row], [at]), num_samples=1)


def test_a_prefix_first_read_again_late_compiles_nothing(params):
    """Where caches are kept, the prefill of a long prefix is there before it is due."""
    of = held()
    requests = rollout.of_prompts([PROMPTS[3]], num_samples=2, limit=NEW)
    parent, _ = of.sample(params, requests, keys.root(3), keep=True)
    prefix = np.asarray(parent.tokens)[0, :90].tolist()
    again = [r._replace(prefix=prefix, limit=5) for r in requests]
    watch = Watch()
    try:
        out, _ = of.sample(params, again, keys.root(4))
        assert watch.take()[0] == 0
    finally:
        watch.close()
    assert out.prompt_length.tolist() == [90, 90]


def test_slots_that_the_devices_cannot_share_are_refused():
    from grpo_jax import sharding

    mesh = sharding.make_mesh(data=4)
    with pytest.raises(ValueError, match="6 slots must be a multiple of 4"):
        Engine(FUNCTIONS, geometry(6)._replace(mesh=mesh))


def test_the_chunk_is_shorter_than_what_is_sampled_here():
    assert decoding.CHUNK < NEW  # so that these tests see a sequence over two chunks
