import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import truncation

pytestmark = pytest.mark.usefixtures("strict")


def probabilities(prob, **options):
    logits = jnp.log(jnp.asarray(prob, jnp.float32))
    return np.asarray(jax.nn.softmax(truncation.policy_logits(logits, **options)))


def test_the_token_that_crosses_p_is_kept():
    # 0.5 + 0.3 = 0.8 crosses 0.6: two tokens, 5/8 and 3/8. Dropping it leaves one.
    got = probabilities([0.5, 0.3, 0.15, 0.05], top_p=0.6)
    np.testing.assert_allclose(got, [0.625, 0.375, 0, 0], rtol=1e-6)


def test_top_p_below_the_likeliest_token_keeps_that_token():
    np.testing.assert_allclose(probabilities([0.2, 0.5, 0.3], top_p=0.1), [0, 1, 0])
    np.testing.assert_allclose(probabilities([0.2, 0.5, 0.3], top_p=0.0), [0, 1, 0])


def test_top_p_reads_what_top_k_left():
    # top-k 2 leaves 4/7 and 3/7; 4/7 = 0.571 crosses 0.55, 0.4 alone would not.
    got = probabilities([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.55)
    np.testing.assert_allclose(got, [1, 0, 0, 0])


def test_top_k_keeps_k_and_a_k_beyond_the_vocabulary_keeps_all():
    prob = [0.1, 0.4, 0.3, 0.2]
    np.testing.assert_allclose(
        probabilities(prob, top_k=2), [0, 4 / 7, 3 / 7, 0], rtol=1e-6
    )
    np.testing.assert_allclose(probabilities(prob, top_k=99), prob, rtol=1e-6)


def test_min_p_is_a_share_of_the_likeliest():
    got = probabilities([0.5, 0.26, 0.24], min_p=0.5)
    np.testing.assert_allclose(got, [0.5 / 0.76, 0.26 / 0.76, 0], rtol=1e-6)


@pytest.mark.parametrize("traced", [False, True])
def test_off_means_all_tokens_not_the_likeliest(traced):
    options = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    if traced:
        options = {k: jnp.asarray(v) for k, v in options.items()}
    prob = [0.5, 0.3, 0.2]
    np.testing.assert_allclose(probabilities(prob, **options), prob, rtol=1e-6)


def test_temperature_is_the_power_of_the_probabilities():
    got = probabilities([0.5, 0.3, 0.2], temperature=0.5)
    want = np.array([0.25, 0.09, 0.04])
    np.testing.assert_allclose(got, want / want.sum(), rtol=1e-6)


def test_a_permuted_vocabulary_permutes_the_result(getkey):
    logits = 2 * jax.random.normal(getkey(), (12,))
    order = jax.random.permutation(getkey(), 12)
    options = {"temperature": 0.9, "top_k": 8, "top_p": 0.8, "min_p": 0.05}
    got = truncation.policy_logits(logits[order], **options)
    np.testing.assert_allclose(got, truncation.policy_logits(logits, **options)[order])


def test_bfloat16_logits_are_read_in_float32():
    got = truncation.policy_logits(jnp.ones((4,), jnp.bfloat16), temperature=3.0)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, np.full(4, 1 / 3), rtol=1e-6)
