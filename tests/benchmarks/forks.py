"""Seconds per generated token: forks of a kept rollout over plain rollouts.

4 prompts of 64 random tokens x 8 samples x 64 new tokens, kept; then two continuations
from each of several boundaries inside every completion, which have what the rollout's
limit had left. A fork copies its parent's cache: none may prefill its prefix again.
Both use the same slots. From the root of a checkout, with the machine otherwise idle:

    python -m tests.benchmarks.forks
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array

from grpo_jax import keys, models, resident, rollout
from grpo_jax.base import Forks, Functions, Params, Rollout
from tests.benchmarks import common
from tests.benchmarks.common import Figure
from tests.benchmarks.rollout import check_count, sampler

CONTINUATIONS = 2  # of each boundary


def boundaries(parent: Rollout, inside: int) -> Forks:
    """Returns forks spread evenly inside each completion, `inside` of them."""
    start, end = np.asarray(parent.prompt_length), np.asarray(parent.length)
    pairs = [
        (row, int(start[row] + (end[row] - start[row]) * i // (inside + 1)))
        for row in range(len(start))
        for i in range(1, inside + 1)
    ]
    return Forks(parent, [row for row, _ in pairs], [at for _, at in pairs])


def measure(
    functions: Functions,
    params: Params,
    prompts: Sequence[Sequence[int]],
    *,
    samples: int,
    new: int,
    inside: int,
    repeats: int,
) -> list[Figure]:
    """Returns the figures of forks, also for other models and machines.

    Args:
      functions: the model.
      params: its parameters.
      prompts: all of one width.
      samples: of each.
      new: tokens of each sample.
      inside: boundaries of each completion.
      repeats: the best of so many is taken.
    """
    width = len(prompts[0])
    how = sampler(prompts=len(prompts), samples=samples, width=width, new=new)
    held = resident.Resident(functions, how)
    asked = rollout.of_prompts(prompts, num_samples=samples, limit=new)
    last: list[Rollout] = []
    counts = {"refilled": 0, "tokens": 0}

    def plain(keep: bool, key: Array) -> None:
        out, _ = held.sample(params, asked, key, keep=keep)
        check_count(out, len(asked) * new)
        if keep:
            last[:] = [out]

    def continued() -> None:
        forks = boundaries(last[0], inside)
        wanted, kept = held.forks(forks, num_samples=CONTINUATIONS)
        counts["refilled"] = sum(r.parent is None and r.limit > 0 for r in wanted)
        counts["tokens"] = sum(r.limit for r in wanted)
        out, _ = held.sample(params, wanted, keys.root(2), parents=kept)
        check_count(out, counts["tokens"])

    spent = common.in_turns(
        {
            "plain": lambda: plain(False, keys.root(1)),
            "kept": lambda: plain(True, keys.root(1)),
            "forks": continued,
        },
        repeats,
    )
    tokens = len(asked) * new
    each = {name: spent[name] * 1e3 / tokens for name in ("plain", "kept")}
    fork = spent["forks"] * 1e3 / counts["tokens"]
    return [
        common.at_most(
            "ms/token of forks over kept rollouts", fork, each["kept"], "ms", 1.15
        ),
        common.at_most(
            "ms/token of forks over plain rollouts", fork, each["plain"], "ms", 1.15
        ),
        common.at_most(
            "forks that prefilled their prefix", counts["refilled"], 1, "forks", 0
        ),
    ]


def main(argv: Sequence[str] | None = None) -> list[Figure]:
    """Prints the table."""
    wanted = common.options(__doc__).parse_args(argv)
    prompts, samples, width, new = (2, 4, 8, 16) if wanted.tiny else (4, 8, 64, 64)
    model = common.subject(wanted)
    figures = measure(
        models.functions(model.config),
        model.params,
        common.random_prompts(prompts, width, model.config.vocab_size),
        samples=samples,
        new=new,
        inside=3,
        repeats=wanted.repeats,
    )
    common.report("forks", figures, model=model.name, tiny=wanted.tiny)
    return figures


if __name__ == "__main__":
    main()
