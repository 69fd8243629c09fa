r"""Whether an answer equals a gold answer, both in the one spelling.

Two numerals are compared by value and unit, exactly. Lists are unordered, tuples and
intervals ordered, and their elements are compared by these same rules. Words are
compared as words. What is left, expressions and closed forms of numbers, is asked of
`ask`.

Percents: 28% equals 28% and a bare 28 or 0.28, nothing else; below one the bare figure
is refused, since half a percent is not 0.5. Units: an answer or a gold without a unit
agrees with any unit, save that cents never agree with a bare number; two units must be
the same. No unit is converted.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from grpo_jax import latex
from grpo_jax.latex import DOLLAR, END, TEXT
from grpo_jax.numerals import Numeral, numeral
from grpo_jax.units import quantity

# Whether two expressions, gold first, are equal; raises what it likes.
Ask: TypeAlias = Callable[[str, str], bool]

MAX_PARTS = 24

_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)|\\in(?![A-Za-z])")
_COMMA = re.compile(r"(?<![0-9]),|,(?![0-9]{3}(?![0-9]))|;")
_ANY_COMMA, _CUP, _COLON = re.compile(r",|;"), re.compile(r"\\cup"), re.compile(r":")
_ROW, _CELL = re.compile(r"\\\\"), re.compile(r"&")
_AND = re.compile(
    rf",? *(?:{TEXT},? *(?:and|or),? *{END}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
    r"|\\lor\b|\\vee\b) *"
)
_NAME = re.compile(r"[({\\]*[A-Za-z](?:[A-Za-z(){}\\', ]|_\{?[A-Za-z0-9]{1,3}\}?)*")
_LEAD = re.compile(
    rf"(?:{TEXT})? *(?:the )?(?:final )?answer(?: is)?:? *(?:{END})? *|\\approx *", re.I
)
_LABEL = re.compile(rf"{TEXT} *[A-Za-z]+(?: [A-Za-z]+){{0,3}}: *{END} *")  # Total: 5
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix)\}([\s\S]*)\\end\{\1\}")
_BASED = re.compile(r"-?[0-9A-Za-z.]*[0-9A-Z][0-9A-Za-z.]*_(?:\{?[0-9]{1,2}\}?)")
_DECIMAL_COMMA = re.compile(
    rf"[+-]?{DOLLAR}?(?:0,[0-9]+|[0-9]+,[0-9]{{2,}})(?![0-9.,])"
)
_VARIABLE = re.compile(
    r"^(?![\s\S]*\\(?:sum|int|prod|lim))[\s\S]*(?<![A-Za-z\\])[a-df-hj-zA-Z](?![A-Za-z])"
)
_RELATION = re.compile(
    rf"[<>]|\\(?:not|ne|neq|le|ge)(?![A-Za-z])|{TEXT}[^{END}]*\b(?:not|wrong)\b"
)
_UNFINISHED = re.compile(r"['*_] *$|\\[lcd]?dots")
_WORD = re.compile(r"[A-Za-z]{5,}(?: [A-Za-z]+)*|[A-Za-z]{3,}(?: [A-Za-z]{2,})+")


def equal(gold: str, answer: str, ask: Ask) -> bool:
    """Whether an answer is right; `ask` decides what these rules cannot.

    Of an equation the last side counts, unless the gold answer is one that does not
    merely name a value.
    """
    gold, answer = _settled(gold), _settled(answer)
    if not gold or not answer:
        return False
    if _squeezed(gold) == _squeezed(answer):
        return True
    ours, theirs = _sides(gold), _sides(answer)
    if theirs is not None and _contradicts(answer):
        return False
    if ours is None:
        return _value_equal(gold, theirs[1] if theirs else answer, ask)
    if not _names_value(ours[0]):
        return _expressions_equal(gold, answer, ask)
    if theirs is None:
        return _value_equal(ours[1], answer, ask)
    # 2x = 4 does not say that x = 4.
    named = re.search(r"(?<![\\A-Za-z])[A-Za-z]", theirs[0])
    if named and _squeezed(ours[0]) != _squeezed(theirs[0]):
        return False
    return _value_equal(ours[1], theirs[1], ask)


def _contradicts(text: str) -> bool:
    r"""Whether an equation calls two different numbers equal, or is none: `\ne 5`."""
    sides = [latex.unwrap(side) for side in latex.split(text, _EQUALS)]
    numbers = [found for found in map(numeral, sides) if found]
    unequal = any(not numerals_equal(numbers[0], other) for other in numbers[1:])
    return unequal or any(map(_RELATION.search, sides[:-1]))


def read(text: str) -> Numeral | None:
    """The number that a gold answer is, if it is one."""
    text = _settled(text)
    sides = _sides(text)
    if sides is None:
        return numeral(text)
    return numeral(sides[1]) if _names_value(sides[0]) else None


def _names_value(side: str) -> bool:
    """Whether a first side is a name, `x = 5`, or a number, `0.56 = 56%`."""
    return bool(_NAME.fullmatch(side)) or numeral(side) is not None


def _settled(text: str) -> str:
    r"""Drops "the answer is", an approximation behind the value, and `\pm 0`."""
    lead = _LEAD.match(text) or _LABEL.match(text)
    text = latex.unwrap(text[lead.end() :] if lead else text)
    if TEXT not in text:
        text = latex.unwrap(text.replace(END, ""))
    parts = latex.split(text, re.compile(r"\\approx"))
    text = latex.unwrap(parts[0])
    return latex.unwrap(re.sub(r"\\pm *0$", "", text))


def _sides(text: str) -> tuple[str, str] | None:
    """First and last side of an equation, or of a membership."""
    parts = latex.split(text, _EQUALS)
    if len(parts) > 2 and len(latex.split(_AND.sub(", ", text), _COMMA)) > 1:
        return None  # x = 6 or x = 8
    if len(parts) < 2 or not parts[0].strip() or not parts[-1].strip():
        return None
    return latex.unwrap(parts[0]), latex.unwrap(parts[-1])


def _squeezed(text: str) -> str:
    """The text without spaces, save between digits, where 7 2 is not 72."""
    return re.sub(r"(?<![0-9,.])\s+|\s+(?![0-9,.])", "", text)


def _value_equal(gold: str, answer: str, ask: Ask) -> bool:
    ours, theirs = numeral(gold), numeral(answer)
    if ours and theirs:
        return numerals_equal(ours, theirs)
    for number, other in ((ours, answer), (theirs, gold)):
        if number and number.form == "decimal" and _DECIMAL_COMMA.match(other):
            value = numeral(other.replace(",", ".", 1))  # 2,74 beside a decimal is one
            return value is not None and numerals_equal(number, value)
    parts = _parts(gold), _parts(answer)
    if parts[0] and parts[1]:
        return _parts_equal(parts[0], parts[1], ask)
    if any(p and len(p[1]) > 1 for p in parts):
        one, many = (gold, answer) if parts[1] else (answer, gold)
        if numeral(one) or not re.search(r"\\pm|\\cup|[<>]|\\[lg]e", one + many):
            return False
    if _BASED.fullmatch(_squeezed(gold)) or _BASED.fullmatch(_squeezed(answer)):
        return _base(gold) == _base(answer)
    if not (ours or theirs) and _worded(gold, answer):
        return _words(gold) == _words(answer)
    return _expressions_equal(gold, answer, ask)


def numerals_equal(gold: Numeral, answer: Numeral) -> bool:
    """Compares values, by the rules for percents and units of this module."""
    if (gold.unit == "percent") != (answer.unit == "percent"):
        figure, bare = (gold, answer) if gold.unit == "percent" else (answer, gold)
        figures = [figure.value] if abs(figure.value) >= 1 else []
        return not bare.unit and bare.value in (*figures, figure.value / 100)
    return gold.value == answer.value and _units_agree(gold.unit, answer.unit)


def _units_agree(gold: str, answer: str) -> bool:
    if gold and answer:
        # Dollars agree with dollars per day: what is left out is no other unit.
        a, b = sorted((gold, answer), key=len)
        return a == b or b.startswith(f"{a} per ")
    return gold == answer or answer != "cent"


def _expressions_equal(gold: str, answer: str, ask: Ask) -> bool:
    ours, theirs = quantity(gold), quantity(answer)
    if ours is None or theirs is None or ours.scale != theirs.scale:
        return False
    if not ours.core or not theirs.core or not _units_agree(ours.unit, theirs.unit):
        return False
    for number, other in ((numeral(gold), theirs.core), (numeral(answer), ours.core)):
        # What equals a number has digits or a command, and no free variable.
        if number and _UNFINISHED.search(other):
            return False
        if number and (_VARIABLE.search(other) or not re.search(r"[0-9]|\\", other)):
            return False
    same = _squeezed(ours.core) == _squeezed(theirs.core)
    return same or ask(ours.core, theirs.core)


def _parts(text: str) -> tuple[str, list[str]] | None:
    """The elements of a list, tuple, interval, union, ratio or matrix, and its kind."""
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [
            latex.split(r, _CELL) for r in latex.split(matrix[2], _ROW) if r.strip()
        ]
        return f"matrix of {[len(r) for r in rows]}", [c for row in rows for c in row]
    held = latex.enclosed(text)
    if held and held[0] in ("(", "[", r"\{") and held[2] in (")", "]", r"\}"):
        content = _AND.sub(", ", held[1]) if held[0] == r"\{" else held[1]
        inner = latex.split(content, _comma_of(content))
        if len(inner) > 1 or held[0] == r"\{":
            return held[0] + held[2], inner
        return (
            None if held[0] + held[2] not in ("()", "[]") else _parts(inner[0].strip())
        )
    text = latex.unwrap(_AND.sub(", ", text))
    for kind, mark in (("list", _COMMA), ("union", _CUP), ("ratio", _COLON)):
        inner = [p for p in latex.split(text, mark) if p.strip() or kind != "list"]
        if len(inner) > 1:
            return kind, inner
    return None


def _comma_of(content: str) -> re.Pattern[str]:
    return _COMMA if ", " in content else _ANY_COMMA


def _parts_equal(
    gold: tuple[str, list[str]], answer: tuple[str, list[str]], ask: Ask
) -> bool:
    (kind, ours), (other, theirs) = gold, answer
    if len(ours) != len(theirs) or len(ours) > MAX_PARTS:
        return False
    ours, theirs = [latex.unwrap(p) for p in ours], [latex.unwrap(p) for p in theirs]
    loose = {"list", r"\{\}"}
    if (kind in loose and other in loose) or kind == other == "union":
        left = list(theirs)
        for part in ours:
            hit = next((p for p in left if equal(part, p, ask)), None)
            if hit is None:
                return False
            left.remove(hit)
        return True
    if kind != other and {kind, other} != {"list", "()"}:
        return False
    return all(equal(a, b, ask) for a, b in zip(ours, theirs, strict=True))


def _base(text: str) -> str:
    return re.sub(rf"[\s{{}}{TEXT}{END}]", "", text)


def _worded(gold: str, answer: str) -> bool:
    """Whether words are compared: the gold has some, or one side is nothing else."""
    if TEXT in gold:
        found = quantity(gold)
        core = found.core.replace(f"{TEXT}degrees{END}", "") if found else ""
        return not core or TEXT in core
    if _WORD.fullmatch(gold) or _WORD.fullmatch(answer):
        return True
    return answer[:1] == TEXT and answer[-1:] == END


def _words(text: str) -> list[str]:
    """Words in one case, without marks; a list of them in one order."""
    text = re.sub(
        rf"[{TEXT}{END}{DOLLAR}().'\"]|\s", "", _AND.sub(",", text)
    ).casefold()
    return sorted(p for p in text.split(",") if p)
