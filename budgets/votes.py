"""Majority votes among sampled answers, by an equality that the caller gives.

The equality is called once per pair of distinct texts at most, and its outcome is kept
in `Votes`, from which every k is read.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np

Equal: TypeAlias = Callable[[str, str], bool]  # (an answer, what it is compared with)
SUBSETS = 1_000  # subsets of size k that are looked at, at most


class Votes(NamedTuple):
    """The answers of M problems, as classes of equal ones.

    Attributes:
      classes: `[M, N] int` the class of each answer, -1 where there is none.
      right: `[M, N] bool` whether class c of a problem equals its gold answer; False
        where the problem has no class c.
    """

    classes: np.ndarray
    right: np.ndarray


def count(
    answers: Sequence[Sequence[str | None]], gold: Sequence[str], *, equal: Equal
) -> Votes:
    """Sorts answers into classes and compares each class with the gold answer.

    An answer joins the first class whose first member it equals, and a class is right
    if its first member is. So the order of samples decides where the equality is not
    transitive; where it is, it decides nothing.

    Args:
      answers: M lists of N extracted answers, None where none could be read.
      gold: M answers.
      equal: the grader's; taken to hold between identical texts.
    """
    lengths = {len(row) for row in answers}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"answers: {len(answers)} problems with {sorted(lengths)} samples; a vote"
            " needs a problem, and as many samples of each as of the others"
        )
    if len(answers) != len(gold):
        raise ValueError(
            f"answers: {len(answers)} problems and {len(gold)} gold answers; give one"
            " gold answer per problem"
        )
    shape = len(answers), lengths.pop()
    votes = Votes(np.full(shape, -1), np.zeros(shape, bool))
    for i, row in enumerate(answers):
        firsts: list[str] = []
        found: dict[str | None, int] = {None: -1}
        for text in row:
            if text is not None and text not in found:
                same = (c for c, first in enumerate(firsts) if equal(text, first))
                found[text] = next(same, len(firsts))
                if found[text] == len(firsts):
                    firsts.append(text)
        votes.classes[i] = [found[text] for text in row]
        votes.right[i, : len(firsts)] = [equal(first, gold[i]) for first in firsts]
    return votes


def majority(votes: Votes, k: int, *, seed: int = 0) -> float:
    """Returns maj@k: the chance that most of k answers are right.

    Of k answers drawn without replacement, those that could be read vote. Classes with
    the most votes share the outcome equally; without a vote it is 0.

    Args:
      votes: from `count`.
      k: from 1 to N. Where there are more than 1,000 subsets of size k, 1,000 random
        ones stand for them, keyed by `seed` and the problem's place; else each subset
        is counted once, which is their expectation.
      seed: of the random subsets.
    """
    size = votes.classes.shape[1]
    if not 1 <= k <= size:
        raise ValueError(f"majority: {k=} must be from 1 to the {size} samples")
    every = _every_subset(size, k) if math.comb(size, k) <= SUBSETS else None
    values = []
    for i, (classes, right) in enumerate(zip(*votes, strict=True)):
        members = _random_subsets(size, k, [seed, i]) if every is None else every
        # [subset, class]; an answer that could not be read is in no class.
        ballots = members.astype(float) @ (classes[:, None] == np.arange(size))
        most = ballots.max(axis=1, keepdims=True)
        winners = (ballots == most) & (most > 0)
        shares = (winners & right).sum(axis=1) / np.maximum(winners.sum(axis=1), 1)
        values.append(shares.mean())
    return float(np.mean(values))


def majority_at_k(
    answers: Sequence[Sequence[str | None]],
    gold: Sequence[str],
    k: int,
    *,
    equal: Equal,
    seed: int = 0,
) -> float:
    """Returns maj@k of answers; `count` once and `majority` often, for several k."""
    return majority(count(answers, gold, equal=equal), k, seed=seed)


def _every_subset(size: int, k: int) -> np.ndarray:
    members = np.zeros((math.comb(size, k), size), bool)
    for row, chosen in zip(members, combinations(range(size), k), strict=True):
        row[list(chosen)] = True
    return members


def _random_subsets(size: int, k: int, seed: list[int]) -> np.ndarray:
    """The places below k of random permutations."""
    draws = np.random.default_rng(seed).random((SUBSETS, size))
    return draws.argsort(axis=1) < k
