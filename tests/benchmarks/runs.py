"""The updates of a run without its directory: nothing is evaluated, saved or logged."""

from collections.abc import Iterator

from budgets.labels import Labels
from budgets.ledger import Ledger
from grpo_jax import books, build, learner, loop, setup, states
from grpo_jax.base import Params
from grpo_jax.compilations import Watch
from grpo_jax.loop import Update
from grpo_jax.meter import Meter
from grpo_jax.problem_pool import ProblemPool


def updates(
    parts: setup.Setup, watch: Watch, *, reference: Params | None = None
) -> tuple[Iterator[Update], Meter]:
    """Returns the updates of a run as its loop, meter and learner make them.

    Args:
      parts: of the run.
      watch: counts compilations, which the meter charges apart.
      reference: weights of a method that has a KL divergence.

    Returns:
      The updates, and the meter that each of them is charged to.
    """
    wanted = parts.config
    method = build.method(wanted, parts.functions, reference, parts.tokenizer)
    tx = build.optimizer(wanted)
    ledger = Ledger(budget=books.budget(wanted))
    meter = books.make_meter(parts, ledger, watch, Labels())
    pool = ProblemPool(parts.task.train, wanted.seed)
    learn = learner.learner(
        objective=method.objective,
        tx=tx,
        meter=meter,
        shape=parts.shape,
        microbatches=wanted.optimizer.microbatches,
    )
    made = loop.run(
        states.first(parts, states.load_params(parts), tx),
        pool,
        method=method,
        services=meter.services(parts.train),
        learn=learn,
        account=meter,
        root=parts.root,
        selection=method.init(pool),
    )
    return made, meter
