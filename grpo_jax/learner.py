"""The optimiser steps of one update: epochs over mini-batches, timed and charged."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from budgets import flops
from budgets.ledger import Cost, Phase
from grpo_jax import keys, step
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
    microbatches: int = 1,
    phase: Phase = Phase.TRAIN,
    row_sharding: NamedSharding | None = None,
) -> Callable[..., tuple[TrainState, dict[str, float]]]:
    """Returns the function that learns from one update's batch.

    An optimiser step whose loss or gradient is not finite changes nothing, so that
    the state that is saved before the run stops is a good one.

    Args:
      objective: the method's, to be minimised.
      tx: the optimiser.
      meter: charged with the steps.
      shape: of the policy, for model FLOPs.
      epochs: passes over the batch.
      minibatches: optimiser steps per pass; rows are shuffled when above one.
      microbatches: slices of a mini-batch whose gradients are added.
      phase: what the seconds are charged to.
      row_sharding: how sequences lie on the mesh.
    """

    def one(state, batch, frozen, rows):
        if rows is not None:
            batch = jax.tree.map(lambda x: x[rows], batch)
        if row_sharding is not None:
            batch = jax.lax.with_sharding_constraint(batch, row_sharding)
        new, metrics = step.train_step(
            state, batch, frozen, objective=objective, tx=tx, microbatches=microbatches
        )
        good = jnp.isfinite(metrics["loss"].total) & jnp.isfinite(
            metrics["grad_norm"].total
        )
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state), metrics

    compiled = jax.jit(one, donate_argnums=0)

    def learn(
        state: TrainState, batch: Batch, frozen: Params, key: Key
    ) -> tuple[TrainState, dict[str, float]]:
        meter.idle()
        if row_sharding is not None:
            batch = jax.device_put(batch, row_sharding)
        size = batch.rollout.tokens.shape[0]
        totals: dict[str, tuple[float, float]] = {}
        for epoch in range(epochs):
            order = [None]
            if minibatches > 1:
                mixed = jax.random.permutation(keys.index(key, epoch), size)
                order = np.asarray(mixed).reshape(minibatches, -1)
            for rows in order:
                state, metrics = compiled(state, batch, frozen, rows)
                for name, ratio in jax.device_get(metrics).items():
                    total, weight = totals.get(name, (0.0, 0.0))
                    totals[name] = (
                        total + float(ratio.total),
                        weight + float(ratio.weight),
                    )
        meter.charge(phase, _cost(shape, batch, epochs), done=state)
        return state, {
            name: total / weight if weight else math.nan
            for name, (total, weight) in totals.items()
        }

    return learn


def _cost(shape: flops.ModelShape, batch: Batch, epochs: int) -> Cost:
    lengths = np.asarray(batch.rollout.length).tolist()
    return Cost(
        trained=epochs * int(np.asarray(batch.mask).sum()),
        sequences=epochs * len(lengths),
        flops=epochs * flops.train(shape, lengths),
    )
