"""Rows of several sources as distinct problems, each source read once and counted."""

import collections
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from grpo_jax import presets, rewards, rows, sources
from grpo_jax.base import Problem
from grpo_jax.presets import Source, Split
from grpo_jax.sources import Malformed, Origin
from grpo_jax.splits import Count, problem_id, text_identity

SHOWN = 3  # malformed rows named in an error


class Loaded(NamedTuple):
    """Distinct problems, and what became of the rows.

    Attributes:
      problems: the first of each identity, in the order of the rows.
      rows: how many were read, malformed ones included.
      malformed: how many are no problem.
      examples: the first few of them.
      duplicates: how many have the identity of an earlier one.
      conflicts: how many of the duplicates have another answer.
      unanswered: how many are known to have been published without an answer.
    """

    problems: tuple[Problem, ...]
    rows: int = 0
    malformed: int = 0
    examples: tuple[Malformed, ...] = ()
    duplicates: int = 0
    conflicts: int = 0
    unanswered: int = 0


Shelf: TypeAlias = Mapping[Source, Loaded]


def identities(problems: Iterable[Problem]) -> frozenset[str]:
    """The questions without white space."""
    return frozenset(text_identity(p.question) for p in problems)


def collect(source: Source, origins: Iterable[Origin]) -> Loaded:
    """Reads rows into distinct problems, with no more in memory than those.

    Args:
      source: what the rows are.
      origins: where they are, in this order.
    """
    answers: dict[str, str] = {}  # by identity
    problems, examples = [], []
    count = collections.Counter()
    for origin in origins:
        for row in sources.read(origin, columns=source.layout.columns()):
            count["rows"] += 1
            found = _problem(row, source)
            if found is None:
                count["unanswered"] += 1
            elif isinstance(found, Malformed):
                count["malformed"] += 1
                examples += [found] if len(examples) < SHOWN else []
            elif (name := text_identity(found.question)) in answers:
                count["duplicates"] += 1
                count["conflicts"] += _differ(answers[name], found.answer)
            else:
                answers[name] = found.answer
                problems.append(found)
    return Loaded(tuple(problems), examples=tuple(examples), **count)


def _differ(a: str, b: str) -> bool:
    """Whether two answers differ, and not in how one number is written."""
    value = rewards.number(a) if a != b else None
    return a != b and (value is None or value != rewards.number(b))


def _problem(
    row: sources.Row | Malformed, source: Source
) -> Problem | Malformed | None:
    """The problem of a row; None if it is known to have no answer."""
    if isinstance(row, Malformed):
        return row
    try:
        return rows.problem(row.fields, source.layout, task=source.family)
    except ValueError as fault:
        known = source.unanswered and _id(row, source) in source.unanswered
        return None if known else Malformed(row.where, str(fault))


def _id(row: sources.Row, source: Source) -> str:
    """The id of a row that may be no problem; empty where it asks nothing."""
    try:
        return problem_id(source.family, rows.question(row.fields, source.layout))
    except ValueError:
        return ""


def read_all(sides: Iterable[Split], root: str) -> tuple[Shelf, tuple[Count, ...]]:
    """Reads what some sides are made of, and every held-out set of their families.

    Args:
      sides: of one task.
      root: directory of copies; empty is the hub.

    Returns:
      Every source read, and a line for each held-out set of which there is no copy.
    """
    sides = tuple(sides)
    needed = {s: True for side in sides for s in parts(side, root)}
    for source in presets.held_out({side.source.family for side in sides}):
        needed.setdefault(source, False)
    shelf, missing = {}, []
    for source, must in needed.items():
        if not must and presets.local(source, root) is None:
            what = f"train: not compared with {source.name}, of which there is no copy"
            missing.append(Count(what, 0))
            continue
        origins = presets.origins(source, root)
        shelf[source] = collect(source, origins)
    return shelf, tuple(missing)


def parts(side: Split, root: str) -> tuple[Source, ...]:
    """What a side is made of: its source first, or what stands in for it."""
    if side.within is not None and presets.local(side.source, root) is None:
        return (side.within,)
    found = (side.source, side.within, side.outside)
    return tuple(source for source in found if source is not None)


def check_damage(shelf: Shelf, max_dropped: int) -> None:
    """Refuses files with more malformed rows than may be left out.

    Raises:
      ValueError: how many there are, the first few with place and reason, the remedy.
    """
    total = sum(loaded.malformed for loaded in shelf.values())
    if total <= max_dropped:
        return
    examples = [e for loaded in shelf.values() for e in loaded.examples][:SHOWN]
    shown = "; ".join(f"{where}: {reason}" for where, reason in examples)
    read = sum(loaded.rows for loaded in shelf.values())
    raise ValueError(
        f"{total} of {read} rows are malformed ({shown}"
        + ("; …" if total > len(examples) else "")
        + f"); mend the files, or set data.max_dropped={total} to leave them out"
        f" (now {max_dropped})"
    )
