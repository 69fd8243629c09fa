import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import positions
from tests.benchmarks import head as benchmark


def problem(seed=0, shards=2, count=23, width=6, vocab=40):
    draw = np.random.default_rng(seed)
    hidden = draw.normal(size=(shards, count, width)).astype(np.float32)
    head = draw.normal(size=(width, vocab)).astype(np.float32)
    targets = draw.integers(0, vocab, (shards, count)).astype(np.int32)
    read = draw.random((shards, count)) < 0.6
    return hidden, head, targets, read


def by_hand(hidden, head, targets, read, slopes, temperature):
    """Values and gradients of `(slopes * logp).sum()`, one position at a time."""
    h, w = hidden.astype(np.float64), head.astype(np.float64)
    logp, entropy = np.zeros(read.shape), np.zeros(read.shape)
    d_hidden, d_head = np.zeros_like(h), np.zeros_like(w)
    for s, n in np.argwhere(read):
        z = h[s, n] @ w / temperature
        p = np.exp(z - z.max())
        p /= p.sum()
        logp[s, n] = np.log(p[targets[s, n]])
        entropy[s, n] = -(p * np.log(p)).sum()
        slope = slopes[s, n] * (np.eye(len(p))[targets[s, n]] - p) / temperature
        d_hidden[s, n] = w @ slope
        d_head += np.outer(h[s, n], slope)
    return logp, entropy, d_hidden, d_head


@pytest.mark.parametrize("chunk_size", [1, 4, 5, 99])
@pytest.mark.parametrize("vocab", [40, 8195])
def test_values_and_gradients_are_those_of_a_loop_in_float64(chunk_size, vocab):
    """The larger vocabulary is cut into blocks, the last of which is filled up."""
    given = problem(vocab=vocab)
    slopes = np.random.default_rng(1).normal(size=given[3].shape)
    want = by_hand(*given, slopes, 0.7)

    def total(hidden, head):
        out = positions.logp_and_entropy(
            hidden, head, targets, read, temperature=0.7, chunk_size=chunk_size
        )
        return (jnp.asarray(slopes, jnp.float32) * out[0]).sum(), out

    hidden, head, targets, read = map(jnp.asarray, given)
    f = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
    grads, out = f(hidden, head)
    for got, expected in zip((*out, *grads), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_entropies_carry_no_gradient_and_unread_states_none():
    hidden, head, targets, read = map(jnp.asarray, problem())
    f = lambda h, w: positions.logp_and_entropy(h, w, targets, read, chunk_size=4)
    grads = jax.grad(lambda h, w: f(h, w)[1].sum(), argnums=(0, 1))(hidden, head)
    assert all((g == 0).all() for g in grads)
    bad = jnp.where(read[..., None], hidden, 1e30)
    grads = jax.grad(lambda h, w: f(h, w)[0].sum(), argnums=(0, 1))(bad, head)
    assert all(np.isfinite(g).all() for g in grads)
    assert (grads[0][~read] == 0).all()


def test_no_position_to_read_is_no_work_and_no_gradient():
    hidden, head, targets, read = map(jnp.asarray, problem())
    f = lambda h, w: positions.logp_and_entropy(h, w, targets, read & False)[0].sum()
    value, grads = jax.value_and_grad(f, argnums=(0, 1))(hidden, head)
    assert value == 0
    assert all((g == 0).all() for g in grads)


def test_bfloat16_states_add_the_heads_gradient_up_in_float32():
    """A thousand slopes of one sign: a sum in bfloat16 would stop at 256 of them."""
    count, width, vocab = 1000, 4, 3
    hidden = jnp.ones((1, count, width), jnp.bfloat16)
    head = jnp.zeros((width, vocab), jnp.bfloat16)
    targets, read = jnp.zeros((1, count), jnp.int32), jnp.ones((1, count), bool)
    f = lambda w: positions.logp_and_entropy(hidden, w, targets, read, chunk_size=1)[
        0
    ].sum()
    got = jax.jit(jax.grad(f))(head)
    assert got.dtype == jnp.bfloat16
    want = count * (np.eye(vocab)[0] - 1 / 3)
    np.testing.assert_allclose(
        np.asarray(got, np.float32), np.tile(want, (width, 1)), rtol=0.01
    )


def test_how_many_positions_are_read_is_data():
    hidden, head, targets, read = map(jnp.asarray, problem())
    traces = []

    def value(read):
        traces.append(None)
        f = lambda w: positions.logp_and_entropy(hidden, w, targets, read)[0].sum()
        return jax.grad(f)(head)

    f = jax.jit(value)
    for some in (read, ~read, read & False, read | True):
        f(some)
    assert len(traces) == 1


@pytest.mark.parametrize("k", [1, 7, 40])
def test_top_k_and_tail_are_those_of_a_sort(k):
    hidden, head, _, read = problem()
    ids, logp, tail = jax.jit(
        lambda *x: positions.top_k(*x, k=k, temperature=0.7, chunk_size=4)
    )(hidden, head, read)
    z = hidden.astype(np.float64) @ head / 0.7
    full = z - np.log(np.exp(z).sum(-1, keepdims=True))
    order = np.argsort(-full, axis=-1)
    best = np.take_along_axis(full, order, -1)
    np.testing.assert_array_equal(np.asarray(ids)[read], order[read][:, :k])
    np.testing.assert_allclose(
        np.asarray(logp)[read], best[read][:, :k], rtol=1e-5, atol=1e-5
    )
    with np.errstate(divide="ignore"):
        rest = np.log(np.exp(best[read][:, k:]).sum(-1))
    np.testing.assert_allclose(np.asarray(tail)[read], rest, rtol=1e-5, atol=1e-5)


def test_a_tail_too_small_for_one_less_the_rest_is_kept():
    """Mass e**-40 beside 1: in float32, 1 - 1 would be 0 and its log -inf."""
    head = jnp.array([[40.0, 0.0, 0.0]])
    _, _, tail = positions.top_k(jnp.ones((1, 1, 1)), head, jnp.ones((1, 1), bool), k=1)
    np.testing.assert_allclose(tail[0, 0], np.log(2) - 40, rtol=1e-6)


def test_k_outside_of_the_vocabulary_is_refused():
    hidden, head, _, read = problem()
    hidden, head, read = map(jnp.asarray, (hidden, head, read))
    with pytest.raises(ValueError, match="k=41 must be from 1 to the 40 tokens"):
        positions.top_k(hidden, head, read, k=41)


def test_the_benchmark_compares_equal_gradients(capsys):
    sizes = ["--tokens=24", "--width=8", "--vocab=60", "--chunk=5", "--repeats=1"]
    found = benchmark.main(sizes)
    for a, b in zip(found["direct"].gradient, found["chunked"].gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert "chunked" in capsys.readouterr().out


def test_temporaries_are_a_few_chunks_of_logits_whatever_the_positions():
    """A fifth of the direct form's, at a vocabulary where logits are all there is."""

    def temporaries(form, tokens):
        shapes = (tokens, 32), (32, 20_000), (tokens,), (tokens,)
        kinds = jnp.float32, jnp.float32, jnp.int32, jnp.float32
        given = map(jax.ShapeDtypeStruct, shapes, kinds)
        lowered = jax.jit(jax.value_and_grad(form, argnums=(0, 1))).lower(*given)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    chunked = lambda *x: benchmark.in_chunks(*x, chunk_size=64)
    assert temporaries(chunked, 2048) < temporaries(benchmark.direct, 2048) / 5
    assert temporaries(chunked, 2048) < 1.5 * temporaries(chunked, 1024)


def test_logits_far_below_zero_have_gradients_too():
    """A vocabulary that blocks do not divide is filled up, with logits of 0."""
    vocab, width = positions._LARGE + 8, 4
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.uniform(1, 2, (1, 6, width)), jnp.float32)
    head = jnp.asarray(rng.normal(-40, 0.1, (width, vocab)), jnp.float32)
    targets, read = jnp.arange(6, dtype=jnp.int32)[None], jnp.ones((1, 6), bool)

    def value(hidden, head):
        return positions.logp_and_entropy(hidden, head, targets, read)[0].sum()

    def direct(hidden, head):
        logp = jax.nn.log_softmax(hidden @ head)
        return jnp.take_along_axis(logp, targets[..., None], axis=-1).sum()

    got, want = (jax.jit(jax.grad(f, (0, 1)))(hidden, head) for f in (value, direct))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-3)
