"""Variance of the gradient under dense credit and under outcomes, exactly.

`python -m tests.grpo.dense_tables` prints a table over random policies whose sequences
can be enumerated: groups of eight, first values by leave-one-out, no normalisation.
Rows of a group share no continuations here. No ordering is asserted anywhere.
"""

import argparse
import itertools
from typing import NamedTuple

import numpy as np

from tests.grpo import test_dense_enumeration as enumerated

GROUP = 8
SAMPLES = (1, 2, 4, 8, np.inf)
VARIANTS = ("difference", "return_to_go")


class Moments(NamedTuple):
    """Of one row's gradient: what does not depend on the first value, and its factor.

    With b the mean outcome of the others, a row's gradient is h - b u.
    """

    chance: np.ndarray  # of each sequence
    h: np.ndarray  # [sequences, parameters] with exact values
    u: np.ndarray  # [sequences, parameters]
    noise: np.ndarray  # E|h|^2 added by one continuation of each state
    reward: np.ndarray
    tokens: float  # expected, of a rollout
    continued: float  # expected, of one continuation of each of its states


def moments(policy, variant):
    """Of `difference`, `return_to_go`, or `outcome`."""
    rows = []
    for y, p in policy.sequences:
        states = [y[:t] for t in enumerated.SEGMENT(list(y))]
        edges = [0, *map(len, states), len(y)]
        score = policy.scores(y).reshape(len(y), -1)
        steps = [score[a:b].sum(0) for a, b in itertools.pairwise(edges)]
        reward, values = policy.reward[y], [policy.value(s) for s in states]
        if variant == "outcome":
            h, u, noise, states = reward * sum(steps), sum(steps), 0.0, []
        else:
            after = [*values, reward]
            rest = after if variant == "difference" else [reward] * len(after)
            h = rest[0] * steps[0]
            for j in range(1, len(steps)):
                h = h + (rest[j] - values[j - 1]) * steps[j]
            u, noise = steps[0], 0.0
            for j, state in enumerate(states):
                spread = (
                    sum(q * policy.reward[z] ** 2 for z, q in policy.after(state))
                    - policy.value(state) ** 2
                )
                reads = steps[j + 1] - (steps[j] if variant == "difference" else 0)
                noise += spread * (reads**2).sum()
        going_on = sum(
            sum(q * (len(z) - len(s)) for z, q in policy.after(s)) for s in states
        )
        rows.append((p, h, u, noise, reward, len(y), going_on))
    columns = [np.array(c, float) for c in zip(*rows, strict=True)]
    chance = columns[0]
    return Moments(*columns[:5], float(chance @ columns[5]), float(chance @ columns[6]))


def variance(of, samples):
    """Trace of the covariance of a group's mean gradient."""
    mean = of.chance @ of.reward
    spread = of.chance @ of.reward**2 - mean**2
    first, second = mean, mean**2 + spread / (GROUP - 1)
    square = lambda x: of.chance @ (x**2).sum(-1)
    own = (
        square(of.h)
        + of.chance @ of.noise / samples
        - 2 * first * (of.chance @ (of.h * of.u).sum(-1))
        + second * square(of.u)
        - ((of.chance @ (of.h - first * of.u)) ** 2).sum()
    )
    # Two rows of a group are coupled by their outcomes in each other's first values.
    shared = ((of.chance @ (of.reward[:, None] * of.u)) ** 2).sum() / (GROUP - 1) ** 2
    return own / GROUP + (GROUP - 1) / GROUP * shared


def binary(seed):
    """A random policy whose sequences are right or wrong."""
    policy = enumerated.Policy(seed)
    rng = np.random.default_rng([seed, 1])
    policy.reward = {y: float(rng.integers(2)) for y, _ in policy.sequences}
    return policy


def ratios(seed):
    """`{(variant, K): (per update, per token)}` of dense over outcome variance."""
    policy = binary(seed)
    plain = moments(policy, "outcome")
    base = variance(plain, np.inf)
    found = {}
    for name in VARIANTS if base > 0 else ():
        of = moments(policy, name)
        for samples in SAMPLES:
            ratio = variance(of, samples) / base
            # Exact values are had for nothing: their cost is that of no sampling.
            more = of.continued * samples if np.isfinite(samples) else 0.0
            found[name, samples] = ratio, ratio * (1 + more / of.tokens)
    return found


def table(policies):
    """Returns the lines of the table."""
    found = [r for r in map(ratios, range(policies)) if r]
    lines = [
        f"{len(found)} policies, G = {GROUP}: variance of dense over outcome gradients",
        f"{'variant':14}{'K':>5}{'median':>10}{'above 1':>10}"
        f"{'per token':>12}{'above 1':>10}",
    ]
    for name in VARIANTS:
        for samples in SAMPLES:
            update, token = np.array([r[name, samples] for r in found]).T
            lines.append(
                f"{name:14}{samples:5.0f}{np.median(update):10.3f}"
                f"{(update > 1 + 1e-9).mean():10.1%}{np.median(token):12.3f}"
                f"{(token > 1 + 1e-9).mean():10.1%}"
            )
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policies", type=int, default=300)
    print(*table(parser.parse_args().policies), sep="\n")
