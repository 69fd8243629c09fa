"""A run directory: who may write in it, what it was started as, what it can resume."""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Iterator
from typing import IO, Any

import jax

from budgets import jsonl, ledger
from grpo_jax import config as configuration
from grpo_jax import resumption
from grpo_jax.config import Config

PACKAGES = ("grpo-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
PACKAGES += ("transformers", "grain", "numpy")


class RunDirectory:
    """The files of one run; held by one process at a time.

    Attributes:
      path: the directory.
    """

    def __init__(self, path: pathlib.Path, config: Config):
        """Creates the directory, or checks that it holds a run of this configuration.

        The configuration is written by `claim`, once it is known that it can run.

        Args:
          path: the directory.
          config: the resolved configuration.

        Raises:
          ValueError: it cannot be written, is in use, or holds something else.
        """
        self.path, self._made = path, not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = locked(path)
        except OSError as fault:
            raise ValueError(
                f"run.dir={str(path)!r} cannot be written ({fault.strerror});"
                " choose another with run.dir=..."
            ) from fault
        try:
            self._check(config)
        except BaseException:
            self.close()
            raise

    def claim(self, config: Config) -> None:
        """Writes what the run is, in a directory that holds none yet."""
        file = self.path / "config.toml"
        if not file.exists():
            write_text(file, configuration.to_toml(config))

    def _check(self, config: Config) -> None:
        file = self.path / "config.toml"
        if not file.exists():
            ours = {".lock", "config.toml.new"}
            others = sorted({x.name for x in self.path.iterdir()} - ours)
            if others:
                raise ValueError(
                    f"run.dir={str(self.path)!r} holds {others[0]!r} and no"
                    " config.toml, so it is no run; choose an empty or new directory"
                )
            return
        before = configuration.load(file)
        # A directory may be moved, and programs be kept or not: neither is the run.
        free = {"run.dir", "run.compilation_cache"}
        names = [n for n in configuration.differences(before, config) if n not in free]
        if names:
            old, new = configuration.flat(before), configuration.flat(config)
            shown = ", ".join(f"{n} ({old[n]!r} there, {new[n]!r} now)" for n in names)
            raise ValueError(
                f"{self.path} was started under another configuration: {shown};"
                " restore these options or choose another run.dir"
            )

    def restore(self, update: int) -> None:
        """Drops what was recorded after `update`; charges go to `lost.jsonl`.

        Args:
          update: the last whole update; -1 for none at all.
        """
        ledger.restore(self.path / "ledger.jsonl", update)
        for name in ("metrics.jsonl", "eval.jsonl", "pretrain.jsonl"):
            jsonl.keep_until(self.path / name, update)
        for file in (*self.path.glob("rollouts/*"), *self.path.glob("samples/*")):
            number = file.name.partition("-")[0]
            ours = file.is_file() and len(number) == 6 and number.isdigit()
            if ours and int(number) > update:
                file.unlink()

    def keep_whole_parts(self, update: int, *, total: int, batch: int) -> None:
        """Drops the part of an evaluation that has no end; its charges are lost.

        Args:
          update: whose evaluation it is.
          total: problems of a whole evaluation.
          batch: problems of a part.
        """
        path, seen = self.path / "eval.jsonl", 0
        for row in jsonl.read(path):
            seen += row["update"] == update
        whole = resumption.whole_parts(seen, total=total, batch=batch)
        places = iter(range(seen))
        jsonl.keep(path, lambda row: row["update"] != update or next(places) < whole)
        book = self.path / "ledger.jsonl"
        charges, num_parts = ledger.Ledger.read(book).rows, -(-whole // batch)
        unfinished = resumption.cut_off(charges, update, num_parts)
        latest = max((charge.update for charge in charges), default=update)
        ledger.restore(book, latest, unfinished=unfinished)

    def close(self) -> None:
        """Lets other processes use the directory; an empty one made here is removed."""
        names = {x.name for x in self.path.iterdir()} if self.path.is_dir() else None
        if self._made and names == {".lock"}:
            (self.path / ".lock").unlink(missing_ok=True)
            self.path.rmdir()
        self._lock.close()


@contextlib.contextmanager
def opened(path: pathlib.Path, config: Config) -> Iterator[RunDirectory]:
    """A run directory that stays open unless what is done in it first fails."""
    directory = RunDirectory(path, config)
    try:
        yield directory
    except BaseException:
        directory.close()
        raise


def locked(path: pathlib.Path) -> IO[str]:
    """Returns a file whose being open keeps other processes out of a directory.

    Raises:
      ValueError: another process holds it.
    """
    handle = (path / ".lock").open("w")
    try:
        # Released by the system when the process ends, however it ends.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise ValueError(
            f"{path} is in use by another process; wait for it or choose another"
            " run.dir"
        ) from None
    return handle


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a whole file or nothing."""
    partial = path.with_name(path.name + ".new")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes a whole JSON file or nothing."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_environment(path: pathlib.Path, config: Config) -> None:
    """Records versions, devices, the git commit of this code, the seed."""
    devices = jax.devices()
    content = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "backend": jax.default_backend(),
        "devices": [str(device.device_kind) for device in devices],
        "processes": jax.process_count(),
        "git_commit": _commit(),
        "seed": config.seed,
    }
    write_json(path, content)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=pathlib.Path(__file__).parent,  # of this code, not of where it is run
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None
