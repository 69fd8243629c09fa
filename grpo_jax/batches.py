"""Work cut into parts of one shape, so that one program serves any amount of it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax import objectives
from grpo_jax.base import Functions, Params, Rollout


def score(
    functions: Functions,
    params: Params,
    rollout: Rollout,
    *,
    temperature: float,
    window: int | None,
    slices: int,
) -> Float[Array, "B T"]:
    """Log-probabilities of a rollout's tokens, read in slices to bound memory.

    Args:
      functions: the model.
      params: its parameters.
      rollout: what to read.
      temperature: of the policy.
      window: see `objectives.read`.
      slices: parts, a divisor of B.
    """

    def part(some):
        return objectives.read(
            functions, params, some, temperature=temperature, window=window
        )[0]

    if slices == 1:
        return part(rollout)
    # Column-major, as training's micro-batches: each takes rows from every device.
    parts = jax.tree.map(
        lambda x: jnp.moveaxis(jnp.asarray(x).reshape(-1, slices, *x.shape[1:]), 1, 0),
        rollout,
    )
    out = jax.lax.map(part, parts)
    return jnp.moveaxis(out, 0, 1).reshape(-1, *out.shape[2:])
