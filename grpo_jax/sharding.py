"""Where arrays live: one mesh, and one table from logical axes to its axes.

The maths names logical axes only; a mesh of one device runs the same program.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

Rules: TypeAlias = Mapping[str, tuple[str, ...]]

AXES = ("data", "fsdp", "tensor")
RULES: Rules = {
    "batch": ("data", "fsdp"),
    "length": (),
    "layers": (),
    "vocab": ("tensor",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "head_dim": (),
    "ffw": ("tensor",),
    "norm": (),
}


def make_mesh(
    data: int = 1,
    fsdp: int = 1,
    tensor: int = 1,
    *,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Returns a mesh whose axes are `data`, `fsdp` and `tensor`.

    Args:
      data: copies of the parameters, each reading its own part of the batch.
      fsdp: parts the parameters are cut into; the batch is cut likewise.
      tensor: parts heads, vocabulary and feed-forward are cut into.
      devices: which to use; by default the first ones there are.
    """
    sizes = (data, fsdp, tensor)
    if min(sizes) < 1:
        raise ValueError(f"mesh {_show(sizes)} must have sizes of at least 1")
    have = list(jax.devices() if devices is None else devices)
    need = math.prod(sizes)
    if need > len(have):
        raise ValueError(
            f"mesh {_show(sizes)} needs {need} devices but there are {len(have)}; "
            "lower data, fsdp or tensor"
        )
    return jax.make_mesh(
        sizes, AXES, axis_types=(AxisType.Auto,) * 3, devices=have[:need]
    )


def _show(sizes: tuple[int, ...]) -> str:
    return " ".join(f"{a}={n}" for a, n in zip(AXES, sizes, strict=True))


def spec(axes: Sequence[str | None], *, rules: Rules = RULES) -> PartitionSpec:
    """Returns the partition of an array with these logical axes; None is whole.

    Raises:
      ValueError: an axis is not in the table, or two name the same mesh axis.
    """
    owner: dict[str, str] = {}
    parts: list[tuple[str, ...] | str | None] = []
    for axis in axes:
        if axis is None:
            parts.append(None)
            continue
        if axis not in rules:
            raise ValueError(f"logical axis {axis!r} must be one of {sorted(rules)}")
        for mesh_axis in rules[axis]:
            if mesh_axis in owner:
                raise ValueError(
                    f"logical axes {owner[mesh_axis]!r} and {axis!r} of "
                    f"{tuple(axes)} both use mesh axis {mesh_axis!r}; "
                    "an array can be cut along it once, so change one rule"
                )
            owner[mesh_axis] = axis
        names = rules[axis]
        parts.append(names[0] if len(names) == 1 else names or None)
    return PartitionSpec(*parts)


def named(
    mesh: Mesh,
    axes: Sequence[str | None],
    shape: Sequence[int] | None = None,
    *,
    rules: Rules = RULES,
) -> NamedSharding:
    """Returns the sharding of an array with these logical axes.

    Args:
      mesh: as `make_mesh` makes it.
      axes: one logical name per axis.
      shape: if given, every size must divide into its parts.
      rules: the table to read.
    """
    found = spec(axes, rules=rules)
    if shape is not None:
        for axis, size in zip(axes, shape, strict=True):
            over = () if axis is None else rules[axis]
            check_divisible(str(axis), size, mesh, over)
    return NamedSharding(mesh, found)


def check_divisible(
    name: str, size: int, mesh: Mesh, over: Sequence[str] = ("data", "fsdp")
) -> None:
    """Raises ValueError, with sizes that would do, unless `size` divides evenly."""
    parts = math.prod(mesh.shape[a] for a in over)
    if size % parts:
        used = " x ".join(f"{a}={mesh.shape[a]}" for a in over)
        below, above = size // parts * parts, (size // parts + 1) * parts
        near = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"{name}={size} must be a multiple of {parts} ({used}); "
            f"use {near}, or a smaller mesh"
        )


def batch(mesh: Mesh, rank: int) -> NamedSharding:
    """Returns the sharding that cuts the leading axis of an array over the batch."""
    return named(mesh, ("batch", *(None,) * (rank - 1)))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding that keeps a whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def place(tree: PyTree, shardings: PyTree) -> PyTree:
    """Moves every leaf to its sharding."""
    return jax.tree.map(jax.device_put, tree, shardings)


def place_batch(mesh: Mesh, tree: PyTree) -> PyTree:
    """Moves arrays that lead with the batch to the mesh, checking their length."""

    def leaf(x: jax.Array) -> jax.Array:
        if x.ndim == 0:
            return jax.device_put(x, replicated(mesh))
        check_divisible("batch", x.shape[0], mesh)
        return jax.device_put(x, batch(mesh, x.ndim))

    return jax.tree.map(leaf, tree)
