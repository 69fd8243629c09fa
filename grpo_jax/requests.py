"""What sampling is asked for, and what it gives back; on the host."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_jax.decoding import Cache


class Request(NamedTuple):
    """One sequence to sample.

    Attributes:
      row: where it goes in the result.
      prefix: ids that it begins with; at least one.
      limit: most tokens to sample; 0 samples nothing.
      prompt: coordinate of its prompt in every key.
      sample: its own.
      parent: row of the kept rollout whose cache holds the prefix; None prefills it.
    """

    row: int
    prefix: Sequence[int]
    limit: int
    prompt: int
    sample: int
    parent: int | None = None


class Kept(NamedTuple):
    """Caches of a rollout's sequences.

    Attributes:
      cache: rows of the shards, one after another.
      place: `row -> (shard, row within it)` of the sequences that are there.
    """

    cache: Cache
    place: dict[int, tuple[int, int]]


class Result(NamedTuple):
    """What was sampled.

    Attributes:
      tokens: new ids of each row.
      logp: their log-probabilities in nats.
      kept: caches, if they were asked for.
      cache: of the slots, for the next call; None if none was needed.
      slot_steps: decode steps times slots, idle ones included.
    """

    tokens: dict[int, list[int]]
    logp: dict[int, list[float]]
    kept: Kept | None
    cache: Cache | None
    slot_steps: int
