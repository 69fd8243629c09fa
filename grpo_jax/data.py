"""`grpo-jax data`: counts, hashes, lengths and examples of a task's problems."""

import argparse
import collections
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grpo_jax import build, config, prompts, readings, rewards, setup, tokens
from grpo_jax.base import Problem
from grpo_jax.command import DONE, user_faults
from grpo_jax.problem_pool import digest
from grpo_jax.shots import FIGURE
from grpo_jax.splits import Task


def report(problems: Sequence[Problem]) -> Iterator[str]:
    """Yields lines on problems: hash, levels, subjects, kinds of answer, figures."""
    yield f"problems: {len(problems)}, hash {digest(problems)}"
    parts: dict[str, Callable[[Problem], str]] = {
        "levels": lambda p: p.level or "unknown",
        "subjects": lambda p: p.subject or "unknown",
        "answers": lambda p: rewards.kind(p.answer),
    }
    for name, of in parts.items():
        found = collections.Counter(map(of, problems))
        yield f"{name}: " + ", ".join(f"{key} {found[key]}" for key in sorted(found))
    figures = sum(FIGURE in p.question for p in problems)
    yield f"with a figure as {FIGURE} code in the question: {figures}"


def lengths(numbers: Sequence[int]) -> str:
    """The spread of some lengths; the 95 % is the least that so many do not exceed."""
    ordered = sorted(numbers)

    def at(percent: int) -> int:
        return ordered[max(-(-percent * len(ordered) // 100) - 1, 0)]

    return f"min {at(0)}, median {at(50)}, 95 % {at(95)}, max {at(100)}"


def tokenised(
    problems: Sequence[Problem], tokenizer: Any, limits: dict[str, int]
) -> Iterator[str]:
    """Yields lines on lengths in tokens.

    Args:
      problems: with prompts.
      tokenizer: of the model.
      limits: the most tokens a prompt may have, by what says so; 0 is no limit.
    """
    asked = [len(tokens.encode(tokenizer, p.question)) for p in problems]
    prompted = [len(p.prompt) for p in problems]
    yield f"tokens of a question: {lengths(asked)}"
    yield f"tokens of a prompt: {lengths(prompted)}"
    for name, limit in limits.items():
        if limit:
            over = sum(length > limit for length in prompted)
            yield f"prompts over {name}={limit}: {over}"


def example(problem: Problem, tokenizer: Any) -> Iterator[str]:
    """Yields lines that show a problem: its prompt as text and as ids, and its gold."""
    about = filter(None, (problem.subject, problem.level and f"level {problem.level}"))
    yield f"example {', '.join((problem.id, *about))}"
    yield "prompt as text:"
    yield tokenizer.decode(problem.prompt, skip_special_tokens=False)
    yield f"prompt as ids: {' '.join(map(str, problem.prompt))}"
    yield f"gold answer: {problem.answer}"


def _show(task: Task, settings: config.Config, most: int) -> None:
    """Prints the whole report."""
    sides = {"train": task.train, f"evaluation ({task.split})": task.evaluation}
    print("rows and problems")
    for what, number in task.counts:
        print(f"  {what}: {number}")
    if task.locked:
        noted = pathlib.Path(settings.data.readings).expanduser()
        read = readings.count(noted, task.split)
        print(f"  {task.split} is locked; readings so far: {read} ({noted})")
    for name, problems in sides.items():
        print(name)
        for line in report(problems):
            print(f"  {line}")
    try:
        model, tokenizer = setup.describe_model(settings)
    except ValueError as fault:
        raise ValueError(
            f"{fault}; lengths and examples need a tokenizer: name a model that is here"
            " with model.path=..."
        ) from fault
    template = build.template(settings, build.examples(settings, task))
    limits = {
        "sampling.max_prompt_tokens": settings.sampling.max_prompt_tokens,
        "the model's positions": model.max_positions,
    }
    for name, problems in sides.items():
        # A report refuses no prompt for its length.
        encoded = prompts.encode(problems, template, tokenizer)
        print(name)
        for line in tokenised(encoded, tokenizer, limits):
            print(f"  {line}")
        if problems is task.evaluation and task.locked:
            print("  no example: these problems are locked")
            continue
        for problem in encoded[:most]:
            print(*example(problem, tokenizer), sep="\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="grpo-jax data", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("config", help="a TOML file")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    parser.add_argument(
        "--show", type=int, default=1, metavar="N", help="examples of each side (1)"
    )
    wanted = parser.parse_intermixed_args(argv)
    with user_faults():
        if wanted.show < 0:
            raise ValueError(f"--show {wanted.show} must not be negative; use 0")
        settings = config.load(wanted.config, wanted.overrides)
        _show(build.task(settings), settings, wanted.show)
    return DONE


if __name__ == "__main__":
    raise SystemExit(main())
