"""The exact variances of the table, against groups that were really drawn."""

import itertools

import numpy as np
import pytest

from tests.grpo import dense_tables
from tests.grpo import test_dense_enumeration as enumerated


def drawn(policy, variant, samples, groups, seed=0):
    """Mean gradients of groups, `[groups, parameters]`, each continuation drawn."""
    rng = np.random.default_rng(seed)
    sequences = [y for y, _ in policy.sequences]
    chance = np.array([p for _, p in policy.sequences])
    tails = {p: list(policy.after(p)) for p in policy.prefixes}
    out = np.zeros((groups, policy.prob.size))
    for group in out:
        rows = [sequences[i] for i in rng.choice(len(chance), 8, p=chance)]
        rewards = np.array([policy.reward[y] for y in rows])
        for i, y in enumerate(rows):
            states = [y[:t] for t in enumerated.SEGMENT(list(y))]
            values = [(rewards.sum() - rewards[i]) / 7]
            for state in states:
                ends, weights = zip(*tails[state], strict=True)
                picks = rng.choice(len(ends), samples, p=weights)
                values.append(np.mean([policy.reward[ends[k]] for k in picks]))
            values.append(rewards[i])
            edges = [0, *map(len, states), len(y)]
            score = policy.scores(y).reshape(len(y), -1)
            for j, (a, b) in enumerate(itertools.pairwise(edges)):
                after = values[j + 1] if variant == "difference" else values[-1]
                group += (after - values[j]) * score[a:b].sum(0) / 8
    return out


@pytest.mark.parametrize("variant", dense_tables.VARIANTS)
@pytest.mark.parametrize("samples", [1, 4])
def test_the_variance_is_that_of_drawn_groups(variant, samples):
    policy, groups = dense_tables.binary(3), 1500
    found = drawn(policy, variant, samples, groups)
    squares = ((found - found.mean(0)) ** 2).sum(1)
    error = squares.std() / np.sqrt(groups)
    exact = dense_tables.variance(dense_tables.moments(policy, variant), samples)
    assert abs(squares.mean() - exact) < 5 * error
    assert error < exact / 20


def test_the_table_has_a_row_for_each_variant_and_number_of_continuations():
    lines = dense_tables.table(5)
    assert len(lines) == 2 + 2 * 5
