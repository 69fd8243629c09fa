"""Tasks: problems to train on, held-out problems, and how an answer is checked.

Everything follows from the seed. A problem's identity is the text of its question
without white space (for sums of two numbers, the unordered pair), and no identity is
on both sides.
"""

import functools
import math
import random
import re
from collections.abc import Sequence

from grpo_jax import rewards
from grpo_jax.base import Problem, Verdict
from grpo_jax.gym import reasoning_gym as reasoning_gym
from grpo_jax.splits import Check as Check
from grpo_jax.splits import Task, permuted, problem_id, split, text_identity

_OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def pair_identity(question: str) -> tuple[int, ...]:
    """The numbers of a question, in ascending order: 3 + 8 is 8 + 3."""
    return tuple(sorted(map(int, re.findall(r"[0-9]+", question))))


def arithmetic(
    *,
    num_train: int,
    num_eval: int,
    seed: int,
    operands: int = 3,
    min_operand: int = 0,
    max_operand: int = 9,
    operators: str = "+-",
    noise: float = 0.0,
    max_error: int = 9,
    require_box: bool = False,
) -> Task:
    """Chains such as `3+8-2=`, solved one step per line: `3+8=11`, `11-2=9`.

    Products are taken first, then the rest from the left. Results may be negative:
    leaving such chains out would favour small second operands.

    Args:
      num_train: problems to train on.
      num_eval: held-out problems.
      seed: decides the problems, and apart from them the wrong steps.
      operands: numbers in a chain; more is harder.
      min_operand: the smallest operand.
      max_operand: the largest operand; more is harder.
      operators: which of `+`, `-` and `*` occur.
      noise: probability that a step of a training solution has a wrong result; the
        steps after it go on from that result. Gold answers are always right.
      max_error: a wrong result is off by 1 .. `max_error`, either way.
      require_box: only an answer in `\boxed{}` is right.
    """
    _check_chain(operands, min_operand, max_operand, operators, noise, max_error)
    bases = [max_operand - min_operand + 1] * operands
    bases += [len(operators)] * (operands - 1)

    def question(index: int) -> str:
        places = []
        for base in bases:
            index, place = divmod(index, base)
            places.append(place)
        numbers = [str(min_operand + p) for p in places[:operands]]
        signs = [operators[p] for p in places[operands:]]
        return "".join(n + s for n, s in zip(numbers, [*signs, "="], strict=True))

    rest, held_out = split(
        map(question, permuted(random.Random(seed), math.prod(bases))),
        num_train=num_train,
        num_eval=num_eval,
        identity=text_identity,
        remedy="raise operands or max_operand, or lower the counts",
    )
    wrong = random.Random(f"wrong steps {seed}")

    def problem(text: str, share: float) -> Problem:
        exact, lines = solve(text)
        if share > 0:
            _, lines = solve(text, noise=share, max_error=max_error, rng=wrong)
        return Problem(
            id=problem_id("arithmetic", text),
            question=text,
            answer=str(exact),
            solution="\n".join(lines),
            level=f"{operands} operands",
        )

    return Task(
        train=tuple(problem(text, noise) for text in rest),
        evaluation=tuple(problem(text, 0.0) for text in held_out),
        verify=functools.partial(by_answer, require_box=require_box),
    )


def _check_chain(operands, min_operand, max_operand, operators, noise, max_error):
    if operands < 2 or not 0 <= min_operand <= max_operand:
        raise ValueError(
            f"operands={operands}, min_operand={min_operand}, max_operand="
            f"{max_operand}: use operands >= 2 and 0 <= min_operand <= max_operand"
        )
    known = "".join(_OPERATORS)
    if not operators or not set(operators) <= set(known):
        raise ValueError(f"operators={operators!r} must be some of {known!r}; use '+-'")
    if len(set(operators)) < len(operators):
        raise ValueError(f"operators={operators!r} names one twice; name each once")
    if not 0 <= noise <= 1 or max_error < 1:
        raise ValueError(
            f"noise={noise}, max_error={max_error}: noise is a share from 0 to 1 and "
            "max_error is at least 1"
        )


def solve(
    question: str,
    *,
    noise: float = 0.0,
    max_error: int = 9,
    rng: random.Random | None = None,
) -> tuple[int, list[str]]:
    """Works a chain out, one step per line.

    Args:
      question: a chain such as `3+8*2=`.
      noise: probability that a step has a wrong result, carried forward.
      max_error: a wrong result is off by at most this.
      rng: draws which steps are wrong and by how much; needed for noise above 0.

    Returns:
      The last result, and the steps as text.
    """
    numbers = [int(n) for n in re.findall(r"[0-9]+", question)]
    signs = re.findall(r"[-+*]", question)
    lines = []
    while signs:
        at = signs.index("*") if "*" in signs else 0
        result = _OPERATORS[signs[at]](numbers[at], numbers[at + 1])
        if rng is not None and rng.random() < noise:
            result += rng.choice((-1, 1)) * rng.randint(1, max_error)
        lines.append(f"{numbers[at]}{signs[at]}{numbers[at + 1]}={result}")
        numbers[at : at + 2] = [result]
        del signs[at]
    return numbers[0], lines


def addition(
    *,
    num_train: int,
    num_eval: int,
    seed: int,
    digits: int = 2,
    examples: Sequence[tuple[str, str]] = (),
    require_box: bool = True,
) -> Task:
    r"""Sums of two numbers in words: "What is 47 + 85?".

    Args:
      num_train: problems to train on.
      num_eval: held-out problems.
      seed: decides the problems.
      digits: how many digits each number has.
      examples: worked examples shown in the prompt, (question, answer); their pairs
        are asked in neither order.
      require_box: only an answer in `\boxed{}` is right.
    """
    if digits < 1:
        raise ValueError(f"digits={digits} must be at least 1; use 2")
    shown = {pair_identity(example) for example, _ in examples}
    if any(len(pair) != 2 for pair in shown):
        raise ValueError(
            f"examples={list(examples)}: the question of a worked sum must hold two "
            "numbers and no more; write it as 'What is 12 + 34?'"
        )
    low, high = (0 if digits == 1 else 10 ** (digits - 1)), 10**digits

    def question(index: int) -> str:
        a, b = divmod(index, high - low)
        return f"What is {low + a} + {low + b}?"

    rest, held_out = split(
        map(question, permuted(random.Random(seed), (high - low) ** 2)),
        num_train=num_train,
        num_eval=num_eval,
        identity=pair_identity,
        banned=shown,
        remedy="raise digits or lower the counts",
    )

    def problem(text: str) -> Problem:
        a, b = pair_identity(text)
        return Problem(
            id=problem_id("addition", text),
            question=text,
            answer=str(a + b),
            level=f"{digits} digits",
        )

    return Task(
        train=tuple(map(problem, rest)),
        evaluation=tuple(map(problem, held_out)),
        verify=functools.partial(by_answer, require_box=require_box),
    )


def by_answer(response: str, problem: Problem, *, require_box: bool = False) -> Verdict:
    """Grades a response against the gold answer alone."""
    return rewards.grade(response, problem.answer, require_box=require_box)
