r"""Equality of expressions by math-verify, in a process that can be killed.

Time is bounded without signals, so this works in any thread and in any process: each
process has one worker, started when first needed, asked by one thread at a time, and
killed when it takes too long. What could keep it busy for long, or could equal no gold
answer, is screened out before and is simply not equal.
"""

import atexit
import functools
import json
import os
import pathlib
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from grpo_jax.latex import DOLLAR, END, TEXT, depth

LIMIT_SECONDS = 3.0  # for one answer
START_SECONDS = 120.0  # importing sympy, not charged to an answer
MAX_LENGTH = 400  # characters of an expression
MAX_DEPTH = 12
MAX_LETTERS = 24  # variables; a gold answer of MATH has 12 at most
MAX_SUBSCRIPTS = 4

_DECIMAL = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)(?![0-9.])")
_ONE = (
    r"([0-9]|(?<= )[a-zA-Z]|(?<=[0-9}])[a-zA-Z]|\\(?:pi|theta|alpha|beta)(?![A-Za-z]))"
)
_DEGREES = re.compile(rf"([0-9]{{1,4}}) ?{TEXT}degrees{END}")
_FIXES = tuple(
    (re.compile(pattern), to)
    for pattern, to in (
        (r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", ""),
        (rf"(\\frac|\\binom) ?{_ONE} ?{_ONE}", r"\1{\2}{\3}"),
        (rf"(\\frac|\\binom) ?{_ONE} ?(?=\{{)", r"\1{\2}"),
        (rf"(\\frac ?\{{[^{{}}]*\}}) ?{_ONE}", r"\1{\2}"),
        (r"\\sqrt ?([0-9]+)", r"\\sqrt{\1}"),
        (r"\\sqrt ?([a-zA-Z])", r"\\sqrt{\1}"),
        (r"\\sqrt ?\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])(?:sqrt ?\(([^()]*)\))", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi"),
        (r"\^ ?([+-]?[0-9]*\.?[0-9]+)", r"^{\1}"),
        (r"\*", r"\\cdot "),
        (r"(?<![0-9}])([0-9]+)/([0-9]+) (?=[a-zA-Z\\])", r"\\frac{\1}{\2} "),
    )
)
_TOWER = re.compile(r"\^ ?(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|[^{} ])(?: ?\^)")
_EXPONENT = re.compile(r"\^ ?\{([^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*)\}")
_SMALL_POWER = re.compile(r"[A-Za-z] ?\^ ?\{?[0-9]\}?")
_BIG_FACTORIAL = re.compile(r"[0-9]{5} ?!|! ?!|[\])}] ?!")
_SMALL_FACTORIAL = re.compile(r"\([0-9a-z+ -]{1,12}\) ?!|\{[0-9]{1,3}\} ?!")
_NO_VARIABLES = re.compile(r"\\(?:begin|end) ?\{[^{}]*\}|\\[A-Za-z]+|[^A-Za-z]+")
_BIG_POWER = re.compile(
    r"[)}\]] ?\^ ?\{ ?(?:[2-9][0-9]|[0-9]{3})|[a-zA-Z] ?\^ ?\{ ?[0-9]{3}"
)
_CHARACTERS = re.compile(r"[ -~]+")


class Failure(Exception):
    """The worker gave no verdict: too slow, or broken."""


def latex(text: str) -> str | None:
    """Writes an answer in the one spelling for math-verify; None if screened out.

    Decimals become fractions, so that nothing is ever compared as floats.
    """
    text = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})", text)
    if len(text) > MAX_LENGTH or TEXT in text or END in text or DOLLAR in text:
        return None
    for pattern, to in _FIXES:
        text = pattern.sub(to, text)
    if not _CHARACTERS.fullmatch(text) or len(text) > 2 * MAX_LENGTH or _heavy(text):
        return None
    return _DECIMAL.sub(_fraction, text)


def _fraction(found: re.Match[str]) -> str:
    over = (found[1] + found[2]).lstrip("0") or "0"
    return rf"(\frac{{{over}}}{{1{'0' * len(found[2])}}})"


def _heavy(text: str) -> bool:
    """Whether towers of powers, factorials, nesting or products of many variables
    could take without bound."""
    variables = _NO_VARIABLES.sub("", text)
    if len(variables) > MAX_LETTERS or text.count("_") > MAX_SUBSCRIPTS:
        return True
    if (
        re.search(r"[+-] ?[+-]", text)
        or depth(text) > MAX_DEPTH
        or _TOWER.search(text)
        or "_{{" in text
    ):
        return True
    if variables and _BIG_POWER.search(text):
        return True
    for exponent in _EXPONENT.finditer(text):
        if "^" in _SMALL_POWER.sub("", exponent[1]) or re.search(
            "[0-9]{5}", exponent[1]
        ):
            return True
    if re.search(r"\\binom ?\{[^{}]*(?:\{[^{}]*\}[^{}]*)?\^", text):
        return True
    if re.search(r"\\(?:binom|prod|sum|int|lim)", text) and re.search(
        "[0-9]{5}|\\^ ?{?[0-9]{2}", text
    ):
        return True
    return _BIG_FACTORIAL.search(_SMALL_FACTORIAL.sub("", text)) is not None


class Gone(Failure):
    """The worker ended by itself, and another may do better."""


class Worker:
    """One process that compares, and the lock that keeps its requests apart."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def equal(self, gold: str, answer: str, seconds: float) -> tuple[bool, float]:
        """Whether two expressions in LaTeX are equal, and the seconds it took.

        Neither the wait for other threads nor the start of the process counts.

        Raises:
          Failure: no verdict within the time, or a fault in the worker.
        """
        request = json.dumps({"gold": gold, "answer": answer}).encode() + b"\n"
        with self._lock:
            begun = time.monotonic()
            try:
                reply, taken = self._reply(request, seconds)
            except Gone:  # killed from outside between two requests, or by this one
                left = seconds - (time.monotonic() - begun)
                reply, taken = self._reply(request, max(left, 0.1))
        if "error" in reply:
            raise Failure(reply["error"])
        return reply["equal"], taken

    def _reply(self, request: bytes, seconds: float) -> tuple[dict[str, Any], float]:
        try:
            process = self._started()
            begun = time.monotonic()
            _pipe(process.stdin).write(request)
            return self._line(process, seconds), time.monotonic() - begun
        except OSError as error:
            self._stop()
            raise Gone(f"the symbolic worker is gone: {error}") from error
        except BaseException:  # a late reply must not answer another request
            self._stop()
            raise

    def close(self) -> None:
        """Ends the process; the next request starts another one."""
        with self._lock:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        path = pathlib.Path(__file__).with_name("symbolic_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._line(self._process, START_SECONDS)
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        end, replies = time.monotonic() + seconds, _pipe(process.stdout).fileno()
        poll = select.poll()
        poll.register(replies, select.POLLIN)
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(1000 * left):
                raise Failure(f"no verdict within {seconds:.3g} s")
            part = os.read(replies, 65536)
            if not part:
                raise Gone("the symbolic worker ended without a verdict")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _stop(self) -> None:
        process, self._process, self._rest = self._process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            _pipe(process.stdin).close()
            _pipe(process.stdout).close()


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    if end is None:
        raise ValueError("the symbolic worker has no pipe; start it with pipes")
    return end


@functools.cache
def worker(pid: int) -> Worker:
    """The worker of a process; a fork has its own pid and so gets its own."""
    made = Worker()
    atexit.register(lambda: made.close() if os.getpid() == pid else None)
    return made


def within(seconds: float) -> Callable[[str, str], bool]:
    """Comparison of answers in the one spelling that takes so long in all.

    The comparison raises `Failure` where there is no verdict: the answer is then
    neither right nor wrong.
    """
    left = seconds

    def ask(gold: str, answer: str) -> bool:
        nonlocal left
        theirs, ours = latex(answer), latex(gold)
        if theirs is None or ours is None:
            return False
        equal, taken = worker(os.getpid()).equal(ours, theirs, left)
        left -= taken
        return equal

    return ask
