"""The least time that work can take on a machine, from two things measured on it.

Floors are in device-seconds, as the ledger is. They count what any implementation must
do: read the weights and the cache once a decode step, and multiply by every parameter
that a token meets. Attention's products, sampling, norms and the optimiser are left
out, so a floor is never above the truth.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from budgets import flops

BANDWIDTH_BYTES = 1 << 28  # beyond the caches of a processor
WEIGHT_BYTES = 1 << 28  # the same, for the weights of a decode step
LARGE_ROWS = 4096  # of a product that no machine is too wide for
REPEATS = 4  # the best is taken: noise only adds


class Machine(NamedTuple):
    """What one device does at best.

    Attributes:
      bandwidth: bytes read from memory per second.
      decode_rate: FLOPs per second of products with as few rows as a decode step has,
        their weights read from memory.
      matmul_rate: FLOPs per second of products with many rows.
      rows: rows that `decode_rate` was measured with.
    """

    bandwidth: float
    decode_rate: float
    matmul_rate: float
    rows: int


def decode_step(
    *,
    weight_bytes: int | float,
    cache_bytes: int | float,
    parameters: int,
    rows: int,
    bandwidth: float,
    matmul_rate: float,
) -> float:
    """Returns the least seconds of one decode step.

    Args:
      weight_bytes: of all weights that a token meets, the output head included.
      cache_bytes: of the keys and values that the rows attend to.
      parameters: weights that a token meets.
      rows: sequences decoded together.
      bandwidth: bytes per second.
      matmul_rate: FLOPs per second.
    """
    reading = (weight_bytes + cache_bytes) / bandwidth
    return max(reading, 2 * parameters * rows / matmul_rate)


def prefill(*, parameters: int, tokens: int, matmul_rate: float) -> float:
    """Returns the least seconds in which `tokens` meet `parameters` once, forward."""
    return 2 * parameters * tokens / matmul_rate


def training(
    *, parameters: int, tokens: int, matmul_rate: float, rematerialised: bool = False
) -> float:
    """Returns the least seconds of a forward and backward pass.

    Args:
      parameters: weights that a token meets.
      tokens: real tokens.
      matmul_rate: FLOPs per second.
      rematerialised: whether the backward pass computes the whole forward again.
    """
    return (8 if rematerialised else 6) * parameters * tokens / matmul_rate


def rollout(
    shape: flops.ModelShape,
    machine: Machine,
    *,
    generated: int,
    prefilled: int,
    sequences: int,
    group: int,
    itemsize: int,
) -> float:
    """Returns the least seconds of sampling, prompts read and tokens drawn.

    The first token of a sequence comes from its prefill. The others take as few steps
    as the rows of the machine's decode step allow, each over the same share of the
    cache; sequences are taken to be equally long, which reads the least.

    Args:
      shape: the model.
      machine: as measured.
      generated: tokens sampled.
      prefilled: tokens of the prompts, each counted once for its group.
      sequences: how many were sampled.
      group: sequences that share a prompt.
      itemsize: bytes of a weight and of a cached number.
    """
    if not sequences:
        return 0.0
    block, head = flops.block_params(shape), shape.width * shape.vocab
    rows = min(machine.rows, sequences)
    steps = math.ceil(max(generated - sequences, 0) / rows)
    context = prefilled * group / sequences + generated / sequences / 2
    position = 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize
    step = decode_step(
        weight_bytes=(block + head) * itemsize,
        cache_bytes=rows * context * position,
        parameters=block + head,
        rows=rows,
        bandwidth=machine.bandwidth,
        matmul_rate=machine.decode_rate,
    )
    return (
        prefill(parameters=block, tokens=prefilled, matmul_rate=machine.matmul_rate)
        + prefill(
            parameters=head,
            tokens=sequences // group,
            matmul_rate=machine.matmul_rate,
        )
        + steps * step
    )


def measure(shape: flops.ModelShape, *, rows: int, dtype: str) -> Machine:
    """Measures the first device, in about a second; its memory is free again after.

    Args:
      shape: the model, for the sizes of the products.
      rows: sequences of a decode step.
      dtype: of the products.
    """
    size = shape.width * shape.ffw * jnp.dtype(dtype).itemsize
    layers = max(1, min(shape.layers, WEIGHT_BYTES // (2 * size)))
    return Machine(
        bandwidth=bandwidth(),
        decode_rate=matmul_rate(shape, rows=rows, layers=layers, dtype=dtype),
        matmul_rate=matmul_rate(shape, rows=LARGE_ROWS, layers=1, dtype=dtype),
        rows=rows,
    )


def bandwidth(num_bytes: int = BANDWIDTH_BYTES) -> float:
    """Measures bytes per second of a sum over an array that no cache holds."""
    numbers = jnp.ones((num_bytes // 4096, 1024), jnp.float32)
    return numbers.nbytes / _best(lambda: jnp.sum(numbers, axis=1))


def matmul_rate(
    shape: flops.ModelShape, *, rows: int, layers: int, dtype: str
) -> float:
    """Measures FLOPs per second of `[rows, width] x [width, ffw]` and back.

    Args:
      shape: gives width and ffw.
      rows: of the activations.
      layers: pairs of different weights, one after another, as a model has them.
      dtype: of activations and weights.
    """
    up = [_weights(shape.width, shape.ffw, dtype) for _ in range(layers)]
    down = [_weights(shape.ffw, shape.width, dtype) for _ in range(layers)]
    first = jnp.ones((rows, shape.width), dtype)
    each = 4 * rows * shape.width * shape.ffw * layers
    turns = max(1, min(16, int(2e10) // each))

    def turn(_: Any, hidden: jax.Array) -> jax.Array:
        for widen, narrow in zip(up, down, strict=True):
            hidden = (hidden @ widen) @ narrow
        return hidden

    # One program without `jit`: a loop is compiled whole wherever it is called, and
    # the same function object is compiled once.
    seconds = _best(lambda: jax.lax.fori_loop(0, turns, turn, first))
    return turns * each / seconds


def _weights(fan_in: int, fan_out: int, dtype: str) -> jax.Array:
    """Numbers as uneven as weights, since constant ones heat an accelerator less."""
    numbers = jnp.cos(jnp.arange(fan_in * fan_out, dtype=jnp.float32))
    scaled = numbers.reshape(fan_in, fan_out) * math.sqrt(2 / fan_in)
    return scaled.astype(dtype)


def _best(work: Callable[[], jax.Array]) -> float:
    """The least seconds of several calls, after one that compiles."""
    work().block_until_ready()
    best = math.inf
    for _ in range(REPEATS):
        start = time.perf_counter()
        work().block_until_ready()
        best = min(best, time.perf_counter() - start)
    return best
