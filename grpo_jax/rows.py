r"""From a row to a problem: where its parts stand, and how an answer is read.

An answer stands in a field of its own, after `####` at the end of a worked solution, or
in the last `\boxed{}` of one. Numbers become the shortest text of the same value: 27.0
is `27`, and no digit is lost.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from grpo_jax import rewards
from grpo_jax.base import Problem
from grpo_jax.splits import problem_id

MARK = "####"  # what GSM8K writes before the answer
MAX_DIGITS = 1000  # of a number in a row
_CALCULATION = re.compile(r"<<[^<>\n]*>>")
_LEVEL = re.compile(r"(?:level\s*)?([0-9]+)", re.IGNORECASE)
_UNKNOWN_LEVEL = re.compile(r"(?:level)?\s*\??", re.IGNORECASE)


class Layout(NamedTuple):
    """Where a row keeps its parts.

    Attributes:
      question: names of fields, the first that the row has; a dot leads into a table.
      answer: the same. A row with none of them has its answer boxed in the solution.
      solution: the same, as for the two below; a row may lack them.
      level: difficulty.
      subject: field of mathematics.
      marked: the answer field is a worked solution that must end in `#### answer`.
      instruction: patterns of what is stripped from the front and end of a question.
    """

    question: tuple[str, ...] = ("question", "problem", "prompt")
    answer: tuple[str, ...] = (
        "answer",
        "final_answer",
        "ground_truth",
        "reward_model.ground_truth",
    )
    solution: tuple[str, ...] = ("solution",)
    level: tuple[str, ...] = ("level",)
    subject: tuple[str, ...] = ("subject", "type")
    marked: bool = False
    instruction: tuple[str, str] = ("", "")

    def columns(self) -> frozenset[str]:
        """Returns the names of fields at the top of a row that are read."""
        names = self.question + self.answer + self.solution + self.level + self.subject
        return frozenset(name.partition(".")[0] for name in names)


def problem(fields: Mapping[str, Any], layout: Layout, *, task: str) -> Problem:
    """Reads a row.

    Args:
      fields: the row.
      layout: where its parts stand.
      task: leads the id.

    Raises:
      ValueError: the row is no problem; says why.
    """
    asked = question(fields, layout)
    solution = _optional(fields, layout.solution)
    given = _first(fields, layout.answer)
    if layout.marked or (isinstance(given, str) and MARK in given):
        worked, answer = _marked(given)
        solution = solution or worked
    elif given is not None:
        answer = plain(given, "the answer")
    else:
        answer = _boxed(solution, layout)
    if not answer:
        raise ValueError("the answer is empty")
    level, subject = _level(fields, layout.level), _optional(fields, layout.subject)
    for text in (asked, answer, solution, level, subject):
        _check_text(text)
    return Problem(
        id=problem_id(task, asked),
        question=asked,
        answer=answer,
        solution=solution,
        level=level,
        subject=subject,
    )


def plain(value: Any, what: str) -> str:
    """A number or a text as text, without surrounding space."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(
            f"{what} is {_short(value)}; it must be a text or a finite number"
        )
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not exact.is_finite() or max(exact.adjusted(), -_exponent(exact)) > MAX_DIGITS:
        raise ValueError(f"{what} is {_short(value)}; it must be a finite number")
    if exact == exact.to_integral_value():
        return str(int(exact))
    return f"{exact:f}".rstrip("0")


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of the fields that is there and not null."""
    for name in names:
        value: Any = fields
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _optional(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    value = _first(fields, names)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{' or '.join(names)} is {_short(value)}; it must be text")
    return (value or "").strip()


def _boxed(solution: str, layout: Layout) -> str:
    """The answer that a solution ends with, for a row without one of its own."""
    if not solution:
        raise ValueError(f"it has no answer in {', '.join(layout.answer)}")
    answer = rewards.extract(solution, require_box=True)
    if answer is None:
        raise ValueError(r"the solution has no \boxed{} answer")
    return answer


def question(fields: Mapping[str, Any], layout: Layout) -> str:
    """What a row asks, without an instruction baked into it.

    Raises:
      ValueError: it asks nothing, or not in one text.
    """
    value = _first(fields, layout.question)
    if value is None:
        raise ValueError(f"it has no question in {', '.join(layout.question)}")
    if isinstance(value, list):
        value = _only_message(value)
    if not isinstance(value, str):
        raise ValueError(f"the question is {_short(value)}; it must be text")
    before, after = layout.instruction
    if before:
        value = re.sub(rf"\A\s*{before}", "", value)
    if after:
        value = re.sub(rf"{after}\s*\Z", "", value)
    if not value.strip():
        raise ValueError("the question is empty")
    return value.strip()


def _only_message(messages: list[Any]) -> Any:
    """What the user says in a list of chat messages; a system message is passed by."""
    said = [
        m.get("content") if isinstance(m, dict) else None
        for m in messages
        if not (isinstance(m, dict) and m.get("role") == "system")
    ]
    if len(said) != 1:
        raise ValueError(
            f"the question is a chat of {len(said)} messages; it must be one"
        )
    return said[0]


def _marked(text: Any) -> tuple[str, str]:
    r"""A solution that ends in `#### x`: with the answer boxed, and the answer."""
    if not isinstance(text, str):
        raise ValueError(f"the answer is {_short(text)}; it must end in {MARK} answer")
    worked, mark, tail = text.rpartition(MARK)
    answer = tail.strip().split("\n", 1)[0].strip()
    if not mark or not answer:
        raise ValueError(f"there is no answer after {MARK}")
    steps = _CALCULATION.sub("", worked).strip()
    last = rf"The answer is \boxed{{{answer}}}."
    return (f"{steps}\n{last}" if steps else ""), answer


def _level(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    """`3` of 3, 3.0 and "Level 3"; empty where there is none or it is unknown."""
    value = _first(fields, names)
    text = "" if value is None else plain(value, " or ".join(names))
    number = _LEVEL.fullmatch(text)
    if number:
        return str(int(number[1]))
    return "" if _UNKNOWN_LEVEL.fullmatch(text) else text


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it holds half a surrogate pair, which is no text") from None


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:39] + "…"
