"""The compiled programs of sampling, for one model and one set of sizes.

A slot is one row of the cache and decodes one sequence; `slots` refills those whose
sequence ended. Shapes follow from the configuration: how many sequences wait, how long
they are and how they are drawn is data, and compiles nothing.
"""

import functools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array

from grpo_jax import sharding
from grpo_jax.base import Functions, Params
from grpo_jax.decoding import Cache, Decoding, Drawn, Occupied, advance, copy_rows


class Geometry(NamedTuple):
    """The sizes that programs are compiled for.

    Attributes:
      slots: sequences that decode together; a multiple of the mesh's batch shards.
      columns: positions of a slot's cache.
      widths: what prompts are padded to before a prefill, ascending.
      rows: prompts of one prefill.
      group: neighbouring slots that are filled with samples of one prompt where that
        can be; a divisor of a shard's slots.
      mesh: devices; None is one device.
    """

    slots: int
    columns: int
    widths: tuple[int, ...]
    rows: int
    group: int = 1
    mesh: Mesh | None = None

    @property
    def shards(self) -> int:
        """Parts that the slots are cut into."""
        return shards(self.mesh)


def shards(mesh: Mesh | None) -> int:
    """Returns the parts that a batch is cut into."""
    return 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]


class Engine:
    """The compiled programs of one model in one geometry."""

    def __init__(self, functions: Functions, geometry: Geometry):
        """Compiles nothing yet.

        Args:
          functions: the model.
          geometry: sizes and devices.
        """
        mesh = geometry.mesh
        if geometry.slots % geometry.shards:
            raise ValueError(
                f"{geometry.slots} slots must be a multiple of {geometry.shards} shards"
                " of the batch; change the number of slots or the mesh"
            )
        self.geometry = geometry
        self._functions = functions
        self._prefills: dict[Hashable, Any] = {}
        self._blanks: dict[int, Any] = {}
        self._row_bytes: int | None = None
        # Axes that are not named stay as the model cuts them: heads over `tensor`.
        axes = functions.cache_axes()
        self._cut = _place(mesh, axes)
        self._whole = _place(mesh, (None, *axes[1:]))
        self._everywhere = _place(mesh, ())
        self._layout = jax.jit(functions.decode_layout)
        self._advance = jax.jit(
            functools.partial(advance, functions, group=geometry.group),
            donate_argnums=1,
            out_shardings=(self._cut, self._everywhere),
        )
        self._spread = jax.jit(
            lambda source, rows: jax.tree.map(lambda x: x[rows], source),
            out_shardings=self._cut,
        )
        self._copy = jax.jit(
            copy_rows,
            donate_argnums=0,
            static_argnames="whole_source",
            out_shardings=self._cut,
        )

    def layout(self, params: Params) -> Params:
        """Returns the parameters as decoding reads them; compiles what prefills need.

        Every width is compiled here, so that a prompt first seen late compiles nothing.
        """
        layout = self._layout(params)
        for width in self.geometry.widths:
            self._prefill(layout, width)
        return layout

    def expect_refills(self, layout: Params) -> None:
        """Compiles the prefill of what is longer than a prompt, which forks may be."""
        self._prefill(layout, self.geometry.columns)

    def blank(self, layout: Params, rows: int) -> Cache:
        """Returns an empty cache of so many rows, cut over the devices."""
        if rows not in self._blanks:
            shapes = self._shapes(layout, rows)
            self._blanks[rows] = jax.jit(
                lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
                out_shardings=self._cut,
            )
        return self._blanks[rows]()

    def row_bytes(self, layout: Params) -> int:
        """Returns the bytes of one row of a cache."""
        if self._row_bytes is None:
            leaves = jax.tree.leaves(self._shapes(layout, 1))
            self._row_bytes = sum(x.size * x.dtype.itemsize for x in leaves)
        return self._row_bytes

    def prefill(self, layout: Params, prompts: Sequence[Sequence[int]]) -> Cache:
        """Returns the cache of up to `geometry.rows` prompts, whole on every shard."""
        longest = max(len(prompt) for prompt in prompts)
        fits = [width for width in self.geometry.widths if width >= longest]
        width = fits[0] if fits else self.geometry.columns
        tokens = np.zeros((self.geometry.rows, width), np.int32)
        length = np.ones(self.geometry.rows, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)], length[row] = prompt, len(prompt)
        program = self._prefill(layout, width)
        return program(layout, *jax.device_put((tokens, length), self._prompts))

    def advance(
        self,
        layout: Params,
        cache: Cache,
        held: Occupied,
        stop_ids: np.ndarray,
        how: Decoding,
        key: Array,
        *,
        patience: int,
        alike: int = 0,
    ) -> tuple[Cache, Drawn]:
        """Runs a chunk of decode steps, see `advance`; what it drew is on the host."""
        cache, drawn = self._advance(
            layout,
            cache,
            held,
            stop_ids,
            how,
            key,
            np.int32(patience),
            np.int32(alike),
        )
        return cache, jax.device_get(drawn)

    def spread(self, source: Cache, rows: np.ndarray) -> Cache:
        """Returns a cache of the slots, each a copy of a row of a prefill's."""
        return self._spread(source, rows)

    def copy(
        self,
        target: Cache,
        source: Cache,
        moves: Sequence[Sequence[tuple[int, int]]],
        *,
        whole_source: bool = False,
    ) -> Cache:
        """Copies rows `(of, to)` of each shard; see `copy_rows`."""
        most = self.geometry.slots // self.geometry.shards
        to = np.zeros((self.geometry.shards, most), np.int32)
        of, count = np.zeros_like(to), np.zeros(len(to), np.int32)
        for shard, pairs in enumerate(moves):
            count[shard] = len(pairs)
            for i, pair in enumerate(pairs):
                of[shard, i], to[shard, i] = pair
        return self._copy(target, source, to, of, count, whole_source=whole_source)

    def traced(self, layout: Any, stop_ids: np.ndarray, how: Decoding) -> list[Any]:
        """Returns the prefill and the chunk traced from abstract weights, to lower."""
        size, key = self.geometry.slots, jax.eval_shape(lambda: jax.random.key(0))
        numbers = [jax.ShapeDtypeStruct((size,), jnp.int32) for _ in range(5)]
        live = jax.ShapeDtypeStruct((size,), jnp.bool)
        held = Occupied(*numbers[:3], live, *numbers[3:])  # pyright: ignore
        number = np.int32(0)
        cache = self._shapes(layout, size)
        return [
            self._trace_prefill(layout, self.geometry.widths[-1]),
            self._advance.trace(
                layout, cache, held, stop_ids, how, key, number, number
            ),
        ]

    @property
    def _prompts(self) -> NamedSharding | None:
        """How prompts lie: cut over the batch where they divide."""
        even = self.geometry.rows % self.geometry.shards == 0
        return _place(self.geometry.mesh, ("batch",) if even else ())

    def _prefill(self, layout: Params, width: int) -> Any:
        # A program takes weights of the types and places it was compiled for only.
        leaves, tree = jax.tree.flatten(layout)
        kinds = tuple((x.shape, x.dtype, x.sharding) for x in leaves)
        name = width, tree, kinds
        if name not in self._prefills:
            traced = self._trace_prefill(layout, width)
            self._prefills[name] = traced.lower().compile()
        return self._prefills[name]

    def _trace_prefill(self, layout: Any, width: int) -> Any:
        rows, where = self.geometry.rows, self._prompts
        read = functools.partial(
            self._functions.prefill, cache_length=self.geometry.columns
        )
        program = jax.jit(
            lambda layout, tokens, length: read(layout, tokens, length)[1],
            out_shardings=self._whole,
        )
        tokens = jax.ShapeDtypeStruct((rows, width), jnp.int32, sharding=where)
        length = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=where)
        return program.trace(layout, tokens, length)

    def _shapes(self, layout: Any, rows: int) -> Cache:
        tokens = jax.ShapeDtypeStruct((rows, 1), jnp.int32)
        length = jax.ShapeDtypeStruct((rows,), jnp.int32)
        read = functools.partial(
            self._functions.prefill, cache_length=self.geometry.columns
        )
        return jax.eval_shape(read, layout, tokens, length)[1]


def _place(mesh: Mesh | None, axes: Sequence[str | None]) -> NamedSharding | None:
    return None if mesh is None else NamedSharding(mesh, sharding.spec(axes))
