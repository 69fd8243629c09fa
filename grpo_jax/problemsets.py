"""A task made of published or own problems: compared, filtered, divided and counted.

Rows become problems, and of an identity the first stays. Out of the training side goes
what stands in a held-out set of either side's family, whether it is evaluated or not;
then come filters, halves and limits. Problems stand in the order of a hash of their
text: the order of files and rows decides nothing, and the first n are a fair sample.
"""

import functools
import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from grpo_jax import filters, presets, splits, tasks
from grpo_jax.base import Problem
from grpo_jax.collect import Shelf, check_damage, identities, parts, read_all
from grpo_jax.presets import Source, Split
from grpo_jax.rows import Layout
from grpo_jax.splits import Count, Task, text_identity


class Side(NamedTuple):
    """Problems on their way into a task, and what was done to them so far."""

    name: str
    problems: tuple[Problem, ...]
    counts: tuple[Count, ...] = ()

    def then(self, problems: Iterable[Problem], *counts: Count) -> "Side":
        """Returns the side after a step."""
        named = [Count(f"{self.name}: {what}", number) for what, number in counts]
        return Side(self.name, tuple(problems), (*self.counts, *named))


def load(
    train: str,
    evaluation: str = "",
    *,
    root: str = "",
    own: Layout | None = None,
    levels: Sequence[int] = (),
    numeric: bool = False,
    half: str = "",
    holdout: float = 0.1,
    max_train: int = 0,
    max_evaluation: int = 0,
    max_dropped: int = 0,
    require_box: bool = False,
) -> Task:
    r"""Makes a task of two sides, each named as in `presets.find`.

    Args:
      train: what to train on; empty is nothing, for an evaluation alone.
      evaluation: what to hold out; empty is a share of `train` by hash of the text.
      root: directory with copies of the presets; empty is the hub.
      own: how rows look that are no preset's; None tries the usual names.
      levels: kept on both sides, where the problems have levels; empty keeps all.
      numeric: keep only problems with a numeric answer, on both sides.
      half: `1H` or `2H` of the filtered training problems; empty is all.
      holdout: about which share is held out, of distinct problems before any filter.
      max_train: training problems kept; 0 is all.
      max_evaluation: held-out problems kept; 0 is all.
      max_dropped: malformed rows that may be left out, over all files.
      require_box: only an answer in `\boxed{}` is right.

    Raises:
      ValueError: a side cannot be read, is damaged or empty, or must not be used so.
    """
    own = own or Layout()
    taught = presets.find(train, own) if train else None
    held = presets.find(evaluation, own) if evaluation else None
    _check_sides(train, evaluation, taught, held, root)
    shelf, missing = read_all([side for side in (taught, held) if side], root)
    check_damage(shelf, max_dropped)
    pool, asked = Side("train", ()), Side("evaluation", ())
    if held is not None:
        asked = _side("evaluation", held, shelf, root)
    if taught is not None:
        pool = _side("train", taught, shelf, root)
        pool = _without_held_out(pool, shelf, evaluation, asked)
    if held is None:
        pool, asked = _hold_out(pool, holdout)
    _check_levels(levels, pool, asked)
    pool, asked = (_filtered(side, levels, numeric) for side in (pool, asked))
    if half and pool.problems:
        mine = splits.half(pool.problems, half)
        rest = [p for p in pool.problems if p.id in mine]
        pool = pool.then(rest, Count(f"in half {half}, kept", len(rest)))
    pool, asked = _limited(pool, max_train), _limited(asked, max_evaluation)
    counts = (*pool.counts, *missing, *asked.counts)
    _check_result(*([pool, asked] if train else [asked]))
    return Task(
        train=pool.problems,
        evaluation=asked.problems,
        verify=functools.partial(tasks.by_answer, require_box=require_box),
        split=_file_name(evaluation) or f"{_file_name(train)}-holdout",
        locked=held is not None and held.locked,
        counts=counts,
    )


def _check_sides(
    train: str, evaluation: str, taught: Split | None, held: Split | None, root: str
) -> None:
    """Refuses to train on what is held out or evaluated."""
    if taught is None:
        if held is None:
            raise ValueError(
                "data.train and data.evaluation are both empty; name problems, such as"
                " data.train=math/train"
            )
        return
    if taught.held_out:
        kind = "locked" if taught.locked else "held-out"
        raise ValueError(
            f"data.train={train!r} is a {kind} split, which is not trained on; use"
            " math/train, gsm8k/train, dapo/train, a file or a hub name"
        )
    if held is not None and _rows_of(taught, root) & _rows_of(held, root):
        raise ValueError(
            f"data.train={train!r} and data.evaluation={evaluation!r} are the same"
            " rows; name another set, or leave data.evaluation empty to hold out a"
            " share of train"
        )


def _rows_of(side: Split, root: str) -> set[tuple[str, ...]]:
    return {
        (os.path.realpath(path) if os.path.exists(path) else path, *rest)
        for source in parts(side, root)[:1]
        for path, *rest in presets.origins(source, root)
    }


def _side(name: str, side: Split, shelf: Shelf, root: str) -> Side:
    """The problems of one side before any filter."""
    source = parts(side, root)[0]
    loaded = shelf[source]
    read = Count(f"rows read of {source.name}", loaded.rows)
    repeated = Count("repeated, removed", loaded.duplicates)
    found = Side(name, ()).then(loaded.problems, read)
    if loaded.malformed:
        dropped = Count("malformed, dropped", loaded.malformed)
        found = found.then(found.problems, dropped)
    if loaded.unanswered:
        blank = Count("published without an answer, removed", loaded.unanswered)
        found = found.then(found.problems, blank)
    found = found.then(found.problems, repeated)
    if loaded.conflicts:
        what = "repeated with another answer than the one kept"
        found = found.then(found.problems, Count(what, loaded.conflicts))
    if source == side.source and side.within is not None:
        found = _compared(found, side.within, shelf, wanted=True)
    if side.outside is not None:
        found = _compared(found, side.outside, shelf, wanted=False)
    return found


def _compared(side: Side, other: Source, shelf: Shelf, *, wanted: bool) -> Side:
    """Keeps the problems that stand in another source, or those that do not."""
    there = identities(shelf[other].problems)
    what = f"{'not in' if wanted else 'in'} {other.name}, removed"
    return side.then(
        *filters.kept(
            side.problems,
            lambda p: (text_identity(p.question) in there) is wanted,
            what,
        )
    )


def _without_held_out(side: Side, shelf: Shelf, name: str, evaluation: Side) -> Side:
    """Takes out of training what stands in a held-out set or is evaluated."""
    held = {
        source.name: loaded.problems
        for source, loaded in shelf.items()
        if source in presets.HELD_OUT
    }
    if name:
        held[name] = evaluation.problems
    for what, problems in held.items():
        there = identities(problems)
        rest, removed = filters.kept(
            side.problems,
            lambda p, there=there: text_identity(p.question) not in there,
            f"also in {what}, removed",
        )
        side = side.then(rest, removed)
    return side


def _hold_out(side: Side, share: float) -> tuple[Side, Side]:
    """Divides by the hash of each text: no problem's side depends on the others."""
    rest, removed = filters.kept(
        side.problems,
        lambda p: not splits.in_share(p.question, share),
        "held out by hash, removed",
    )
    there = identities(rest)
    asked = [p for p in side.problems if text_identity(p.question) not in there]
    found = Count("held out of train by hash", len(asked))
    return side.then(rest, removed), Side("evaluation", ()).then(asked, found)


def _check_levels(levels: Sequence[int], *sides: Side) -> None:
    if levels and not any(p.level for side in sides for p in side.problems):
        raise ValueError(
            f"data.levels={list(levels)} and no problem of either side has a level;"
            " use data.levels=[], or name the field with data.level_field"
        )


def _filtered(side: Side, levels: Sequence[int], numeric: bool) -> Side:
    rest, counts = filters.by_level(side.problems, levels)
    side = side.then(rest, *counts)
    if numeric:
        rest, counts = filters.numeric(side.problems)
        side = side.then(rest, *counts)
    return side


def _limited(side: Side, most: int) -> Side:
    rest = filters.first(side.problems, most)
    if most:
        side = side.then(
            rest,
            Count(f"beyond the first {most}, removed", len(side.problems) - len(rest)),
        )
    return side.then(rest, Count("kept", len(rest)))


def _check_result(*sides: Side) -> None:
    for side in sides:
        if not side.problems:
            steps = ", ".join(f"{what} {number}" for what, number in side.counts)
            raise ValueError(
                f"no problem is left ({steps}); loosen data.levels, data.numeric,"
                " data.half or data.holdout, or name another set"
            )
    held = [identities(side.problems) for side in sides]
    both = held[0] & held[-1] if len(held) > 1 else ()
    if both:
        raise ValueError(
            f"{len(both)} problems stand in training and in evaluation, such as"
            f" {min(both)[:60]!r}; a task must be disjoint: name other sets"
        )


def _file_name(text: str) -> str:
    """What a side is called in records and in names of files."""
    if presets.is_path(text):
        text = text.rpartition("/")[2].removesuffix(".jsonl").removesuffix(".parquet")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
