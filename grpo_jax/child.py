"""One run of a study as a process: one that dies takes no other with it."""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from grpo_jax import rundir
from grpo_jax.signals import Terminated

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


class Stop:
    """Passes SIGTERM on to the process that runs, and remembers it."""

    def __init__(self):
        """Takes over the signal."""
        self.stopping = False
        self.process: subprocess.Popen | None = None
        signal.signal(signal.SIGTERM, self._heard)

    def _heard(self, number: int, frame: object) -> None:
        del number, frame
        self.stopping = True
        if self.process is not None:
            self.process.terminate()

    def obey(self) -> None:
        """Raises `Terminated` if the signal has come."""
        if self.stopping:
            raise Terminated


def _follow() -> None:
    """Asks the system to end this process when its parent dies, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)


def run(
    module: str,
    arguments: Sequence[str],
    *,
    log: pathlib.Path,
    say: Callable[[str], None],
    stop: Stop,
) -> int:
    """Runs a module of this package and returns its exit code; minus a signal's number.

    Args:
      module: such as `grpo_jax.train`.
      arguments: of its command line.
      log: gets all that it prints, after what an earlier one printed.
      say: called with each line as it comes.
      stop: passes SIGTERM on.

    Raises:
      KeyboardInterrupt: Ctrl-C, once the process has ended.
    """
    command = [sys.executable, "-u", "-m", module, *arguments]
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONPATH": _search_path()},
            preexec_fn=_follow,
        )
        stop.process = process
        try:
            for line in process.stdout or ():
                file.write(line)
                file.flush()
                say(line.rstrip("\n"))
            return process.wait()
        except BaseException:
            # A terminal sends Ctrl-C to both; a second one does no harm.
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        finally:
            stop.process = None


def _search_path() -> str:
    """This package's own copy first, wherever the study is run from."""
    here = str(pathlib.Path(rundir.__file__).parents[1])
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
