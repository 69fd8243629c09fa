"""`grpo-jax train --profile DIR`: two updates traced, their phases beside their floors.

What is traced is training as it goes on once everything is compiled. Measuring the
machine and writing the trace is charged to nobody, and neither are the host's
milliseconds since the update before: a profile spends no budget.
"""

import argparse
import itertools
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from budgets import flops
from budgets.ledger import Charge, Cost, Ledger, Phase
from grpo_jax import books, checkpoint, floors
from grpo_jax.books import Books
from grpo_jax.config import Config
from grpo_jax.loop import Update
from grpo_jax.setup import Setup

WARM = 2  # updates of this process before the trace: the first two compile
TRACED = 2
GROUPS = (Phase.ROLLOUT, Phase.CANDIDATE)  # every prompt is sampled a group's times
FORKS = (Phase.CONTINUATION, Phase.TEACHER_ROLLOUT)
SCORES = (Phase.REFERENCE, Phase.TEACHER_SCORE)


class Row(NamedTuple):
    """One phase of the traced updates.

    Attributes:
      phase: its name.
      seconds: device-seconds.
      tokens: generated, or trained on, or read, the first of these that it did.
      flops: model FLOPs of real tokens.
      floor: the least device-seconds it could take; None where none is known.
    """

    phase: str
    seconds: float
    tokens: int
    flops: int
    floor: float | None


def add_option(parser: argparse.ArgumentParser) -> None:
    """Gives a command the option `--profile`."""
    parser.add_argument(
        "--profile",
        type=pathlib.Path,
        metavar="DIR",
        help="trace two updates into DIR, and print where their time goes",
    )


def check(directory: pathlib.Path, run: pathlib.Path, config: Config) -> None:
    """Makes the directory of a profile.

    Args:
      directory: where the trace is to be written.
      run: the run directory.
      config: of the run.

    Raises:
      ValueError: it cannot be written, or the run has no update left to trace.
    """
    latest, limits = checkpoint.latest(run / "checkpoints"), books.budget(config)
    if latest is not None:
        ledger = Ledger.read(run / "ledger.jsonl")
        spent = ledger.total(wanted=lambda row: row.update <= latest)
        if limits.ended(spent, latest):
            raise ValueError(
                f"--profile: the run in {run} is over after {latest} updates and has"
                " none left to trace; choose another run.dir"
            )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as fault:
        raise ValueError(
            f"--profile {str(directory)!r} cannot be written ({fault.strerror});"
            " name another directory"
        ) from fault


def traced(
    updates: Iterator[Update],
    directory: pathlib.Path | None,
    parts: Setup,
    kept: Books,
) -> Iterator[Update]:
    """Passes a run's updates on as they come, and traces the third and the fourth.

    The trace ends early before an evaluation, which would hide the updates in it. When
    it ends the table is printed and stored beside it, as `phases.txt`.

    Args:
      updates: of the run, from `loop.run`.
      directory: where the trace is written; None traces nothing.
      parts: of the run.
      kept: its books.
    """
    if directory is None:
        yield from updates
        return
    every, began, machine = parts.config.evaluation.every, 0.0, None
    numbers: list[int] = []
    rows: list[Row] = []
    update = None
    try:
        for place in itertools.count():
            if place == WARM and update is not None and not update.over:
                began = time.perf_counter()
                machine = _begin(directory, parts, kept)
                began = time.perf_counter() - began
            mark = len(kept.ledger.rows)
            update = next(updates, None)
            if update is None:
                break
            if machine is not None:
                charges = kept.ledger.rows[mark:]
                numbers.append(update.number)
                rows += phases(charges, update, parts, machine)
                evaluating = bool(every and update.number % every == 0)
                if len(numbers) == TRACED or update.over or evaluating:
                    ended = time.perf_counter()
                    jax.profiler.stop_trace()
                    text = report(rows, numbers, machine, directory)
                    (directory / "phases.txt").write_text(text + "\n", encoding="utf-8")
                    machine, took = None, began + time.perf_counter() - ended
                    kept.say(f"{text}\nprofiling took {took:.1f} s, charged to nobody")
                    kept.meter.skip()
            yield update
    finally:
        if machine is not None:
            jax.profiler.stop_trace()
    if not numbers:
        kept.say(
            f"profile: nothing was traced, since this process did {place} updates and"
            f" the first {WARM} compile; raise the budget"
        )


def _begin(directory: pathlib.Path, parts: Setup, kept: Books) -> floors.Machine:
    """Measures the machine, starts the trace, and charges neither."""
    machine = floors.measure(
        parts.shape,
        rows=parts.train.geometry.slots,
        dtype=parts.config.model.compute_dtype,
    )
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # slows the host down, and shows none of the work
    jax.profiler.start_trace(directory, profiler_options=options)
    kept.meter.skip()
    return machine


def phases(
    charges: Sequence[Charge], done: Update, parts: Setup, machine: floors.Machine
) -> list[Row]:
    """Returns a row for each phase that one update was charged for.

    Args:
      charges: of that update.
      done: the update.
      parts: of the run.
      machine: as measured.
    """
    costs: dict[Phase, Cost] = {}
    for charge in charges:
        costs[charge.phase] = costs.get(charge.phase, Cost()) + charge.cost
    return [
        Row(
            phase=phase.value,
            seconds=costs[phase].device_seconds,
            tokens=costs[phase].generated
            or costs[phase].trained
            or costs[phase].prefilled,
            flops=costs[phase].flops,
            floor=_floor(phase, costs[phase], done, parts, machine),
        )
        for phase in Phase
        if phase in costs
    ]


def _floor(
    phase: Phase, cost: Cost, done: Update, parts: Setup, machine: floors.Machine
) -> float | None:
    """The least device-seconds of what a phase was charged for."""
    config, shape, rate = parts.config, parts.shape, machine.matmul_rate
    block, head = flops.block_params(shape), shape.width * shape.vocab
    read = int(np.asarray(done.batch.rollout.length).sum())
    drawn = int(np.asarray(done.batch.rollout.sampled).sum())
    if phase in GROUPS or phase in FORKS:
        return floors.rollout(
            shape,
            machine,
            generated=cost.generated,
            prefilled=cost.prefilled,
            sequences=cost.sequences,
            group=config.sampling.group_size if phase in GROUPS else 1,
            itemsize=jnp.dtype(config.model.compute_dtype).itemsize,
        )
    if phase in SCORES:
        # Of other sequences it is not known how many of their tokens met the head.
        heads = drawn if cost.prefilled == read else 0
        return floors.prefill(
            parameters=block, tokens=cost.prefilled, matmul_rate=rate
        ) + floors.prefill(parameters=head, tokens=heads, matmul_rate=rate)
    if phase == Phase.TRAIN:
        epochs = config.method.epochs
        again = config.model.remat == "full"
        return sum(
            floors.training(
                parameters=parameters,
                tokens=epochs * tokens,
                matmul_rate=rate,
                rematerialised=again,
            )
            for parameters, tokens in ((block, read), (head, drawn))
        )
    return None


def report(
    rows: Sequence[Row],
    numbers: Sequence[int],
    machine: floors.Machine,
    directory: pathlib.Path,
) -> str:
    """Returns the table of phases, summed over the updates, and what it rests on."""
    summed: dict[str, Row] = {}
    for row in rows:
        before = summed.get(row.phase)
        summed[row.phase] = row if before is None else _sum(row.phase, [before, row])
    whole = list(summed.values())
    # Tokens of different phases are the same ones, generated and then trained on.
    total = _sum("total", whole)._replace(tokens=0)
    which = " and ".join(map(str, numbers))
    head = f"{'phase':<16}{'seconds':>9}{'share':>8}{'tokens':>11}{'TFLOP/s':>10}"
    return "\n".join(
        [
            f"profile of update{'s' * (len(numbers) > 1)} {which}: {directory}",
            f"{head}{'floor s':>10}{'achieved':>10}",
            *(_line(row, total.seconds) for row in whole),
            _line(total, total.seconds),
            f"floors of one device: {machine.bandwidth / 1e9:.4g} GB/s read,"
            f" {machine.decode_rate / 1e12:.3g} TFLOP/s at {machine.rows} rows,"
            f" {machine.matmul_rate / 1e12:.3g} at {floors.LARGE_ROWS}",
        ]
    )


def _sum(phase: str, rows: Sequence[Row]) -> Row:
    known = [row.floor for row in rows if row.floor is not None]
    return Row(
        phase=phase,
        seconds=sum((row.seconds for row in rows), 0.0),
        tokens=sum(row.tokens for row in rows),
        flops=sum(row.flops for row in rows),
        floor=sum(known) if known else None,
    )


def _line(row: Row, total: float) -> str:
    """One line of the table; what is not known is left empty."""
    share = row.seconds / total if total else 0.0
    speed = floor = achieved = ""
    if row.flops and row.seconds:
        speed = f"{row.flops / row.seconds / 1e12:.3g}"
    if row.floor and row.seconds:
        floor, achieved = f"{row.floor:.3g}", f"{row.floor / row.seconds:.0%}"
    return (
        f"{row.phase:<16}{row.seconds:>9.3g}{share:>8.1%}{row.tokens or '':>11}"
        f"{speed:>10}{floor:>10}{achieved:>10}"
    )
