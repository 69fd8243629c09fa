"""Sampled-answer accuracy on held-out problems, through the engine of training.

An evaluation goes part by part, and each part is on disk before the next begins: one
that was killed continues after its last whole part and draws what it would have drawn.
"""

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from budgets import jsonl, stats
from budgets.ledger import Phase
from grpo_jax.base import Key, Params, Problem, Services, Weights

EXCERPTS = 8  # full texts kept of an evaluation, at most


class Evaluation(NamedTuple):
    """What an evaluation saw: M problems, N samples of each.

    Attributes:
      ids: M problem ids.
      correct: `[M, N] bool`.
      errors: `[M, N] bool` grader faults, which count as not correct.
      answers: M lists of N extracted answers, None where none was found.
      lengths: `[M, N] int` sampled tokens.
      truncated: `[M, N] bool`.
      golds: M gold answers.
      levels: M levels, empty where a problem has none.
      subjects: M subjects, the same.
    """

    ids: tuple[str, ...]
    correct: np.ndarray
    errors: np.ndarray
    answers: tuple[tuple[str | None, ...], ...]
    lengths: np.ndarray
    truncated: np.ndarray
    golds: tuple[str, ...]
    levels: tuple[str, ...]
    subjects: tuple[str, ...]


class Part(NamedTuple):
    """One part of an evaluation, with the texts of its first completions."""

    problems: Sequence[Problem]
    evaluation: Evaluation
    texts: tuple[str, ...]


def parts(
    services: Services,
    params: Params,
    problems: Sequence[Problem],
    *,
    num_samples: int,
    batch: int,
    key: Key,
    decode: Callable[[np.ndarray, np.ndarray], list[str]],
    start: int = 0,
) -> Iterator[Part]:
    """Evaluates `batch` problems at a time; the split changes no draw.

    Args:
      services: sample and verify, with the decoding of evaluation.
      params: the policy.
      problems: held-out problems, encoded.
      num_samples: N.
      batch: problems per call; the services' number of rows.
      key: consumed; a draw depends on it and on the problem's place in `problems`.
      decode: tokens and mask to texts.
      start: how many problems are done already.
    """
    for first in range(start, len(problems), batch):
        some = problems[first : first + batch]
        rollout = services.sample(
            Weights(params),
            some,
            num_samples=num_samples,
            phase=Phase.EVAL,
            key=key,
            first=first,
        )
        feedback = services.verify(rollout, some, phase=Phase.EVAL)
        shape = (len(some), num_samples)
        answers = np.array(feedback.answers, object).reshape(shape)
        lengths = np.asarray(rollout.length) - np.asarray(rollout.prompt_length)
        shown = slice(0, max(EXCERPTS - first, 0) * num_samples, num_samples)
        texts = decode(
            np.asarray(rollout.tokens)[shown], np.asarray(rollout.sampled)[shown]
        )
        yield Part(
            some,
            Evaluation(
                ids=tuple(problem.id for problem in some),
                correct=feedback.reward.reshape(shape) > 0,
                errors=feedback.error.reshape(shape),
                answers=tuple(map(tuple, answers)),
                lengths=lengths.reshape(shape),
                truncated=np.asarray(rollout.truncated).reshape(shape),
                golds=tuple(problem.answer for problem in some),
                levels=tuple(problem.level for problem in some),
                subjects=tuple(problem.subject for problem in some),
            ),
            tuple(texts),
        )


def rows(evaluation: Evaluation, *, update: int, split: str) -> list[dict[str, Any]]:
    """Returns the objects of `eval.jsonl`, one per problem."""
    return [
        {
            "update": update,
            "split": split,
            "id": name,
            "correct": evaluation.correct[i].tolist(),
            "answers": list(evaluation.answers[i]),
            "lengths": evaluation.lengths[i].tolist(),
            "truncated": evaluation.truncated[i].tolist(),
            "errors": evaluation.errors[i].tolist(),
            "gold": evaluation.golds[i],
            "level": evaluation.levels[i],
            "subject": evaluation.subjects[i],
        }
        for i, name in enumerate(evaluation.ids)
    ]


def excerpts(part: Part) -> str:
    """Returns the first samples of a part as text a person can read."""
    found, one = [], part.evaluation
    for i, text in enumerate(part.texts):
        problem = part.problems[i]
        mark = "right" if one.correct[i, 0] else "wrong"
        cut = ", truncated" if one.truncated[i, 0] else ""
        found.append(
            f"## {problem.id}\n{problem.question}\n-- sampled ({mark}{cut}; answer"
            f" {one.answers[i][0]!r}, gold {problem.answer!r})\n{text}\n"
        )
    return "\n".join(found)


def record(
    directory: pathlib.Path, part: Part, *, update: int, split: str, first: bool
) -> None:
    """Adds a part to `eval.jsonl` in one write, and excerpts to `samples/`.

    Args:
      directory: of the run.
      part: what to write.
      update: whose parameters were evaluated.
      split: name of the held-out problems.
      first: whether the evaluation begins with it.
    """
    folder = directory / "samples"
    folder.mkdir(exist_ok=True)
    if part.texts:
        file = folder / f"{update:06d}-{split}.md"
        with file.open("w" if first else "a", encoding="utf-8") as samples:
            samples.write(("" if first else "\n") + excerpts(part))
    found = rows(part.evaluation, update=update, split=split)
    jsonl.extend(directory / "eval.jsonl", found)


def read(directory: pathlib.Path, update: int, split: str) -> Evaluation | None:
    """Reads what is on disk of one evaluation; None where there is nothing.

    Raises:
      ValueError: its rows are no whole matrix.
    """
    path = directory / "eval.jsonl"
    found = [
        row
        for row in jsonl.read(path)
        if row["update"] == update and row["split"] == split
    ]
    if not found:
        return None
    try:
        return _columns(found)
    except (KeyError, TypeError, ValueError) as fault:
        raise ValueError(
            f"{path}: an evaluation of update {update} is damaged"
            f" ({type(fault).__name__}: {str(fault)[:80]}); restore the file or choose"
            " another run.dir"
        ) from fault


def _columns(found: list[dict[str, Any]]) -> Evaluation:
    shape = (len(found), len(found[0]["correct"]))

    def matrix(name: str, kind: type) -> np.ndarray:
        return np.array([row[name] for row in found], kind).reshape(shape)

    def column(name: str) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for row in found)

    answers = [[None if a is None else str(a) for a in row["answers"]] for row in found]
    if any(len(row) != shape[1] for row in answers):
        raise ValueError(f"a problem has not {shape[1]} answers")
    return Evaluation(
        ids=column("id"),
        correct=matrix("correct", bool),
        errors=matrix("errors", bool),
        answers=tuple(map(tuple, answers)),
        lengths=matrix("lengths", int),
        truncated=matrix("truncated", bool),
        golds=column("gold"),
        levels=column("level"),
        subjects=column("subject"),
    )


def take(whole: Evaluation, places: Sequence[int]) -> Evaluation:
    """Returns the problems at `places`, in that order."""

    def some(column: tuple) -> tuple:
        return tuple(column[i] for i in places)

    return Evaluation(
        ids=some(whole.ids),
        correct=whole.correct[places],
        errors=whole.errors[places],
        answers=some(whole.answers),
        lengths=whole.lengths[places],
        truncated=whole.truncated[places],
        golds=some(whole.golds),
        levels=some(whole.levels),
        subjects=some(whole.subjects),
    )


def sentence(name: str, correct: np.ndarray) -> str:
    """Returns one line: accuracy with both standard errors, labelled."""
    errors = stats.standard_errors(correct)
    problems, samples = correct.shape
    parts = [
        f"± {error:.4f} {label}"
        for error, label in zip(errors, ("over problems", "of sampling"), strict=True)
        if error is not None
    ]
    size = f"{problems} problems x {samples} samples"
    return (
        f"{name}: sampled-answer accuracy {stats.mean_at_n(correct):.4f}"
        f" ({'; '.join([*filter(None, [', '.join(parts)]), size])})"
    )


def comparison(after: np.ndarray, before: np.ndarray) -> str:
    """Returns one line: the paired gain with its standard error over problems."""
    gain, error = stats.paired_difference(after, before)
    if error is None:
        return f"gain: {gain:+.4f} (paired; one problem has no standard error)"
    ratio = f": {gain / error:+.1f} standard errors" if error else ""
    return f"gain: {gain:+.4f} ± {error:.4f} (paired, over problems){ratio}"
