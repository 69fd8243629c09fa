"""The policy-gradient objective over any credit, and how a policy reads a rollout."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax import losses, masked, packing, positions
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
    column = jax.lax.broadcasted_iota(jnp.int32, rollout.tokens.shape, 1)
    real = column < jnp.asarray(rollout.length)[:, None]
    return column, real.astype(jnp.int32)


def read(
    functions: Functions,
    params: Params,
    rollout: Rollout,
    *,
    mask: Bool[Array, "B T"] | None = None,
    packed: packing.Place | None = None,
    temperature: float = 1.0,
    chunk_size: int = 128,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability of each token of a rollout, and the entropy it was drawn at.

    Args:
      functions: the model.
      params: its parameters.
      rollout: what to read.
      mask: the tokens that are read; by default the sampled ones. Entries elsewhere
        are unspecified, and in packed rows they are 0 and cost no output head.
      packed: where the sequences lie in packed rows, as `Batch.packed`; None reads
        each in a row of its own.
      temperature: of the policy.
      chunk_size: positions of a row, or of a shard's packed rows, whose logits exist
        at once.
    """
    mask = jnp.asarray(rollout.sampled) if mask is None else mask
    if packed is not None:
        laid = through(functions, params, rollout, packed, mask)
        out = positions.logp_and_entropy(
            *laid, temperature=temperature, chunk_size=chunk_size
        )
        lift = functools.partial(packing.lift, packed, columns=mask.shape[1])
        logp, entropy = (masked.keep(lift(x), mask) for x in out)
        return logp, entropy
    hidden = functions.hidden(params, rollout.tokens, *places(rollout))
    one = functools.partial(
        losses.chunked_logp_and_entropy, temperature=temperature, chunk_size=chunk_size
    )
    return jax.vmap(one, (0, None, 0))(
        hidden, functions.unembed(params), rollout.tokens
    )


def through(
    functions: Functions,
    params: Params,
    rollout: Rollout,
    packed: packing.Place,
    mask: Bool[Array, "n T"],
) -> tuple[Array, Array, Array, Array]:
    """The model over packed rows, as `positions.logp_and_entropy` reads it.

    Returns:
      Hidden states `[S, N, D]`, the head `[D, V]`, the token that each position
      predicts `[S, N]`, and whether `mask` reads that token `[S, N]`.
    """
    layout, shape = packed.layout, rollout.tokens.shape
    lay = functools.partial(packing.lay, packed, length=rollout.length)
    segments = jnp.broadcast_to(packed.segment[:, None], shape)
    column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    tokens = lay(rollout.tokens)
    rows = lambda x: x.reshape(-1, layout.width)  # noqa: E731
    hidden = functions.hidden(params, *map(rows, (tokens, lay(column), lay(segments))))
    # The first token of a sequence is predicted by nothing, least of all by the last
    # token of the sequence before it.
    ahead = lambda x: jnp.roll(x, -1, axis=1)  # noqa: E731
    return (
        hidden.reshape(*tokens.shape, -1),
        functions.unembed(params),
        ahead(tokens),
        ahead(lay(mask & (column > 0))),
    )


def surrogate(
    functions: Functions,
    *,
    temperature: float = 1.0,
    chunk_size: int = 128,
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
            mask=mask,
            packed=batch.packed,
            temperature=temperature,
            chunk_size=chunk_size,
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
