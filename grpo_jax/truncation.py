"""The distribution a policy really samples from: temperature, then truncation.

Sampler and scorer share `policy_logits`, so their log-probabilities cannot disagree.
Every option may be a traced value, so changing one compiles nothing.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Number = float | int | Array


def is_off(top_k: Number, top_p: Number, min_p: Number) -> bool:
    """Whether truncation is known to be off before tracing."""
    options = (top_k, top_p, min_p)
    return all(isinstance(x, float | int) for x in options) and (
        top_k <= 0 and top_p >= 1 and min_p <= 0  # pyright: ignore
    )


def policy_logits(
    logits: Float[Array, "V"],
    *,
    temperature: Number = 1.0,
    top_k: Number = 0,
    top_p: Number = 1.0,
    min_p: Number = 0.0,
) -> Float[Array, "V"]:
    """Logits of the distribution really sampled; excluded tokens are -inf.

    Temperature comes first, then top-k, top-p and min-p, each on the renormalised
    result of the one before. Tokens that tie with the last one kept are kept, so the
    result does not depend on the order of the vocabulary.

    Args:
      logits: next-token logits of the model.
      temperature: divides the logits; positive.
      top_k: how many tokens to keep; 0 keeps all.
      top_p: keeps the most likely tokens up to and including the one whose
        cumulative probability crosses it; 1 keeps all.
      min_p: drops tokens less likely than this times the likeliest; 0 keeps all.

    Returns:
      float32 logits, not normalised.
    """
    scaled = logits.astype(jnp.float32) / jnp.asarray(temperature, jnp.float32)
    if is_off(top_k, top_p, min_p):
        return scaled
    options = (
        jnp.asarray(top_k, jnp.int32),
        jnp.asarray(top_p, jnp.float32),
        jnp.asarray(min_p, jnp.float32),
    )
    k, p, m = options
    # Sorting a vocabulary costs more than a decode step's attention: not when off.
    return jax.lax.cond(
        (k > 0) | (p < 1) | (m > 0),
        lambda x: _truncate(x, k, p, m),
        lambda x: x,
        scaled,
    )


def _truncate(logits, top_k, top_p, min_p):
    size = logits.shape[-1]
    descending = -jnp.sort(-logits)
    in_k = jnp.arange(size) < jnp.where(top_k > 0, top_k, size)
    prob = jax.nn.softmax(jnp.where(in_k, descending, -jnp.inf))
    before = jnp.cumsum(prob) - prob
    # The first token is always kept; the one that crosses p has less than p before it.
    in_p = in_k & ((before < top_p) | (top_p >= 1) | (jnp.arange(size) == 0))
    last = jnp.where(in_p, descending, jnp.inf).min()
    # Renormalising changes no ratio of probabilities, so min-p reads the logits.
    floor = jnp.where(min_p > 0, descending[0] + jnp.log(min_p), -jnp.inf)
    return jnp.where(logits >= jnp.maximum(last, floor), logits, -jnp.inf)
