"""Advantages of steps from the values around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import continuations, credit

pytestmark = pytest.mark.usefixtures("strict")
SCALES = {
    "std": credit.in_spreads,
    "whiten": credit.whitened,
    "none": credit.as_they_are,
}


def test_variants_match_values_by_hand():
    values = jnp.array([0.5, 0.25, 0.75, 1.0])
    np.testing.assert_allclose(credit.step_advantages(values), [-0.25, 0.5, 0.25])
    np.testing.assert_allclose(credit.return_to_go(values), [0.5, 0.75, 0.25])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=7))
def test_differences_telescope_to_the_outcome_minus_the_first_value(values):
    values = np.array(values, np.float32)
    got = np.asarray(credit.step_advantages(jnp.asarray(values)), np.float64)
    np.testing.assert_allclose(got.sum(), values[-1] - values[0], atol=1e-6)
    rest = np.asarray(credit.return_to_go(jnp.asarray(values)))
    np.testing.assert_allclose(rest, got[::-1].cumsum()[::-1], atol=1e-6)


ADVANTAGES = np.array([[0.5, -0.25, 0.0], [1.0, 9.0, 9.0]], np.float32)
REAL = np.array([[True, True, True], [True, False, False]])


def test_scales_match_a_slow_loop_over_real_steps():
    some = ADVANTAGES[REAL].astype(np.float64)  # each real step once
    spread = some.std() + 1e-6
    wanted = {
        "std": ADVANTAGES / spread,
        "whiten": (ADVANTAGES - some.mean()) / spread,
        "none": ADVANTAGES,
    }
    for name, scale in SCALES.items():
        got = scale(jnp.asarray(ADVANTAGES), jnp.asarray(REAL))
        np.testing.assert_allclose(
            got, np.where(REAL, wanted[name], 0), rtol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_what_is_no_step_touches_nothing(scale):
    other = np.where(REAL, ADVANTAGES, np.nan).astype(np.float32)
    np.testing.assert_array_equal(
        scale(jnp.asarray(other), jnp.asarray(REAL)),
        scale(jnp.asarray(ADVANTAGES), jnp.asarray(REAL)),
    )


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_equal_steps_are_not_blown_up_by_rounding(scale):
    for value in (0.0, 0.1, 1 / 3):
        equal = jnp.full((3, 2), value, jnp.float32)
        got = np.asarray(scale(equal, jnp.ones((3, 2), bool)))
        assert np.abs(got).max() <= value


def test_a_table_of_values_repeats_the_outcome_behind_a_rows_own_steps():
    got = continuations.table(
        np.array([0.5, 0.25]), [[0.75], []], np.array([1.0, 0.0]), max_steps=3
    )
    np.testing.assert_array_equal(got, [[0.5, 0.75, 1, 1], [0.25, 0, 0, 0]])
    steps = jax.vmap(credit.step_advantages)(jnp.asarray(got))
    np.testing.assert_array_equal(steps, [[0.25, 0.25, 0], [-0.25, 0, 0]])


def test_the_others_of_a_group_are_its_first_value():
    got = continuations.leave_one_out(np.array([1.0, 0, 0, 1, 1, 1]), 3)
    np.testing.assert_allclose(got, [0, 0.5, 0.5, 1, 1, 1])


def test_every_token_of_a_step_has_its_advantage_and_no_other_token_any():
    at = continuations.Steps([[4, 6], [3]], np.array([2, 1]))
    got = continuations.over_tokens(at, np.array([[1.0, 2.0], [3.0, 9.0]]), 7)
    np.testing.assert_array_equal(got, [[0, 0, 1, 1, 2, 2, 0], [0, 3, 3, 0, 0, 0, 0]])
    np.testing.assert_array_equal(at.count, [2, 1])
