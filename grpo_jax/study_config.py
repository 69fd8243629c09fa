"""Study files: a base configuration, and arms as their differences from it."""

import dataclasses
import difflib
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from grpo_jax import config as configuration
from grpo_jax.config import Config

# What an arm may set; else two arms would not answer the same question.
ARM_SECTIONS = ("method", "credit", "selection", "sampling", "optimizer", "alarms")
# What decides how completions are drawn and graded is shared all the same.
SHARED = (
    "sampling.max_new_tokens",
    "sampling.temperature",
    "sampling.max_prompt_tokens",
)
_KINDS = {"seeds": list, "plain": str, "points": int, "fresh": str}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Arms and seeds that are compared.

    Attributes:
      name: of the file.
      dir: where runs and report go.
      base: what all arms share, and the budget in updates.
      arms: the configuration of each arm, without seed, directory and points.
      seeds: runs of each arm.
      plain: the arm whose spending is the budget of the others, unless one is given.
      points: readings on each grid.
      fresh: a further split that is read once, at the end; empty for none.
    """

    name: str
    dir: pathlib.Path
    base: Config
    arms: Mapping[str, Config]
    seeds: tuple[int, ...]
    plain: str
    points: int
    fresh: str

    def differences(self, arm: str) -> dict[str, Any]:
        """Returns the options of an arm that are not the base's, with their values."""
        values = configuration.flat(self.arms[arm])
        names = configuration.differences(self.base, self.arms[arm])
        return {name: values[name] for name in names}

    @property
    def given(self) -> bool:
        """Whether the file gives the budgets, and not the plain arm."""
        return bool(self.base.budget.tokens)


def load(path: str | pathlib.Path, overrides: Sequence[str] = ()) -> Study:
    """Reads a study file.

    Args:
      path: TOML: a whole run, with `[study]` and a table `[arms.NAME]` for each arm.
      overrides: `section.field=value` of the base, `study.field=value`, or
        `arms.NAME.section.field=value`.

    Raises:
      ValueError: one line with what was seen, the rule and the remedy.
    """
    path = pathlib.Path(path)
    table = configuration.read_table(path, overrides)
    study, arms = table.pop("study", None), table.pop("arms", None)
    if not isinstance(study, dict) or not isinstance(arms, dict) or not arms:
        raise ValueError(
            f"{path} has no [study] with arms [arms.NAME]; compare needs both, and"
            " `grpo-jax train` runs a file without"
        )
    base = configuration.from_table(table)
    made = Study(
        name=path.stem,
        dir=pathlib.Path(base.run.dir or f"runs/{path.stem}").expanduser(),
        base=base,
        arms=MappingProxyType(
            {name: _arm(name, table, own) for name, own in arms.items()}
        ),
        **_fields(study, arms),
    )
    _check(made)
    return made


def _fields(study: dict[str, Any], arms: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `[study]`, with their defaults."""
    for key, value in study.items():
        if key not in _KINDS:
            near = difflib.get_close_matches(key, _KINDS, n=1, cutoff=0)[0]
            raise ValueError(f"study.{key} is no option; did you mean study.{near}?")
        if type(value) is not _KINDS[key]:
            raise ValueError(
                f"study.{key}={value!r} must be of type {_KINDS[key].__name__}"
            )
    seeds = study.get("seeds", [0])
    if not seeds or any(type(s) is not int or s < 0 for s in seeds):
        raise ValueError(f"study.seeds={seeds!r} must be whole numbers, such as [0, 1]")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"study.seeds={seeds!r} names a seed twice; name each once")
    return {
        "seeds": tuple(seeds),
        "plain": study.get("plain", next(iter(arms))),
        "points": study.get("points", 4),
        "fresh": study.get("fresh", ""),
    }


def _arm(name: str, base: dict[str, Any], own: Any) -> Config:
    """The base with an arm's own options."""
    if not isinstance(own, dict):
        raise ValueError(f"arms.{name}={own!r} must be a table, such as [arms.{name}]")
    if not name or set(name) & set("/\\ ") or name in (".", "..", "base"):
        raise ValueError(
            f"arms.{name!r}: the name of an arm is that of a directory; use letters,"
            " digits, - and +"
        )
    merged = dict(base)
    for section, options in own.items():
        if section not in ARM_SECTIONS:
            raise ValueError(
                f"arms.{name}.{section}: an arm sets {', '.join(ARM_SECTIONS)} only, so"
                " that arms stay comparable; set it for all of them, outside of arms"
            )
        if not isinstance(options, dict):
            raise ValueError(f"arms.{name}.{section}={options!r} must be a table")
        for option in options:
            if f"{section}.{option}" in SHARED:
                raise ValueError(
                    f"arms.{name}.{section}.{option} is shared by all arms; set"
                    f" {section}.{option} outside of arms"
                )
        merged[section] = {**base.get(section, {}), **options}
    try:
        return configuration.from_table(merged)
    except ValueError as fault:
        raise ValueError(f"arms.{name}: {fault}") from fault


def _check(study: Study) -> None:
    budget, wanted = study.base.budget, study.base.evaluation
    if study.plain not in study.arms:
        raise ValueError(
            f"study.plain={study.plain!r} is no arm; use one of {', '.join(study.arms)}"
        )
    if not budget.updates:
        raise ValueError("a study needs budget.updates above 0; set it")
    if bool(budget.tokens) != bool(budget.device_seconds):
        raise ValueError(
            f"budget.tokens={budget.tokens} and budget.device_seconds="
            f"{budget.device_seconds} must both be given, or both be 0 and then be what"
            f" {study.plain!r} spends"
        )
    if not 1 <= study.points <= budget.updates:
        raise ValueError(
            f"study.points={study.points} must be from 1 to budget.updates"
            f"={budget.updates}"
        )
    if (
        wanted.every
        or wanted.at_updates
        or wanted.at_tokens
        or wanted.at_device_seconds
    ):
        raise ValueError(
            "evaluation.every and evaluation.at_* are set by study.points in a study;"
            " remove them"
        )
