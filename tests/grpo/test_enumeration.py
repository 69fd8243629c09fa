"""Expectations over every sequence of a tiny policy: gradients, not only values."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import credit, losses, methods, objectives
from tests import helpers


def everything(params, **options):
    """All completions, their probabilities and an arbitrary reward of each."""
    rollout = helpers.all_rollouts(params, **options)
    reward = jnp.asarray(helpers.reward(rollout.tokens))
    return rollout, helpers.probability(rollout), reward


def policy_gradient(params, **options):
    """Of the expected reward, through the probabilities themselves."""

    def expected(params):
        _, prob, reward = everything(params, **options)
        return (prob * reward).sum()

    return jax.grad(expected)(params)


def gradient(objective, params, batch):
    return jax.jit(jax.grad(lambda p: objective(p, batch, ())[0].total))(params)


def rows(x, rollout):
    return jnp.broadcast_to(x[:, None], rollout.tokens.shape)


def test_the_probabilities_of_all_completions_sum_to_one(getkey):
    _, prob, _ = everything(helpers.random_table(getkey()))
    assert len(prob) == 15  # one of length 1, two of 2, twelve of 3
    np.testing.assert_allclose(prob.sum(), 1.0, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "loss", [losses.clipped_surrogate, losses.cispo], ids=["clipped", "cispo"]
)
def test_expected_gradient_of_the_loss_is_the_policy_gradient(
    loss, temperature, getkey
):
    params = helpers.random_table(getkey())
    rollout, prob, reward = everything(params, temperature=temperature)
    objective = objectives.surrogate(
        helpers.TABLE,
        loss=loss,
        temperature=temperature,
        chunk_size=2,
        reduce=helpers.expectation(prob),
    )
    got = gradient(
        objective, params, helpers.make_batch(rollout, rows(reward, rollout))
    )
    want = policy_gradient(params, temperature=temperature)
    helpers.trees_close(got, jax.tree.map(jnp.negative, want), rtol=1e-4, atol=1e-6)


def test_a_trainer_without_the_temperature_would_be_seen(getkey):
    """The oracle above can fail: at another temperature the gradients differ."""
    params = helpers.random_table(getkey())
    rollout, prob, reward = everything(params, temperature=0.5)
    objective = objectives.surrogate(
        helpers.TABLE, chunk_size=2, reduce=helpers.expectation(prob)
    )
    batch = helpers.make_batch(rollout, rows(reward, rollout))
    got = gradient(objective, params, batch)["table"]
    want = -policy_gradient(params, temperature=0.5)["table"]
    assert np.abs(got - want).max() > 0.05


def test_expected_gspo_gradient_is_the_policy_gradient_over_the_length(getkey):
    """Without a stop token all lengths are LENGTH, and the mean ratio is the product
    of ratios to the power 1 / LENGTH."""
    params = helpers.random_table(getkey())
    rollout, prob, reward = everything(params, stop=False)

    def expectation(x, mask):
        means = jnp.where(mask, x, 0.0).sum(1) / mask.sum(1)
        return losses.Ratio((prob * means).sum(), jnp.ones(()))

    objective = objectives.surrogate(
        helpers.TABLE, level=losses.sequence_level, chunk_size=2, reduce=expectation
    )
    got = gradient(
        objective, params, helpers.make_batch(rollout, rows(reward, rollout))
    )
    want = policy_gradient(params, stop=False)
    scaled = jax.tree.map(lambda g: -g / helpers.LENGTH, want)
    helpers.trees_close(got, scaled, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("baseline", ["leave_one_out", "centred"])
def test_expected_gradient_of_a_group_is_unbiased_or_shrunk_as_stated(
    baseline, size, getkey
):
    """Enumerates every group of G completions, each member drawn independently."""
    params = helpers.random_table(getkey())
    rollout, prob, reward = everything(params)
    groups = jnp.array(list(itertools.product(range(len(prob)), repeat=size)))
    weight = prob[groups].prod(1)
    advantage = jax.vmap(getattr(credit, baseline))(reward[groups])
    # Credit that each completion gets, over all groups and its places in them.
    share = (
        jnp.zeros_like(prob)
        .at[groups.reshape(-1)]
        .add((weight[:, None] * advantage).reshape(-1) / size)
    )
    objective = objectives.surrogate(
        helpers.TABLE, chunk_size=2, reduce=helpers.expectation(jnp.ones_like(prob))
    )
    got = gradient(objective, params, helpers.make_batch(rollout, rows(share, rollout)))
    factor = {"leave_one_out": 1.0, "centred": (size - 1) / size}[baseline]
    want = jax.tree.map(lambda g: -factor * g, policy_gradient(params))
    helpers.trees_close(got, want, rtol=1e-3, atol=1e-5)


def kl(p, q):
    return (jnp.exp(p) * (p - q)).sum()


def zero(p, q):
    return 0.0 * kl(p, q)


# The divergence whose gradient the estimator's expected gradient is, from the log
# distributions of policy and reference.
TARGETS = {
    "k1": (losses.kl_k1, zero),
    "k2": (losses.kl_k2, kl),
    "k3": (losses.kl_k3, lambda p, q: kl(q, p)),
    "k3_k2": (losses.kl_k3_k2, kl),
}
every_divergence = pytest.mark.parametrize(
    ("estimator", "target"), TARGETS.values(), ids=TARGETS
)


@pytest.mark.parametrize("off_policy", [False, True])
@every_divergence
def test_expected_kl_gradient_at_a_state_is_the_stated_one(
    estimator, target, off_policy, getkey
):
    logits, ref, other = (jax.random.normal(getkey(), (5,)) for _ in range(3))
    ref = jax.nn.log_softmax(ref)
    old = jax.nn.log_softmax(other if off_policy else logits)

    def expected(logits):
        logp = jax.nn.log_softmax(logits)
        weight = losses.importance(logp, old)
        return (jnp.exp(old) * weight * estimator(logp, ref)).sum()

    want = jax.grad(lambda x: target(jax.nn.log_softmax(x), ref))(logits)
    got = jax.grad(expected)(logits)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize(
    "estimator",
    [losses.kl_k1, losses.kl_k3, losses.kl_k3_k2],
    ids=["k1", "k3", "k3_k2"],
)
def test_expected_kl_value_is_that_of_the_policy_to_the_reference(
    estimator, off_policy, getkey
):
    logits, ref, other = (jax.random.normal(getkey(), (5,)) for _ in range(3))
    logp, ref = jax.nn.log_softmax(logits), jax.nn.log_softmax(ref)
    old = jax.nn.log_softmax(other if off_policy else logits)
    got = (jnp.exp(old) * losses.importance(logp, old) * estimator(logp, ref)).sum()
    np.testing.assert_allclose(got, kl(logp, ref), rtol=1e-5)


@every_divergence
def test_kl_term_of_the_objective_holds_visited_states_fixed(estimator, target, getkey):
    """Off-policy, over whole sequences, with completions of different lengths."""
    params, old, ref = (helpers.random_table(getkey()) for _ in range(3))
    rollout, prob, _ = everything(old)
    logp_ref = jax.vmap(losses.token_logp)(
        helpers.table_policy(ref, rollout.tokens), rollout.tokens
    )
    objective = objectives.surrogate(
        helpers.TABLE,
        chunk_size=2,
        reduce=helpers.expectation(prob),
        kl=estimator,
        kl_coefficient=0.7,
    )
    no_reward = jnp.zeros(rollout.tokens.shape)
    batch = helpers.make_batch(rollout, no_reward, logp_ref=logp_ref)

    def divergence(params):
        p = jax.nn.log_softmax(params["table"])
        q = jax.nn.log_softmax(ref["table"])
        at = jax.vmap(target)(p, q)[rollout.tokens[:, :-1]]
        return 0.7 * (prob * jnp.where(rollout.sampled[:, 1:], at, 0.0).sum(1)).sum()

    got, want = gradient(objective, params, batch), jax.grad(divergence)(params)
    helpers.trees_close(got, want, rtol=1e-3, atol=1e-5)


def test_k1_in_the_reward_has_the_gradient_of_the_sequence_divergence(getkey):
    """E[(r - beta * sum d) * grad log p] = grad of E[r] - beta * KL of sequences."""
    params, ref = helpers.random_table(getkey()), helpers.random_table(getkey())
    rollout, prob, reward = everything(params)
    beta = 0.3

    def of_reference(rollout):
        logits = helpers.table_policy(ref, rollout.tokens)
        return jax.vmap(losses.token_logp)(logits, rollout.tokens)

    log_ratio = methods.sequence_log_ratio(rollout, of_reference(rollout))
    objective = objectives.surrogate(
        helpers.TABLE, chunk_size=2, reduce=helpers.expectation(prob)
    )
    credit_ = rows(reward - beta * log_ratio, rollout)
    got = gradient(objective, params, helpers.make_batch(rollout, credit_))

    def value(params):
        r = helpers.all_rollouts(params)
        p = helpers.probability(r)
        gap = r.logp - jnp.where(r.sampled, of_reference(r), 0.0)
        return -(p * (reward - beta * gap.sum(1))).sum()

    helpers.trees_close(got, jax.grad(value)(params), rtol=1e-3, atol=1e-5)
