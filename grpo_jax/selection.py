"""Which prompts an update trains on, as the three selecting parts of a `Method`."""

from collections.abc import Callable
from typing import NamedTuple

from grpo_jax.base import Picked, Pool, Selection


class Selector(NamedTuple):
    """The parts of `base.Method` that choose prompts; see there for each."""

    init: Callable[[Pool], Selection]
    select: Callable[..., tuple[Picked, Selection]]
    observe: Callable[..., Selection]


def uniform(prompts_per_update: int) -> Selector:
    """Takes the next prompts of the pool, whatever happened before; stateless."""

    def init(pool):
        del pool
        return ()

    def select(services, params, selection, pool, key):
        del services, params, key
        return Picked(pool.draw(prompts_per_update)), selection

    def observe(selection, prompts, feedback):
        del prompts, feedback
        return selection

    return Selector(init, select, observe)
