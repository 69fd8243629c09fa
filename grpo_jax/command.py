"""What the subcommands share: exit codes, and ends that are said in one line."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from grpo_jax.checkpoint import LostCheckpoint
from grpo_jax.selection import NoVariance
from grpo_jax.signals import Terminated
from grpo_jax.splits import Count

DONE, WRONG_INPUT, STOPPED_ITSELF, INTERRUPTED, TERMINATED = 0, 2, 3, 130, 143


@contextmanager
def user_faults() -> Iterator[None]:
    """Ends the process with one line and exit code 2 on a fault of the user.

    To be wrapped around reading and checking what the user gave, not around the work:
    there a ValueError is a defect, and its traceback is wanted.
    """
    try:
        yield
    except ValueError as fault:
        print(f"error: {one_line(fault)}", file=sys.stderr)
        raise SystemExit(WRONG_INPUT) from None


def ended(work: Callable[[], None]) -> int:
    """Does resumable work and returns the exit code, having said why it stopped."""
    try:
        work()
    except Terminated:
        print("stopped by SIGTERM; the same command resumes", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        return INTERRUPTED
    except (FloatingPointError, LostCheckpoint, NoVariance) as fault:
        print(f"stopped: {one_line(fault)}", file=sys.stderr)
        return STOPPED_ITSELF
    return DONE


def one_line(fault: BaseException) -> str:
    """Returns the message of a fault without line breaks."""
    return " ".join(str(fault).split())


def say_counts(counts: Iterable[Count]) -> None:
    """Writes where a task's problems come from, leaving out what removed none."""
    for what, number in counts:
        if number:
            print(f"{what}: {number}", file=sys.stderr)
