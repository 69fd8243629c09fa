"""The model that the arms of a study begin with, made and evaluated once.

A run that never updates: an embedded model is pretrained and written as a Hugging Face
directory, any other is used where it is.
"""

import argparse
import shutil
from collections.abc import Sequence

from grpo_jax import config, export, jobs, outcome, train
from grpo_jax.command import user_faults
from grpo_jax.signals import Signals


def make(job: jobs.Job) -> None:
    """Makes the model, evaluates it as update 0, and writes it to `model`."""
    parts, kept = job.parts, job.kept
    signals = Signals()
    try:
        point = train.stand(parts, job.params, kept, signals)
        if not parts.config.model.path and kept.checkpoints.latest() is None:
            position = kept.position(over=False, learned=0)
            kept.save(0, point.state, point.selection, position)
        outcome.evaluate(parts, kept, 0, point.state.params, signals)
    finally:
        kept.close()
    place = kept.path / "model"
    if not parts.config.model.path and not place.exists():
        partial = kept.path / "model.partial"
        shutil.rmtree(partial, ignore_errors=True)
        export.export(kept.path, partial)
        partial.rename(place)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", help="a TOML file, with run.dir")
    wanted = parser.parse_args(argv)
    with user_faults():
        job = jobs.prepare(config.load(wanted.config))
    return jobs.carried_out(job, lambda: make(job))


if __name__ == "__main__":
    raise SystemExit(main())
