"""Files of one JSON object per line that survive a process killed while writing.

A killed writer leaves at most one torn line, the last; anything else that does not
parse is damage and is refused. Rewriting goes through a temporary file and a rename,
so a reader finds the old file or the new one and never a mixture.
"""

import json
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]


def read(path: pathlib.Path) -> list[Row]:
    """Returns the rows of `path`; a torn last line is dropped, no file is no rows.

    Raises:
      ValueError: a line before the last is no JSON object; names file and line.
    """
    if not path.exists():
        return []
    # Bytes, because a torn line may end inside a character.
    lines = path.read_bytes().split(b"\n")
    numbered = [(i, line) for i, line in enumerate(lines, start=1) if line.strip()]
    rows = []
    for i, line in numbered:
        row = _parse(line)
        if row is not None:
            rows.append(row)
        elif i != numbered[-1][0]:
            raise ValueError(
                f"{path}:{i}: {line[:60]!r} is not a JSON object; only the last line"
                " of a killed run may be torn: restore the file or remove the line"
            )
    return rows


def append(path: pathlib.Path, row: Row) -> None:
    """Writes one row at the end of `path`, with the system before this returns."""
    extend(path, [row])


def extend(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """Writes rows at the end of `path` in one write, so that few kills part them.

    Nothing is written when one of them is no JSON.
    """
    data = "".join(map(_line, rows)).encode()
    with path.open("ab", buffering=0) as file:
        while data:
            data = data[file.write(data) :]


def rewrite(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """Replaces the whole of `path` in one step."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(_line(row) for row in rows)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def keep(path: pathlib.Path, wanted: Callable[[Row], bool]) -> list[Row]:
    """Drops from `path` the rows that are not `wanted`, and a torn last line.

    Returns:
      The rows dropped, in order. Where there is nothing to do no file is written.
    """
    if not path.exists():
        return []
    kept, dropped = [], []
    for row in read(path):
        (kept if wanted(row) else dropped).append(row)
    replace(path, kept)
    return dropped


def replace(path: pathlib.Path, rows: list[Row]) -> None:
    """Makes `rows` what `path` holds, writing nothing where that is so already."""
    if path.read_bytes() != "".join(map(_line, rows)).encode():
        rewrite(path, rows)


def keep_until(path: pathlib.Path, update: int) -> list[Row]:
    """Drops the rows that a run restored to the end of `update` will write again."""

    def wanted(row: Row) -> bool:
        if not isinstance(row.get("update"), int):
            raise ValueError(
                f"{path}: a row has no update number ({_line(row)[:60].strip()});"
                " restore the file"
            )
        return row["update"] <= update

    return keep(path, wanted)


def _line(row: Row) -> str:
    """One row as text. Non-finite numbers are refused: JSON has none."""
    return json.dumps(row, allow_nan=False) + "\n"


def _parse(line: bytes) -> Row | None:
    """The object on one line, None where there is none."""
    try:
        row = json.loads(line)
    except ValueError:  # covers bad JSON and bytes that are no text
        return None
    return row if isinstance(row, dict) else None
