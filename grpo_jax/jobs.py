"""Opening a run's directory, and the ends of what is done in it."""

import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

from grpo_jax import books, caches, config, profiling, rundir, setup, states
from grpo_jax.base import Params
from grpo_jax.books import Books
from grpo_jax.command import WRONG_INPUT, ended, one_line, say_counts
from grpo_jax.problem_pool import OtherProblems


class Job(NamedTuple):
    """A run that was checked and may begin or go on."""

    parts: setup.Setup
    params: Params | None
    directory: rundir.RunDirectory
    kept: Books


def prepare(settings: config.Config, *, profile: pathlib.Path | None = None) -> Job:
    """Opens a run's directory, having refused what cannot run.

    Raises:
      ValueError: one line with what was seen, the rule and the remedy.
    """
    caches.keep_programs(settings.run.compilation_cache)
    home = pathlib.Path(settings.run.dir).expanduser()
    with rundir.opened(home, settings) as directory:
        if profile is not None:
            profiling.check(profile, directory.path, settings)
        parts = setup.prepare(settings)
        params = states.first_params(parts, directory.path)
        directory.claim(settings)
        kept = books.open_books(parts, directory)
    rundir.write_environment(directory.path / "environment.json", settings)
    say_counts(parts.task.counts)
    return Job(parts, params, directory, kept)


def carried_out(job: Job, work: Callable[[], None]) -> int:
    """Does a job's work and lets go of its directory; returns the exit code."""
    try:
        return ended(work)
    except OtherProblems as fault:
        print(f"error: {one_line(fault)}", file=sys.stderr)
        return WRONG_INPUT
    finally:
        job.directory.close()
