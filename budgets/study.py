"""A study's directory read back: which accuracy each arm has at equal compute."""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from budgets import contrasts, jsonl, match
from budgets.bootstrap import Interval, paired_bootstrap
from budgets.ledger import Ledger

WORDS = {"updates": "updates", "tokens": "tokens", "device_seconds": "device-seconds"}


class Run(NamedTuple):
    """One run of an arm.

    Attributes:
      standings: before its first update and after each.
      scores: `[M, N] bool` of each update that was evaluated; 0 is the base.
      points: of each grid, ascending.
    """

    standings: list[match.Standing]
    scores: dict[int, np.ndarray]
    points: dict[str, list]


class Study(NamedTuple):
    """What is known of a study.

    Attributes:
      description: `study.json`.
      runs: by arm and seed, those that came to their end.
      failed: by arm and seed, what was said of the others.
    """

    description: dict[str, Any]
    runs: dict[tuple[str, int], Run]
    failed: dict[tuple[str, int], str]


def read(path: pathlib.Path) -> Study:
    """Reads a study's directory.

    Raises:
      ValueError: it is none, or a file in it is damaged.
    """
    file = path / "study.json"
    if not file.exists():
        raise ValueError(f"{path} has no study.json; give the directory of a study")
    told = json.loads(file.read_text(encoding="utf-8"))
    states = path / "status.json"
    status = json.loads(states.read_text(encoding="utf-8")) if states.exists() else {}
    base = _scores(path / "base")
    runs, failed = {}, {}
    for seed in told["seeds"]:
        grids = None
        for arm in sorted(told["arms"], key=lambda arm: arm != told["plain"]):
            name = f"{arm}-seed{seed}"
            state = status.get(name, {"state": "waiting", "message": "not run yet"})
            if state["state"] != "done":
                failed[arm, seed] = state["message"]
                continue
            run = _run(path / name, base, told)
            grids = grids or run.points
            runs[arm, seed] = run._replace(points=grids)
    return Study(told, runs, failed)


def _run(path: pathlib.Path, base: dict[int, np.ndarray], told: dict[str, Any]) -> Run:
    rows = jsonl.read(path / "metrics.jsonl")
    untrained = {row["update"] for row in rows if not row["trained"]}
    stands = match.standings(Ledger.read(path / "ledger.jsonl"), untrained)
    updates = match.equal_updates(told["base"]["budget.updates"], told["points"])
    tokens, seconds = told["base"]["budget.tokens"], None
    if tokens:
        tokens = match.evenly(tokens, told["points"])
        seconds = match.evenly(told["base"]["budget.device_seconds"], told["points"])
    else:
        tokens, seconds = match.spent_at(stands, updates)
    points = {"updates": updates, "tokens": tokens, "device_seconds": seconds}
    return Run(stands, base | _scores(path), points)


def _scores(path: pathlib.Path) -> dict[int, np.ndarray]:
    found: dict[int, list] = {}
    for row in jsonl.read(path / "eval.jsonl"):
        found.setdefault(row["update"], []).append(row["correct"])
    return {update: np.array(rows, bool) for update, rows in found.items()}


def reading(run: Run, grid: str, point: int) -> tuple[match.Reading, np.ndarray] | None:
    """Returns what a run is at a point of a grid, and its scores `[M, N]` there.

    Args:
      run: of `Study.runs`.
      grid: of `match.GRIDS`.
      point: its number, from 0; -1 is the last.
    """
    found = match.read_at(run.standings, grid, run.points[grid][point])
    if found is None:
        return None
    if found.update not in run.scores:
        raise ValueError(
            f"update {found.update} was not evaluated, which the point"
            f" {found.point:g} of {WORDS[grid]} reads; run the study again"
        )
    return found, run.scores[found.update]


def at(study: Study, arm: str, grid: str, point: int = -1) -> dict[int, np.ndarray]:
    """Returns the scores of an arm at a point, by seed."""
    found = {}
    for seed in study.description["seeds"]:
        run = study.runs.get((arm, seed))
        read_there = None if run is None else reading(run, grid, point)
        if read_there is not None:
            found[seed] = read_there[1]
    return found


def difference(
    study: Study, arm: str, against: str, grid: str, point: int = -1
) -> Interval | None:
    """Returns the paired difference of two arms over the seeds that both have."""
    a, b = (at(study, name, grid, point) for name in (arm, against))
    seeds = [seed for seed in a if seed in b]
    if not seeds:
        return None
    return paired_bootstrap(
        np.stack([a[seed] for seed in seeds]), np.stack([b[seed] for seed in seeds])
    )


def sentence(arm: str, against: str, grid: str, found: Interval) -> str:
    """Returns what a difference supports, and no more."""
    points = [f"{100 * x:+.1f}" for x in (found.difference, found.low, found.high)]
    change, low, high = (p.replace("-", "\N{MINUS SIGN}") for p in points)
    text = (
        f"{arm} \N{MINUS SIGN} {against} at equal {WORDS[grid]}: {change} points,"
        f" 95 % interval {low} to {high}"
    )
    if found.low <= 0 <= found.high:
        text += ": no difference seen"
    return text


def lines(study: Study) -> list[str]:
    """Returns the accuracy of each arm at the last point of each grid, and each
    difference from the plain arm, as text."""
    plain, arms = study.description["plain"], study.description["arms"]
    out = [f"{'at equal':16}" + "".join(f"{arm:>14}" for arm in arms)]
    for grid in match.GRIDS:
        cells = []
        for arm in arms:
            scores = list(at(study, arm, grid).values())
            cells.append(f"{np.mean(scores):14.4f}" if scores else f"{'-':>14}")
        out.append(f"{WORDS[grid]:16}" + "".join(cells))
    for arm in arms:
        for grid in match.GRIDS if arm != plain else ():
            found = difference(study, arm, plain, grid)
            if found is not None:
                out.append(sentence(arm, plain, grid, found))
    outcomes, missing = contrasts.tested(
        contrasts.registered(plain),
        lambda a, b, grid, fresh: None if fresh else difference(study, a, b, grid),
    )
    out += contrasts.lines(outcomes, missing)
    if len(study.description["seeds"]) == 1:
        out.append("one seed: every interval is given this seed")
    out += [f"{arm} seed {seed}: {why}" for (arm, seed), why in study.failed.items()]
    return out
