"""Which problems of a side are kept, and how many each filter takes out."""

from collections.abc import Callable, Iterable, Sequence

from grpo_jax import rewards, splits
from grpo_jax.base import Problem
from grpo_jax.splits import Count


def kept(
    problems: Iterable[Problem],
    wanted: Callable[[Problem], bool],
    removed: str,
) -> tuple[list[Problem], Count]:
    """Problems that are wanted, and how many were not, under the name `removed`."""
    problems = list(problems)
    rest = [p for p in problems if wanted(p)]
    return rest, Count(removed, len(problems) - len(rest))


def by_level(
    problems: Iterable[Problem], levels: Sequence[int]
) -> tuple[list[Problem], tuple[Count, ...]]:
    """Problems of some levels; a side on which none has a level passes whole."""
    problems = list(problems)
    if not levels:
        return problems, ()
    if not any(p.level for p in problems):
        return problems, (Count("kept whole, as none has a level", len(problems)),)
    names = {str(level) for level in levels}
    known, unknown = kept(
        problems, lambda p: bool(p.level), "of unknown level, removed"
    )
    rest, other = kept(known, lambda p: p.level in names, "of other levels, removed")
    return rest, (unknown, other)


def numeric(problems: Iterable[Problem]) -> tuple[list[Problem], tuple[Count, ...]]:
    """Problems whose gold answer the grader reads as a number."""
    rest, removed = kept(
        problems, lambda p: rewards.is_numeric(p.answer), "not numeric, removed"
    )
    return rest, (removed,)


def first(problems: Iterable[Problem], most: int) -> tuple[Problem, ...]:
    """The first few by the rank of their text, a fair sample of all; 0 keeps all."""
    return splits.ranked(problems, "order")[: most or None]
