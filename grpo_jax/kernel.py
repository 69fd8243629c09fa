"""The time of a fixed kernel, before and after a run: whether the machine has changed.

It is timed outside every budget.
"""

import functools
import pathlib
import time

import jax
import jax.numpy as jnp

from budgets import jsonl

_SIZE, _CHAIN, _TIMES = 256, 16, 12


@functools.partial(jax.jit, static_argnums=1)
def _products(x: jax.Array, chain: int) -> jax.Array:
    for _ in range(chain):
        x = jnp.tanh(x @ x)
    return x


def measure() -> float:
    """Returns seconds of the kernel: the least of a few, as others may disturb it."""
    x = jnp.full((_SIZE, _SIZE), 1 / _SIZE, jnp.float32)
    _products(x, _CHAIN).block_until_ready()
    found = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        _products(x, _CHAIN).block_until_ready()
        found.append(time.perf_counter() - start)
    return min(found)


def note(directory: pathlib.Path, when: str) -> None:
    """Adds a measurement to `kernel.jsonl`; `when` is `before` or `after`."""
    jsonl.append(directory / "kernel.jsonl", {"when": when, "seconds": measure()})
