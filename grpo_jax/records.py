"""What is written down of an update: its row of numbers, and the ids it sampled."""

import collections
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_jax import config_schema, credit, metrics
from grpo_jax.base import Feedback
from grpo_jax.books import Books
from grpo_jax.loop import Update
from grpo_jax.meter import Sampled


def record(done: Update, kept: Books) -> None:
    """Writes an update down, shows it, and warns of what starts to go wrong."""
    numbers = row(done, kept, kept.config.sampling.group_size)
    kept.writers.write(numbers)
    # One step an answer is no fault of an arm that gives no credit to steps.
    quiet = {} if done.feedback.num_steps is not None else {"share_without_boundary": 0}
    for warning in kept.alarms.new(numbers | quiet):
        kept.say(f"warning: {warning}")
    kept.progress.update(numbers)
    save_rollouts(kept.path, done.number, kept.meter.sampled)


def row(done: Update, kept: Books, group_size: int) -> dict[str, Any]:
    """Returns the object of `metrics.jsonl` for one update."""
    rollout, feedback = done.batch.rollout, done.feedback
    tokens, sampled = np.asarray(rollout.tokens), np.asarray(rollout.sampled)
    numbers = {
        "update": done.number,
        "optimizer_steps": int(done.state.step),
        "trained": done.trained,
        "reward": float(feedback.reward.mean()),
        "loss": None,
        "grad_norm": None,
        "entropy": None,
        "kl_old": None,
        "truncated_share": float(np.asarray(rollout.truncated).mean()),
        "zero_variance_share": metrics.zero_variance_share(feedback.reward, group_size),
        "grader_error_share": float(feedback.error.mean()),
        "duplicate_share": metrics.duplicate_share(tokens, sampled, group_size),
        **_steps(feedback, kept.config.credit),
        "refilled_forks": kept.meter.refilled_forks,
        "slot_utilisation": kept.meter.slot_utilisation(),
        "mean_length": float(sampled.sum(1).mean()),
        "tokens_generated": int(sampled.sum()),
        "tokens_real": 0,  # of the train step, whose metrics replace them
        "tokens_padded": 0,
        "seconds": dict(kept.meter.seconds),
        "compilations": kept.meter.compilations,
    }
    return numbers | done.metrics


def _steps(feedback: Feedback, wanted: config_schema.Credit) -> dict[str, Any]:
    """How answers fall into steps; of an arm without step credit, by their text."""
    steps = feedback.num_steps
    if steps is None:
        how = {"max_steps": wanted.max_steps, "min_chars": wanted.min_chars}
        steps = [len(credit.split_steps(text, **how)) for text in feedback.texts]
    if not len(steps):
        return {"mean_steps": None, "share_without_boundary": None}
    alone = np.asarray(steps) <= 1
    return {
        "mean_steps": float(np.mean(steps)),
        "share_without_boundary": float(alone.mean()),
    }


def save_rollouts(path: pathlib.Path, number: int, sampled: Sequence[Sampled]) -> None:
    """Writes the sampled ids of one update, so that the ledger can be recounted.

    A file for each call of the sampler: `000012-candidate.npz`, and where a phase
    sampled again in the same update, `000012-candidate-1.npz` and so on.
    """
    folder, times = path / "rollouts", collections.Counter()
    for one in sampled:
        folder.mkdir(exist_ok=True)
        again = f"-{times[one.phase]}" if times[one.phase] else ""
        times[one.phase] += 1
        rollout = one.rollout
        judged: dict[str, Any] = {}
        if one.feedback is not None:
            ids = [problem.id for problem in one.prompts]
            judged = {"reward": one.feedback.reward, "ids": np.array(ids)}
        partial = folder / "partial.npz"
        np.savez_compressed(
            partial,
            tokens=np.asarray(rollout.tokens),
            sampled=np.asarray(rollout.sampled),
            logp=np.asarray(rollout.logp),
            prompt_length=np.asarray(rollout.prompt_length),
            length=np.asarray(rollout.length),
            **judged,
        )
        partial.replace(folder / f"{number:06d}-{one.phase}{again}.npz")


def check_finite(done: Update) -> None:
    """Raises FloatingPointError if an update's loss or gradient is not finite."""
    if not done.trained:
        return
    for name in ("loss", "grad_norm"):
        value = done.metrics[name]
        if value is not None and not math.isfinite(value):
            raise FloatingPointError(f"{name} of update {done.number} is not finite")
