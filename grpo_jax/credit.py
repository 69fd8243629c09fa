"""Credit assignment: from the rewards of one group to one advantage per sample.

Functions act on a single group; `jax.vmap` them over the prompts. None of them is
differentiated. Equal rewards give exact zeros in all of them.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


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
