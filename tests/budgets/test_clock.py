import pytest

from budgets.clock import Clock, drift, drifted


def test_laps_are_wall_seconds_between_fences_times_devices():
    # The fence takes one second of this clock, so it must come before the reading.
    time = {"now": 10.0}
    fenced = []

    def fence(value):
        fenced.append(value)
        time["now"] += 1.0

    clock = Clock(fence, devices=4, now=lambda: time["now"])
    time["now"] += 2.0
    assert clock.lap("work") == 4 * (2.0 + 1.0)
    time["now"] += 0.5
    assert clock.lap() == 4 * (0.5 + 1.0)
    assert fenced == ["work", None]


def test_drift_is_a_share_of_the_time_before_in_either_direction():
    assert drift(2.0, 2.5) == 0.25
    assert drift(2.0, 1.5) == -0.25
    assert [drifted(1.0, t) for t in (0.85, 0.95, 1.05, 1.15)] == [1, 0, 0, 1]
    with pytest.raises(ValueError, match="before=0"):
        drift(0.0, 1.0)
