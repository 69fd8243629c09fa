"""Which parameters of a run are evaluated, and the copy that this takes.

At a point of a grid of tokens or device-seconds those after the last trained update
whose cumulative charge is at most the point are read. That an update passed a point is
known when it has been charged, and by then its step has donated the parameters before
it: so a copy of these is held while points are ahead.
"""

import jax
import jax.numpy as jnp

from budgets.ledger import Cost
from grpo_jax.base import Params
from grpo_jax.config_schema import Evaluation


class Points:
    """When a run is evaluated."""

    def __init__(self, wanted: Evaluation):
        """Reads what the configuration asks for.

        Args:
          wanted: section evaluation.
        """
        self._wanted = wanted
        self.listed = bool(
            wanted.at_updates or wanted.at_tokens or wanted.at_device_seconds
        )

    def at(self, update: int, spent: Cost, *, over: bool) -> bool:
        """Whether the parameters after an update are evaluated, as far as is known.

        Args:
          update: its number; 0 is before the first.
          spent: the matched charges of all updates so far.
          over: whether it is the last.
        """
        if update == 0:
            return self._wanted.before
        if not self.listed:
            every = self._wanted.every
            return over or bool(every and update % every == 0)
        # Nothing comes after the last update, so it is read at every point left.
        return update in self._wanted.at_updates or (over and self.ahead(spent))

    def ahead(self, spent: Cost) -> bool:
        """Whether a point of tokens or seconds is at or beyond what is spent."""
        return any(most >= used for used, most in self._last(spent))

    def passed(self, before: Cost, after: Cost) -> bool:
        """Whether an update that went from one total to the other passed a point."""
        pairs = (
            (self._wanted.at_tokens, before.generated, after.generated),
            (
                self._wanted.at_device_seconds,
                before.device_seconds,
                after.device_seconds,
            ),
        )
        return any(low <= g < high for points, low, high in pairs for g in points)

    def _last(self, spent: Cost) -> list[tuple[float, float]]:
        tokens, seconds = self._wanted.at_tokens, self._wanted.at_device_seconds
        pairs = [(spent.generated, tokens), (spent.device_seconds, seconds)]
        return [(float(used), float(points[-1])) for used, points in pairs if points]


def copy(params: Params) -> Params:
    """Returns parameters that a donation of the others leaves alone."""
    return jax.block_until_ready(jax.tree.map(jnp.copy, params))
