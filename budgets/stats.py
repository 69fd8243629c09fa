"""Accuracy of sampled answers, with what is known about its error.

Scores are kept per problem and sample, `correct[M, N]` of M problems with N samples
each, True where the answer is right; comparisons are paired by problem.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from budgets.bootstrap import Interval as Interval
from budgets.bootstrap import paired_bootstrap as paired_bootstrap
from budgets.votes import majority_at_k as majority_at_k


class Errors(NamedTuple):
    """The two standard errors of a mean accuracy; None where there is no estimate.

    Attributes:
      over_problems: for other problems of the same kind; needs two problems.
      of_sampling: for other samples on the same problems; needs two samples.
    """

    over_problems: float | None
    of_sampling: float | None


class Group(NamedTuple):
    """The accuracy of some of the problems.

    Attributes:
      num_problems: how many they are.
      mean: avg@N.
      errors: of the mean.
    """

    num_problems: int
    mean: float
    errors: Errors


class Difference(NamedTuple):
    """A paired difference and its standard error over problems, None for one."""

    difference: float
    standard_error: float | None


def mean_at_n(correct: ArrayLike) -> float:
    """Returns avg@N: the share of right answers among all samples.

    Args:
      correct: `[M, N]`.
    """
    return float(_scores(correct).mean())


def pass_at_k(correct: ArrayLike, k: int) -> float:
    """Returns the chance that k of the samples hold a right one, without bias.

    See "Evaluating Large Language Models Trained on Code" by Chen et al.
    (https://arxiv.org/abs/2107.03374), eq. 1: 1 - C(N - c, k) / C(N, k) for a problem
    with c of N right, averaged over problems.

    Args:
      correct: `[M, N]`.
      k: samples drawn without replacement, from 1 to N.
    """
    scores = _scores(correct)
    num_samples = scores.shape[1]
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass_at_k: {k=} must be from 1 to the {num_samples} samples")
    wrong = num_samples - scores.sum(axis=1).astype(int)
    missed = [math.comb(int(w), k) / math.comb(num_samples, k) for w in wrong]
    return float(1 - np.mean(missed))


def standard_errors(correct: ArrayLike) -> Errors:
    """Returns both standard errors of `mean_at_n`.

    With p the share of right samples of a problem: sd(p) / sqrt(M) over problems, and
    sqrt(sum p (1 - p) / (N - 1)) / M of sampling.

    Args:
      correct: `[M, N]`.
    """
    scores = _scores(correct)
    num_problems, num_samples = scores.shape
    p = scores.mean(axis=1)
    within = None
    if num_samples > 1:
        within = math.sqrt((p * (1 - p)).sum() / (num_samples - 1)) / num_problems
    return Errors(_error_of_mean(p), within)


def per_group(correct: ArrayLike, groups: Sequence[str]) -> dict[str, Group]:
    """Returns the accuracy of each group of problems, by name in sorted order.

    Args:
      correct: `[M, N]`.
      groups: the group of each problem, such as its level.
    """
    scores = _scores(correct)
    if len(groups) != len(scores):
        raise ValueError(
            f"per_group: {len(groups)} groups for {len(scores)} problems; name the"
            " group of every problem"
        )
    names = np.array(groups, object)
    return {
        name: Group(len(some), mean_at_n(some), standard_errors(some))
        for name in sorted(set(groups))
        for some in [scores[names == name]]
    }


def paired_difference(a: ArrayLike, b: ArrayLike) -> Difference:
    """Returns the accuracy of `a` less that of `b` on the same problems.

    Args:
      a: `[M, N]`.
      b: `[M, N]`; row i is the problem of row i of `a`. The number of samples may
        differ.
    """
    left, right = _scores(a), _scores(b)
    if len(left) != len(right):
        raise ValueError(
            f"paired_difference: {len(left)} and {len(right)} problems cannot be"
            " paired; evaluate both on the same problems, in the same order"
        )
    differences = left.mean(axis=1) - right.mean(axis=1)
    return Difference(float(differences.mean()), _error_of_mean(differences))


def smallest_detectable(standard_error: float, *, alpha: float = 0.05) -> float:
    """Returns the true difference that a study would find four times in five.

    (z of 1 - alpha / 2, plus 0.84) times the standard error. With that of one accuracy,
    all that is known before a study, it is a lower bound: a difference of two, over
    seeds, is known less well unless the pairing takes most of it away.

    Args:
      standard_error: of the accuracy of the base.
      alpha: level of the two-sided test.
    """
    return (NormalDist().inv_cdf(1 - alpha / 2) + 0.84) * standard_error


def _error_of_mean(values: np.ndarray) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _scores(correct: ArrayLike) -> np.ndarray:
    """Checks the shape; float64, so that means and sums are exact enough."""
    scores = np.asarray(correct, dtype=np.float64)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"{scores.shape=} must be [problems, samples], neither empty")
    return scores
