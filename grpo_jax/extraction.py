r"""From a response to the answer it ends with, as text.

The last complete `\boxed{}` or `\fbox{}` wins. Without one, in this order: `#### x`,
`<answer>x</answer>`, "the answer is x" or "Answer: x", the last mathematical expression
or number. Thoughts that end with `</think>` are not part of the answer. Every scan is
linear, and only the end of a very long response is read.
"""

import collections
import itertools
import re

from grpo_jax.numerals import MAX_ANSWER
from grpo_jax.units import changes

MAX_RESPONSE = 50_000  # characters read, from the end
MAX_TAIL = 5_000  # of them, where no box and no phrase marks an answer

_BRACE = re.compile(
    r"\\?\\(?:boxed|fbox|framebox)\s{0,3}\{|\\boxed ?(?P<bare>[-+]?\$?[0-9][0-9.,/]*)"
    r"|\\\\|\\[{}]|[{}]"
)
_SPECIAL = re.compile(r"<\|[^<>|]{1,40}\|>(?:user|assistant)?|<end_of_turn>|</s>|<eos>")
_ANSWER_IS = re.compile(
    r"\bthe (?:final |correct )?answer is:?|\b(?P<colon>answer(?:\*\*)?:)",
    re.IGNORECASE,
)
# A claim ends with its sentence, or where a reason follows.
_CLAIM_END = re.compile(
    r"\n|[.!?](?=\s|$)|, (?=[a-z])(?!and|or)| \((?=[a-z])(?!mod)"
    r"| (?:because|since|which|where|as)\b"
)
_STARTS_WITH_NUMBER = re.compile(
    r"[*_\s]*(?:\\?[$€£]|\\[\[(]|[-+.(]?\s?[0-9]|\\frac|\\sqrt)"
)

# A number in prose, with what stands right behind it: a power, letters, a unit.
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:[.,][0-9]+)?"
_FRAC = r"\\[dtc]?frac(?:\{[+-]?[0-9.,]{1,40}\}|[0-9])(?:\{[+-]?[0-9.,]{1,40}\}|[0-9])"
# In prose a dash after a digit, a letter or a bracket is not the sign of a number.
_PROSE = re.compile(
    rf"(?:(?<![\w.)\]}}])[-+\u2212\u2013])?\\?[$€£]?(?:{_FRAC}|(?<![\w√{{.^])(?<!sqrt\()(?:{_UNSIGNED}|\.[0-9]+)"
    r"(?:/[0-9]+)?(?:\^\{?-?[0-9]+\}?|[A-Za-z]+[²³]?)?)"
)
_BEHIND = re.compile(r"\s?\\?%|\s?[€£¥°$]|\s?(?P<word>[A-Za-z]{2,12})(?![A-Za-z])")
_MATH_MARK = re.compile(r"\\\\(?![()\[\]])|\\\$|\$\$?|\\[()\[\]]")
_CLOSE = {"$": "$", "$$": "$$", r"\[": r"\]", r"\(": r"\)"}
_WORD = r"(?<![\\A-Za-z])(?!(?:sqrt|sin|cos|tan|log|ln|pi|or|and)(?![A-Za-z]))[A-Za-z]"
_PROSE_WORD, _LONG_WORD = re.compile(_WORD + "{2,}"), re.compile(_WORD + "{3,}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\b")
_COMMANDS = re.compile(
    r"\\(?:text|mbox|textbf|mathrm|operatorname|begin|end)\s?\{[^{}]*\}|\\[A-Za-z]+"
)


def boxes(text: str) -> list[tuple[slice, str]]:
    r"""Place and content of each complete box, outermost if nested, in their order.

    One pass with a stack of open braces; escaped braces open and close nothing.
    """
    found: list[tuple[slice, slice]] = []
    open_braces: list[tuple[int, int] | None] = []
    for token in _BRACE.finditer(text):
        mark = token.group()
        if mark == "{":
            open_braces.append(None)
        elif mark == "}":
            opened = open_braces.pop() if open_braces else None
            if opened is not None:
                while found and found[-1][0].start > opened[0]:
                    found.pop()
                content = slice(opened[1], token.start())
                found.append((slice(opened[0], token.end()), content))
        elif len(mark) > 2 and mark[-1] == "{":
            open_braces.append((token.start(), token.end()))
        elif len(mark) > 2:
            found.append((slice(*token.span()), slice(*token.span("bare"))))
    return [(place, text[content]) for place, content in found]


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(collections.deque(pattern.finditer(text), maxlen=1)), None)


def _after_hashes(text: str) -> str | None:
    """What stands behind the last `####`, unless that is the heading of a section."""
    _, mark, tail = text.rpartition("####")
    line, _, below = tail.strip().partition("\n")
    heading = bool(below.strip()) and not _STARTS_WITH_NUMBER.match(line)
    return line if mark and not heading else None


def _answer_tag(text: str) -> str | None:
    head, mark, _ = text.rpartition("</answer>")
    _, opening, content = head.rpartition("<answer>")
    return content if mark and opening else None


def _after_answer_is(text: str) -> str | None:
    found = _last_match(_ANSWER_IS, text)
    if found is None:
        return None
    tail = text[found.end() : found.end() + 2 * MAX_ANSWER].lstrip(" \t\n*:")
    if found["colon"] and not _STARTS_WITH_NUMBER.match(tail):
        return None  # a sentence, whose last number is meant
    end = _first_math(tail) or 0  # mathematics may go over several lines
    return tail[:end] + _CLAIM_END.split(tail[end:], maxsplit=1)[0]


def _first_math(text: str) -> int | None:
    """Where the mathematics at the start of a text ends; None without any."""
    marks = list(_MATH_MARK.finditer(text))
    if not marks or marks[0].start() > 0 or marks[0].group() not in _CLOSE:
        return None
    close = _CLOSE[marks[0].group()]
    return next((m.end() for m in marks[1:] if m.group() == close), None)


def _last_expression(text: str) -> str | None:
    """The last mathematical expression or number, whichever ends later."""
    text = text[-MAX_TAIL:]
    line = text.rstrip().rpartition("\n")[2].strip().lstrip("=>•→∴ ")
    if _is_expression(line):
        return line
    math, found = _last_math(text), _last_match(_PROSE, text)
    if math is not None and (found is None or found.start() < math.stop):
        return text[math] + _behind(text, math.stop)
    if found is None:
        return None
    before = text[: found.start()].removesuffix(" or ")
    other = _last_match(_PROSE, before)
    hedged = len(before) < found.start() and other and other.end() == len(before)
    start = other.start() if hedged and other else found.start()
    return text[start : found.end()] + _behind(text, found.end())


def _is_expression(line: str) -> bool:
    """Whether a line is an answer and nothing else, with no words about it."""
    foreign = any(c.isalpha() and not c.isascii() for c in line)
    if len(line) >= 200 or "$" in line or foreign or _ENVIRONMENT.search(line):
        return False
    mathematics = re.search(r"[0-9½¼¾⅓⅔]|\\[A-Za-z]", line)
    return bool(mathematics) and not _PROSE_WORD.search(_COMMANDS.sub(" ", line))


def _behind(text: str, end: int) -> str:
    """A unit right behind a number; other words belong to the sentence."""
    found = _BEHIND.match(text, end)
    if found is None or (found["word"] and not changes(found["word"])):
        return ""
    return found.group()


def _last_math(text: str) -> slice | None:
    r"""Place of the last `$...$`, `$$...$$`, `\(...\)` or `\[...\]`."""
    marks = [m for m in _MATH_MARK.finditer(text) if m.group()[-1] in "$()[]"]
    marks = [m for m in marks if m.group() != r"\$"][-40:]
    for left, right in reversed(list(itertools.pairwise(marks))):
        pair = left.group() + right.group()
        if pair not in ("$$", "$$$$", r"\(\)", r"\[\]"):
            continue
        content = text[left.end() : right.start()]
        bare = _COMMANDS.sub(" ", content[:MAX_ANSWER])
        money = pair == "$$" and text[right.end() : right.end() + 1].isdigit()
        if content.strip() and not money and not _LONG_WORD.search(bare):
            return slice(left.start(), right.end())
    return None


FALLBACKS = (_after_hashes, _answer_tag, _after_answer_is, _last_expression)


def extract(response: str, *, require_box: bool = False) -> str | None:
    r"""The answer a response ends with, as text; None where there is none.

    An empty box is an answer that is missing: nothing else is looked at.

    Args:
      response: what a model wrote; only its end is read if it is very long.
      require_box: read boxes only.
    """
    # A lone surrogate cannot be written to a file, which is where answers go.
    text = response[-MAX_RESPONSE:].encode("utf-8", "replace").decode("utf-8")
    # Thoughts without an end have come to no answer.
    text = text.rpartition("</think>")[2].partition("<think>")[0]
    text = _SPECIAL.sub("", text)
    found = boxes(text)
    if found or require_box:
        return bounded(found[-1][1]) if found else None
    for fallback in FALLBACKS:
        answer = bounded(fallback(text))
        if answer is not None:
            return answer
    return None


def bounded(text: str | None) -> str | None:
    """The text without spaces around it; None where it is empty or too long."""
    text = (text or "").strip()
    return text if 0 < len(text) <= MAX_ANSWER else None
