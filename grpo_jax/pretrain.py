"""Pretraining of the embedded model on worked solutions, before the first update.

It runs through the same loop as any method. Its charges carry the phase `pretrain`
and update 0: recorded apart, outside the matched budget.
"""

from collections.abc import Callable

from budgets import jsonl
from budgets.ledger import Phase
from grpo_jax import build, keys, learner, loop, optim, setup, states
from grpo_jax.base import Params
from grpo_jax.books import Books
from grpo_jax.meter import Meter
from grpo_jax.problem_pool import ProblemPool
from grpo_jax.records import check_finite


class Account:
    """The loop's account of a pretraining: a fixed number of updates, no budget."""

    def __init__(self, meter: Meter, updates: int):
        """Starts before the first update.

        Args:
          meter: charged, with update 0.
          updates: how many there are.
        """
        self._meter, self._updates, self._done = meter, updates, 0

    def begin(self, update: int) -> None:
        """Counts; in the ledger all of it precedes update 1."""
        self._done = update
        self._meter.begin(0, between=Phase.PRETRAIN)

    def ends_on_sampling(self) -> bool:
        """Never: nothing is sampled."""
        return False

    def close(self) -> bool:
        """Charges the rest of the update; True after the last."""
        self._meter.idle()
        return self._done >= self._updates


def pretrain(
    parts: setup.Setup, kept: Books, params: Params, *, obey: Callable[[], None]
) -> Params:
    """Returns the parameters after next-token training on the worked solutions.

    Args:
      parts: the run.
      kept: its books; `pretrain.jsonl` gets one row per update.
      params: consumed.
      obey: called after every update; raises to stop.
    """
    wanted = parts.config.pretrain
    steps = wanted.sequences // wanted.batch_size
    tx = optim.adamw(
        learning_rate=wanted.learning_rate,
        b2=0.98,
        warmup_steps=wanted.warmup_steps,
        schedule=optim.cosine,
        decay_steps=max(wanted.updates * steps - wanted.warmup_steps, 1),
    )
    method = build.pretrain_method(
        parts.config, parts.functions, parts.tokenizer, parts.task.train
    )
    # A stream of its own: no permutation here is one of the training that follows.
    root = keys.at(parts.root, keys.Stream.PRETRAIN)
    pool = ProblemPool(parts.task.train, parts.config.seed)
    state = states.first(parts, params, tx)
    for done in loop.run(
        state,
        pool,
        method=method,
        services=kept.meter.services(parts.train),
        learn=learner.learner(
            objective=method.objective,
            tx=tx,
            meter=kept.meter,
            shape=parts.shape,
            minibatches=steps,
            phase=Phase.PRETRAIN,
            row_sharding=parts.row_sharding,
        ),
        account=Account(kept.meter, wanted.updates),
        root=root,
        selection=method.init(pool),
    ):
        check_finite(done)
        state, loss = done.state, done.metrics["loss"]
        row = {"update": 0, "pretrain_update": done.number, "loss": loss}
        jsonl.append(kept.path / "pretrain.jsonl", row)
        kept.progress.note(
            f"pretraining {done.number}/{wanted.updates}, loss {loss:.3f} nats/token"
        )
        obey()
    kept.meter.idle()
    return state.params
