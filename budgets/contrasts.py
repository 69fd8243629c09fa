"""The contrasts that were registered before running (arXiv 2611.13560), one-sided.

Each is a claim that one arm is above another. Holm's correction is over those that the
arms and splits of a study allow to be tested; what is beside a contrast is shown with
its interval and claims nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from budgets.bootstrap import Interval

# (arm, against, grid, fresh) -> their paired difference, None where it is not known.
Differ: TypeAlias = Callable[[str, str, str, bool], Interval | None]


class Part(NamedTuple):
    """One arm above another.

    Attributes:
      above: the arm that is claimed to be better.
      below: the other.
      grid: what is equal; of `match.GRIDS`.
      fresh: on the locked further problems.
    """

    above: str
    below: str
    grid: str = "tokens"
    fresh: bool = False


class Contrast(NamedTuple):
    """A registered claim.

    Attributes:
      name: T1 to T5.
      claim: in words.
      parts: all of which must hold; p is the largest of theirs.
      beside: shown without a claim.
    """

    name: str
    claim: str
    parts: tuple[Part, ...]
    beside: tuple[Part, ...] = ()


class Outcome(NamedTuple):
    """What became of a contrast.

    Attributes:
      contrast: the claim.
      parts: the paired difference of each part.
      beside: the same of what is shown beside it, where it is known.
      p: one-sided.
      p_holm: corrected.
    """

    contrast: Contrast
    parts: tuple[Interval, ...]
    beside: tuple[tuple[Part, Interval], ...]
    p: float
    p_holm: float


def registered(plain: str = "grpo") -> tuple[Contrast, ...]:
    """Returns the five contrasts; `plain` is the name of the plain arm."""
    return (
        Contrast(
            "T1",
            f"the reversal: dense above {plain} at equal updates, below it at equal"
            " tokens",
            (Part("dense", plain, "updates"), Part(plain, "dense", "tokens")),
            (Part("dense", plain, "device_seconds"),),
        ),
        Contrast(
            "T2",
            f"filter above {plain} at equal tokens",
            (Part("filter", plain),),
            (Part("filter", plain, "device_seconds"),),
        ),
        Contrast(
            "T3", "filter above random at equal tokens", (Part("filter", "random"),)
        ),
        Contrast(
            "T4",
            "filter above filter-hard at equal tokens",
            (Part("filter", "filter-hard"),),
            (Part("filter-hard", plain),),
        ),
        Contrast(
            "T5",
            f"filter above {plain} at equal tokens, on fresh problems",
            (Part("filter", plain, fresh=True),),
        ),
    )


def tested(
    contrasts: Sequence[Contrast], differ: Differ
) -> tuple[list[Outcome], dict[str, str]]:
    """Returns the contrasts that can be tested, and why the others cannot.

    Args:
      contrasts: of `registered`.
      differ: gives the difference of a part.
    """
    known, missing = [], {}
    for contrast in contrasts:
        found = [differ(*part) for part in contrast.parts]
        lacking = [
            part for part, one in zip(contrast.parts, found, strict=True) if one is None
        ]
        if lacking:
            one = lacking[0]
            where = "fresh problems" if one.fresh else f"equal {one.grid}"
            missing[contrast.name] = (
                f"no runs of {one.above} and {one.below} at {where}"
            )
        else:
            known.append((contrast, tuple(x for x in found if x is not None)))
    ps = [max(x.p for x in found) for _, found in known]
    outcomes = []
    for (contrast, found), p, corrected in zip(known, ps, holm(ps), strict=True):
        beside = ((part, differ(*part)) for part in contrast.beside)
        shown = tuple((part, x) for part, x in beside if x is not None)
        outcomes.append(Outcome(contrast, found, shown, p, corrected))
    return outcomes, missing


def holm(ps: Sequence[float]) -> list[float]:
    """Returns p values corrected for their number, in the order given.

    See "A Simple Sequentially Rejective Multiple Test Procedure" by Holm (1979).
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min((len(ps) - rank) * ps[i], 1.0))
        corrected[i] = largest
    return corrected


def verdict(outcome: Outcome, *, level: float = 0.05) -> str:
    """Returns whether the data support a claim, and with which p."""
    supported = outcome.p_holm <= level
    word = "supported" if supported else "not supported"
    return (
        f"{outcome.contrast.name}, {outcome.contrast.claim}: {word}"
        f" (p {outcome.p:.4f}, {outcome.p_holm:.4f} after Holm)"
    )


def lines(outcomes: Sequence[Outcome], missing: Mapping[str, str]) -> list[str]:
    """Returns a line for each contrast, those that were not tested last."""
    lines = [verdict(outcome) for outcome in outcomes]
    return lines + [f"{name}: not tested, {why}" for name, why in missing.items()]
