r"""Reasoning steps of an answer: where its text is cut, and at which sampled tokens.

Cuts are causal: whether a step ends somewhere depends on what is before that place
only. An estimator whose boundaries look ahead is biased, even with exact values.
"""

import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

_ENDS, _CLOSERS = ".!?", "\"')]}*\u201d\u2019"
_OPENS = {r"\(": r"\)", r"\[": r"\]"}
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def cuts(text: str, *, max_steps: int = 6, min_chars: int = 20) -> list[int]:
    r"""Returns the characters before which a new step begins, at most `max_steps` - 1.

    A step ends with the first separator once it has `min_chars` characters, the
    separator included. Separators are a newline, and a sentence's end outside LaTeX
    with the white space after it, which tells it from a decimal point. An open `$` or
    `\(` ends with its line, so that a price swallows nothing.

    Args:
      text: the answer, or the beginning of one; the last cut may be its length.
      max_steps: the last step runs to the end.
      min_chars: of a step before it may end.
    """
    found: list[int] = []
    first, math, dollars, ended, escaped = 0, "", 0, False, False
    for i, char in enumerate(text):
        if len(found) == max_steps - 1:
            break
        if dollars and char != "$":
            # One or two: decided when the next character is there.
            mark = "$" * min(dollars, 2)
            math, dollars = _toggled(math, mark), 0
        if escaped:
            math = _delimited(math, "\\" + char)
        elif char == "$":
            dollars += 1
        if char == "\n":
            math = "" if math in ("$", r"\)") else math
            separates = True
        else:
            separates = char.isspace() and ended and not math
        ended = not escaped and (char in _ENDS or (ended and char in _CLOSERS))
        escaped = char == "\\" and not escaped
        if separates and i + 1 - first >= min_chars:
            first = i + 1
            found.append(first)
    return found


def _toggled(math: str, mark: str) -> str:
    """What is open after dollar signs: they close their like, and open outside."""
    return "" if math == mark else (math or mark)


def _delimited(math: str, mark: str) -> str:
    r"""What is open after a backslash and a character; `\)` stands for `\(…\)`."""
    if mark in _OPENS and not math:
        return _OPENS[mark]
    return "" if mark == math else math


def split_steps(text: str, *, max_steps: int = 6, min_chars: int = 20) -> list[str]:
    """Returns the steps of a text, see `cuts`; joined they are the text.

    No step is empty, but that a text without characters is one empty step.
    """
    inner = cuts(text, max_steps=max_steps, min_chars=min_chars)
    edges = [0, *(c for c in inner if c < len(text)), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def segmenter(
    decode: Callable[[list[int]], str], *, max_steps: int = 6, min_chars: int = 20
) -> Callable[[Sequence[int]], list[int]]:
    """Returns the function from sampled ids to the first token of each later step.

    A token belongs to the step in which its first character lies, so that two cuts in
    one token are one. A token without text behind a cut, as the end of a sequence is,
    makes a step of its own: were it put into the step before, a cut would depend on
    whether the answer goes on.

    Args:
      decode: ids to their text, special ones left out.
      max_steps: see `cuts`.
      min_chars: see `cuts`.
    """
    pieces: dict[int, str] = {}

    def start_of(ids: list[int], text: str) -> Callable[[int], int]:
        """Where the first character of a token lies."""
        for token in ids:
            if token not in pieces:
                pieces[token] = decode([token])
        apart = [pieces[token] for token in ids]
        if "".join(apart) == text:
            starts = [0, *accumulate(map(len, apart))]
            return starts.__getitem__
        # Tokens that are no text by themselves: parts of a character, or of a word.
        return lambda t: len(decode(ids[:t]).rstrip(_INCOMPLETE))

    def segment(ids: Sequence[int]) -> list[int]:
        ids = [int(token) for token in ids]
        text = decode(ids)
        places = cuts(text, max_steps=max_steps, min_chars=min_chars)
        start = start_of(ids, text)
        found = [bisect.bisect_left(range(len(ids)), c, key=start) for c in places]
        return sorted({t for t in found if 0 < t < len(ids)})

    return segment
