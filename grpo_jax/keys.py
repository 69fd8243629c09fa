"""Random keys by coordinates: the one place that calls `fold_in`.

A key is a function of (seed, stream, update, prompt, sample, position), so a resumed
run draws what the interrupted one would have drawn, and no key is ever stored.
`fold_in` does not consume its argument, so JAX's reuse checker cannot see a repeated
coordinate; keeping every call here is what makes repeats visible.
"""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key


class Stream(enum.IntEnum):
    """Independent uses of randomness within one update."""

    INIT = 0
    SELECT = 1
    ROLLOUT = 2
    CREDIT = 3
    SHUFFLE = 4
    EVALUATE = 5
    PRETRAIN = 6


def root(seed: int) -> Key[Array, ""]:
    """Returns the key that every other key of a run is folded from."""
    return jax.random.key(seed)


def at(
    root: Key[Array, ""], stream: Stream, update: int | Int[Array, ""] = 0
) -> Key[Array, ""]:
    """Returns the key of one stream at one update."""
    return jax.random.fold_in(jax.random.fold_in(root, stream), update)


def index(key: Key[Array, ""], number: int | Int[Array, ""]) -> Key[Array, ""]:
    """Returns the key of one numbered part of a stream: an epoch, a chunk."""
    return jax.random.fold_in(key, number)


def per_sequence(
    key: Key[Array, ""], prompts: Int[Array, "B"], samples: Int[Array, "B"]
) -> Key[Array, "B"]:
    """Returns one key per sequence, from its prompt's and its sample's number."""
    fold = lambda p, s: jax.random.fold_in(jax.random.fold_in(key, p), s)  # noqa: E731
    return jax.vmap(fold)(prompts, samples)


def per_position(
    keys_b: Key[Array, "B"], positions: Int[Array, "B"]
) -> Key[Array, "B"]:
    """Returns the key of one token position of each sequence."""
    return jax.vmap(jax.random.fold_in)(keys_b, positions)


def numbers(count: int) -> Int[Array, "count"]:
    """Returns 0, 1, ..., count - 1 as coordinates."""
    return jnp.arange(count, dtype=jnp.int32)
