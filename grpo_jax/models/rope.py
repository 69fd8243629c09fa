"""Rotary positions, plain and stretched as in Llama 3."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from grpo_jax.models.config import ModelConfig


def rope_frequencies(config: ModelConfig) -> np.ndarray:
    """Returns radians per position of each rotary pair, `[head_dim / 2] float32`.

    With `rope_scaling`, wavelengths beyond the original context are stretched by
    `factor`, short ones are kept, and those between are interpolated (Llama 3.1).
    """
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequency = config.rope_theta**-exponent
    scaling = config.rope_scaling
    if scaling is not None:
        turns = scaling.original_max_positions * frequency / (2 * np.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequency = frequency * (keep + (1 - keep) / scaling.factor)
    return frequency.astype(np.float32)


def rotary(
    config: ModelConfig, positions: Int[Array, "B T"]
) -> Callable[[Array], Array]:
    """Returns the rotation of `[B, T, heads, head_dim]` by each token's position.

    See "RoFormer" by Su et al. (https://arxiv.org/abs/2104.09864), eq. 34, with the
    pairs (i, i + head_dim / 2) of the Hugging Face layout.
    """
    frequency = jnp.asarray(rope_frequencies(config))
    angle = positions.astype(jnp.float32)[..., None, None] * frequency[None, None, None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    # Behind the barrier the angles are computed once, not in every layer's rotation.
    cos, sin = jax.lax.optimization_barrier(
        (jnp.concatenate((cos, cos), -1), jnp.concatenate((-sin, sin), -1))
    )

    def rotate(x: Array) -> Array:
        wide = x.astype(jnp.float32)
        first, second = jnp.split(wide, 2, axis=-1)
        swapped = jnp.concatenate((second, first), axis=-1)
        return (wide * cos + swapped * sin).astype(x.dtype)

    return rotate
