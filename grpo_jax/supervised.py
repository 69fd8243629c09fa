"""Next-token training on given completions, as one `Method`."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from grpo_jax import losses, objectives, selection
from grpo_jax.base import Batch, Feedback, Functions, Method, Problem, Rollout

# Prompt and completion ids of a problem with a solution; the latter with its stop.
Encode: TypeAlias = Callable[[Problem], tuple[Sequence[int], Sequence[int]]]


def next_token(
    functions: Functions,
    *,
    encode: Encode,
    sequences_per_update: int,
    width: int,
    chunk_size: int = 128,
    reduce: objectives.Reduce = losses.per_token,
) -> Method:
    """Next-token loss on given completions; samples, scores and verifies nothing.

    Args:
      functions: the policy.
      encode: gives the ids of a problem; every completion id is trained on, so its
        stop token must be among them.
      sequences_per_update: problems drawn uniformly for each update.
      width: tokens that every row is padded to.
      chunk_size: positions whose logits exist at once.
      reduce: the denominator, of `losses`.

    Returns:
      The method. Its feedback has reward 0 for every sequence.
    """

    def generate(services, params, frozen, prompts, key):
        del services, params, frozen, key
        return given([(p.id, *encode(p)) for p in prompts], width=width)

    def assign(services, params, frozen, rollout, prompts, key):
        del services, params, frozen, prompts, key
        rows = rollout.tokens.shape[0]
        feedback = Feedback(
            reward=np.zeros(rows, np.float32),
            error=np.zeros(rows, bool),
            answers=(None,) * rows,
        )
        zero = jnp.zeros(rollout.tokens.shape, jnp.float32)
        batch = Batch(rollout=rollout, advantage=zero, mask=rollout.sampled, targets={})
        return batch, feedback

    def objective(params, batch, frozen):
        del frozen
        logp, entropy = objectives.read(
            functions,
            params,
            batch.rollout,
            mask=batch.mask,
            packed=batch.packed,
            chunk_size=chunk_size,
        )
        metrics = {"entropy": losses.per_token(entropy, batch.mask)}
        return reduce(-logp, batch.mask), metrics

    selector = selection.uniform(sequences_per_update)
    return Method(
        init=selector.init,
        select=selector.select,
        generate=generate,
        credit=assign,
        observe=selector.observe,
        objective=objective,
    )


def given(
    sequences: Sequence[tuple[str, Sequence[int], Sequence[int]]], *, width: int
) -> Rollout:
    """Lays out (id, prompt, completion) as if the completions had been sampled.

    The log-probabilities of a policy that sampled them do not exist and are 0.
    """
    rows = len(sequences)
    tokens = np.zeros((rows, width), np.int32)
    prompt_length, length = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    for i, (name, prompt, completion) in enumerate(sequences):
        ids = [*prompt, *completion]
        if not prompt or not completion or len(ids) > width:
            raise ValueError(
                f"problem {name!r} has {len(prompt)} prompt and {len(completion)} "
                f"completion tokens; both need at least 1, together at most "
                f"width={width}: raise width or drop the problem"
            )
        tokens[i, : len(ids)] = ids
        prompt_length[i], length[i] = len(prompt), len(ids)
    column = np.arange(width)[None, :]
    sampled = (column >= prompt_length[:, None]) & (column < length[:, None])
    return Rollout(
        tokens=jnp.asarray(tokens),
        sampled=jnp.asarray(sampled),
        logp=jnp.zeros((rows, width), jnp.float32),
        prompt_length=jnp.asarray(prompt_length),
        length=jnp.asarray(length),
        truncated=jnp.zeros((rows,), bool),
    )
