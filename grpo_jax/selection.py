"""Which prompts an update trains on, as the three selecting parts of a `Method`.

What a choice costs is charged by the services that it calls. Those that score
candidates first are in `scored`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from budgets.ledger import Phase
from grpo_jax import keys, several
from grpo_jax.base import Picked, Pool, Selection, Weights


class Selector(NamedTuple):
    """The parts of `base.Method` that choose prompts; see there for each."""

    init: Callable[[Pool], Selection]
    select: Callable[..., tuple[Picked, Selection]]
    observe: Callable[..., Selection]


class NoVariance(RuntimeError):
    """No prompts are left whose groups differ in reward."""


def no_state(pool: Pool) -> Selection:
    """The state of a choice that has none."""
    del pool
    return ()


def unmoved(selection: Selection, prompts, feedback) -> Selection:
    """What a choice that learns nothing from an update keeps."""
    del prompts, feedback
    return selection


def uniform(prompts_per_update: int) -> Selector:
    """Takes the next prompts of the pool, whatever happened before; stateless."""

    def select(services, params, selection, pool, key):
        del services, params, key
        return Picked(pool.draw(prompts_per_update)), selection

    return Selector(no_state, select, unmoved)


def history(
    prompts_per_update: int,
    *,
    candidates: int = 16,
    target: float = 0.5,
    forgetting: float = 0.1,
) -> Selector:
    """Guesses pass rates from the rollouts seen so far, and scores nothing.

    Each prompt has a Beta(1, 1) prior. An update draws a rate for each of its
    candidates (Thompson sampling) and takes those nearest the target. See "Can Prompt
    Difficulty be Online Predicted for Accelerating RL Finetuning of Reasoning Models?"
    by Qu et al. (https://arxiv.org/abs/2507.04632).

    Args:
      prompts_per_update: B.
      candidates: prompts drawn from the pool, in units of B.
      target: pass rate that teaches most.
      forgetting: δ; when a prompt was trained on, its counts a become
        1 + (1 - δ) (a - 1) plus what its new rollouts add.
    """

    def init(pool):
        ones = jnp.ones(pool.size, jnp.float32)
        picked = jnp.zeros(prompts_per_update, jnp.int32)
        return {"right": ones, "wrong": ones, "picked": picked}

    def select(services, params, selection, pool, key):
        del services, params
        drawn = pool.draw(candidates * prompts_per_update)
        places = np.array([pool.place(problem.id) for problem in drawn])
        right, wrong = (np.asarray(selection[k]) for k in ("right", "wrong"))
        rates = jax.random.beta(key, right[places], wrong[places])
        near = np.argsort(np.abs(np.asarray(rates) - target), kind="stable")
        chosen = sorted(near[:prompts_per_update].tolist())
        picked = jnp.asarray(places[chosen].astype(np.int32))
        kept = tuple(drawn[i] for i in chosen)
        return Picked(kept), {**selection, "picked": picked}

    def observe(selection, prompts, feedback):
        right, wrong = (np.array(selection[k]) for k in ("right", "wrong"))
        groups = feedback.reward.reshape(len(prompts), -1)
        for place, rewards in zip(np.asarray(selection["picked"]), groups, strict=True):
            passed = float(rewards.sum())
            right[place] = 1 + (1 - forgetting) * (right[place] - 1) + passed
            failed = len(rewards) - passed
            wrong[place] = 1 + (1 - forgetting) * (wrong[place] - 1) + failed
        return {**selection, "right": jnp.asarray(right), "wrong": jnp.asarray(wrong)}

    return Selector(init, select, observe)


def dynamic(
    prompts_per_update: int, *, group_size: int, max_rounds: int = 10
) -> Selector:
    """Drops groups whose rewards are all equal and draws more until an update is full.

    See "DAPO" by Yu et al. (https://arxiv.org/abs/2503.14476), sec. 3.2. Everything
    sampled is charged, dropped groups and those beyond the last one wanted too.

    Args:
      prompts_per_update: B, drawn in each round.
      group_size: samples of each.
      max_rounds: rounds before it gives up.

    Raises:
      NoVariance: from `select`, when as many rounds have not filled an update.
    """

    def select(services, params, selection, pool, key):
        kept, rollouts = [], []
        for number in range(max_rounds):
            drawn = pool.draw(prompts_per_update)
            rollout = services.sample(
                Weights(params),
                drawn,
                num_samples=group_size,
                phase=Phase.ROLLOUT,
                key=keys.index(key, number),
            )
            feedback = services.verify(rollout, drawn, phase=Phase.ROLLOUT)
            groups = feedback.reward.reshape(-1, group_size)
            differ = np.flatnonzero(groups.max(axis=1) > groups.min(axis=1))
            differ = differ[: prompts_per_update - len(kept)]
            kept += [drawn[i] for i in differ]
            rows = differ[:, None] * group_size + np.arange(group_size)
            rollouts.append(several.take(rollout, rows.ravel()))
            if len(kept) == prompts_per_update:
                return Picked(tuple(kept), several.join(rollouts)), selection
        raise NoVariance(
            f"{len(kept)} of the {prompts_per_update} groups of an update have rewards"
            f" that differ, after {max_rounds} rounds of {prompts_per_update} prompts;"
            " use easier or harder problems, or raise selection.max_rounds or"
            " sampling.group_size"
        )

    return Selector(no_state, select, unmoved)
