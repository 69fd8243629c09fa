import itertools
import math

import numpy as np
import pytest

from budgets import stats

X = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]], bool)


def test_mean_at_n_is_the_share_of_right_samples():
    assert stats.mean_at_n(X) == pytest.approx(7 / 12, abs=1e-15)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_equals_enumeration_of_all_subsets(k):
    hits = [
        np.mean([any(row[list(s)]) for s in itertools.combinations(range(4), k)])
        for row in X
    ]
    assert stats.pass_at_k(X, k) == pytest.approx(np.mean(hits), abs=1e-12)


def test_pass_at_k_has_the_expectation_of_k_fresh_samples():
    # Every outcome of N = 4 draws at p = 0.3, weighed: E = 1 - (1 - p)^k.
    p, expected = 0.3, 0.0
    for bits in itertools.product([0, 1], repeat=4):
        weight = math.prod(p if b else 1 - p for b in bits)
        expected += weight * stats.pass_at_k(np.array([bits]), 2)
    assert expected == pytest.approx(1 - 0.7**2, abs=1e-12)


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_refuses_more_than_there_is(k):
    with pytest.raises(ValueError, match=f"k={k}"):
        stats.pass_at_k(X, k)


def test_standard_errors_worked_by_hand():
    # p = 1/2, 1/4, 1: mean 7/12, squared deviations 1/144, 16/144, 25/144, sum 42/144;
    # sd^2 = 21/144; over problems sqrt(21/144/3) = sqrt(7)/12.
    # Of sampling: sqrt((1/4 + 3/16) / 3) / 3.
    errors = stats.standard_errors(X)
    assert errors.over_problems == pytest.approx(math.sqrt(7) / 12, abs=1e-15)
    assert errors.of_sampling == pytest.approx(math.sqrt(7 / 48) / 3, abs=1e-15)


def test_squared_error_of_sampling_is_unbiased_by_enumeration():
    # Two problems with p = 0.3 and 0.8, N = 3: all 64 outcomes. The variance of the
    # mean is sum p (1 - p) / N / M^2 = (0.21 + 0.16) / 3 / 4.
    expected = 0.0
    for bits in itertools.product([0, 1], repeat=6):
        x = np.array(bits).reshape(2, 3)
        q = np.array([[0.3], [0.8]])
        weight = float(np.prod(np.where(x, q, 1 - q)))
        expected += weight * stats.standard_errors(x).of_sampling ** 2
    assert expected == pytest.approx(0.37 / 12, abs=1e-12)


def test_errors_without_an_estimate_are_none():
    assert stats.standard_errors(X[:, :1]).of_sampling is None
    assert stats.standard_errors(X[:1]).over_problems is None


def test_paired_difference_worked_by_hand():
    # Per problem: 1/2 - 0, 1/4 - 1, 1 - 1/2 = 1/2, -3/4, 1/2; mean 1/12;
    # deviations 5/12, -10/12, 5/12: sd^2 = 150/144/2, se = sqrt(75/144/3) = 5/12.
    b = np.array([[0, 0], [1, 1], [1, 0]], bool)
    result = stats.paired_difference(X, b)
    assert result.difference == pytest.approx(1 / 12, abs=1e-15)
    assert result.standard_error == pytest.approx(5 / 12, abs=1e-15)


def test_pairing_removes_what_problems_share():
    rng = np.random.default_rng(0)
    hard = rng.random((400, 1)) < 0.5
    a = np.where(hard, 0, 1) * np.ones((400, 8), int)
    result = stats.paired_difference(a, a)
    assert result == (0.0, 0.0)
    with pytest.raises(ValueError, match="400 and 399"):
        stats.paired_difference(a, a[1:])


def test_groups_are_sorted_and_each_is_the_accuracy_of_its_problems():
    found = stats.per_group(X, ["b", "a", "b"])
    assert list(found) == ["a", "b"]
    assert found["a"].num_problems == 1
    assert found["a"].mean == pytest.approx(1 / 4, abs=1e-15)
    assert found["a"].errors.over_problems is None
    assert found["b"].num_problems == 2
    assert found["b"].mean == pytest.approx(3 / 4, abs=1e-15)
    assert found["b"].errors == stats.standard_errors(X[[0, 2]])
    weighed = sum(g.num_problems * g.mean for g in found.values()) / 3
    assert weighed == pytest.approx(stats.mean_at_n(X), abs=1e-15)
    with pytest.raises(ValueError, match="2 groups for 3 problems"):
        stats.per_group(X, ["a", "b"])
