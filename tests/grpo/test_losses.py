import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from grpo_jax import losses

pytestmark = pytest.mark.usefixtures("strict")

AGGREGATIONS = {
    "token": losses.per_token,
    "sequence": losses.per_sequence,
    "sum": losses.sequence_sum,
    "constant": functools.partial(losses.constant_length, length=7),
}
every_aggregation = pytest.mark.parametrize(
    "reduce", AGGREGATIONS.values(), ids=AGGREGATIONS
)


def slow_logp(logits, tokens, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Python loops in float64, one token at a time, renormalising after each rule."""
    logits, out = np.asarray(logits, np.float64), [0.0]
    for row, token in zip(logits[:-1], np.asarray(tokens)[1:], strict=True):
        prob = dict(enumerate(np.exp(row / temperature)))
        kept = sorted(prob, key=lambda v: -prob[v])
        if top_k > 0:
            kept = kept[:top_k]
        if top_p < 1:
            mass, total, nucleus = 0.0, sum(prob[v] for v in kept), []
            for v in kept:
                nucleus.append(v)
                mass += prob[v] / total
                if mass >= top_p:
                    break
            kept = nucleus
        if min_p > 0:
            total = sum(prob[v] for v in kept)
            high = max(prob[v] / total for v in kept)
            kept = [v for v in kept if prob[v] / total >= min_p * high]
        total = sum(prob[v] for v in kept)
        out.append(np.log(prob[token] / total) if token in kept else -np.inf)
    return np.array(out)


TRUNCATIONS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"temperature": 2.0, "top_k": 5, "top_p": 0.8, "min_p": 0.3},
    {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
]


@pytest.mark.parametrize("options", TRUNCATIONS, ids=str)
def test_token_logp_matches_a_slow_loop(options, getkey):
    logits = 2 * jax.random.normal(getkey(), (40, 9))
    tokens = jax.random.randint(getkey(), (40,), 0, 9)
    got = losses.token_logp(logits, tokens, **options)
    want = slow_logp(logits, tokens, **options)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    # The oracle is exercised on both sides of the cut.
    assert np.isinf(want).any() == bool({"top_k", "top_p", "min_p"} & set(options))
    assert np.isfinite(want[1:]).any()


@pytest.mark.parametrize("options", TRUNCATIONS, ids=str)
def test_traced_options_give_what_static_ones_give(options, getkey):
    logits = 2 * jax.random.normal(getkey(), (12, 9))
    tokens = jax.random.randint(getkey(), (12,), 0, 9)
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    traces = []

    @jax.jit
    def traced(options):
        traces.append(None)
        return losses.token_logp(logits, tokens, **options)

    want = losses.token_logp(logits, tokens, **options)
    np.testing.assert_allclose(traced(full), want, rtol=1e-6)
    traced(full | {"top_p": 0.123, "top_k": 2})
    assert len(traces) == 1


def test_order_is_temperature_then_top_k_then_top_p_then_min_p():
    # At temperature 2 the probabilities are 8, 4, 2, 2 / 16: top-k 3 leaves
    # 8, 4, 2 / 14; the second crosses 0.8 (8 / 14 = 0.57, 12 / 14 = 0.86), so 8, 4
    # / 12; min-p 0.4 keeps both (4 / 8). Top-p first would have kept a third.
    logits = 2 * jnp.log(jnp.array([[8.0, 4.0, 2.0, 2.0 - 1e-3]] * 5))
    tokens = jnp.array([0, 0, 1, 2, 3])
    got = losses.token_logp(
        logits, tokens, temperature=2.0, top_k=3, top_p=0.8, min_p=0.4
    )
    third = np.log(1 / 3)
    want = [0.0, np.log(2 / 3), third, -np.inf, -np.inf]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_zero_one_zero_is_off_not_greedy(getkey):
    logits = jax.random.normal(getkey(), (5, 4))
    tokens = jax.random.randint(getkey(), (5,), 0, 4)
    off = losses.token_logp(logits, tokens, top_k=0, top_p=1.0, min_p=0.0)
    np.testing.assert_allclose(off, slow_logp(logits, tokens), rtol=1e-5)
    assert np.isfinite(off).all()


def plain(hidden, unembed, tokens, temperature=1.0):
    logits = hidden.astype(jnp.float32) @ unembed.astype(jnp.float32)
    return losses.token_logp(logits, tokens, temperature=temperature)


def problem(getkey, length=11, width=5, vocab=13):
    return (
        jax.random.normal(getkey(), (length, width)),
        jax.random.normal(getkey(), (width, vocab)),
        jax.random.randint(getkey(), (length,), 0, vocab),
    )


@pytest.mark.parametrize(
    ("chunk_size", "temperature"), [(1, 2.0), (3, 0.5), (5, 2.0), (10, 1.0), (64, 0.5)]
)
def test_chunks_change_neither_value_nor_gradient(chunk_size, temperature, getkey):
    hidden, unembed, tokens = problem(getkey)
    weight = jax.random.normal(getkey(), (11,))

    def run(f):
        value = lambda h, u: ((f(h, u) * weight).sum(), f(h, u))
        grad = jax.jit(jax.grad(value, argnums=(0, 1), has_aux=True))
        grads, logp = grad(hidden, unembed)
        return logp, *grads

    chunked = lambda h, u: losses.chunked_token_logp(
        h, u, tokens, temperature=temperature, chunk_size=chunk_size
    )
    whole = lambda h, u: plain(h, u, tokens, temperature)
    got = run(chunked)
    assert got[0][0] == 0
    for x, want in zip(got, run(whole), strict=True):
        np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-5)


def test_chunked_entropy_is_that_of_the_tempered_policy_and_carries_no_gradient(getkey):
    hidden, unembed, tokens = problem(getkey)
    run = lambda h, u: losses.chunked_logp_and_entropy(
        h, u, tokens, temperature=0.5, chunk_size=4
    )
    logp, entropy = run(hidden, unembed)
    z = np.asarray(hidden, np.float64) @ np.asarray(unembed, np.float64) / 0.5
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(entropy[1:], -(p * np.log(p)).sum(1)[:-1], rtol=1e-4)
    assert entropy[0] == 0
    np.testing.assert_allclose(logp, plain(hidden, unembed, tokens, 0.5), rtol=1e-4)
    grads = jax.grad(lambda h, u: run(h, u)[1].sum(), argnums=(0, 1))(hidden, unembed)
    for g in grads:
        np.testing.assert_array_equal(g, np.zeros_like(g))


def test_a_sequence_of_one_token_has_logp_zero(getkey):
    hidden, unembed, tokens = problem(getkey, length=1)
    got = losses.chunked_token_logp(hidden, unembed, tokens, chunk_size=4)
    np.testing.assert_array_equal(got, [0.0])


def test_chunk_size_below_one_is_refused(getkey):
    with pytest.raises(ValueError, match="chunk_size=0 must be at least 1"):
        losses.chunked_token_logp(*problem(getkey), chunk_size=0)


def test_bfloat16_hidden_states_still_give_float32_log_probabilities(getkey):
    hidden, unembed, tokens = problem(getkey, length=64, width=32, vocab=512)
    narrow = hidden.astype(jnp.bfloat16)
    rounded = unembed.astype(jnp.bfloat16)
    got = losses.chunked_token_logp(narrow, unembed, tokens, chunk_size=16)
    assert got.dtype == jnp.float32
    # Products of bfloat16 are exact in float32: only the inputs were rounded.
    np.testing.assert_allclose(
        got, plain(narrow, rounded, tokens), rtol=1e-5, atol=1e-5
    )
    chunked = lambda h, u: losses.chunked_token_logp(h, u, tokens, chunk_size=16)
    total = lambda h, u: chunked(h, u).sum()
    grads = jax.jit(jax.grad(total, argnums=(0, 1)))(narrow, unembed)
    assert grads[0].dtype == jnp.bfloat16
    assert grads[1].dtype == jnp.float32
    want = jax.jit(jax.grad(lambda u: plain(narrow, u, tokens).sum()))(unembed)
    assert np.abs(grads[1] - want).max() < 0.01 * np.abs(want).max()


def largest_array(text):
    shapes = re.findall(r"(?:f32|bf16|s32|pred)\[([\d,]+)\]", text)
    return max(np.prod([int(n) for n in s.split(",")]) for s in shapes)


def test_no_array_of_the_gradients_program_holds_all_logits(getkey):
    rows, length, width, vocab = 4, 32, 6, 50
    hidden = jax.random.normal(getkey(), (rows, length, width))
    unembed = jax.random.normal(getkey(), (width, vocab))
    tokens = jax.random.randint(getkey(), (rows, length), 0, vocab)

    def program(f):
        score = jax.vmap(f, in_axes=(0, None, 0))
        value = lambda h, u: score(h, u, tokens).sum()
        lowered = jax.jit(jax.grad(value, argnums=(0, 1))).lower(hidden, unembed)
        return lowered.compile().as_text()

    chunked = functools.partial(losses.chunked_token_logp, chunk_size=8)
    everything = rows * (length - 1) * vocab
    assert largest_array(program(plain)) >= everything
    assert largest_array(program(chunked)) <= rows * 8 * vocab


def surrogate(ratio, advantage, **options):
    logp = jnp.log(jnp.array([ratio]))
    f = lambda lp: losses.clipped_surrogate(
        lp, jnp.zeros(1), jnp.array([advantage]), **options
    ).sum()
    value, grad = jax.value_and_grad(f)(logp)
    return float(value), float(grad[0])


# The derivative of -ratio * A in logp is -ratio * A where it is not clipped.
@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "grad"),
    [
        (1.5, 2.0, -2.4, 0.0),  # min(3.0, 1.2 * 2)
        (1.5, -2.0, 3.0, 3.0),  # min(-3.0, -2.4): the pessimistic side is not clipped
        (0.5, 2.0, -1.0, -1.0),  # min(1.0, 1.6)
        (0.5, -2.0, 1.6, 0.0),  # min(-1.0, -1.6)
        (1.1, -2.0, 2.2, 2.2),  # inside
    ],
)
def test_clip_matches_values_by_hand(ratio, advantage, value, grad):
    got = surrogate(ratio, advantage)
    np.testing.assert_allclose(got, (value, grad), rtol=1e-5)


def test_the_two_bounds_are_separate():
    # 1 + 0.28 above, 1 - 0.1 below
    np.testing.assert_allclose(
        surrogate(1.5, 1.0, clip_low=0.1, clip_high=0.28)[0], -1.28, rtol=1e-5
    )
    np.testing.assert_allclose(
        surrogate(0.5, -1.0, clip_low=0.1, clip_high=0.28)[0], 0.9, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "grad"),
    [
        (5.0, -2.0, 6.0, 0.0),  # min(10, 3 * 2)
        (2.0, -2.0, 4.0, 4.0),  # min(4, 6)
        (5.0, 2.0, -2.4, 0.0),  # positive advantages are left alone
    ],
)
def test_dual_clip_bounds_the_loss_of_negative_advantages(
    ratio, advantage, value, grad
):
    got = surrogate(ratio, advantage, dual_clip=3.0)
    np.testing.assert_allclose(got, (value, grad), rtol=1e-5)


def test_surrogate_derivative_matches_finite_differences(getkey):
    logp, old, adv = (0.05 * jax.random.normal(getkey(), (4,)) for _ in range(3))
    check_grads(
        lambda lp: losses.clipped_surrogate(jnp.asarray(lp), old, adv).sum(),
        (logp,),
        order=1,
        modes=["rev"],
        atol=1e-2,
        rtol=1e-2,
    )


@pytest.mark.parametrize(
    "loss", [losses.clipped_surrogate, losses.cispo], ids=["clipped", "cispo"]
)
def test_only_the_trained_policy_is_differentiated(loss, getkey):
    args = tuple(0.02 * jax.random.normal(getkey(), (4,)) for _ in range(3))
    grads = jax.grad(lambda *a: loss(*a).sum(), argnums=(0, 1, 2))(*args)
    assert np.abs(grads[0]).min() > 0
    np.testing.assert_array_equal(grads[1], np.zeros(4))
    np.testing.assert_array_equal(grads[2], np.zeros(4))


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [
        (1.5, 2.0, 1.2),
        (1.5, -2.0, 1.2),
        (0.5, 2.0, 0.8),
        (0.5, -2.0, 0.8),
        (1.1, 2, 1.1),
    ],
)
def test_cispo_gradient_is_the_clipped_weight_times_advantage(ratio, advantage, weight):
    logp = jnp.log(jnp.array([ratio]))
    f = lambda lp: losses.cispo(lp, jnp.zeros(1), jnp.array([float(advantage)])).sum()
    value, grad = jax.value_and_grad(f)(logp)
    np.testing.assert_allclose(grad, [-weight * advantage], rtol=1e-5)
    np.testing.assert_allclose(value, -weight * advantage * np.log(ratio), rtol=1e-5)


def test_gspo_matches_a_slow_loop():
    # Sequence ratio exp((0.3 - 0.1) / 2) = e^0.1 = 1.105; the third token is masked.
    logp = jnp.array([-1.0, -2.0, -9.0])
    old = jnp.array([-1.3, -1.9, 0.0])
    mask = jnp.array([True, True, False])
    level = losses.sequence_level(logp, old, mask)
    np.testing.assert_allclose(jnp.exp(level - old)[:2], [np.exp(0.1)] * 2, rtol=1e-5)

    def loss(logp, advantage, clip):
        level = losses.sequence_level(logp, old, mask)
        x = losses.clipped_surrogate(
            level, old, jnp.full((3,), advantage), clip_low=clip, clip_high=clip
        )
        ratio = losses.per_sequence(x[None], mask[None])
        return ratio.total / ratio.weight

    # d/dlogp_t of -s A is -s A / 2 for both tokens, whole or not at all.
    value, grad = jax.value_and_grad(loss)(logp, 2.0, 0.2)
    np.testing.assert_allclose(value, -2 * np.exp(0.1), rtol=1e-5)
    np.testing.assert_allclose(grad, [-np.exp(0.1), -np.exp(0.1), 0.0], rtol=1e-5)
    value, grad = jax.value_and_grad(loss)(logp, 2.0, 0.05)
    np.testing.assert_allclose(value, -2.1, rtol=1e-5)
    np.testing.assert_array_equal(grad, np.zeros(3))


def test_divergence_estimators_match_values_by_hand():
    # d = log 2: k1 0.6931, k2 0.2402, k3 = 1/2 + log 2 - 1 = 0.1931
    logp, ref = jnp.log(jnp.array([0.5])), jnp.log(jnp.array([0.25]))
    log2 = np.log(2)
    np.testing.assert_allclose(losses.kl_k1(logp, ref), [log2], rtol=1e-6)
    np.testing.assert_allclose(losses.kl_k2(logp, ref), [log2**2 / 2], rtol=1e-6)
    np.testing.assert_allclose(losses.kl_k3(logp, ref), [log2 - 0.5], rtol=1e-6)
    np.testing.assert_allclose(losses.kl_k3_k2(logp, ref), [log2 - 0.5], rtol=1e-6)
    grad = lambda f: jax.grad(lambda x: f(x, ref).sum())(logp)
    np.testing.assert_allclose(grad(losses.kl_k3_k2), [log2], rtol=1e-6)
    np.testing.assert_allclose(grad(losses.kl_k3), [0.5], rtol=1e-6)  # 1 - e^-d


def test_k3_keeps_its_digits_where_policies_almost_agree():
    # exp(-d) - 1 + d loses all of d^2 / 2 = 5e-9 in float32; expm1 keeps some.
    value = losses.kl_k3(jnp.array([0.0]), jnp.array([-1e-2]))
    np.testing.assert_allclose(value, [np.expm1(-1e-2) + 1e-2], rtol=1e-4)


def test_denominators_match_values_by_hand():
    x = jnp.array([[1.0, 1.0, 1.0, 1.0], [5.0, 9.0, 9.0, 9.0], [9.0] * 4])
    mask = jnp.array([[True] * 4, [True, False, False, False], [False] * 4])
    # Sums 4 and 5 over 4 and 1 tokens; the third row is filler and is no sequence.
    got = {k: (float(r.total), float(r.weight)) for k, r in reduce_all(x, mask).items()}
    assert got == {
        "token": (9.0, 5.0),
        "sequence": (6.0, 2.0),
        "sum": (9.0, 2.0),
        "constant": (9.0, 14.0),
    }


def reduce_all(x, mask):
    return {name: reduce(x, mask) for name, reduce in AGGREGATIONS.items()}


@every_aggregation
def test_masked_entries_touch_neither_value_nor_gradient(reduce, getkey):
    x = jax.random.normal(getkey(), (3, 5))
    mask = jax.random.bernoulli(getkey(), 0.5, (3, 5)).at[:, 0].set(True)
    poisoned = jnp.where(mask, x, jnp.nan)

    def f(x):
        r = reduce(x, mask)
        return r.total / r.weight

    np.testing.assert_array_equal(f(x), f(poisoned))
    np.testing.assert_array_equal(jax.grad(f)(x), jax.grad(f)(poisoned))


@every_aggregation
def test_filler_rows_and_columns_change_no_denominator(reduce, getkey):
    x = jax.random.normal(getkey(), (3, 5))
    mask = jax.random.bernoulli(getkey(), 0.5, (3, 5)).at[:, 0].set(True)
    wide = jnp.pad(x, ((0, 2), (0, 3)), constant_values=jnp.nan)
    wide_mask = jnp.pad(mask, ((0, 2), (0, 3)))
    got, want = reduce(wide, wide_mask), reduce(x, mask)
    np.testing.assert_allclose(got.total, want.total, rtol=1e-6)
    assert got.weight == want.weight


@every_aggregation
def test_a_batch_without_sequences_weighs_zero(reduce):
    got = reduce(jnp.full((2, 3), jnp.nan), jnp.zeros((2, 3), bool))
    assert (float(got.total), float(got.weight)) == (0.0, 0.0)


def test_counts_are_exact_for_narrow_losses():
    x = jnp.ones((1, 1000), jnp.bfloat16)
    got = losses.per_token(x, jnp.ones((1, 1000), bool))
    assert (float(got.total), float(got.weight)) == (1000.0, 1000.0)
