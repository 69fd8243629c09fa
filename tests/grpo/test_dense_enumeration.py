"""Expected gradients of dense credit, exactly, on a policy that can be enumerated.

Tokens are a letter, a newline and the end; a policy has a distribution of its own for
every prefix, and a reward any number for every sequence, cut ones included. Groups of
two and, with one continuation of each state, every outcome of the continuations are
weighed by their probability.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import continuations, credit, steps

LETTER, LINE, END, LIMIT = 0, 1, 2, 3
STEPS = 3


def decode(ids):
    return "".join("a\n"[i] for i in ids if i != END)


SEGMENT = steps.segmenter(decode, max_steps=STEPS, min_chars=1)


def end_folded(ids):
    """The end token put into the step before: a cut that looks ahead."""
    return [b for b in SEGMENT(ids) if ids[b] != END]


def merged(ids):
    """Two steps of as many lines each, which nobody knows before the end."""
    found = SEGMENT(ids)
    return found[len(found) // 2 :][:1]


class Policy:
    """A random policy, its sequences, and the gradient of each log-probability."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.prefixes = [
            p for n in range(LIMIT) for p in itertools.product((LETTER, LINE), repeat=n)
        ]
        logits = rng.normal(size=(len(self.prefixes), 3))
        self.prob = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        self.place = {p: i for i, p in enumerate(self.prefixes)}
        self.sequences = list(self.after(()))
        self.reward = {y: rng.random() for y, _ in self.sequences}

    def after(self, prefix):
        """Yields the sequences that go on from a prefix, with their probabilities."""
        if len(prefix) == LIMIT:
            yield prefix, 1.0
            return
        for token, p in enumerate(self.prob[self.place[prefix]]):
            if token == END:
                yield (*prefix, END), p
            else:
                for y, q in self.after((*prefix, token)):
                    yield y, p * q

    def scores(self, y):
        """`[T, prefixes, 3]` gradient of each token's log-probability."""
        out = np.zeros((len(y), *self.prob.shape))
        for t, token in enumerate(y):
            i = self.place[y[:t]]
            out[t, i] = -self.prob[i]
            out[t, i, token] += 1
        return out

    def value(self, prefix):
        return sum(q * self.reward[y] for y, q in self.after(prefix))

    def gradient(self):
        """Of the expected reward."""
        return sum(
            p * self.reward[y] * self.scores(y).sum(0) for y, p in self.sequences
        )


def advantages(values, variant):
    got = jax.vmap(variant)(jnp.asarray(values))
    real = jnp.ones(got.shape, bool)
    return np.asarray(credit.as_they_are(got, real), np.float64)


def expected(policy, variant, *, noisy, first, segment=SEGMENT, shared=True):
    """The expected gradient of dense credit, a mean over groups of two.

    Args:
      policy: what samples.
      variant: of step advantages.
      noisy: whether values come of one continuation; else they are exact.
      first: rewards and the exact first value to the first values of a group.
      segment: ids to boundaries.
      shared: whether the rows of a group share the values of a prefix.
    """
    chances, rows, values = [], [], []
    for (a, p), (b, q) in itertools.product(policy.sequences, repeat=2):
        cuts = [[y[:t] for t in segment(list(y))] for y in (a, b)]
        names = [[(c,) if shared else (c, i) for c in cuts[i]] for i in (0, 1)]
        states = sorted(set(names[0] + names[1]))
        if noisy:
            tails = [list(policy.after(s[0])) for s in states]
        else:
            tails = [[(None, 1.0)] for _ in states]
        for drawn in itertools.product(*tails):
            known = {
                s: policy.value(s[0]) if y is None else policy.reward[y]
                for s, (y, _) in zip(states, drawn, strict=True)
            }
            rewards = np.array([policy.reward[a], policy.reward[b]])
            chances.append(p * q * np.prod([chance for _, chance in drawn]))
            rows += [a, b]
            values.append(
                continuations.table(
                    first(rewards, policy.value(())),
                    [[known[s] for s in mine] for mine in names],
                    rewards,
                    max_steps=STEPS,
                )
            )
    steps_b = advantages(np.concatenate(values), variant)
    ends = [[*segment(list(y)), len(y)] for y in rows]
    at = continuations.Steps(ends, np.zeros(len(rows), int))
    spread = continuations.over_tokens(at, steps_b, LIMIT)
    total = np.zeros_like(policy.prob)
    for i, (y, row) in enumerate(zip(rows, spread, strict=True)):
        score = np.tensordot(row[: len(y)].astype(float), policy.scores(y), axes=1)
        total += chances[i // 2] / 2 * score
    assert abs(sum(chances) - 1) < 1e-9
    return total


def others(rewards, value):
    del value
    return continuations.leave_one_out(rewards, 2)


def exact(rewards, value):
    return np.full_like(rewards, value)


def own_included(rewards, value):
    del value
    return np.full_like(rewards, rewards.mean())


VARIANTS = {"difference": credit.step_advantages, "return_to_go": credit.return_to_go}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("first", [others, exact])
def test_the_expected_gradient_is_that_of_the_expected_reward(variant, noisy, first):
    for seed in range(2):
        policy = Policy(seed)
        got = expected(policy, variant, noisy=noisy, first=first)
        np.testing.assert_allclose(got, policy.gradient(), atol=1e-6)


def outcome(policy, compare):
    """The expected gradient of an outcome advantage, over groups of two."""
    total = np.zeros_like(policy.prob)
    for (a, p), (b, q) in itertools.product(policy.sequences, repeat=2):
        rewards = jnp.array([policy.reward[a], policy.reward[b]])
        for y, advantage in zip((a, b), np.asarray(compare(rewards)), strict=True):
            total += p * q / 2 * float(advantage) * policy.scores(y).sum(0)
    return total


def test_outcomes_against_the_others_are_unbiased_and_centred_ones_are_half_of_it():
    policy = Policy(0)
    np.testing.assert_allclose(
        outcome(policy, credit.leave_one_out), policy.gradient(), atol=1e-6
    )
    np.testing.assert_allclose(
        outcome(policy, credit.centred), policy.gradient() / 2, atol=1e-6
    )


def test_values_of_shared_prefixes_may_be_shared_or_not():
    policy = Policy(1)
    for shared in (True, False):
        got = expected(
            policy, credit.step_advantages, noisy=True, first=others, shared=shared
        )
        np.testing.assert_allclose(got, policy.gradient(), atol=1e-6)


def test_two_continuations_of_a_state_leave_the_expectation_alone():
    """By linearity a pair's mean has the expectation of each; drawn out for one row."""
    policy = Policy(2)
    total = np.zeros_like(policy.prob)
    for y, p in policy.sequences:
        states = [y[:t] for t in SEGMENT(list(y))]
        pairs = [list(itertools.product(policy.after(s), repeat=2)) for s in states]
        for drawn in itertools.product(*pairs):
            between = [
                (policy.reward[one] + policy.reward[two]) / 2
                for (one, _), (two, _) in drawn
            ]
            chance = p * np.prod([a * b for (_, a), (_, b) in drawn])
            values = continuations.table(
                np.array([policy.value(())]),
                [between],
                np.array([policy.reward[y]]),
                max_steps=STEPS,
            )
            got = np.diff(values[0].astype(float))[: len(states) + 1]
            edges = [0, *(len(s) for s in states), len(y)]
            for j, (a, b) in enumerate(itertools.pairwise(edges)):
                total += chance * got[j] * policy.scores(y)[a:b].sum(0)
    np.testing.assert_allclose(total, policy.gradient(), atol=1e-6)


@pytest.mark.parametrize("segment", [end_folded, merged])
def test_boundaries_that_look_ahead_bias_the_gradient_even_with_exact_values(segment):
    policy = Policy(0)
    got = expected(
        policy, credit.step_advantages, noisy=False, first=exact, segment=segment
    )
    assert np.abs(got - policy.gradient()).max() > 1e-3


def test_a_first_value_that_includes_the_own_outcome_biases_the_gradient():
    policy = Policy(0)
    got = expected(policy, credit.step_advantages, noisy=False, first=own_included)
    assert np.abs(got - policy.gradient()).max() > 1e-3
