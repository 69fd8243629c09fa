"""Between files of one tensor per layer and our stacked parameters.

Tensors are named as in Hugging Face checkpoints. They stream: one is read, cast and
written to its place in a stacked array, so the host holds one stacked parameter
beside the model itself.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from grpo_jax import sharding
from grpo_jax.base import Params
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.parameters import Parameter, declare


class Source(NamedTuple):
    """A checkpoint whose tensors are read one by one.

    Attributes:
      shapes: the shape of every tensor, by its Hugging Face name.
      read: `name -> array`, a float array that the caller may keep.
      where: the file or directory, for messages.
    """

    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    where: str


class Entry(NamedTuple):
    """How one of our parameters is spelt in a file.

    Attributes:
      name: its Hugging Face name, `{}` for the layer.
      inputs: how many leading axes of ours are inputs of a linear map, which files
        hold transposed; None for what is only reshaped.
    """

    name: str
    inputs: int | None = None


TOP = {
    "embed": Entry("model.embed_tokens.weight"),
    "final_norm": Entry("model.norm.weight"),
    "head": Entry("lm_head.weight", 1),
}
LAYER = {
    "attn_norm": Entry("model.layers.{}.input_layernorm.weight"),
    "q": Entry("model.layers.{}.self_attn.q_proj.weight", 1),
    "k": Entry("model.layers.{}.self_attn.k_proj.weight", 1),
    "v": Entry("model.layers.{}.self_attn.v_proj.weight", 1),
    "o": Entry("model.layers.{}.self_attn.o_proj.weight", 2),
    "q_bias": Entry("model.layers.{}.self_attn.q_proj.bias"),
    "k_bias": Entry("model.layers.{}.self_attn.k_proj.bias"),
    "v_bias": Entry("model.layers.{}.self_attn.v_proj.bias"),
    "o_bias": Entry("model.layers.{}.self_attn.o_proj.bias"),
    "q_norm": Entry("model.layers.{}.self_attn.q_norm.weight"),
    "k_norm": Entry("model.layers.{}.self_attn.k_norm.weight"),
    "mlp_norm": Entry("model.layers.{}.post_attention_layernorm.weight"),
    "gate": Entry("model.layers.{}.mlp.gate_proj.weight", 1),
    "up": Entry("model.layers.{}.mlp.up_proj.weight", 1),
    "down": Entry("model.layers.{}.mlp.down_proj.weight", 1),
}


def file_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape that files give to one of our parameters (of one layer)."""
    entry = TOP.get(name) or LAYER[name]
    if entry.inputs is not None:
        outputs = math.prod(shape[entry.inputs :])
        return outputs, math.prod(shape[: entry.inputs])
    return (math.prod(shape),) if name.endswith("bias") else shape


def from_file(name: str, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Turns a file's tensor into ours, of `shape`."""
    entry = TOP.get(name) or LAYER[name]
    return (x if entry.inputs is None else x.T).reshape(shape)


def to_file(name: str, x: np.ndarray) -> np.ndarray:
    """Turns our parameter (of one layer) into a file's tensor."""
    entry = TOP.get(name) or LAYER[name]
    rows, *rest = file_shape(name, x.shape)
    if entry.inputs is None:
        return x.reshape((rows, *rest))
    return np.ascontiguousarray(x.reshape((*rest, rows)).T)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the tensors that a checkpoint of this shape has."""
    tree = declare(config)
    layers = tree.pop("layers")
    found = {TOP[n].name: file_shape(n, p.shape) for n, p in tree.items()}
    for n, p in layers.items():
        for i in range(config.num_layers):
            found[LAYER[n].name.format(i)] = file_shape(n, p.shape[1:])
    return found


def check(config: ModelConfig, source: Source) -> None:
    """Compares a checkpoint's tensors with the config's.

    Raises:
      ValueError: lists every missing, extra or mis-shaped tensor.
    """
    want, have = expected_shapes(config), dict(source.shapes)
    have = {k: v for k, v in have.items() if not k.endswith("rotary_emb.inv_freq")}
    head, embed = TOP["head"].name, TOP["embed"].name
    if config.tied and head in have and have[head] == have.get(embed):
        # Some files hold the tied head twice; a different one would be dropped.
        if np.array_equal(source.read(head), source.read(embed)):
            del have[head]
    faults = [f"missing {k} {list(want[k])}" for k in want if k not in have]
    faults += [f"extra {k} {list(have[k])}" for k in have if k not in want]
    faults += [
        f"{k} is {list(have[k])}, not {list(want[k])}"
        for k in want
        if k in have and tuple(have[k]) != want[k]
    ]
    if faults:
        raise ValueError(
            f"{source.where}: {len(faults)} tensors do not fit its config: "
            f"{'; '.join(faults)}; use the config that belongs to these weights"
        )


def assemble(
    config: ModelConfig,
    source: Source,
    *,
    dtype: str = "float32",
    mesh: Mesh | None = None,
) -> Params:
    """Reads a checkpoint into parameters of `dtype`, placed on `mesh` if given."""
    tree = declare(config)
    # Sizes that do not divide are refused before anything large is read.
    where: dict[str, Any] = jax.tree.map(
        lambda p: None if mesh is None else sharding.named(mesh, p.axes, p.shape), tree
    )
    check(config, source)
    layers = tree.pop("layers")
    params: dict[str, Any] = {}
    for name, p in tree.items():
        host = np.empty(p.shape, jnp.dtype(dtype))
        host[...] = from_file(name, source.read(TOP[name].name), p.shape)
        params[name] = _place(host, where[name])
    params["layers"] = {
        name: _place(_stack(source, name, p, dtype), where["layers"][name])
        for name, p in layers.items()
    }
    return params


def _stack(source: Source, name: str, p: Parameter, dtype: str) -> np.ndarray:
    host = np.empty(p.shape, jnp.dtype(dtype))
    for i in range(p.shape[0]):
        tensor = source.read(LAYER[name].name.format(i))
        host[i] = from_file(name, tensor, p.shape[1:])
    return host


def _place(host: np.ndarray, where: NamedSharding | None) -> jax.Array:
    if where is None:
        return jax.device_put(host)  # a CPU may keep this very buffer; we let it go
    return jax.make_array_from_callback(
        host.shape, where, lambda index: np.array(host[index])
    )


def disassemble(params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of a checkpoint one by one, as files name and hold them."""
    for name, x in params.items():
        if name != "layers":
            yield TOP[name].name, to_file(name, np.asarray(x))
    layers = params["layers"]
    for i in range(next(iter(layers.values())).shape[0]):
        for name, x in layers.items():
            yield LAYER[name].name.format(i), to_file(name, np.asarray(x[i]))
