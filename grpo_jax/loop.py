"""The one training loop. It knows the order of the stages and nothing else.

Saving, evaluating, printing and plotting belong to the caller, between two yields.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from grpo_jax import keys
from grpo_jax.base import (
    Batch,
    Feedback,
    Key,
    Method,
    Params,
    Pool,
    Problem,
    Selection,
    Services,
    TrainState,
)
from grpo_jax.selection import NoVariance

# Takes the optimiser steps of one update: (state, batch, frozen, key).
Learn: TypeAlias = Callable[
    [TrainState, Batch, Params, Key], tuple[TrainState, dict[str, float | None]]
]


@runtime_checkable
class Account(Protocol):
    """What the loop asks of the metering: `meter.Meter`."""

    def begin(self, update: int) -> None:
        """Names the update that the next charges belong to."""
        ...

    def ends_on_sampling(self) -> bool:
        """Whether the sampling just charged passed the budget that ends the run."""
        ...

    def close(self) -> bool:
        """Charges the rest of the update; True once the run is over."""
        ...


class Update(NamedTuple):
    """What one update leaves behind.

    Attributes:
      number: counts from 1.
      state: after the update.
      selection: after the update.
      prompts: what was sampled.
      batch: what was learned from, or would have been.
      feedback: the verifier's judgement of it.
      metrics: means over the optimiser steps, None where nothing was counted; empty
        where `trained` is False.
      trained: False for the update whose sampling ended the run.
      over: whether this is the last update.
    """

    number: int
    state: TrainState
    selection: Selection
    prompts: Sequence[Problem]
    batch: Batch
    feedback: Feedback
    metrics: dict[str, float | None]
    trained: bool
    over: bool


def run(
    state: TrainState,
    pool: Pool,
    *,
    method: Method,
    services: Services,
    learn: Learn,
    account: Account,
    root: Key,
    selection: Selection,
    start: int = 1,
) -> Iterator[Update]:
    """Yields after every update, until the budget says that the run is over.

    Args:
      state: consumed where the learner donates it; read the yielded one.
      pool: labelled prompts; its position advances.
      method: what to do in each stage.
      services: sampling, scoring and verifying, each on the ledger.
      learn: takes the optimiser steps of one update.
      account: the ledger's side of the loop.
      root: the run's key.
      selection: from `method.init`, or from a checkpoint.
      start: number of the first update.
    """
    frozen = method.frozen
    for number in itertools.count(start):
        account.begin(number)
        picked, selection = method.select(
            services,
            state.params,
            selection,
            pool,
            keys.at(root, keys.Stream.SELECT, number),
        )
        prompts, rollout = picked
        if rollout is None:
            key = keys.at(root, keys.Stream.ROLLOUT, number)
            rollout = method.generate(services, state.params, frozen, prompts, key)
        key = keys.at(root, keys.Stream.CREDIT, number)
        batch, feedback = method.credit(
            services, state.params, frozen, rollout, prompts, key
        )
        metrics, trained = {}, not account.ends_on_sampling()
        if trained:
            key = keys.at(root, keys.Stream.SHUFFLE, number)
            state, metrics = learn(state, batch, frozen, key)
        selection = method.observe(selection, prompts, feedback)
        over = account.close()
        yield Update(
            number, state, selection, prompts, batch, feedback, metrics, trained, over
        )
        if over:
            return


def guarded(updates: Iterator[Update], rescue: Callable[[], None]) -> Iterator[Update]:
    """Yields updates; calls `rescue` where sampling finds nothing to learn from.

    Logits may not be finite, or no groups left whose rewards differ.

    The state that the last update left is then still whole: nothing was learned.
    """
    while True:
        try:
            done = next(updates)
        except StopIteration:
            return
        except (FloatingPointError, NoVariance):
            rescue()
            raise
        yield done
