"""The functions that a configuration names: one lookup from a word to a function.

Strings end here. The maths takes the functions.
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from grpo_jax import credit, losses, optim
from grpo_jax.config_schema import Credit

Value = TypeVar("Value")

# Keywords of `methods.grpo`.
ADVANTAGES: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "group_relative": {"compare": credit.group_relative},
        "centred": {"compare": credit.centred},
        "leave_one_out": {"compare": credit.leave_one_out},
        "batch": {"compare": credit.centred, "scale": credit.batch_spread},
    }
)
LOSSES: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "clipped": {"loss": losses.clipped_surrogate, "level": losses.token_level},
        "cispo": {"loss": losses.cispo, "level": losses.token_level},
        "gspo": {"loss": losses.clipped_surrogate, "level": losses.sequence_level},
    }
)
VARIANTS: Mapping[str, Callable] = MappingProxyType(
    {
        "difference": credit.step_advantages,
        "return_to_go": credit.return_to_go,
        "mixed": credit.step_advantages,
    }
)
NORMALISATIONS: Mapping[str, Callable] = MappingProxyType(
    {
        "std": credit.in_spreads,
        "whiten": credit.whitened,
        "none": credit.as_they_are,
    }
)
# k1 differentiated has zero expected gradient: it is offered in the reward only.
KLS: Mapping[str, Callable] = MappingProxyType(
    {"k2": losses.kl_k2, "k3": losses.kl_k3, "k3_value_k2_gradient": losses.kl_k3_k2}
)
AGGREGATIONS: Mapping[str, Callable] = MappingProxyType(
    {
        "token_mean": losses.per_token,
        "sequence_mean": losses.per_sequence,
        "sequence_sum": losses.sequence_sum,
        "constant": losses.constant_length,  # takes `length`
    }
)
SCHEDULES: Mapping[str, optim.Decay] = MappingProxyType(
    {"constant": optim.constant, "linear": optim.linear, "cosine": optim.cosine}
)


def look_up(table: Mapping[str, Value], name: str, *, field: str) -> Value:
    """Returns the entry of a name, or says which names there are."""
    if name not in table:
        known = ", ".join(table)
        raise ValueError(f"{field}={name!r} is not known; use one of {known}")
    return table[name]


def aggregation(name: str, *, length: int) -> Callable:
    """Returns a denominator of the batch; `length` is read by `constant` only."""
    function = look_up(AGGREGATIONS, name, field="aggregation")
    if function is losses.constant_length:
        return functools.partial(function, length=length)
    return function


def loss(name: str, *, dual_clip: float | None = None) -> dict[str, Any]:
    """Returns the keywords of `objectives.surrogate` that name a loss.

    Args:
      name: of `LOSSES`.
      dual_clip: of `losses.clipped_surrogate`; None for no bound.
    """
    entry = look_up(LOSSES, name, field="loss")
    if dual_clip is None:
        return dict(entry)
    if entry["loss"] is not losses.clipped_surrogate:
        raise ValueError(
            f"dual_clip={dual_clip} bounds the clipped surrogate, not loss={name!r}; "
            "leave dual_clip out or use another loss"
        )
    if dual_clip <= 1:
        raise ValueError(f"dual_clip={dual_clip} must be above 1; use 3 or more")
    return entry | {"loss": functools.partial(entry["loss"], dual_clip=dual_clip)}


def advantage(name: str, *, ddof: int = 1, epsilon: float = 1e-6) -> dict[str, Any]:
    """Returns the keywords of `methods.grpo` that name a comparison.

    Args:
      name: of `ADVANTAGES`.
      ddof: of the standard deviation, where one is taken.
      epsilon: added to it.
    """
    entry = look_up(ADVANTAGES, name, field="advantage")
    spread = {credit.group_relative, credit.batch_spread}
    return {
        keyword: functools.partial(f, ddof=ddof, epsilon=epsilon) if f in spread else f
        for keyword, f in entry.items()
    }


def step_credit(wanted: Credit) -> dict[str, Any]:
    """Returns the keywords of `methods.dense` that section credit names."""
    mixed, apart = wanted.variant == "mixed", wanted.baseline == "fresh"
    return {
        "max_steps": wanted.max_steps,
        "num_continuations": wanted.continuations,
        "variant": look_up(VARIANTS, wanted.variant, field="credit.variant"),
        "normalise": look_up(
            NORMALISATIONS, wanted.normalise, field="credit.normalise"
        ),
        "fresh_baseline": wanted.continuations if apart else 0,
        "outcome_share": 1 - wanted.mix if mixed else 0.0,
    }
