"""GRPO and next-token training, each as one `Method`.

The factories close over functions and numbers only, never over arrays. Which loss,
denominator, comparison or divergence is used is a function passed in; `options` has
them by name.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from budgets.ledger import Phase
from grpo_jax import credit, losses, masked, objectives, selection
from grpo_jax.base import (
    Batch,
    Feedback,
    Functions,
    Method,
    Params,
    Problem,
    Rollout,
    Weights,
)

# Turns the rewards of one group into advantages.
Compare: TypeAlias = Callable[[Float[Array, "G"]], Float[Array, "G"]]
# A number that advantages are divided by, from all rewards of an update.
Scale: TypeAlias = Callable[[Float[Array, "P G"]], Float[Array, ""]]
# Prompt and completion ids of a problem with a solution; the latter with its stop.
Encode: TypeAlias = Callable[[Problem], tuple[Sequence[int], Sequence[int]]]


def grpo(
    functions: Functions,
    *,
    group_size: int,
    prompts_per_update: int,
    compare: Compare = credit.group_relative,
    scale: Scale | None = None,
    kl: objectives.Divergence | None = None,
    kl_coefficient: float = 0.0,
    kl_in_reward: float = 0.0,
    reference: Params | None = None,
    mask_truncated: bool = False,
    **surrogate_options,
) -> Method:
    """One outcome reward per sequence, compared within its group.

    See "DeepSeekMath" by Shao et al. (https://arxiv.org/abs/2402.03300), sec. 4.1.

    Args:
      functions: the policy.
      group_size: samples per prompt, at least 2.
      prompts_per_update: prompts drawn uniformly for each update.
      compare: rewards of a group to advantages, of `credit`.
      scale: divides the advantages by a number for the whole update, as
        `credit.batch_spread` does with `credit.centred`; None divides by nothing.
      kl: see `objectives.surrogate`.
      kl_coefficient: see `objectives.surrogate`.
      kl_in_reward: taken off each reward, before the comparison, times the summed
        log-ratio of the sampling policy to the reference (k1).
      reference: weights that `kl` and `kl_in_reward` refer to, with the same
        functions; needed by both, and if given alone the divergence is logged.
      mask_truncated: leaves truncated answers out of the loss and its denominator;
        they are graded and compared all the same.
      **surrogate_options: of `objectives.surrogate`.

    Returns:
      The method; `frozen` is `{"reference": ...}` with a reference, else empty.
    """
    if group_size < 2:
        raise ValueError(
            f"group_size={group_size} leaves nothing to compare a sample with; "
            "use at least 2"
        )
    if reference is None and (kl is not None or kl_in_reward):
        raise ValueError(
            "a KL term needs reference weights; pass reference=, or leave the term out"
        )
    if kl is None and kl_coefficient:
        raise ValueError(
            f"kl_coefficient={kl_coefficient} has no divergence to weigh; pass kl="
        )

    def generate(services, params, frozen, prompts, key):
        del frozen
        return services.sample(
            Weights(params),
            prompts,
            num_samples=group_size,
            phase=Phase.ROLLOUT,
            key=key,
        )

    def assign(services, params, frozen, rollout, prompts, key):
        del params, key
        feedback = services.verify(rollout, prompts, phase=Phase.ROLLOUT)
        rewards, targets = jnp.asarray(feedback.reward, jnp.float32), {}
        if frozen:
            targets["logp_ref"] = services.score(
                Weights(frozen["reference"], "reference"),
                rollout,
                phase=Phase.REFERENCE,
                want="logp",
            )
        if kl_in_reward:
            rewards = rewards - kl_in_reward * sequence_log_ratio(
                rollout, targets["logp_ref"]
            )
        groups = rewards.reshape(-1, group_size)
        advantage = jax.vmap(compare)(groups)
        if scale is not None:
            advantage = advantage / scale(groups)
        mask = jnp.asarray(rollout.sampled)
        if mask_truncated:
            mask = mask & ~jnp.asarray(rollout.truncated)[:, None]
        spread = jnp.broadcast_to(advantage.reshape(-1, 1), mask.shape)
        batch = Batch(rollout=rollout, advantage=spread, mask=mask, targets=targets)
        return batch, feedback

    selector = selection.uniform(prompts_per_update)
    return Method(
        init=selector.init,
        select=selector.select,
        generate=generate,
        credit=assign,
        observe=selector.observe,
        objective=objectives.surrogate(
            functions, kl=kl, kl_coefficient=kl_coefficient, **surrogate_options
        ),
        frozen={} if reference is None else {"reference": reference},
    )


def sequence_log_ratio(
    rollout: Rollout, logp: Float[Array, "B T"]
) -> Float[Array, "B"]:
    """Sum over sampled tokens of log-probability when sampled minus `logp`, in nats."""
    gap = jnp.asarray(rollout.logp) - logp
    return masked.keep(gap, jnp.asarray(rollout.sampled)).sum(-1)


def next_token(
    functions: Functions,
    *,
    encode: Encode,
    sequences_per_update: int,
    width: int,
    chunk_size: int = 128,
    reduce: objectives.Reduce = losses.per_token,
) -> Method:
    """Next-token loss on given completions; samples, scores and verifies nothing.

    Args:
      functions: the policy.
      encode: gives the ids of a problem; every completion id is trained on, so its
        stop token must be among them.
      sequences_per_update: problems drawn uniformly for each update.
      width: tokens that every row is padded to.
      chunk_size: positions whose logits exist at once.
      reduce: the denominator, of `losses`.

    Returns:
      The method. Its feedback has reward 0 for every sequence.
    """

    def generate(services, params, frozen, prompts, key):
        del services, params, frozen, key
        return given([(p.id, *encode(p)) for p in prompts], width=width)

    def assign(services, params, frozen, rollout, prompts, key):
        del services, params, frozen, prompts, key
        rows = rollout.tokens.shape[0]
        feedback = Feedback(
            reward=np.zeros(rows, np.float32),
            error=np.zeros(rows, bool),
            answers=(None,) * rows,
        )
        zero = jnp.zeros(rollout.tokens.shape, jnp.float32)
        batch = Batch(rollout=rollout, advantage=zero, mask=rollout.sampled, targets={})
        return batch, feedback

    def objective(params, batch, frozen):
        del frozen
        logp, entropy = objectives.read(
            functions,
            params,
            batch.rollout,
            mask=batch.mask,
            packed=batch.packed,
            chunk_size=chunk_size,
        )
        metrics = {"entropy": losses.per_token(entropy, batch.mask)}
        return reduce(-logp, batch.mask), metrics

    selector = selection.uniform(sequences_per_update)
    return Method(
        init=selector.init,
        select=selector.select,
        generate=generate,
        credit=assign,
        observe=selector.observe,
        objective=objective,
    )


def given(
    sequences: Sequence[tuple[str, Sequence[int], Sequence[int]]], *, width: int
) -> Rollout:
    """Lays out (id, prompt, completion) as if the completions had been sampled.

    The log-probabilities of a policy that sampled them do not exist and are 0.
    """
    rows = len(sequences)
    tokens = np.zeros((rows, width), np.int32)
    prompt_length, length = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    for i, (name, prompt, completion) in enumerate(sequences):
        ids = [*prompt, *completion]
        if not prompt or not completion or len(ids) > width:
            raise ValueError(
                f"problem {name!r} has {len(prompt)} prompt and {len(completion)} "
                f"completion tokens; both need at least 1, together at most "
                f"width={width}: raise width or drop the problem"
            )
        tokens[i, : len(ids)] = ids
        prompt_length[i], length[i] = len(prompt), len(ids)
    column = np.arange(width)[None, :]
    sampled = (column >= prompt_length[:, None]) & (column < length[:, None])
    return Rollout(
        tokens=jnp.asarray(tokens),
        sampled=jnp.asarray(sampled),
        logp=jnp.zeros((rows, width), jnp.float32),
        prompt_length=jnp.asarray(prompt_length),
        length=jnp.asarray(length),
        truncated=jnp.zeros((rows,), bool),
    )
