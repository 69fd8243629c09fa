"""Which prompts are trained on, and what choosing them calls for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from budgets.ledger import Phase
from grpo_jax import keys, scored, selection
from grpo_jax.base import Feedback, Problem, Rollout, Services

COLUMNS = 3


def key_of(update=1):
    return keys.at(keys.root(0), keys.Stream.SELECT, update)


class Pool:
    """Problems 0, 1, 2, ..., `size` of them, in order and again."""

    def __init__(self, size=12):
        self.size, self.position = size, 0

    def draw(self, count):
        first, self.position = self.position, self.position + count
        return tuple(
            Problem(id=str(i % self.size), question="", answer="", prompt=(7,))
            for i in range(first, first + count)
        )

    def place(self, name):
        return int(name)

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


class Recorded:
    """Services that write down each call; problem i's rewards are given."""

    def __init__(self, rewards):
        self.rewards, self.calls, self.sampled = rewards, [], []

    def sample(self, weights, requests, *, num_samples, phase, key, keep=False):
        ids = [int(p.id) for p in requests]
        self.calls.append((phase, tuple(ids), num_samples, key_data(key)))
        rows = len(ids) * num_samples
        # Column 1 names the problem, column 2 the call and the sample.
        tokens = np.full((rows, COLUMNS), 7, np.int32)
        tokens[:, 1] = np.repeat(ids, num_samples)
        tokens[:, 2] = 100 * len(self.calls) + np.tile(np.arange(num_samples), len(ids))
        out = Rollout(
            tokens=jnp.asarray(tokens),
            sampled=jnp.asarray(np.arange(COLUMNS)[None] > np.zeros((rows, 1))),
            logp=jnp.zeros((rows, COLUMNS)),
            prompt_length=jnp.ones(rows, jnp.int32),
            length=jnp.full(rows, COLUMNS),
            truncated=jnp.zeros(rows, bool),
        )
        self.sampled.append(out)
        return out

    def verify(self, rollout, prompts, *, phase):
        self.calls.append((phase, "verify", len(prompts)))
        group = rollout.tokens.shape[0] // len(prompts)
        reward = [self.rewards(int(p.id), s) for p in prompts for s in range(group)]
        return Feedback(
            reward=np.array(reward, np.float32),
            error=np.zeros(len(reward), bool),
            answers=(None,) * len(reward),
        )

    def bound(self):
        return Services(self.sample, None, self.verify)  # pyright: ignore


def key_data(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def passing(counts):
    """Rewards of problem i: its first `counts[i]` samples are right."""
    return lambda i, s: s < counts[i]


def chosen(selector, counts, update=1):
    services, pool = Recorded(passing(counts)), Pool(len(counts))
    picked, state = selector.select(
        services.bound(), {}, selector.init(pool), pool, key_of(update)
    )
    assert state == ()
    return [int(p.id) for p in picked.prompts], services


def test_the_filter_keeps_the_rates_nearest_its_target_in_the_order_drawn():
    select = scored.filtered(2, candidates=3, scoring_samples=4)
    # rates 1, 1/2, 0, 3/4, 0, 1: distances 1/2, 0, 1/2, 1/4, 1/2, 1/2
    assert chosen(select, [4, 2, 0, 3, 0, 4])[0] == [1, 3]
    assert chosen(select, [4, 3, 0, 2, 0, 4])[0] == [1, 3]
    low = scored.filtered(2, candidates=3, scoring_samples=4, target=0.0)
    assert chosen(low, [4, 2, 0, 3, 0, 4])[0] == [2, 4]


def test_rates_as_near_as_each_other_are_taken_as_often():
    """With four samples and a target of 1/4 the rates 0 and 1/2 are equidistant."""
    select = scored.filtered(1, candidates=2, scoring_samples=4, target=0.25)
    size = 400
    first = sum(chosen(select, [0, 2], i)[0] == [0] for i in range(size))
    assert abs(first - size / 2) < 5 * np.sqrt(size / 4)
    third = scored.filtered(1, candidates=2, scoring_samples=3, target=0.2)
    # 1/3 is nearer to 0.2 than 0 is.
    assert chosen(third, [0, 1])[0] == [1]


def test_the_filter_and_its_control_score_the_same_candidates_with_the_same_keys():
    counts = [4, 2, 0, 3, 0, 4, 1, 2]
    found = {}
    for name, make in (("filter", scored.filtered), ("random", scored.at_random)):
        services, pool = Recorded(passing(counts)), Pool(len(counts))
        select = make(2, candidates=4, scoring_samples=4)
        for update in (1, 2):
            select.select(services.bound(), {}, (), pool, key_of(update))
        found[name] = services
    assert found["filter"].calls == found["random"].calls
    for a, b in zip(*(s.sampled for s in found.values()), strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
    assert {call[0] for call in found["filter"].calls} == {Phase.CANDIDATE}


def test_the_control_takes_every_candidate_as_often():
    select, size = scored.at_random(1, candidates=4, scoring_samples=1), 800
    found = [chosen(select, [1, 0, 0, 1], i)[0][0] for i in range(size)]
    counts = np.bincount(found, minlength=4)
    assert np.abs(counts - size / 4).max() < 5 * np.sqrt(size * 3 / 16)


def test_reused_scoring_samples_are_the_first_of_their_groups():
    select = scored.filtered(2, candidates=2, scoring_samples=2, reused_in=3)
    services, pool = Recorded(passing([0, 1, 2, 1])), Pool(4)
    picked, _ = select.select(services.bound(), {}, (), pool, key_of())
    assert [p.id for p in picked.prompts] == ["1", "3"]
    assert picked.rollout is not None
    # Call 1 scored, call 2 verified, call 3 sampled one more of each.
    np.testing.assert_array_equal(
        np.asarray(picked.rollout.tokens)[:, 1:],
        [[1, 100], [1, 101], [1, 300], [3, 100], [3, 101], [3, 300]],
    )
    phases = [call[0] for call in services.calls]
    assert phases == [Phase.CANDIDATE, Phase.CANDIDATE, Phase.ROLLOUT]
    assert services.calls[0][3] != services.calls[2][3]
    with pytest.raises(ValueError, match="exceed the group of 3"):
        scored.filtered(2, scoring_samples=4, reused_in=3)


def test_a_posterior_is_worked_by_hand_and_forgets():
    select, pool = selection.history(1, candidates=1, forgetting=0.5), Pool(3)
    state = select.init(pool)
    shapes = jax.tree.map(jnp.shape, state)
    for rewards in ([1, 1, 0, 1], [0, 0, 0, 1]):
        pool.position = 1
        picked, state = select.select(None, {}, state, pool, key_of())
        feedback = Feedback(
            reward=np.array(rewards, np.float32),
            error=np.zeros(4, bool),
            answers=(None,) * 4,
        )
        state = select.observe(state, picked.prompts, feedback)
    # right: 1 + 3 = 4, then 1 + 0.5 * 3 + 1; wrong: 1 + 1 = 2, then 1 + 0.5 + 3
    np.testing.assert_allclose(state["right"], [1, 3.5, 1])
    np.testing.assert_allclose(state["wrong"], [1, 4.5, 1])
    assert jax.tree.map(jnp.shape, state) == shapes


def test_history_prefers_what_half_of_the_samples_solved_and_samples_nothing():
    select, pool = selection.history(2, candidates=3), Pool(6)
    state = select.init(pool)
    state["right"] = jnp.array([99.0, 50, 1, 99, 50, 1])
    state["wrong"] = jnp.array([1.0, 50, 99, 1, 50, 99])
    picked, after = select.select(None, {}, state, pool, key_of())
    assert [p.id for p in picked.prompts] == ["1", "4"]
    np.testing.assert_array_equal(after["picked"], [1, 4])


def test_dynamic_selection_fills_an_update_with_groups_that_differ():
    rewards = lambda i, s: float(s == 0) if i % 3 else 1.0
    select, pool = selection.dynamic(3, group_size=2), Pool(12)
    services = Recorded(rewards)
    picked, _ = select.select(services.bound(), {}, (), pool, key_of())
    assert [p.id for p in picked.prompts] == ["1", "2", "4"]
    np.testing.assert_array_equal(
        np.asarray(picked.rollout.tokens)[:, 1], [1, 1, 2, 2, 4, 4]
    )
    sampled = [call for call in services.calls if call[1] != "verify"]
    assert [call[1] for call in sampled] == [(0, 1, 2), (3, 4, 5)]
    assert sampled[0][3] != sampled[1][3]
    assert {call[0] for call in services.calls} == {Phase.ROLLOUT}


def test_dynamic_selection_gives_up_with_a_message_where_no_group_differs():
    select = selection.dynamic(2, group_size=4, max_rounds=3)
    services = Recorded(lambda i, s: 1.0)
    with pytest.raises(selection.NoVariance, match=r"0 of the 2 groups.*3 rounds"):
        select.select(services.bound(), {}, (), Pool(), key_of())
    assert len(services.calls) == 6
