import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from budgets import stats, votes


def same(a, b):
    return Fraction(a) == Fraction(b)


def one(row, gold, k, **options):
    return stats.majority_at_k([row], [gold], k, equal=same, **options)


def slow(row, gold, k):
    """The expectation over all subsets, a vote at a time."""
    total = []
    for subset in itertools.combinations(row, k):
        ballots = {}
        for text in subset:
            if text is not None:
                ballots[Fraction(text)] = ballots.get(Fraction(text), 0) + 1
        most = max(ballots.values(), default=0)
        winners = [value for value, number in ballots.items() if number == most]
        hits = sum(value == Fraction(gold) for value in winners)
        total.append(hits / len(winners) if winners else 0)
    return np.mean(total)


def drawn(rng, size):
    pool = ["1", "2/2", "2", "4/2", "3", None]
    return [pool[i] for i in rng.integers(len(pool), size=size)]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (["1", "1", "2"], 1.0),
        (["1", "2", "2"], 0.0),
        (["1", "2", "3", "3"], 0.0),
        (["1", "2"], 1 / 2),  # two classes with a vote each
        (["1", "1", "2", "2", "3", "3", "4"], 1 / 3),  # three with two each
        (["1", "2/2", "2", "2", "4/4"], 1.0),  # 1, 2/2 and 4/4 are one class
        (["1", None, None], 1.0),  # two unread answers outvote nothing
        ([None, None], 0.0),
    ],
)
def test_a_vote_of_all_worked_by_hand(row, expected):
    assert one(row, "1", len(row)) == pytest.approx(expected, abs=1e-15)


def test_a_vote_of_two_worked_by_hand():
    # 1, 1, 2, None: six pairs. 11 -> 1; 12 twice -> 1/2 each; 1N twice -> 1; 2N -> 0.
    assert one(["1", "1", "2", None], "1", 2) == pytest.approx(4 / 6, abs=1e-15)


@pytest.mark.parametrize("k", range(1, 8))
def test_few_subsets_are_each_counted_once(k):
    rng = np.random.default_rng(k)
    for _ in range(20):
        row = drawn(rng, 7)
        assert one(row, "2", k) == pytest.approx(slow(row, "2", k), abs=1e-12)


def test_many_subsets_are_estimated_within_five_sigma():
    # C(14, 4) = 1,001: the smallest number that is sampled here.
    rows = [drawn(np.random.default_rng(i), 14) for i in range(40)]
    exact = np.array([slow(row, "1", 4) for row in rows])
    estimate = stats.majority_at_k(rows, ["1"] * 40, 4, equal=same)
    # A score in [0, 1] has a variance of at most p (1 - p).
    sigma = math.sqrt((exact * (1 - exact)).sum() / votes.SUBSETS) / 40
    assert 0 < abs(estimate - exact.mean()) < 5 * sigma


def test_subsets_hold_k_answers_and_each_answer_equally_often():
    members = votes._random_subsets(16, 4, [0, 0])
    assert members.shape == (1000, 16)
    assert (members.sum(axis=1) == 4).all()
    # Each answer is in a quarter of 1,000: five sigma of a binomial is 68.
    assert np.abs(members.sum(axis=0) - 250).max() < 68


def test_one_vote_is_the_mean_and_all_votes_need_no_seed():
    rng = np.random.default_rng(0)
    rows = [drawn(rng, 16) for _ in range(30)]
    right = [[t is not None and same(t, "2") for t in row] for row in rows]
    gold = ["2"] * 30
    mean = stats.majority_at_k(rows, gold, 1, equal=same)
    assert mean == pytest.approx(stats.mean_at_n(right), abs=1e-12)
    whole = {stats.majority_at_k(rows, gold, 16, equal=same, seed=s) for s in range(3)}
    assert len(whole) == 1


def test_the_seed_decides_and_a_problem_does_not_depend_on_the_others():
    rows = [drawn(np.random.default_rng(i), 16) for i in range(3)]
    value = lambda rows, gold, **seed: stats.majority_at_k(
        rows, gold, 8, equal=same, **seed
    )
    assert value(rows, ["1"] * 3) == value(rows, ["1"] * 3, seed=0)
    assert value(rows, ["1"] * 3) != value(rows, ["1"] * 3, seed=1)
    # Only the middle problem is ever right: two neighbours change nothing about it.
    nothing = [None] * 16
    middle = value([nothing, rows[1], nothing], ["1"] * 3)
    assert value([rows[0], rows[1], rows[2]], ["9", "1", "9"]) == middle > 0
    # Each problem has subsets of its own.
    assert value([rows[1]] * 2, ["1"] * 2) != value([rows[1]], ["1"])


def test_renaming_and_order_of_answers_do_not_matter_to_a_vote_of_all():
    rng = np.random.default_rng(3)
    for _ in range(20):
        row = drawn(rng, 9)
        renamed = [t if t is None else str(Fraction(t)) for t in rng.permutation(row)]
        assert one(row, "2", 9) == pytest.approx(one(renamed, "2", 9), abs=1e-12)


def test_an_equality_that_is_not_transitive_compares_with_the_first_member():
    near = lambda a, b: abs(int(a) - int(b)) <= 1
    tally = votes.count([["1", "2", "3"], ["2", "1", "3"]], ["3", "3"], equal=near)
    assert tally.classes.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert tally.right.tolist() == [[False, True, False], [True, False, False]]


def test_the_equality_is_called_for_distinct_texts_and_once_per_class():
    calls = []

    def equal(a, b):
        calls.append((a, b))
        return same(a, b)

    tally = votes.count([["1", "2", "1", "4/2", None, "2"]], ["1"], equal=equal)
    assert calls == [("2", "1"), ("4/2", "1"), ("4/2", "2"), ("1", "1"), ("2", "1")]
    for k in range(1, 7):
        votes.majority(tally, k)
    assert len(calls) == 5


@pytest.mark.parametrize(
    ("answers", "gold", "k", "said"),
    [
        ([["1", "2"], ["1"]], ["1", "1"], 1, r"2 problems with \[1, 2\] samples"),
        ([], [], 1, "0 problems"),
        ([[]], ["1"], 1, r"\[0\] samples"),
        ([["1"]], ["1", "2"], 1, "1 problems and 2 gold"),
        ([["1"]], ["1"], 2, "k=2 must be from 1 to the 1"),
        ([["1"]], ["1"], 0, "k=0"),
    ],
)
def test_what_cannot_be_voted_on_is_refused_in_one_line(answers, gold, k, said):
    with pytest.raises(ValueError, match=said) as error:
        stats.majority_at_k(answers, gold, k, equal=same)
    assert "\n" not in str(error.value)
