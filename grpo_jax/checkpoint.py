"""Checkpoints: parameters, optimiser, selection, and the run's position as JSON.

Orbax writes each one under a temporary name and renames it, so a run killed while
saving finds the one before. The number of a checkpoint is the update it follows.
"""

import logging
import pathlib
import shutil
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from grpo_jax.base import Selection, TrainState

_UNREADABLE = (ValueError, OSError, KeyError, TypeError)


class LostCheckpoint(RuntimeError):
    """A checkpoint is there and cannot be read."""


class Saved(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      state: parameters, optimiser and optimiser steps.
      selection: the method's selection state.
      position: JSON: data iterator, labels, and what else the host counts.
    """

    state: TrainState
    selection: Selection
    position: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, directory: pathlib.Path, *, keep: int = 2):
        """Opens or creates the directory.

        Args:
          directory: holds one folder per checkpoint.
          keep: how many of the latest to keep, beside number 0.
        """
        # Orbax reports each save at warning level through absl when alone.
        logging.getLogger("absl").setLevel(logging.ERROR)
        self._directory = directory
        _remove_partial(directory)
        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                keep_period=10**9,  # checkpoint 0 is the base model: never dropped
                # Orbax does this in a thread that may outlive the interpreter.
                cleanup_tmp_directories=False,
                enable_async_checkpointing=False,
            ),
        )

    def latest(self) -> int | None:
        """Returns the number of the latest whole checkpoint, if there is one."""
        return self._manager.latest_step()

    def save(self, number: int, saved: Saved) -> None:
        """Writes a checkpoint and returns once it is whole on disk.

        A checkpoint of that number that is there already is kept: it holds the same.
        """
        if number in self._manager.all_steps():
            return
        self._manager.save(
            number,
            args=ocp.args.Composite(
                tree=ocp.args.StandardSave(_named(saved[:2])),
                position=ocp.args.JsonSave(saved.position),
            ),
        )
        self._manager.wait_until_finished()

    def restore(self, number: int, like: Saved) -> Saved:
        """Reads a checkpoint into the shapes and shardings of `like`.

        Raises:
          LostCheckpoint: if it is damaged or of another model.
        """
        abstract = _named(jax.tree.map(ocp.utils.to_shape_dtype_struct, like[:2]))
        try:
            read = self._manager.restore(
                number,
                args=ocp.args.Composite(
                    tree=ocp.args.StandardRestore(abstract),
                    position=ocp.args.JsonRestore(),
                ),
            )
        except _UNREADABLE as fault:
            raise _lost(self._directory / str(number), fault) from fault
        tree = read["tree"]
        absent = {"pool", "labels", "over"} - set(read["position"] or {})
        if absent:
            fault = KeyError(f"position lacks {sorted(absent)}")
            raise _lost(self._directory / str(number), fault)
        leaves = [tree[name] for name in _named(like[:2])]
        state, selection = jax.tree.unflatten(jax.tree.structure(like[:2]), leaves)
        return Saved(state, selection, read["position"])

    def close(self) -> None:
        """Releases what the manager holds."""
        self._manager.close()


def _remove_partial(directory: pathlib.Path) -> None:
    """Removes what a process killed while saving has left."""
    for path in directory.glob("*"):
        if ocp.utils.is_tmp_checkpoint(path):
            shutil.rmtree(path)


def latest(directory: pathlib.Path) -> int | None:
    """Returns the number of the latest whole checkpoint, changing nothing."""
    if not directory.is_dir():
        return None
    return max(ocp.utils.checkpoint_steps(directory), default=None)


def read_params(directory: pathlib.Path, number: int, like: PyTree) -> PyTree:
    """Reads a checkpoint's parameters alone.

    Args:
      directory: the run's checkpoints.
      number: which one.
      like: the parameters' shapes, types and shardings.

    Raises:
      LostCheckpoint: if it is damaged, removed, or of another model.
    """
    wanted = {f"0.params.{name}": leaf for name, leaf in _named(like).items()}
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            read = reader.restore(
                (directory / str(number) / "tree").absolute(),
                args=ocp.args.PyTreeRestore(
                    item=wanted,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
                    partial_restore=True,
                ),
            )
    except _UNREADABLE as fault:
        raise _lost(directory / str(number), fault) from fault
    leaves = [read[name] for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _lost(folder: pathlib.Path, fault: Exception) -> LostCheckpoint:
    line = " ".join(str(fault).split())
    return LostCheckpoint(
        f"checkpoint {folder} cannot be read ({type(fault).__name__}: {line[:200]});"
        " remove that folder to go on from the one before it"
    )


def _named(tree: PyTree) -> dict[str, Any]:
    """The leaves by their path: any pytree becomes a flat dict, in order."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in paths
    }
