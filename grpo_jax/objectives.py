"""The policy-gradient objective over any credit, and how a policy reads a rollout."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax import losses, masked
from grpo_jax.base import Functions, Objective, Params, Ratio, Rollout

# (logp, logp_old, advantage, clip_low=, clip_high=) -> loss, per token.
Loss: TypeAlias = Callable[..., Float[Array, "T"]]
# (logp, logp_old, mask) -> logp whose ratio to logp_old the loss reads.
Level: TypeAlias = Callable[..., Float[Array, "T"]]
# (logp, logp_ref) -> estimate per token.
Divergence: TypeAlias = Callable[
    [Float[Array, "T"], Float[Array, "T"]], Float[Array, "T"]
]
Reduce: TypeAlias = Callable[[Float[Array, "B T"], Bool[Array, "B T"]], Ratio]


def places(rollout: Rollout) -> tuple[Array, Array]:
    """Positions and segments of a rollout's tokens; segment 0 is padding."""
    shape = rollout.tokens.shape
    positions = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    real = positions < jnp.asarray(rollout.length)[:, None]
    return positions, real.astype(jnp.int32)


def read(
    functions: Functions,
    params: Params,
    rollout: Rollout,
    *,
    temperature: float = 1.0,
    chunk_size: int = 128,
    window: int | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability of each token of a rollout, and the entropy it was drawn at.

    See `losses.chunked_logp_and_entropy`, which this lifts over the batch.

    Args:
      functions: the model.
      params: its parameters.
      rollout: what to read.
      temperature: of the policy.
      chunk_size: positions whose logits exist at once.
      window: the most tokens a completion can have. The vocabulary is then multiplied
        at that many positions of a row, from its first completion token on, and
        entries elsewhere are 0; None reads every position.
    """
    hidden = functions.hidden(params, rollout.tokens, *places(rollout))
    head = functions.unembed(params)
    columns = rollout.tokens.shape[1]

    def one(h, tokens, prompt_length):
        if window is None or window + 1 >= columns:
            return losses.chunked_logp_and_entropy(
                h, head, tokens, temperature=temperature, chunk_size=chunk_size
            )
        # The state before the first completion token predicts it. A completion ends
        # inside the row, so a slice that would not is moved back and still holds it.
        first = jnp.minimum(prompt_length - 1, columns - window - 1)
        logp, entropy = losses.chunked_logp_and_entropy(
            jax.lax.dynamic_slice_in_dim(h, first, window + 1),
            head,
            jax.lax.dynamic_slice_in_dim(tokens, first, window + 1),
            temperature=temperature,
            chunk_size=chunk_size,
        )
        blank = jnp.zeros(columns, jnp.float32)
        back = functools.partial(
            jax.lax.dynamic_update_slice_in_dim, blank, start_index=first, axis=0
        )
        return back(logp), back(entropy)

    return jax.vmap(one)(hidden, rollout.tokens, jnp.asarray(rollout.prompt_length))


def surrogate(
    functions: Functions,
    *,
    temperature: float = 1.0,
    chunk_size: int = 128,
    window: int | None = None,
    loss: Loss = losses.clipped_surrogate,
    level: Level = losses.token_level,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    reduce: Reduce = losses.per_token,
    kl: Divergence | None = None,
    kl_coefficient: float = 0.0,
) -> Objective:
    """A policy-gradient loss of sampled tokens, for any credit per token.

    Args:
      functions: the policy.
      temperature: at which the tokens were sampled: it is part of the policy.
      chunk_size: see `read`.
      window: see `read`; the sampler's limit on new tokens.
      loss: per token, of `losses`.
      level: `losses.token_level`, or `losses.sequence_level` for GSPO.
      clip_low: passed to `loss`.
      clip_high: passed to `loss`.
      reduce: the denominator, of `losses`.
      kl: divergence from the reference, added to the loss of each token before the
        one reduction; None leaves it out.
      kl_coefficient: its weight.

    Returns:
      An objective. Its batch has the target `logp_ref`, log-probabilities under the
      reference at the same temperature, if `kl` is given; without `kl` the
      divergence is logged where the target is there. Metrics: `entropy`, `kl_old`
      (k1 of KL(old || new)), `ratio`, `clip_share` (ratios outside the clip's
      bounds, whatever the sign of the advantage) and `kl_ref` (weighted k3).
    """

    def one(logp, logp_old, advantage):
        return loss(logp, logp_old, advantage, clip_low=clip_low, clip_high=clip_high)

    def objective(params, batch, frozen):
        del frozen
        mask = batch.mask
        logp, entropy = read(
            functions,
            params,
            batch.rollout,
            temperature=temperature,
            chunk_size=chunk_size,
            window=window,
        )
        # Masked entries may hold anything, nan too, and the derivative of a product
        # reads both factors: they are cleared before the formulas, not only after.
        logp, old, advantage = (
            masked.keep(jnp.asarray(x), mask)
            for x in (logp, batch.rollout.logp, batch.advantage)
        )
        levelled = jax.vmap(level)(logp, old, mask)
        value = jax.vmap(one)(levelled, old, advantage)
        ratio = jax.vmap(losses.importance)(levelled, old)
        outside = (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)
        logged = {
            "entropy": entropy,
            "kl_old": old - logp,
            "ratio": ratio,
            "clip_share": outside.astype(jnp.float32),
        }
        if kl is not None or "logp_ref" in batch.targets:
            ref = masked.keep(jnp.asarray(batch.targets["logp_ref"]), mask)
            weight = jax.vmap(losses.importance)(logp, old)
            logged["kl_ref"] = weight * jax.vmap(losses.kl_k3)(logp, ref)
            if kl is not None:
                value = value + kl_coefficient * weight * jax.vmap(kl)(logp, ref)
        logged = jax.lax.stop_gradient(logged)
        metrics = {name: losses.per_token(x, mask) for name, x in logged.items()}
        return reduce(value, mask), metrics

    return objective
