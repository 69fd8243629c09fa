"""Held-out shares, halves and subsets: by the hash of a text, whatever the order."""

import hashlib
import random

import pytest

from grpo_jax import filters, problemsets, splits
from grpo_jax.base import Problem
from grpo_jax.splits import Count
from tests.grpo.test_problemsets import load, questions, row, write
from tests.grpo.test_problemsets import root as root


def problems(count):
    return [Problem(id=f"id{i}", question=f"q {i}", answer="1") for i in range(count)]


def own(tmp_path, count, order=None):
    rows = [row(f"question {i}", str(i)) for i in range(count)]
    random.Random(order).shuffle(rows)
    return write(tmp_path / f"own{order}.jsonl", rows)


def test_the_share_held_out_is_about_what_was_asked():
    held = sum(splits.in_share(f"q {i}", 0.1) for i in range(10_000))
    assert abs(held - 1000) < 5 * (10_000 * 0.1 * 0.9) ** 0.5
    assert not any(splits.in_share(f"q {i}", 1e-12) for i in range(1000))
    assert all(splits.in_share(f"q {i}", 1 - 1e-12) for i in range(1000))


def test_what_is_held_out_depends_on_each_text_alone(tmp_path):
    whole = problemsets.load(own(tmp_path, 200), holdout=0.25)
    part = problemsets.load(own(tmp_path, 100, order=7), holdout=0.25)
    limited = problemsets.load(own(tmp_path, 200), holdout=0.25, max_train=3)
    asked = questions(whole.evaluation)
    assert whole.split == "ownNone-holdout"
    assert questions(limited.evaluation) == asked
    fewer = {p.question for p in (*part.train, *part.evaluation)}
    assert questions(part.evaluation) == [q for q in asked if q in fewer]
    assert len(whole.train) + len(asked) == 200
    assert 200 * 0.25 - 31 < len(asked) < 200 * 0.25 + 31  # five sigma
    # A larger share holds out the same ones and more.
    assert set(asked) < set(
        questions(problemsets.load(own(tmp_path, 200), holdout=0.5).evaluation)
    )


def test_white_space_changes_no_side():
    assert splits.text_rank("a b\n c", "x") == splits.text_rank("abc ", "x")
    assert splits.text_rank("abc", "x") != splits.text_rank("abc", "y")


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_halves_are_equal_disjoint_and_whole(count):
    first, second = (splits.half(problems(count), name) for name in ("1H", "2H"))
    assert len(first) - len(second) == count % 2
    assert not first & second
    assert first | second == {f"id{i}" for i in range(count)}


def test_halves_do_not_depend_on_the_order():
    backwards = list(reversed(problems(101)))
    assert splits.half(backwards, "1H") == splits.half(problems(101), "1H")


def test_halves_are_independent_of_what_is_held_out_and_of_subsets():
    """At five sigma: a subset takes from both halves, as a fair sample does."""
    every = problems(2000)
    first = splits.half(every, "1H")
    subset = {p.id for p in filters.first(every, 400)}
    held = {p.id for p in every if splits.in_share(p.question, 0.2)}
    for chosen in (subset, held):
        share = len(chosen & first) / len(chosen)
        assert abs(share - 0.5) < 5 * (0.25 / len(chosen)) ** 0.5


def test_both_halves_of_a_task_are_its_whole(tmp_path):
    path = own(tmp_path, 99)
    sides = [problemsets.load(path, half=name).train for name in ("1H", "2H", "")]
    assert questions(sides[0] + sides[1]) == questions(sides[2])
    assert 0 <= len(sides[0]) - len(sides[1]) <= 1
    assert {p.id for p in sides[0]} == splits.half(sides[2], "1H")
    with pytest.raises(ValueError, match="must be '1H' or '2H'"):
        problemsets.load(path, half="3H")


def test_halves_are_taken_after_filters(root):
    both = [
        load(root, half=half, levels=[3, 4, 5]).train for half in ("1H", "2H")
    ]  # of three: train one, two and five
    assert sorted(map(len, both)) == [1, 2]


def test_the_order_of_rows_changes_nothing(tmp_path):
    options = {"holdout": 0.3, "half": "2H", "max_train": 20, "max_evaluation": 10}
    one, other = (
        problemsets.load(own(tmp_path, 150, order), **options) for order in (1, 2)
    )
    assert one[:2] == other[:2]
    assert (len(one.train), len(one.evaluation)) == (20, 10)


def test_a_limit_keeps_the_first_of_a_fixed_order_and_counts_the_rest(tmp_path):
    path = own(tmp_path, 150)
    whole, few = problemsets.load(path), problemsets.load(path, max_train=7)
    assert few.train == whole.train[:7]
    assert few.evaluation == whole.evaluation
    assert (
        Count("train: beyond the first 7, removed", len(whole.train) - 7) in few.counts
    )
    assert problemsets.load(path, max_train=10**6).train == whole.train


def test_a_rank_is_the_hash_of_the_purpose_and_the_bare_text():
    # Fixed for ever: every published split and half follows from it.
    expected = hashlib.sha256(b"half\nWhatis1+1?").digest()
    assert splits.text_rank(" What is 1 + 1?", "half") == expected
