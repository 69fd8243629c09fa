"""At which updates a run is evaluated, against the reading rule done slowly."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from budgets.ledger import Cost
from grpo_jax import points
from grpo_jax.config_schema import Evaluation


def cost(tokens, seconds=0.0):
    return Cost(generated=tokens, device_seconds=seconds)


def evaluated(wanted, charges, *, trained=None):
    """What the run's loop does with `Points`, on charges alone."""
    grid, spent, learned, found = points.Points(wanted), Cost(), 0, []
    held = None
    for number, charge in enumerate(charges, start=1):
        after, over = spent + charge, number == len(charges)
        if held is not None and grid.passed(spent, after):
            found.append(held)
        if trained is None or trained[number - 1]:
            learned = number
        held = learned if learned and grid.ahead(after) else None
        spent = after
        if grid.at(learned, spent, over=over):
            found.append(learned)
    return sorted(set(found))


def slow(wanted, charges, *, trained=None):
    """For each point, the last trained update whose cumulative charge is within it."""
    keep = trained or [True] * len(charges)
    tokens = np.cumsum([c.generated for c in charges])
    seconds = np.cumsum([c.device_seconds for c in charges])
    found = {u for u in wanted.at_updates if u <= len(charges) and keep[u - 1]}
    for grid, totals in (
        (wanted.at_tokens, tokens),
        (wanted.at_device_seconds, seconds),
    ):
        for g in grid:
            within = [
                u for u, t in enumerate(totals, start=1) if t <= g and keep[u - 1]
            ]
            found |= {max(within)} if within else set()
    return sorted(found)


def test_what_is_evaluated_is_what_every_point_reads():
    rng = np.random.default_rng(0)
    for _ in range(300):
        charges = [
            cost(int(t), float(s))
            for t, s in zip(rng.integers(1, 6, 12), rng.integers(1, 4, 12), strict=True)
        ]
        pick = lambda most, size: sorted({int(x) for x in rng.integers(1, most, size)})
        wanted = Evaluation(
            at_updates=pick(13, 3),
            at_tokens=pick(50, 3),
            at_device_seconds=[float(x) for x in pick(40, 3)],
        )
        trained = [True] * 11 + [bool(rng.integers(2))]
        assert evaluated(wanted, charges, trained=trained) == slow(
            wanted, charges, trained=trained
        )


def test_a_charge_equal_to_the_point_is_within_it():
    wanted = Evaluation(at_tokens=[10])
    assert evaluated(wanted, [cost(4), cost(6), cost(5)]) == [2]
    assert evaluated(wanted, [cost(4), cost(7), cost(5)]) == [1]


def test_a_point_before_the_first_update_reads_the_base_which_is_no_update():
    assert evaluated(Evaluation(at_tokens=[3]), [cost(4), cost(6)]) == []


def test_without_lists_the_ends_and_every_nth_update_are_evaluated():
    grid = points.Points(Evaluation(every=3))
    assert not grid.listed
    assert [grid.at(u, Cost(), over=u == 7) for u in range(8)] == [
        *(True, False, False, True, False, False, True, True)
    ]
    grid = points.Points(dataclasses.replace(Evaluation(), before=False))
    assert not grid.at(0, Cost(), over=False)


def test_a_copy_outlives_the_donation_of_what_it_was_made_of():
    params = {"w": jnp.arange(3.0)}
    held = points.copy(params)
    params["w"].delete()
    np.testing.assert_array_equal(held["w"], [0, 1, 2])
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(params["w"])
