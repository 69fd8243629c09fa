"""Programs over packed rows, compiled for every layout before any is needed.

Which layout serves depends on the lengths. All of them are compiled at the first call
of their shape, so that lengths first seen late compile nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from grpo_jax import packing

# Tokens of a part. On a CPU activations then stay near the processor, and little of the
# last part is empty: an update of SmolLM2 takes 7.2 s as with twice as many, 9.5 s in
# one part; of 32 log-normal answers 15 % is padding, 35 % with twice as many. Elsewhere
# a part must fill the device.
PART_TOKENS = {"cpu": 768, "gpu": 4096, "tpu": 4096}


class Programs:
    """A jitted function whose first argument is a plan, as executables by layout."""

    def __init__(
        self, microbatches: int = 0, row_sharding: NamedSharding | None = None
    ):
        """Starts with none.

        Args:
          microbatches: see `packing.layouts`.
          row_sharding: how sequences lie on the mesh; None is one device.
        """
        self._microbatches = microbatches
        self._sharding = row_sharding
        self._made: dict[Hashable, dict[packing.Layout, Callable[..., Any]]] = {}

    def place(self, tree: PyTree, sequences: int) -> PyTree:
        """Moves arrays that lead with so many sequences to their devices."""
        return jax.device_put(tree, self._rows(sequences))

    def run(
        self,
        jitted: Callable[..., Any],
        lengths: np.ndarray,
        columns: int,
        *args: Any,
        **static: Hashable,
    ) -> tuple[Any, int]:
        """Returns what `jitted` does; compiles it first where the shapes are new.

        Args:
          jitted: takes a plan, `args` and `static`.
          lengths: tokens of each sequence, on the host.
          columns: of the arrays that hold them.
          *args: pytrees of arrays on their devices.
          **static: static arguments of `jitted`.

        Returns:
          Its result, and the tokens that the parts of its plan have room for.
        """
        leaves, shape = jax.tree.flatten(args)
        kinds = tuple((x.shape, x.dtype, getattr(x, "sharding", None)) for x in leaves)
        key = jitted, shape, kinds, tuple(sorted(static.items()))
        choices = self._layouts(len(lengths), columns)
        if key not in self._made:
            self._made[key] = {
                layout: jitted.lower(
                    self._put(packing.empty(layout)), *args, **static
                ).compile()
                for layout in choices
            }
        layout = packing.fitting(choices, int(lengths.max(initial=0)))
        plan = packing.plan(lengths, layout)
        return self._made[key][layout](self._put(plan), *args), plan.cells

    def _layouts(self, sequences: int, columns: int) -> tuple[packing.Layout, ...]:
        return packing.layouts(
            sequences,
            columns,
            shards=self._shards(sequences),
            microbatches=self._microbatches,
            part_tokens=PART_TOKENS.get(jax.default_backend(), 4096),
        )

    def _shards(self, sequences: int) -> int:
        """Devices that share the sequences; one where they do not divide."""
        if self._sharding is None:
            return 1
        axes = self._sharding.spec[0]
        names = axes if isinstance(axes, tuple) else (axes,)
        shards = math.prod(self._sharding.mesh.shape[name] for name in names)
        return 1 if sequences % shards else shards

    def _rows(self, sequences: int) -> NamedSharding | None:
        if self._sharding is None or self._shards(sequences) > 1:
            return self._sharding
        return NamedSharding(self._sharding.mesh, PartitionSpec())

    def _put(self, plan: packing.Plan) -> packing.Plan:
        """Moves each shard's share of a plan to the device that holds the shard."""
        if self._sharding is None:
            return jax.device_put(plan)
        mesh = self._sharding.mesh
        axes = self._sharding.spec[0] if plan.layout.shards > 1 else None
        cut = NamedSharding(mesh, PartitionSpec(None, axes))
        where = dataclasses.replace(
            jax.tree.map(lambda _: cut, plan),
            count=NamedSharding(mesh, PartitionSpec()),
        )
        return jax.device_put(plan, where)
