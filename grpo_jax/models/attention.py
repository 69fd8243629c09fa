"""Attention within sequences, and over a cache that is read as far as it is used.

How a cache lies in memory is data, chosen per backend by measurement:

- `segmented`: keys `[B, K, head_dim, n]`, values `[B, K, n, head_dim]`, in segments
  along time. A segment that no live sequence reaches is not read, and the products
  need no transposed copy. A CPU decodes SmolLM2 at batch 32 over 128 positions with
  7 ms a step in this layout, with 22 ms in the other.
- `whole`: `[B, T, K, head_dim]`, the layout of cuDNN's kernel, which reads each row as
  far as its own length. A branch for each segment would make a GPU wait for the host.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Cache: TypeAlias = Any
# Keys and values of one layer, as `[B, T, K, head_dim]`.
Pair: TypeAlias = tuple[Array, Array]

FIRST = 64  # columns of the first segment; a power of two
MOST = 8  # segments
GRAIN = 32  # segments have multiples of so many columns
HIDDEN = -1e30  # finite, so that a row of a segment that sees nothing is no nan


class Shared(NamedTuple):
    """Rows that begin alike, as the samples of one prompt do.

    Attributes:
      group: so many neighbouring rows begin alike; a divisor of the rows.
      columns: `[] int32` positions that they have in common; each row is beyond them.
    """

    group: int
    columns: Array


class Layout(NamedTuple):
    """How one layer's cache lies in memory.

    Attributes:
      store: `(key, value, length) -> cache` with room for `length` positions, from
        `[B, T, K, head_dim]`.
      attend: `(query, key, value, positions, cache, shared=None) ->
        ([B, 1, H, head_dim], cache)` writes one token per row at its position, and
        attends up to it. A position beyond the cache writes nothing, and its row means
        nothing. What rows share may be read once.
      axes: logical names of the first axes of its arrays; None is cut nowhere.
    """

    store: Callable[[Array, Array, int], Cache]
    attend: Callable[..., tuple[Array, Cache]]
    axes: tuple[str | None, ...]


def sizes(length: int) -> tuple[int, ...]:
    """Columns of each segment of a cache: two of them for every doubling.

    Beyond the first segments, what is read is then at most half again what is used. A
    first segment that grows with the length keeps their number, and so the program,
    small.
    """
    first = FIRST
    while True:
        found, start, size = [], 0, first
        while start < length:
            found.append(min(size, length - start))
            start += found[-1]
            # 64 | 64 | 64 64 | 128 128 | 256 256 | ...
            size = max(first, 1 << max(start.bit_length() - 2, 0))
        if len(found) <= MOST:
            return tuple(found)
        first *= 2


def _store_segments(key: Array, value: Array, length: int) -> Cache:
    length = -(-length // GRAIN) * GRAIN
    room = length - key.shape[1]
    key, value = (jnp.pad(x, ((0, 0), (0, room), (0, 0), (0, 0))) for x in (key, value))
    keys, values = key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
    out, start = [], 0
    for size in sizes(length):
        end = start + size
        out.append((keys[..., start:end], values[:, :, start:end]))
        start = end
    return tuple(out)


def _attend_segments(
    query: Float[Array, "B 1 H D"],
    key: Float[Array, "B 1 K D"],
    value: Float[Array, "B 1 K D"],
    positions: Int[Array, "B"],
    cache: Cache,
    shared: Shared | None = None,
) -> tuple[Float[Array, "B 1 H D"], Cache]:
    batch, _, heads, dim = query.shape
    kv = key.shape[2]
    grouped = query.reshape(batch, kv, heads // kv, dim) * dim**-0.5
    length = sum(values.shape[2] for _, values in cache)
    # Rows beyond the cache are idle: they do not make the others read further.
    reach = jnp.where(positions < length, positions, 0).max()
    rows, start, grown = jnp.arange(batch), 0, []
    carry: Any = None
    for keys, values in cache:
        size = values.shape[2]
        # Columns of other segments are written nowhere; below zero would wrap around.
        at = jnp.where(positions >= start, positions - start, size)
        keys = keys.at[rows, :, :, at].set(key[:, 0], mode="drop")
        values = values.at[rows, :, at].set(value[:, 0], mode="drop")
        ways = [
            functools.partial(
                _partial, grouped, keys, values, positions[:, None] - start
            )
        ]
        how = (reach >= start).astype(jnp.int32) if start else 1
        if shared is not None:
            ways.append(
                functools.partial(_partial_once, grouped, keys, values, shared.group)
            )
            how = jnp.where(start + size <= shared.columns, 2, how)
        if carry is None:
            carry = jax.lax.switch(how - 1, ways)
        else:
            merged = [lambda old, way=way: _merge(old, way()) for way in ways]
            carry = jax.lax.switch(how, [lambda old: old, *merged], carry)
        grown.append((keys, values))
        start += size
    _, total, mixed = carry
    mixed = (mixed / total[..., None]).astype(query.dtype)
    return mixed.reshape(batch, 1, heads, dim), tuple(grown)


def _partial(query, keys, values, last):
    """Maximum, sum of weights and weighted values of one segment, in float32."""
    wide = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = wide("bkgd,bkdn->bkgn", query, keys)
    seen = jnp.arange(keys.shape[-1])[None] <= last
    scores = jnp.where(seen[:, None, None], scores, HIDDEN)
    high = scores.max(-1)
    weight = jnp.exp(scores - high[..., None])
    mixed = wide("bkgn,bknd->bkgd", weight.astype(values.dtype), values)
    return high, weight.sum(-1), mixed


def _partial_once(query, keys, values, group):
    """`_partial` of a segment that all rows of a group have in common and see whole."""
    batch, kv, heads, dim = query.shape
    together = query.reshape(-1, group, kv, heads, dim).swapaxes(1, 2)
    together = together.reshape(-1, kv, group * heads, dim)
    keys, values = (x.reshape(-1, group, *x.shape[1:])[:, 0] for x in (keys, values))
    last = jnp.full((batch // group, 1), keys.shape[-1])
    out = _partial(together, keys, values, last)

    def apart(x):
        x = x.reshape(batch // group, kv, group, heads, *x.shape[3:]).swapaxes(1, 2)
        return x.reshape(batch, kv, heads, *x.shape[4:])

    return jax.tree.map(apart, out)


def _merge(one, two):
    high = jnp.maximum(one[0], two[0])
    left, right = jnp.exp(one[0] - high), jnp.exp(two[0] - high)
    total = one[1] * left + two[1] * right
    return high, total, one[2] * left[..., None] + two[2] * right[..., None]


def _store_whole(key: Array, value: Array, length: int) -> Cache:
    room = ((0, 0), (0, length - key.shape[1]), (0, 0), (0, 0))
    return jnp.pad(key, room), jnp.pad(value, room)


def _attend_whole(
    query: Float[Array, "B 1 H D"],
    key: Float[Array, "B 1 K D"],
    value: Float[Array, "B 1 K D"],
    positions: Int[Array, "B"],
    cache: Cache,
    shared: Shared | None = None,
    *,
    implementation: str | None,
) -> tuple[Float[Array, "B 1 H D"], Cache]:
    del shared  # the kernel reads each row for itself
    rows = jnp.arange(positions.shape[0])
    keys = cache[0].at[rows, positions].set(key[:, 0], mode="drop")
    values = cache[1].at[rows, positions].set(value[:, 0], mode="drop")
    length = keys.shape[1]
    mixed = jax.nn.dot_product_attention(
        query,
        keys,
        values,
        query_seq_lengths=jnp.ones_like(positions),
        # An idle row is read no further than its first column.
        key_value_seq_lengths=jnp.where(positions < length, positions, 0) + 1,
        implementation=implementation,  # pyright: ignore
    )
    return mixed, (keys, values)


def layout(backend: str, implementation: str | None) -> Layout:
    """Returns the cache layout measured fastest on a backend: cpu, gpu or tpu."""
    if backend == "gpu":
        attend = functools.partial(_attend_whole, implementation=implementation)
        return Layout(_store_whole, attend, ("batch", None, "kv_heads"))
    return Layout(_store_segments, _attend_segments, ("batch", "kv_heads"))


def kernel(backend: str, dtype: jnp.dtype, head_dim: int) -> str | None:
    """Returns the kernel of `jax.nn.dot_product_attention`; None leaves it to JAX.

    cuDNN's flash attention takes halves only, and heads of up to 128.
    """
    half = dtype in (jnp.dtype("bfloat16"), jnp.dtype("float16"))
    fits = head_dim <= 128 and head_dim % 8 == 0
    return "cudnn" if backend == "gpu" and half and fits else None


def within(
    segments: Int[Array, "B T"], implementation: str | None
) -> Callable[[Array, Array, Array], tuple[Array, Pair]]:
    """Returns causal attention of `[B, T, heads, head_dim]` within equal segments."""
    # Padding (segment 0) sees earlier padding, itself at least: no row is empty.
    same = segments[:, None, :, None] == segments[:, None, None, :]

    def attend(query: Array, key: Array, value: Array) -> tuple[Array, Pair]:
        mixed = jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=same,
            is_causal=True,
            implementation=implementation,  # pyright: ignore
        )
        return mixed, (key, value)

    return attend


def causal(
    implementation: str | None,
) -> Callable[[Array, Array, Array], tuple[Array, Pair]]:
    """Returns causal attention of right-padded rows: no token sees padding."""

    def attend(query: Array, key: Array, value: Array) -> tuple[Array, Pair]:
        mixed = jax.nn.dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            implementation=implementation,  # pyright: ignore
        )
        return mixed, (key, value)

    return attend
