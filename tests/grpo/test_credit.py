import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grpo_jax import credit

pytestmark = pytest.mark.usefixtures("strict")
COMPARISONS = {
    "group_relative": credit.group_relative,
    "centred": credit.centred,
    "leave_one_out": credit.leave_one_out,
}
every_comparison = pytest.mark.parametrize(
    "compare", COMPARISONS.values(), ids=COMPARISONS
)


def test_comparisons_match_values_by_hand():
    r = jnp.array([0.0, 0.0, 0.0, 1.0])
    # mean 1/4; sum of squares 3/16 + 9/16 = 3/4, over 3: std 1/2, over 4: sqrt(3)/4
    np.testing.assert_allclose(
        credit.group_relative(r, epsilon=0.0), [-0.5, -0.5, -0.5, 1.5], rtol=1e-6
    )
    np.testing.assert_allclose(
        credit.group_relative(r, ddof=0, epsilon=0.0),
        np.array([-1, -1, -1, 3]) / np.sqrt(3),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        credit.group_relative(r, epsilon=0.5), [-0.25, -0.25, -0.25, 0.75], rtol=1e-6
    )
    np.testing.assert_allclose(credit.centred(r), [-0.25, -0.25, -0.25, 0.75])
    # the others' mean: 1/3 for each zero, 0 for the one
    np.testing.assert_allclose(
        credit.leave_one_out(r), [-1 / 3, -1 / 3, -1 / 3, 1.0], rtol=1e-6
    )


def test_batch_spread_is_of_all_rewards_of_the_update():
    r = jnp.array([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    want = np.std([0, 1, 0, 0, 1, 1], ddof=1)
    np.testing.assert_allclose(credit.batch_spread(r, epsilon=0.0), want, rtol=1e-6)
    np.testing.assert_allclose(credit.batch_spread(r, epsilon=1.0), want + 1, rtol=1e-6)
    advantage = jax.vmap(credit.centred)(r) / credit.batch_spread(r, epsilon=0.0)
    np.testing.assert_allclose(advantage[0], [-0.5 / want, 0.5 / want], rtol=1e-6)
    np.testing.assert_array_equal(advantage[1:], np.zeros((2, 2)))


@every_comparison
@pytest.mark.parametrize("size", [2, 3, 5, 6, 7, 12])
def test_equal_rewards_give_exactly_no_credit(compare, size):
    # In float32 the mean of six equal numbers is often off by one ulp: these include
    # such values, or the test would prove nothing.
    values = np.random.default_rng(0).normal(size=300).astype(np.float32)
    groups = jnp.broadcast_to(jnp.asarray(values)[:, None], (300, size))
    got = jax.vmap(compare)(groups)
    np.testing.assert_array_equal(got, np.zeros((300, size)))
    if size == 6:
        assert (groups.mean(1) != values).any()


@every_comparison
def test_a_group_of_one_gets_no_credit(compare):
    np.testing.assert_array_equal(compare(jnp.array([3.0])), [0.0])


@every_comparison
@settings(deadline=None, max_examples=40)
@given(r=hnp.arrays(np.float32, 6, elements=st.floats(-8, 8, width=32)))
def test_credit_sums_to_zero_and_keeps_the_order_of_rewards(compare, r):
    advantage = np.asarray(compare(jnp.asarray(r)))
    assert np.isfinite(advantage).all()
    np.testing.assert_allclose(advantage.sum(), 0.0, atol=1e-3)
    order = np.argsort(r, kind="stable")
    assert (np.diff(advantage[order]) >= 0).all()


@every_comparison
def test_order_of_samples_and_a_common_bonus_do_not_matter(compare, getkey):
    r = jax.random.normal(getkey(), (6,))
    order = jnp.array([3, 1, 5, 0, 2, 4])
    np.testing.assert_allclose(compare(r[order]), compare(r)[order], rtol=1e-5)
    np.testing.assert_allclose(compare(r + 2.0), compare(r), rtol=1e-4)


def test_leave_one_out_matches_a_slow_loop(getkey):
    r = np.asarray(jax.random.normal(getkey(), (7,)))
    want = [r[i] - np.delete(r, i).mean() for i in range(7)]
    np.testing.assert_allclose(credit.leave_one_out(jnp.asarray(r)), want, rtol=1e-5)
