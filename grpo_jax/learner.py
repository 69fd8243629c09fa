"""The optimiser steps of one update: epochs over mini-batches, timed and charged."""

import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from budgets import flops
from budgets.ledger import Cost, Phase
from grpo_jax import ahead, keys, step
from grpo_jax.base import Batch, Key, Objective, Params, TrainState
from grpo_jax.meter import Meter


def learner(
    *,
    objective: Objective,
    tx: optax.GradientTransformation,
    meter: Meter,
    shape: flops.ModelShape,
    epochs: int = 1,
    minibatches: int = 1,
    microbatches: int = 0,
    phase: Phase = Phase.TRAIN,
    row_sharding: NamedSharding | None = None,
) -> Callable[..., tuple[TrainState, dict[str, float | None]]]:
    """Returns the function that learns from one update's batch.

    Its metrics are means over the steps, with `tokens_real` and `tokens_padded`: what
    the steps multiplied of sequences, and of padding beside them.

    An optimiser step whose loss or gradient is not finite changes nothing and is the
    last of its update, so that the state it leaves is a good one.

    Args:
      objective: the method's, to be minimised.
      tx: the optimiser.
      meter: charged with the steps.
      shape: of the policy, for model FLOPs.
      epochs: passes over the batch.
      minibatches: optimiser steps per pass; rows are shuffled when above one.
      microbatches: a mini-batch's gradient is added up over packed parts of as many
        tokens as this share of its rows; 0 is `ahead.PART_TOKENS` on each device.
      phase: what the seconds are charged to.
      row_sharding: how sequences lie on the mesh.
    """
    packed = ahead.Programs(microbatches, row_sharding)

    def one(plan, state, batch, frozen, rows):
        if rows is not None:
            batch = jax.tree.map(lambda x: x[rows], batch)
        if row_sharding is not None:
            batch = jax.lax.with_sharding_constraint(batch, row_sharding)
        new, metrics = step.train_step(
            state, batch, frozen, objective=objective, tx=tx, plan=plan
        )
        # Read from the gradient, not from the new weights: then old and new need not
        # exist side by side.
        good = jnp.isfinite(metrics["loss"].total + metrics["grad_norm"].total)
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state), metrics

    programs: list[Callable] = []

    def program(state: TrainState) -> Callable:
        # The step leaves the state where it found it: laid out otherwise, the next
        # step would be another program.
        if not programs:
            where = jax.tree.map(lambda x: x.sharding, state)
            programs.append(jax.jit(one, donate_argnums=1, out_shardings=(where, None)))
        return programs[0]

    def learn(
        state: TrainState, batch: Batch, frozen: Params, key: Key
    ) -> tuple[TrainState, dict[str, float | None]]:
        meter.idle()
        meter.release()
        lengths = np.asarray(batch.rollout.length)
        size, columns = batch.rollout.tokens.shape
        batch = packed.place(batch, size)
        totals: dict[str, tuple[float, float]] = {}
        real = cells = 0
        for rows in _orders(key, size, epochs, minibatches):
            mine = lengths if rows is None else lengths[rows]
            (state, metrics), room = packed.run(
                program(state), mine, columns, state, batch, frozen, rows
            )
            real, cells = real + int(mine.sum()), cells + room
            for name, ratio in jax.device_get(metrics).items():
                total, weight = totals.get(name, (0.0, 0.0))
                totals[name] = (
                    total + float(ratio.total),
                    weight + float(ratio.weight),
                )
            if not all(
                math.isfinite(totals[name][0]) for name in ("loss", "grad_norm")
            ):
                break
        meter.charge(phase, _cost(shape, batch, epochs), done=state)
        means = {name: _mean(*sums) for name, sums in totals.items()}
        return state, means | {"tokens_real": real, "tokens_padded": cells - real}

    return learn


def _orders(
    key: Key, size: int, epochs: int, minibatches: int
) -> Iterator[np.ndarray | None]:
    """The rows of each optimiser step; None is all of them, in order."""
    if minibatches < 1 or size % minibatches:
        raise ValueError(
            f"minibatches={minibatches} must divide the {size} sequences of an update;"
            " change one of them"
        )
    for epoch in range(epochs):
        if minibatches == 1:
            yield None
            continue
        mixed = jax.random.permutation(keys.index(key, epoch), size)
        yield from np.asarray(mixed).reshape(minibatches, -1)


def _mean(total: float, weight: float) -> float | None:
    """A ratio as a number; None where nothing was counted, as when all is masked."""
    if not math.isfinite(total):
        return total
    return total / weight if weight else None


def _cost(shape: flops.ModelShape, batch: Batch, epochs: int) -> Cost:
    lengths = np.asarray(batch.rollout.length).tolist()
    read = int(np.asarray(batch.rollout.sampled).sum())
    return Cost(
        trained=epochs * int(np.asarray(batch.mask).sum()),
        sequences=epochs * len(lengths),
        flops=epochs * flops.train(shape, lengths, heads=read),
    )
