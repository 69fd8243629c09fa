import jax
import jax.numpy as jnp
import numpy as np
import pytest

from budgets import flops

SHAPE = flops.ModelShape(
    layers=2, width=128, heads=4, kv_heads=2, head_dim=32, ffw=256, vocab=384
)


def params(shape, tied):
    rng = np.random.default_rng(0)
    draw = lambda *size: jnp.asarray(rng.normal(size=size, scale=0.1), jnp.float32)
    d, q, k = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = lambda: {
        "q": draw(d, q),
        "k": draw(d, k),
        "v": draw(d, k),
        "o": draw(q, d),
        "gate": draw(d, shape.ffw),
        "up": draw(d, shape.ffw),
        "down": draw(shape.ffw, d),
    }
    tree = {"embed": draw(shape.vocab, d), "blocks": [block() for _ in range(2)]}
    return tree if tied else tree | {"head": draw(d, shape.vocab)}


def decoder(p, tokens):
    """Unrolled, since XLA's count takes a scanned body once; attention is dense."""
    x = p["embed"][tokens]
    (length,), dim, group = tokens.shape, SHAPE.head_dim, SHAPE.heads // SHAPE.kv_heads
    causal = jnp.tril(jnp.ones((length, length), bool))[None]
    for w in p["blocks"]:
        heads = lambda name, n, w=w, x=x: (x @ w[name]).reshape(length, n, dim)
        q = heads("q", SHAPE.heads)
        k = jnp.repeat(heads("k", SHAPE.kv_heads), group, axis=1)
        v = jnp.repeat(heads("v", SHAPE.kv_heads), group, axis=1)
        scores = jnp.where(causal, jnp.einsum("thd,shd->hts", q, k), -1e9)
        mixed = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, axis=-1), v)
        x = x + mixed.reshape(length, -1) @ w["o"]
        x = x + (jax.nn.relu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]
    return x @ (p["head"] if "head" in p else p["embed"].T)


def counted(function, *args):
    return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]


@pytest.mark.parametrize("tied", [True, False])
def test_forward_products_match_what_xla_counts(tied):
    tokens = jnp.arange(64) % SHAPE.vocab
    xla = counted(decoder, params(SHAPE, tied), tokens)
    # Dense attention: each of the 64 tokens meets all 64.
    closed = flops.products(SHAPE, tokens=64, heads=64, contexts=64 * 64)
    # XLA also counts what is elementwise, half a per cent at this size.
    assert 1.0 < xla / closed < 1.02


def test_training_is_three_forwards_as_xla_counts_it():
    tokens = jnp.arange(64) % SHAPE.vocab
    loss = lambda p: (decoder(p, tokens) ** 2).sum()
    xla = counted(jax.value_and_grad(loss), params(SHAPE, False))
    closed = 3 * flops.products(SHAPE, tokens=64, heads=64, contexts=64 * 64)
    assert 1.0 < xla / closed < 1.02


def slow_token(context, head):
    """FLOPs of one token that attends to `context`, written out product by product."""
    s, total = SHAPE, 0
    for _ in range(s.layers):
        total += 2 * s.width * s.heads * s.head_dim  # queries
        total += 2 * 2 * s.width * s.kv_heads * s.head_dim  # keys and values
        total += 2 * context * s.heads * s.head_dim  # scores
        total += 2 * context * s.heads * s.head_dim  # weighted values
        total += 2 * s.heads * s.head_dim * s.width  # output
        total += 3 * 2 * s.width * s.ffw
    return total + head * 2 * s.width * s.vocab


def test_closed_forms_equal_a_loop_over_tokens():
    prompts, new = [5, 9, 1], [4, 1, 0]
    loop_prefill = sum(
        slow_token(t + 1, head=t == p - 1) for p in prompts for t in range(p)
    )
    assert flops.prefill(SHAPE, prompts) == loop_prefill
    # The prefill gives the first token; each step reads the token before.
    loop_decode = sum(
        slow_token(p + i + 1, head=True)
        for p, n in zip(prompts, new, strict=True)
        for i in range(n - 1)
    )
    assert flops.decode(SHAPE, prompts, new) == loop_decode
    whole = [p + n for p, n in zip(prompts, new, strict=True)]
    loop_score = sum(slow_token(t + 1, head=True) for n in whole for t in range(n))
    assert flops.score(SHAPE, whole) == loop_score
    assert flops.train(SHAPE, whole) == 3 * loop_score


def test_prefill_is_paid_once_per_group():
    new = [3, 4, 5, 6]
    shared = flops.rollout(SHAPE, [7, 8], new)
    alone = flops.rollout(SHAPE, [7, 7, 8, 8], new)
    assert alone - shared == flops.prefill(SHAPE, [7, 8])
    with pytest.raises(ValueError, match="multiple"):
        flops.rollout(SHAPE, [7, 8], [1, 2, 3])


def test_sampling_costs_a_forward_pass_less_what_is_never_read():
    # All of prompt + new - 1 tokens go through the blocks once; the heads of the
    # first prompt - 1 positions are skipped.
    prompt, new = 6, 5
    skipped = (prompt - 1) * 2 * SHAPE.width * SHAPE.vocab
    whole = flops.score(SHAPE, [prompt + new - 1])
    assert flops.rollout(SHAPE, [prompt], [new]) == whole - skipped


def test_counts_are_exact_integers_beyond_64_bits_from_numpy_lengths():
    big = flops.ModelShape(
        layers=80,
        width=8192,
        heads=64,
        kv_heads=8,
        head_dim=128,
        ffw=28672,
        vocab=2**17,
    )
    lengths = np.full(4096, 131072, np.int32)
    count = flops.train(big, lengths)
    assert type(count) is int
    assert count > 2**64
    assert count == 4096 * flops.train(big, [131072])


def test_logits_at_fewer_positions_cost_their_products_less():
    whole = flops.train(SHAPE, [10, 20])
    part = flops.train(SHAPE, [10, 20], heads=7)
    # forward and backward of 23 positions' logits: 3 * 2 * width * vocab each
    assert whole - part == 23 * 6 * SHAPE.width * SHAPE.vocab
