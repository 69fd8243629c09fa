"""The runs of a study: their configurations, budgets and grids, and how each stands."""

import dataclasses
import json
import pathlib
from typing import Any

from budgets import jsonl, match
from budgets.ledger import Ledger
from grpo_jax import config, rundir
from grpo_jax.config import Config
from grpo_jax.study_config import Study


def name(arm: str, seed: int) -> str:
    """Returns the name of a run, which is that of its directory."""
    return f"{arm}-seed{seed}"


def base_config(study: Study) -> Config:
    """Returns the run that makes and evaluates the base."""
    run = dataclasses.replace(study.base.run, dir=str(study.dir / "base"))
    return dataclasses.replace(study.base, run=run)


def arm_config(study: Study, arm: str, seed: int) -> Config:
    """Returns a run of an arm, resolved: its model, budget and grids.

    Raises:
      ValueError: the budgets are what the plain arm spends, and it has not ended.
    """
    wanted = study.arms[arm]
    # An embedded model was made and written there once.
    model = study.base.model.path or str(study.dir / "base" / "model")
    updates = match.equal_updates(wanted.budget.updates, study.points)
    limits, points = _limits(study, arm, seed, updates)
    return dataclasses.replace(
        wanted,
        seed=seed,
        run=dataclasses.replace(wanted.run, dir=str(study.dir / name(arm, seed))),
        model=dataclasses.replace(wanted.model, path=model),
        pretrain=dataclasses.replace(wanted.pretrain, updates=0),
        budget=dataclasses.replace(wanted.budget, **limits),
        evaluation=dataclasses.replace(
            wanted.evaluation, before=False, at_updates=updates, **points
        ),
    )


def _limits(
    study: Study, arm: str, seed: int, updates: list[int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the budget, and the points of tokens and seconds."""
    if study.given:
        budget = study.base.budget
        tokens = [int(t) for t in match.evenly(budget.tokens, study.points)]
        seconds = match.evenly(budget.device_seconds, study.points)
        return {}, {"at_tokens": tokens, "at_device_seconds": seconds}
    if arm == study.plain:
        return {}, {}
    run = standings(study.dir / name(study.plain, seed))
    tokens, seconds = match.spent_at(run, updates)
    limits = {"tokens": tokens[-1], "device_seconds": seconds[-1]}
    return limits, {"at_tokens": tokens, "at_device_seconds": seconds}


def standings(directory: pathlib.Path) -> list[match.Standing]:
    """Returns where a run stood after each of its updates."""
    rows = jsonl.read(directory / "metrics.jsonl")
    untrained = {row["update"] for row in rows if not row["trained"]}
    return match.standings(Ledger.read(directory / "ledger.jsonl"), untrained)


def order(study: Study) -> list[tuple[str, int]]:
    """Returns the runs: of each seed the plain arm first, which sets its budgets."""
    others = [arm for arm in study.arms if arm != study.plain]
    return [(arm, seed) for seed in study.seeds for arm in (study.plain, *others)]


def cost(wanted: Config) -> float:
    """Returns roughly what an update of an arm generates, in units of plain ones."""
    how, chosen, size = wanted.credit, wanted.selection, wanted.sampling.group_size
    dense = how.continuations * (how.max_steps - 1) / 2
    scored = chosen.candidates * chosen.scoring_samples / size
    return float(
        1
        + (dense if wanted.method.name == "dense" else 0)
        + (scored if chosen.name in ("filter", "random") else 0)
    )


def description(study: Study) -> dict[str, Any]:
    """Returns what `study.json` holds: all that a report needs of the file."""
    return {
        "name": study.name,
        "seeds": list(study.seeds),
        "plain": study.plain,
        "points": study.points,
        "fresh": study.fresh,
        "until": study.base.budget.until,
        "arms": {arm: study.differences(arm) for arm in study.arms},
        "base": config.flat(study.base),
    }


def claim(study: Study) -> None:
    """Writes `study.json`, or refuses a directory that holds another study.

    Arms and seeds may be added; what the runs there were made with may not change.
    """
    file, now = study.dir / "study.json", description(study)
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        free = {"run.dir", "run.compilation_cache"}
        names = [
            key
            for key in {**before["base"], **now["base"]}
            if key not in free and before["base"].get(key) != now["base"].get(key)
        ]
        names += [
            f"study.{k}" for k in ("plain", "points", "fresh") if before[k] != now[k]
        ]
        names += [
            f"arms.{arm}"
            for arm, own in before["arms"].items()
            if arm in now["arms"] and own != now["arms"][arm]
        ]
        if names:
            raise ValueError(
                f"{study.dir} holds a study that differs in {', '.join(names)}; restore"
                " these options or choose another run.dir"
            )
        now["seeds"] = [*before["seeds"]] + [
            seed for seed in now["seeds"] if seed not in before["seeds"]
        ]
        now["arms"] = before["arms"] | now["arms"]
    rundir.write_json(file, now)


class Status:
    """Which runs have ended, and how; in `status.json`."""

    def __init__(self, directory: pathlib.Path):
        """Reads what is there."""
        self._file = directory / "status.json"
        self.runs: dict[str, dict[str, str]] = {}
        if self._file.exists():
            self.runs = json.loads(self._file.read_text(encoding="utf-8"))

    def done(self, run: str) -> bool:
        """Whether a run has come to its end."""
        return self.runs.get(run, {}).get("state") == "done"

    def note(self, run: str, state: str, message: str = "") -> None:
        """Writes down how a run stands: `done` or `failed`."""
        self.runs[run] = {"state": state, "message": message}
        rundir.write_json(self._file, self.runs)
