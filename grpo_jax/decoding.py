"""What sampling runs on the devices, as pure functions: chunks of decode steps, and
the moves of rows between caches.
"""

import functools
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from grpo_jax import chunked, keys, sampling, truncation
from grpo_jax.base import Functions, Params

Option: TypeAlias = float | int | np.generic | jax.Array
Cache: TypeAlias = Any

IDLE = 2**30  # a position beyond every cache
CHUNK = 128  # most decode steps between two looks of the host


class Decoding(NamedTuple):
    """How a token is drawn from logits; traced values, so a change compiles nothing.

    Attributes:
      temperature: divides the logits; positive.
      top_k: how many tokens to keep; 0 keeps all.
      top_p: cumulative probability to keep; 1 keeps all.
      min_p: least probability relative to the likeliest token; 0 keeps all.
    """

    temperature: Option = 1.0
    top_k: Option = 0
    top_p: Option = 1.0
    min_p: Option = 0.0


class Occupied(NamedTuple):
    """What the slots hold, an entry each; lives on the host.

    Attributes:
      token: `[S] int32` the last token of the sequence, not yet in the cache.
      length: `[S] int32` tokens so far.
      limit: `[S] int32` length that ends the sequence.
      live: `[S] bool` whether it is still decoded.
      prompt: `[S] int32` its prompt's coordinate in every key.
      sample: `[S] int32` its own.
    """

    token: np.ndarray
    length: np.ndarray
    limit: np.ndarray
    live: np.ndarray
    prompt: np.ndarray
    sample: np.ndarray


class Drawn(NamedTuple):
    """What a chunk of steps drew.

    Attributes:
      tokens: `[S, CHUNK] int32`.
      logp: `[S, CHUNK] float32` in nats, of the distribution really sampled.
      count: `[S] int32` how many of them, from the left.
      steps: `[] int32` decode steps of the chunk.
    """

    tokens: jax.Array
    logp: jax.Array
    count: jax.Array
    steps: jax.Array


def advance(
    functions: Functions,
    layout: Params,
    cache: Cache,
    held: Occupied,
    stop_ids: Int[Array, "K"],
    how: Decoding,
    key: Key[Array, ""],
    patience: Int[Array, ""],
    alike: Int[Array, ""],
    *,
    group: int,
) -> tuple[Cache, Drawn]:
    """Decodes every live slot, until enough of them ended or the chunk is full.

    A sequence's draws depend on (key, prompt, sample, position) and its own tokens.

    Args:
      functions: the model.
      layout: its parameters, of `functions.decode_layout`.
      cache: consumed.
      held: what the slots hold.
      stop_ids: any of these ends a sequence and is kept in it.
      how: temperature and truncation.
      key: consumed.
      patience: how many sequences may end before the chunk does.
      alike: positions that each group of slots has in common.
      group: neighbouring slots that may have a prefix in common.
    """
    decode = functions.decode
    if group > 1 and functions.decode_alike is not None:
        decode = functools.partial(functions.decode_alike, group=group, columns=alike)
    head = functions.unembed(layout)
    keys_b = keys.per_sequence(key, jnp.asarray(held.prompt), jnp.asarray(held.sample))
    start, rows = jnp.asarray(held.length), jnp.arange(held.length.shape[0])

    def draw(hidden, length):
        logits = chunked.head_logits(hidden.astype(head.dtype), head)
        # The options have no batch axis, so the branch inside stays a branch.
        shaped = jax.vmap(lambda row: truncation.policy_logits(row, **how._asdict()))
        return sampling.draw(keys.per_position(keys_b, length), shaped(logits))

    def body(state):
        step, cache, last, length, live, tokens, logp = state
        # A finished row is idle: beyond the cache nothing is written or reached.
        at = jnp.where(live, length - 1, IDLE)
        hidden, cache = decode(layout, last, at, cache)
        drawn, lp = draw(hidden, length)
        column = jnp.where(live, length - start, CHUNK)
        tokens = tokens.at[rows, column].set(drawn, mode="drop")
        logp = logp.at[rows, column].set(lp, mode="drop")
        length = length + live
        ends = (drawn[:, None] == stop_ids[None]).any(-1) | (length >= held.limit)
        return step + 1, cache, drawn, length, live & ~ends, tokens, logp

    first = jnp.asarray(held.live)

    def goes_on(state):
        step, live = state[0], state[4]
        return (step < CHUNK) & live.any() & ((first & ~live).sum() < patience)

    blank = jnp.zeros((rows.shape[0], CHUNK))
    state = (0, cache, jnp.asarray(held.token), start, first)
    state = (*state, blank.astype(jnp.int32), blank.astype(jnp.float32))
    steps, cache, _, length, _, tokens, logp = jax.lax.while_loop(goes_on, body, state)
    return cache, Drawn(tokens, logp, length - start, jnp.asarray(steps, jnp.int32))


def copy_rows(
    target: Cache,
    source: Cache,
    to: Int[Array, "D M"],
    of: Int[Array, "D M"],
    count: Int[Array, "D"],
    *,
    whole_source: bool,
) -> Cache:
    """Copies rows between caches of as many columns: shard by shard, in place.

    Args:
      target: consumed; its rows are cut into D shards.
      source: its rows are cut likewise, or not at all.
      to: rows of the target's shard.
      of: rows of the source's shard, or of all of it.
      count: how many are copied in each shard.
      whole_source: True if the source is not cut.
    """
    shards, most = to.shape[0], count.max()

    def one(into, given, to, of, count):
        def move(i, into):
            # In lockstep with a shard that moves more, this one writes nowhere.
            at = jnp.where(i < count, to[i], jnp.iinfo(jnp.int32).max)
            return jax.tree.map(
                lambda x, y: x.at[at].set(y[of[i]], mode="drop"), into, given
            )

        return jax.lax.fori_loop(0, most, move, into)

    if shards == 1:
        return one(target, source, to[0], of[0], count[0])
    apart = lambda x: x.reshape((shards, -1, *x.shape[1:]))  # noqa: E731
    given = source if whole_source else jax.tree.map(apart, source)
    lifted = jax.vmap(one, in_axes=(0, None if whole_source else 0, 0, 0, 0))
    moved = lifted(jax.tree.map(apart, target), given, to, of, count)
    return jax.tree.map(lambda x, like: x.reshape(like.shape), moved, target)
