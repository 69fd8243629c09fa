"""The decoder's parameters, each declared once.

From a declaration come the abstract tree, the shardings, the initial values, the
loader's check and the weight-decay mask.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Key, PyTree

from grpo_jax import keys, sharding
from grpo_jax.base import Params
from grpo_jax.models.config import ModelConfig

Initialiser: TypeAlias = Callable[[Array, tuple[int, ...], Any], Array]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter: a leaf of the declaration tree, not a pytree.

    Attributes:
      shape: sizes of its axes.
      axes: logical names of its axes, read by the table in `sharding`.
      initialise: `(key, shape, dtype) -> array`.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    initialise: Initialiser


def _normal(deviation: float) -> Initialiser:
    return lambda key, shape, dtype: (
        deviation * jax.random.normal(key, shape, jnp.float32)
    ).astype(dtype)


def _ones(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    return jnp.ones(shape, dtype)


def _zeros(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    return jnp.zeros(shape, dtype)


def declare(config: ModelConfig) -> dict[str, Any]:
    """Returns the tree of `Parameter`; layers are stacked on a leading axis."""
    c = config
    layers = _declare_layers(c)
    stacked = {
        name: Parameter((c.num_layers, *p.shape), ("layers", *p.axes), p.initialise)
        for name, p in layers.items()
    }
    tree: dict[str, Any] = {
        "embed": Parameter((c.vocab_size, c.width), ("vocab", "embed"), _normal(0.02)),
        "layers": stacked,
        "final_norm": Parameter((c.width,), ("norm",), _ones),
    }
    if not c.tied:
        shape, axes = (c.width, c.vocab_size), ("embed", "vocab")
        tree["head"] = Parameter(shape, axes, _normal(0.02))
    return tree


def _declare_layers(c: ModelConfig) -> dict[str, Parameter]:
    into = _normal(c.width**-0.5)
    # Branches that add to the residual start small, so depth does not inflate it.
    depth = (2 * c.num_layers) ** -0.5
    inner = c.num_heads * c.head_dim
    heads, kv = ("heads", "head_dim"), ("kv_heads", "head_dim")
    query, key = (c.num_heads, c.head_dim), (c.num_kv_heads, c.head_dim)
    layers = {
        "attn_norm": Parameter((c.width,), ("norm",), _ones),
        "q": Parameter((c.width, *query), ("embed", *heads), into),
        "k": Parameter((c.width, *key), ("embed", *kv), into),
        "v": Parameter((c.width, *key), ("embed", *kv), into),
        "o": Parameter(
            (*query, c.width), (*heads, "embed"), _normal(depth * inner**-0.5)
        ),
        "mlp_norm": Parameter((c.width,), ("norm",), _ones),
        "gate": Parameter((c.width, c.ffw), ("embed", "ffw"), into),
        "up": Parameter((c.width, c.ffw), ("embed", "ffw"), into),
        "down": Parameter(
            (c.ffw, c.width), ("ffw", "embed"), _normal(depth * c.ffw**-0.5)
        ),
    }
    if c.qk_norm:
        layers["q_norm"] = Parameter((c.head_dim,), ("norm",), _ones)
        layers["k_norm"] = Parameter((c.head_dim,), ("norm",), _ones)
    if c.qkv_bias:
        layers["q_bias"] = Parameter(query, heads, _zeros)
        layers["k_bias"] = Parameter(key, kv, _zeros)
        layers["v_bias"] = Parameter(key, kv, _zeros)
    if c.out_bias:
        layers["o_bias"] = Parameter((c.width,), ("norm",), _zeros)
    return layers


def abstract(
    config: ModelConfig, *, dtype: str = "float32", mesh: Mesh | None = None
) -> PyTree:
    """Returns the parameters' shapes and types, with shardings if there is a mesh."""

    def leaf(p: Parameter) -> jax.ShapeDtypeStruct:
        where = None if mesh is None else sharding.named(mesh, p.axes, p.shape)
        return jax.ShapeDtypeStruct(p.shape, jnp.dtype(dtype), sharding=where)

    return jax.tree.map(leaf, declare(config))


def shardings(config: ModelConfig, mesh: Mesh) -> PyTree:
    """Returns the `NamedSharding` of every parameter."""

    def leaf(p: Parameter) -> NamedSharding:
        return sharding.named(mesh, p.axes, p.shape)

    return jax.tree.map(leaf, declare(config))


def init(config: ModelConfig, key: Key[Array, ""], *, dtype: str = "float32") -> Params:
    """Draws initial parameters; consumes `key`.

    Matrices are normal with deviation `1 / sqrt(inputs)`, smaller where they add to
    the residual; embeddings have deviation 0.02; norms are one and biases zero.
    """
    leaves, tree = jax.tree.flatten(declare(config))
    drawn = [
        p.initialise(keys.index(key, i), p.shape, jnp.dtype(dtype))
        for i, p in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, drawn)


def decay_mask(params: Params) -> PyTree:
    """Returns True for each parameter that weight decay should shrink.

    Norm scales and biases are told by their names: stacked over layers they have
    two axes or more, like matrices.
    """

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        name = str(getattr(path[-1], "key", path[-1]))
        return not name.endswith(("norm", "bias"))

    return jax.tree_util.tree_map_with_path(decays, params)


def count(config: ModelConfig) -> int:
    """Returns how many numbers the parameters hold."""
    return sum(math.prod(p.shape) for p in jax.tree.leaves(declare(config)))
