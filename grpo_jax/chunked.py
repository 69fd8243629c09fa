"""Log-probabilities from hidden states, a chunk of positions at a time.

Logits `[T, V]` are the largest array of a training step by far. Here only a chunk of
them exists at once, in the forward pass and in the backward pass, which computes them
again. `chunked_logp_and_entropy` reads one sequence and is lifted by `jax.vmap`, so
that a batch spread over devices stays spread; `positions` reads packed rows.

Logits and log-sum-exp are float32 whatever the dtype of the hidden states. Truncation
(top-k, top-p, min-p) is left out: training samples without it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grpo_jax.truncation import Number


def head_logits(
    hidden: Float[Array, "*a D"], unembed: Float[Array, "D V"]
) -> Float[Array, "*a V"]:
    """Logits in float32, the one way for sampler and scorer.

    Sums are float32 whatever the inputs; float32 inputs are multiplied as such, which
    accelerators by default do not do.
    """
    return jnp.matmul(
        hidden,
        unembed,
        precision=precision(hidden),
        preferred_element_type=jnp.float32,
    )


def precision(x: Array) -> jax.lax.Precision | None:
    """Returns how products of `x` are computed: as float32 where it is float32."""
    return jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None


def chunked_token_logp(
    hidden: Float[Array, "T D"],
    unembed: Float[Array, "D V"],
    tokens: Int[Array, "T"],
    *,
    temperature: Number = 1.0,
    chunk_size: int,
) -> Float[Array, "T"]:
    """Log-probability of each token given the ones before it, in nats.

    Equals `losses.token_logp` of `hidden @ unembed` without holding `[T, V]`.

    Args:
      hidden: final hidden states; the one at t predicts token t + 1.
      unembed: output weights; read in the dtype of `hidden`.
      tokens: the sequence.
      temperature: divides the logits, as it did when the tokens were sampled.
      chunk_size: positions whose logits exist at once; need not divide T.

    Returns:
      float32, entry t of `tokens[t]`; 0 at position 0, which nothing predicts.
    """
    logp, _ = chunked_logp_and_entropy(
        hidden, unembed, tokens, temperature=temperature, chunk_size=chunk_size
    )
    return logp


def chunked_logp_and_entropy(
    hidden: Float[Array, "T D"],
    unembed: Float[Array, "D V"],
    tokens: Int[Array, "T"],
    *,
    temperature: Number = 1.0,
    chunk_size: int,
) -> tuple[Float[Array, "T"], Float[Array, "T"]]:
    """`chunked_token_logp` with the entropy of the distribution at each token.

    Returns:
      Log-probabilities, and entropies in nats of the tempered distribution that each
      token was drawn from (0 at position 0); the entropies are not differentiated.
    """
    count = tokens.shape[0] - 1
    size = max(min(at_least_one(chunk_size), count), 1)
    # The backward pass of a scan adds up the gradient of what the body closes over in
    # that array's own dtype: float32 outside, the compute dtype inside.
    head = unembed.astype(jnp.float32)

    # Without this the scan would save every chunk's logits for its backward pass.
    @jax.checkpoint
    def score(part):
        h, targets = part
        logits = head_logits(h, head.astype(h.dtype))
        logp, total, mean = statistics(logits, targets, temperature)
        return logp, jax.lax.stop_gradient(total - mean)

    parts = _chunks(hidden[:-1], size), _chunks(tokens[1:], size)
    logp, entropy = jax.lax.map(score, parts)
    whole = lambda x: jnp.pad(x.reshape(-1)[:count], (1, 0))  # noqa: E731
    return whole(logp), whole(entropy)


def at_least_one(chunk_size: int) -> int:
    """Returns the chunk size, or refuses it."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1; use 128")
    return chunk_size


def statistics(
    logits: Float[Array, "*a V"], targets: Int[Array, "*a"], temperature: Number
) -> tuple[Float[Array, "*a"], Float[Array, "*a"], Float[Array, "*a"]]:
    """Log-probability of the targets, log-sum-exp, and the mean of the logits.

    Args:
      logits: before the temperature.
      targets: the token to score at each position.
      temperature: divides the logits.

    Returns:
      Float32, of the tempered distribution. Its entropy is the second less the third,
      which is not differentiated.
    """
    # One leading axis: with two of them XLA reduces on CPU at a third of the speed.
    flat = logits.reshape(-1, logits.shape[-1])
    flat = flat / jnp.asarray(temperature, jnp.float32)
    total = jax.nn.logsumexp(flat, axis=-1)
    picked = jnp.take_along_axis(flat, targets.reshape(-1, 1), axis=-1)[:, 0]
    fixed, fixed_total = jax.lax.stop_gradient((flat, total))
    mean = (jnp.exp(fixed - fixed_total[:, None]) * fixed).sum(-1)
    logp, total, mean = (
        x.reshape(targets.shape) for x in (picked - total, total, mean)
    )
    return logp, total, mean


def _chunks(x, size):
    """Pads the leading axis with zeros to whole chunks: `[N, size, ...]`."""
    missing = -x.shape[0] % size if x.shape[0] else size
    padded = jnp.pad(x, ((0, missing),) + ((0, 0),) * (x.ndim - 1))
    return padded.reshape(-1, size, *x.shape[1:])
