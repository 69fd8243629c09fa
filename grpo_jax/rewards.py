"""Grading: from a response to an answer, and from an answer to an exact number.

Numbers are compared as fractions, never as floats, so 0.1 is one tenth and a large
integer keeps its last digit. Nothing in a response is evaluated. Every scan is linear
in the length of the response, and that length is bounded, so that no output of a model
can hold the grader. An answer that is not a number is compared as text, spaces aside.
"""

import collections
import re
from fractions import Fraction

from grpo_jax.base import Verdict

MAX_RESPONSE = 50_000  # characters read, from the end
MAX_ANSWER = 1_000  # characters; below Python's limit on the digits of an integer

# Patterns never nest one unbounded repetition in another: no catastrophic backtracking.
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.[0-9]*)?|\.[0-9]+)"
_SCIENTIFIC = _DECIMAL + r"(?:[eE][+-]?[0-9]{1,3})?"
_FRAC = rf"\\[dt]?frac(?:\{{(?P<n>[+-]?{_DECIMAL})\}}|(?P<n1>[0-9]))"
_FRAC += rf"(?:\{{(?P<d>[+-]?{_DECIMAL})\}}|(?P<d1>[0-9]))"
_LATEX = re.compile(rf"(?P<sign>[+-]?){_FRAC}")
_SLASH = re.compile(rf"([+-]?{_SCIENTIFIC})(?:/([+-]?{_SCIENTIFIC}))?")
# In prose a dash after a digit, a letter or a bracket is not the sign of a number.
_PROSE = re.compile(
    r"(?:(?<![\w.)\]}])[+-])?(?:"
    + re.sub(r"\?P<\w+>", "?:", _FRAC)
    + rf"|(?<![A-Za-z0-9_]){_DECIMAL}(?:/[0-9]+)?)"
)
_BRACE = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{|\\[{}]|[{}]")
_ANSWER_IS = re.compile(r"\bthe (?:final )?answer is:?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)")
_SPACE = re.compile(r"\\[,;: ]|~|\s")
_GROUP_SPACE = re.compile(r"(?<=[0-9]) (?=[0-9]{3}(?![0-9]))")
_LOOSE_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_WRAPPERS = (("$", "$"), ("**", "**"), (r"\(", r"\)"), (r"\[", r"\]"), ("{", "}"))
_WRAPPERS += ((r"\boxed{", "}"), (r"\fbox{", "}"))


def last_box(text: str) -> str | None:
    r"""Content of the last complete `\boxed{}` or `\fbox{}`, the outermost if nested.

    One pass with a stack of open braces; escaped braces open and close nothing.
    """
    span, open_braces = None, []
    for token in _BRACE.finditer(text):
        if token.group() == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None:
                span = slice(start, token.start())
        elif token.group() == "{":
            open_braces.append(None)
        elif token.group().endswith("{") and len(token.group()) > 2:
            open_braces.append(token.end())
    return None if span is None else text[span]


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(collections.deque(pattern.finditer(text), maxlen=1)), None)


def _after_hashes(text: str) -> str | None:
    _, mark, tail = text.rpartition("####")
    return tail.split("\n", 1)[0] if mark else None


def _answer_tag(text: str) -> str | None:
    head, mark, _ = text.rpartition("</answer>")
    _, opening, content = head.rpartition("<answer>")
    return content if mark and opening else None


def _after_answer_is(text: str) -> str | None:
    found = _last_match(_ANSWER_IS, text)
    return found and _SENTENCE_END.split(text[found.end() :].lstrip(), 1)[0]


def _last_number(text: str) -> str | None:
    found = _last_match(_PROSE, text)
    return found and found.group().rstrip(".")


FALLBACKS = (_after_hashes, _answer_tag, _after_answer_is, _last_number)


def extract(response: str, *, require_box: bool = False) -> str | None:
    r"""The answer a response ends with, as text; None where there is none.

    The last complete box wins. Without one, in this order: `#### x`,
    `<answer>x</answer>`, "the answer is x", the last number.

    Args:
      response: what a model wrote; only its end is read if it is very long.
      require_box: read boxes only.
    """
    # A lone surrogate cannot be written to a file, which is where answers go.
    text = response[-MAX_RESPONSE:].encode("utf-8", "replace").decode("utf-8")
    text = text.replace("\u2212", "-")
    boxed = last_box(text)
    if boxed is not None or require_box:
        return _bounded(boxed)
    for fallback in FALLBACKS:
        found = _bounded(fallback(text))
        if found is not None:
            return found
    return None


def _bounded(text: str | None) -> str | None:
    text = (text or "").strip()
    return text if 0 < len(text) <= MAX_ANSWER else None


def _unwrap(text: str) -> str:
    """Takes off what surrounds a number: spaces, mathematics marks, dollars, a dot."""
    text = _SPACE.sub(" ", text.replace(r"\!", "").replace("{,}", ","))
    # A space may group thousands; any other one between digits parts two numbers.
    text = _LOOSE_SPACE.sub("", _GROUP_SPACE.sub(",", text))
    while True:
        before = text
        for left, right in _WRAPPERS:
            inner = text[len(left) : -len(right)]
            if text.startswith(left) and text.endswith(right):
                text = inner
        text = text.removesuffix(".").removeprefix(r"\$").removesuffix(r"\$")
        text = text.removeprefix("$").removesuffix("$")
        if text == before:
            return text


def number(text: str) -> Fraction | None:
    r"""The exact value of a plain number; None where the text is something else.

    Reads signs, thousands separators, decimals, `a/b`, `\frac{a}{b}` and short powers
    of ten (`1.2e5`), in `$`, `\( \)`, `**`, braces or boxes; of `x = 7`, the last side.
    """
    if len(text) > MAX_ANSWER:
        return None
    plain = _unwrap(_unwrap(text.replace("\u2212", "-")).rpartition("=")[2])
    latex, slash = _LATEX.fullmatch(plain), _SLASH.fullmatch(plain)
    if latex:
        over = _fraction(latex["n"] or latex["n1"])
        under = _fraction(latex["d"] or latex["d1"])
        over = -over if latex["sign"] == "-" else over
    elif slash:
        over, under = _fraction(slash[1]), _fraction(slash[2] or "1")
    else:
        return None
    return over / under if under else None


def _fraction(text: str) -> Fraction:
    return Fraction(text.replace(",", "").removesuffix("."))


def grade(response: str, answer: str, *, require_box: bool = False) -> Verdict:
    r"""Whether a response ends with the gold answer.

    Args:
      response: what a model wrote.
      answer: the gold answer; a number is compared by value, anything else as text
        with its spaces taken out.
      require_box: only an answer in `\boxed{}` counts.
    """
    if not answer.strip():
        return Verdict(False, None, "the gold answer is empty")
    extracted = extract(response, require_box=require_box)
    if extracted is None:
        return Verdict(False, None, None)
    gold = number(answer)
    if gold is not None:
        return Verdict(number(extracted) == gold, extracted, None)
    return Verdict(
        "".join(extracted.split()) == "".join(answer.split()), extracted, None
    )
