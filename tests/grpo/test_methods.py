"""What training methods promise, and what each of them computes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from budgets.ledger import Phase
from grpo_jax import credit, keys, losses, methods, options, step, supervised
from grpo_jax.base import Feedback
from tests import helpers

P, G = 4, 6
REFERENCE = {"table": jnp.array([[0.0, 1.0, -1.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])}
GRPO = functools.partial(
    methods.grpo, helpers.TABLE, group_size=G, prompts_per_update=P, chunk_size=2
)


def encode(problem):
    ones = 1 + int(problem.id) % 2
    return [helpers.BOS], [1] * ones + [helpers.EOS]


METHODS = {
    "grpo": GRPO(),
    "grpo_kl": GRPO(reference=REFERENCE, kl=losses.kl_k3_k2, kl_coefficient=0.01),
    "grpo_kl_in_reward": GRPO(reference=REFERENCE, kl_in_reward=0.01),
    "rloo": GRPO(compare=credit.leave_one_out, reduce=losses.sequence_sum),
    "batch_std": GRPO(compare=credit.centred, scale=credit.batch_spread),
    "cispo": GRPO(loss=losses.cispo),
    "gspo": GRPO(level=losses.sequence_level, reduce=losses.per_sequence),
    "next_token": supervised.next_token(
        helpers.TABLE, encode=encode, sequences_per_update=P * G, width=5, chunk_size=2
    ),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def one_update(method, params, pool=None, number=0):
    """Runs the stages before learning; returns the batch, feedback and calls."""
    fake, root = helpers.FakeServices(), keys.root(0)
    services = fake.bound()
    pool = helpers.FakePool() if pool is None else pool
    picked, _ = method.select(
        services,
        params,
        method.init(pool),
        pool,
        keys.at(root, keys.Stream.SELECT, number),
    )
    rollout = method.generate(
        services,
        params,
        method.frozen,
        picked.prompts,
        keys.at(root, keys.Stream.ROLLOUT, number),
    )
    batch, feedback = method.credit(
        services,
        params,
        method.frozen,
        rollout,
        picked.prompts,
        keys.at(root, keys.Stream.CREDIT, number),
    )
    return batch, feedback, fake.calls


def start(getkey):
    return helpers.random_table(getkey(), 0.3)


@pytest.mark.parametrize("name", ["grpo", "grpo_kl", "next_token"])
def test_learns_the_toy_and_compiles_once(name, getkey):
    method = METHODS[name]
    tx, traces, pool = optax.adam(0.25), [], helpers.FakePool()

    def counted(*args):
        traces.append(None)
        return step.train_step(*args, objective=method.objective, tx=tx)

    learn, state = jax.jit(counted), step.init(start(getkey), tx)
    for number in range(12):
        batch, _, _ = one_update(method, state.params, pool, number)
        state, _ = learn(state, batch, method.frozen)
    assert jax.nn.softmax(state.params["table"][0])[1] > 0.8
    assert len(traces) == 1


@every_method
def test_padding_and_the_order_of_prompts_change_nothing(method, getkey):
    params = start(getkey)
    batch, _, _ = one_update(method, params)
    rng = np.random.default_rng(0)
    order = rng.permutation(P * G)
    f = jax.jit(functools.partial(step.gradient, objective=method.objective))
    want = f(params, batch, method.frozen)[0]
    wide = helpers.widen(batch, 3)
    mixed = jax.tree.map(lambda x: x[order], batch)
    helpers.trees_close(f(params, wide, method.frozen)[0], want, rtol=1e-5, atol=1e-6)
    helpers.trees_close(f(params, mixed, method.frozen)[0], want, rtol=1e-5, atol=1e-6)


@every_method
def test_every_row_of_a_batch_belongs_to_the_rollout(method, getkey):
    batch, feedback, _ = one_update(method, start(getkey))
    rollout = batch.rollout
    assert rollout.tokens.shape[0] == len(feedback.reward) == P * G
    for leaf in jax.tree.leaves(batch):
        assert leaf.shape[0] == P * G
    assert not np.asarray(batch.mask & ~rollout.sampled).any()
    assert np.asarray(batch.mask).any(1).all()


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("grpo", ["sample", "verify"]),
        ("grpo_kl", ["sample", "verify", "score"]),
        ("grpo_kl_in_reward", ["sample", "verify", "score"]),
        ("next_token", []),
    ],
)
def test_each_method_calls_the_services_it_needs_and_no_others(name, calls, getkey):
    _, _, seen = one_update(METHODS[name], start(getkey))
    assert [call[0] for call in seen] == calls
    want = {
        "sample": ("sample", "policy", Phase.ROLLOUT, G),
        "verify": ("verify", Phase.ROLLOUT),
        "score": ("score", "reference", Phase.REFERENCE, "logp"),
    }
    assert seen == [want[name] for name in calls]


def test_advantages_are_those_of_each_prompts_own_group(getkey):
    batch, feedback, _ = one_update(METHODS["grpo"], start(getkey))
    rewards = feedback.reward.reshape(P, G)
    assert rewards.std(1).min() > 0
    z = (rewards - rewards.mean(1, keepdims=True)) / rewards.std(
        1, keepdims=True, ddof=1
    )
    want = np.broadcast_to(z.reshape(-1, 1), batch.advantage.shape)
    np.testing.assert_allclose(batch.advantage, want, rtol=1e-4)
    scaled, feedback, _ = one_update(METHODS["batch_std"], start(getkey))
    rewards = feedback.reward.reshape(P, G)
    z = (rewards - rewards.mean(1, keepdims=True)) / rewards.std(ddof=1)
    np.testing.assert_allclose(scaled.advantage[:, 0], z.reshape(-1), rtol=1e-4)


def test_kl_in_the_reward_comes_before_the_comparison(getkey):
    beta, params = 0.5, start(getkey)
    method = GRPO(reference=REFERENCE, kl_in_reward=beta, compare=credit.centred)
    batch, feedback, _ = one_update(method, params)
    logp = np.asarray(jax.nn.log_softmax(params["table"]), np.float64)
    ref = np.asarray(jax.nn.log_softmax(REFERENCE["table"]), np.float64)
    tokens, sampled = np.asarray(batch.rollout.tokens), np.asarray(batch.mask)
    rewards = feedback.reward.astype(np.float64)
    for i, t in zip(*np.nonzero(sampled), strict=True):
        before, after = tokens[i, t - 1], tokens[i, t]
        rewards[i] -= beta * (logp[before, after] - ref[before, after])
    groups = rewards.reshape(P, G)
    want = (groups - groups.mean(1, keepdims=True)).reshape(-1)
    np.testing.assert_allclose(batch.advantage[:, 0], want, rtol=1e-4, atol=1e-5)


def test_mask_truncated_drops_those_rows_from_numerator_and_denominator(getkey):
    params = start(getkey)
    plain, _, _ = one_update(METHODS["grpo"], params)
    method = GRPO(mask_truncated=True, reduce=losses.per_sequence)
    batch, _, _ = one_update(method, params)
    truncated = np.asarray(batch.rollout.truncated)
    assert 0 < truncated.sum() < len(truncated)
    assert not np.asarray(batch.mask)[truncated].any()
    np.testing.assert_array_equal(batch.mask[~truncated], plain.mask[~truncated])
    # They were compared all the same.
    np.testing.assert_array_equal(batch.advantage, plain.advantage)
    loss, _ = jax.jit(method.objective)(params, batch, {})
    kept = jax.tree.map(lambda x: x[~truncated], batch)
    alone, _ = jax.jit(method.objective)(params, kept, {})
    assert float(loss.weight) == (~truncated).sum()
    np.testing.assert_allclose(loss.total, alone.total, rtol=1e-5)


def test_equal_rewards_give_exactly_zero_gradient(getkey):
    class Constant(helpers.FakeServices):
        def verify(self, rollout, prompts, *, phase):
            reward = np.full(len(rollout.tokens), 0.1, np.float32)
            return Feedback(reward=reward, error=reward > 1, answers=(None,) * P * G)

    params, method = start(getkey), METHODS["grpo"]
    services, key = Constant().bound(), keys.root(0)
    prompts = helpers.FakePool().draw(P)
    rollout = method.generate(services, params, {}, prompts, key)
    batch, _ = method.credit(services, params, {}, rollout, prompts, key)
    f = jax.jit(functools.partial(step.gradient, objective=method.objective))
    grads, _ = f(params, batch, {})
    np.testing.assert_array_equal(grads["table"], np.zeros((3, 3)))


def test_metrics_match_a_slow_loop_off_policy(getkey):
    old = start(getkey)
    method = GRPO(reference=REFERENCE, clip_low=0.1, clip_high=0.3)
    batch, _, _ = one_update(method, old)
    new = {"table": old["table"] + 0.5 * jax.random.normal(getkey(), (3, 3))}
    _, metrics = jax.jit(method.objective)(new, batch, method.frozen)
    logp, was, ref = (
        np.asarray(jax.nn.log_softmax(x["table"]), np.float64)
        for x in (new, old, REFERENCE)
    )
    tokens, want = np.asarray(batch.rollout.tokens), []
    for i, t in zip(*np.nonzero(np.asarray(batch.mask)), strict=True):
        before, after = tokens[i, t - 1], tokens[i, t]
        ratio = np.exp(logp[before, after] - was[before, after])
        d = logp[before, after] - ref[before, after]
        want.append(
            {
                "entropy": -(np.exp(logp[before]) * logp[before]).sum(),
                "kl_old": -np.log(ratio),
                "ratio": ratio,
                "clip_share": ratio < 0.9 or ratio > 1.3,
                "kl_ref": ratio * (np.exp(-d) - 1 + d),
            }
        )
    assert set(metrics) == set(want[0])
    for name, value in metrics.items():
        assert value.weight == len(want)
        mean = np.mean([w[name] for w in want])
        np.testing.assert_allclose(value.total / value.weight, mean, rtol=1e-4)
    assert 0 < metrics["clip_share"].total < len(want)


def test_kl_is_added_per_token_and_reduced_once(getkey):
    """Under a constant denominator too, where adding a token mean would be wrong."""
    params = start(getkey)
    reduce = functools.partial(losses.constant_length, length=9)
    shared = {"reference": REFERENCE, "reduce": reduce}
    without, with_ = GRPO(**shared), GRPO(kl=losses.kl_k2, kl_coefficient=2.0, **shared)
    batch, _, _ = one_update(with_, params)
    a, _ = jax.jit(without.objective)(params, batch, {})
    b, _ = jax.jit(with_.objective)(params, batch, {})
    d = batch.rollout.logp - batch.targets["logp_ref"]
    extra = np.where(batch.mask, np.asarray(d) ** 2, 0).sum()  # 2 * d^2 / 2
    np.testing.assert_allclose(b.total - a.total, extra, rtol=1e-4)
    assert a.weight == b.weight == P * G * 9


def test_an_objective_with_a_divergence_refuses_a_batch_without_the_reference(getkey):
    batch, _, _ = one_update(METHODS["grpo"], start(getkey))
    with pytest.raises(KeyError, match="logp_ref"):
        METHODS["grpo_kl"].objective(start(getkey), batch, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group_size": 1}, "group_size=1 leaves nothing to compare"),
        ({"kl": losses.kl_k2}, "needs reference weights"),
        ({"kl_in_reward": 0.1}, "needs reference weights"),
        ({"kl_coefficient": 0.1}, "kl_coefficient=0.1 has no divergence"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        GRPO(**given)


def test_next_token_is_the_mean_negative_log_probability_of_completions(getkey):
    params, method = start(getkey), METHODS["next_token"]
    batch, _, _ = one_update(method, params)
    loss, _ = jax.jit(method.objective)(params, batch, ())
    logp = np.asarray(jax.nn.log_softmax(params["table"]))
    # BOS, 1, EOS for even and BOS, 1, 1, EOS for odd numbers.
    nll = [-(logp[0, 1] + n % 2 * logp[1, 1] + logp[1, 2]) for n in range(P * G)]
    np.testing.assert_allclose(loss.total, np.sum(nll), rtol=1e-5)
    assert loss.weight == 2.5 * P * G


def test_given_sequences_are_laid_out_like_sampled_ones():
    got = supervised.given([("a", [5, 6], [7, 2]), ("b", [5], [2])], width=5)
    np.testing.assert_array_equal(got.tokens, [[5, 6, 7, 2, 0], [5, 2, 0, 0, 0]])
    np.testing.assert_array_equal(
        got.sampled, [[False, False, True, True, False], [False, True] + [False] * 3]
    )
    np.testing.assert_array_equal(got.prompt_length, [2, 1])
    np.testing.assert_array_equal(got.length, [4, 2])
    assert not np.asarray(got.truncated).any()


@pytest.mark.parametrize("row", [([], [1]), ([1], []), ([1, 1], [1, 1, 1])])
def test_sequences_that_do_not_fit_are_refused_by_name(row):
    with pytest.raises(ValueError, match=r"problem 'x' has .* width=4"):
        supervised.given([("x", *row)], width=4)


def test_uniform_selection_walks_through_the_pool(getkey):
    pool, method = helpers.FakePool(), METHODS["grpo"]
    seen = []
    for _ in range(2):
        picked, state = method.select(None, {}, (), pool, getkey())
        assert (state, picked.rollout) == ((), None)
        seen += [p.id for p in picked.prompts]
    assert seen == [str(i) for i in range(2 * P)]


@pytest.mark.parametrize("advantage", options.ADVANTAGES)
@pytest.mark.parametrize("loss", options.LOSSES)
def test_every_named_combination_makes_a_method(advantage, loss):
    GRPO(**options.advantage(advantage), **options.loss(loss))


@pytest.mark.parametrize("name", options.AGGREGATIONS)
def test_every_named_aggregation_reduces_a_batch(name):
    reduce = options.aggregation(name, length=4)
    got = reduce(jnp.ones((2, 3)), jnp.ones((2, 3), bool))
    want = {"token_mean": 1, "sequence_mean": 1, "sequence_sum": 3, "constant": 3 / 4}
    np.testing.assert_allclose(got.total / got.weight, want[name], rtol=1e-6)


def test_options_of_names_reach_the_functions():
    compare = options.advantage("group_relative", ddof=0, epsilon=1.0)["compare"]
    # mean 1/2, std 1/2 (ddof 0), plus 1
    np.testing.assert_allclose(compare(jnp.array([0.0, 1.0])), [-1 / 3, 1 / 3])
    entry = options.advantage("batch", ddof=0, epsilon=1.0)
    assert float(entry["scale"](jnp.array([[0.0, 1.0]]))) == pytest.approx(1.5)
    surrogate = options.loss("clipped", dual_clip=3.0)["loss"]
    got = surrogate(jnp.log(jnp.array([5.0])), jnp.zeros(1), jnp.array([-2.0]))
    np.testing.assert_allclose(got, [6.0], rtol=1e-5)


def test_unknown_names_and_useless_options_are_refused():
    with pytest.raises(ValueError, match="loss='ppo' is not known; use one of clipped"):
        options.loss("ppo")
    with pytest.raises(
        ValueError, match=r"dual_clip=3\.0 bounds the clipped surrogate"
    ):
        options.loss("cispo", dual_clip=3.0)
    with pytest.raises(ValueError, match=r"dual_clip=0\.5 must be above 1"):
        options.loss("clipped", dual_clip=0.5)


def test_methods_hold_no_arrays_outside_frozen(getkey):
    """An array closed over would become a constant of the compiled step."""
    params, method = start(getkey), METHODS["grpo_kl"]
    batch, _, _ = one_update(method, params)
    big = {"reference": {"table": jnp.ones((3, 3)) * 1.2345}}
    text = jax.jit(method.objective).lower(params, batch, big).as_text()
    assert "1.2345" not in text
    other = dataclasses.replace(batch, advantage=batch.advantage * 2)
    same = jax.jit(method.objective).lower(params, other, big).as_text()
    assert text == same
