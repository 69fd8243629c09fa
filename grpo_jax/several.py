"""Rows of rollouts put together, on the host: a new number of rows compiles nothing."""

from collections.abc import Sequence

import jax
import numpy as np

from grpo_jax.base import Rollout


def take(rollout: Rollout, rows: np.ndarray) -> Rollout:
    """Returns some rows of a rollout, in the order given."""
    return jax.device_put(jax.tree.map(lambda x: np.asarray(x)[rows], rollout))


def join(rollouts: Sequence[Rollout]) -> Rollout:
    """Returns the rows of one rollout after those of the other; all have the same T."""
    columns = {rollout.tokens.shape[1] for rollout in rollouts}
    if len(columns) != 1:
        raise ValueError(
            f"rollouts of {sorted(columns)} columns cannot be joined; sample them with"
            " one sampler"
        )
    whole = jax.tree.map(lambda *x: np.concatenate(list(map(np.asarray, x))), *rollouts)
    return jax.device_put(whole)


def beside(left: Rollout, right: Rollout, groups: int) -> Rollout:
    """Returns prompt-major rows: of each group those of `left`, then of `right`."""
    sizes = [x.tokens.shape[0] // groups for x in (left, right)]
    order = [
        np.arange(groups)[:, None] * size + np.arange(size) + first
        for size, first in zip(sizes, (0, left.tokens.shape[0]), strict=True)
    ]
    return take(join([left, right]), np.concatenate(order, axis=1).ravel())
