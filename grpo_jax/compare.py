"""`grpo-jax compare`: the arms of a study at matched compute, for every seed.

Each run is a process of its own. The same command goes on where it stopped: runs that
ended are not started again, and one that was killed resumes.
"""

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Iterator, Sequence

from budgets import stats, study
from budgets.ledger import Ledger
from grpo_jax import child, config, evaluation, rundir, study_config, study_runs
from grpo_jax.command import STOPPED_ITSELF, ended, user_faults
from grpo_jax.progress import Progress, duration
from grpo_jax.study_config import Study
from grpo_jax.study_runs import Status

_DONE = re.compile(r"^update (\d+)")
# What is news of a run; the rest of what it prints is in its log.
_SHOWN = re.compile(r"^(update \d+/|evaluating|pretraining|resuming)")
_WAIT = 600  # seconds that a run left by a killed study may take to save


class Comparison:
    """The runs of a study, one after another."""

    def __init__(self, wanted: Study):
        """Starts nothing.

        Args:
          wanted: the study.
        """
        self._study, self._status = wanted, Status(wanted.dir)
        self._progress, self._stop = Progress(Ledger()), child.Stop()
        self._runs = study_runs.order(wanted)
        # Seconds of runs that ended, in units of their cost; the last one is best.
        self._pace: dict[str, float] = {}

    def run(self) -> bool:
        """Makes what is missing of the study; whether every run came to its end."""
        if not self._one("base", "grpo_jax.base_model", "base model"):
            return False
        self._say_what_can_be_seen()
        for number, (arm, seed) in enumerate(self._runs, start=1):
            run = study_runs.name(arm, seed)
            if self._status.done(run):
                continue
            plain = study_runs.name(self._study.plain, seed)
            if not (self._study.given or arm == self._study.plain) and (
                not self._status.done(plain)
            ):
                self._status.note(
                    run, "failed", f"{plain}, which sets its budget, failed"
                )
                continue
            shown = f"run {number} of {len(self._runs)}, {arm} seed {seed}"
            started = time.monotonic()
            if self._one(run, "grpo_jax.train", shown, arm, seed):
                self._pace[arm] = time.monotonic() - started
        return all(self._status.done(study_runs.name(*run)) for run in self._runs)

    def close(self) -> None:
        """Leaves the display."""
        self._progress.close()

    def _one(
        self, run: str, module: str, shown: str, arm: str = "", seed: int = 0
    ) -> bool:
        """Makes a run, and notes how it ended; True if it came to its end."""
        if self._status.done(run):
            return True
        wanted = (
            study_runs.arm_config(self._study, arm, seed)
            if arm
            else study_runs.base_config(self._study)
        )
        files = self._study.dir / "configs"
        files.mkdir(exist_ok=True)
        file = files / f"{run}.toml"
        rundir.write_text(file, config.to_toml(wanted))
        self._wait(run)
        last, started = "", time.monotonic()

        def say(line: str) -> None:
            nonlocal last
            last = line or last
            if not _SHOWN.match(line):
                return
            left = self._left(arm, seed, line, time.monotonic() - started)
            self._progress.note(f"{shown}: {line}" + (f" | {left}" if left else ""))

        code = child.run(
            module,
            [str(file)],
            log=self._study.dir / f"{run}.log",
            say=say,
            stop=self._stop,
        )
        self._stop.obey()
        if code:
            self._status.note(run, "failed", f"exit code {code}: {last}")
            self._progress.say(f"{shown} failed with exit code {code}: {last}")
            return False
        self._status.note(run, "done")
        return True

    def _wait(self, run: str) -> None:
        """Waits for a process that a killed study left, which saves and ends."""
        path = self._study.dir / run
        for _ in range(_WAIT if path.exists() else 0):
            try:
                rundir.locked(path).close()
                return
            except ValueError:
                self._progress.note(f"waiting for a process that still uses {path}")
                time.sleep(1)

    def _left(self, arm: str, seed: int, line: str, seconds: float) -> str:
        """The time that the whole study still takes, as far as it can be told."""
        found = _DONE.match(line)
        if not arm or found is None or not int(found[1]):
            return ""
        costs = {a: study_runs.cost(c) for a, c in self._study.arms.items()}
        updates = self._study.base.budget.updates
        share = min(int(found[1]) / updates, 1.0)
        whole = max(self._pace.get(arm, 0.0), seconds / share if share else 0.0)
        left = whole - seconds
        at = self._runs.index((arm, seed))
        for other, number in self._runs[at + 1 :]:
            if not self._status.done(study_runs.name(other, number)):
                left += self._pace.get(other, whole * costs[other] / costs[arm])
        return f"study {duration(max(left, 0))} to go"

    def _say_what_can_be_seen(self) -> None:
        """Prints the base's accuracy, and what difference the study could find."""
        wanted = self._study.dir / "base"
        splits = {row["split"] for row in study.jsonl.read(wanted / "eval.jsonl")}
        base = evaluation.read(wanted, 0, splits.pop())
        if base is None:
            raise ValueError(f"{wanted} has no evaluation; remove it and begin again")
        print(evaluation.sentence("base", base.correct))
        error = stats.standard_errors(base.correct).over_problems
        if error is not None:
            found = ", ".join(
                f"{100 * stats.smallest_detectable(error, alpha=alpha):.1f} points at"
                f" {alpha:g}"
                for alpha in (0.05, 0.01)
            )
            print(f"smallest detectable difference, a lower bound: {found}")
        print(
            f"{len(self._runs)} runs: {', '.join(self._study.arms)} for seeds"
            f" {', '.join(map(str, self._study.seeds))}",
            flush=True,
        )


@contextlib.contextmanager
def _opened(wanted: Study) -> Iterator[None]:
    """Holds a study's directory, once it is known to be this study's."""
    wanted.dir.mkdir(parents=True, exist_ok=True)
    with rundir.locked(wanted.dir):
        study_runs.claim(wanted)
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="grpo-jax compare",
        description=(__doc__ or "").splitlines()[0],
        epilog="[study] and [arms.NAME] are described in grpo_jax/study_config.py",
    )
    parser.add_argument("config", help="a TOML file with [study] and [arms.NAME]")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    wanted = parser.parse_intermixed_args(argv)
    complete = False
    with user_faults():
        made = study_config.load(wanted.config, wanted.overrides)
        holding = contextlib.ExitStack()
        holding.enter_context(_opened(made))

    def work() -> None:
        nonlocal complete
        comparison = Comparison(made)
        try:
            complete = comparison.run()
        finally:
            comparison.close()
        if Status(made.dir).done("base"):
            print(*study.lines(study.read(made.dir)), sep="\n")
        print(f"study: {made.dir}")

    with holding:
        code = ended(work)
    if code or complete:
        return code
    print(
        "some runs failed, see above; the same command tries them again",
        file=sys.stderr,
    )
    return STOPPED_ITSELF


if __name__ == "__main__":
    raise SystemExit(main())
