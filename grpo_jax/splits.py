"""A task, and how its problems are divided into training and held-out ones.

The held-out side is drawn first and an identity drawn once is not drawn again, so the
sides are disjoint, nothing occurs twice, and the held-out problems do not depend on
how many are trained on.
"""

import hashlib
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from typing import NamedTuple, TypeAlias, TypeVar

from grpo_jax.base import Problem, Verdict

Check: TypeAlias = Callable[[str, Problem], Verdict]  # (response, problem) -> verdict
Item = TypeVar("Item")


class Count(NamedTuple):
    """How many problems something left, took out, or found.

    Attributes:
      what: in words.
      number: of problems or rows.
    """

    what: str
    number: int


class Task(NamedTuple):
    """Problems and their verifier.

    Attributes:
      train: problems to train on.
      evaluation: held-out problems; none has the identity of one in `train`.
      verify: says whether a response answers a problem; never raises.
      split: what the held-out problems are called in records.
      locked: each reading of the held-out problems must be written down.
      counts: where the problems come from, for people to read.
    """

    train: tuple[Problem, ...]
    evaluation: tuple[Problem, ...]
    verify: Check
    split: str = "eval"
    locked: bool = False
    counts: tuple[Count, ...] = ()


def text_identity(question: str) -> str:
    """The question without white space."""
    return "".join(question.split())


def problem_id(task: str, question: str) -> str:
    """A stable name: equal for questions that differ in white space only."""
    text = text_identity(question).encode("utf-8", "replace")
    return f"{task}/{hashlib.sha256(text).hexdigest()[:12]}"


def text_rank(question: str, purpose: str) -> bytes:
    """A pseudo-random rank of a question: its identity and the purpose decide it alone.

    Ranks for different purposes are independent, so that a share held out, a half and
    a subset do not favour each other's problems.
    """
    text = f"{purpose}\n{text_identity(question)}"
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def in_share(question: str, share: float) -> bool:
    """Whether a question is among the `share` held out, whatever others there are."""
    rank = int.from_bytes(text_rank(question, "holdout")[:8], "big")
    return rank < share * 2**64


def ranked(problems: Iterable[Problem], purpose: str) -> tuple[Problem, ...]:
    """Problems in the order of their ranks, whatever order they came in."""
    return tuple(sorted(problems, key=lambda p: text_rank(p.question, purpose)))


def half(problems: Iterable[Problem], name: str) -> frozenset[str]:
    """Ids of one of the two fixed halves of some problems.

    They are the lower and the upper ranks: equal in size, but for one problem more in
    `1H` where the number is odd, and the same whatever the seed and the order.

    Args:
      problems: distinct ones; another set of them has other halves.
      name: `1H` or `2H`.
    """
    if name not in ("1H", "2H"):
        raise ValueError(f"half={name!r} must be '1H' or '2H'; choose one")
    order = ranked(problems, "half")
    middle = (len(order) + 1) // 2
    kept = order[:middle] if name == "1H" else order[middle:]
    return frozenset(p.id for p in kept)


def permuted(rng: random.Random, size: int) -> Iterator[int]:
    """Yields 0 .. size - 1 in a random order, in memory for what was yielded only."""
    moved: dict[int, int] = {}  # Fisher-Yates, storing only the places that changed
    for i in range(size):
        j = rng.randrange(i, size)
        yield moved.get(j, j)
        moved[j] = moved.pop(i, i)


def split(
    candidates: Iterable[Item],
    *,
    num_train: int,
    num_eval: int,
    identity: Callable[[Item], Hashable],
    banned: Set[Hashable] = frozenset(),
    remedy: str,
) -> tuple[list[Item], list[Item]]:
    """Takes distinct candidates in order, held-out ones first.

    Args:
      candidates: where problems come from; read no further than needed.
      num_train: how many to train on.
      num_eval: how many to hold out.
      identity: equal for candidates that are the same problem.
      banned: identities to leave out.
      remedy: what to do if there are too few, for the error.

    Returns:
      Candidates to train on, and held-out ones.
    """
    if num_train < 1 or num_eval < 1:
        raise ValueError(
            f"num_train={num_train} and num_eval={num_eval}: "
            "a task needs at least 1 problem of each; raise them"
        )
    seen, taken = set(banned), []
    for item in candidates:
        if (name := identity(item)) not in seen:
            seen.add(name)
            taken.append(item)
            if len(taken) == num_train + num_eval:
                return taken[num_eval:], taken[:num_eval]
    raise ValueError(
        f"num_train={num_train} and num_eval={num_eval} need "
        f"{num_train + num_eval} distinct problems and there are {len(taken)}; {remedy}"
    )
