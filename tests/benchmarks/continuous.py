"""Continuous batching against static batches, over lengths that differ tenfold.

1,024 sequences from 128 prompts of 64 random tokens x 8, in 32 slots. Their lengths are
log-normal (sigma 0.8, mean 64, clipped to 1..512), forced by the limit of each request.
The static side runs 32 at a time through the same programs, each batch until its
longest ends. Utilisation is sampled tokens over slots times decode steps, the last
slots' draining included. From the root of a checkout, with the machine otherwise idle:

    python -m tests.benchmarks.continuous
"""

import math
from collections.abc import Sequence

import numpy as np

from grpo_jax import keys, models, resident, rollout
from grpo_jax.slots import Request
from tests.benchmarks import common
from tests.benchmarks.common import Figure
from tests.benchmarks.rollout import check_count, sampler

SIGMA = 0.8


def lengths(count: int, *, mean: float, most: int) -> np.ndarray:
    """Returns log-normal lengths, rounded and clipped to 1..most."""
    middle = math.log(mean) - SIGMA**2 / 2  # so that the mean is the mean
    drawn = np.random.default_rng(0).lognormal(middle, SIGMA, count)
    return np.clip(np.rint(drawn), 1, most).astype(int)


def main(argv: Sequence[str] | None = None) -> list[Figure]:
    """Prints the table."""
    wanted = common.options(__doc__, repeats=1).parse_args(argv)
    prompts, samples, width, slots = (8, 4, 8, 8) if wanted.tiny else (128, 8, 64, 32)
    mean, most = (8, 64) if wanted.tiny else (64, 512)
    model = common.subject(wanted)
    how = sampler(prompts=prompts, samples=samples, width=width, new=most, slots=slots)
    held = resident.Resident(models.functions(model.config), how)
    ids = common.random_prompts(prompts, width, model.config.vocab_size)
    limits = lengths(prompts * samples, mean=mean, most=most).tolist()
    asked = [
        request._replace(limit=limit)
        for request, limit in zip(
            rollout.of_prompts(ids, num_samples=samples, limit=most),
            limits,
            strict=True,
        )
    ]
    total = sum(limits)
    steps: dict[str, int] = {}

    def run(name: str, batches: Sequence[Sequence[Request]]) -> None:
        steps[name] = 0
        for batch in batches:
            numbered = [r._replace(row=i) for i, r in enumerate(batch)]
            out, taken = held.sample(model.params, numbered, keys.root(1))
            check_count(out, sum(r.limit for r in numbered))
            steps[name] += taken

    apart = [asked[i : i + slots] for i in range(0, len(asked), slots)]
    # Compiles, slots filled again included, and lays out the weights.
    run("warm", [asked[: 2 * slots], apart[0]])
    works = {
        "continuous": lambda: run("continuous", [asked]),
        "static": lambda: run("static", apart),
    }
    spent = common.in_turns(works, wanted.repeats, warm=False)

    rate = {name: total / taken for name, taken in spent.items()}
    used = {name: total / steps[name] for name in works}
    figures = [
        common.share(
            "tokens/s against static batches",
            rate["continuous"],
            rate["static"],
            "tok/s",
            2.5,
        ),
        common.share("slot utilisation", total, steps["continuous"], "tokens", 0.85),
        common.share(
            "slot utilisation of static batches", total, steps["static"], "tokens"
        ),
        common.speedup(
            "decode steps", steps["continuous"], steps["static"], unit="steps"
        ),
    ]
    common.report(
        "continuous",
        figures,
        model=model.name,
        sequences=len(asked),
        slots=slots,
        mean_length=total / len(asked),
        utilisation=used,
        tiny=wanted.tiny,
    )
    return figures


if __name__ == "__main__":
    main()
