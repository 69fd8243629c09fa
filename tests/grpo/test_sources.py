import json
import pathlib
from decimal import Decimal

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from grpo_jax import sources
from grpo_jax.sources import Malformed, Origin, Row


def write(path, *lines):
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def read(path, config="", split="", columns=None):
    return list(sources.read(Origin(str(path), config, split), columns=columns))


def test_jsonl_gives_each_object_with_its_line(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"x": 1}', b"", b"  ", b'{"x": "\xc3\xa9"}')
    assert read(path) == [Row(f"{path}:1", {"x": 1}), Row(f"{path}:4", {"x": "é"})]


def test_a_byte_order_mark_and_windows_line_ends_are_passed_by(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"x": 1}\r\n{"x": 2}\r\n')
    assert [row.fields for row in read(path)] == [{"x": 1}, {"x": 2}]


def test_decimals_and_long_integers_keep_every_digit(tmp_path):
    text = b'{"a": 27.0, "b": 0.10000000000000000001, "c": 9007199254740993}'
    (row,) = read(write(tmp_path / "a.jsonl", text))
    assert row.fields == {
        "a": Decimal("27.0"),
        "b": Decimal("0.10000000000000000001"),
        "c": 9007199254740993,
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"x": 1', "not JSON: Expecting ',' delimiter at character 8"),
        (b"[1, 2]", "'[1, 2]' is not a JSON object"),
        (b"7", "'7' is not a JSON object"),
        (b'{"x": "\xff"}', "byte 8 is not UTF-8 text"),
        (b'{"x": NaN}', "not JSON that can be read: NaN is no JSON number"),
        (b"[" * 100_000, "not JSON that can be read: maximum recursion depth"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not JSON that can be read: Exceeds the"),
    ],
)
def test_a_bad_line_is_reported_with_its_place_and_reason(tmp_path, line, reason):
    path = write(tmp_path / "a.jsonl", b'{"x": 1}', line, b'{"x": 2}')
    before, bad, after = read(path)
    assert (before.fields, after.fields) == ({"x": 1}, {"x": 2})
    assert isinstance(bad, Malformed)
    assert bad.where == f"{path}:2"
    assert bad.reason.startswith(reason)


def table(**columns):
    return pa.table(columns)


def test_parquet_rows_are_numbered_from_one_across_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH", 2)
    path = tmp_path / "a.parquet"
    pq.write_table(table(x=[1, 2, 3, 4, 5], y=list("abcde")), path, row_group_size=3)
    rows = read(path, columns={"x", "absent"})
    assert rows == [Row(f"{path}:row {i}", {"x": i}) for i in range(1, 6)]


def test_bytes_of_a_table_that_are_no_text_spoil_their_row_only(tmp_path):
    binary = pa.array([b"good", b"\xff\xfe", b"fine"])
    text = pa.Array.from_buffers(pa.string(), 3, binary.buffers())
    path = tmp_path / "a.parquet"
    pq.write_table(table(x=text), path)
    first, bad, last = read(path)
    assert (first.fields, last.fields) == ({"x": "good"}, {"x": "fine"})
    assert bad == Malformed(f"{path}:row 2", "byte 1 is not UTF-8 text")


@pytest.mark.parametrize(
    ("name", "match"),
    [("none.jsonl", "none.jsonl cannot be read"), ("none.parquet", "no such file")],
)
def test_a_file_that_is_not_there_is_one_clear_line(tmp_path, name, match):
    with pytest.raises(ValueError, match=match):
        read(tmp_path / name)


def test_a_parquet_file_that_is_damaged_is_one_clear_line(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and then nothing of use PAR1")
    with pytest.raises(ValueError, match="is not a Parquet file that can be read"):
        read(path)


def hub_layout(directory, configs):
    """Writes a data set as the hub lays it out: a README that says what is where."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            name = f"{config}/{split}-00000-of-00001.parquet"
            (directory / config).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows), directory / name)
            lines += [f"  - split: {split}", f'    path: "{name}"']
    (directory / "README.md").write_text("\n".join([*lines, "---", ""]))
    return directory


@pytest.fixture
def published(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    parts = {
        "main": {"train": [{"q": "a", "z": 1}, {"q": "b", "z": 2}]},
        "other": {"train": [{"q": "c", "z": 3}], "test": [{"q": "d", "z": 4}]},
    }
    return hub_layout(tmp_path / "owner" / "name", parts)


def test_a_directory_in_the_layout_of_the_hub_has_configurations_and_splits(published):
    rows = read(published, "main", "train", columns={"q"})
    assert [row.fields for row in rows] == [{"q": "a"}, {"q": "b"}]
    assert rows[1].where == f"{published}:main@train:row 2"
    assert [row.fields["q"] for row in read(published, "other", "test")] == ["d"]


@pytest.mark.parametrize(
    ("config", "split"), [("none", "train"), ("main", "test"), ("", "train")]
)
def test_a_configuration_or_split_that_is_not_there_is_one_line(
    published, config, split
):
    with pytest.raises(ValueError, match="check the name, its configuration and split"):
        read(published, config, split)


def test_what_comes_from_the_hub_goes_through_the_same_rows(published, monkeypatch):
    """The same data set, but found by name: kept in the cache, not streamed."""
    load = datasets.load_dataset

    def found(path, **options):
        assert path == "owner/name"
        assert options.pop("streaming") is False
        return load(str(published), cache_dir=str(published.parent / "c"), **options)

    monkeypatch.setattr(datasets, "load_dataset", found)
    rows = read("owner/name", "other", "train")
    assert rows == [Row("owner/name:other@train:row 1", {"q": "c", "z": 3})]


def test_a_hub_that_cannot_be_reached_is_one_line_with_the_remedy(monkeypatch):
    def fail(*args, **options):
        raise ConnectionError("Couldn't reach 'owner/name' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ValueError, match=r"cannot be reached .*; set data\.root to"):
        read("owner/name", "", "train")


def test_no_code_of_a_data_set_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    trap = tmp_path / "name" / "name.py"
    trap.parent.mkdir()
    trap.write_text("import pathlib; pathlib.Path(__file__ + '.ran').touch()\n")
    with pytest.raises(ValueError, match="cannot be read as a data set"):
        read(trap.parent, "", "train")
    assert not pathlib.Path(f"{trap}.ran").exists()


def test_a_directory_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path):
    with pytest.raises(ValueError, match="cannot be read as a data set"):
        read(tmp_path / "none", "", "train")


def test_a_damaged_file_within_a_data_set_is_one_line(published):
    for path in published.glob("main/*"):
        path.write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(ValueError, match="cannot be read as a data set"):
        read(published, "main", "train")


def test_rows_are_read_one_by_one(tmp_path):
    path = write(tmp_path / "a.jsonl", *[json.dumps({"x": i}).encode() for i in "ab"])
    rows = sources.read(Origin(str(path)))
    assert next(rows).fields == {"x": "a"}
