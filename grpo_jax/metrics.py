"""What a run reports: numbers per update, where they are written, and warnings.

`metrics.jsonl` is always written; TensorBoard and Weights & Biases get the same
numbers. The line that a person watches is in `grpo_jax.progress`.
"""

import importlib
import math
import pathlib
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from budgets import jsonl
from grpo_jax.config_schema import Alarms

_QUIET = 10  # updates below its threshold after which an alarm may start again

_REMEDIES = {
    "truncated": (
        "truncated_share",
        "of completions were cut by the length limit; raise sampling.max_new_tokens",
    ),
    "zero_variance": (
        "zero_variance_share",
        "of groups had equal rewards and teach nothing; use easier or harder problems,"
        " or a larger sampling.group_size",
    ),
    "grader_errors": (
        "grader_error_share",
        "of completions made the grader fail, which is no wrong answer; read the"
        " stored samples and the grader's messages",
    ),
    "no_boundary": (
        "share_without_boundary",
        "of answers have a single step, so that dense credit is plain GRPO there;"
        " lower credit.min_chars, or ask for steps on lines of their own",
    ),
    "duplicates": (
        "duplicate_share",
        "of completions repeat another of their group; raise sampling.temperature or"
        " lower optimizer.learning_rate",
    ),
}


def duplicate_share(
    tokens: Int[np.ndarray, "B T"], sampled: Bool[np.ndarray, "B T"], group_size: int
) -> float:
    """Returns the share of completions that repeat an earlier one of their group.

    Args:
      tokens: token ids, prompt-major; what is not `sampled` is not compared.
      sampled: True where the policy drew the token.
      group_size: completions per prompt.
    """
    _groups(len(tokens), group_size)
    seen: set[tuple[int, bytes]] = set()
    for row, (ids, drawn) in enumerate(zip(tokens, sampled, strict=True)):
        seen.add((row // group_size, ids[drawn].tobytes()))
    return 1 - len(seen) / len(tokens)


def zero_variance_share(rewards: Float[np.ndarray, "B"], group_size: int) -> float:
    """Returns the share of groups whose rewards are all equal.

    Args:
      rewards: one per completion, prompt-major.
      group_size: completions per prompt.
    """
    groups = rewards.reshape(_groups(len(rewards), group_size), group_size)
    # Equality, since the variance of equal floats may come out above zero.
    return float(np.mean(groups.max(axis=1) == groups.min(axis=1)))


def alarms(row: Mapping[str, Any], thresholds: Alarms) -> list[str]:
    """Returns a warning for each share of `row` above its threshold.

    Args:
      row: numbers of one update; a share that is missing or None raises no alarm.
      thresholds: the largest shares without one.
    """
    return list(_active(row, thresholds).values())


class Watch:
    """Gives each alarm once when it starts, not at every update it lasts."""

    def __init__(self, thresholds: Alarms) -> None:
        """Starts with no alarm on."""
        self._thresholds = thresholds
        self._last: dict[str, int] = {}

    def new(self, row: Mapping[str, Any]) -> list[str]:
        """Returns the warnings that start with this update.

        One that comes and goes counts as lasting: it starts again only after ten
        quiet updates.
        """
        update: int = row["update"]
        active = _active(row, self._thresholds)
        last = {name: self._last.get(name, update - _QUIET - 1) for name in active}
        self._last |= dict.fromkeys(active, update)
        return [active[name] for name in active if update - last[name] > _QUIET]


class Writers:
    """Writes the numbers of each update to every place that was asked for."""

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        update: int = 0,
        tensorboard: bool = True,
        wandb_project: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens the files; what a run restored earlier will write again is dropped.

        Args:
          directory: the run directory, which exists.
          update: the update that the run continues after; 0 for a new one.
          tensorboard: write event files under `tensorboard/`.
          wandb_project: Weights & Biases project; empty is off.
          config: options by dotted name, shown by Weights & Biases.

        Raises:
          ValueError: Weights & Biases is wanted and not installed.
        """
        self._path = directory / "metrics.jsonl"
        self._board = self._wandb = None
        if wandb_project:
            self._wandb = _wandb_run(directory, wandb_project, config or {})
        if tensorboard:
            # Here, because it imports torch where there is one.
            writer = importlib.import_module("tensorboardX").SummaryWriter
            # Readers hide what an earlier process wrote from this step on.
            self._board = writer(
                str(directory / "tensorboard"),
                purge_step=update + 1,
                # A file of the same second and host would be overwritten.
                filename_suffix=f".{uuid.uuid4().hex[:8]}",
            )
        jsonl.keep_until(self._path, update)

    def write(self, row: Mapping[str, Any]) -> None:
        """Writes one update; `row["update"]` is its number.

        Non-finite numbers become null in the file, since JSON has none.
        """
        jsonl.append(self._path, _plain(row))
        self.scalars(row["update"], {k: v for k, v in row.items() if k != "update"})

    def scalars(
        self, update: int, values: Mapping[str, Any], kind: str = "train"
    ) -> None:
        """Shows numbers on the boards without a row in the file, as evaluations are.

        Args:
          update: where on the horizontal axis.
          values: numbers; those of a nested mapping are shown under its name.
          kind: the heading of the plain ones.
        """
        flat = _flat(values, kind)
        if self._board is not None:
            for name, value in flat.items():
                self._board.add_scalar(name, value, update)
            self._board.flush()
        if self._wandb is not None:
            self._wandb.log(flat, step=update)

    def close(self) -> None:
        """Ends every writer."""
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()
        self._board = self._wandb = None


def _groups(rows: int, group_size: int) -> int:
    """How many groups there are; refuses rows that do not fill them."""
    if group_size < 1 or not rows or rows % group_size:
        raise ValueError(f"{rows} completions must fill groups of {group_size=}")
    return rows // group_size


def _active(row: Mapping[str, Any], thresholds: Alarms) -> dict[str, str]:
    """The warnings of one update by the name of their threshold."""
    found = {}
    for name, (key, remedy) in _REMEDIES.items():
        share, limit = row.get(key), getattr(thresholds, name)
        if share is not None and share > limit:
            found[name] = (
                f"update {row['update']}: {share:.1%} {remedy}"
                f" (alarms.{name} = {limit:.1%})"
            )
    return found


def check_wandb() -> None:
    """Raises ValueError where Weights & Biases is not installed."""
    try:
        importlib.import_module("wandb")
    except ImportError:
        raise ValueError(
            "run.wandb=true needs Weights & Biases, which is not installed; use"
            " `pip install grpo-jax[wandb]` or run.wandb=false"
        ) from None


def _wandb_run(directory: pathlib.Path, project: str, config: Mapping[str, Any]) -> Any:
    """Opens or continues the directory's Weights & Biases run."""
    check_wandb()
    wandb = importlib.import_module("wandb")
    name = directory / "wandb_id"
    if not name.exists():
        name.write_text(uuid.uuid4().hex)
    return wandb.init(
        project=project,
        id=name.read_text(),
        resume="allow",
        dir=str(directory),
        config=dict(config),
    )


def _plain(value: Any) -> Any:
    """The same as JSON types: numpy scalars unwrapped, non-finite numbers None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(values: Mapping[str, Any], kind: str) -> dict[str, float]:
    """The numbers of a row as `heading/name`; what is no number is left out."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, name)
        elif isinstance(value, bool | int | float | np.number):
            flat[f"{kind}/{name}"] = float(value)
    return flat
