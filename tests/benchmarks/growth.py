"""How time grows with rows: t(8 x rows) over 8 x t(rows), at most 1.1.

    python -m tests.benchmarks.growth [--tiny]

For a train step and for a rollout of a small model with random weights, whose
completions all have the same length. Below 1 more rows are cheaper together.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from grpo_jax import losses, models, objectives, rollout, step
from grpo_jax.base import Batch, Params, Rollout, TrainState
from tests.benchmarks import common

FACTOR = 8
LIMIT = 1.1
PROMPT = 16


def sampled(params: Params, config: models.ModelConfig, rows: int, new: int) -> Rollout:
    """Completions of `rows` different prompts."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(1, config.vocab_size, (rows, PROMPT)).tolist()
    return rollout.generate(
        params,
        config,
        prompts,
        num_samples=1,
        max_new_tokens=new,
        stop_ids=[],  # all completions are equally long
        key=jax.random.key(1),
    )


def trained(
    params: Params, config: models.ModelConfig, rows: int, new: int
) -> Callable[[], TrainState]:
    """A compiled train step on completions of `rows` prompts."""
    drawn = sampled(params, config, rows, new)
    batch = Batch(
        rollout=drawn,
        advantage=jnp.where(drawn.sampled, 1.0, 0.0),
        mask=drawn.sampled,
        targets={},
    )
    tx = optax.adam(1e-4)
    objective = objectives.surrogate(models.functions(config), reduce=losses.per_token)
    take = jax.jit(
        lambda state, batch: step.train_step(state, batch, objective=objective, tx=tx)
    )
    state = step.init(params, tx)
    return lambda: take(state, batch)[0]


def main() -> None:
    """Prints both ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="sizes of no use, quick")
    tiny = parser.parse_args().tiny
    config = models.ModelConfig(
        family="qwen3",
        qk_norm=True,
        vocab_size=64 if tiny else 4096,
        width=16 if tiny else 256,
        ffw=32 if tiny else 768,
        num_layers=1 if tiny else 4,
        num_heads=2 if tiny else 4,
        num_kv_heads=1 if tiny else 2,
        head_dim=8 if tiny else 64,
    )
    rows, new, repeats = (2, 4, 1) if tiny else (8, 32, 5)
    params = jax.jit(lambda key: models.init(config, key))(jax.random.key(0))
    for name, make in (
        ("train step", lambda n: trained(params, config, n, new)),
        ("rollout", lambda n: lambda: sampled(params, config, n, new)),
    ):
        works = {"few": make(rows), "many": make(FACTOR * rows)}
        few, many = common.in_turns(works, repeats).values()
        print(
            f"{name:10}: {few * 1e3:7.1f} ms at {rows} rows, {many * 1e3:7.1f} ms at"
            f" {FACTOR * rows}; t(8x) / 8 t(1x) = {many / few / FACTOR:.2f}"
            f" (at most {LIMIT})"
        )


if __name__ == "__main__":
    main()
