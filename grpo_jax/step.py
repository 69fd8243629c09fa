"""One optimiser step as a pure function of state and batch."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from grpo_jax import packing
from grpo_jax.base import Batch, Metrics, Objective, Params, Ratio, TrainState


def init(params: Params, tx: optax.GradientTransformation) -> TrainState:
    """Returns the state before the first step."""
    return TrainState(
        step=jnp.zeros((), jnp.int32), params=params, opt_state=tx.init(params)
    )


def gradient(
    params: Params,
    batch: Batch,
    frozen: PyTree,
    *,
    objective: Objective,
    microbatches: int = 1,
    plan: packing.Plan | None = None,
) -> tuple[Params, Metrics]:
    """Gradient of the objective's ratio, accumulated over parts of the batch.

    The denominator does not depend on the parameters, so totals are differentiated
    and the division happens once, after the last part: the result is that of the
    whole batch, whatever the parts.

    Args:
      params: differentiated.
      batch: every leaf leads with B.
      frozen: passed on to the objective; not differentiated.
      objective: returns a ratio to minimise and metrics.
      microbatches: number of slices, a divisor of B; memory falls with it. Not read
        where there is a plan.
      plan: parts of packed rows, whose number is data; None is slices of the batch.

    Returns:
      The gradient, zero where the denominator is, and the metrics with the loss.
    """
    if plan is None:
        part, count = _slices(batch, microbatches), microbatches
    else:
        part = functools.partial(packing.batch, batch, plan)
        count = jnp.asarray(plan.count)

    def total(params, part):
        loss, metrics = objective(params, part, frozen)
        return loss.total, metrics | {"loss": loss}

    def of_part(number):
        return jax.grad(total, has_aux=True)(params, part(number))

    zero = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(of_part, jax.ShapeDtypeStruct((), jnp.int32)),
    )
    grads, metrics = jax.lax.fori_loop(
        0, count, lambda i, sums: jax.tree.map(jnp.add, sums, of_part(i)), zero
    )
    # A step in which every token is masked must not turn the weights into nan.
    weight = metrics["loss"].weight
    scale = jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), grads), metrics


def _slices(batch: Batch, count: int) -> Callable[[Array], Batch]:
    """The parts of a batch that is cut into slices of equal size."""
    rows = batch.mask.shape[0]
    if count < 1 or rows % count:
        raise ValueError(
            f"microbatches={count} must divide the {rows} sequences of an "
            "optimiser step; change one of them"
        )
    # Column-major: each slice takes rows from every device's shard.
    cut = jax.tree.map(
        lambda x: jnp.moveaxis(jnp.asarray(x).reshape(-1, count, *x.shape[1:]), 1, 0),
        batch,
    )
    return lambda number: jax.tree.map(lambda x: x[number], cut)


def train_step(
    state: TrainState,
    batch: Batch,
    frozen: PyTree = (),
    *,
    objective: Objective,
    tx: optax.GradientTransformation,
    microbatches: int = 1,
    plan: packing.Plan | None = None,
) -> tuple[TrainState, Metrics]:
    """Applies one gradient step of `objective`; the caller compiles and donates.

    The arguments are those of `gradient`.

    Returns:
      The next state, and the objective's metrics with `loss` and `grad_norm`, the
      global norm before any clipping.
    """
    grads, metrics = gradient(
        state.params,
        batch,
        frozen,
        objective=objective,
        microbatches=microbatches,
        plan=plan,
    )
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    norm = optax.tree.norm(grads)
    metrics = metrics | {"grad_norm": Ratio(norm, jnp.ones_like(norm))}
    return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics
