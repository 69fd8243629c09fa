"""What a run says of itself: its evaluations, and what it came to."""

from budgets import stats
from budgets.ledger import Phase
from grpo_jax import evaluation, evaluator, setup
from grpo_jax.base import Params
from grpo_jax.books import Books
from grpo_jax.points import Points
from grpo_jax.signals import Signals


def evaluate(
    parts: setup.Setup, kept: Books, number: int, params: Params, signals: Signals
) -> None:
    """Evaluates the parameters after an update, if that was not done before.

    Args:
      parts: the run's parts.
      kept: its books.
      number: the update.
      params: what it left.
      signals: obeyed between the parts of the evaluation.
    """
    before = evaluation.read(kept.path, number, parts.task.split)
    if before is not None and len(before.ids) == len(parts.task.evaluation):
        return
    signals.obey()
    whole = evaluator.run(
        parts,
        params,
        path=kept.path,
        update=number,
        meter=kept.meter,
        progress=kept.progress,
        obey=signals.obey,
    )
    accuracy = stats.mean_at_n(whole.correct)
    kept.progress.evaluated(accuracy)
    kept.writers.scalars(number, {"accuracy": accuracy}, kind="evaluation")
    kept.say(
        evaluation.sentence(f"update {number}", whole.correct)
        + f", {whole.truncated.mean():.1%} truncated"
    )
    for warning in evaluator.warnings(whole, number, parts.config):
        kept.say(f"warning: evaluation after {warning}")


def conclude(parts: setup.Setup, kept: Books, update: int) -> None:
    """Prints what the run came to: base, final and paired accuracy, and its cost."""
    kept.progress.close()
    base, final = (
        evaluation.read(kept.path, number, parts.task.split) for number in (0, update)
    )
    listed = Points(parts.config.evaluation).listed
    if final is None and not listed:
        raise ValueError(
            f"{kept.path / 'eval.jsonl'} lacks the last evaluation; restore the file"
        )
    spent, apart = kept.ledger.total(), kept.ledger.by_phase()
    if final is None:
        print("final: not evaluated, since no point asks for the last parameters")
    elif base is not None and base.ids == final.ids:
        print(evaluation.sentence("base ", base.correct))
        print(evaluation.sentence("final", final.correct))
        print(evaluation.comparison(final.correct, base.correct))
    else:
        print(evaluation.sentence("final", final.correct))
        if not listed:
            print("gain: unknown, since eval.jsonl has no base evaluation of them")
    times = evaluator.times_read(parts)
    if times is not None:
        print(f"{parts.task.split} is locked; readings so far: {times}")
    outside = ", ".join(
        f"{phase} {apart[phase].device_seconds:.0f}"
        for phase in (Phase.COMPILE, Phase.PRETRAIN, Phase.EVAL, Phase.CHECKPOINT)
    )
    print(
        f"spent: {update} updates, {spent.generated:,} generated tokens,"
        f" {spent.labels:,} labels, {spent.device_seconds:.0f} device-seconds"
        f" (outside the budget: {outside})"
    )
    print(f"run: {kept.path}")
