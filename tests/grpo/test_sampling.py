import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import keys, sampling, truncation

pytestmark = pytest.mark.usefixtures("strict")


def many_keys(count, seed=0):
    zero = jnp.zeros(count, jnp.int32)
    return keys.per_sequence(keys.root(seed), zero, keys.numbers(count))


def counts(logits, draws):
    rows = jnp.broadcast_to(logits[None], (draws, logits.shape[0]))
    tokens, logp = jax.jit(sampling.draw)(many_keys(draws), rows)
    return np.bincount(np.asarray(tokens), minlength=logits.shape[0]), tokens, logp


@pytest.mark.parametrize("size", [3, 256, 257, 1000])
def test_frequencies_match_the_distribution_at_five_sigma(size, getkey):
    logits = 2 * jax.random.normal(getkey(), (size,))
    draws = 40_000
    seen, _, _ = counts(logits, draws)
    p = np.asarray(jax.nn.softmax(logits.astype(jnp.float32)), np.float64)
    # Rare tokens are pooled, so that every cell has a normal error.
    common = p * draws > 20
    cells = np.append(p[common], p[~common].sum())
    found = np.append(seen[common], seen[~common].sum())
    kept = cells > 0
    square = ((found - draws * cells)[kept] ** 2 / (draws * cells)[kept]).sum()
    freedom = kept.sum() - 1
    assert square < freedom + 5 * np.sqrt(2 * freedom)


def test_excluded_tokens_are_never_drawn(getkey):
    logits = jnp.full((600,), -jnp.inf).at[jnp.array([3, 255, 256, 599])].set(0.0)
    _, tokens, logp = counts(logits, 4000)
    assert set(np.unique(np.asarray(tokens))) == {3, 255, 256, 599}
    # four equal tokens: log(1 / 4)
    np.testing.assert_allclose(logp, np.log(0.25), rtol=1e-6)


def test_the_ends_of_the_unit_interval_draw_tokens_with_mass():
    mass = jnp.array([[0.0, 0.2, 0.0, 0.8, 0.0]])
    ends = np.array([0.0, np.nextafter(np.float32(1), np.float32(0)), 1.0], np.float32)
    got = [int(sampling._invert(jnp.asarray(u)[None], mass)[0]) for u in ends]
    assert got == [1, 3, 3]


def test_logp_is_that_of_the_normalised_distribution(getkey):
    logits = 3 * jax.random.normal(getkey(), (50, 700))
    tokens, logp = sampling.draw(many_keys(50), logits)
    whole = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    np.testing.assert_allclose(logp, whole[np.arange(50), tokens], atol=1e-5)


def test_truncated_frequencies_match_the_truncated_distribution(getkey):
    logits = 2 * jax.random.normal(getkey(), (300,))
    policy = truncation.policy_logits(
        logits, temperature=0.7, top_k=20, top_p=0.9, min_p=0.02
    )
    draws = 20_000
    seen, _, _ = counts(policy, draws)
    p = np.asarray(jax.nn.softmax(policy), np.float64)
    assert (seen[p == 0] == 0).all()
    error = np.sqrt(draws * p * (1 - p)) + 1
    assert (np.abs(seen - draws * p) < 5 * error).all()
