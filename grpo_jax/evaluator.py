"""An evaluation in a directory: continued where it was killed, shown while it runs."""

import pathlib
from collections.abc import Callable

from budgets.ledger import Phase
from grpo_jax import evaluation, keys, metrics, readings, setup
from grpo_jax.base import Params
from grpo_jax.config import Config
from grpo_jax.evaluation import Evaluation
from grpo_jax.meter import Meter
from grpo_jax.problem_pool import digest
from grpo_jax.progress import Progress


def run(
    parts: setup.Setup,
    params: Params,
    *,
    path: pathlib.Path,
    update: int,
    meter: Meter,
    progress: Progress,
    obey: Callable[[], None],
) -> Evaluation:
    """Evaluates the problems that are not on disk yet, and returns the whole.

    Args:
      parts: problems, sampler and model.
      params: the policy.
      path: the directory; its evaluation of `update` holds whole parts.
      update: whose parameters they are; part of every key.
      meter: charges the work.
      progress: shows it.
      obey: called between parts; may raise to stop.
    """
    problems, split = parts.task.evaluation, parts.task.split
    meter.release()  # of an update that was not trained
    before = evaluation.read(path, update, split)
    done = len(before.ids) if before else 0
    if done < len(problems):
        _note(parts, path, update)
        meter.begin(update, between=Phase.EVAL)
        progress.begin_evaluation(update, done, len(problems))
    for part in evaluation.parts(
        meter.services(parts.evaluation),
        params,
        problems,
        num_samples=parts.config.evaluation.samples,
        batch=parts.batch_prompts,
        key=keys.at(parts.root, keys.Stream.EVALUATE, update),
        decode=setup.decoder(parts),
        start=done,
    ):
        meter.idle()
        evaluation.record(path, part, update=update, split=split, first=done == 0)
        done += len(part.problems)
        progress.evaluating(len(part.problems), int(part.evaluation.lengths.sum()))
        if done < len(problems):
            obey()
    meter.release()
    whole = evaluation.read(path, update, split)
    if whole is None:
        raise RuntimeError(f"{path / 'eval.jsonl'} was removed while it was written")
    return whole


def _note(parts: setup.Setup, path: pathlib.Path, update: int) -> None:
    """Writes a reading of a locked split down, once however often it is resumed."""
    if parts.task.locked:
        readings.note(
            _log(parts),
            split=parts.task.split,
            run=str(path.resolve()),
            update=update,
            purpose=f"evaluate {parts.config.model.path}, seed {parts.config.seed}",
            digest=digest(parts.task.evaluation),
        )


def _log(parts: setup.Setup) -> pathlib.Path:
    return pathlib.Path(parts.config.data.readings).expanduser()


def check_log(parts: setup.Setup) -> None:
    """Refuses to begin where a reading of a locked split could not be noted."""
    if parts.task.locked:
        readings.check(_log(parts))


def times_read(parts: setup.Setup) -> int | None:
    """Returns how often the held-out problems were read; None where nobody counts."""
    if not parts.task.locked:
        return None
    return readings.count(_log(parts), parts.task.split)


def warnings(whole: Evaluation, update: int, config: Config) -> list[str]:
    """Returns what an evaluation's shares warn of, with its own options as remedies."""
    shares = {
        "update": update,
        "truncated_share": float(whole.truncated.mean()),
        "grader_error_share": float(whole.errors.mean()),
    }
    return [
        warning.replace("sampling.max_new_tokens", "evaluation.max_new_tokens")
        for warning in metrics.alarms(shares, config.alarms)
    ]
