"""An append-only account of compute, in exact integers and measured seconds.

A row is charged when the work is done and is on disk before `charge` returns, so a
killed run has paid for what it did. Updates count from 1; what precedes the first
(pretraining, the first evaluation) is update 0. A budget is *reached* when spending
equals it and *passed* when spending exceeds it.
"""

import dataclasses
import enum
import math
import pathlib
from collections.abc import Callable, Collection
from typing import Any, Literal

from budgets import jsonl


class Phase(enum.StrEnum):
    """What compute was spent on. The last four are outside the matched budget."""

    ROLLOUT = "rollout"
    CANDIDATE = "candidate"
    CONTINUATION = "continuation"
    TEACHER_ROLLOUT = "teacher_rollout"
    TEACHER_SCORE = "teacher_score"
    REFERENCE = "reference"
    TRAIN = "train"
    HOST = "host"
    COMPILE = "compile"
    PRETRAIN = "pretrain"
    EVAL = "eval"
    CHECKPOINT = "checkpoint"


MATCHED: tuple[Phase, ...] = tuple(Phase)[:8]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What some work used; costs add field by field.

    Attributes:
      generated: tokens sampled by any model, stop tokens included.
      prefilled: tokens read without sampling: prompts, prefixes, scored sequences.
      trained: tokens that an optimiser step read.
      sequences: sequences sampled, scored or trained on.
      device_seconds: wall seconds between fences times devices held.
      flops: model FLOPs of real tokens, see `budgets.flops`.
      prompts: distinct prompts seen for the first time.
      labels: distinct prompts verified for the first time.
      verifier_calls: completions given to the verifier.
    """

    generated: int = 0
    prefilled: int = 0
    trained: int = 0
    sequences: int = 0
    device_seconds: float = 0.0
    flops: int = 0
    prompts: int = 0
    labels: int = 0
    verifier_calls: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            seconds = field.name == "device_seconds"
            kinds = (int, float) if seconds else (int,)
            # bool is an int to Python; numpy's integers do not write as JSON.
            if type(value) not in kinds or not math.isfinite(value) or value < 0:
                kind = "number of seconds" if seconds else "int"
                raise ValueError(
                    f"Cost.{field.name}={value!r} must be a finite, non-negative {kind}"
                )
        object.__setattr__(self, "device_seconds", float(self.device_seconds))

    def __add__(self, other: "Cost") -> "Cost":
        """Returns the sum, field by field."""
        names = [field.name for field in dataclasses.fields(self)]
        return Cost(**{n: getattr(self, n) + getattr(other, n) for n in names})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """One row of the ledger.

    Attributes:
      update: the update that did the work, from 1; 0 before the first.
      stage: the stage of the run: `train`, or one of a staged pipeline.
      role: whose weights did it (`policy`, `teacher`, `reference`), or `verifier`,
        or `host` for time that no weights were used in.
      phase: what the work was.
      cost: what it used.
      inside_budget: False once any budget of the run is passed, this row included.
    """

    update: int
    stage: str
    role: str
    phase: Phase
    cost: Cost
    inside_budget: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the row as one flat JSON object."""
        row = {name: getattr(self, name) for name in ("update", "stage", "role")}
        row["phase"] = self.phase.value
        return (
            row | dataclasses.asdict(self.cost) | {"inside_budget": self.inside_budget}
        )

    @staticmethod
    def from_json(row: dict[str, Any]) -> "Charge":
        """Reads what `to_json` wrote; a wrong, missing or unknown field is refused."""
        costs = {field.name for field in dataclasses.fields(Cost)}
        own = {field.name for field in dataclasses.fields(Charge)} - {"cost"}
        if row.keys() != costs | own:
            odd = ", ".join(sorted(row.keys() ^ (costs | own)))
            raise ValueError(f"a ledger row has missing or unknown fields: {odd}")
        fields: dict[str, Any] = {name: row[name] for name in own}
        fields["phase"] = Phase(row["phase"])
        fields["cost"] = Cost(**{name: row[name] for name in costs})
        return Charge(**fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend in matched phases; None is no limit.

    Attributes:
      tokens: generated tokens.
      device_seconds: device-seconds.
      updates: updates trained.
      until: `both` ends when every limit is reached, `first` when any is.
    """

    tokens: int | None = None
    device_seconds: float | None = None
    updates: int | None = None
    until: Literal["both", "first"] = "both"

    def spent(self, total: Cost) -> dict[str, tuple[int | float, int | float]]:
        """Returns spending and limit of each compute budget that is set."""
        pairs = {
            "tokens": (total.generated, self.tokens),
            "device_seconds": (total.device_seconds, self.device_seconds),
        }
        return {k: (used, cap) for k, (used, cap) in pairs.items() if cap is not None}

    def passed(self, total: Cost, update: int) -> tuple[str, ...]:
        """Returns the names of the limits that work in `update` has passed."""
        names = [k for k, (used, cap) in self.spent(total).items() if used > cap]
        if self.updates is not None and update > self.updates:
            names.append("updates")
        return tuple(names)

    def ended(self, total: Cost, updates_done: int) -> bool:
        """Whether a run is over between updates; without any limit, never."""
        reached = [used >= cap for used, cap in self.spent(total).values()]
        if self.updates is not None:
            reached.append(updates_done >= self.updates)
        return bool(reached) and (any if self.until == "first" else all)(reached)

    def ends_on_sampling(self, total: Cost, update: int) -> bool:
        """Whether the sampling of `update`, in `total`, passed what ends the run.

        Such an update is charged and not trained. Under `both` the last of the
        wanted updates is trained however much it spends, since the reading at equal
        updates needs it.
        """
        passed = [used > cap for used, cap in self.spent(total).values()]
        if self.until == "first":
            return any(passed)
        enough = self.updates is None or update > self.updates
        return bool(passed) and all(passed) and enough


class Ledger:
    """The charges of one run, in memory and, given a path, on disk."""

    def __init__(
        self, path: pathlib.Path | None = None, budget: Budget | None = None
    ) -> None:
        """Continues the file at `path`, dropping a torn last line; or starts it."""
        self.budget = budget or Budget()
        self.rows: list[Charge] = []
        self._path = path
        self._total = Cost()
        self._update = 0
        if path is not None:
            jsonl.keep(path, lambda row: True)
            self._load(path)

    @classmethod
    def read(cls, path: pathlib.Path, budget: Budget | None = None) -> "Ledger":
        """Returns the charges of a file, not connected to it: more stay in memory.

        A damaged line is a ValueError with file and line; a torn last one is dropped.
        """
        ledger = cls(budget=budget)
        ledger._load(path)
        return ledger

    def charge(
        self, update: int, stage: str, role: str, phase: Phase, cost: Cost
    ) -> Charge:
        """Adds one row; it is on disk before this returns."""
        total, last = self._after(update, phase, cost)
        charge = Charge(
            update=update,
            stage=stage,
            role=role,
            phase=phase,
            cost=cost,
            inside_budget=not self.budget.passed(total, last),
        )
        if self._path is not None:
            jsonl.append(self._path, charge.to_json())
        self.rows.append(charge)
        self._total, self._update = total, last
        return charge

    def total(
        self,
        phases: Collection[Phase] = MATCHED,
        *,
        wanted: Callable[[Charge], bool] = lambda charge: True,
    ) -> Cost:
        """Returns the sum of the rows of `phases` that are `wanted`."""
        rows = [row for row in self.rows if row.phase in phases and wanted(row)]
        return sum((row.cost for row in rows), Cost())

    @property
    def spent(self) -> Cost:
        """The total of the matched phases, kept as rows come in."""
        return self._total

    def by_phase(self) -> dict[Phase, Cost]:
        """Returns the total of each phase, those never charged included."""
        return {phase: self.total((phase,)) for phase in Phase}

    def update_total(self, update: int, phases: Collection[Phase] = MATCHED) -> Cost:
        """Returns what one update used in `phases`."""
        return self.total(phases, wanted=lambda row: row.update == update)

    def passed(self) -> tuple[str, ...]:
        """Returns the names of the limits passed so far."""
        return self.budget.passed(self._total, self._update)

    def ended(self, updates_done: int) -> bool:
        """Whether the run is over after `updates_done` trained updates."""
        return self.budget.ended(self._total, updates_done)

    def ends_on_sampling(self, update: int) -> bool:
        """Whether `update`, sampled and charged, is the one to leave untrained."""
        return self.budget.ends_on_sampling(self._total, update)

    def _after(self, update: int, phase: Phase, cost: Cost) -> tuple[Cost, int]:
        """Matched spending and last matched update once this row is in."""
        if phase not in MATCHED:
            return self._total, self._update
        return self._total + cost, max(self._update, update)

    def _load(self, path: pathlib.Path) -> None:
        for i, row in enumerate(jsonl.read(path), start=1):
            try:
                charge = Charge.from_json(row)
            except ValueError as error:
                raise ValueError(f"{path}: row {i}: {error}") from error
            self.rows.append(charge)
            self._total, self._update = self._after(
                charge.update, charge.phase, charge.cost
            )


def restore(
    path: pathlib.Path, update: int, *, unfinished: Collection[int] = ()
) -> list[Charge]:
    """Takes a ledger back to the end of `update`; later charges go to `lost.jsonl`.

    The lost rows are stored before the ledger is cut. A process killed between the
    two finds them at the end of `lost.jsonl` and does not store them again: measured
    seconds make a row its own name.

    Args:
      path: the ledger's file.
      update: the update of the checkpoint that was restored; -1 for none.
      unfinished: places of charges up to it for work that will be done again, outside
        the budget: of an evaluation that did not come to its end.

    Returns:
      The charges lost this time.
    """
    kept, charges = [], []
    for i, row in enumerate(Ledger.read(path).rows):
        gone = row.update > update or i in unfinished
        (charges if gone else kept).append(row)
    lost = [charge.to_json() for charge in charges]
    beside = path.with_name("lost.jsonl")
    before = jsonl.read(beside)
    if lost and before[-len(lost) :] != lost:
        jsonl.rewrite(beside, before + lost)
    if path.exists():
        jsonl.replace(path, [charge.to_json() for charge in kept])
    return charges
