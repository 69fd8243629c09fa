"""Problems of the `reasoning_gym` package, for generators with numeric answers."""

import decimal
import difflib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from grpo_jax import rewards
from grpo_jax.base import Problem, Verdict
from grpo_jax.splits import Task, problem_id, split, text_identity

# Generators repeat themselves; after this many candidates per problem, give up.
CANDIDATES_PER_PROBLEM = 20


def reasoning_gym(
    generator: str,
    *,
    num_train: int,
    num_eval: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
    require_box: bool = False,
) -> Task:
    r"""Problems of one generator; only its full score of 1 is right.

    Args:
      generator: its name in `reasoning_gym`; every gold answer must be a number.
      num_train: problems to train on.
      num_eval: held-out problems.
      seed: decides the problems.
      options: the generator's own settings.
      require_box: only an answer in `\boxed{}` is right.
    """
    size = CANDIDATES_PER_PROBLEM * max(num_train + num_eval, 0)
    dataset = _create(generator, dict(options or {}), seed=seed, size=max(size, 1))

    def entries():
        for index in range(size):
            entry = dataset[index]
            if rewards.number(str(entry["answer"])) is None:
                raise ValueError(
                    f"reasoning_gym generator {generator!r} has the answer "
                    f"{entry['answer']!r}, which is not a number; choose a generator "
                    "with numeric answers, such as 'chain_sum'"
                )
            yield entry

    rest, held_out = split(
        entries(),
        num_train=num_train,
        num_eval=num_eval,
        identity=lambda entry: text_identity(entry["question"]),
        remedy="lower the counts or widen the generator's options",
    )
    by_id = {problem_id(generator, e["question"]): e for e in (*held_out, *rest)}

    def problem(entry: dict[str, Any]) -> Problem:
        return Problem(
            id=problem_id(generator, entry["question"]),
            question=entry["question"],
            answer=str(entry["answer"]),
        )

    def verify(response: str, problem: Problem) -> Verdict:
        extracted = rewards.extract(response, require_box=require_box)
        return _score(dataset.score_answer, by_id[problem.id], extracted)

    return Task(tuple(map(problem, rest)), tuple(map(problem, held_out)), verify)


def _score(score_answer, entry: dict[str, Any], extracted: str | None) -> Verdict:
    """The generator's verdict on an extracted answer."""
    value = None if extracted is None else rewards.number(extracted)
    if value is None:
        return Verdict(False, extracted, None)
    # Generators compare spellings; ours says which spellings are the same number.
    same = value == rewards.number(str(entry["answer"]))
    answer = entry["answer"] if same else _plain(value)
    try:
        score = score_answer(answer=answer, entry=entry)
    except (
        Exception
    ) as error:  # a fault of foreign code must not look like a wrong answer
        return Verdict(False, extracted, f"{type(error).__name__}: {error}")
    return Verdict(bool(score == 1), extracted, None)


def _plain(value: Fraction) -> str:
    """A number as the digits that foreign scorers read."""
    if value.denominator == 1:
        return str(value.numerator)
    with decimal.localcontext(decimal.Context(prec=50)):
        return f"{decimal.Decimal(value.numerator) / value.denominator:f}"


def _create(generator: str, options: dict[str, Any], *, seed: int, size: int):
    try:
        import reasoning_gym as gym
        from reasoning_gym import factory
    except ImportError as error:
        raise ValueError(
            "this task needs the package reasoning-gym, which is not installed: "
            'pip install "grpo-jax[tasks]"'
        ) from error
    if generator not in factory.DATASETS:
        near = difflib.get_close_matches(generator, factory.DATASETS, 1)
        raise ValueError(
            f"generator={generator!r} is not one of reasoning_gym's"
            + (f"; did you mean {near[0]!r}?" if near else "; see its documentation")
        )
    try:
        return gym.create_dataset(generator, seed=seed, size=size, **options)
    # Its configurations are dataclasses that check themselves with `assert`.
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(
            f"reasoning_gym generator {generator!r} refuses the options {options}: "
            f"{error}; correct them"
        ) from error
