"""Time and memory of the output head and its gradient: chunked against direct.

Both give the log-probability of each token and the gradients of hidden states and
head. Direct holds the logits of all positions. From the root of a checkout:

    python -m tests.benchmarks.head [--tiny]
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import chunked, positions


class Measured(NamedTuple):
    """One form of the head.

    Attributes:
      seconds: median of the value and gradient.
      temporaries: bytes that the program allocates beside arguments and results.
      gradient: of states and head.
    """

    seconds: float
    temporaries: int
    gradient: tuple[np.ndarray, np.ndarray]


def direct(hidden, head, targets, slopes):
    """The loss from the logits of all positions."""
    logp = jax.nn.log_softmax(chunked.head_logits(hidden, head), axis=-1)
    picked = jnp.take_along_axis(logp, targets[:, None], axis=-1)[:, 0]
    return (slopes * picked).sum()


def in_chunks(hidden, head, targets, slopes, *, chunk_size):
    """The same from a chunk of logits at a time."""
    read = jnp.ones((1, len(targets)), bool)
    logp, _ = positions.logp_and_entropy(
        hidden[None], head, targets[None], read, chunk_size=chunk_size
    )
    return (slopes * logp[0]).sum()


def measure(
    forms: dict[str, Callable[..., jax.Array]],
    *,
    tokens: int,
    width: int,
    vocab: int,
    dtype: str,
    repeats: int,
) -> dict[str, Measured]:
    """Returns each form's figures; forms take turns, so that noise falls on all."""
    draw = np.random.default_rng(0)
    hidden = jnp.asarray(draw.normal(size=(tokens, width)), dtype)
    head = jnp.asarray(draw.normal(size=(width, vocab)) / width**0.5, dtype)
    targets = jnp.asarray(draw.integers(vocab, size=tokens), jnp.int32)
    slopes = jnp.asarray(draw.normal(size=tokens), jnp.float32)
    given = hidden, head, targets, slopes
    programs = {
        name: jax.jit(jax.value_and_grad(form, argnums=(0, 1))).lower(*given).compile()
        for name, form in forms.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    gradients = {}
    for turn in range(repeats + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            _, gradient = jax.block_until_ready(program(*given))
            if turn:  # the first touches memory for the first time
                seconds[name].append(time.perf_counter() - start)
            gradients[name] = tuple(np.asarray(x, np.float32) for x in gradient)
            del gradient
    return {
        name: Measured(
            statistics.median(seconds[name]),
            program.memory_analysis().temp_size_in_bytes,
            gradients[name],
        )
        for name, program in programs.items()
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Measured]:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="sizes of no use, quick")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    wanted = parser.parse_args(argv)
    forms = {
        "direct": direct,
        "chunked": functools.partial(in_chunks, chunk_size=wanted.chunk),
    }
    shape = {name: getattr(wanted, name) for name in ("tokens", "width", "vocab")}
    if wanted.tiny:
        shape = {"tokens": 24, "width": 8, "vocab": 50}
    found = measure(forms, **shape, dtype=wanted.dtype, repeats=wanted.repeats)
    base = found["direct"]
    print(f"{jax.default_backend()}, jax {jax.__version__}, {wanted.dtype}, {shape}")
    print(f"{'':8} {'seconds':>8} {'ratio':>6} {'MiB':>7} {'ratio':>6}")
    for name, row in found.items():
        print(
            f"{name:8} {row.seconds:8.3f} {row.seconds / base.seconds:6.2f}"
            f" {row.temporaries / 2**20:7.0f}"
            f" {row.temporaries / max(base.temporaries, 1):6.3f}"
        )
    return found


if __name__ == "__main__":
    main()
