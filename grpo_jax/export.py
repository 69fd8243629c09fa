"""`grpo-jax export`: a run's latest checkpoint as a Hugging Face directory."""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import jax

from grpo_jax import checkpoint, config, models, setup, sharding
from grpo_jax.command import DONE, STOPPED_ITSELF, one_line, user_faults


def export(run: pathlib.Path, out: pathlib.Path) -> int:
    """Writes the parameters of the latest checkpoint of `run` to `out`.

    Args:
      run: a run directory.
      out: a new or empty directory, which `transformers` can load afterwards.

    Returns:
      The update that the checkpoint follows.

    Raises:
      ValueError: there is no run or no checkpoint, or `out` holds something.
    """
    file = run / "config.toml"
    if not file.exists():
        raise ValueError(f"{run} has no config.toml; give the directory of a run")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty; give a new directory")
    settings = config.load(file)
    folder = run / "checkpoints"
    number = checkpoint.latest(folder)
    if number is None:
        raise ValueError(f"{run} has no checkpoint yet; train it for longer")
    model, tokenizer = setup.describe_model(settings)
    # On the host: a model that was trained on many devices may not fit on one.
    host = sharding.make_mesh(devices=jax.devices("cpu")[:1])
    like = models.abstract(model, mesh=host)
    params = checkpoint.read_params(folder, number, like)
    models.save(models.Model(config=model, params=params, tokenizer=tokenizer), out)
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit code."""
    parser = argparse.ArgumentParser(prog="grpo-jax export", description=__doc__)
    parser.add_argument("run_dir", type=pathlib.Path)
    parser.add_argument("out_dir", type=pathlib.Path)
    wanted = parser.parse_args(argv)
    with user_faults():
        try:
            number = export(wanted.run_dir, wanted.out_dir)
        except checkpoint.LostCheckpoint as fault:
            print(f"stopped: {one_line(fault)}", file=sys.stderr)
            return STOPPED_ITSELF
    print(f"wrote the parameters after update {number} to {wanted.out_dir}")
    return DONE


if __name__ == "__main__":
    raise SystemExit(main())
