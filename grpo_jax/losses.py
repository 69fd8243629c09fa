"""Per-token objectives and the denominators that turn them into a scalar.

A loss returns one value per token and reduces nothing; the denominator is a separate
choice, because that choice is where published variants differ. Losses and divergences
act on one sequence and are lifted with `jax.vmap`; denominators read the batch.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax import masked
from grpo_jax.base import Ratio
from grpo_jax.chunked import chunked_logp_and_entropy as chunked_logp_and_entropy
from grpo_jax.chunked import chunked_token_logp as chunked_token_logp
from grpo_jax.truncation import Number, policy_logits


def token_logp(
    logits: Float[Array, "T V"],
    tokens: Int[Array, "T"],
    *,
    temperature: Number = 1.0,
    top_k: Number = 0,
    top_p: Number = 1.0,
    min_p: Number = 0.0,
) -> Float[Array, "T"]:
    """Log-probability of each token given the ones before it, in nats.

    The distribution is the one really sampled from: `truncation.policy_logits`.

    Args:
      logits: model outputs; those at t predict token t + 1.
      tokens: the sequence.
      temperature: divides the logits.
      top_k: tokens kept; 0 keeps all.
      top_p: mass kept; 1 keeps all.
      min_p: least share of the likeliest token's probability; 0 keeps all.

    Returns:
      float32, entry t of `tokens[t]`; 0 at position 0, which nothing predicts, and
      -inf for a token that truncation excludes.
    """
    options = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    policy = jax.vmap(lambda x: policy_logits(x, temperature=temperature, **options))
    logp = jax.nn.log_softmax(policy(logits[:-1]), axis=-1)
    picked = jnp.take_along_axis(logp, tokens[1:, None], axis=-1)[:, 0]
    return jnp.pad(picked, (1, 0))


def clipped_surrogate(
    logp: Float[Array, "T"],
    logp_old: Float[Array, "T"],
    advantage: Float[Array, "T"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Float[Array, "T"]:
    """PPO's pessimistic surrogate, one value per token, to be minimised.

    See "Proximal Policy Optimization Algorithms" by Schulman et al.
    (https://arxiv.org/abs/1707.06347), eq. 7; `dual_clip` is of "Mastering
    Complex Control in MOBA Games with Deep Reinforcement Learning" by Ye et al.
    (https://arxiv.org/abs/1912.09729).

    Args:
      logp: log-probabilities under the policy being trained.
      logp_old: the same under the policy that sampled; not differentiated.
      advantage: credit per token; not differentiated.
      clip_low: the ratio is clipped below at `1 - clip_low`.
      clip_high: the ratio is clipped above at `1 + clip_high`.
      dual_clip: bound, above 1, on the ratio where the advantage is negative, which
        the surrogate alone leaves unbounded; None for no bound.

    Returns:
      Loss per token, in units of `advantage`.
    """
    logp_old, advantage = jax.lax.stop_gradient((logp_old, advantage))
    ratio = jnp.exp(logp - logp_old)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = -jnp.minimum(ratio * advantage, clipped * advantage)
    if dual_clip is None:
        return loss
    return jnp.where(advantage < 0, jnp.minimum(loss, -dual_clip * advantage), loss)


def cispo(
    logp: Float[Array, "T"],
    logp_old: Float[Array, "T"],
    advantage: Float[Array, "T"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Float[Array, "T"]:
    """Policy gradient whose importance weight is clipped and not differentiated.

    A clipped token keeps its gradient, unlike in `clipped_surrogate`. See
    "MiniMax-M1" (https://arxiv.org/abs/2506.13585), sec. 3.1; it leaves the lower bound
    off, which is `clip_low=1`.

    Args:
      logp: log-probabilities under the policy being trained.
      logp_old: the same under the policy that sampled; not differentiated.
      advantage: credit per token; not differentiated.
      clip_low: the weight is clipped below at `1 - clip_low`.
      clip_high: the weight is clipped above at `1 + clip_high`.

    Returns:
      Loss per token, in units of `advantage` times nats.
    """
    ratio = jnp.exp(logp - logp_old)
    weight = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -jax.lax.stop_gradient(weight * advantage) * logp


def token_level(
    logp: Float[Array, "T"], logp_old: Float[Array, "T"], mask: Bool[Array, "T"]
) -> Float[Array, "T"]:
    """Leaves each token its own ratio: the level of PPO, GRPO and DAPO."""
    del logp_old, mask
    return logp


def sequence_level(
    logp: Float[Array, "T"], logp_old: Float[Array, "T"], mask: Bool[Array, "T"]
) -> Float[Array, "T"]:
    """Gives every token the geometric mean of its sequence's ratios (GSPO).

    See "Group Sequence Policy Optimization" by Zheng et al.
    (https://arxiv.org/abs/2507.18071), eq. 7. A surrogate of the result clips and
    differentiates the sequence's ratio; with `per_sequence` it is eq. 5.

    Args:
      logp: log-probabilities under the policy being trained.
      logp_old: the same under the policy that sampled; not differentiated.
      mask: the tokens of the sequence that count; an empty one gives ratio 1.

    Returns:
      Log-probabilities whose difference to `logp_old` is the mean of `logp - logp_old`.
    """
    logp_old = jax.lax.stop_gradient(logp_old)
    sums = masked.ratio(logp - logp_old, mask)
    return logp_old + sums.total / jnp.maximum(sums.weight, 1.0)


def importance(
    logp: Float[Array, "T"], logp_old: Float[Array, "T"]
) -> Float[Array, "T"]:
    """Weight that turns a mean over the sampling policy into one over the trained one.

    It is not differentiated. So weighted, each divergence below has off-policy the
    expected value and the expected gradient that it has on-policy; a differentiated
    weight would turn the gradients of `kl_k1` and `kl_k3` into that of
    KL(policy || reference) and make `kl_k2`'s the gradient of no divergence.
    """
    return jax.lax.stop_gradient(jnp.exp(logp - logp_old))


def kl_k1(logp: Float[Array, "T"], logp_ref: Float[Array, "T"]) -> Float[Array, "T"]:
    """Unbiased estimate of KL(policy || reference), of either sign, in nats.

    Differentiated as a loss it has zero expected gradient: use it in the reward. See
    "Approximating KL Divergence" by Schulman (http://joschu.net/blog/kl-approx.html).
    """
    return logp - jax.lax.stop_gradient(logp_ref)


def kl_k2(logp: Float[Array, "T"], logp_ref: Float[Array, "T"]) -> Float[Array, "T"]:
    """Half the squared log-ratio, whose expected gradient is KL(policy || reference)'s.

    Its value is a biased estimate of that divergence. Same source as `kl_k1`.
    """
    return kl_k1(logp, logp_ref) ** 2 / 2


def kl_k3(logp: Float[Array, "T"], logp_ref: Float[Array, "T"]) -> Float[Array, "T"]:
    """Unbiased, non-negative estimate of KL(policy || reference), in nats.

    Differentiated as a loss, its expected gradient is that of the *other* direction,
    KL(reference || policy). Same source as `kl_k1`.
    """
    d = kl_k1(logp, logp_ref)
    return jnp.expm1(-d) + d


def kl_k3_k2(logp: Float[Array, "T"], logp_ref: Float[Array, "T"]) -> Float[Array, "T"]:
    """Value of `kl_k3` with the gradient of `kl_k2`, both of KL(policy || reference).

    Neither has the other's fault: the value is unbiased and so is the gradient.
    """
    k2 = kl_k2(logp, logp_ref)
    return jax.lax.stop_gradient(kl_k3(logp, logp_ref) - k2) + k2


def per_token(x: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Ratio:
    """Every unmasked token weighs the same (DAPO)."""
    return masked.ratio(x, mask)


def per_sequence(x: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Ratio:
    """Every sequence weighs the same, whatever its length (GRPO).

    As in all denominators by sequence, a row with no unmasked token, which is filler
    or left out by the method, is not a sequence and is not counted.
    """
    lengths = jnp.maximum(mask.sum(-1), 1).astype(jnp.float32)
    means = masked.keep(x, mask).astype(jnp.float32).sum(-1) / lengths
    return Ratio(means.sum(), _num_sequences(mask))


def sequence_sum(x: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Ratio:
    """Mean over sequences of the sum over their tokens: the exact policy gradient."""
    return Ratio(masked.ratio(x, mask).total, _num_sequences(mask))


def constant_length(
    x: Float[Array, "B T"], mask: Bool[Array, "B T"], *, length: int
) -> Ratio:
    """`sequence_sum` over a constant, commonly the length limit (Dr. GRPO).

    See "Understanding R1-Zero-Like Training" by Liu et al.
    (https://arxiv.org/abs/2503.20783).

    Args:
      x: one value per token.
      mask: the tokens that count.
      length: tokens that each sequence is divided by, whatever its own length.

    Returns:
      The sum, over `length` times the number of sequences.
    """
    return Ratio(masked.ratio(x, mask).total, _num_sequences(mask) * length)


def _num_sequences(mask: Bool[Array, "B T"]) -> Float[Array, ""]:
    return mask.any(-1).sum().astype(jnp.float32)
