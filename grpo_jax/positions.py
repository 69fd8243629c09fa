"""The output head at chosen positions of packed rows, a chunk of them at a time.

The positions to read are moved to the front; the loops over them are as long as their
number, which is data, so no program depends on it. Gradients are written here, since
a loop of unknown length has none of its own. Types are as in `chunked`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.chunked import at_least_one, head_logits, precision, statistics
from grpo_jax.truncation import Number

_GROUPS = 16  # parts of the vocabulary that each of its blocks has columns of
_BLOCKS = 8  # of the vocabulary in the backward pass
_LARGE = 8192  # tokens from which a vocabulary is cut into blocks
_LONGER = 4  # chunks of the forward pass in one of the backward pass


class Compact(NamedTuple):
    """Some positions of each shard, moved to its front.

    Attributes:
      hidden: `[S, K, D]` their states; K is N filled up to whole chunks.
      targets: `[S, K] int32` what they predict.
      back: `[S, N] int32` where each position went.
      count: `[] int32` how many the shard with most has.
    """

    hidden: jax.Array
    targets: jax.Array
    back: jax.Array
    count: jax.Array


def compact(
    hidden: Float[Array, "S N D"],
    targets: Int[Array, "S N"],
    read: Bool[Array, "S N"],
    *,
    multiple: int,
) -> Compact:
    """Moves the positions to read to the front, in their order.

    Args:
      hidden: states.
      targets: the token each predicts.
      read: which to keep; the others follow them, as zeros.
      multiple: K is a multiple of it.
    """
    # The last chunk reads past the end, and 0 * nan is nan.
    hidden = jnp.where(read[..., None], hidden, jnp.zeros((), hidden.dtype))
    order = jnp.argsort(~read, axis=-1, stable=True)
    missing = -hidden.shape[1] % multiple
    # Permutations: said, so that the backward pass need not expect collisions.
    pick = jax.vmap(lambda x, i: x.at[i].get(mode="clip", unique_indices=True))
    pad = lambda x: jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))  # noqa: E731
    return Compact(
        pad(pick(hidden, order)),
        pad(pick(targets, order)),
        jnp.argsort(order, axis=-1),
        read.sum(-1).max().astype(jnp.int32),
    )


def logp_and_entropy(
    hidden: Float[Array, "S N D"],
    unembed: Float[Array, "D V"],
    targets: Int[Array, "S N"],
    read: Bool[Array, "S N"],
    *,
    temperature: Number = 1.0,
    chunk_size: int = 128,
) -> tuple[Float[Array, "S N"], Float[Array, "S N"]]:
    """Log-probabilities and entropies at the positions to read, and at no others.

    The vocabulary is multiplied at `read` positions only, in whole chunks: how many
    there are is data. Shards share the loop, so the one with most sets its length.

    Args:
      hidden: final hidden states of each shard's positions.
      unembed: output weights; read in the dtype of `hidden`.
      targets: the token that each position predicts.
      read: which positions are read.
      temperature: divides the logits; not differentiated.
      chunk_size: positions of a shard whose logits exist at once.

    Returns:
      Log-probabilities of the targets and entropies, as `chunked_logp_and_entropy`;
      0 at every other position.
    """
    size = min(at_least_one(chunk_size), max(hidden.shape[1], 1))
    longer = min(_LONGER, -(-hidden.shape[1] // size))
    some = compact(hidden, targets, read, multiple=size * longer)
    heat = jnp.asarray(temperature, jnp.float32)
    out: Any = _front(
        size, longer, some.hidden, unembed, some.targets, some.count, heat
    )

    def back(x):
        # Other shards and chunks may have read further than this one's.
        return jnp.where(read, jnp.take_along_axis(x, some.back, axis=1), 0.0)

    return back(out[0]), back(out[1])


def top_k(
    hidden: Float[Array, "S N D"],
    unembed: Float[Array, "D V"],
    read: Bool[Array, "S N"],
    *,
    k: int,
    temperature: Number = 1.0,
    chunk_size: int = 128,
) -> tuple[Int[Array, "S N k"], Float[Array, "S N k"], Float[Array, "S N"]]:
    """The likeliest tokens at the positions to read, and the mass of all others.

    Args:
      hidden: see `logp_and_entropy`, as the rest; nothing is differentiated.
      unembed: output weights.
      read: which positions are read.
      k: how many tokens, at most V.
      temperature: divides the logits.
      chunk_size: positions of a shard whose logits exist at once.

    Returns:
      Ids and log-probabilities, the likeliest first, and the log of the mass that
      they leave, summed over the others and not 1 less theirs, which cancels; -inf
      where none is left. Unspecified at other positions.
    """
    if not 1 <= k <= unembed.shape[1]:
        raise ValueError(
            f"k={k} must be from 1 to the {unembed.shape[1]} tokens of the vocabulary"
        )
    size = min(at_least_one(chunk_size), max(hidden.shape[1], 1))
    some = compact(hidden, jnp.zeros(read.shape, jnp.int32), read, multiple=size)
    head = unembed.astype(hidden.dtype)

    def body(i, out):
        logits = head_logits(_slice(some.hidden, start=i * size, size=size), head)
        logits = logits / jnp.asarray(temperature, jnp.float32)
        total = jax.nn.logsumexp(logits, axis=-1)
        best, ids = jax.lax.top_k(logits, k)
        rest = jnp.put_along_axis(logits, ids, -jnp.inf, axis=-1, inplace=False)
        tail = jax.nn.logsumexp(rest, axis=-1) - total
        new = ids, best - total[..., None], tail
        return tuple(map(functools.partial(_put, start=i * size), out, new))

    shape = some.targets.shape
    blank = (
        jnp.zeros((*shape, k), jnp.int32),
        jnp.zeros((*shape, k), jnp.float32),
        jnp.zeros(shape, jnp.float32),
    )
    ids, logp, tail = jax.lax.fori_loop(0, -(-some.count // size), body, blank)
    back = jax.vmap(lambda x, i: x[i])
    return back(ids, some.back), back(logp, some.back), back(tail, some.back)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _front(size, longer, hidden, unembed, targets, count, temperature):
    """`statistics` of the first `count` positions: log-probability and entropy."""
    out = _forward(size, longer, hidden, unembed, targets, count, temperature)
    return out[0]


def _forward(size, longer, hidden, unembed, targets, count, temperature):
    head = unembed.astype(hidden.dtype)

    def body(i, out):
        chunk = functools.partial(_slice, start=i * size, size=size)
        logits = head_logits(chunk(hidden), head)
        logp, total, mean = statistics(logits, chunk(targets), temperature)
        new = logp, total - mean, total
        return tuple(map(functools.partial(_put, start=i * size), out, new))

    zero = jnp.zeros(targets.shape, jnp.float32)
    # The backward pass reads past the end of the loop, where this makes exp() 0.
    blank = zero, zero, jnp.full_like(zero, jnp.inf)
    logp, entropy, total = jax.lax.fori_loop(0, -(-count // size), body, blank)
    kept = hidden, unembed, targets, count, temperature, total
    return (logp, entropy), kept


def _backward(size, longer, kept, cotangents):
    """Gradients of the states and of the head, the logits computed again.

    The outer loop is over blocks of the vocabulary, so that the head's gradient, which
    is larger than any other array here, is written once and not added to in every
    chunk. A block has columns of each sixteenth of the vocabulary: where a mesh cuts
    that axis, all of its devices have a share of every block.
    """
    hidden, unembed, targets, count, temperature, total = kept
    size = size * longer
    slope = cotangents[0] / temperature
    shards, _, width = hidden.shape
    vocab = unembed.shape[1]
    groups, blocks = (_GROUPS, _BLOCKS) if vocab >= _LARGE else (1, 1)
    each = -(-vocab // (groups * blocks))
    padded = jnp.pad(unembed, ((0, 0), (0, groups * blocks * each - vocab)))
    head = padded.astype(hidden.dtype).reshape(width, groups, blocks * each)
    ids = jnp.arange(groups * blocks * each, dtype=jnp.int32).reshape(groups, -1)
    product = functools.partial(
        jnp.einsum, precision=precision(hidden), preferred_element_type=jnp.float32
    )

    def block(j, carry):
        d_hidden, d_head = carry
        part = functools.partial(_slice, start=j * each, size=each)
        weights = jax.lax.dynamic_slice_in_dim(head, j * each, each, 2)
        columns = part(ids)[None, None]

        def chunk(i, carry):
            d_hidden, d_weights = carry
            some = functools.partial(_slice, start=i * size, size=size)
            wide = lambda x: some(x)[..., None, None]  # noqa: E731
            states = some(hidden)
            logits = product("scd,dgv->scgv", states, weights) / temperature
            # Beyond the vocabulary logits are 0, which may be far above those in it:
            # exp() would be inf, and inf times a weight of 0 is nan.
            hit = columns == wide(targets)
            weight = jnp.exp(jnp.where(columns < vocab, logits - wide(total), -jnp.inf))
            slopes = (hit.astype(jnp.float32) - weight) * wide(slope)
            slopes = slopes.astype(hidden.dtype)
            more = some(d_hidden) + product("scgv,dgv->scd", slopes, weights)
            d_hidden = _put(d_hidden, more, start=i * size)
            return d_hidden, d_weights + product("scd,scgv->sdgv", states, slopes)

        zero = jnp.zeros((shards, *weights.shape), jnp.float32)
        d_hidden, d_weights = jax.lax.fori_loop(
            0, -(-count // size), chunk, (d_hidden, zero)
        )
        d_head = jax.lax.dynamic_update_slice_in_dim(
            d_head, d_weights.sum(0), j * each, 2
        )
        return d_hidden, d_head

    zeros = jnp.zeros(hidden.shape, jnp.float32), jnp.zeros(head.shape, jnp.float32)
    d_hidden, d_head = jax.lax.fori_loop(0, blocks, block, zeros)
    d_head = d_head.reshape(width, -1)[:, :vocab]
    return (
        d_hidden.astype(hidden.dtype),
        d_head.astype(unembed.dtype),
        None,
        None,
        jnp.zeros_like(temperature),
    )


_front.defvjp(_forward, _backward)


def _slice(x, *, start, size):
    return jax.lax.dynamic_slice_in_dim(x, start, size, 1)


def _put(x, part, *, start):
    return jax.lax.dynamic_update_slice_in_dim(x, part, start, 1)
