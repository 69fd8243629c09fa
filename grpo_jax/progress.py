"""The line a person watches while a run trains."""

import collections
import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from budgets.ledger import Budget, Cost, Ledger


@runtime_checkable
class Stream(Protocol):
    """What is written to: a text file, a terminal or neither."""

    def write(self, text: str, /) -> object:
        """Takes text."""
        ...

    def flush(self) -> None:
        """Shows what was written."""
        ...

    def isatty(self) -> bool:
        """Whether a person watches it."""
        ...


def updates_left(budget: Budget, total: Cost, update: int) -> float:
    """Returns how many more updates a run takes, at its mean spending so far.

    Args:
      budget: the limits; without any the answer is infinite.
      total: matched spending after `update`.
      update: updates done, 1 or more.
    """
    left = []
    for used, limit in budget.spent(total).values():
        rate = used / update
        left.append(max(limit - used, 0) / rate if rate else math.inf)
    if budget.updates is not None:
        left.append(max(budget.updates - update, 0))
    return float((min if budget.until == "first" else max)(left, default=math.inf))


def budget_left(budget: Budget, total: Cost, update: int) -> str:
    """Returns what is left of each limit, in words."""
    parts = []
    if budget.updates is not None:
        parts.append(f"{max(budget.updates - update, 0)} updates")
    if budget.tokens is not None:
        parts.append(f"{max(budget.tokens - total.generated, 0):,} tokens")
    if budget.device_seconds is not None:
        seconds = max(budget.device_seconds - total.device_seconds, 0)
        parts.append(f"{duration(seconds)} of devices")
    return ", ".join(parts) or "no limit"


def duration(seconds: float) -> str:
    """Returns a time as hours, minutes and seconds, two units at most."""
    if not math.isfinite(seconds):
        return "?"
    whole = math.ceil(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


class Progress:
    """One line rewritten in place on a terminal; elsewhere a line now and then."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        start: int = 0,
        stream: Stream | None = None,
        every: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the clock of the first update.

        Args:
          ledger: of the run; read for what is spent and what may be.
          start: the update that the run continues after.
          stream: where to write; standard error by default.
          every: least seconds between lines where `stream` is no terminal.
          now: the clock, in seconds.
        """
        self._ledger = ledger
        self._stream = sys.stderr if stream is None else stream
        self._every = every
        self._now = now
        self._last = now()
        self._printed = -math.inf
        self._line = f"update {start}"
        self._pending = False
        self._accuracy: float | None = None
        self._seconds: collections.deque[float] = collections.deque(maxlen=20)
        self._evaluation = self._done = self._total = 0
        self._each: list[float] = []
        self._live = self._stream.isatty()

    def update(self, row: Mapping[str, Any]) -> None:
        """Shows the state after an update.

        Args:
          row: its numbers: `update`, `reward`, `truncated_share`,
            `tokens_generated` and, if it is there, `seconds` by phase.
        """
        now = self._now()
        seconds, self._last = now - self._last, now
        # Compiling is done once, and is no measure of what is to come.
        seconds = max(seconds - row.get("seconds", {}).get("compile", 0.0), 0.0)
        self._seconds.append(seconds)
        update, budget, total = row["update"], self._ledger.budget, self._ledger.spent
        limit = "" if budget.updates is None else f"/{budget.updates}"
        each = statistics.median(self._seconds)
        todo = updates_left(budget, total, update)
        accuracy = self._accuracy
        speed = f"{row['tokens_generated'] / seconds:,.0f}" if seconds > 0 else "?"
        parts = [
            f"update {update}{limit}",
            f"reward {row['reward']:.3f}",
            "" if accuracy is None else f"accuracy {accuracy:.3f}",
            f"{speed} tokens/s",
            f"truncated {row['truncated_share']:.0%}",
            f"left {budget_left(budget, total, update)}",
            f"{duration(todo * each)} to go" if todo else "",
        ]
        self.note(" | ".join(part for part in parts if part))

    def begin_evaluation(self, update: int, done: int, total: int) -> None:
        """Starts the clock of an evaluation.

        Args:
          update: whose parameters are evaluated.
          done: problems answered by an earlier process.
          total: problems in all.
        """
        self._evaluation, self._done, self._total = update, done, total
        self._each, self._last = [], self._now()

    def evaluating(self, problems: int, generated: int) -> None:
        """Shows how far the evaluation is.

        Args:
          problems: answered since the last call.
          generated: tokens sampled since the last call.
        """
        now = self._now()
        seconds, self._last = now - self._last, now
        self._done += problems
        self._each.append(seconds / problems)
        left = statistics.median(self._each) * (self._total - self._done)
        speed = f"{generated / seconds:,.0f}" if seconds > 0 else "?"
        parts = [
            f"evaluating after update {self._evaluation}",
            f"{self._done}/{self._total} problems",
            f"{speed} tokens/s",
            f"{duration(left)} to go" if left else "",
        ]
        self.note(" | ".join(part for part in parts if part))

    def evaluated(self, accuracy: float) -> None:
        """Remembers the accuracy of an evaluation, shown from now on."""
        self._accuracy = accuracy
        self._last = self._now()
        self._pending = False  # its progress is no news any more

    def note(self, line: str) -> None:
        """Puts `line` in the place of the one before."""
        self._line, self._pending = line, True
        if self._live:
            self._write("\r\x1b[K" + self._fitting())
        elif self._now() - self._printed >= self._every:
            self._flush()

    def say(self, text: str) -> None:
        """Writes a message that stays, such as a warning, on a line of its own."""
        if not self._live:
            self._write(text + "\n")
            return
        rest = self._fitting() if self._pending else ""
        self._write(f"\r\x1b[K{text}\n{rest}")

    def close(self) -> None:
        """Leaves the last state on the screen and the cursor on a new line."""
        if self._pending and self._live:
            self._write("\n")
            self._pending = False
        elif self._pending:
            self._flush()

    def _fitting(self) -> str:
        """What fits in a row, less one column: a full row makes terminals wrap."""
        return self._line[: max(shutil.get_terminal_size().columns - 1, 1)]

    def _flush(self) -> None:
        self._write(self._line + "\n")
        self._printed, self._pending = self._now(), False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
