"""`grpo-jax evaluate`: sampled-answer accuracy of a model, and what it is worth.

It needs no training: a model, problems, and how to sample. It resumes its directory as
a run does, and `--against` compares two evaluations problem by problem.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from budgets.labels import Labels
from budgets.ledger import Ledger, Phase
from grpo_jax import (
    books,
    caches,
    checkpoint,
    config,
    evaluator,
    fingerprints,
    models,
    resumption,
    rewards,
    rundir,
    scores,
    setup,
    states,
)
from grpo_jax.base import Params
from grpo_jax.command import ended, say_counts, user_faults
from grpo_jax.compilations import Watch
from grpo_jax.config import Config
from grpo_jax.evaluation import Evaluation
from grpo_jax.problem_pool import digest
from grpo_jax.progress import Progress
from grpo_jax.signals import Signals


class Subject(NamedTuple):
    """What is evaluated.

    Attributes:
      config: the configuration, with the model's section replaced by this model.
      run: directory of a run, whose latest checkpoint is read; None for a model.
      update: the checkpoint's number; 0 for a model.
    """

    config: Config
    run: pathlib.Path | None
    update: int


def subject(model: str, settings: Config) -> Subject:
    """Returns what `model` names: a run directory, or anything `models.load` takes."""
    if not model.strip():
        raise ValueError("the model is empty; give a directory, a file or a name")
    run = pathlib.Path(model).expanduser()
    if not (run / "config.toml").exists():
        section = dataclasses.replace(settings.model, path=model)
        return Subject(_of_model(settings, section), None, 0)
    number = checkpoint.latest(run / "checkpoints")
    if number is None:
        raise ValueError(f"{run} has no checkpoint yet; train it for longer")
    section = config.load(run / "config.toml").model
    return Subject(_of_model(settings, section), run, number)


def _of_model(settings: Config, section: Any) -> Config:
    # Nothing is trained here, so an embedded model's pretraining is none of it.
    pretrain = dataclasses.replace(settings.pretrain, updates=0)
    return dataclasses.replace(settings, model=section, pretrain=pretrain)


def load(of: Subject, parts: setup.Setup) -> Params:
    """Reads the parameters."""
    if of.run is None:
        return states.load_params(parts)
    like = models.abstract(parts.model, mesh=parts.mesh)
    return checkpoint.read_params(of.run / "checkpoints", of.update, like)


class Job(NamedTuple):
    """An evaluation that was checked and may begin or go on."""

    of: Subject
    parts: setup.Setup
    directory: rundir.RunDirectory
    params: Params
    against: tuple[pathlib.Path, Evaluation, list[str]] | None


def prepare(wanted: argparse.Namespace) -> Job:
    """Checks what the user gave, and brings the directory to its last whole part.

    Raises:
      ValueError: one line, for anything that cannot be evaluated or compared.
    """
    prefix = f"eval-{pathlib.Path(wanted.model.rstrip('/')).name}-"
    settings = config.load(wanted.config, wanted.overrides, prefix=prefix)
    caches.keep_programs(settings.run.compilation_cache)
    of = subject(wanted.model, settings)
    home = pathlib.Path(of.config.run.dir).expanduser()
    if of.run is not None and home.resolve() == of.run.resolve():
        raise ValueError(
            f"run.dir={str(home)!r} is the run that is evaluated; choose another"
        )
    with rundir.opened(home, of.config) as directory:
        return _prepared(of, directory, wanted.against)


def _prepared(
    of: Subject, directory: rundir.RunDirectory, other: pathlib.Path | None
) -> Job:
    home = directory.path
    parts = setup.prepare(of.config, trains=False)
    ids, against = [problem.id for problem in parts.task.evaluation], None
    resumption.check_problems(home, of.update, parts.task.split, parts.task.evaluation)
    evaluator.check_log(parts)
    if other is not None:
        theirs = scores.other(other, parts.task.split, ids)
        against = other, theirs, scores.differing(other, of.config)
    params = load(of, parts)
    directory.claim(of.config)
    place = of.run or models.resolve(of.config.model.path)
    now = fingerprints.of_files(place) | {"problems": digest(parts.task.evaluation)}
    fingerprints.claim(home / "model.json", now, str(place))
    resumption.check_charges(home, of.update, batch=parts.batch_prompts)
    directory.keep_whole_parts(of.update, total=len(ids), batch=parts.batch_prompts)
    return Job(of, parts, directory, params, against)


def evaluate(job: Job) -> None:
    """Evaluates what is left, writes `evaluation.json`, and prints it."""
    of, parts, path = job.of, job.parts, job.directory.path
    signals, ledger, watch = Signals(), Ledger(path / "ledger.jsonl"), Watch()
    progress = Progress(ledger)
    try:
        whole = evaluator.run(
            parts,
            job.params,
            path=path,
            update=of.update,
            meter=books.make_meter(parts, ledger, watch, Labels(), stage="evaluate"),
            progress=progress,
            obey=signals.obey,
        )
    finally:
        progress.close()
        watch.close()
    numbers = {
        "model": str(of.run or of.config.model.path),
        "update": of.update,
        "split": parts.task.split,
        "decoding": dataclasses.asdict(of.config.evaluation)
        | {"max_new_tokens": parts.evaluation.max_new_tokens},
        "seed": of.config.seed,
        **scores.summary(whole, equal=rewards.same),
    }
    print(f"model: {numbers['model']}" + (f", update {of.update}" if of.run else ""))
    print(*scores.lines(parts.task.split, whole, numbers), sep="\n")
    for warning in evaluator.warnings(whole, of.update, of.config):
        print(f"warning: {warning.partition(': ')[2]}")
    if job.against is not None:
        numbers["against"] = _compare(whole, *job.against)
    times = evaluator.times_read(parts)
    if times is not None:
        numbers["readings"] = times
        print(f"{parts.task.split} is locked; readings so far: {times}")
    rundir.write_json(path / "evaluation.json", numbers)
    apart = ledger.by_phase()
    spent, compiling = apart[Phase.EVAL], apart[Phase.COMPILE].device_seconds
    print(
        f"spent in all: {spent.generated:,} generated tokens,"
        f" {spent.device_seconds:.0f} device-seconds, compiling {compiling:.0f}"
    )
    print(f"evaluation: {path}")


def _compare(
    whole: Evaluation, path: pathlib.Path, theirs: Evaluation, differing: list[str]
) -> dict[str, Any]:
    numbers = scores.comparison(whole, theirs)
    print(scores.comparison_line(str(path), numbers))
    for option in differing:
        print(f"note: evaluated under another {option}")
    return {"run": str(path), **numbers}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="grpo-jax evaluate",
        description=(__doc__ or "").splitlines()[0],
        epilog="grpo_jax/config_schema.py lists every option with its unit",
    )
    parser.add_argument(
        "model", help="a model directory, GGUF file or known name, or a run directory"
    )
    parser.add_argument("config", help="a TOML file")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    parser.add_argument(
        "--against", type=pathlib.Path, metavar="RUN", help="an evaluation to compare"
    )
    wanted = parser.parse_intermixed_args(argv)

    def work() -> None:
        with user_faults():
            job = prepare(wanted)
        file = job.directory.path / "environment.json"
        rundir.write_environment(file, job.of.config)
        say_counts(job.parts.task.counts)
        try:
            evaluate(job)
        finally:
            job.directory.close()

    return ended(work)


if __name__ == "__main__":
    raise SystemExit(main())
