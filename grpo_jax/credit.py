"""Credit assignment: from rewards of a group, or values around steps, to advantages.

The first functions act on a single group, those of steps on a single row; `jax.vmap`
them. What scales steps takes a whole update. None of them is differentiated. Equal
rewards give exact zeros in all of them.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.steps import split_steps as split_steps


def centred(rewards: Float[Array, "G"]) -> Float[Array, "G"]:
    """Rewards minus the mean of their group, in units of reward (Dr. GRPO).

    See "Understanding R1-Zero-Like Training" by Liu et al.
    (https://arxiv.org/abs/2503.20783). A sample is part of its own baseline, so the
    expected gradient is (G - 1) / G of the true one.
    """
    # Equality is tested on the rewards: their computed mean can be off by one ulp,
    # which a later division by a spread of the same size would blow up.
    differ = rewards.max() > rewards.min()
    return jnp.where(differ, rewards - rewards.mean(), jnp.zeros_like(rewards))


def leave_one_out(rewards: Float[Array, "G"]) -> Float[Array, "G"]:
    """Each reward minus the mean of the others in its group (RLOO), unbiased.

    See "Back to Basics" by Ahmadian et al. (https://arxiv.org/abs/2402.14740).
    A group of one has nothing to compare with and gives zero.
    """
    size = rewards.shape[0]
    return centred(rewards) * (size / max(size - 1, 1))


def group_relative(
    rewards: Float[Array, "G"], *, ddof: int = 1, epsilon: float = 1e-6
) -> Float[Array, "G"]:
    """Centred rewards in units of their group's standard deviation (GRPO).

    See "DeepSeekMath" by Shao et al. (https://arxiv.org/abs/2402.03300), sec. 4.1.2.

    Args:
      rewards: one scalar reward per sample of the same prompt.
      ddof: subtracted from G in the variance's denominator.
      epsilon: added to the standard deviation.

    Returns:
      Advantages; zero for a group whose rewards are all equal.
    """
    advantage = centred(rewards) / (rewards.std(ddof=ddof) + epsilon)
    # A group of one has no spread: its standard deviation is nan, its advantage 0.
    differ = rewards.max() > rewards.min()
    return jnp.where(differ, advantage, jnp.zeros_like(advantage))


def batch_spread(
    rewards: Float[Array, "P G"], *, ddof: int = 1, epsilon: float = 1e-6
) -> Float[Array, ""]:
    """Standard deviation of all rewards of an update, to divide `centred` by.

    Groups that are almost all right or almost all wrong are then not blown up, as
    dividing by their own small spread does. See "Part I: Tricks or Traps?" by Liu et
    al. (https://arxiv.org/abs/2508.08221).

    Args:
      rewards: one scalar reward per prompt and sample.
      ddof: subtracted from P·G in the variance's denominator.
      epsilon: added to the standard deviation.

    Returns:
      One positive number, in units of reward.
    """
    return rewards.std(ddof=ddof) + epsilon


def step_advantages(values: Float[Array, "S1"]) -> Float[Array, "S"]:
    """Value after each step minus the value before it; their sum telescopes.

    See "VinePPO" by Kazemnejad et al. (https://arxiv.org/abs/2410.01679).

    Args:
      values: S + 1 of one row, `values[0]` before its first step and `values[S]` the
        verified outcome.
    """
    return values[1:] - values[:-1]


def return_to_go(values: Float[Array, "S1"]) -> Float[Array, "S"]:
    """Outcome minus the value before each step: the rest of the differences."""
    return values[-1] - values[:-1]


def step_spread(
    advantages: Float[Array, "B S"],
    is_step: Bool[Array, "B S"],
    *,
    epsilon: float = 1e-6,
) -> Float[Array, ""]:
    """Standard deviation of an update's step advantages, each real step once, ddof 0.

    Args:
      advantages: of each row's steps.
      is_step: False behind a row's own steps.
      epsilon: added to the standard deviation.

    Returns:
      One positive number; 1 where all real steps are equal, whose computed spread is
      rounding.
    """
    real = jnp.where(is_step, advantages, 0)
    count = is_step.sum(dtype=advantages.dtype)
    gap = jnp.where(is_step, advantages - real.sum() / count, 0)
    spread = jnp.sqrt(jnp.square(gap).sum() / count) + epsilon
    most = jnp.where(is_step, advantages, -jnp.inf).max()
    least = jnp.where(is_step, advantages, jnp.inf).min()
    return jnp.where(most > least, spread, 1.0)


def in_spreads(
    advantages: Float[Array, "B S"],
    is_step: Bool[Array, "B S"],
    *,
    epsilon: float = 1e-6,
) -> Float[Array, "B S"]:
    """Step advantages over `step_spread`, not shifted: a shift breaks telescoping."""
    spread = step_spread(advantages, is_step, epsilon=epsilon)
    return jnp.where(is_step, advantages / spread, 0)


def whitened(
    advantages: Float[Array, "B S"],
    is_step: Bool[Array, "B S"],
    *,
    epsilon: float = 1e-6,
) -> Float[Array, "B S"]:
    """Step advantages minus their mean over the update, over `step_spread`."""
    count = is_step.sum(dtype=advantages.dtype)
    mean = jnp.where(is_step, advantages, 0).sum() / count
    spread = step_spread(advantages, is_step, epsilon=epsilon)
    # Equal ones are off their computed mean by rounding, and all that is left is 0.
    most = jnp.where(is_step, advantages, -jnp.inf).max()
    least = jnp.where(is_step, advantages, jnp.inf).min()
    shifted = jnp.where(most > least, advantages - mean, 0)
    return jnp.where(is_step, shifted / spread, 0)


def as_they_are(
    advantages: Float[Array, "B S"], is_step: Bool[Array, "B S"]
) -> Float[Array, "B S"]:
    """Step advantages in units of reward."""
    return jnp.where(is_step, advantages, 0)
