r"""Grading: from a response and a gold answer to a verdict.

Numbers are compared as fractions, never as floats, so 0.1 is one tenth and a large
integer keeps its last digit. Nothing in a response is evaluated, every scan is linear,
and lengths are bounded, so that no output of a model can hold the grader. A fault of
the grader is an error and never a wrong answer.
"""

import functools
import re
from fractions import Fraction

from grpo_jax import equality, latex, symbolic
from grpo_jax.base import Verdict
from grpo_jax.extraction import bounded, boxes, extract
from grpo_jax.numerals import MAX_ANSWER
from grpo_jax.units import CURRENCIES

__all__ = ["extract", "grade", "is_numeric", "kind", "number", "same"]

_JOINED = re.compile(r"[^\\0-9]{0,30}\b(?:and|or)\b[^\\0-9]{0,10}|\s*,\s*")
_PROSE = re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]+){2}.*\$|\banswer\b", re.DOTALL)
_MARKS = re.compile(r"\\[()]|\$")


def grade(response: str, answer: str, *, require_box: bool = False) -> Verdict:
    r"""Whether a response ends with the gold answer.

    Args:
      response: what a model wrote.
      answer: the gold answer; `$...$`, a box or prose may surround it, and boxes joined
        by "and" are a list.
      require_box: only an answer in `\boxed{}` counts.
    """
    gold = _gold(answer)
    if not gold.strip():
        return Verdict(False, None, "the gold answer is empty")
    extracted = extract(response, require_box=require_box)
    if extracted is None or len(gold) > MAX_ANSWER:
        return Verdict(False, extracted, None)
    judged = _judge(gold, extracted)
    if isinstance(judged, str):
        return Verdict(False, extracted, judged)
    return Verdict(judged, extracted, None)


@functools.lru_cache(maxsize=1 << 16)
def same(a: str, b: str) -> bool:
    """Whether two extracted answers are equal, whichever of them is taken as gold.

    Not transitive: 28 and 0.28 both equal 28%. A fault of the grader counts as unequal.
    """
    return _judge(a, b) is True or _judge(b, a) is True


@functools.lru_cache(maxsize=1 << 14)
def _judge(gold: str, answer: str) -> bool | str:
    """Whether an answer is right, or why that is not known; kept for the next one."""
    if (
        latex.depth(answer) > symbolic.MAX_DEPTH
        or latex.depth(gold) > symbolic.MAX_DEPTH
    ):
        return gold.split() == answer.split()
    ask = symbolic.within(symbolic.LIMIT_SECONDS)
    ours, theirs = latex.one_spelling(gold), latex.one_spelling(answer)
    try:
        return len(theirs) <= 2 * MAX_ANSWER and equality.equal(ours, theirs, ask)
    except symbolic.Failure as failure:
        return str(failure)


def _gold(answer: str) -> str:
    """The gold answer without what surrounds it."""
    found = boxes(answer)
    if found:
        last = len(found) - 1
        while last:
            between = answer[found[last - 1][0].stop : found[last][0].start]
            if not _JOINED.fullmatch(_MARKS.sub("", between)):
                break
            last -= 1
        return ", ".join(content for _, content in found[last:])
    if "####" in answer or "</answer>" in answer or _PROSE.search(answer[:5000]):
        return extract(answer) or answer
    return answer.strip()


def number(text: str) -> Fraction | None:
    r"""The exact value of a plain number; None where the text is something else.

    Reads what `numerals` does, in `$`, `\( \)`, `**`, braces or boxes, and of `x = 7`
    the last side; money is a number, but a percent or a quantity with a unit is not.
    """
    if len(text) > MAX_ANSWER:
        return None
    found = equality.read(latex.one_spelling(text))
    plain = found and found.unit in ("", *CURRENCIES)
    return found.value if found and plain else None


def is_numeric(answer: str) -> bool:
    """Whether a gold answer is a number, with or without a unit."""
    return kind(answer) != "other"


def kind(answer: str) -> str:
    """How a gold answer is written, for counts: "integer", "percent", ..., "other"."""
    gold = bounded(_gold(answer))
    found = gold and equality.read(latex.one_spelling(gold))
    if not found:
        return "other"
    if found.unit in ("percent", "degree"):
        return found.unit
    if found.unit in (*CURRENCIES, "cent"):
        return "currency"
    if found.unit:
        return "unit"
    return "thousands" if found.grouped else found.form
