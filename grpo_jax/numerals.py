r"""From the text of a number to its exact value, its form and its unit.

Numbers are fractions, never floats. Read are integers, decimals, fractions, mixed
numbers, repeating decimals and powers of ten, with thousands separators and a unit.
Nothing is evaluated: a form that is not in this list, such as `2^{10}` or `\sqrt{16}`,
is not a numeral.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from grpo_jax.latex import inside
from grpo_jax.units import quantity

MAX_ANSWER = 1_000  # characters; below Python's limit on the digits of an integer

# Patterns never nest one unbounded repetition in another: no catastrophic backtracking.
_BY_COMMAS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])"
_GROUPED = rf"{_BY_COMMAS}|[1-9][0-9]{{0,2}}(?: [0-9]{{3}})+(?![0-9])"
_DECIMAL = rf"(?:(?:{_GROUPED}|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
_SIGNED = rf"[+-]?{_DECIMAL}"
_COMMA = r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+,[0-9]+"  # 1.000,99
_TIMES_TEN = r"(?:\\times|\\cdot|\*|x)\{?10\}?\^"
_FRAC = (
    r"\\frac ?(?:\{{(?P<n1>{0})\}}|(?P<n2>[0-9])) ?(?:\{{(?P<d1>{0})\}}|(?P<d2>[0-9]))"
)
_FORMS = {
    "repeating": re.compile(
        r"(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*)(?:\((?P<r1>[0-9]+)\)"
        r"|\\(?:overline|bar|dot) ?(?:\{(?P<r2>[0-9]+)\}|(?P<r3>[0-9])))"
    ),
    "scientific": re.compile(
        rf"(?P<scaled>{_DECIMAL})(?:[eE](?P<e0>[+-]?[0-9]{{1,3}})"
        rf"|{_TIMES_TEN}(?:\{{(?P<e1>[+-]?[0-9]{{1,3}})\}}|(?P<e2>-?[0-9]{{1,3}})))"
        r"|10\^(?:\{(?P<e3>[+-]?[0-9]{1,3})\}|(?P<e4>[0-9]{1,3}))"
    ),
    "fraction": re.compile(
        _FRAC.format(_SIGNED)
        +  # 1 208/245 is a mixed number, so no spaces group here
        rf"|[({{]?(?P<n3>(?:{_BY_COMMAS}|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)[)}}]?"
        rf"/[({{]?(?P<d3>{_SIGNED})[)}}]?"
    ),
    "mixed": re.compile(
        rf"(?P<whole>[0-9]+) ?{_FRAC.format('[0-9]+')}"
        r"|(?P<whole2>[0-9]+) (?P<n3>[0-9]+)/(?P<d3>[0-9]+)"
    ),
    "integer": re.compile(rf"{_GROUPED}|[0-9]+\.?"),
    "decimal": re.compile(rf"{_DECIMAL}|{_COMMA}"),
}
# A space matters only between digits, and after a comma, which then parts a list.
_LOOSE = re.compile(r"(?<![0-9,.]) | (?![0-9.])")


class Numeral(NamedTuple):
    """A number as written: exact value, form, unit in one spelling, and grouping."""

    value: Fraction
    form: str
    unit: str = ""
    grouped: bool = False


def numeral(text: str) -> Numeral | None:
    """Reads an answer in the one spelling as a number with its unit, or not at all."""
    found = quantity(text) if len(text) <= MAX_ANSWER else None
    if found is None:
        return None
    core = _LOOSE.sub("", found.core)
    for _ in range(3):
        held = inside(core, ("(", "[", r"\{", "{"))
        if held and "," in held and core[0] != "{":
            return None  # (100,101) is a pair
        core = held or core
    sign = -1 if core[:1] == "-" else 1
    core = core[1:].lstrip(" ") if core[:1] in ("+", "-") else core
    for form, pattern in _FORMS.items():
        match = pattern.fullmatch(core)
        value = match and _value(form, match)
        if value is not None:
            grouped = re.search(_GROUPED, core) is not None
            return Numeral(sign * value * found.scale, form, found.unit, grouped)
    return None


def _value(form: str, match: re.Match[str]) -> Fraction | None:
    part = {k.rstrip("0123456789"): v for k, v in match.groupdict().items() if v}
    if form == "repeating":
        fixed, period = part.get("fixed", ""), part["r"]
        cycle = Fraction(int(period), 10 ** len(period) - 1)
        return (int(part.get("whole", "0") + fixed) + cycle) / 10 ** len(fixed)
    if form == "scientific":
        return _plain(part.get("scaled", "1")) * Fraction(10) ** int(part["e"])
    if form in ("fraction", "mixed"):
        over, under = _plain(part["n"]), _plain(part["d"])
        if not under or (form == "mixed" and not over < under):
            return None  # 2\frac{5}{3} may be a product
        return int(part.get("whole", "0")) + over / under
    if re.fullmatch(_COMMA, match.group()):
        return _plain(match.group().replace(".", "").replace(",", "."))
    return _plain(match.group())


def _plain(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", "").removesuffix("."))
