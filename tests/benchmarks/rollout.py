"""Rollout throughput against other samplers, and against bare matrix products.

4 prompts of 64 random tokens x 8 samples, exactly 64 new tokens each at temperature 1,
prefill included, weights and memory in place as they are for the peers. What it costs
to lay new weights out, and memory to be touched anew, as after an update, is a row of
its own. The floor is the products of one prefill of the 4 prompts and of 64 decode
steps at batch 32, with the model's own weights: no attention, no norm, no sampling.
Peers sample 32 sequences of 64 tokens from 32 prompts. From the root of a checkout,
with the machine otherwise idle:

    python -m tests.benchmarks.rollout --peer-python trl=PATH --peer-python tunix=PATH
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from grpo_jax import keys, models, resident, rollout
from grpo_jax.base import Params, Rollout
from tests.benchmarks import common, peers
from tests.benchmarks.common import Figure


def sampler(
    *, prompts: int, samples: int, width: int, new: int, slots: int = 0
) -> resident.Sampler:
    """Returns how completions of a fixed length are sampled: nothing stops them."""
    return resident.Sampler(
        decoding=rollout.decoding(1.0),
        stop_ids=rollout.stops([]),
        geometry=rollout.geometry(
            widths=(width,),
            max_new_tokens=new,
            sequences=prompts * samples,
            num_samples=samples,
            num_slots=slots,
        ),
        max_new_tokens=new,
    )


def check_count(out: Rollout, tokens: int) -> None:
    """Refuses a rollout that did less than is counted."""
    found = int(np.asarray(out.sampled).sum())
    if found != tokens:
        raise SystemExit(f"sampled {found} tokens, not {tokens}: nothing to compare")


def floor(
    layout: Params, *, prompts: int, width: int, rows: int, steps: int
) -> Callable[[], Array]:
    """Returns the matrix products of a rollout, and nothing else, as one program.

    Each product reads all of the one before it, and each step the one before it, so
    that none can be left out or moved out of the loop.

    Args:
      layout: of `Functions.decode_layout`: fused products, as decoding has them.
      prompts: of the prefill.
      width: tokens of a prompt.
      rows: sequences of a decode step.
      steps: decode steps.
    """

    @jax.jit
    def program(layers, head, first):
        def through(x):
            for layer in layers:
                fused = jnp.einsum("nd,dkgh->nkgh", x, layer["qkv"])
                # All three parts of a fused product are needed by what follows.
                mixed = fused[..., :-2, :] + fused[..., -2:-1, :] + fused[..., -1:, :]
                out = layer["o"].reshape(-1, x.shape[-1])
                x = mixed.reshape(x.shape[0], -1) @ out
                both = jnp.einsum("nd,dcf->ncf", x, layer["gate_up"])
                x = (both[:, 0] + both[:, 1]) @ layer["down"]
                # No number may grow or vanish: the processor would be slower by it.
                x = x * jax.lax.rsqrt(jnp.mean(x * x) + 1e-6)
            return x

        def step(_, carry):
            x, _ = carry
            x = through(x)
            return x, x @ head

        read = through(jnp.broadcast_to(first, (prompts * width, first.shape[0])))
        start = jnp.broadcast_to(read.mean(0)[None], (rows, first.shape[0]))
        logits = jnp.zeros((rows, head.shape[1]), head.dtype)
        return jax.lax.fori_loop(0, steps, step, (start, logits))

    kept = ("qkv", "o", "gate_up", "down")
    layers = [{name: layer[name] for name in kept} for layer in layout["layers"]]
    first = jnp.linspace(-1.0, 1.0, layout["head"].shape[0], dtype=layout["head"].dtype)
    return functools.partial(program, layers, layout["head"], first)


def main(argv: Sequence[str] | None = None) -> list[Figure]:
    """Prints the table."""
    wanted = common.options(__doc__).parse_args(argv)
    prompts, samples, width, new = (2, 4, 8, 8) if wanted.tiny else (4, 8, 64, 64)
    model = common.subject(wanted)
    functions = models.functions(model.config)
    how = sampler(prompts=prompts, samples=samples, width=width, new=new)
    held = resident.Resident(functions, how)
    ids = common.random_prompts(prompts, width, model.config.vocab_size)
    asked = rollout.of_prompts(ids, num_samples=samples, limit=new)
    rows = len(asked)

    def ours():
        out, _ = held.sample(model.params, asked, keys.root(1))
        check_count(out, rows * new)

    def anew():
        held.release()  # as training does, whose weights are others after it
        ours()

    layout = jax.jit(functions.decode_layout)(model.params)
    bare = floor(layout, prompts=prompts, width=width, rows=rows, steps=new)
    others, found = peers.Peers(wanted, model.directory), {}

    def peer(label, name, script, *more):
        found[label] = others.run(name, script, rows, width, new, *more)

    jobs = {
        "transformers generate, fp32": ("hf", "hf_generate.py", "float32"),
        "transformers generate, bf16": ("hf", "hf_generate.py", "bfloat16"),
        "Tunix's sampler, fp32": ("tunix", "tunix_sampler.py"),
    }
    between = [functools.partial(peer, label, *job) for label, job in jobs.items()]
    works = {"anew": anew, "ours": ours, "floor": bare}
    spent = common.in_turns(works, wanted.repeats, between)

    least = dict(zip(jobs, (3.0, 2.0, 1.8), strict=True))
    rate = rows * new / spent["ours"]
    figures = [
        common.share(
            f"tokens/s against {label}", rate, got["tok_s"], "tok/s", least[label]
        )
        for label, got in found.items()
        if got is not None
    ]
    figures += [
        common.speedup("share of the matmul floor", spent["ours"], spent["floor"], 0.8),
        common.speedup(
            "the same, weights laid out anew", spent["anew"], spent["floor"]
        ),
    ]
    common.report("rollout", figures, model=model.name, others=others, tiny=wanted.tiny)
    return figures


if __name__ == "__main__":
    main()
