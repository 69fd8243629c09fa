"""Work cut into parts of one shape, so that one program serves any amount of it."""

from collections.abc import Iterator, Sequence

import numpy as np

from grpo_jax import rollout
from grpo_jax.base import Forks


def parts(
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    width: int,
    rows: int,
    first: int,
) -> Iterator[rollout.Requests]:
    """The requests in calls of one shape; the last is padded with empty rows."""
    for i in range(0, len(prompts), rows):
        yield rollout.requests(
            prompts[i : i + rows],
            width=width,
            limits=limits[i : i + rows],
            rows=rows,
            first=first + i,
        )


def prefixes(
    forks: Forks, *, width: int, limit: int
) -> tuple[list[list[int]], list[int], int]:
    """Forks as prompts: what is kept of each row, and what its limit had left.

    Args:
      forks: rows of a rollout and the tokens to keep of each.
      width: columns of the rollout's prompts.
      limit: the most tokens that the rollout could sample after its prompt.

    Returns:
      Prefixes, limits, and the columns that prefixes are padded to.
    """
    tokens = np.asarray(forks.rollout.tokens)
    start = np.asarray(forks.rollout.prompt_length)
    pairs = list(zip(forks.rows, forks.positions, strict=True))
    kept = [tokens[row, :position].tolist() for row, position in pairs]
    left = [int(start[row]) + limit - position for row, position in pairs]
    return kept, left, width + limit
