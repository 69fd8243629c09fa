"""What a GPU reaches of its own memory bandwidth and matrix rate, in six minutes.

A randomly initialised model of Qwen2.5-1.5B's shape in bfloat16:

- a decode step at batch 64: bytes of weights and cache it must read, over its time, as
  a share of measured bandwidth (aim 65 %);
- an update's optimiser step, with float32 master weights and AdamW: model FLOPs over
  time, as a share of the measured bfloat16 matrix rate (aim 45 %);
- forks against plain rollouts, as `forks` measures them;
- attention by cuDNN and by XLA against a float64 loop, with their gradients.

From the root of a checkout: `python -m tests.benchmarks.gpu`. With `--cpu` it runs on a
processor, everything tiny: that the script works is then all that it shows.
"""

import argparse
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from budgets import flops
from budgets.labels import Labels
from budgets.ledger import Ledger
from grpo_jax import (
    books,
    build,
    config,
    floors,
    keys,
    learner,
    models,
    resident,
    rollout,
    setup,
    states,
    supervised,
)
from grpo_jax.base import Batch, Params
from grpo_jax.compilations import Watch
from tests.benchmarks import attention_check, common, forks
from tests.benchmarks.common import Figure
from tests.benchmarks.rollout import check_count, sampler

QWEN = models.ModelConfig(
    family="qwen2",
    qkv_bias=True,
    vocab_size=151_936,
    width=1536,
    ffw=8960,
    num_layers=28,
    num_heads=12,
    num_kv_heads=2,
    head_dim=128,
    tied=True,
)


def step_bytes(shape: flops.ModelShape, *, rows: int, context: float) -> float:
    """Returns what a decode step must read, of two bytes a number.

    Args:
      shape: the model.
      rows: sequences.
      context: mean positions that a row attends to.
    """
    weights = flops.block_params(shape) + shape.width * shape.vocab
    position = 2 * shape.layers * shape.kv_heads * shape.head_dim
    return 2 * (weights + rows * context * position)


def decode(
    model: models.ModelConfig, params: Params, rate: float, *, rows: int, new: int
) -> Figure:
    """Measures a decode step as the difference of two rollouts, prefill taken out."""
    width, samples = 64, 8
    functions = models.functions(model, compute_dtype="bfloat16")
    how = sampler(prompts=rows // samples, samples=samples, width=width, new=new)
    held = resident.Resident(functions, how)
    ids = common.random_prompts(rows // samples, width, model.vocab_size)

    def run(limit: int) -> None:
        asked = rollout.of_prompts(ids, num_samples=samples, limit=limit)
        out, _ = held.sample(params, asked, keys.root(1))
        check_count(out, rows * limit)

    short = new // 4
    works = {"short": lambda: run(short), "long": lambda: run(new)}
    spent = common.in_turns(works, 3)
    each = (spent["long"] - spent["short"]) / (new - short)
    shape, middle = build.model_shape(model), width + (short + new) / 2
    moved = step_bytes(shape, rows=rows, context=middle)
    what = f"decode at batch {rows}, of bandwidth ({each * 1e3:.2f} ms a step)"
    return common.share(what, moved / each / 1e9, rate / 1e9, "GB/s", 0.65)


def train(
    model: models.ModelConfig,
    params: Params,
    rate: float,
    *,
    rows: int,
    length: int,
    steps: int,
) -> Figure:
    """Measures optimiser steps of the learner on rows of equal length.

    Args:
      model: the shape.
      params: float32; consumed.
      rate: measured FLOPs per second.
      rows: sequences of an update.
      length: tokens of each, a quarter of them prompt.
      steps: timed, after one that compiles.
    """
    prompt = length // 4
    wanted = config.from_table(
        {
            "sampling": {"max_new_tokens": length - prompt},
            "task": {"num_train": 16, "num_eval": 4},
            "optimizer": {"microbatches": rows // 4},
        }
    )
    functions = models.functions(model, compute_dtype="bfloat16", remat="dots")
    shape = build.model_shape(model)
    parts = setup.prepare(wanted)._replace(
        model=model, functions=functions, shape=shape
    )
    watch, tx = Watch(), build.optimizer(wanted)
    meter = books.make_meter(parts, Ledger(), watch, Labels())
    learn = learner.learner(
        objective=build.method(wanted, functions, None, parts.tokenizer).objective,
        tx=tx,
        meter=meter,
        shape=shape,
        microbatches=wanted.optimizer.microbatches,
    )
    ids = common.random_prompts(rows, length, model.vocab_size)
    drawn = supervised.given(
        [(str(i), row[:prompt], row[prompt:]) for i, row in enumerate(ids)],
        width=length,
    )
    sign = jnp.asarray(np.where(np.arange(rows) % 2, 1.0, -1.0), jnp.float32)
    advantage = jnp.broadcast_to(sign[:, None], drawn.tokens.shape)
    batch = Batch(rollout=drawn, advantage=advantage, mask=drawn.sampled, targets={})
    state, taken = states.first(parts, params, tx), []
    for number in range(1 + steps):
        meter.begin(number)
        start = time.perf_counter()
        state, _ = learn(state, batch, {}, keys.root(number))
        taken.append(time.perf_counter() - start)
    watch.close()
    heads = rows * (length - prompt)
    done = flops.train(shape, [length] * rows, heads=heads) / min(taken[1:])
    what = f"train step, {rows} x {length} tokens, of matrix rate"
    what += f" ({min(taken[1:]):.3f} s)"
    return common.share(what, done / 1e12, rate / 1e12, "TFLOP/s", 0.45)


def attention(size: dict[str, int], *, gpu: bool) -> list[Figure]:
    """Returns the largest differences of the kernels from the loop and each other."""
    given = attention_check.inputs(**size)
    kernels = ["xla", "cudnn"] if gpu else ["xla"]
    found = {k: attention_check.values_and_gradients(given, k) for k in kernels}
    slow, most = attention_check.in_a_loop(given), attention_check.TOLERANCE
    pairs = [
        (f"{kernel} attention, gap to a loop", attention_check.gap(out[0], slow))
        for kernel, out in found.items()
    ]
    if gpu:
        gaps = map(attention_check.gap, found["cudnn"], found["xla"])
        names = ("values", "dq", "dk", "dv")
        pairs += [
            (f"cudnn against xla, {name}", far)
            for name, far in zip(names, gaps, strict=True)
        ]
    return [common.at_most(what, far, most, "", 1.0) for what, far in pairs]


def main(argv: Sequence[str] | None = None) -> list[Figure]:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="on a processor, tiny")
    small = parser.parse_args(argv).cpu
    if small:
        jax.config.update("jax_platforms", "cpu")
    elif jax.default_backend() != "gpu":
        raise SystemExit("no GPU is seen here; --cpu runs the script on a processor")
    begun = time.perf_counter()
    model = common.tiny_config(family="qwen2", qkv_bias=True) if small else QWEN
    memory = floors.bandwidth(1 << (20 if small else 31))
    matrix = floors.matmul_rate(
        build.model_shape(model), rows=floors.LARGE_ROWS, layers=1, dtype="bfloat16"
    )
    size = {"rows": 2, "length": 32 if small else 512, "heads": 4, "kv_heads": 2}
    figures = attention(size | {"dim": 8 if small else 128}, gpu=not small)
    params = common.random_params(model, dtype="bfloat16")
    figures.append(decode(model, params, memory, rows=64, new=16 if small else 256))
    figures += forks.measure(
        models.functions(model, compute_dtype="bfloat16"),
        params,
        common.random_prompts(8, 16 if small else 64, model.vocab_size),
        samples=8,
        new=16 if small else 128,
        inside=3,
        repeats=3,
    )
    del params
    figures.append(
        train(
            model,
            common.random_params(model),
            matrix,
            rows=8 if small else 32,
            length=16 if small else 1024,
            steps=1 if small else 3,
        )
    )
    common.report(
        "gpu",
        figures,
        model="random, tiny" if small else "random, of Qwen2.5-1.5B's shape",
        bandwidth_gb_s=memory / 1e9,
        matmul_tflop_s=matrix / 1e12,
        tiny=small,
        seconds=time.perf_counter() - begun,
    )
    return figures


if __name__ == "__main__":
    main()
