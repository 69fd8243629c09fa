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
        self._kept: tuple[Rollout, Kept] | None = None
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
        """
        if self._layout is None or self._layout[0] is not params:
            self._layout = None  # two of them need not fit
            self._layout = params, self._engine.layout(params)
        layout, most = self._layout[1], 0
        if keep:
            self._kept = None  # the memory is wanted before the next is there
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
            self._kept = out, done.kept
        return out, done.slot_steps

    def forks(
        self, forks: Forks, *, num_samples: int, first: int = 0
    ) -> tuple[list[Request], Kept | None]:
        """Returns continuations of a rollout, and the caches they start from.

        A fork has what its rollout's limit had left. One whose parent's cache is not
        there, since it was not kept or did not fit, prefills its prefix again.
        """
        tokens = np.asarray(forks.rollout.tokens)
        start = np.asarray(forks.rollout.prompt_length)
        kept = None
        if self._kept is not None and self._kept[0].tokens is forks.rollout.tokens:
            kept = self._kept[1]
        out = []
        for i, (row, at) in enumerate(zip(forks.rows, forks.positions, strict=True)):
            prefix = tokens[row, :at].tolist()
            left = int(start[row]) + self._sampler.max_new_tokens - int(at)
            parent = int(row) if kept is not None and int(row) in kept.place else None
            out += [
                Request(i * num_samples + g, prefix, left, first + i, g, parent)
                for g in range(num_samples)
            ]
        return out, kept

    def release(self) -> None:
        """Frees everything that is held on the devices."""
        self._layout = self._kept = self._spare = None
