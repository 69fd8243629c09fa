"""Sampling completions: one prefill per prompt, then decoding over a cache.

The engine knows token ids and lengths, not text. Masks come from sampling, never
from comparing ids with a pad id, which may equal the end of sequence or be absent.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Key

from grpo_jax import chunked, keys, models, sampling, truncation
from grpo_jax.base import Functions, Params, Rollout

Option: TypeAlias = float | int | np.generic | jax.Array


class Decoding(NamedTuple):
    """How a token is drawn from logits; traced values, so a change compiles nothing.

    Attributes:
      temperature: divides the logits; positive.
      top_k: how many tokens to keep; 0 keeps all.
      top_p: cumulative probability to keep; 1 keeps all.
      min_p: least probability relative to the likeliest token; 0 keeps all.
    """

    temperature: Option = 1.0
    top_k: Option = 0
    top_p: Option = 1.0
    min_p: Option = 0.0


class Requests(NamedTuple):
    """Prompts as arrays.

    Attributes:
      tokens: `[P, T0] int32` right-padded prompts.
      length: `[P] int32` tokens of each prompt, at least one.
      limit: `[P] int32` most tokens to sample after it; 0 for a padding row.
      number: `[P] int32` the prompt's coordinate in every key.
    """

    tokens: jax.Array | np.ndarray
    length: jax.Array | np.ndarray
    limit: jax.Array | np.ndarray
    number: jax.Array | np.ndarray


def generate(
    params: Params,
    config: "models.ModelConfig",
    prompts: list[list[int]],
    *,
    num_samples: int,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    key: Key[Array, ""],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Rollout:
    """Samples completions of tokenised prompts: the plain, unmetered engine call.

    Args:
      params: the model's parameters, as `models.load(...).params`.
      config: the model's configuration, as `models.load(...).config`.
      prompts: P prompts as token ids, none empty.
      num_samples: completions per prompt; they share one prefill.
      max_new_tokens: most tokens to sample per completion.
      stop_ids: any of these ends a completion and is kept in it.
      key: consumed; completion g of prompt p depends on (key, p, g) and the prompt,
        not on the other prompts.
      temperature: divides the logits; 0 takes the likeliest token.
      top_k: see `truncation.policy_logits`, as for `top_p` and `min_p`.
      top_p: 1 keeps all.
      min_p: 0 keeps all.

    Returns:
      P * num_samples rows, prompt-major.

    Raises:
      ValueError: for no prompt, an empty one, or options out of range.
    """
    return generate_with(
        _functions(config),
        params,
        prompts,
        num_samples=num_samples,
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        key=key,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
    )


def generate_with(
    functions: Functions,
    params: Params,
    prompts: list[list[int]],
    *,
    num_samples: int,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    key: Key[Array, ""],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Rollout:
    """`generate` with any model: its functions, as `models.from_nnx` makes them.

    A program is compiled for each value of `functions` and each shape of `prompts`:
    make the functions once.
    """
    check(prompts, num_samples, max_new_tokens, temperature, top_k, top_p, min_p)
    width = max(len(p) for p in prompts)
    return compiled(
        functions,
        params,
        requests(prompts, width=width, limits=[max_new_tokens] * len(prompts)),
        stops(stop_ids),
        decoding(temperature, top_k, top_p, min_p),
        key,
        num_samples=num_samples,
        max_new_tokens=max_new_tokens,
    )


@functools.lru_cache(maxsize=16)
def _functions(config: "models.ModelConfig") -> Functions:
    """The same closures for the same configuration, so that one program serves."""
    return models.functions(config)


def decoding(
    temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Decoding:
    """Returns traced options; temperature 0 becomes the likeliest token alone."""
    if temperature == 0:
        temperature, top_k = 1.0, 1
    return Decoding(
        np.float32(temperature), np.int32(top_k), np.float32(top_p), np.float32(min_p)
    )


def stops(stop_ids: Sequence[int]) -> np.ndarray:
    """Returns stop ids as an array; an id no vocabulary has stands for none."""
    return np.asarray(sorted(set(stop_ids)) or [-1], np.int32)


def requests(
    prompts: Sequence[Sequence[int]],
    *,
    width: int,
    limits: Sequence[int],
    rows: int | None = None,
    first: int = 0,
) -> Requests:
    """Pads prompts to `width` tokens and `rows` rows; padding rows sample nothing."""
    rows = rows or len(prompts)
    tokens = np.zeros((rows, width), np.int32)
    for row, prompt in zip(tokens, prompts, strict=False):
        row[: len(prompt)] = prompt
    length, limit = np.ones(rows, np.int32), np.zeros(rows, np.int32)
    length[: len(prompts)] = [len(p) for p in prompts]
    limit[: len(prompts)] = limits
    return Requests(tokens, length, limit, first + np.arange(rows, dtype=np.int32))


def check(prompts, num_samples, max_new_tokens, temperature, top_k, top_p, min_p):
    """Refuses what the engine cannot mean, in one line each."""
    if not prompts or not all(len(p) for p in prompts):
        raise ValueError("a prompt is empty: give each prompt at least one token id")
    for name, value, ok, rule in (
        ("num_samples", num_samples, num_samples >= 1, "at least 1"),
        ("max_new_tokens", max_new_tokens, max_new_tokens >= 1, "at least 1"),
        ("temperature", temperature, temperature >= 0, "0 (greedy) or positive"),
        ("top_k", top_k, top_k >= 0, "0 (off) or positive"),
        ("top_p", top_p, 0 < top_p <= 1, "above 0 and at most 1 (off)"),
        ("min_p", min_p, 0 <= min_p < 1, "0 (off) or below 1"),
    ):
        if not ok:
            raise ValueError(f"{name}={value} must be {rule}")


def sample(
    functions: Functions,
    params: Params,
    asked: Requests,
    stop_ids: Int[Array, "K"],
    how: Decoding,
    key: Key[Array, ""],
    *,
    num_samples: int,
    max_new_tokens: int,
    row_sharding: NamedSharding | None = None,
) -> Rollout:
    """Prefills each prompt once and decodes all of its samples together.

    Args:
      functions: the model.
      params: its parameters, in the layout of training.
      asked: P prompts.
      stop_ids: any of these ends a completion.
      how: temperature and truncation.
      key: consumed.
      num_samples: G completions per prompt.
      max_new_tokens: no limit of `asked` is above it.
      row_sharding: how the B = P * G rows lie on a mesh; None leaves it to XLA.

    Returns:
      B rows of T0 + max_new_tokens columns.
    """

    def spread(x):
        x = jnp.repeat(x, num_samples, axis=0)
        if row_sharding is None:
            return x
        # The other axes stay as the model cuts them: heads of a cache over `tensor`.
        free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
        spec = PartitionSpec(row_sharding.spec[0], *free)
        where = NamedSharding(row_sharding.mesh, spec)
        return jax.lax.with_sharding_constraint(x, where)

    tokens = jnp.asarray(asked.tokens)
    width = tokens.shape[1] + max_new_tokens
    layout, head = functions.decode_layout(params), functions.unembed(params)
    hidden, cache = functions.prefill(layout, tokens, jnp.asarray(asked.length), width)
    hidden, cache, start, limit, number = jax.tree.map(
        spread, (hidden, cache, asked.length, asked.limit, asked.number)
    )
    tokens = spread(jnp.pad(tokens, ((0, 0), (0, max_new_tokens))))
    rows = jnp.arange(tokens.shape[0])
    keys_b = keys.per_sequence(key, number, rows % num_samples)

    def draw(hidden, length):
        logits = chunked.head_logits(hidden.astype(head.dtype), head)
        # The options have no batch axis, so the branch inside stays a branch.
        shaped = jax.vmap(lambda row: truncation.policy_logits(row, **how._asdict()))
        return sampling.draw(keys.per_position(keys_b, length), shaped(logits))

    def put(state, drawn, lp):
        tokens, logp, length, live, stopped, _, cache = state
        # A finished row writes outside of the array, which drops the write.
        at = jnp.where(live, length, width)
        tokens = tokens.at[rows, at].set(drawn, mode="drop")
        logp = logp.at[rows, at].set(lp, mode="drop")
        length = length + live
        stopped = stopped | (live & (drawn[:, None] == stop_ids[None]).any(-1))
        live = live & ~stopped & (length < start + limit)
        return tokens, logp, length, live, stopped, drawn, cache

    def body(state):
        tokens, logp, length, live, stopped, last, cache = state
        hidden, cache = functions.decode(layout, last, length - 1, cache)
        return put(
            (tokens, logp, length, live, stopped, last, cache), *draw(hidden, length)
        )

    blank = jnp.zeros(tokens.shape, jnp.float32)
    dead = jnp.zeros(rows.shape, bool)
    state = (tokens, blank, start, limit > 0, dead, jnp.zeros_like(start), cache)
    state = put(state, *draw(hidden, start))
    state = jax.lax.while_loop(lambda s: s[3].any(), body, state)
    tokens, logp, length, _, stopped, _, _ = state
    columns = jnp.arange(width)[None]
    return Rollout(
        tokens=tokens,
        sampled=(columns >= start[:, None]) & (columns < length[:, None]),
        logp=logp,
        prompt_length=start,
        length=length,
        truncated=~stopped & (limit > 0),
    )


# Functions are static: a model's closures are made once per configuration.
compiled = jax.jit(
    sample,
    static_argnames=("functions", "num_samples", "max_new_tokens", "row_sharding"),
)
