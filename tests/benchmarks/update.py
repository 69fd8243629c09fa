r"""A whole GRPO update against TRL and Tunix, and its peak memory.

4 prompts ("What is 10 + 11? Put the final answer in \boxed{}.") x 8 samples x exactly
64 new tokens, fp32, no KL, from the rollout to new parameters, through the loop, the
meter and the learner of a run. Of each side the first update is left out of the mean.
Each side is a process of its own, whose peak memory the system counts. From the root of
a checkout, with the machine otherwise idle:

    python -m tests.benchmarks.update --peer-python trl=PATH --peer-python tunix=PATH

`--only ours` runs our side in this process and prints its times. Options of a run may
follow, such as `model.remat=dots`.
"""

import argparse
import json
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_jax import config, models, rollout, setup
from grpo_jax.compilations import Watch
from tests.benchmarks import common, peers, runs
from tests.benchmarks.common import Figure

PROMPTS, SAMPLES, NEW = 4, 8, 64
SMALL = ("width=16", "ffw=32", "num_layers=2", "num_heads=2", "num_kv_heads=1")


def settings(wanted: argparse.Namespace, folder: pathlib.Path) -> config.Config:
    """Returns the configuration of our side; its problems are written to `folder`."""
    problems = [
        {
            "question": f"What is {i % 50 + 10} + {i % 37 + 11}? Put the final answer"
            r" in \boxed{}.",
            "answer": str(i % 50 + 10 + i % 37 + 11),
        }
        for i in range(512)
    ]
    path = folder / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in problems))
    file = folder / "update.toml"
    file.write_text("")
    model = [f"model.{text}" for text in (*SMALL, "head_dim=8")]
    given = [
        "task.name=dataset",
        f"data.train={path}",
        f"sampling.prompts_per_update={PROMPTS}",
        f"sampling.group_size={SAMPLES}",
        f"sampling.max_new_tokens={8 if wanted.tiny else NEW}",
        f"budget.updates={1 + wanted.updates}",
        *(model if wanted.tiny else [f"model.path={wanted.model}"]),
    ]
    return config.load(file, [*given, *wanted.overrides])


def ours(wanted: argparse.Namespace) -> dict[str, Any]:
    """Runs the updates; returns seconds of each, apart and whole, and the peak."""
    with tempfile.TemporaryDirectory() as folder:
        settled = settings(wanted, pathlib.Path(folder))
        parts = setup.prepare(settled)
    # Nothing ends a completion but its limit.
    parts = parts._replace(train=parts.train._replace(stop_ids=rollout.stops([])))
    watch, new = Watch(), []
    rows: list[dict[str, Any]] = []
    taken: list[float] = []
    made, meter = runs.updates(parts, watch)
    last = time.perf_counter()
    for done in made:
        now = time.perf_counter()  # the learner has waited for the new parameters
        phases = {name: round(spent, 3) for name, spent in meter.seconds.items()}
        rows.append({"compilations": meter.compilations, "phases": phases})
        taken.append(now - last)
        new.append(np.asarray(done.batch.rollout.sampled).sum(1))
        if not done.trained:
            raise SystemExit(f"update {done.number} was not trained on")
        last = now
    watch.close()
    if (np.concatenate(new) != settled.sampling.max_new_tokens).any():
        raise SystemExit("a completion has another length than the peers' have")
    lengths = [len(problem.prompt) for problem in parts.task.train]
    return {
        "prompt_tokens": [min(lengths), max(lengths)],
        "steps_s": taken,
        "per_step_s": float(np.mean(taken[1:])),
        "steps": rows,
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def mean_seconds(got: dict[str, Any]) -> float:
    """Returns the mean of a side's updates after the first."""
    return float(np.mean(got["steps_s"][1:] or got["steps_s"]))


def compared(found: dict[str, dict[str, Any]]) -> list[Figure]:
    """Returns the figures of what was measured; a side that is missing has none."""
    figures, mine = [], found.get("ours")
    for name, least in (("trl", 2.5), ("tunix", 1.7)):
        other = found.get(name)
        if mine and other:
            each = mean_seconds(mine), mean_seconds(other)
            figures.append(common.speedup(f"update against {name}", *each, least))
    if mine and "tunix" in found:
        peaks = mine["peak_gib"], found["tunix"]["peak_gib"]
        figures.append(common.at_most("peak memory over tunix", *peaks, "GiB", 0.5))
    return figures


def main(argv: Sequence[str] | None = None) -> list[Figure]:
    """Prints the table."""
    parser = common.options(__doc__, repeats=1)
    parser.add_argument("--only", choices=("ours",), help="our side, in this process")
    parser.add_argument("--updates", type=int, default=3, help="after the first")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    wanted = parser.parse_args(argv)
    if wanted.only:
        print(json.dumps(ours(wanted)), flush=True)
        return []
    directory = None if wanted.tiny else models.resolve(wanted.model)
    others = peers.Peers(wanted, directory)
    command = [sys.executable, "-m", "tests.benchmarks.update", "--only", "ours"]
    command += ["--model", wanted.model, "--updates", str(wanted.updates)]
    command += ["--tiny"] * wanted.tiny + wanted.overrides
    size = PROMPTS, SAMPLES, NEW, 1 + wanted.updates
    found: dict[str, dict[str, Any]] = {}
    for _ in range(wanted.repeats):
        for name, run in (
            ("ours", lambda: peers.child(command)),
            ("trl", lambda: others.run("trl", "trl_grpo_step.py", *size)),
            ("tunix", lambda: others.run("tunix", "tunix_grpo_step.py", *size)),
        ):
            got = run()
            if got is not None:
                common.say("update", side=name, **got)
                best = found.setdefault(name, got)
                if mean_seconds(got) < mean_seconds(best):
                    found[name] = got
    common.report(
        "update",
        compared(found),
        model=wanted.model if directory else "random, two layers",
        others=others,
        tiny=wanted.tiny,
        overrides=wanted.overrides,
    )
    return compared(found)


if __name__ == "__main__":
    main()
