"""Sequences laid end to end in rows of one width, so that little of a row is padding.

A plan is made on the host from lengths alone. It puts whole sequences into rows, and
rows into parts of one shape, whose number is data: one program serves any lengths.
Each shard of the batch, a device's share, has rows of its own, so that gathering a
part moves nothing between devices.

Only the model's forward pass reads rows. What an objective reads stays one row a
sequence, `[n, T]`, with `Place` to say where each of them lies.
"""

import dataclasses
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Shaped

from grpo_jax.base import Batch, Rollout

# Not `jax.Array`: the same classes hold shardings and structs, too.
Leaf: TypeAlias = Any

_NARROWEST = 256  # below it a narrower row saves nothing worth another program
_SHORTEST = 16  # mean length that the slots of a part are made for


class Layout(NamedTuple):
    """Shape of the parts of a plan; it follows from the configuration alone.

    Attributes:
      shards: parts that the sequences are cut into, each with rows of its own.
      sequences: of one shard.
      rows: of one shard in a part.
      width: tokens of a row.
      slots: most sequences of one shard in a part.
      parts: most parts that a plan can need.
    """

    shards: int
    sequences: int
    rows: int
    width: int
    slots: int
    parts: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Which sequences each part holds, and where.

    Attributes:
      index: `[parts, shards, slots] int32` of the shard's sequences; an empty slot
        has the index past the last.
      row, start, segment: the same shape; see `Place`.
      count: `[] int32` parts that hold anything; they are the first ones.
      layout: not a leaf.
    """

    index: Leaf
    row: Leaf
    start: Leaf
    segment: Leaf
    count: Leaf
    layout: Layout = dataclasses.field(metadata={"static": True})

    @property
    def cells(self) -> int:
        """Tokens that its parts multiply, padding included."""
        layout = self.layout
        return int(self.count) * layout.shards * layout.rows * layout.width


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where each sequence of a part lies in the part's rows.

    Attributes:
      row: `[n] int32` row of its shard; n is shards times slots.
      start: `[n] int32` column of its first token.
      segment: `[n] int32` its number within the row; 0 is an empty slot.
      layout: not a leaf.
    """

    row: Leaf
    start: Leaf
    segment: Leaf
    layout: Layout = dataclasses.field(metadata={"static": True})


def layouts(
    sequences: int,
    columns: int,
    *,
    shards: int = 1,
    microbatches: int = 0,
    part_tokens: int = 768,
) -> tuple[Layout, ...]:
    """Returns the layouts that a plan chooses from, the narrowest first.

    Args:
      sequences: of one optimiser step, a multiple of `shards`.
      columns: T of the batch, which no sequence is longer than.
      shards: devices that share the batch.
      microbatches: a part holds as many tokens as this share of the sequences, each
        of T tokens; 0 is parts of about `part_tokens` on each device.
      part_tokens: see `microbatches`.
    """
    if sequences % shards:
        raise ValueError(
            f"{sequences} sequences must be a multiple of {shards} shards; change one"
        )
    own = sequences // shards
    # As many parts as hold a batch in which every sequence is at its limit.
    parts = microbatches or max(-(-own * columns // part_tokens), 1)
    tokens = -(-own // parts) * columns
    # Multiples of 64 suit the kernels of attention; T is what it is.
    halves = (-(-columns // (64 * n)) * 64 for n in (4, 2))
    widths = [w for w in halves if _NARROWEST <= w < columns]
    made = []
    for width in (*dict.fromkeys(widths), columns):
        rows = max(min(round(tokens / width), own), 1)
        each = max(2, -(-width // _SHORTEST))
        slots, parts = min(rows * each, own), max(-(-own // rows), 1)
        made.append(Layout(shards, own, rows, width, slots, parts))
    return tuple(made)


def fitting(choices: tuple[Layout, ...], longest: int) -> Layout:
    """Returns the narrowest layout whose rows hold a sequence of `longest` tokens."""
    for layout in choices:
        if longest <= layout.width:
            return layout
    raise ValueError(
        f"a sequence of {longest} tokens exceeds the {choices[-1].width} columns of its"
        " batch; its length is wrong"
    )


def plan(lengths: Int[np.ndarray, "B"], layout: Layout) -> Plan:
    """Returns where sequences go: first fit, the longest first.

    Args:
      lengths: tokens of each sequence; each has a slot, one of no tokens too.
      layout: of `layouts`, for as many sequences.
    """
    apart = np.asarray(lengths).reshape(layout.shards, layout.sequences)
    shape = (layout.parts, layout.shards, layout.slots)
    index = np.full(shape, layout.sequences, np.int32)
    row, start, segment = (np.zeros(shape, np.int32) for _ in range(3))
    # At most as many in a row as the slots allow, whatever rows make up a part.
    most = max(layout.slots // layout.rows, 1)
    if layout.slots == layout.sequences:
        most = layout.sequences
    count = 0
    for shard, own in enumerate(apart):
        rows = _rows(own, layout.width, most)
        count = max(count, -(-len(rows) // layout.rows))
        for first in range(0, len(rows), layout.rows):
            part, slot = first // layout.rows, 0
            for number, held in enumerate(rows[first : first + layout.rows]):
                at = 0
                for rank, sequence in enumerate(held, start=1):
                    where = part, shard, slot
                    index[where], row[where] = sequence, number
                    start[where], segment[where] = at, rank
                    at, slot = at + int(own[sequence]), slot + 1
    made = {"index": index, "row": row, "start": start, "segment": segment}
    return Plan(**made, count=np.int32(count), layout=layout)


def _rows(lengths: np.ndarray, width: int, most: int) -> list[list[int]]:
    """The sequences of each row, in the order of their columns."""
    rows: list[list[int]] = []
    room = np.zeros(len(lengths), np.int64)
    for sequence in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sequence])
        fits = room[: len(rows)] >= length
        found = int(fits.argmax()) if fits.any() else len(rows)
        if found == len(rows):
            rows.append([])
            room[found] = width
        rows[found].append(sequence)
        # A full row fits nothing, not even a sequence of no tokens.
        room[found] = room[found] - length if len(rows[found]) < most else -1
    return rows


def empty(layout: Layout) -> Plan:
    """Returns a plan of no parts, which has the shapes of every plan."""
    made = plan(np.zeros(layout.shards * layout.sequences, np.int32), layout)
    return dataclasses.replace(made, count=np.int32(0))


def take(tree: PyTree, plan: Plan, number: Int[Array, ""]) -> PyTree:
    """Gathers the sequences of one part from leaves that lead with all of them.

    Empty slots hold what the last sequence of the shard holds.
    """
    layout = plan.layout
    index = jnp.asarray(plan.index)[number]

    def leaf(x):
        x = jnp.asarray(x)
        apart = x.reshape(layout.shards, layout.sequences, *x.shape[1:])
        found = jax.vmap(lambda x, i: x.at[i].get(mode="clip"))(apart, index)
        return found.reshape(-1, *x.shape[1:])

    return jax.tree.map(leaf, tree)


def put_back(
    plan: Plan,
    number: Int[Array, ""],
    whole: Shaped[Array, "B *a"],
    part: Shaped[Array, "n *a"],
) -> Shaped[Array, "B *a"]:
    """Returns `whole` with the sequences of one part in their places."""
    layout = plan.layout
    apart = whole.reshape(layout.shards, layout.sequences, *whole.shape[1:])
    some = part.reshape(layout.shards, layout.slots, *part.shape[1:])
    # An empty slot has an index past the end, where nothing is written.
    put = jax.vmap(lambda x, i, some: x.at[i].set(some, mode="drop"))
    return put(apart, jnp.asarray(plan.index)[number], some).reshape(whole.shape)


def place(plan: Plan, number: Int[Array, ""]) -> Place:
    """Returns where the sequences of one part lie."""
    of_part = (jnp.asarray(x)[number] for x in (plan.row, plan.start, plan.segment))
    row, start, segment = (x.reshape(-1) for x in of_part)
    return Place(row=row, start=start, segment=segment, layout=plan.layout)


def rollout(whole: Rollout, plan: Plan, number: Int[Array, ""]) -> Rollout:
    """Returns the sequences of one part; those of empty slots have no tokens."""
    some, there = take(whole, plan, number), place(plan, number).segment > 0
    return dataclasses.replace(
        some,
        sampled=some.sampled & there[:, None],
        prompt_length=jnp.where(there, some.prompt_length, 0),
        length=jnp.where(there, some.length, 0),
        truncated=some.truncated & there,
    )


def batch(whole: Batch, plan: Plan, number: Int[Array, ""]) -> Batch:
    """Returns one part of a batch, in which an objective reads no empty slot."""
    some, packed = take(whole, plan, number), place(plan, number)
    return dataclasses.replace(
        some,
        rollout=rollout(whole.rollout, plan, number),
        mask=some.mask & (packed.segment > 0)[:, None],
        packed=packed,
    )


def lay(
    place: Place, x: Shaped[Array, "n T"], length: Int[Array, "n"]
) -> Shaped[Array, "S N"]:
    """Lays sequences end to end; N is the rows of a shard times their width.

    Args:
      place: where they go.
      x: a value for each token; not differentiated.
      length: how many of its values each sequence has.

    Returns:
      The values, 0 where no token lies.
    """
    layout = place.layout
    cells = layout.rows * layout.width
    column = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
    to = _first_cell(place)[:, None] + column
    to = jnp.where(column < length[:, None], to, cells)  # past the end: dropped
    blank = jnp.zeros((layout.shards, cells), x.dtype)
    shard = lambda a: a.reshape(layout.shards, -1)  # noqa: E731
    put = jax.vmap(lambda blank, to, x: blank.at[to].set(x, mode="drop"))
    return put(blank, shard(to), shard(x))


def lift(
    place: Place, cells: Shaped[Array, "S N *a"], columns: int
) -> Shaped[Array, "n T *a"]:
    """Gives each token of the sequences what its predecessor's cell holds.

    The state before a token predicts it, so a sequence's entry t is of its token t.
    Entries of position 0, which nothing predicts, and of padding are unspecified.
    """
    layout = place.layout
    column = jnp.arange(-1, columns - 1, dtype=jnp.int32)[None]
    at = (_first_cell(place)[:, None] + column).reshape(layout.shards, -1)
    found = jax.vmap(lambda x, i: x.at[i].get(mode="clip"))(cells, at)
    return found.reshape(-1, columns, *cells.shape[2:])


def _first_cell(place: Place) -> Array:
    return place.row * place.layout.width + place.start
