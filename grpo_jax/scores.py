"""What an evaluation came to: numbers for a file, lines for a person, a comparison."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from budgets import jsonl, stats, votes
from grpo_jax import config as configuration
from grpo_jax import evaluation
from grpo_jax.evaluation import Evaluation

# Options that decide what an accuracy means: a comparison says where they differ.
MEANING = ("evaluation.", "prompt.", "rewards.", "task.", "data.", "sampling.")


def summary(whole: Evaluation, *, equal: Callable[[str, str], bool]) -> dict[str, Any]:
    """Returns the numbers of an evaluation as JSON.

    Args:
      whole: what was seen.
      equal: whether two answers are the same one, for majorities.
    """
    problems, samples = whole.correct.shape
    ks = sorted({*(2**i for i in range(samples.bit_length())), samples})
    answers = [list(row) for row in whole.answers]
    tally = votes.count(answers, list(whole.golds), equal=equal)
    return {
        "problems": problems,
        "samples": samples,
        **_accuracy(whole.correct),
        "pass_at_k": {k: stats.pass_at_k(whole.correct, k) for k in ks},
        "majority_at_k": {k: votes.majority(tally, k) for k in ks},
        "truncated_share": float(whole.truncated.mean()),
        "no_answer_share": float(
            np.mean([[a is None for a in row] for row in answers])
        ),
        "grader_error_share": float(whole.errors.mean()),
        "mean_length": float(whole.lengths.mean()),
        "levels": _groups(whole, whole.levels),
        "subjects": _groups(whole, whole.subjects),
    }


def _accuracy(correct: np.ndarray) -> dict[str, float | None]:
    return _numbers(stats.mean_at_n(correct), stats.standard_errors(correct))


def _numbers(mean: float, errors: stats.Errors) -> dict[str, float | None]:
    return {
        "accuracy": mean,
        "error_over_problems": errors.over_problems,
        "error_of_sampling": errors.of_sampling,
    }


def _groups(whole: Evaluation, names: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy by group, in order; nothing where no problem names one."""
    if not any(names):
        return {}
    groups = stats.per_group(whole.correct, [name or "none" for name in names])
    return {
        name: {"problems": of.num_problems, **_numbers(of.mean, of.errors)}
        for name, of in groups.items()
    }


def lines(name: str, whole: Evaluation, numbers: dict[str, Any]) -> list[str]:
    """Returns a summary as lines for a person."""
    ks = list(numbers["pass_at_k"])
    found = [
        evaluation.sentence(name, whole.correct),
        f"truncated {numbers['truncated_share']:.1%}, without an answer"
        f" {numbers['no_answer_share']:.1%}, grader errors"
        f" {numbers['grader_error_share']:.1%}, mean length"
        f" {numbers['mean_length']:.0f} tokens",
        _row("k", [str(k) for k in ks]),
        _row("pass@k", [f"{numbers['pass_at_k'][k]:.4f}" for k in ks]),
        _row("maj@k", [f"{numbers['majority_at_k'][k]:.4f}" for k in ks]),
    ]
    for kind in ("levels", "subjects"):
        for group, of in numbers[kind].items():
            error = of["error_over_problems"]
            spread = "" if error is None else f" ± {error:.4f} over problems"
            found.append(
                f"{kind[:-1]} {group}: {of['accuracy']:.4f}{spread}"
                f" ({of['problems']} problems)"
            )
    return found


def _row(name: str, cells: list[str]) -> str:
    return f"{name:8}" + "".join(f"{cell:>9}" for cell in cells)


def other(path: pathlib.Path, split: str, ids: Sequence[str]) -> Evaluation:
    """Reads the latest evaluation of a directory, its problems in the order of `ids`.

    Args:
      path: of a run or an evaluation.
      split: which held-out problems.
      ids: the problems that it must have, and no others.

    Raises:
      ValueError: it has no evaluation of exactly these problems.
    """
    if not path.is_dir():
        raise ValueError(f"{path} is no directory; give that of a run or an evaluation")
    found = [row for row in jsonl.read(path / "eval.jsonl") if row["split"] == split]
    update = max((row["update"] for row in found), default=0)
    whole = evaluation.read(path, update, split)
    if whole is None:
        raise ValueError(
            f"{path} has no evaluation of {split}; give the directory of a run or of"
            " `grpo-jax evaluate` with these problems"
        )
    if sorted(whole.ids) != sorted(ids):
        common = len(set(whole.ids) & set(ids))
        raise ValueError(
            f"{path} has {len(whole.ids)} problems of {split}, {common} of them among"
            f" the {len(ids)} here; evaluate both on the same problems"
        )
    return evaluation.take(whole, [whole.ids.index(name) for name in ids])


def comparison(mine: Evaluation, theirs: Evaluation) -> dict[str, Any]:
    """Returns a paired comparison by bootstrap over problems, as JSON."""
    found = stats.paired_bootstrap(mine.correct, theirs.correct)
    return {"accuracy": stats.mean_at_n(theirs.correct), **found._asdict()}


def comparison_line(name: str, numbers: dict[str, Any]) -> str:
    """Returns a comparison as a line for a person."""
    return (
        f"against {name}, accuracy {numbers['accuracy']:.4f}: difference"
        f" {numbers['difference']:+.4f}, 95 % interval {numbers['low']:+.4f} to"
        f" {numbers['high']:+.4f} (paired bootstrap over problems, given these seeds),"
        f" p = {numbers['p']:.4f} (one-sided, for a gain)"
    )


def differing(path: pathlib.Path, settings: configuration.Config) -> list[str]:
    """Returns which options another directory was evaluated under that change the
    meaning of an accuracy."""
    file = path / "config.toml"
    if not file.exists():
        return []
    theirs = configuration.load(file)
    old, new = configuration.flat(theirs), configuration.flat(settings)
    return [
        f"{name} ({old[name]!r} there, {new[name]!r} here)"
        for name in configuration.differences(theirs, settings)
        if name.startswith(MEANING)
    ]
