"""Attention within packed segments by two kernels, and by a float64 loop over rows.

Random queries, keys and values in bfloat16, with padding and several segments in a row;
`gpu` runs it. The kernels get what `models.attention.within` gives them in training.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.models import attention

TOLERANCE = 2e-2  # a few steps of bfloat16 at the size of the values


class Inputs(NamedTuple):
    """What is attended to: `[B, T, heads, head_dim]`, and `[B, T]` segments."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    segments: jax.Array


def inputs(*, rows: int, length: int, heads: int, kv_heads: int, dim: int) -> Inputs:
    """Returns random inputs; each row has two segments or more, then padding."""
    rng = np.random.default_rng(0)
    draw = lambda n: jnp.asarray(rng.normal(size=(rows, length, n, dim)), jnp.bfloat16)
    segments = np.zeros((rows, length), np.int32)
    for row in segments:
        start, number = 0, 0
        while start < length - length // 8:
            number, size = number + 1, int(rng.integers(2, length // 2))
            row[start : min(start + size, length - length // 8)] = number
            start += size
    return Inputs(draw(heads), draw(kv_heads), draw(kv_heads), jnp.asarray(segments))


def values_and_gradients(given: Inputs, implementation: str | None) -> list[np.ndarray]:
    """Returns the mixed values of real tokens, and gradients of half their squares."""
    real = (given.segments > 0)[..., None, None]

    def mixed(query, key, value):
        out, _ = attention.within(given.segments, implementation)(query, key, value)
        return jnp.where(real, out.astype(jnp.float32), 0.0)

    def loss(*args):
        return 0.5 * jnp.square(mixed(*args)).sum()

    args = given[:3]
    found = [jax.jit(mixed)(*args), *jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*args)]
    return [np.asarray(x, np.float32) for x in found]


def in_a_loop(given: Inputs) -> np.ndarray:
    """Returns the mixed values of real tokens, one token at a time in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in given[:3])
    segments = np.asarray(given.segments)
    out, group = np.zeros(query.shape), query.shape[2] // key.shape[2]
    for row, t in zip(*np.nonzero(segments), strict=True):
        seen = np.flatnonzero(segments[row, : t + 1] == segments[row, t])
        for head in range(query.shape[2]):
            scores = key[row, seen, head // group] @ query[row, t, head]
            weight = np.exp((scores - scores.max()) * query.shape[-1] ** -0.5)
            out[row, t, head] = weight @ value[row, seen, head // group] / weight.sum()
    return out


def gap(one: np.ndarray, two: np.ndarray) -> float:
    """Returns the largest difference, over the largest number where that is above 1."""
    return float(np.abs(one - two).max() / max(1.0, np.abs(two).max()))
