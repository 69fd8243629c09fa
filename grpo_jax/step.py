"""One optimiser step as a pure function of state and batch."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

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
) -> tuple[Params, Metrics]:
    """Gradient of the objective's ratio, accumulated over slices of the batch.

    The denominator does not depend on the parameters, so totals are differentiated
    and the division happens once, after the last slice: the result is that of the
    whole batch, whatever the number of slices.

    Args:
      params: differentiated.
      batch: every leaf leads with B.
      frozen: passed on to the objective; not differentiated.
      objective: returns a ratio to minimise and metrics.
      microbatches: number of slices, a divisor of B; memory falls with it.

    Returns:
      The gradient, zero where the denominator is, and the metrics with the loss.
    """
    rows = batch.mask.shape[0]
    if microbatches < 1 or rows % microbatches:
        raise ValueError(
            f"microbatches={microbatches} must divide the {rows} sequences of an "
            "optimiser step; change one of them"
        )

    def total(params, part):
        loss, metrics = objective(params, part, frozen)
        return loss.total, metrics | {"loss": loss}

    def body(carry, part):
        more = jax.grad(total, has_aux=True)(params, part)
        return jax.tree.map(jnp.add, carry, more), None

    # Column-major: each slice takes rows from every device's shard.
    parts = jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(-1, microbatches, *x.shape[1:]), 1, 0), batch
    )
    first = jax.tree.map(lambda x: x[0], parts)
    zero = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(jax.grad(total, has_aux=True), params, first),
    )
    (grads, metrics), _ = jax.lax.scan(body, zero, parts)
    # A step in which every token is masked must not turn the weights into nan.
    weight = metrics["loss"].weight
    scale = jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), grads), metrics


def train_step(
    state: TrainState,
    batch: Batch,
    frozen: PyTree = (),
    *,
    objective: Objective,
    tx: optax.GradientTransformation,
    microbatches: int = 1,
) -> tuple[TrainState, Metrics]:
    """Applies one gradient step of `objective`; the caller compiles and donates.

    Returns:
      The next state, and the objective's metrics with `loss` and `grad_norm`, the
      global norm before any clipping.
    """
    grads, metrics = gradient(
        state.params, batch, frozen, objective=objective, microbatches=microbatches
    )
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    norm = optax.tree.norm(grads)
    metrics = metrics | {"grad_norm": Ratio(norm, jnp.ones_like(norm))}
    return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics
