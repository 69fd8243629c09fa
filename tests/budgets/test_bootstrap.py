import itertools
import math

import numpy as np
import pytest

from budgets import bootstrap, stats


def scores(shape, p, seed=0):
    return np.random.default_rng(seed).random(shape) < p


def gains(a, b):
    return np.mean(a, axis=2) - np.mean(b, axis=2)


def all_resamples(table):
    """Differences of all resamples of seeds and problems, equally likely, looped."""
    num_seeds, num_problems = table.shape
    return np.array(
        [
            np.mean([[table[s, m] for m in problems] for s in seeds])
            for seeds in itertools.product(range(num_seeds), repeat=num_seeds)
            for problems in itertools.product(range(num_problems), repeat=num_problems)
        ]
    )


def test_difference_worked_by_hand():
    # Means 3/4 and 1/3.
    a = [[1, 1, 0, 1]]
    b = [[1, 0, 0]]
    found = stats.paired_bootstrap(a, b)
    # One problem: every resample is the same.
    assert found.low == found.high == found.difference == pytest.approx(5 / 12)
    assert found.p == pytest.approx(1 / 10_001)


def test_draws_have_the_distribution_of_all_resamples():
    a, b = scores((2, 3, 4), 0.6, seed=3), scores((2, 3, 2), 0.5, seed=5)
    exact = all_resamples(gains(a, b))
    draws = 20_000
    found = stats.paired_bootstrap(a, b, num_draws=draws)
    # p counts draws of at most 0, ties with 0 included.
    tail = np.mean(exact <= 1e-12)
    assert np.any(np.abs(exact) < 1e-12)
    assert 0.1 < tail < 0.9
    five_sigma = 5 * math.sqrt(tail * (1 - tail) / draws)
    assert abs(found.p - tail) < five_sigma
    table = gains(a, b) * 8  # by whole numbers, as 1/4 and 1/2 are
    sums = np.concatenate(list(bootstrap._resampled_sums(table, draws, 0)))
    for value in np.unique(np.round(exact * 48)):
        share = np.mean(np.round(exact * 48) == value)
        spread = 5 * math.sqrt(share * (1 - share) / draws)
        assert abs(np.mean(np.round(sums) == value) - share) < spread
    assert found.difference == pytest.approx(gains(a, b).mean(), abs=1e-15)


def test_resampled_sums_equal_a_loop_over_the_same_indices():
    table = np.random.default_rng(1).normal(size=(3, 5))
    sums = np.concatenate(list(bootstrap._resampled_sums(table, 20, 7)))
    of_seeds, of_problems = map(np.random.default_rng, ([7, 0], [7, 1]))
    seeds = of_seeds.integers(3, size=(20, 3))
    problems = of_problems.integers(5, size=(20, 5))
    looped = [
        sum(table[s, m] for s in seeds[i] for m in problems[i]) for i in range(20)
    ]
    np.testing.assert_allclose(sums, looped, rtol=1e-12)


def test_the_number_held_at_a_time_changes_nothing(monkeypatch):
    a, b = scores((3, 7, 4), 0.6), scores((3, 7, 4), 0.5, seed=1)
    whole = stats.paired_bootstrap(a, b, num_draws=1001)
    monkeypatch.setattr(bootstrap, "_CELLS", 50)
    assert stats.paired_bootstrap(a, b, num_draws=1001) == whole


def test_interval_and_p_follow_from_the_resampled_differences():
    a, b = scores((2, 40, 4), 0.6), scores((2, 40, 8), 0.5, seed=1)
    found = stats.paired_bootstrap(a, b, num_draws=999, seed=4)
    sums = np.concatenate(list(bootstrap._resampled_sums(gains(a, b), 999, 4)))
    ordered = np.sort(sums) / 80
    # 998 * 0.025 = 24.95 and 998 * 0.975 = 973.05, read between neighbours.
    low = ordered[24] + 0.95 * (ordered[25] - ordered[24])
    high = ordered[973] + 0.05 * (ordered[974] - ordered[973])
    assert found.low == pytest.approx(low, abs=1e-12)
    assert found.high == pytest.approx(high, abs=1e-12)
    assert found.p == pytest.approx((1 + np.sum(ordered <= 1e-12)) / 1000, abs=1e-12)


def test_a_resampled_difference_of_zero_counts_though_tenths_are_not_exact():
    # Gains of 1/10, 2/10 and -3/10, whose sum as floats is above 0.
    tens = np.arange(10)
    a, b = tens < np.array([[1], [2], [0]]), tens < np.array([[0], [0], [3]])
    found = stats.paired_bootstrap(a, b, num_draws=500)
    chosen = np.random.default_rng([0, 1]).integers(3, size=(500, 3))
    tenths = np.array([1, 2, -3])[chosen].sum(axis=1)
    assert np.sum(tenths == 0) > 50
    assert found.p == (1 + np.sum(tenths <= 0)) / 501


def test_equal_arms_differ_by_nothing_and_p_is_one():
    a = scores((3, 50, 7), 0.3)
    assert stats.paired_bootstrap(a, a) == (0.0, 0.0, 0.0, 1.0)
    # The same means over other numbers of samples: 3/7 and 6/14 in every problem.
    repeated = np.repeat(a, 2, axis=2)
    assert stats.paired_bootstrap(a, repeated) == (0.0, 0.0, 0.0, 1.0)


def test_swapped_arms_mirror_the_interval():
    a, b = scores((2, 60, 8), 0.6), scores((2, 60, 8), 0.55, seed=1)
    ab, ba = stats.paired_bootstrap(a, b), stats.paired_bootstrap(b, a)
    mirrored = (-ab.difference, -ab.high, -ab.low)
    assert ba[:3] == pytest.approx(mirrored, abs=1e-12)
    # A draw of exactly 0 counts against both.
    assert 1 <= ab.p + ba.p < 1.05


def test_order_of_problems_is_noise_and_repeated_samples_are_nothing():
    a, b = scores((2, 80, 4), 0.6), scores((2, 80, 4), 0.5, seed=1)
    found = stats.paired_bootstrap(a, b)
    order = np.random.default_rng(2).permutation(80)
    moved = stats.paired_bootstrap(a[:, order], b[:, order])
    assert moved.difference == pytest.approx(found.difference, abs=1e-12)
    width = found.high - found.low
    assert moved[1:3] == pytest.approx(found[1:3], abs=width / 20)
    repeated = stats.paired_bootstrap(np.repeat(a, 3, axis=2), b)
    assert repeated == pytest.approx(found, abs=1e-12)


def test_one_seed_has_two_axes_or_three():
    a, b = scores((30, 4), 0.6), scores((30, 4), 0.5, seed=1)
    found = stats.paired_bootstrap(a, b, seed=3)
    assert found == stats.paired_bootstrap(a[None], b, seed=3)
    assert found != stats.paired_bootstrap(a, b, seed=4)
    # About two standard errors of the pairs on either side.
    error = stats.paired_difference(a, b).standard_error
    assert (found.high - found.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.1)


def test_crossed_resampling_covers_where_nested_resampling_does_not():
    # An arm is better on some problems and worse on others, the same for every seed.
    rng = np.random.default_rng(0)
    trials, seeds, problems, samples = 300, 3, 40, 8
    covered = {"crossed": 0, "nested": 0}
    for trial in range(trials):
        p_a, p_b = rng.random((2, 1, problems, 1))
        a = rng.random((seeds, problems, samples)) < p_a
        b = rng.random((seeds, problems, samples)) < p_b
        found = stats.paired_bootstrap(a, b, num_draws=400, seed=trial)
        covered["crossed"] += found.low <= 0 <= found.high
        chosen = rng.integers(problems, size=(400, seeds, problems))
        some = rng.integers(seeds, size=(400, seeds))
        nested = gains(a, b)[some[..., None], chosen].mean(axis=(1, 2))
        low, high = np.percentile(nested, [2.5, 97.5])
        covered["nested"] += low <= 0 <= high
    # Three sigma at 95 % of 300 trials is 4 points.
    assert 0.90 < covered["crossed"] / trials < 0.99
    assert covered["nested"] / trials < 0.85


@pytest.mark.parametrize(
    ("a", "b", "draws", "said"),
    [
        (np.ones((2, 3, 4)), np.ones((2, 4, 4)), 9, r"\(2, 3\) and \(2, 4\)"),
        (np.ones((2, 3, 4)), np.ones((3, 4)), 9, r"\(2, 3\) and \(1, 3\)"),
        (np.ones(3), np.ones(3), 9, r"\(3,\) must be"),
        (np.ones((3, 0)), np.ones((3, 1)), 9, r"\(3, 0\) must be"),
        (np.full((3, 1), np.nan), np.ones((3, 1)), 9, "not finite"),
        (np.ones((3, 1)), np.ones((3, 1)), 0, "num_draws=0"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(a, b, draws, said):
    with pytest.raises(ValueError, match=said) as error:
        stats.paired_bootstrap(a, b, num_draws=draws)
    assert "\n" not in str(error.value)
