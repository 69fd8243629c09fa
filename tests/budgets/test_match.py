"""Which parameters a point reads."""

import pytest

from budgets import match
from budgets.ledger import Cost, Ledger, Phase


def ledger(*updates):
    """Charges of (tokens, seconds) for updates 1, 2, ..., with some outside."""
    made = Ledger()
    made.charge(0, "train", "policy", Phase.EVAL, Cost(generated=999))
    for number, (tokens, seconds) in enumerate(updates, start=1):
        charged = Cost(generated=tokens - 1, device_seconds=seconds)
        made.charge(number, "train", "policy", Phase.ROLLOUT, charged)
        made.charge(number, "train", "policy", Phase.CANDIDATE, Cost(generated=1))
        made.charge(number, "train", "policy", Phase.COMPILE, Cost(device_seconds=77.0))
    return made


RUN = ledger((10, 1.0), (20, 1.0), (30, 2.0))


def test_standings_add_up_the_matched_phases_alone():
    assert match.standings(RUN, {3}) == [
        match.Standing(0),
        match.Standing(1, True, 10, 1.0),
        match.Standing(2, True, 30, 2.0),
        match.Standing(3, False, 60, 4.0),
    ]


@pytest.mark.parametrize(
    ("point", "update", "charge"),
    [(9, 0, 0), (10, 1, 10), (29, 1, 10), (30, 2, 30), (59, 2, 30), (99, 3, 60)],
)
def test_a_point_reads_the_last_update_within_it(point, update, charge):
    got = match.read_at(match.standings(RUN), "tokens", point)
    assert got == (point, update, charge)
    assert got.shortfall == (point - charge) / point


def test_an_update_that_was_not_trained_left_the_parameters_of_the_one_before():
    run = match.standings(RUN, {3})
    assert match.read_at(run, "tokens", 99) == (99, 2, 30)
    assert match.read_at(run, "device_seconds", 9.0) == (9.0, 2, 2.0)
    assert match.read_at(run, "updates", 3) is None
    assert match.read_at(run, "updates", 2) == (2, 2, 2)


def test_grids_are_even_or_what_the_plain_arm_spent():
    assert match.equal_updates(40, 4) == [10, 20, 30, 40]
    assert match.equal_updates(3, 4) == [1, 2, 3]
    assert match.evenly(100, 4) == [25, 50, 75, 100]
    run = match.standings(RUN)
    assert match.spent_at(run, [1, 3]) == ([10, 60], [1.0, 4.0])
    # There the plain arm has no shortfall.
    assert match.read_at(run, "tokens", 60).shortfall == 0
    with pytest.raises(ValueError, match="update 4"):
        match.spent_at(run, [4])
