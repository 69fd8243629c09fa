"""Labels as a budget: which problems a run has seen, and which it has verified."""

from collections.abc import Iterable
from typing import Any


class Labels:
    """Distinct problems seen and labelled; an id is labelled once it is verified."""

    def __init__(self) -> None:
        """Starts with nothing seen."""
        self.seen: set[str] = set()
        self.labelled: set[str] = set()

    def see(self, ids: Iterable[str]) -> int:
        """Adds problems that were sampled from; returns how many are new."""
        return _grow(self.seen, ids)

    def label(self, ids: Iterable[str]) -> int:
        """Adds problems whose answer was read; returns how many are new."""
        return _grow(self.labelled, ids)

    def get_state(self) -> dict[str, Any]:
        """Returns the sets as JSON, sorted so that equal states are equal text."""
        return {"seen": sorted(self.seen), "labelled": sorted(self.labelled)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from what `get_state` returned."""
        self.seen, self.labelled = set(state["seen"]), set(state["labelled"])


def _grow(known: set[str], ids: Iterable[str]) -> int:
    before = len(known)
    known.update(ids)
    return len(known) - before
