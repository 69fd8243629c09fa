"""The labelled prompts as an endless stream whose position is one integer.

Grain gives the order: each epoch is a fresh permutation that depends on the seed and
the epoch only. The stream is read by index rather than through an iterator: no
threads, no prefetching, nothing to drain before a checkpoint, and the position is all
that has to be saved.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import grain

from grpo_jax.base import Problem


def digest(problems: Sequence[Problem]) -> str:
    """Names a sequence of problems: equal for equal ids, questions,
    answers and prompt ids."""
    state = hashlib.sha256()
    for problem in problems:
        ids = " ".join(map(str, problem.prompt))
        for text in (problem.id, problem.question, problem.answer, ids):
            raw = text.encode("utf-8", "surrogatepass")
            # The length first, so that no two splits of one text look the same.
            state.update(len(raw).to_bytes(8, "little") + raw)
    return state.hexdigest()[:16]


class OtherProblems(ValueError):
    """A saved position is one in other problems."""


class ProblemPool:
    """Problems in an endless order, each exactly once per epoch.

    A draw that crosses the end of an epoch continues in the next one, so it may hold
    one problem twice.
    """

    def __init__(self, problems: Sequence[Problem], seed: int):
        """Starts at the first problem of the first epoch.

        Args:
          problems: what to draw from.
          seed: decides the order of every epoch; 0 <= seed < 2**32.
        """
        if not problems:
            raise ValueError(
                "the task has 0 training problems; it needs at least 1: "
                "raise num_train or loosen its filter"
            )
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed={seed} must be in 0 .. 2**32 - 1; choose another")
        self.problems = tuple(problems)
        self._places = {problem.id: i for i, problem in enumerate(problems)}
        self._name = {"digest": digest(problems), "seed": seed}
        self._order = (
            grain.MapDataset.range(len(problems)).seed(seed).shuffle().repeat()
        )
        self._position = 0

    def __len__(self) -> int:
        """How many distinct problems an epoch has."""
        return len(self.problems)

    def draw(self, count: int) -> tuple[Problem, ...]:
        """Returns the next `count` problems and moves past them."""
        if count < 0:
            raise ValueError(f"count={count} must not be negative")
        first, self._position = self._position, self._position + count
        places = [self._order[i] for i in range(first, first + count)]
        # An endless grain dataset has an element at every index; its types do not say.
        return tuple(self.problems[i] for i in places)  # pyright: ignore

    @property
    def size(self) -> int:
        """How many problems there are."""
        return len(self.problems)

    def place(self, name: str) -> int:
        """Returns the number of the problem with an id, from 0."""
        return self._places[name]

    def get_state(self) -> dict[str, Any]:
        """Returns the position as JSON, with what it is a position in."""
        return {"position": self._position, **self._name}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a position that `get_state` returned."""
        seen = {name: state.get(name) for name in self._name}
        if seen != self._name:
            raise OtherProblems(
                f"the saved data position is in {seen} and this pool is {self._name}; "
                "resume with the same problems and seed"
            )
        self._position = int(state["position"])
