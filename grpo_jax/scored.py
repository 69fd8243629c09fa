"""Choosing prompts by the pass rate of scoring samples, which are charged like all.

The filter and its control differ in one function: both draw the same candidates and
score them with the same keys.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

import jax
import numpy as np

from budgets.ledger import Phase
from grpo_jax import keys, several
from grpo_jax.base import Key, Picked, Weights
from grpo_jax.selection import Selector, no_state, unmoved

# (passes of each candidate, samples of each, how many to keep, key) -> their numbers.
Choose: TypeAlias = Callable[[np.ndarray, int, int, Key], np.ndarray]


def filtered(
    prompts_per_update: int,
    *,
    candidates: int = 4,
    scoring_samples: int = 4,
    target: float = 0.5,
    reused_in: int = 0,
) -> Selector:
    """Keeps the candidates whose pass rate is nearest a target (arXiv 2611.13560).

    Rates as near as each other are put in a random order: with four samples and a
    target of 1/4, rates of 0 and 1/2 are.

    Args:
      prompts_per_update: B.
      candidates: prompts drawn from the pool, in units of B.
      scoring_samples: of each candidate.
      target: wanted pass rate.
      reused_in: size of the groups whose first samples are the scoring samples, which
        the choice biases; 0 samples all of a group anew.
    """
    wanted = Fraction(str(target))

    def nearest(passes, samples, keep, key):
        order = np.asarray(jax.random.permutation(key, len(passes)))
        # Exact: rates as near as each other must be equal, not almost.
        gap = {n: abs(Fraction(n, samples) - wanted) for n in set(passes.tolist())}
        ranked = sorted(order.tolist(), key=lambda i: gap[int(passes[i])])
        return np.sort(np.array(ranked[:keep]))

    return _choosing(
        nearest, prompts_per_update, candidates, scoring_samples, reused_in
    )


def at_random(
    prompts_per_update: int,
    *,
    candidates: int = 4,
    scoring_samples: int = 4,
    reused_in: int = 0,
) -> Selector:
    """Scores as `filtered` does and keeps any candidates: its control."""

    def any_of(passes, samples, keep, key):
        del samples
        order = np.asarray(jax.random.permutation(key, len(passes)))
        return np.sort(order[:keep])

    return _choosing(any_of, prompts_per_update, candidates, scoring_samples, reused_in)


def _choosing(
    choose: Choose,
    prompts_per_update: int,
    candidates: int,
    scoring_samples: int,
    reused_in: int,
) -> Selector:
    """Scores candidates and keeps those that `choose` names, in the order drawn."""
    if 0 < reused_in < scoring_samples:
        raise ValueError(
            f"scoring_samples={scoring_samples} exceed the group of {reused_in} that"
            " reuses them; score with fewer"
        )

    def select(services, params, selection, pool, key):
        drawn = pool.draw(candidates * prompts_per_update)
        rollout = services.sample(
            Weights(params),
            drawn,
            num_samples=scoring_samples,
            phase=Phase.CANDIDATE,
            key=keys.index(key, 0),
        )
        feedback = services.verify(rollout, drawn, phase=Phase.CANDIDATE)
        passes = feedback.reward.reshape(-1, scoring_samples).sum(axis=1).astype(int)
        chosen = choose(passes, scoring_samples, prompts_per_update, keys.index(key, 1))
        prompts = tuple(drawn[i] for i in chosen)
        if not reused_in:
            return Picked(prompts), selection
        rows = chosen[:, None] * scoring_samples + np.arange(scoring_samples)
        group = several.take(rollout, rows.ravel())
        if reused_in > scoring_samples:
            rest = services.sample(
                Weights(params),
                prompts,
                num_samples=reused_in - scoring_samples,
                phase=Phase.ROLLOUT,
                key=keys.index(key, 2),
            )
            group = several.beside(group, rest, len(prompts))
        return Picked(prompts, group), selection

    return Selector(no_state, select, unmoved)
