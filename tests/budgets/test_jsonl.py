import pytest

from budgets import jsonl


def test_rows_survive_a_round_trip_in_order(tmp_path):
    path, rows = tmp_path / "a.jsonl", [{"update": i, "text": "é\n"} for i in range(3)]
    for row in rows:
        jsonl.append(path, row)
    assert jsonl.read(path) == rows
    jsonl.rewrite(path, rows[:2])
    assert jsonl.read(path) == rows[:2]
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_missing_file_has_no_rows_and_is_not_made(tmp_path):
    path = tmp_path / "a.jsonl"
    assert jsonl.read(path) == []
    assert jsonl.keep_until(path, 3) == []
    assert not path.exists()


def test_a_line_cut_inside_a_character_counts_as_torn(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"update": 1}\n{"text": "\xc3')
    assert jsonl.read(path) == [{"update": 1}]


def test_a_complete_last_row_without_its_newline_is_kept_and_repaired(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"update": 1}')
    assert jsonl.keep(path, lambda row: True) == []
    jsonl.append(path, {"update": 2})
    assert jsonl.read(path) == [{"update": 1}, {"update": 2}]


def test_keep_until_drops_later_rows_and_the_torn_tail(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"update": 1}\n{"update": 2}\n{"update": 3}\n{"upd')
    assert jsonl.keep_until(path, 2) == [{"update": 3}]
    assert path.read_text() == '{"update": 1}\n{"update": 2}\n'


def test_numbers_that_json_lacks_are_refused_and_nothing_is_written(tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(ValueError, match="JSON"):
        jsonl.extend(path, [{"loss": 1.0}, {"loss": float("nan")}])
    assert not path.exists()
