"""GRPO and GRPO with dense step credit, each as one `Method`.

The factories close over functions and numbers only, never over arrays. Which loss,
denominator, comparison or divergence is used is a function passed in; `options` has
them by name.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from budgets.ledger import Phase
from grpo_jax import continuations, credit, keys, masked, objectives, selection
from grpo_jax.base import (
    Batch,
    Functions,
    Method,
    Params,
    Rollout,
    Services,
    Weights,
)
from grpo_jax.continuations import Segment
from grpo_jax.selection import Selector

# Turns the rewards of one group into advantages.
Compare: TypeAlias = Callable[[Float[Array, "G"]], Float[Array, "G"]]
# A number that advantages are divided by, from all rewards of an update.
Scale: TypeAlias = Callable[[Float[Array, "P G"]], Float[Array, ""]]
# Turns the values around the steps of one row into an advantage for each step.
Variant: TypeAlias = Callable[[Float[Array, "S1"]], Float[Array, "S"]]
# Scales the step advantages of an update; the second argument says which are real.
Normalise: TypeAlias = Callable[
    [Float[Array, "B S"], Bool[Array, "B S"]], Float[Array, "B S"]
]
_NO_REFERENCE = (
    "a KL term needs reference weights; pass reference=, or leave the term out"
)


def grpo(
    functions: Functions,
    *,
    group_size: int,
    prompts_per_update: int,
    selector: Selector | None = None,
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
      prompts_per_update: prompts drawn for each update.
      selector: chooses the prompts, of `selection`; None draws them uniformly.
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
    if reference is None and kl_in_reward:
        raise ValueError(_NO_REFERENCE)

    def assign(services, params, frozen, rollout, prompts, key):
        del params, key
        feedback = services.verify(rollout, prompts, phase=Phase.ROLLOUT)
        rewards = jnp.asarray(feedback.reward, jnp.float32)
        targets = _targets(services, frozen, rollout)
        if kl_in_reward:
            rewards = rewards - kl_in_reward * sequence_log_ratio(
                rollout, targets["logp_ref"]
            )
        groups = rewards.reshape(-1, group_size)
        advantage = jax.vmap(compare)(groups)
        if scale is not None:
            advantage = advantage / scale(groups)
        spread = jnp.broadcast_to(advantage.reshape(-1, 1), rollout.tokens.shape)
        return _batch(rollout, spread, targets, mask_truncated), feedback

    return _sampling(
        functions,
        assign,
        group_size=group_size,
        selector=selector or selection.uniform(prompts_per_update),
        kl=kl,
        kl_coefficient=kl_coefficient,
        reference=reference,
        **surrogate_options,
    )


def dense(
    functions: Functions,
    *,
    group_size: int,
    prompts_per_update: int,
    segment: Segment,
    max_steps: int,
    selector: Selector | None = None,
    num_continuations: int = 4,
    variant: Variant = credit.step_advantages,
    normalise: Normalise = credit.in_spreads,
    fresh_baseline: int = 0,
    outcome_share: float = 0.0,
    compare: Compare = credit.group_relative,
    kl: objectives.Divergence | None = None,
    kl_coefficient: float = 0.0,
    reference: Params | None = None,
    mask_truncated: bool = False,
    **surrogate_options,
) -> Method:
    """Credit for every step of an answer, from continuations of the states between.

    The value of a state is the share of continuations from it that end right; before
    the first step it is the mean outcome of the group's others, after the last the
    outcome itself. See "VinePPO" by Kazemnejad et al.
    (https://arxiv.org/abs/2410.01679), and arXiv 2611.13560.

    Args:
      functions: the policy.
      group_size: samples per prompt, at least 2.
      prompts_per_update: prompts drawn for each update.
      segment: sampled ids of a completion to the first token of each step but the
        first, as `steps.segmenter` makes it. It must be causal: whether a token begins
        a step may depend on what is before it only, or the gradient is biased.
      max_steps: the most steps that `segment` gives.
      selector: chooses the prompts, of `selection`; None draws them uniformly.
      num_continuations: K of each state; none of them is trained on.
      variant: values `[S + 1]` of a row to step advantages `[S]`, of `credit`.
      normalise: `(advantages[B, S], is_step[B, S])` to what the loss reads, of
        `credit`.
      fresh_baseline: samples of each prompt, apart from the group's, that give the
        value before the first step; 0 takes the group's others.
      outcome_share: 1 - λ of the mixed variant: weight of `compare`'s advantage, beside
        λ of the normalised step advantage.
      compare: of the outcomes, where `outcome_share` is above 0.
      kl: see `objectives.surrogate`, as for `kl_coefficient`.
      kl_coefficient: weight of `kl`.
      reference: see `grpo`.
      mask_truncated: see `grpo`.
      **surrogate_options: of `objectives.surrogate`.

    Returns:
      The method. Its feedback has `num_steps`.
    """

    def assign(services, params, frozen, rollout, prompts, key):
        feedback = services.verify(rollout, prompts, phase=Phase.ROLLOUT)
        at = continuations.steps(rollout, segment)
        between = continuations.after(
            services,
            params,
            rollout,
            prompts,
            keys.index(key, 0),
            at=at,
            continuations=num_continuations,
        )
        start = continuations.leave_one_out(feedback.reward, group_size)
        if fresh_baseline:
            start = continuations.fresh(
                services,
                params,
                prompts,
                keys.index(key, 1),
                group_size=group_size,
                samples=fresh_baseline,
            )
        values = continuations.table(
            start, between, feedback.reward, max_steps=max_steps
        )
        is_step = jnp.asarray(np.arange(max_steps)[None] < at.count[:, None])
        advantage = normalise(jax.vmap(variant)(jnp.asarray(values)), is_step)
        if outcome_share:
            groups = jnp.asarray(feedback.reward).reshape(-1, group_size)
            outcome = jax.vmap(compare)(groups).reshape(-1, 1)
            advantage = outcome_share * outcome + (1 - outcome_share) * advantage
        spread = continuations.over_tokens(
            at, np.asarray(advantage), rollout.tokens.shape[1]
        )
        targets = _targets(services, frozen, rollout)
        batch = _batch(rollout, jnp.asarray(spread), targets, mask_truncated)
        return batch, dataclasses.replace(feedback, num_steps=at.count)

    return _sampling(
        functions,
        assign,
        group_size=group_size,
        selector=selector or selection.uniform(prompts_per_update),
        keep=True,
        kl=kl,
        kl_coefficient=kl_coefficient,
        reference=reference,
        **surrogate_options,
    )


def _sampling(
    functions: Functions,
    assign: Callable,
    *,
    group_size: int,
    selector: Selector,
    kl: objectives.Divergence | None,
    kl_coefficient: float,
    reference: Params | None,
    keep: bool = False,
    **surrogate_options,
) -> Method:
    """A method that samples groups and learns from a credit for their tokens."""
    if group_size < 2:
        raise ValueError(
            f"group_size={group_size} leaves nothing to compare a sample with; "
            "use at least 2"
        )
    if reference is None and kl is not None:
        raise ValueError(_NO_REFERENCE)
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
            keep=keep,
        )

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


def _targets(services: Services, frozen: Any, rollout: Rollout) -> dict[str, Any]:
    """What the reference says of the tokens, where there is one."""
    if not frozen:
        return {}
    weights = Weights(frozen["reference"], "reference")
    logp = services.score(weights, rollout, phase=Phase.REFERENCE, want="logp")
    return {"logp_ref": logp}


def _batch(
    rollout: Rollout, advantage: jax.Array, targets: dict, mask_truncated: bool
) -> Batch:
    mask = jnp.asarray(rollout.sampled)
    if mask_truncated:
        mask = mask & ~jnp.asarray(rollout.truncated)[:, None]
    return Batch(rollout=rollout, advantage=advantage, mask=mask, targets=targets)


def sequence_log_ratio(
    rollout: Rollout, logp: Float[Array, "B T"]
) -> Float[Array, "B"]:
    """Sum over sampled tokens of log-probability when sampled minus `logp`, in nats."""
    gap = jnp.asarray(rollout.logp) - logp
    return masked.keep(gap, jnp.asarray(rollout.sampled)).sum(-1)
