r"""Answers as models and textbooks write them, brought to one spelling.

Everything here is text to text, linear in its length, and evaluates nothing. In the one
spelling spaces are plain, fractions are `\frac`, dollars for money are `DOLLAR`, those
that mark mathematics are gone, and words stand between `TEXT` and `END`.
"""

import re
import unicodedata

DOLLAR, TEXT, END, DEGREE = "\x01", "\x02", "\x03", "\x04"

_SIGNS = {
    **dict.fromkeys("\u2212\u2013\u2012\u2010\u2011", "-"),
    **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u2005\u2006\u3000\t\r\n\v\f", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi "},  # noqa: RUF001
    **{"∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx "},
    **{"\u222a": r"\cup ", "°": r"^\circ ", "²": "^2", "³": "^3", "√": r"\sqrt "},
    **{"½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"},
    **{c: f"^{n}" for n, c in enumerate("⁴⁵⁶⁷⁸⁹", start=4)},
    **{"⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "±": r"\pm "},
}
_TABLE = str.maketrans(_SIGNS)
_FONT = r"\\(?:text(?:rm|bf|it|sf|tt|normal|up|md)?|mbox|hbox|mathrm|emph|rm)"
_LETTERS = re.compile(r"\\(?:mathrm|mathbf|mathit|boldsymbol|bold|bm)\s?\{(\w)\}")
_NUMBER_FIRST = re.compile(
    rf" *([-+]?{DOLLAR}?[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?)(?![0-9.,/:])(?= |$)"
)
_PLAIN = re.compile(
    r"\\(?:operatorname|mathbf|mathit|mathsf|boldsymbol)\s?\{([^{}]*)\}"
)
_BOLD = re.compile(
    r"\\(?:mathbf|boldsymbol|textbf|bm|bold|bf)\s?\{((?:[^{}]|\{[^{}]*\})*\\(?:[^{}]|\{[^{}]*\})*)\}"
)
_WORDS = re.compile(rf"{_FONT}\s?\{{([^{{}}]*)\}}")
_POWER_OF_UNIT = re.compile(rf"{END} ?\^ ?\{{? ?([23]) ?\}}?(?![0-9])")
_PER = re.compile(
    rf"\\frac ?\{{{TEXT}([^{END}]*){END}\}} ?\{{{TEXT}([^{END}]*){END}\}}"
)
_UNIT_SQUARED = re.compile(r"(?<![A-Za-z\\])(m|cm|mm|km|dm|in|ft|yd|mi)([²³])")
_RULES = tuple(
    (re.compile(pattern), to)
    for pattern, to in (
        (r",\s*\\!\s*", ","),
        (r"\\!\s*|\\[lr]?vphantom\{[^{}]*\}", ""),
        (
            r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![A-Za-z])",
            "",
        ),
        (r"(?<!\\)\\[,;:> ]|~|\\(?:q?quad|thinspace|nobreak)(?![A-Za-z])", " "),
        (r"\{,\}", ","),
        (r"\{:\}|\\colon(?![A-Za-z])", ":"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\(?:(?:h|v)?phantom ?\{[^{}]*\}|(?:check|q|square|black)[a-z]*$)", ""),
        (r"\\(?:textcolor ?\{[^{}]*\}|color ?\{[^{}]*\}|underline)(?=\{)", ""),
        (r"\\(?:large|Large|LARGE|bf|displaystyle) (?=[-0-9\\])", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\dbinom|\\tbinom", r"\\binom"),
        (r"\\\$", DOLLAR),
        (r"\\%", "%"),
        (r"\\[lr]brace(?![A-Za-z])", lambda m: "\\{" if m[0][1] == "l" else "\\}"),
        (r"\\leq(?![A-Za-z])|\\leqslant(?![A-Za-z])", r"\\le"),
        (r"\\geq(?![A-Za-z])|\\geqslant(?![A-Za-z])", r"\\ge"),
        (r"\*\*(?=[\w(.-])(?<=[\w)}]\*\*)", "^"),
        (
            r"\^ ?(?:\{ ?\\(?:circ|degree) ?\}|\\(?:circ|degree)(?![A-Za-z]))",
            f" {DEGREE} ",
        ),
        (r"\\degrees?(?![A-Za-z])", f" {DEGREE} "),
    )
)
_SO = re.compile(r"^(?:=|\\(?:therefore|implies|Rightarrow|rightarrow|to) )")
_CLOSE = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\(": r"\)", r"\[": r"\]"}
_BRACKET = re.compile(r"\\\\|\\[()\[\]{}]|[()\[\]{}]|\\(?:begin|end)\b")


def one_spelling(text: str) -> str:
    """Brings an answer to the one spelling of this module."""
    text = _UNIT_SQUARED.sub(
        lambda m: f"{TEXT} {m[1]}^{'2' if m[2] == '²' else '3'}{END}",
        "".join(
            " " if unicodedata.category(c) == "Cc" and c not in "\t\n\r" else c
            for c in text
        ),
    ).translate(_TABLE)
    for pattern, to in _RULES:
        text = pattern.sub(to, text)
    text = text.replace(DEGREE, f"{TEXT}degrees{END}")
    # An odd dollar is money; pairs of them mark mathematics.
    text = text.replace("$$", "$")
    text = text.replace("$", DOLLAR if text.count("$") == 1 else " ")
    text = _BOLD.sub(r"\1", text)  # around mathematics; words keep their marks
    text = _PLAIN.sub(r"\1", _LETTERS.sub(r"\1", text))
    for _ in range(3):  # words in words
        text = _WORDS.sub(_mark, text)
    text = _POWER_OF_UNIT.sub(rf"^\1{END}", text)
    text = _PER.sub(rf"{TEXT}\1 per \2{END}", text)
    return unwrap(re.sub(r" {2,}", " ", text))


def _mark(found: re.Match[str]) -> str:
    """Words between their marks; a number that begins them stands before."""
    words = found[1]
    if re.fullmatch(rf" *(?:[-+0-9.,/: ]*[0-9][0-9., ]*|{DOLLAR}) *", words):
        return words
    if re.fullmatch(r" *(?:USD|EUR|GBP|Rs\.?) *", words):
        return f"{words} "
    number = _NUMBER_FIRST.match(words)
    if number:
        return f"{number[1]}{TEXT} {words[number.end() :]}{END}"
    return f"{TEXT}{words}{END}"


def unwrap(text: str) -> str:
    r"""Takes off what surrounds an answer: spaces, marks, braces, a full stop."""
    while True:
        before = text
        text = text.strip(" *_`").rstrip(",;:")
        text = text.rstrip("\\") if text.endswith("\\") else text
        text = re.sub(
            r"^(?:=|\\(?:therefore|implies|Rightarrow|rightarrow|to) )", "", text
        )
        text = text if text.endswith("..") else text.removesuffix(".")
        text = re.sub(r"^\\(?:boxed|fbox) ?(?=\{)", "", text)
        if text[:1] in ("{",) or text[:2] in (r"\(", r"\["):
            text = inside(text, ("{", r"\(", r"\[")) or text
        if text == before:
            return text


def enclosed(text: str) -> tuple[str, str, str] | None:
    """Opening bracket, content and closing bracket, where one pair holds it all."""
    level, opener = 0, None
    for token in _BRACKET.finditer(text):
        opener = opener or token
        level += _step(token.group())
        if level == 0 and opener.start() == 0:
            if token.end() != len(text) or "in" in opener.group():
                return None
            inner = text[opener.end() : token.start()]
            return opener.group(), inner, token.group()
        if opener.start() > 0:
            return None
    return None


def inside(text: str, openers: tuple[str, ...]) -> str | None:
    """What one pair of equal brackets around the whole text holds."""
    found = enclosed(text) if text.startswith(openers) else None
    if found and found[0] in openers and _CLOSE.get(found[0]) == found[2]:
        return found[1]
    return None


def _step(token: str) -> int:
    if token == r"\\":
        return 0
    return 1 if token[-1] in "([{n" else -1  # n: of \begin


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Parts between separators that stand outside all brackets and environments."""
    depth, start, parts = 0, 0, []
    both = re.compile(f"(?P<cut>{separator.pattern})|{_BRACKET.pattern}")
    for token in both.finditer(text):
        if token["cut"] is None:
            depth += _step(token.group())
        elif depth == 0:
            parts.append(text[start : token.start()])
            start = token.end()
    return [*parts, text[start:]]


def depth(text: str) -> int:
    """How deep brackets nest, open or closed by any kind."""
    deepest = level = 0
    for token in _BRACKET.finditer(text):
        level = max(level + _step(token.group()), 0)
        deepest = max(deepest, level)
    return deepest
