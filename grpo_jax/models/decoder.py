"""One decoder for Llama 3, Qwen 2 and Qwen 3, as pure functions of its parameters.

`hidden` scans over stacked layers; `prefill` and `decode` read the layout made by
`decode_layout`, whose layers are apart and in the compute type. Norms, softmax and
rotary angles are float32 whatever the compute type. Nothing here mentions devices.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grpo_jax.base import Functions, Params
from grpo_jax.models import attention
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.rope import rotary

Layer: TypeAlias = dict[str, Any]
Cache: TypeAlias = tuple[attention.Cache, ...]  # one of each layer
REMAT = ("none", "full", "dots")


def rms_norm(
    x: Float[Array, "*a D"], scale: Float[Array, "D"], *, epsilon: float
) -> Float[Array, "*a D"]:
    """Divides by the root mean square over the last axis, in float32.

    See "Root Mean Square Layer Normalization" by Zhang and Sennrich
    (https://arxiv.org/abs/1910.07467), eq. 4.
    """
    wide = x.astype(jnp.float32)
    mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    out = wide * jax.lax.rsqrt(mean + epsilon)
    return (out * _as_rank(scale.astype(jnp.float32), x.ndim)).astype(x.dtype)


def _as_rank(x: Array, rank: int) -> Array:
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _qkv(config: ModelConfig, layer: Layer, x: Array) -> tuple[Array, Array, Array]:
    if "qkv" in layer:  # decode layout: [D, K, H / K + 2, head_dim]
        fused = jnp.einsum("btd,dkgh->btkgh", x, layer["qkv"])
        if "qkv_bias" in layer:
            fused = fused + _as_rank(layer["qkv_bias"], fused.ndim)
        query = fused[..., :-2, :]
        shape = (*query.shape[:2], config.num_heads, config.head_dim)
        return query.reshape(shape), fused[..., -2, :], fused[..., -1, :]
    # One row per token, as below.
    flat = x.reshape(-1, x.shape[-1])
    out = []
    for name in "qkv":
        weight = layer[name]
        y = flat @ weight.reshape(weight.shape[0], -1)
        y = y.reshape(*x.shape[:-1], *weight.shape[1:])
        if config.qkv_bias:
            y = y + _as_rank(layer[name + "_bias"], y.ndim)
        out.append(y)
    return out[0], out[1], out[2]


def _feed_forward(layer: Layer, x: Array) -> Array:
    # One row per token: with two batch axes the weights' gradients are a third slower
    # on CPU.
    flat = x.reshape(-1, x.shape[-1])
    if "gate_up" in layer:  # decode layout: [D, 2, F]
        both = jnp.einsum("nd,dcf->ncf", flat, layer["gate_up"])
        gate, up = both[:, 0], both[:, 1]
    else:
        gate, up = flat @ layer["gate"], flat @ layer["up"]
    return ((jax.nn.silu(gate) * up) @ layer["down"]).reshape(x.shape)


def _block(config, layer, x, rotate, attend):
    """One layer; `attend(q, k, v)` returns the mixed values and what it keeps."""
    epsilon = config.norm_epsilon
    query, key, value = _qkv(
        config, layer, rms_norm(x, layer["attn_norm"], epsilon=epsilon)
    )
    if config.qk_norm:
        query = rms_norm(query, layer["q_norm"], epsilon=epsilon)
        key = rms_norm(key, layer["k_norm"], epsilon=epsilon)
    mixed, kept = attend(rotate(query), rotate(key), value)
    weight = layer["o"].reshape(-1, x.shape[-1])
    out = (mixed.reshape(-1, weight.shape[0]) @ weight).reshape(x.shape)
    if config.out_bias:
        out = out + _as_rank(layer["o_bias"], out.ndim)
    x = x + out
    x = x + _feed_forward(layer, rms_norm(x, layer["mlp_norm"], epsilon=epsilon))
    return x, kept


def _cast(tree: Layer, dtype: jnp.dtype) -> Layer:
    # Norm scales are used in float32: rounding them first would only lose digits.
    return {k: v if k.endswith("norm") else v.astype(dtype) for k, v in tree.items()}


def _head(params: Params) -> Array:
    return params["head"] if "head" in params else params["embed"].T


def functions(
    config: ModelConfig,
    *,
    compute_dtype: str = "float32",
    remat: str = "none",
    backend: str | None = None,
    implementation: str | None = None,
) -> Functions:
    """Returns the decoder as `base.Functions`.

    Args:
      config: its shape.
      compute_dtype: type of activations and of weights where they are multiplied;
        the parameters themselves keep theirs.
      remat: what the backward pass recomputes: `none` keeps every activation,
        `full` keeps the input of each layer, `dots` keeps the projections too.
      backend: what the programs are for, `cpu`, `gpu` or `tpu`, which decides how the
        cache lies and which attention is used; None is where they run.
      implementation: of `jax.nn.dot_product_attention`, `xla` or `cudnn`; None is the
        fastest that takes the type and the heads.
    """
    dtype = jnp.dtype(compute_dtype)
    if remat not in REMAT:
        raise ValueError(f"remat={remat!r} must be one of {REMAT}")

    def kernel() -> str | None:
        where = backend or jax.default_backend()
        return implementation or attention.kernel(where, dtype, config.head_dim)

    def layout() -> attention.Layout:
        return attention.layout(backend or jax.default_backend(), kernel())

    def hidden(
        params: Params,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        segments: Int[Array, "B T"],
    ) -> Float[Array, "B T D"]:
        rotate = rotary(config, positions)
        attend = attention.within(segments, kernel())

        def layer_step(x, layer):
            return _block(config, _cast(layer, dtype), x, rotate, attend)[0], None

        if remat != "none":
            dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            layer_step = jax.checkpoint(
                layer_step,
                policy=dots if remat == "dots" else None,
                prevent_cse=False,  # scan already keeps the two passes apart
            )
        x = params["embed"][tokens].astype(dtype)
        x, _ = jax.lax.scan(layer_step, x, params["layers"])
        return rms_norm(x, params["final_norm"], epsilon=config.norm_epsilon)

    def unembed(params: Params) -> Float[Array, "D V"]:
        return _head(params).astype(dtype)

    def prefill(
        params: Params,
        tokens: Int[Array, "B T"],
        length: Int[Array, "B"],
        cache_length: int,
    ) -> tuple[Float[Array, "B D"], Cache]:
        width = tokens.shape[1]
        if cache_length < width:
            raise ValueError(
                f"cache_length={cache_length} must be at least the {width} tokens of "
                "the padded prompts; raise it"
            )
        place = jnp.broadcast_to(jnp.arange(width)[None], tokens.shape)
        rotate, attend = rotary(config, place), attention.causal(kernel())
        store = layout().store
        x = params["embed"][tokens].astype(dtype)
        cache = []
        for layer in params["layers"]:
            x, (key, value) = _block(config, layer, x, rotate, attend)
            cache.append(store(key, value, cache_length))
        last = jnp.take_along_axis(x, (length - 1)[:, None, None], axis=1)[:, 0]
        out = rms_norm(last, params["final_norm"], epsilon=config.norm_epsilon)
        return out, tuple(cache)

    def decode(
        params: Params,
        tokens: Int[Array, "B"],
        positions: Int[Array, "B"],
        cache: Cache,
        shared: attention.Shared | None = None,
    ) -> tuple[Float[Array, "B D"], Cache]:
        rotate, over = rotary(config, positions[:, None]), layout().attend
        x = params["embed"][tokens[:, None]].astype(dtype)
        grown = []
        for layer, old in zip(params["layers"], cache, strict=True):
            attend = functools.partial(
                over, positions=positions, cache=old, shared=shared
            )
            x, new = _block(config, layer, x, rotate, attend)
            grown.append(new)
        out = rms_norm(x[:, 0], params["final_norm"], epsilon=config.norm_epsilon)
        return out, tuple(grown)

    def decode_alike(params, tokens, positions, cache, *, group, columns):
        shared = attention.Shared(group, columns)
        return decode(params, tokens, positions, cache, shared)

    def decode_layout(params: Params) -> Params:
        stacked = _cast(params["layers"], dtype)
        layers = tuple(
            _fuse(config, {k: v[i] for k, v in stacked.items()})
            for i in range(config.num_layers)
        )
        rest = {k: v for k, v in params.items() if k != "layers"}
        # A tied head is stored a second time, in the order it is multiplied in.
        head = _head(params).astype(dtype)
        return {**_cast(rest, dtype), "head": head, "layers": layers}

    exact = _exact if dtype == jnp.float32 else lambda function: function
    return Functions(
        hidden=exact(hidden),
        unembed=unembed,
        prefill=exact(prefill),
        decode=exact(decode),
        decode_layout=decode_layout,
        decode_alike=exact(decode_alike),
        cache_axes=lambda: layout().axes,
    )


def _exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """Products of float32 as float32: accelerators by default take fewer digits."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return wrapped


def _fuse(config: ModelConfig, layer: Layer) -> Layer:
    # Grouped by key-value head, so that a mesh that splits heads splits this too.
    kv, group = config.num_kv_heads, config.num_heads // config.num_kv_heads

    def by_group(q: Array, k: Array, v: Array) -> Array:
        q = q.reshape((*q.shape[:-2], kv, group, config.head_dim))
        return jnp.concatenate((q, k[..., None, :], v[..., None, :]), axis=-2)

    apart = {"q", "k", "v", "q_bias", "k_bias", "v_bias", "gate", "up"}
    fused = {k: v for k, v in layer.items() if k not in apart}
    fused["qkv"] = by_group(layer["q"], layer["k"], layer["v"])
    if config.qkv_bias:
        biases = layer["q_bias"], layer["k_bias"], layer["v_bias"]
        fused["qkv_bias"] = by_group(*biases)
    fused["gate_up"] = jnp.stack((layer["gate"], layer["up"]), axis=1)
    return fused


def segment_positions(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Counts tokens from the start of each run of equal segment numbers."""
    index = jnp.broadcast_to(jnp.arange(segments.shape[1])[None], segments.shape)
    starts = segments[:, 1:] != segments[:, :-1]
    starts = jnp.pad(starts, ((0, 0), (1, 0)), constant_values=True)
    return index - jax.lax.cummax(jnp.where(starts, index, 0), axis=1)


def logits(
    params: Params,
    config: ModelConfig,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"] | None = None,
    segments: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T V"]:
    """Returns next-token logits in float32, for inspection: training never forms them.

    Args:
      params: as `init` and `load` make them.
      config: the decoder's shape.
      tokens: right-padded or packed ids.
      positions: rotary positions; counted within each segment by default.
      segments: which tokens see each other; 0 is padding; one segment by default.
    """
    model = functions(config)
    tokens = jnp.asarray(tokens)
    segments = jnp.ones_like(tokens) if segments is None else jnp.asarray(segments)
    if positions is None:
        positions = segment_positions(segments)
    out = model.hidden(params, tokens, jnp.asarray(positions), segments)
    return jnp.einsum(
        "btd,dv->btv", out, model.unembed(params), preferred_element_type=jnp.float32
    )
