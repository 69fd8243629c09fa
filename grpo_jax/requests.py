"""What sampling is asked for, and what it gives back; on the host."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from budgets import flops
from budgets.ledger import Cost
from grpo_jax.base import Rollout
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


def cost_of(
    shape: flops.ModelShape,
    asked: Sequence[Request],
    out: Rollout,
    num_samples: int,
) -> Cost:
    """Returns what sampling came to: a prefix that a cache held is not read again."""
    new = (np.asarray(out.length) - np.asarray(out.prompt_length)).tolist()
    prefixes = [len(r.prefix) for r in asked]
    read = [r for r in asked[::num_samples] if r.parent is None and r.limit > 0]
    spent = flops.prefill(shape, [len(r.prefix) for r in read])
    for r, n, prefix in zip(asked, new, prefixes, strict=True):
        forked = r.parent is not None
        spent += (flops.forked if forked else flops.decode)(shape, [prefix], [n])
    return Cost(
        generated=sum(new),
        prefilled=sum(len(r.prefix) for r in read),
        sequences=len(new),
        flops=spent,
    )
