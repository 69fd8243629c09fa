"""Where runs stand at equal updates, tokens and device-seconds.

At a point of a grid of tokens or device-seconds an arm is read after the last trained
update whose cumulative charge is at most the point; at equal updates, after that one.
"""

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from budgets.ledger import MATCHED, Cost, Ledger

GRIDS = ("updates", "tokens", "device_seconds")


class Standing(NamedTuple):
    """A run after an update.

    Attributes:
      update: the last one; 0 is before the first.
      trained: whether it was, or only charged.
      tokens: generated in matched phases so far.
      device_seconds: of matched phases so far.
    """

    update: int
    trained: bool = True
    tokens: int = 0
    device_seconds: float = 0.0


class Reading(NamedTuple):
    """Which parameters a point of a grid reads.

    Attributes:
      point: the grid's value.
      update: the last update trained before them; 0 is the base.
      charge: what was spent by then, in the grid's unit.
    """

    point: int | float
    update: int
    charge: int | float

    @property
    def shortfall(self) -> float:
        """Share of the point that was not spent."""
        return (self.point - self.charge) / self.point


def standings(ledger: Ledger, untrained: Collection[int] = ()) -> list[Standing]:
    """Returns where a run stands before its first update and after each.

    Args:
      ledger: its charges.
      untrained: updates that were charged and not trained.
    """
    each: dict[int, Cost] = {}
    for row in ledger.rows:
        if row.phase in MATCHED:
            each[row.update] = each.get(row.update, Cost()) + row.cost
    totals = itertools.accumulate((each[u] for u in sorted(each)), initial=Cost())
    return [
        Standing(u, u not in untrained, total.generated, total.device_seconds)
        for u, total in zip([0, *sorted(each)], totals, strict=True)
    ]


def read_at(run: Sequence[Standing], grid: str, point: int | float) -> Reading | None:
    """Returns which parameters a point reads; None where the run never got there.

    Args:
      run: of `standings`.
      grid: of `GRIDS`.
      point: an update, tokens or device-seconds.
    """
    if grid == "updates":
        found = [s for s in run if s.update == point and s.trained]
        return Reading(point, int(point), point) if found else None
    within = [s for s in run if s.trained and getattr(s, grid) <= point]
    last = within[-1]  # nothing is spent before the first update
    return Reading(point, last.update, getattr(last, grid))


def equal_updates(updates: int, points: int) -> list[int]:
    """Returns so many evenly spaced updates up to the last, each once."""
    return sorted({max(round(updates * i / points), 1) for i in range(1, points + 1)})


def evenly(limit: int | float, points: int) -> list[float]:
    """Returns so many evenly spaced points up to a budget."""
    return [limit * i / points for i in range(1, points + 1)]


def spent_at(
    run: Sequence[Standing], updates: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Returns tokens and device-seconds of a run after some of its updates.

    They are the grids of the other arms of its seed, if the budgets are its own.
    """
    by_update = {s.update: s for s in run}
    missing = [u for u in updates if u not in by_update]
    if missing:
        raise ValueError(
            f"the run has no charges of update {missing[0]}; it must be complete before"
            " others are read at what it spent"
        )
    return (
        [by_update[u].tokens for u in updates],
        [by_update[u].device_seconds for u in updates],
    )
