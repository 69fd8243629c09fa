"""Where an evaluation that was killed goes on: after its last whole part."""

import pathlib
from collections.abc import Sequence

from budgets import jsonl
from budgets.ledger import Charge, Phase
from grpo_jax import evaluation
from grpo_jax.base import Problem


def whole_parts(count: int, *, total: int, batch: int) -> int:
    """Returns how many of `count` recorded problems make whole parts."""
    return count if count == total else count // batch * batch


def cut_off(charges: Sequence[Charge], update: int, num_parts: int) -> set[int]:
    """Returns the places of the charges of an evaluation's part without an end.

    A part ends with its verifier's row and the host's after it.

    Args:
      charges: a ledger.
      update: whose evaluation it is.
      num_parts: how many parts are on disk.
    """
    places = [
        i
        for i, row in enumerate(charges)
        if row.update == update and row.phase == Phase.EVAL
    ]
    ends = [n for n, i in enumerate(places) if charges[i].role == "verifier"]
    if num_parts > len(ends):
        return set()  # charges are missing: for another check to say
    kept = ends[num_parts - 1] + 2 if num_parts else 0
    return set(places[kept:])


def check_problems(
    directory: pathlib.Path, update: int, split: str, problems: Sequence[Problem]
) -> None:
    """Refuses to go on with an evaluation of other problems.

    Args:
      directory: of the run.
      update: whose parameters were evaluated.
      split: name of the held-out problems.
      problems: as they are now, in order.
    """
    before = evaluation.read(directory, update, split)
    if before is None:
        return
    now = [(p.id, p.answer) for p in problems[: len(before.ids)]]
    if list(zip(before.ids, before.golds, strict=True)) != now:
        raise ValueError(
            f"{directory / 'eval.jsonl'} holds other problems of {split} than there"
            " are now; restore the problems or choose another run.dir"
        )


def check_charges(directory: pathlib.Path, update: int, *, batch: int) -> None:
    """Refuses an evaluation whose ledger lacks what it has cost."""
    rows = jsonl.read(directory / "eval.jsonl")
    parts = -(-sum(row.get("update") == update for row in rows) // batch)
    charged = [
        row
        for row in jsonl.read(directory / "ledger.jsonl")
        if row.get("update") == update and row.get("role") == "verifier"
    ]
    if len(charged) < parts:
        raise ValueError(
            f"{directory / 'ledger.jsonl'} has charges of {len(charged)} parts and"
            f" eval.jsonl holds {parts}; restore the file or choose another run.dir"
        )
