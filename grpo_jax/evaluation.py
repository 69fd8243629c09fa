"""Sampled-answer accuracy on held-out problems, through the engine of training."""

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from budgets import jsonl, stats
from budgets.ledger import Phase
from grpo_jax.base import Key, Params, Problem, Services, Weights

SPLIT = "eval"  # the held-out problems of a task


class Evaluation(NamedTuple):
    """What an evaluation saw: M problems, N samples of each.

    Attributes:
      ids: M problem ids.
      correct: `[M, N] bool`.
      errors: `[M, N] bool` grader faults, which count as not correct.
      answers: M lists of N extracted answers, None where none was found.
      lengths: `[M, N] int` sampled tokens.
      truncated: `[M, N] bool`.
    """

    ids: tuple[str, ...]
    correct: np.ndarray
    errors: np.ndarray
    answers: tuple[tuple[str | None, ...], ...]
    lengths: np.ndarray
    truncated: np.ndarray


class Part(NamedTuple):
    """One part of an evaluation, with the texts of its completions."""

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
    """
    for first in range(0, len(problems), batch):
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
        texts = decode(np.asarray(rollout.tokens), np.asarray(rollout.sampled))
        yield Part(
            some,
            Evaluation(
                ids=tuple(problem.id for problem in some),
                correct=feedback.reward.reshape(shape) > 0,
                errors=feedback.error.reshape(shape),
                answers=tuple(map(tuple, answers)),
                lengths=lengths.reshape(shape),
                truncated=np.asarray(rollout.truncated).reshape(shape),
            ),
            tuple(texts),
        )


def joined(pieces: Sequence[Evaluation]) -> Evaluation:
    """Returns the evaluation whose parts these are, in order."""
    return Evaluation(
        ids=tuple(name for piece in pieces for name in piece.ids),
        correct=np.concatenate([piece.correct for piece in pieces]),
        errors=np.concatenate([piece.errors for piece in pieces]),
        answers=tuple(row for piece in pieces for row in piece.answers),
        lengths=np.concatenate([piece.lengths for piece in pieces]),
        truncated=np.concatenate([piece.truncated for piece in pieces]),
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
        }
        for i, name in enumerate(evaluation.ids)
    ]


def excerpts(part: Part, *, most: int) -> list[str]:
    """Returns up to `most` first samples as text a person can read."""
    found = []
    for i, problem in enumerate(part.problems[: max(most, 0)]):
        one = part.evaluation
        text = part.texts[i * one.correct.shape[1]]
        mark = "right" if one.correct[i, 0] else "wrong"
        cut = ", truncated" if one.truncated[i, 0] else ""
        found.append(
            f"## {problem.id}\n{problem.question}\n-- sampled ({mark}{cut}; answer"
            f" {one.answers[i][0]!r}, gold {problem.answer!r})\n{text}\n"
        )
    return found


def record(
    directory: pathlib.Path,
    evaluation: Evaluation,
    *,
    update: int,
    split: str,
    shown: Sequence[str],
) -> None:
    """Adds an evaluation to `eval.jsonl` in one write, and excerpts to `samples/`."""
    folder = directory / "samples"
    folder.mkdir(exist_ok=True)
    text = "\n".join(shown)
    (folder / f"{update:06d}-{split}.md").write_text(text, encoding="utf-8")
    jsonl.extend(directory / "eval.jsonl", rows(evaluation, update=update, split=split))


def matrix(directory: pathlib.Path, update: int, split: str = SPLIT) -> np.ndarray:
    """Reads `[M, N] bool` of one evaluation back; `[0, 0]` where there is none."""
    found = [
        row["correct"]
        for row in jsonl.read(directory / "eval.jsonl")
        if row["update"] == update and row["split"] == split
    ]
    return np.array(found, bool) if found else np.zeros((0, 0), bool)


def sentence(name: str, correct: np.ndarray) -> str:
    """Returns one line: accuracy with both standard errors, labelled."""
    errors = stats.standard_errors(correct)
    problems, samples = correct.shape
    parts = [
        f"± {error:.4f} {label}"
        for error, label in zip(errors, ("over problems", "of sampling"), strict=True)
        if error is not None
    ]
    return (
        f"{name}: sampled-answer accuracy {stats.mean_at_n(correct):.4f}"
        f" ({', '.join(parts)}; {problems} problems x {samples} samples)"
    )


def comparison(after: np.ndarray, before: np.ndarray) -> str:
    """Returns one line: the paired gain with its standard error over problems."""
    gain, error = stats.paired_difference(after, before)
    if error is None:
        return f"gain: {gain:+.4f} (paired; one problem has no standard error)"
    ratio = f": {gain / error:+.1f} standard errors" if error else ""
    return f"gain: {gain:+.4f} ± {error:.4f} (paired, over problems){ratio}"
