"""The log of readings of locked held-out problems: how often each split was looked at.

A reading is one evaluation of one state of one run for one purpose; an evaluation that
is resumed, or written down twice, is one reading.
"""

import datetime
import pathlib
from typing import Any

from budgets import jsonl

KEY = ("run", "split", "update", "purpose", "digest")  # what makes two rows one reading


def note(
    path: pathlib.Path,
    *,
    split: str,
    run: str,
    update: int,
    purpose: str,
    digest: str,
    when: str = "",
) -> int:
    """Writes down that a split is read, before it is.

    Args:
      path: the log, made with its directory if it is not there.
      split: which held-out problems.
      run: whose parameters.
      update: after how many updates.
      purpose: what for.
      digest: names the problems.
      when: ISO time; empty is now.

    Returns:
      How many readings of this split there have been, this one included.
    """
    row = {
        "split": split,
        "run": run,
        "update": update,
        "purpose": purpose,
        "digest": digest,
        "time": when or _now(),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _key(row) not in {_key(r) for r in jsonl.read(path)}:
            if path.exists() and not path.read_bytes().endswith(b"\n"):
                jsonl.keep(path, lambda _: True)  # or the torn line would swallow ours
            jsonl.append(path, row)
    except OSError as error:
        raise _unwritable(path, error) from error
    return count(path, split)


def check(path: pathlib.Path) -> None:
    """Raises unless the log can be read and written."""
    jsonl.read(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: pathlib.Path, error: OSError) -> ValueError:
    return ValueError(
        f"{path} cannot be written: {error.strerror}; a locked split is not read"
        " without a note: set data.readings to a file that can be"
    )


def count(path: pathlib.Path, split: str) -> int:
    """Returns how many readings of a split there have been."""
    return len({_key(r) for r in jsonl.read(path) if r.get("split") == split})


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in KEY)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
