"""What stays on the devices between the calls of an update: weights to decode with,
and the caches that a rollout keeps for its continuations.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from grpo_jax import rollout, slots
from grpo_jax.base import Forks, Functions, Params, Rollout
from grpo_jax.decoding import Cache, Decoding
from grpo_jax.engine import Engine, Geometry
from grpo_jax.requests import Kept, Request


class Sampler(NamedTuple):
    """How a run samples; constant, so that one set of programs serves the whole run.

    Attributes:
      decoding: temperature and truncation.
      stop_ids: `[K] int32`; any of these ends a completion.
      geometry: slots, cache and prefills.
      max_new_tokens: most tokens of one completion.
      kept_bytes: most bytes of caches that a rollout keeps for its forks.
    """

    decoding: Decoding
    stop_ids: np.ndarray
    geometry: Geometry
    max_new_tokens: int
    kept_bytes: int = 4 * 2**30

    @property
    def width(self) -> int:
        """Columns of a rollout: the longest prompt and the longest completion."""
        return self.geometry.widths[-1] + self.max_new_tokens


class Resident:
    """The engine of one model and sampler, with what it holds on the devices."""

    def __init__(self, functions: Functions, sampler: Sampler):
        """Allocates nothing.

        Args:
          functions: the model.
          sampler: how it samples.
        """
        self._engine = Engine(functions, sampler.geometry)
        self._sampler = sampler
        self._layout: tuple[Params, Params] | None = None
        self._kept: tuple[Params, Rollout, Kept] | None = None
        self._ends: list[tuple[Rollout, np.ndarray]] = []
        self._spare: Cache | None = None

    def sample(
        self,
        params: Params,
        asked: Sequence[Request],
        key: Array,
        *,
        parents: Kept | None = None,
        keep: bool = False,
    ) -> tuple[Rollout, int]:
        """Samples what is asked; returns it, and the slots times steps that it took.

        Args:
          params: the weights; laid out for decoding once, as long as they are the same.
          asked: sequences, numbered from 0.
          key: consumed.
          parents: the caches that some of them continue, of `forks`.
          keep: retains caches for forks of this rollout, and drops those of the last.

        Raises:
          ValueError: `parents` are caches of other weights.
        """
        if parents is not None and self._kept is not None:
            if self._kept[2] is parents and self._kept[0] is not params:
                raise ValueError(
                    "forks would continue caches of other weights than those that"
                    " sample; give `forks` the weights, and they are read again"
                )
        if self._layout is None or self._layout[0] is not params:
            self._layout = None  # two of them need not fit
            self._layout = params, self._engine.layout(params)
        layout, most = self._layout[1], 0
        if keep:
            self._kept = None  # the memory is wanted before the next is there
            self._engine.expect_refills(layout)
            most = self._sampler.kept_bytes // self._engine.row_bytes(layout)
        cache, self._spare = self._spare, None
        done = slots.run(
            self._engine,
            layout,
            asked,
            self._sampler.stop_ids,
            self._sampler.decoding,
            key,
            cache=cache,
            parents=parents,
            keep=most,
        )
        self._spare = done.cache
        out = rollout.assemble(
            asked, done, self._sampler.stop_ids, width=self._sampler.width
        )
        if done.kept is not None:
            self._kept = params, out, done.kept
        self._note_ends(asked, out)
        return out, done.slot_steps

    def forks(
        self,
        forks: Forks,
        *,
        num_samples: int,
        first: int = 0,
        params: Params | None = None,
    ) -> tuple[list[Request], Kept | None]:
        """Returns continuations of a rollout, and the caches they start from.

        A fork has what its rollout's limit had left, as has a fork of a fork until
        `release`. One whose parent's cache is not there, since it was not kept, did
        not fit, or is of other weights, prefills its prefix again.

        Args:
          forks: what to continue, and from where.
          num_samples: continuations of each.
          first: coordinate of the first fork in every key.
          params: the weights that will continue; None is those that were kept with.

        Raises:
          ValueError: a fork is of no row of the rollout, or of no position in it.
        """
        tokens = np.asarray(forks.rollout.tokens)
        length, ends = np.asarray(forks.rollout.length), self._limits(forks.rollout)
        kept = None
        if self._kept is not None and self._kept[1].tokens is forks.rollout.tokens:
            if params is None or params is self._kept[0]:
                kept = self._kept[2]
        out = []
        for i, (row, at) in enumerate(zip(forks.rows, forks.positions, strict=True)):
            _check(int(row), int(at), length)
            prefix = tokens[row, :at].tolist()
            left = max(int(ends[row]) - int(at), 0)
            parent = int(row) if kept is not None and int(row) in kept.place else None
            out += [
                Request(i * num_samples + g, prefix, left, first + i, g, parent)
                for g in range(num_samples)
            ]
        return out, kept

    def release(self) -> None:
        """Frees everything that is held on the devices."""
        self._layout = self._kept = self._spare = None
        self._ends = []

    def _note_ends(self, asked: Sequence[Request], out: Rollout) -> None:
        """Remembers the limits of forks, which their own prefixes do not tell."""
        usual = self._sampler.max_new_tokens
        if any(r.limit != usual for r in asked):
            ends = np.zeros(len(asked), np.int64)
            for r in asked:
                ends[r.row] = len(r.prefix) + r.limit
            self._ends.append((out, ends))

    def _limits(self, of: Rollout) -> np.ndarray:
        """Tokens at which each sequence of a rollout ends, if not before."""
        for noted, ends in self._ends:
            if noted.tokens is of.tokens:
                return ends
        own = np.asarray(of.prompt_length) + self._sampler.max_new_tokens
        return np.minimum(own, self._sampler.width)


def _check(row: int, at: int, length: np.ndarray) -> None:
    """Refuses a fork that continues nothing."""
    if not 0 <= row < len(length):
        raise ValueError(
            f"a fork of row {row}: the rollout has {len(length)}, counted from 0"
        )
    if not 1 <= at <= length[row]:
        raise ValueError(
            f"a fork of row {row} at position {at}: it must keep at least one token,"
            f" and at most the {length[row]} that the row has"
        )
