"""`grpo-jax export`: a run's latest checkpoint as a Hugging Face directory."""

import argparse
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from grpo_jax import checkpoint, config, keys, models, setup, sharding, step
from grpo_jax.command import DONE, user_faults


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
    mesh = sharding.make_mesh()
    model, tokenizer = setup.describe_model(settings)
    like = jax.eval_shape(
        lambda: step.init(
            models.init(model, keys.root(0)), setup.make_optimizer(settings)
        )
    )
    home = sharding.replicated(mesh)
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=home), like
    )
    params = checkpoint.read_params(folder, number, like)
    whole = models.Model(
        config=model, params=jax.tree.map(jnp.asarray, params), tokenizer=tokenizer
    )
    models.save(whole, out)
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit code."""
    parser = argparse.ArgumentParser(prog="grpo-jax export", description=__doc__)
    parser.add_argument("run_dir", type=pathlib.Path)
    parser.add_argument("out_dir", type=pathlib.Path)
    wanted = parser.parse_args(argv)
    with user_faults():
        number = export(wanted.run_dir, wanted.out_dir)
    print(f"wrote the parameters after update {number} to {wanted.out_dir}")
    return DONE


if __name__ == "__main__":
    raise SystemExit(main())
