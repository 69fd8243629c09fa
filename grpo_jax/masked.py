"""Reductions that never read a masked entry, in value or in gradient."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.base import Ratio


def keep(x: Float[Array, "*a"], mask: Bool[Array, "*a"]) -> Float[Array, "*a"]:
    """Zeroes masked entries. Selection, not product: 0 * nan is nan."""
    return jnp.where(mask, x, jnp.zeros_like(x))


def ratio(x: Float[Array, "*a"], mask: Bool[Array, "*a"]) -> Ratio:
    """Returns the sum over unmasked entries and how many there are, in float32."""
    # A bfloat16 count would stop at 256.
    return Ratio(
        keep(x, mask).astype(jnp.float32).sum(), mask.sum().astype(jnp.float32)
    )
