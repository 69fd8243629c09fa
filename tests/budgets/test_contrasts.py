"""Registered contrasts and their correction."""

import pytest

from budgets import contrasts
from budgets.bootstrap import Interval


def test_holm_matches_values_by_hand():
    # Sorted: 0.01 * 4, 0.02 * 3, 0.03 * 2, 0.5 * 1; each at least the one before.
    got = contrasts.holm([0.03, 0.01, 0.5, 0.02])
    assert got == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert contrasts.holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert contrasts.holm([0.6, 0.7]) == [1.0, 1.0]
    assert contrasts.holm([]) == []


def differences(known):
    def differ(arm, against, grid, fresh):
        return known.get((arm, against, grid, fresh))

    return differ


def interval(p):
    return Interval(0.1, 0.0, 0.2, p)


def test_the_reversal_needs_both_of_its_parts():
    known = {
        ("dense", "grpo", "updates", False): interval(0.001),
        ("grpo", "dense", "tokens", False): interval(0.2),
        ("dense", "grpo", "device_seconds", False): interval(0.7),
    }
    outcomes, missing = contrasts.tested(contrasts.registered(), differences(known))
    assert [o.contrast.name for o in outcomes] == ["T1"]
    assert (outcomes[0].p, outcomes[0].p_holm) == (0.2, 0.2)
    assert [part.grid for part, _ in outcomes[0].beside] == ["device_seconds"]
    assert sorted(missing) == ["T2", "T3", "T4", "T5"]
    assert "not supported" in contrasts.verdict(outcomes[0])
    assert missing["T4"] == "no runs of filter and filter-hard at equal tokens"
    assert missing["T5"] == "no runs of filter and grpo at fresh problems"


def test_holm_is_over_what_was_tested():
    known = {
        ("filter", "grpo", "tokens", False): interval(0.02),
        ("filter", "random", "tokens", False): interval(0.04),
        ("filter", "grpo", "tokens", True): interval(0.01),
        ("filter", "filter-hard", "tokens", False): interval(0.5),
        ("filter-hard", "grpo", "tokens", False): interval(0.9),
    }
    outcomes, missing = contrasts.tested(contrasts.registered(), differences(known))
    got = {o.contrast.name: o.p_holm for o in outcomes}
    # 0.01 * 4, 0.02 * 3, 0.04 * 2, 0.5
    assert got == pytest.approx({"T5": 0.04, "T2": 0.06, "T3": 0.08, "T4": 0.5})
    assert list(missing) == ["T1"]
    lines = contrasts.lines(outcomes, missing)
    assert lines[-1] == "T1: not tested, no runs of dense and grpo at equal updates"
    assert sum("not supported" in line for line in lines) == 3
