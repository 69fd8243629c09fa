r"""Units behind or before a number, in one spelling: percent, degree, dollar, foot.

Words of any kind may be a unit, such as apples, unless they make another number of it
(`7 squared`, `7 dozen`) or leave it open (`7 or 3`). No unit is converted; only words
such as million are read as a factor.
"""

import re
from typing import NamedTuple

from grpo_jax.latex import DOLLAR, END, TEXT

CURRENCIES = ("dollar", "euro", "yen", "rupee")  # a pound may be a weight
_MARKS = {DOLLAR: "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_SAME = {
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
    "j": "joule", "n": "newton", "v": "volt", "w": "watt", "c": "c", "f": "f",
    "people": "person", "children": "child", "men": "man", "women": "woman",
}  # fmt: skip
_POWERS = {"^2": "square", "squared": "square", "^3": "cubic", "cubed": "cubic"}
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SCALES["trillion"] = 10**12
# Words that make another number of it, or no number at all.
_NO_UNITS = frozenset(
    "or and to not no is are was nor plus minus times over under mod modulo modulus "
    "base pi half halves quarter quarters dozen dozens gross score factorial if "
    "when for but more less fewer than least most between by with infinity none "
    "undefined am pm as without where all any true false maybe zero negative sin "
    "cos tan log ln sqrt frac lim max sum gcd lcm wrong incorrect unknown "
    "approximately almost nearly once twice thrice double doubled triple tripled "
    "halved inverted negated squared cubed either neither unless except excluded "
    "excluding cannot impossible alternatively versus then thru through until "
    "rather instead point raised power root roots exponent lakh lakhs crore crores "
    "mil bn mn".split()
)
# One, thirteen, twenty-five, thirds, millionths: names of numbers, however they end.
_NUMBER_WORD = re.compile(
    r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|[bmtq][a-z]*illion"
    r"|third|fourth|fifth|sixth|eighth|ninth|twelfth|twentieth|[a-z]+tieth)(?:s|th|ths)?"
)
_FILLERS = frozenset("of the a an".split())
_KNOWN = frozenset(w for pair in _SAME.items() for w in " ".join(pair).split())
_KNOWN |= frozenset(_SCALES) | frozenset("day week month year way".split())
_KNOWN -= {"per"}  # which needs another word behind it
_AMBIGUOUS = frozenset("in l rs square cubic sq cu".split())  # behind a number in prose
_TOKEN = re.compile(rf"{TEXT}[^{END}]*{END}|\\[A-Za-z]+|\\.|[A-Za-z]+|[0-9.,]+|[\s\S]")
_PREFIX = re.compile(
    rf"([+-]?) ?(?:US ?)?([{''.join(_MARKS)}]|USD|EUR|GBP|Rs\.?) ?(?=[-+.0-9\\(])"
)
_ANGLE_OF = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")


class Quantity(NamedTuple):
    """What is written before a unit, the unit in one spelling, and a factor."""

    core: str
    unit: str = ""
    scale: int = 1


def changes(word: str) -> bool:
    """Whether a word behind a number in prose says what number it is, or of what."""
    word = word.lower()
    known = word.removesuffix("s") in _KNOWN and word not in (
        "in",
        "l",
        "rs",
        "square",
        "cubic",
        "sq",
        "cu",
    )
    return known or word in ("dozen", "dozens")


def quantity(text: str) -> Quantity | None:
    """Takes the unit off an answer; None where the words behind it are no unit."""
    lead, prefix = _PREFIX.match(text), ""
    if lead:
        prefix = _MARKS.get(lead[2]) or _SAME[lead[2].lower().rstrip(".")]
        text = lead[1] + text[lead.end() :]
    tokens = _TOKEN.findall(text)
    end = len(tokens)
    while end and _may_be_unit(tokens, end - 1):
        end -= 1
    core = "".join(tokens[:end]).rstrip(" ")
    named = _named("".join(tokens[end:]))
    if named is None:
        return None
    unit, scale = named
    if prefix and unit.startswith("per "):
        unit = f"{prefix} {unit}"
    if (
        prefix
        and unit != ""
        and unit != prefix
        and not unit.startswith(f"{prefix} per")
    ):
        return None
    if unit == "degree" and _ANGLE_OF.search(core):
        return Quantity(text)  # the angle of a sine has degrees, not the sine
    return Quantity(core, unit or prefix, scale)


def _may_be_unit(tokens: list[str], at: int) -> bool:
    token, before = tokens[at], tokens[at - 1] if at else ""
    if token[0] == TEXT or token in _MARKS or token in "%¢. ":
        return True
    if token.isascii() and token.isalpha():
        # Other letters, above all next to a digit, are variables.
        known = len(token) > 1 and token.lower().removesuffix("s") in _KNOWN
        per = token == "per" and at + 2 < len(tokens)
        return known or per or (len(token) > 3 and before in (" ", "/"))
    if token == "/":
        return at + 1 < len(tokens) and before[:1].isalpha()
    if token in ("2", "3") and before == "^":
        at, before = at - 1, tokens[at - 2] if at > 1 else ""
        token = "^"
    return token == "^" and len(before) > 1 and before.lower() in _KNOWN


def _named(words: str) -> tuple[str, int] | None:
    """The unit that words name, and the factor before it; None where it is none."""
    for mark, name in _MARKS.items():
        words = words.replace(mark, f" {name} ")
    words = words.replace(TEXT, " ").replace(END, " ").replace("/", " per ").lower()
    if ".." in words:
        return None  # digits left out
    rest = [w.strip(".()") for w in re.findall(r"[^\s^]+|\^[23]?", words)]
    rest = [w for w in rest if w and w not in _FILLERS]
    scale, unit = 1, []
    while rest and rest[0] in _SCALES:
        scale *= _SCALES[rest.pop(0)]
    for word in rest:
        if word in _POWERS and unit:
            unit.insert(len(unit) - 1, _POWERS[word])
        elif word in _POWERS or len(unit) > 5 or not _is_unit(word):
            return None
        else:
            unit.append(_one_of(word))
    if unit[:1] == ["percent"] or unit[:2] == ["per", "cent"]:
        unit = ["percent"]  # of what, and points or not, is the question's
    if unit[:1] == ["degree"] and unit[1:] in (["c"], ["f"], ["celsius"]):
        unit = ["degree"]
    if unit[-1:] in (["square"], ["cubic"]):
        return None
    name = " ".join(unit)
    return ("" if unit[-1:] == ["unit"] else name), scale


def _is_unit(word: str) -> bool:
    parts = word.split("-")
    if _NO_UNITS & set(parts) or any(map(_NUMBER_WORD.fullmatch, parts)):
        return False
    known = len(word) > 1 or word in _SAME
    return known and bool(re.fullmatch("[a-z%¢-]+", word))


def _one_of(word: str) -> str:
    single = word if len(word) < 3 or word.endswith("ss") else word.removesuffix("s")
    return _SAME.get(word, _SAME.get(single, single))
