r"""The process that asks math-verify whether two expressions are equal.

One JSON object per line on standard input, one on standard output. It imports nothing
of this package. Only LaTeX is parsed, by a grammar. math-verify's reader of plain
expressions is never used, because sympy's `parse_expr` evaluates Python; the grammar
hands it the digits of each number, so in this process it reads digits and refuses
anything else. Time limits of math-verify are off, because they are signals; the parent
kills this process instead. It ends with its parent.
"""

import json
import os
import re
import resource
import signal
import sys
import threading
import time
from fractions import Fraction
from typing import Any

MEMORY_BYTES = 4 * 2**30
ALARM_SECONDS = 60
DIGITS = 100  # to which two closed forms must agree where no proof is found


def read_digits(text: str, *args: Any, **kwargs: Any) -> Any:
    """Stands in for sympy's `parse_expr`: numbers and names, nothing evaluated."""
    import sympy

    if re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII):  # sympy names its own symbols
        return sympy.Symbol(text)
    if not re.fullmatch(r" *[0-9]+(?:\.[0-9]*)? *| *\.[0-9]+ *", text):
        raise ValueError(f"{text!r} is not a number, and no text is evaluated as code")
    value = Fraction(text.strip().removesuffix("."))
    return sympy.Rational(value.numerator, value.denominator)


def refuse(*args: Any, **kwargs: Any) -> Any:
    """Stands in for sympy's `eval_expr`."""
    raise ValueError("no text is evaluated as code")


def read(latex: str) -> Any:
    """Parses LaTeX without the dollars around it; None where it cannot be read."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    config = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
    found = parse(
        f"${latex}$",
        [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=config)],
        fallback_mode="no_fallback",
        parsing_timeout=None,  # type: ignore[arg-type]
        raise_on_error=True,
    )
    if not found:
        return None
    units = {s: sympy.I for s in found[0].free_symbols if str(s) == "i"}
    return found[0].xreplace(units)


def equal(gold: str, answer: str) -> bool:
    """Whether two expressions in LaTeX are equal; exact where a number is concerned.

    Raises:
      ValueError: the gold answer cannot be read.
    """
    from math_verify import verify

    ours = read(gold)
    if ours is None:
        raise ValueError(f"math-verify cannot read the gold answer {gold!r}")
    try:
        theirs = read(answer)
    except MemoryError:
        raise
    except Exception:  # an answer that is no mathematics is wrong, and no fault
        return False
    if theirs is None or _clearly_different(ours, theirs):
        return False
    agreed = verify(
        ours,
        theirs,
        float_rounding=DIGITS,
        numeric_precision=DIGITS,
        allow_set_relation_comp=True,
        timeout_seconds=None,
        raise_on_error=True,
    )
    return bool(agreed) and not _provably_different(ours, theirs)


def _clearly_different(a: Any, b: Any) -> bool:
    """Whether two numbers differ in their first digits, which is quick to see.

    A number also differs from what still has a variable.
    """
    import sympy

    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return False
    if a.free_symbols or b.free_symbols:
        return a.is_Rational is True and bool(b.free_symbols) and not b.has(sympy.Sum)
    x, y = a.evalf(30), b.evalf(30)
    if not (x.is_Float or x.is_Integer) or not (y.is_Float or y.is_Integer):
        return False
    return bool(abs(x - y) > (1 + abs(x)) * sympy.Float("1e-12"))


def _provably_different(a: Any, b: Any) -> bool:
    """Whether agreement is of digits only: a rational needs a proof."""
    import sympy

    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return False
    if isinstance(a, sympy.Symbol) or isinstance(b, sympy.Symbol):
        return False
    a, b = a.doit(), b.doit()
    if a == b:
        return False
    proof = (a - b).equals(0)
    return proof is not True if (a.is_Rational or b.is_Rational) else proof is False


def main() -> None:
    """Answers requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # what libraries print is not a reply
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    _prepare()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # One huge operation holds every thread: the kernel ends what nobody else can.
        signal.alarm(ALARM_SECONDS)
        try:
            reply = {"equal": equal(request["gold"], request["answer"])}
        except MemoryError:
            return  # the parent starts another one
        except Exception as error:  # the boundary: a fault here is no verdict
            reply = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        signal.alarm(0)
        print(json.dumps(reply), file=replies, flush=True)


def _prepare() -> None:
    """Imports, warms up, and closes every way to evaluate text."""
    import logging

    import sympy.parsing.sympy_parser as parser
    import sympy.physics.units  # noqa: F401  read by `simplify`

    logging.disable(logging.CRITICAL)
    parser.parse_expr, parser.eval_expr = read_digits, refuse
    equal("x^2-1", "(x-1)(x+1)")  # what is slow the first time
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if most < 0 else min(MEMORY_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _end_with(parent: int) -> None:
    # A sibling may hold the other end of the pipe open after the parent is gone.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
