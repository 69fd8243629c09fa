"""Programs compiled after the second of 50 updates whose completions get longer late.

A small random model stops early, since many ids end a completion, until update 30; from
then on none does, and completions grow to the limit. Stop ids are data of the programs,
and so are lengths. Rollouts, scores of a reference and optimiser steps all run. From
the root of a checkout:

    python -m tests.benchmarks.compilations
"""

from collections.abc import Iterator, Sequence

import numpy as np

from grpo_jax import config, setup, states
from grpo_jax.compilations import Watch
from tests.benchmarks import common, runs
from tests.benchmarks.common import Figure

STEADY = 2  # updates that may compile


def settings(*, updates: int, limit: int) -> config.Config:
    """Returns the configuration of a model that is there to be compiled."""
    table = {
        "model": {
            "width": 32,
            "ffw": 64,
            "num_layers": 2,
            "num_heads": 2,
            "num_kv_heads": 1,
            "head_dim": 16,
        },
        "task": {"name": "addition", "num_train": 64, "num_eval": 4},
        "sampling": {
            "prompts_per_update": 4,
            "group_size": 4,
            "max_new_tokens": limit,
        },
        "method": {"kl": "k3", "kl_coefficient": 0.01},
        "budget": {"updates": updates},
    }
    return config.from_table(table)


def lengths_and_programs(
    wanted: config.Config, *, longer_after: int
) -> Iterator[tuple[float, int]]:
    """Yields the mean length of each update's completions, and programs compiled.

    Args:
      wanted: the configuration.
      longer_after: the update after which no id ends a completion.
    """
    parts = setup.prepare(wanted)
    # A fifth of the ids, as an array that is changed in place later.
    stop_ids = np.arange(0, parts.model.vocab_size, 5, dtype=np.int32)
    parts = parts._replace(train=parts.train._replace(stop_ids=stop_ids))
    reference, watch = states.load_params(parts), Watch()
    made, _ = runs.updates(parts, Watch(), reference=reference)
    watch.take()
    for done in made:
        if done.number == longer_after:
            stop_ids[:] = -1  # which no vocabulary has
        yield (
            float(np.asarray(done.batch.rollout.sampled).sum(1).mean()),
            watch.take()[0],
        )
    watch.close()


def main(argv: Sequence[str] | None = None) -> list[Figure]:
    """Prints what each update compiled."""
    wanted = common.options(__doc__).parse_args(argv)
    updates, longer_after, limit = (6, 3, 20) if wanted.tiny else (50, 29, 160)
    found = list(
        lengths_and_programs(
            settings(updates=updates, limit=limit), longer_after=longer_after
        )
    )
    lengths = [length for length, _ in found]
    programs = [count for _, count in found]
    if max(lengths[:longer_after]) >= min(lengths[longer_after:]):
        raise SystemExit(f"completions did not get longer: {lengths}")
    late, first = sum(programs[STEADY:]), sum(programs[:STEADY])
    figures = [
        common.at_most("compiled after the 2nd update", late, first, "programs", 0)
    ]
    common.report(
        "compilations",
        figures,
        model="random, two layers",
        updates=updates,
        programs=programs,
        mean_lengths=[round(length, 1) for length in lengths],
        tiny=wanted.tiny,
    )
    return figures


if __name__ == "__main__":
    main()
