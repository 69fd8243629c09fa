"""Worked examples for every prompt, taken from the training problems.

The choice depends on the texts alone: not on the order of a file, nor on the seed of a
run, so training, evaluation and every arm of a study show the same examples. It does
not look at length, since short solutions are those of easy problems.
"""

import hashlib
from collections.abc import Iterable

from grpo_jax.base import Problem
from grpo_jax.splits import text_identity

FIGURE = "[asy]"  # a drawing as code, of which text shows nothing
_SALT = "worked example: "  # apart from every other use of a question's hash


def worked_examples(
    problems: Iterable[Problem], count: int
) -> tuple[tuple[str, str], ...]:
    """Returns `count` questions with their worked solutions, by hash of the question.

    Problems without a solution and those with a figure are passed over. Whoever shows
    the examples leaves their problems out of training and evaluation.

    Args:
      problems: training problems.
      count: how many examples.
    """
    usable: dict[str, Problem] = {}
    # Of one text given twice, the choice must not depend on which comes first either.
    for problem in sorted(problems, key=lambda p: (p.question, p.solution)):
        if (
            problem.solution.strip()
            and FIGURE not in problem.question + problem.solution
        ):
            usable.setdefault(text_identity(problem.question), problem)
    if len(usable) < count:
        raise ValueError(
            f"prompt.shots={count} and {len(usable)} training problems have a worked"
            " solution without a figure; lower it, or write prompt.examples"
        )
    chosen = sorted(usable, key=_place)[:count]
    return tuple((usable[i].question, usable[i].solution.strip()) for i in chosen)


def _place(identity: str) -> bytes:
    return hashlib.sha256((_SALT + identity).encode("utf-8", "replace")).digest()
