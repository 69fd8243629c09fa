"""A user's own Flax NNX module as the functions the rest of the code reads."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from grpo_jax.base import Functions, Params

OWN = ("prefill", "decode")


def from_nnx(module: nnx.Module) -> tuple[Functions, Params]:
    """Splits a module once into pure functions and its parameters, a nested dict.

    The module offers `hidden(tokens, positions, segments) -> [B, T, D]`, causal within
    a segment, and `unembed() -> [D, V]`. If it also offers both
    `prefill(tokens, length, cache_length) -> ([B, D], cache)` and
    `decode(tokens, positions, cache) -> ([B, D], cache)`, they are used; otherwise
    the cache is the tokens so far and each step runs `hidden` again: correct, slow.

    Raises:
      ValueError: a method is missing, has the wrong shape, or the module holds state
        other than `nnx.Param`.
    """
    lacking = [n for n in ("hidden", "unembed") if not callable(_method(module, n))]
    if lacking:
        raise ValueError(
            f"{type(module).__name__} lacks {lacking}; define "
            "hidden(tokens, positions, segments) -> [B, T, D] and unembed() -> [D, V]"
        )
    graph, state, rest = nnx.split(module, nnx.Param, ...)
    held = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(rest)]
    if held:
        raise ValueError(
            f"{type(module).__name__} holds state that is no nnx.Param: {held}; make "
            "it a parameter or remove it (dropout is not supported)"
        )
    empty = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    params = nnx.to_pure_dict(state)

    def call(name: str, params: Params, *arguments: Any) -> Any:
        filled = jax.tree.map(lambda x: x, empty)  # replaced in place: take a copy
        nnx.replace_by_pure_dict(filled, params)
        return getattr(nnx.merge(graph, filled), name)(*arguments)

    def hidden(params, tokens, positions, segments):
        return call("hidden", params, tokens, positions, segments)

    def unembed(params):
        return call("unembed", params)

    _check_shapes(type(module).__name__, hidden, unembed, params)
    prefill, decode = without_cache(hidden)
    own = [n for n in OWN if callable(_method(module, n))]
    if len(own) == 1:
        raise ValueError(
            f"{type(module).__name__} has {own[0]} but not both of {list(OWN)}; "
            "define both or neither"
        )
    if own:

        def prefill(params, tokens, length, cache_length):
            return call("prefill", params, tokens, length, cache_length)

        def decode(params, tokens, positions, cache):
            return call("decode", params, tokens, positions, cache)

    return Functions(hidden, unembed, prefill, decode, lambda params: params), params


def _method(module: nnx.Module, name: str) -> Any:
    return getattr(type(module), name, None)


def _check_shapes(name: str, hidden: Any, unembed: Any, params: Params) -> None:
    ids = jax.ShapeDtypeStruct((2, 3), jnp.int32)
    out = jax.eval_shape(hidden, params, ids, ids, ids)
    table = jax.eval_shape(unembed, params)
    width = table.shape[0] if len(table.shape) == 2 else None
    if out.shape != (2, 3, width):
        raise ValueError(
            f"{name}: hidden of [2, 3] tokens is {list(out.shape)} and unembed() is "
            f"{list(table.shape)}; they must be [B, T, D] and [D, V]"
        )


def without_cache(hidden: Any) -> tuple[Any, Any]:
    """Returns `prefill` and `decode` whose cache is the token buffer `[B, length]`."""

    def last(params, tokens, positions):
        place = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
        segments = (place <= positions[:, None]).astype(jnp.int32)
        out = hidden(params, tokens, place, segments)
        return jnp.take_along_axis(out, positions[:, None, None], axis=1)[:, 0]

    def prefill(params, tokens, length, cache_length):
        if cache_length < tokens.shape[1]:
            raise ValueError(
                f"cache_length={cache_length} must be at least the {tokens.shape[1]} "
                "tokens of the padded prompts; raise it"
            )
        room = ((0, 0), (0, cache_length - tokens.shape[1]))
        return last(params, tokens, length - 1), jnp.pad(tokens, room)

    def decode(params, tokens, positions, cache):
        rows = jnp.arange(tokens.shape[0])
        cache = cache.at[rows, positions].set(tokens, mode="drop")
        # A row beyond the cache is idle: what it reads means nothing.
        return last(params, cache, jnp.minimum(positions, cache.shape[1] - 1)), cache

    return prefill, decode
