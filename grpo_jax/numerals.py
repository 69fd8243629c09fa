r"""From the text of a number to its exact value, its kind and its unit.

Numbers are fractions, never floats. Read are integers, decimals (also `2,74` where the
comma can be nothing else), fractions, mixed numbers, repeating decimals, powers of ten,
percents, degrees, money, units and thousands separators. Nothing is evaluated: a form
that is not in this list, such as `2^{10}` or `\sqrt{16}`, is not a numeral.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from grpo_jax.latex import DOLLAR, END, TEXT, inside, one_spelling

MAX_ANSWER = 1_000  # characters; below Python's limit on the digits of an integer

_GROUPED = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])"
_DECIMAL = rf"(?:(?:{_GROUPED}|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
_SIGNED = rf"[+-]?{_DECIMAL}"
_COMMA = r"(?:[1-9][0-9]{0,2}(?:\.[0-9]{3})+,[0-9]+)"
_TEN = r"(?:\\times|\\cdot|\*|x)\{?10\}?\^(?:\{(?P<e1>[+-]?[0-9]{1,3})\}|(?P<e2>-?[0-9]{1,3}))"
_FORMS = {
    "repeating": re.compile(
        r"(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*)"
        r"(?:\\(?:overline|bar|dot) ?(?:\{(?P<r1>[0-9]+)\}|(?P<r2>[0-9]))|\((?P<r3>[0-9]+)\))"
    ),
    "scientific": re.compile(
        rf"(?P<scaled>{_DECIMAL})(?:[eE](?P<e0>[+-]?[0-9]{{1,3}})|{_TEN})"
        r"|10\^(?:\{(?P<e3>[+-]?[0-9]{1,3})\}|(?P<e4>[0-9]{1,3}))"
    ),
    "fraction": re.compile(
        rf"\\frac ?(?:\{{(?P<n1>{_SIGNED})\}}|(?P<n2>[0-9])) ?"
        rf"(?:\{{(?P<d1>{_SIGNED})\}}|(?P<d2>[0-9]))"
        rf"|[({{]?(?P<n3>{_DECIMAL})[)}}]?/[({{]?(?P<d3>{_SIGNED})[)}}]?"
    ),
    "mixed": re.compile(
        r"(?P<whole>[0-9]+) ?\\frac ?(?:\{(?P<n1>[0-9]+)\}|(?P<n2>[0-9])) ?"
        r"(?:\{(?P<d1>[0-9]+)\}|(?P<d2>[0-9]))"
        r"|(?P<whole2>[0-9]+) (?P<n3>[0-9]+)/(?P<d3>[0-9]+)"
    ),
    "integer": re.compile(rf"{_GROUPED}|[0-9]+\.?"),
    "decimal": re.compile(rf"{_DECIMAL}|{_COMMA}"),
}
# A space matters only between digits, and after a comma, which then parts a list.
_LOOSE = re.compile(r"(?<![0-9,.]) | (?![0-9.])")

_CURRENCY = {DOLLAR: "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_SAME_UNIT = {
    "usd": "dollar", "buck": "dollar", "eur": "euro", "gbp": "pound", "rs": "rupee",
    "¢": "cent", "penny": "cent", "pennie": "cent", "deg": "degree", "pct": "percent",
    "percentage": "percent", "%": "percent", "rad": "radian", "sq": "square",
    "cu": "cubic", "mm": "millimeter", "cm": "centimeter", "dm": "decimeter",
    "m": "meter", "km": "kilometer", "in": "inch", "inche": "inch", "ft": "foot",
    "feet": "foot", "yd": "yard", "mi": "mile", "metre": "meter", "lb": "pound",
    "centimetre": "centimeter", "kilometre": "kilometer", "millimetre": "millimeter",
    "oz": "ounce", "g": "gram", "gm": "gram", "kg": "kilogram", "mg": "milligram",
    "l": "liter", "litre": "liter", "ml": "milliliter", "sec": "second",
    "s": "second", "min": "minute", "hr": "hour", "h": "hour", "yr": "year",
    "mph": "mile per hour", "kph": "kilometer per hour", "gal": "gallon",
    "people": "person", "children": "child", "men": "man", "women": "woman",
}  # fmt: skip
# Words that make another number of it, or no number at all.
_NO_UNIT = frozenset(
    "or and to not no is are was nor plus minus times over under mod modulo base pi half "
    "halves third thirds quarter quarters fourth fifth sixth eighth tenth dozen dozens "
    "score factorial if when for but more less than least most between infinity none "
    "undefined squared cubed am pm as by with without where all any true false maybe "
    "zero one two three four five six seven eight nine ten eleven twelve twenty thirty "
    "forty fifty sixty seventy eighty ninety negative sin cos tan log ln sqrt frac "
    "lim max min_ sum mod gcd lcm".split()
)
_SCALE = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SCALE["trillion"] = 10**12
_EMPTY = frozenset(["unit", "square unit", "cubic unit"])
_TOKEN = re.compile(
    rf"{TEXT}[^{END}]*{END}|\\[A-Za-z]+|\\.|[A-Za-z]+|[0-9.,]+| +|[\s\S]"
)
_PREFIX = re.compile(rf"([+-]?) ?(?:US ?)?([{''.join(_CURRENCY)}]|USD|EUR|GBP|Rs\.?) ?(?=[-+.0-9\\(])")

_ANGLE_OF = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")


class Numeral(NamedTuple):
    """A number as written: exact value, form, unit in one spelling, and grouping."""

    value: Fraction
    form: str
    unit: str = ""
    grouped: bool = False


def numeral(text: str) -> Numeral | None:
    """Reads an answer in the one spelling as a number with its unit, or not at all."""
    parts = split_unit(text)
    if parts is None:
        return None
    core, unit, scale = parts
    core = _LOOSE.sub("", core)
    for _ in range(3):
        held = inside(core, ("(", "[", r"\{", "{"))
        if held and "," in held and core[0] != "{":
            return None  # (100,101) is a pair
        core = held or core
    sign, core = (core[0], core[1:].lstrip(" ")) if core[:1] in "+-" and core else ("", core)
    for form, pattern in _FORMS.items():
        found = pattern.fullmatch(core)
        if found:
            value = _value(form, found)
            if value is None:
                return None
            value = -value if sign == "-" else value
            grouped = re.search(_GROUPED, core) is not None
            return Numeral(value * scale, form, unit, grouped)
    return None


def _value(form: str, found: re.Match[str]) -> Fraction | None:
    part = {k.rstrip("0123456789"): v for k, v in found.groupdict().items() if v}
    if form == "repeating":
        fixed, period = part.get("fixed", ""), part["r"]
        whole = int(part.get("whole", "0") + fixed)
        cycle = Fraction(int(period), 10 ** len(period) - 1)
        return (whole + cycle) / 10 ** len(fixed)
    if form == "scientific":
        return _plain(part.get("scaled", "1")) * Fraction(10) ** int(part["e"])
    if form in ("fraction", "mixed"):
        over, under = _plain(part["n"]), _plain(part["d"])
        whole = int(part.get("whole", "0"))
        if not under or (form == "mixed" and not over < under):
            return None  # 2\frac{5}{3} may be a product
        return whole + over / under
    if re.fullmatch(_COMMA, found.group()):
        return _plain(found.group().replace(".", "").replace(",", "."))
    return _plain(found.group())


def _plain(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", "").removesuffix("."))


def split_unit(text: str) -> tuple[str, str, int] | None:
    """Parts an answer into what is before its unit, the unit, and a scale like million.

    None where the words behind it are no unit: `7 or 3`, `7 squared`.
    """
    lead = _PREFIX.match(text)
    prefix = ""
    if lead:
        prefix = _CURRENCY.get(lead[2]) or _SAME_UNIT[lead[2].lower().rstrip(".")]
        text = lead[1] + text[lead.end() :]
    tokens = _TOKEN.findall(text)
    end = len(tokens)
    while end and _may_be_unit(tokens, end - 1):
        end -= 1
    core, tail = "".join(tokens[:end]).rstrip(" ."), "".join(tokens[end:])
    if tokens[end - 1 : end] and tokens[end - 1].endswith(".") and not tail.strip():
        core = "".join(tokens[:end]).rstrip(" ")
    words = _unit(tail)
    if words is None:
        return None
    unit, scale = words
    if unit == "degree" and _ANGLE_OF.search(core):
        return text, "", 1
    if prefix and unit not in ("", prefix):
        return None
    return core, unit or prefix, scale


def _may_be_unit(tokens: list[str], at: int) -> bool:
    token = tokens[at]
    if token[0] == TEXT or token in _CURRENCY or token in "%¢." or token.isspace():
        return True
    if token.isascii() and token.isalpha():
        # Letters next to a digit or alone are variables, unless they are known units.
        return len(token) > 1 and token.lower().rstrip("s") in _KNOWN or (
            len(token) > 3 and at > 0 and tokens[at - 1][0] in " /"
        )
    if token in "/":
        return 0 < at < len(tokens) - 1 and _may_be_unit(tokens, at - 1) and at + 1 < len(tokens) and tokens[at - 1] != "%"
    if token in ("^", "2", "3"):
        word = at - (2 if token != "^" else 1)
        return word > 0 and tokens[at - (token != "^")] == "^" and tokens[word].lower() in _KNOWN
    return False


_KNOWN = frozenset(w for k, v in _SAME_UNIT.items() for w in (k, *v.split()) if len(w) > 1)
_KNOWN |= frozenset(_SCALE)


def _unit(tail: str) -> tuple[str, int] | None:
    """The unit that words name, in one spelling, and the scale before it."""
    for mark, name in _CURRENCY.items():
        tail = tail.replace(mark, f" {name} ")
    tail = tail.replace(TEXT, " ").replace(END, " ").replace("/", " per ").lower()
    words = [w.strip(".()") for w in re.findall(r"[^\s^]+|\^[23]", tail)]
    words = [w for w in words if w and w not in ("of", "the", "a", "an", "about")]
    scale = 1
    while words and words[0] in _SCALE:
        scale *= _SCALE[words.pop(0)]
    out: list[str] = []
    for word in words:
        power = {"^2": "square", "squared": "square", "^3": "cubic", "cubed": "cubic"}.get(word)
        if power:
            if not out:
                return None
            out.insert(len(out) - 1, power)
            continue
        if word in _NO_UNIT or not re.fullmatch(r"[a-z%¢-]+", word) or len(out) > 5:
            return None
        single = word if len(word) < 3 or word.endswith("ss") else word.removesuffix("s")
        if len(single) == 1 and single not in _SAME_UNIT:
            return None
        out.append(_SAME_UNIT.get(word, _SAME_UNIT.get(single, single)))
    name = " ".join(out)
    if name in ("percent point", "percent percent"):
        name = "percent"
    return ("" if name in _EMPTY else name), scale
