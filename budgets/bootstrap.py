"""The paired bootstrap of two arms on the same problems, crossed over seeds."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_CELLS = 2**21  # indices held at a time


class Interval(NamedTuple):
    """A paired difference with its bootstrap.

    Attributes:
      difference: mean of one arm less that of the other.
      low: 2.5th percentile of the resampled differences.
      high: 97.5th percentile.
      p: one-sided, small where the first arm is better.
    """

    difference: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    a: ArrayLike, b: ArrayLike, *, num_draws: int = 10_000, seed: int = 0
) -> Interval:
    """Returns mean `a` less mean `b` with a 95 % percentile interval.

    A draw resamples the seeds and, apart from them, one set of problems that every seed
    and both arms share: crossed, since a hard problem is hard for every seed and a
    resample nested in each seed would take that for noise. With one seed the interval
    is for that seed; with one problem it has no width, and means nothing.

    Args:
      a: scores `[S, M, N]` of S seeds, M problems, N samples; or `[M, N]` of one seed.
      b: the same seeds and problems in the same order; N may differ.
      num_draws: resamples.
      seed: of the resampling; the result is a function of it and the scores.

    Returns:
      The interval; p = (1 + #{resampled difference <= 0}) / (num_draws + 1).
    """
    left, right = _scores(a), _scores(b)
    if left.shape[:2] != right.shape[:2]:
        raise ValueError(
            f"paired_bootstrap: {left.shape[:2]} and {right.shape[:2]} seeds and"
            " problems cannot be paired; score both arms on the same ones, in order"
        )
    if num_draws < 1:
        raise ValueError(f"paired_bootstrap: {num_draws=} must be at least 1")
    # Right answers times the other arm's N: whole numbers, so that sums are exact and
    # a difference of 0 is 0, which p counts.
    gains = left.sum(axis=2) * right.shape[2] - right.sum(axis=2) * left.shape[2]
    scale = gains.size * left.shape[2] * right.shape[2]
    sums = np.concatenate(list(_resampled_sums(gains, num_draws, seed)))
    low, high = np.percentile(sums, [2.5, 97.5]) / scale
    p = (1 + int((sums <= 0).sum())) / (num_draws + 1)
    return Interval(float(gains.sum() / scale), float(low), float(high), p)


def _resampled_sums(
    gains: np.ndarray, num_draws: int, seed: int
) -> Iterator[np.ndarray]:
    """Yields sums over resampled seeds and problems of `[S, M]`, many at a time."""
    num_seeds, num_problems = gains.shape
    of_seeds, of_problems = map(np.random.default_rng, ([seed, 0], [seed, 1]))
    most = max(_CELLS // max(gains.shape), 1)
    for first in range(0, num_draws, most):
        size = min(most, num_draws - first)
        problems = _counts(of_problems, size, num_problems) @ gains.T
        yield (_counts(of_seeds, size, num_seeds) * problems).sum(axis=1)


def _counts(rng: np.random.Generator, size: int, length: int) -> np.ndarray:
    """`[size, length]` how often each index is among `length` drawn of `length`."""
    drawn = rng.integers(length, size=(size, length))
    places = drawn + np.arange(size)[:, None] * length
    counts = np.bincount(places.ravel(), minlength=size * length)
    return counts.reshape(size, length).astype(float)


def _scores(scores: ArrayLike) -> np.ndarray:
    """Checks the shape and adds the axis of seeds where there is none."""
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim not in (2, 3) or not found.size:
        raise ValueError(
            f"{found.shape=} must be [seeds, problems, samples] or [problems, samples],"
            " none of them empty"
        )
    if not np.isfinite(found).all():
        raise ValueError("scores hold a value that is not finite; each must be a score")
    return found if found.ndim == 3 else found[None]
