"""Sampling completions of tokenised prompts, and continuing them.

The engine knows token ids and lengths, not text. Masks come from sampling, never
from comparing ids with a pad id, which may equal the end of sequence or be absent.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from grpo_jax import engine, models, slots
from grpo_jax.base import Functions, Params, Rollout
from grpo_jax.decoding import Decoding
from grpo_jax.engine import Engine, Geometry
from grpo_jax.requests import Request, Result

SLOTS = 256  # sequences that decode together where nobody says how many


def generate(
    params: Params,
    config: "models.ModelConfig",
    prompts: Sequence[Sequence[int]],
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
      ValueError: for no prompt, an empty one, ids that the model does not have, more
        tokens than it has positions, or options out of range.
      FloatingPointError: the model's logits are not finite.
    """
    prompts = as_ids(prompts)
    _check_model(prompts, max_new_tokens, config)
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
    prompts: Sequence[Sequence[int]],
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
    prompts = as_ids(prompts)
    check(prompts, num_samples, max_new_tokens, temperature, top_k, top_p, min_p)
    width = max(len(p) for p in prompts)
    made = _engine(
        functions,
        geometry(
            widths=(width,),
            max_new_tokens=max_new_tokens,
            sequences=len(prompts) * num_samples,
            num_samples=num_samples,
        ),
    )
    asked = of_prompts(prompts, num_samples=num_samples, limit=max_new_tokens)
    result = slots.run(
        made,
        made.layout(params),
        asked,
        stops(stop_ids),
        decoding(temperature, top_k, top_p, min_p),
        key,
    )
    return assemble(asked, result, stop_ids, width=width + max_new_tokens)


@functools.lru_cache(maxsize=16)
def _engine(functions: Functions, sizes: Geometry) -> Engine:
    """The same programs for the same sizes."""
    return Engine(functions, sizes)


def geometry(
    *,
    widths: Sequence[int],
    max_new_tokens: int,
    sequences: int,
    num_samples: int,
    num_slots: int = 0,
    mesh: Mesh | None = None,
) -> Geometry:
    """Returns the sizes of an engine.

    Args:
      widths: what prompts are padded to; the last holds the longest.
      max_new_tokens: most tokens of a completion.
      sequences: of one call, as many as are usual.
      num_samples: completions of a prompt.
      num_slots: sequences that decode together; 0 is all of a call, up to 256.
      mesh: devices; None is one.
    """
    columns = widths[-1] + max_new_tokens
    shards = engine.shards(mesh)
    together = num_slots or min(sequences, SLOTS)
    together = -(-together // shards) * shards
    return Geometry(
        slots=together,
        group=math.gcd(together // shards, num_samples),
        columns=columns,
        widths=tuple(widths),
        # As many prompts as fill the slots once.
        rows=max(1, together // num_samples),
        mesh=mesh,
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


def of_prompts(
    prompts: Sequence[Sequence[int]],
    *,
    num_samples: int,
    limit: int,
    first: int = 0,
) -> list[Request]:
    """Returns the requests of a set of prompts, prompt-major; see `slots.Request`.

    Args:
      prompts: token ids.
      num_samples: completions of each.
      limit: most tokens of a completion.
      first: coordinate of the first prompt in every key.
    """
    return [
        Request(p * num_samples + g, prompt, limit, first + p, g)
        for p, prompt in enumerate(prompts)
        for g in range(num_samples)
    ]


def assemble(
    asked: Sequence[Request],
    result: Result,
    stop_ids: Sequence[int] | np.ndarray,
    *,
    width: int,
) -> Rollout:
    """Lays sequences out as a rollout of `width` columns."""
    shape = len(asked), width
    tokens, logp = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    start, length = np.zeros(len(asked), np.int32), np.zeros(len(asked), np.int32)
    cut, ends = np.zeros(len(asked), bool), set(np.asarray(stop_ids).tolist())
    for request in asked:
        row, prefix, new = request.row, request.prefix, result.tokens[request.row]
        start[row], length[row] = len(prefix), len(prefix) + len(new)
        tokens[row, : start[row]] = prefix
        tokens[row, start[row] : length[row]] = new
        logp[row, start[row] : length[row]] = result.logp[row]
        cut[row] = bool(new) and new[-1] not in ends
    column = np.arange(width)[None]
    sampled = (column >= start[:, None]) & (column < length[:, None])
    laid = Rollout(
        tokens=tokens,  # pyright: ignore
        sampled=sampled,  # pyright: ignore
        logp=logp,  # pyright: ignore
        prompt_length=start,  # pyright: ignore
        length=length,  # pyright: ignore
        truncated=cut,  # pyright: ignore
    )
    return jax.device_put(laid)  # a transfer: a new number of rows compiles nothing


def as_ids(prompts: Any) -> list[list[int]]:
    """Returns prompts as lists of ids; arrays of them are taken too."""
    out = []
    for i, prompt in enumerate(prompts):
        ids = np.asarray(prompt)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(
                f"prompt {i} is {str(prompt)[:40]!r}; a prompt is a list of token ids:"
                " encode text with a tokenizer, and put one prompt in a list"
            )
        out.append(ids.astype(np.int64).tolist())
    return out


def _check_model(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, config: models.ModelConfig
) -> None:
    """Refuses ids and lengths that the model does not have."""
    ids = [token for prompt in prompts for token in prompt]
    wrong = [token for token in ids if not 0 <= token < config.vocab_size]
    if wrong:
        raise ValueError(
            f"token id {wrong[0]} is none of the model's {config.vocab_size}; encode"
            " prompts with its own tokenizer"
        )
    longest = max((len(prompt) for prompt in prompts), default=0)
    if longest + max_new_tokens > config.max_positions:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens={max_new_tokens} exceed"
            f" the {config.max_positions} positions of the model; lower max_new_tokens"
        )


def check(prompts, num_samples, max_new_tokens, temperature, top_k, top_p, min_p):
    """Refuses what the engine cannot mean, in one line each."""
    if not prompts:
        raise ValueError("there is no prompt; give at least one")
    if not all(len(p) for p in prompts):
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
