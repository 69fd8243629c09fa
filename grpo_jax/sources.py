"""Rows of files and of published data sets, one after the other, in bounded memory.

A row that cannot be read is not an exception but a `Malformed`, with its place and the
reason, so that whoever reads can count it and go on. JSON Lines are parsed here, since
the library that reads everything else hides file and line. Decimals keep their digits.
"""

import json
import pathlib
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

FILES = (".jsonl", ".parquet")  # read from their own path
BATCH = 4096  # rows of a table decoded together


class Row(NamedTuple):
    """One row and where it stands."""

    where: str
    fields: dict[str, Any]


class Malformed(NamedTuple):
    """A row that is no problem: where it stands and why."""

    where: str
    reason: str


class Origin(NamedTuple):
    """Where rows come from.

    Attributes:
      path: a file, the absolute path of a directory in the layout of the hub, or a
        name on the hub.
      config: which configuration of a directory or name; empty is its only one.
      split: which split of it; a file has none.
    """

    path: str
    config: str = ""
    split: str = ""


Rows: TypeAlias = Iterator[Row | Malformed]


def is_file(path: str) -> bool:
    """Whether a path names a file of rows, by its ending."""
    return path.endswith(FILES)


def read(origin: Origin, *, columns: Collection[str] | None = None) -> Rows:
    """Yields the rows of a file, a directory or a published data set.

    Args:
      origin: where they are.
      columns: names to keep where rows come from a table; None keeps all.

    Raises:
      ValueError: the whole cannot be found or read; one line with the remedy.
    """
    if origin.path.endswith(".jsonl"):
        return jsonl(pathlib.Path(origin.path))
    if origin.path.endswith(".parquet"):
        return parquet(pathlib.Path(origin.path), columns=columns)
    return published(origin, columns=columns)


def jsonl(path: pathlib.Path) -> Rows:
    """Yields the rows of a file of one JSON object per line; blank lines are none."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _parsed(f"{path}:{number}", line)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def _parsed(where: str, line: bytes) -> Row | Malformed:
    try:
        text = line.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError as error:
        return Malformed(where, f"byte {error.start + 1} is not UTF-8 text")
    try:
        fields = json.loads(text, parse_float=Decimal, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        return Malformed(where, f"not JSON: {error.msg} at character {error.pos + 1}")
    except (ValueError, ArithmeticError, RecursionError) as error:
        return Malformed(where, f"not JSON that can be read: {error}")
    if not isinstance(fields, dict):
        return Malformed(where, f"{text[:40]!r} is not a JSON object")
    return Row(where, fields)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def parquet(path: pathlib.Path, *, columns: Collection[str] | None = None) -> Rows:
    """Yields the rows of a Parquet file, numbered from 1."""
    import pyarrow
    from pyarrow import parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:  # else whole columns
            names = [n for n in file.schema_arrow.names if _wanted(n, columns)]
            batches = file.iter_batches(batch_size=BATCH, columns=names)
            yield from _numbered(str(path), map(_table, batches), columns)
    except FileNotFoundError as error:
        raise ValueError(f"{path} cannot be read: no such file") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(
            f"{path} is not a Parquet file that can be read: {error}; fetch it again"
        ) from error


def _table(batch: Any) -> Any:
    import pyarrow

    return pyarrow.Table.from_batches([batch])


def published(origin: Origin, *, columns: Collection[str] | None = None) -> Rows:
    """Yields the rows of a data set through the library `datasets`.

    A directory is read where it lies; what comes from the hub is kept in the cache of
    that library. No code of a data set is ever run.
    """
    import datasets
    import pyarrow
    from datasets.exceptions import DatasetsError

    local = pathlib.Path(origin.path).is_absolute()
    name = ":".join(filter(None, (origin.path, origin.config))) + f"@{origin.split}"
    try:
        found: Any = datasets.load_dataset(
            origin.path,
            name=origin.config or None,
            split=origin.split,
            streaming=local,
        )
        tables = found.with_format("arrow").iter(batch_size=BATCH)
        yield from _numbered(name, tables, columns)
    except ConnectionError as error:
        raise ValueError(
            f"{name}: the hub cannot be reached ({error}); set data.root to a"
            " directory with a copy"
        ) from error
    except (
        OSError,
        ValueError,
        RuntimeError,
        DatasetsError,
        pyarrow.ArrowException,
    ) as error:
        raise ValueError(
            f"{name} cannot be read as a data set: {error}; check the name, its"
            " configuration and split (owner/name:config@split), or set data.root to"
            " a directory with a copy"
        ) from error


def _wanted(name: str, columns: Collection[str] | None) -> bool:
    return columns is None or name in columns


def _numbered(name: str, tables: Any, columns: Collection[str] | None) -> Rows:
    """The rows of consecutive tables, numbered through."""
    first = 1
    for table in tables:
        kept = table.select([n for n in table.column_names if _wanted(n, columns)])
        try:
            rows = kept.to_pylist()
        except UnicodeDecodeError:
            rows = None  # one of them: look at each
        for i in range(table.num_rows):
            where = f"{name}:row {first + i}"
            if rows is not None:
                yield Row(where, rows[i])
                continue
            try:
                yield Row(where, kept.slice(i, 1).to_pylist()[0])
            except UnicodeDecodeError as error:
                yield Malformed(where, f"byte {error.start + 1} is not UTF-8 text")
        first += table.num_rows
