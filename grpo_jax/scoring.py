"""Reading a rollout with given weights: the forward pass of training, no gradient."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax import objectives, packing, positions
from grpo_jax.base import Functions, Params, Rollout

WANTS = ("logp", "hidden", "top_k")


class TopK(NamedTuple):
    """The likeliest tokens at each place of a rollout, and what they leave.

    Attributes:
      ids: `[B, T, k] int32` the likeliest first.
      logp: `[B, T, k] float32` their log-probabilities, in nats.
      tail: `[B, T] float32` log of the mass of all others; -inf where k is V.
    """

    ids: jax.Array
    logp: jax.Array
    tail: jax.Array


def check(want: str, k: int) -> None:
    """Refuses what a score cannot mean, in one line."""
    if want not in WANTS:
        raise ValueError(
            f"score wants {want!r}, which is not built; ask for one of"
            f" {', '.join(map(repr, WANTS))}"
        )
    if (want == "top_k") != (k > 0):
        raise ValueError(
            f"k={k} with want={want!r}: top_k needs k of at least 1, and nothing else"
            " reads it; change one of them"
        )


def score(
    plan: packing.Plan,
    params: Params,
    rollout: Rollout,
    *,
    functions: Functions,
    want: str = "logp",
    k: int = 0,
    temperature: float = 1.0,
    chunk_size: int = 128,
) -> Any:
    """What a model says of the tokens of a rollout, part by part to bound memory.

    Entry t of a row belongs to its token t: it is read from the state before it.

    Args:
      plan: the parts.
      params: the model's parameters.
      rollout: what to read.
      functions: the model.
      want: `logp`, `hidden` or `top_k`.
      k: tokens kept of each distribution; for `top_k`.
      temperature: of the distributions; hidden states have none.
      chunk_size: see `objectives.read`.

    Returns:
      `[B, T]` log-probabilities in nats, float32; or `[B, T, D]` the final hidden
      states that predict each token, in the compute type; or `TopK`. Entries are of
      the sampled tokens. Elsewhere log-probabilities are 0, the rest unspecified.
    """
    columns = rollout.tokens.shape[1]

    def of_part(number: jax.Array) -> Any:
        some, place = (
            packing.rollout(rollout, plan, number),
            packing.place(plan, number),
        )
        if want == "logp":
            return objectives.read(
                functions,
                params,
                some,
                packed=place,
                temperature=temperature,
                chunk_size=chunk_size,
            )[0]
        laid = objectives.through(functions, params, some, place, some.sampled)
        cells: Any = laid[0]
        if want == "top_k":
            hidden, head, _, read = laid
            cells = TopK(
                *positions.top_k(
                    hidden,
                    head,
                    read,
                    k=k,
                    temperature=temperature,
                    chunk_size=chunk_size,
                )
            )
        lift = functools.partial(packing.lift, place, columns=columns)
        return jax.tree.map(lift, cells)

    blank = jax.tree.map(
        lambda x: jnp.zeros((*rollout.tokens.shape, *x.shape[2:]), x.dtype),
        jax.eval_shape(of_part, jax.ShapeDtypeStruct((), jnp.int32)),
    )

    def body(number, out):
        return jax.tree.map(
            functools.partial(packing.put_back, plan, number), out, of_part(number)
        )

    return jax.lax.fori_loop(0, jnp.asarray(plan.count), body, blank)
