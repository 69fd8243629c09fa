"""`grpo-jax train`: one method on one model, from a file to a better model.

The loop knows the order of an update. Here is what happens around it: the run
directory, pretraining of the embedded model, evaluations, checkpoints, and the end.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from budgets import stats
from budgets.ledger import Phase
from grpo_jax import (
    books,
    build,
    caches,
    checkpoint,
    config,
    evaluation,
    evaluator,
    learner,
    loop,
    pretrain,
    profiling,
    rundir,
    setup,
    states,
)
from grpo_jax.base import Method, Params, Selection, TrainState
from grpo_jax.books import Books
from grpo_jax.checkpoint import Saved
from grpo_jax.command import WRONG_INPUT, ended, one_line, say_counts, user_faults
from grpo_jax.problem_pool import OtherProblems
from grpo_jax.signals import Signals


class Point(NamedTuple):
    """Where a run stands between two updates."""

    update: int
    state: TrainState
    selection: Selection
    method: Method
    over: bool


def train(
    parts: setup.Setup,
    params: Params | None,
    kept: Books,
    *,
    profile: pathlib.Path | None = None,
) -> None:
    """Runs from where the directory stands to the end of the budget.

    Args:
      parts: the run's parts.
      params: the first parameters, consumed; None for a run that does not need them.
      kept: its books, open; closed at the end.
      profile: where to write a trace of two updates; None for none.

    Raises:
      Terminated: SIGTERM came, and the run is saved.
      FloatingPointError: the loss is not finite; the state before it is saved.
      checkpoint.LostCheckpoint: the latest checkpoint cannot be read.
    """
    signals = Signals()
    try:
        latest = kept.checkpoints.latest()
        if latest is None:
            point = _begin(parts, params, kept, signals)
        else:
            point = _resume(parts, params, kept, latest)
        _evaluate(parts, kept, point, signals)
        if not point.over:
            point = _updates(parts, kept, point, signals, profile)
        _conclude(parts, kept, point.update)
    finally:
        kept.close()


def _begin(
    parts: setup.Setup, params: Params | None, kept: Books, signals: Signals
) -> Point:
    """The run before its first update: the model as loaded, or pretrained."""
    wanted = parts.config
    if params is None:
        raise ValueError("a run without a checkpoint begins with parameters")
    if wanted.pretrain.updates:
        params = pretrain.pretrain(parts, kept, params, obey=signals.obey)
    reference = None
    if build.needs_reference(wanted):
        # The first step donates the parameters that it starts from.
        reference = jax.tree.map(jnp.copy, params)
    method = build.method(parts.config, parts.functions, reference)
    selection = method.init(kept.pool)
    state = states.first(parts, params, build.optimizer(wanted))
    if wanted.pretrain.updates:
        kept.save(0, state, selection, kept.position(over=False))
    return Point(0, state, selection, method, over=False)


def _resume(
    parts: setup.Setup, params: Params | None, kept: Books, latest: int
) -> Point:
    """The run as its latest checkpoint holds it."""
    tx = build.optimizer(parts.config)
    like, reference = states.abstract(parts, tx), None
    if build.needs_reference(parts.config):
        reference = params
        if params is None:
            reference = checkpoint.read_params(
                kept.path / "checkpoints", 0, like.params
            )
    method = build.method(parts.config, parts.functions, reference)
    saved = kept.checkpoints.restore(latest, Saved(like, method.init(kept.pool), {}))
    kept.set_position(saved.position)
    kept.lose_time(latest)
    kept.say(f"resuming {kept.path} after update {latest}")
    over = bool(saved.position["over"])
    return Point(latest, saved.state, saved.selection, method, over)


def _updates(
    parts: setup.Setup,
    kept: Books,
    point: Point,
    signals: Signals,
    profile: pathlib.Path | None,
) -> Point:
    """The updates from `point` to the end, each written down as it is done."""
    wanted, method = parts.config, point.method
    learn = learner.learner(
        objective=method.objective,
        tx=build.optimizer(wanted),
        meter=kept.meter,
        shape=parts.shape,
        epochs=wanted.method.epochs,
        minibatches=wanted.method.minibatches,
        microbatches=wanted.optimizer.microbatches,
        row_sharding=parts.row_sharding,
    )
    before = kept.position(over=False)
    last, selection = point.update, point.selection
    state, steps = point.state, int(point.state.step)
    updates = loop.run(
        state,
        kept.pool,
        method=method,
        services=kept.meter.services(parts.train),
        learn=learn,
        account=kept.meter,
        root=parts.root,
        selection=point.selection,
        start=point.update + 1,
    )

    def rescue() -> None:
        if kept.checkpoints.latest() != last:
            kept.save(last, state, selection, before)

    for done in loop.guarded(profiling.traced(updates, profile, parts, kept), rescue):
        try:
            books.check_finite(done)
        except FloatingPointError:
            # Only a state that no step of this update has touched is the last one.
            if int(done.state.step) == steps:
                state = done.state
                rescue()
            raise
        last, state, selection = done.number, done.state, done.selection
        steps = int(state.step)
        before = kept.position(over=done.over)
        books.record(done, kept)
        point = Point(last, state, selection, method, done.over)
        due = last % wanted.run.save_every == 0
        evaluating = _due(wanted, point)
        if due or evaluating or done.over or signals.stopping:
            kept.save(last, state, selection, before)
        signals.obey()
        if evaluating:
            _evaluate(parts, kept, point, signals)
    return point


def _due(wanted: config.Config, point: Point) -> bool:
    """Whether the parameters after this update are evaluated."""
    every = wanted.evaluation.every
    return point.over or point.update == 0 or bool(every and point.update % every == 0)


def _evaluate(parts: setup.Setup, kept: Books, point: Point, signals: Signals) -> None:
    """Evaluates if it is due, and not done before."""
    number = point.update
    before = evaluation.read(kept.path, number, parts.task.split)
    done = before is not None and len(before.ids) == len(parts.task.evaluation)
    if not _due(parts.config, point) or done:
        return
    signals.obey()
    whole = evaluator.run(
        parts,
        point.state.params,
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


def _conclude(parts: setup.Setup, kept: Books, update: int) -> None:
    """Prints what the run came to: base, final and paired accuracy, and its cost."""
    kept.progress.close()
    base, final = (
        evaluation.read(kept.path, number, parts.task.split) for number in (0, update)
    )
    if final is None:
        raise ValueError(
            f"{kept.path / 'eval.jsonl'} lacks the last evaluation; restore the file"
        )
    spent, apart = kept.ledger.total(), kept.ledger.by_phase()
    if base is not None and base.ids == final.ids:
        print(evaluation.sentence("base ", base.correct))
        print(evaluation.sentence("final", final.correct))
        print(evaluation.comparison(final.correct, base.correct))
    else:
        print(evaluation.sentence("final", final.correct))
        print(
            "gain: unknown, since eval.jsonl has no base evaluation of these problems"
        )
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="grpo-jax train",
        description=(__doc__ or "").splitlines()[0],
        epilog="grpo_jax/config_schema.py lists every option with its unit",
    )
    parser.add_argument("config", help="a TOML file")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    profiling.add_option(parser)
    wanted = parser.parse_intermixed_args(argv)
    with user_faults():
        settings = config.load(wanted.config, wanted.overrides)
        caches.keep_programs(settings.run.compilation_cache)
        home = pathlib.Path(settings.run.dir).expanduser()
        with rundir.opened(home, settings) as directory:
            if wanted.profile is not None:
                profiling.check(wanted.profile, directory.path, settings)
            parts = setup.prepare(settings)
            params = states.first_params(parts, directory.path)
            directory.claim(settings)
            kept = books.open_books(parts, directory)
    rundir.write_environment(directory.path / "environment.json", settings)
    say_counts(parts.task.counts)
    try:
        return ended(lambda: train(parts, params, kept, profile=wanted.profile))
    except OtherProblems as fault:
        print(f"error: {one_line(fault)}", file=sys.stderr)
        return WRONG_INPUT
    finally:
        directory.close()


if __name__ == "__main__":
    raise SystemExit(main())
