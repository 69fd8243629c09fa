"""`grpo-jax train`: one method on one model, from a file to a better model.

The loop knows the order of an update. Here is what happens around it: the run
directory, pretraining of the embedded model, evaluations, checkpoints, and the end.
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from budgets.ledger import Cost, Phase
from grpo_jax import (
    build,
    checkpoint,
    config,
    jobs,
    kernel,
    learner,
    loop,
    outcome,
    points,
    pretrain,
    profiling,
    records,
    setup,
    states,
)
from grpo_jax.base import Method, Params, Selection, TrainState
from grpo_jax.books import Books
from grpo_jax.checkpoint import Saved
from grpo_jax.command import user_faults
from grpo_jax.points import Points
from grpo_jax.signals import Signals


class Point(NamedTuple):
    """Where a run stands between two updates.

    Attributes:
      update: the last one; 0 is before the first.
      learned: the last that was trained, whose parameters `state` holds.
      state: after it.
      selection: after `update`.
      method: of the run.
      over: whether `update` ends the run.
    """

    update: int
    learned: int
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
        point = stand(parts, params, kept, signals)
        number = _due(kept, Points(parts.config.evaluation), point)
        if number is not None:
            outcome.evaluate(parts, kept, number, point.state.params, signals)
        if not point.over:
            point = _updates(parts, kept, point, signals, profile)
        outcome.conclude(parts, kept, point.update)
    finally:
        kept.close()


def stand(
    parts: setup.Setup, params: Params | None, kept: Books, signals: Signals
) -> Point:
    """Returns where a run stands: before its first update, or at its checkpoint."""
    latest = kept.checkpoints.latest()
    if latest is None:
        return _begin(parts, params, kept, signals)
    return _resume(parts, params, kept, latest)


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
    method = build.method(parts.config, parts.functions, reference, parts.tokenizer)
    selection = method.init(kept.pool)
    state = states.first(parts, params, build.optimizer(wanted))
    if wanted.pretrain.updates:
        kept.save(0, state, selection, kept.position(over=False, learned=0))
    return Point(0, 0, state, selection, method, over=False)


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
    method = build.method(parts.config, parts.functions, reference, parts.tokenizer)
    saved = kept.checkpoints.restore(latest, Saved(like, method.init(kept.pool), {}))
    kept.set_position(saved.position)
    kept.lose_time(latest)
    kept.say(f"resuming {kept.path} after update {latest}")
    # An older run evaluated after every last update, trained or not.
    learned = int(saved.position.get("learned", latest))
    over = bool(saved.position["over"])
    return Point(latest, learned, saved.state, saved.selection, method, over)


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
    grid, learned = Points(wanted.evaluation), point.learned
    before = kept.position(over=False, learned=learned)
    last, selection = point.update, point.selection
    state, steps = point.state, int(point.state.step)
    # What the update before left: its number, its parameters, what was spent by then.
    held, spent = _hold(kept, grid, point.update, state.params), kept.ledger.spent
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
            records.check_finite(done)
        except FloatingPointError:
            # Only a state that no step of this update has touched is the last one.
            if int(done.state.step) == steps:
                state = done.state
                rescue()
            raise
        last, state, selection = done.number, done.state, done.selection
        steps = int(state.step)
        learned = last if done.trained else learned
        before = kept.position(over=done.over, learned=learned)
        records.record(done, kept)
        # From here on nothing is charged to this update inside the budget: what has
        # been read at a point is what the ledger says afterwards.
        kept.meter.idle()
        point = Point(last, learned, state, selection, method, done.over)
        if held is not None and grid.passed(spent, kept.ledger.spent):
            # Before this update is saved: a run that resumes behind it lacks them.
            outcome.evaluate(parts, kept, *held, signals)
        spent = kept.ledger.spent
        if done.trained:
            held = None  # the memory is wanted for the next
            held = _hold(kept, grid, last, state.params)
        due = last % wanted.run.save_every == 0
        number = _due(kept, grid, point)
        if due or number is not None or done.over or signals.stopping:
            kept.save(last, state, selection, before)
        signals.obey()
        if number is not None:
            outcome.evaluate(parts, kept, number, state.params, signals)
    return point


def _hold(
    kept: Books, grid: Points, number: int, params: Params
) -> tuple[int, Params] | None:
    """The parameters after an update, where a later one may ask for them."""
    if number == 0 or not grid.ahead(kept.ledger.spent):
        return None
    held = points.copy(params)
    kept.meter.charge(Phase.CHECKPOINT, Cost(), role="host")
    return number, held


def _due(kept: Books, grid: Points, point: Point) -> int | None:
    """The update whose parameters, those there are now, are to be evaluated."""
    number = point.learned if grid.listed else point.update
    due = grid.at(number, kept.ledger.spent, over=point.over)
    return number if due else None


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
        job = jobs.prepare(settings, profile=wanted.profile)

    def work() -> None:
        arm = Points(settings.evaluation).listed
        if arm:
            kernel.note(job.directory.path, "before")
        train(job.parts, job.params, job.kept, profile=wanted.profile)
        if arm:
            kernel.note(job.directory.path, "after")

    return jobs.carried_out(job, work)


if __name__ == "__main__":
    raise SystemExit(main())
