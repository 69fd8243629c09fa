"""Closed-form model FLOPs of a dense decoder, in exact Python integers.

One multiply-accumulate is 2 FLOPs, and only matrix products count: projections, the
output head, and queries against keys and weights against values for the positions
that a causal token really attends to. Left out are embedding look-ups (so a tied
head costs what an untied one does), norms, rotary embedding, softmax, sampling, the
optimiser and everything elementwise; padding, which utilisation shows instead; and
whatever rematerialisation computes again.
"""

import dataclasses
from collections.abc import Iterable
from typing import SupportsInt, TypeAlias

Lengths: TypeAlias = Iterable[SupportsInt]  # tokens of each sequence, numpy's included


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the cost of a dense decoder depends on.

    Attributes:
      layers: decoder blocks.
      width: size of the residual stream.
      heads: query heads.
      kv_heads: key-value heads.
      head_dim: size of a head.
      ffw: hidden width of the gated feed-forward layer.
      vocab: rows of the output head that are really multiplied.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffw: int
    vocab: int


def block_params(shape: ModelShape) -> int:
    """Returns the weights of all blocks that meet every token in a product."""
    attention = shape.width * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    return shape.layers * (attention + 3 * shape.width * shape.ffw)


def products(shape: ModelShape, *, tokens: int, heads: int, contexts: int) -> int:
    """Returns the FLOPs of a forward pass from what it multiplies.

    Args:
      shape: the model.
      tokens: positions that go through the blocks.
      heads: positions whose logits are computed.
      contexts: positions attended to, summed over tokens.
    """
    projections = 2 * block_params(shape) * tokens
    head = 2 * shape.width * shape.vocab * heads
    return (
        projections + head + 4 * shape.layers * shape.heads * shape.head_dim * contexts
    )


def prefill(shape: ModelShape, prompts: Lengths) -> int:
    """Returns the FLOPs of reading prompts of these lengths.

    The head counts for the last position of each only: the others predict nothing
    that is sampled.
    """
    lengths = [int(p) for p in prompts]
    return products(
        shape,
        tokens=sum(lengths),
        heads=sum(p > 0 for p in lengths),
        contexts=sum(map(_causal, lengths)),
    )


def decode(shape: ModelShape, prompts: Lengths, new: Lengths) -> int:
    """Returns the FLOPs of sampling `new` tokens after each prefilled prompt.

    The prefill gives the first token and the last is never read, so `n` sampled
    tokens are `n - 1` steps.
    """
    pairs = _pairs(prompts, new)
    steps = sum(max(n - 1, 0) for _, n in pairs)
    contexts = sum(_causal(p + n - 1) - _causal(p) for p, n in pairs if n > 0)
    return products(shape, tokens=steps, heads=steps, contexts=contexts)


def forked(shape: ModelShape, prefixes: Lengths, new: Lengths) -> int:
    """Returns the FLOPs of sampling `new` tokens after a prefix that a cache holds.

    No prefill gives the first token: its step reads the last token of the prefix.
    """
    pairs = [(p, n) for p, n in _pairs(prefixes, new) if n > 0]
    steps = sum(n for _, n in pairs)
    contexts = sum(_causal(p + n - 1) - _causal(p - 1) for p, n in pairs)
    return products(shape, tokens=steps, heads=steps, contexts=contexts)


def rollout(shape: ModelShape, prompts: Lengths, new: Lengths) -> int:
    """Returns the FLOPs of sampling groups, each prompt prefilled once.

    Args:
      shape: the model.
      prompts: one prompt length per group.
      new: sampled tokens of every sequence, prompt-major.
    """
    lengths, sampled = [int(p) for p in prompts], [int(n) for n in new]
    if not lengths or len(sampled) % len(lengths):
        raise ValueError(
            f"{len(sampled)} sequences must be a multiple of {len(lengths)} prompts"
        )
    group = len(sampled) // len(lengths)
    repeated = [p for p in lengths for _ in range(group)]
    return prefill(shape, lengths) + decode(shape, repeated, sampled)


def score(shape: ModelShape, lengths: Lengths, *, heads: int | None = None) -> int:
    """Returns the FLOPs of a forward pass over whole sequences.

    Args:
      shape: the model.
      lengths: tokens of each sequence, prompt and completion together.
      heads: positions of all sequences whose logits are needed, such as the sampled
        ones; None is every real position.
    """
    whole = [int(n) for n in lengths]
    contexts = sum(map(_causal, whole))
    heads = sum(whole) if heads is None else heads
    return products(shape, tokens=sum(whole), heads=heads, contexts=contexts)


def train(shape: ModelShape, lengths: Lengths, *, heads: int | None = None) -> int:
    """Returns the FLOPs of one forward and backward pass: three forwards.

    The backward pass multiplies twice per product, for inputs and for weights. The
    forward that full rematerialisation repeats is no model FLOP and is left out.
    """
    return 3 * score(shape, lengths, heads=heads)


def _causal(length: int) -> int:
    """Positions attended to by `length` tokens from the start: 1 + 2 + ..."""
    return length * (length + 1) // 2


def _pairs(prompts: Lengths, new: Lengths) -> list[tuple[int, int]]:
    return [(int(p), int(n)) for p, n in zip(prompts, new, strict=True)]
