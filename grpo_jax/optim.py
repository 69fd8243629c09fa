"""AdamW with clipping, warmup and decay, as one optax transformation."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from grpo_jax.base import Params

# Share of the peak learning rate at each point of the decay: 0 at its start, 1 at its
# end and after.
Decay: TypeAlias = Callable[[Float[Array, ""]], Float[Array, ""]]
UNDECAYED = ("norm", "bias", "scale")


def constant(progress: Float[Array, ""]) -> Float[Array, ""]:
    """The peak learning rate throughout."""
    return jnp.ones_like(progress)


def linear(progress: Float[Array, ""]) -> Float[Array, ""]:
    """From the peak to zero in a straight line."""
    return 1.0 - progress


def cosine(progress: Float[Array, ""]) -> Float[Array, ""]:
    """From the peak to zero along half a cosine."""
    return (1.0 + jnp.cos(jnp.pi * progress)) / 2


def learning_rates(
    *, peak: float, warmup_steps: int = 0, decay: Decay = constant, decay_steps: int = 0
) -> optax.Schedule:
    """Learning rate by optimiser step: a linear warmup, then a decay.

    Args:
      peak: the rate after the warmup.
      warmup_steps: steps of the warmup. The first one already moves: its rate is
        `peak / warmup_steps`, and the last one's is the peak.
      decay: shape of the decay.
      decay_steps: steps from the end of the warmup to the end of the decay; without
        any the rate stays at the peak.

    Returns:
      A function from the number of steps taken to the rate of the next.
    """

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        warm = jnp.minimum(1.0, (step + 1.0) / max(warmup_steps, 1))
        if not decay_steps:
            return peak * warm
        progress = jnp.clip((step - warmup_steps) / decay_steps, 0.0, 1.0)
        return peak * warm * decay(progress)

    return rate


def decays(params: Params) -> PyTree[bool]:
    """Which parameters weight decay applies to: matrices, but no norms and no biases.

    Layers are stacked, which makes a norm `[L, D]`: names decide before ranks do.
    """

    def rule(path, leaf):
        names = [str(getattr(k, "key", getattr(k, "name", ""))).lower() for k in path]
        named = any(word in name for word in UNDECAYED for name in names)
        return leaf.ndim >= 2 and not named

    return jax.tree_util.tree_map_with_path(rule, params)


def adamw(
    *,
    learning_rate: float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float | None = 1.0,
    warmup_steps: int = 0,
    schedule: Decay = constant,
    decay_steps: int = 0,
    decay_mask: Callable[[Params], PyTree[bool]] = decays,
) -> optax.GradientTransformation:
    """AdamW on gradients clipped by their global norm.

    See "Decoupled Weight Decay Regularization" by Loshchilov and Hutter
    (https://arxiv.org/abs/1711.05101), algorithm 2.

    Args:
      learning_rate: the peak of the schedule.
      b1: decay of the mean of gradients.
      b2: decay of the mean of squared gradients.
      eps: added to the root of the latter.
      weight_decay: shrinks a parameter by this times the learning rate at each step.
      clip_norm: largest global norm of a gradient; None leaves it as it is.
      warmup_steps: see `learning_rates`.
      schedule: shape of the decay: `constant`, `linear` or `cosine`.
      decay_steps: see `learning_rates`.
      decay_mask: from parameters to a tree of the same form, True where weight decay
        applies.

    Returns:
      A transformation whose updates are added to the parameters.
    """
    rates = learning_rates(
        peak=learning_rate,
        warmup_steps=warmup_steps,
        decay=schedule,
        decay_steps=decay_steps,
    )
    clip = (
        optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
    )
    return optax.chain(
        clip,
        optax.adamw(
            rates, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mask=decay_mask
        ),
    )
