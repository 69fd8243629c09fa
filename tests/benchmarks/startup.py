"""Seconds from the start of a process to its first update, cold and again.

    python -m tests.benchmarks.startup [--tiny] [CONFIG section.field=value ...]

The same run is started twice, each time in a new run directory. The first start finds
no compiled programs, the second those of the first. The evaluation before the update is
made as small as it can be. Two times are printed: to the line of the update in
`metrics.jsonl`, and the same without what its rollout, its train step and the
evaluation took, as the run's ledger has them: that is what a start costs.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from budgets.ledger import Ledger, Phase

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ("budget.updates=1", "task.num_eval=1", "evaluation.samples=1")
SMALL += ("evaluation.batch_prompts=1", "run.tensorboard=false")
TINY = """
[model]
width = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
head_dim = 8
ffw = 32

[task]
operands = 2
num_train = 8

[sampling]
prompts_per_update = 2
group_size = 2
max_new_tokens = 4
"""


class Start(NamedTuple):
    """Seconds from the start of a process.

    Attributes:
      first_update: to the line of the first update.
      work: of that, rollout, training and evaluation.
      compiling: of that, tracing, compiling or reading compiled programs.
    """

    first_update: float
    work: float
    compiling: float

    @property
    def start(self) -> float:
        """What is no work."""
        return self.first_update - self.work


def measure(config: str, overrides: list[str], run: pathlib.Path, cache: str) -> Start:
    """Starts a run and waits for its first update, then for its end."""
    words = [config, f"run.dir={run}", *SMALL, *overrides]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "distill_jax.cli", "train", *words],
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() not in (None, 0):
            raise SystemExit(process.communicate()[1])
        time.sleep(0.01)
    reached = time.perf_counter() - began
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(said)
    rows = [row for row in Ledger.read(run / "ledger.jsonl").rows if row.update <= 1]
    # The evaluation and the checkpoint after the update come too late to count.
    last = max(i for i, row in enumerate(rows) if row.phase == Phase.TRAIN)
    compiling = sum(
        row.cost.device_seconds for row in rows[:last] if row.phase == Phase.COMPILE
    )
    work = sum(row.cost.device_seconds for row in rows[: last + 1]) - compiling
    return Start(reached, work, compiling)


def main() -> None:
    """Prints both starts and their ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "config", nargs="?", default=str(ROOT / "configs" / "smollm2_addition.toml")
    )
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    parser.add_argument("--tiny", action="store_true", help="a model of no use, quick")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = wanted.config
        if wanted.tiny:
            config = str(folder / "tiny.toml")
            pathlib.Path(config).write_text(TINY, encoding="utf-8")
        cold, warm = (
            measure(config, wanted.overrides, folder / which, str(folder / "cache"))
            for which in ("first", "second")
        )
    for which, it in (("first", cold), ("second", warm)):
        print(
            f"{which:6} start: update 1 after {it.first_update:.1f} s, of which"
            f" compiling {it.compiling:.1f}, work {it.work:.1f};"
            f" without the work {it.start:.1f} s"
        )
    print(f"second / first, to the end of update 1: {warm[0] / cold[0]:.2f}")
    print(f"second / first, without the work:       {warm.start / cold.start:.2f}")


if __name__ == "__main__":
    main()
