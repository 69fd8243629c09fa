import subprocess
import sys

import pytest

from budgets import jsonl
from grpo_jax import readings

READING = {
    "split": "math-fresh",
    "run": "runs/a",
    "update": 3,
    "purpose": "evaluate",
    "digest": "abc",
}


def note(path, **changes):
    return readings.note(path, **(READING | {"when": "2026-01-02T03:04:05"} | changes))


def test_a_reading_is_written_with_what_read_it_and_when(tmp_path):
    path = tmp_path / "new" / "dir" / "readings.jsonl"
    assert readings.count(path, "math-fresh") == 0
    assert note(path) == 1
    assert jsonl.read(path) == [READING | {"time": "2026-01-02T03:04:05"}]


def test_the_clock_is_read_where_no_time_is_given(tmp_path):
    path = tmp_path / "readings.jsonl"
    note(path, when="")
    (row,) = jsonl.read(path)
    assert row["time"].endswith("+00:00")


def test_a_resumed_evaluation_is_not_a_second_reading(tmp_path):
    path = tmp_path / "readings.jsonl"
    assert note(path) == 1
    assert note(path, when="2027-01-01T00:00:00") == 1
    assert len(jsonl.read(path)) == 1


@pytest.mark.parametrize("change", [{"run": "b"}, {"update": 4}, {"purpose": "report"}])
def test_another_run_update_or_purpose_is_another_reading(tmp_path, change):
    path = tmp_path / "readings.jsonl"
    note(path)
    assert note(path, **change) == 2


def test_each_split_is_counted_apart(tmp_path):
    path = tmp_path / "readings.jsonl"
    note(path)
    assert note(path, split="math-test") == 1
    assert readings.count(path, "math-fresh") == 1


def test_the_same_reading_written_twice_at_once_counts_once(tmp_path):
    path = tmp_path / "readings.jsonl"
    note(path)
    jsonl.append(path, READING | {"time": "later"})
    assert readings.count(path, "math-fresh") == 1


def test_a_torn_line_swallows_no_reading(tmp_path):
    path = tmp_path / "readings.jsonl"
    note(path)
    with path.open("a") as file:
        file.write('{"split": "math-fr')
    assert note(path, update=4) == 2
    assert note(path, update=5) == 3


def test_readings_of_two_processes_at_once_are_all_kept(tmp_path):
    path = tmp_path / "readings.jsonl"
    code = (
        "import pathlib, sys; from grpo_jax import readings\n"
        "for i in range(40): readings.note(pathlib.Path(sys.argv[1]), split='s',"
        " run=sys.argv[2], update=i, purpose='p', digest='d')\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    running = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [p.wait(60) for p in running] == [0, 0]
    assert readings.count(path, "s") == 80


def test_a_log_that_cannot_be_written_stops_the_reading(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="not read without a note"):
        note(tmp_path / "file" / "readings.jsonl")
