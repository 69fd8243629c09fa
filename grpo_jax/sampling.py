"""Drawing one token per row by inverting the cumulative distribution in two levels.

Two uniforms per row replace one Gumbel variate per vocabulary entry: the first
chooses a block of the vocabulary by its mass, the second a token inside the block.
The log-probability comes from the same sums.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

BLOCK = 256


def draw(
    keys_b: Key[Array, "B"], logits: Float[Array, "B V"]
) -> tuple[Int[Array, "B"], Float[Array, "B"]]:
    """Draws from softmax(logits); each key is consumed.

    Args:
      keys_b: one key per row.
      logits: float32; -inf excludes a token, and at least one is finite.

    Returns:
      Token ids, and their log-probabilities in nats.
    """
    batch, size = logits.shape
    padded = jnp.pad(logits, ((0, 0), (0, -size % BLOCK)), constant_values=-jnp.inf)
    high = logits.max(-1, keepdims=True)
    weight = jnp.exp(padded - high).reshape(batch, -1, BLOCK)
    mass = weight.sum(-1)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys_b)
    block = _invert(uniform[:, 0], mass)
    inside = jnp.take_along_axis(weight, block[:, None, None], axis=1)[:, 0]
    token = (block * BLOCK + _invert(uniform[:, 1], inside)).astype(jnp.int32)
    picked = jnp.take_along_axis(logits, token[:, None], axis=1) - high
    return token, picked[:, 0] - jnp.log(mass.sum(-1))


def _invert(uniform, mass):
    """First index whose cumulative mass exceeds `uniform` times the whole."""
    cumulative = jnp.cumsum(mass, axis=-1)
    below = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1)
    # Rounding can push the target onto the very end: fall back to the last entry
    # that has mass, so that an excluded token is never drawn.
    last = mass.shape[-1] - 1 - jnp.argmax(mass[:, ::-1] > 0, axis=-1)
    return jnp.minimum(below, last)
