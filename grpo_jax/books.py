"""What a run keeps beside its parameters: ledger, labels, data position, files."""

import pathlib
from typing import Any, NamedTuple

import jax

from budgets import jsonl
from budgets.clock import Clock
from budgets.labels import Labels
from budgets.ledger import Budget, Charge, Cost, Ledger, Phase
from grpo_jax import checkpoint, config, evaluator, metrics, resumption, setup
from grpo_jax.base import Selection, TrainState
from grpo_jax.checkpoint import Saved
from grpo_jax.compilations import Watch
from grpo_jax.meter import Meter, Metered
from grpo_jax.problem_pool import ProblemPool
from grpo_jax.progress import Progress
from grpo_jax.rundir import RunDirectory


class Books(NamedTuple):
    """The open books of a run.

    Attributes:
      path: the run directory.
      config: the resolved configuration.
      checkpoints: where parameters are saved.
      pool: the training problems, in order.
      labels: which ids were seen and verified.
      ledger: every charge.
      meter: charges the ledger.
      watch: counts compilations.
      writers: metrics on disk and on the boards.
      progress: the line a person watches.
      alarms: warns once when something starts to go wrong.
    """

    path: pathlib.Path
    config: config.Config
    checkpoints: checkpoint.Checkpoints
    pool: ProblemPool
    labels: Labels
    ledger: Ledger
    meter: Meter
    watch: Watch
    writers: metrics.Writers
    progress: Progress
    alarms: metrics.Watch

    def say(self, text: str) -> None:
        """Prints a line without disturbing the progress display."""
        self.progress.say(text)

    def position(self, *, over: bool, learned: int) -> dict[str, Any]:
        """Returns what a checkpoint holds beside arrays.

        Args:
          over: whether the run is.
          learned: the last update that was trained.
        """
        return {
            "pool": self.pool.get_state(),
            "labels": self.labels.get_state(),
            "over": over,
            "learned": learned,
        }

    def set_position(self, position: dict[str, Any]) -> None:
        """Continues from what `position` returned."""
        self.pool.set_state(position["pool"])
        self.labels.set_state(position["labels"])

    def save(
        self,
        number: int,
        state: TrainState,
        selection: Selection,
        position: dict[str, Any],
    ) -> None:
        """Writes a checkpoint and charges its seconds to its phase."""
        # The host's time of an update is charged before; what makes a first state is
        # none of an update.
        self.meter.begin(number, between=Phase.CHECKPOINT)
        self.meter.idle()
        self.checkpoints.save(number, Saved(state, selection, position))
        self.meter.charge(Phase.CHECKPOINT, Cost(), role="host")

    def lose_time(self, update: int) -> None:
        """Puts the time since the last fence into `lost.jsonl`, as restoring takes."""
        spent = Cost(device_seconds=self.meter.skip())
        charge = Charge(
            update=update,
            stage=self.meter.stage,
            role="host",
            phase=Phase.CHECKPOINT,
            cost=spent,
            inside_budget=False,
        )
        jsonl.append(self.path / "lost.jsonl", charge.to_json())

    def close(self) -> None:
        """Closes every file and stops listening."""
        self.progress.close()
        self.writers.close()
        self.checkpoints.close()
        self.watch.close()


def open_books(parts: setup.Setup, directory: RunDirectory) -> Books:
    """Opens the files of a run at its latest checkpoint; later records are dropped.

    The charges after it are kept in `lost.jsonl`: they were spent, and are not counted.
    """
    path, wanted = directory.path, parts.config
    checkpoints = checkpoint.Checkpoints(
        path / "checkpoints", keep=wanted.run.keep_checkpoints
    )
    try:
        return _opened(parts, directory, checkpoints)
    except BaseException:
        # Orbax's threads complain on the way out of a process that leaves it open.
        checkpoints.close()
        raise


def _opened(
    parts: setup.Setup, directory: RunDirectory, checkpoints: checkpoint.Checkpoints
) -> Books:
    path, wanted, latest = directory.path, parts.config, checkpoints.latest()
    # A pretraining is made again from its start; a model that was read is there again,
    # and what was evaluated of it still holds.
    whole = (-1 if wanted.pretrain.updates else 0) if latest is None else latest
    directory.restore(whole)
    resumption.check_problems(path, whole, parts.task.split, parts.task.evaluation)
    evaluator.check_log(parts)
    directory.keep_whole_parts(
        whole, total=len(parts.task.evaluation), batch=parts.batch_prompts
    )
    ledger = Ledger(path / "ledger.jsonl", budget(wanted))
    if latest is not None:
        _check_charges(ledger, latest, path)
        _complete(ledger, latest)
    watch, labels = Watch(), Labels()
    writers = metrics.Writers(
        path,
        update=latest or 0,
        tensorboard=wanted.run.tensorboard,
        wandb_project=wanted.run.wandb_project if wanted.run.wandb else "",
        config=config.flat(wanted),
    )
    return Books(
        path=path,
        config=wanted,
        checkpoints=checkpoints,
        pool=ProblemPool(parts.task.train, wanted.seed),
        labels=labels,
        ledger=ledger,
        meter=make_meter(parts, ledger, watch, labels),
        watch=watch,
        writers=writers,
        progress=Progress(ledger, start=latest or 0),
        alarms=metrics.Watch(wanted.alarms),
    )


def make_meter(
    parts: setup.Setup,
    ledger: Ledger,
    watch: Watch,
    labels: Labels,
    *,
    stage: str = "train",
) -> Meter:
    """Returns what charges the run's work to `ledger`."""
    wanted = parts.config
    model = Metered(parts.functions, parts.shape)
    return Meter(
        models={"policy": model, "reference": model},
        ledger=ledger,
        clock=Clock(jax.block_until_ready, devices=parts.mesh.size),
        watch=watch,
        labels=labels,
        verify=parts.task.verify,
        decode=setup.decoder(parts),
        temperature=wanted.sampling.temperature,
        # The whole batch at once, in parts of the size that training takes.
        microbatches=wanted.method.minibatches * wanted.optimizer.microbatches,
        row_sharding=parts.row_sharding,
        stage=stage,
        remembers=wanted.run.save_rollouts,
    )


def budget(wanted: config.Config) -> Budget:
    """Returns the limits of a run; a limit of 0 in the file is none."""
    limits = wanted.budget
    return Budget(
        tokens=limits.tokens or None,
        device_seconds=limits.device_seconds or None,
        updates=limits.updates or None,
        until="first" if limits.until == "first" else "both",
    )


def _check_charges(ledger: Ledger, latest: int, path: pathlib.Path) -> None:
    """Refuses a ledger that lacks what its run has spent."""
    charged = {row.update for row in ledger.rows if row.phase == Phase.HOST}
    missing = [number for number in range(1, latest + 1) if number not in charged]
    if missing:
        raise ValueError(
            f"{path / 'ledger.jsonl'} has no charges of update {missing[0]}, but the"
            f" run has done {latest}; restore the file: without it no budget holds"
        )


def _complete(ledger: Ledger, latest: int) -> None:
    """Charges a checkpoint whose process died before it could; its seconds are lost."""
    charged = any(
        row.phase == Phase.CHECKPOINT and row.update == latest for row in ledger.rows
    )
    if not charged:
        ledger.charge(latest, "train", "host", Phase.CHECKPOINT, Cost())
