"""Damaged files: what is reported, and how much of it may be left out."""

import pytest

from grpo_jax import problemsets
from grpo_jax.splits import Count
from tests.grpo.test_problemsets import load, row, write
from tests.grpo.test_problemsets import root as root


def damaged(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        [row(f"q{i}") for i in range(40)]
        + ['{"problem": "torn', "[]", {"problem": "p"}, row("", "1"), row("r", None)],
    )
    return path


def test_a_damaged_file_is_refused_with_places_reasons_and_remedy(tmp_path):
    path = damaged(tmp_path)
    with pytest.raises(ValueError, match="rows are malformed") as caught:
        problemsets.load(path)
    said = str(caught.value)
    assert said.startswith("5 of 45 rows are malformed")
    for place in (f"{path}:41: not JSON", f"{path}:42: '[]' is not", f"{path}:43: it"):
        assert place in said
    assert f"{path}:44" not in said
    assert "; …)" in said
    assert "set data.max_dropped=5 to leave them out (now 0)" in said
    assert "\n" not in said


def test_malformed_rows_are_dropped_and_counted_up_to_the_limit(tmp_path):
    path = damaged(tmp_path)
    with pytest.raises(ValueError, match=r"\(now 4\)"):
        problemsets.load(path, max_dropped=4)
    task = problemsets.load(path, max_dropped=5)
    assert Count("train: malformed, dropped", 5) in task.counts
    assert len(task.train) + len(task.evaluation) == 40


def test_damage_of_both_sides_is_counted_together(tmp_path):
    rows = [row(f"q{i}") for i in range(5)]
    a = write(tmp_path / "a.jsonl", [*rows[:3], "{"])
    b = write(tmp_path / "b.jsonl", ["{", *rows[3:]])
    with pytest.raises(ValueError, match="2 of 7 rows are malformed"):
        problemsets.load(a, b, max_dropped=1)
    task = problemsets.load(a, b, max_dropped=2)
    assert (len(task.train), len(task.evaluation)) == (3, 2)


def test_damage_of_a_held_out_set_that_is_only_compared_counts_too(root):
    with (root / "math_test.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"1 of 1\d rows are malformed"):
        load(root, evaluation="math500/test")
