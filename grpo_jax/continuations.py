"""Values of the states between the steps of an answer, by sampling on from them.

This is what dense credit pays for. It runs on the host and reaches the engine through
the services alone, so that every continuation is on the ledger.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from budgets.ledger import Phase
from grpo_jax.base import Forks, Key, Params, Problem, Rollout, Services, Weights

# The token at which each step but the first begins, counted in a completion's own.
Segment: TypeAlias = Callable[[Sequence[int]], Sequence[int]]


class Steps(NamedTuple):
    """Where the steps of a rollout's completions end.

    Attributes:
      ends: of each row, the column after each of its steps; the last is its length.
      start: `[B]` column of the first sampled token.
    """

    ends: list[list[int]]
    start: np.ndarray

    @property
    def count(self) -> np.ndarray:
        """`[B]` steps of each row."""
        return np.array([len(row) for row in self.ends])


def steps(rollout: Rollout, segment: Segment) -> Steps:
    """Cuts every completion into steps, from its sampled ids."""
    tokens, start = np.asarray(rollout.tokens), np.asarray(rollout.prompt_length)
    ends = [
        [*(first + int(b) for b in segment(row[first:last].tolist())), int(last)]
        for row, first, last in zip(
            tokens, start.tolist(), np.asarray(rollout.length).tolist(), strict=True
        )
    ]
    return Steps(ends, start)


def after(
    services: Services,
    params: Params,
    rollout: Rollout,
    prompts: Sequence[Problem],
    key: Key,
    *,
    at: Steps,
    continuations: int,
) -> list[list[float]]:
    """Returns the value of the state after each step but the last, of every row.

    A value is the share of `continuations` from there that the verifier accepts, each
    graded as a rollout would be: with the steps before it, and as it stands where the
    limit of its rollout cut it. See "VinePPO" by Kazemnejad et al.
    (https://arxiv.org/abs/2410.01679). States that several rows of a problem
    share are sampled from once.

    Args:
      services: sample and verify.
      params: of the policy that sampled `rollout`.
      rollout: kept, so that its caches are continued; else its prefixes are read again.
      prompts: its problems; rows are prompt-major.
      key: consumed.
      at: of `steps`.
      continuations: K of each state.
    """
    group = len(at.ends) // len(prompts)
    tokens = np.asarray(rollout.tokens)
    places: dict[tuple[str, bytes], int] = {}
    rows, positions, of = [], [], []
    for row, ends in enumerate(at.ends):
        mine = []
        for end in ends[:-1]:
            name = prompts[row // group].id, tokens[row, :end].tobytes()
            if name not in places:
                places[name] = len(rows)
                rows.append(row)
                positions.append(end)
            mine.append(places[name])
        of.append(mine)
    if not rows:
        return [[] for _ in at.ends]
    sampled = services.sample(
        Weights(params),
        Forks(rollout, rows, positions),
        num_samples=continuations,
        phase=Phase.CONTINUATION,
        key=key,
    )
    start = np.repeat(at.start[rows], continuations)
    graded = services.verify(
        _from(sampled, start),
        [prompts[row // group] for row in rows],
        phase=Phase.CONTINUATION,
    )
    values = graded.reward.reshape(-1, continuations).mean(axis=1)
    return [[float(values[place]) for place in mine] for mine in of]


def _from(rollout: Rollout, start: np.ndarray) -> Rollout:
    """The same sequences, read as sampled from `start`: whole answers."""
    column = np.arange(rollout.tokens.shape[1])[None]
    length = np.asarray(rollout.length)[:, None]
    whole = (column >= start[:, None]) & (column < length)
    return dataclasses.replace(
        rollout,
        sampled=whole,  # pyright: ignore
        prompt_length=start.astype(np.int32),  # pyright: ignore
    )


def fresh(
    services: Services,
    params: Params,
    prompts: Sequence[Problem],
    key: Key,
    *,
    group_size: int,
    samples: int,
) -> np.ndarray:
    """Returns the value of each row's start, `[B]`, from samples of their own.

    Args:
      services: sample and verify; the samples are charged as continuations.
      params: the policy.
      prompts: P problems.
      key: consumed.
      group_size: rows of each problem.
      samples: of each problem.
    """
    sampled = services.sample(
        Weights(params),
        prompts,
        num_samples=samples,
        phase=Phase.CONTINUATION,
        key=key,
    )
    graded = services.verify(sampled, prompts, phase=Phase.CONTINUATION)
    return np.repeat(graded.reward.reshape(-1, samples).mean(axis=1), group_size)


def leave_one_out(rewards: np.ndarray, group_size: int) -> np.ndarray:
    """Returns the mean reward of the others in each row's group, `[B]`."""
    groups = rewards.reshape(-1, group_size)
    others = groups.sum(axis=1, keepdims=True) - groups
    return (others / (group_size - 1)).reshape(-1)


def table(
    start: np.ndarray,
    between: Sequence[Sequence[float]],
    end: np.ndarray,
    *,
    max_steps: int,
) -> np.ndarray:
    """Returns `[B, S + 1]` values: before the first step, after each, the outcome.

    S is `max_steps` always, so that another number of steps compiles nothing; behind
    its own a row repeats its outcome.
    """
    rows = zip(start, between, end, strict=True)
    filled = [
        [first, *inner, *[last] * (max_steps - len(inner))]
        for first, inner, last in rows
    ]
    return np.array(filled, np.float32)


def over_tokens(at: Steps, advantages: np.ndarray, columns: int) -> np.ndarray:
    """Returns `[B, T]`: the advantage `[B, S]` of its step on every sampled token."""
    out = np.zeros((len(at.ends), columns), np.float32)
    for row, ends in enumerate(at.ends):
        starts = [int(at.start[row]), *ends[:-1]]
        for step, (first, last) in enumerate(zip(starts, ends, strict=True)):
            out[row, first:last] = advantages[row, step]
    return out
