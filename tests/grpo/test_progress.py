import io
import math

import pytest

from budgets.ledger import Budget, Cost, Ledger, Phase
from grpo_jax.progress import Progress, budget_left, duration, updates_left


class Terminal(io.StringIO):
    def isatty(self):
        return True


def screen(text):
    """What a terminal shows: a carriage return with erasure starts the row afresh."""
    return [row.rpartition("\r\x1b[K")[2] for row in text.split("\n")]


def make(stream, budget=None, tokens=100):
    """A display over a ledger; `step` lets seconds pass and shows an update."""
    book, time = Ledger(budget=budget or Budget(updates=10)), {"now": 0.0}
    progress = Progress(book, stream=stream, now=lambda: time["now"])

    def step(update, seconds):
        time["now"] += seconds
        cost = Cost(generated=tokens, device_seconds=float(seconds))
        book.charge(update, "grpo", "policy", Phase.ROLLOUT, cost)
        progress.update(
            {
                "update": update,
                "reward": 0.25,
                "truncated_share": 0.125,
                "tokens_generated": tokens,
            }
        )

    return progress, step


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        # After 4 updates: 40 tokens and 8 seconds spent, so 10 and 2 an update.
        (Budget(updates=10), 6),
        (Budget(tokens=100), 6),
        (Budget(device_seconds=9.0), 0.5),
        (Budget(updates=5, tokens=100), 6),
        (Budget(updates=5, tokens=100, until="first"), 1),
        (Budget(tokens=30), 0),
        (Budget(), math.inf),
    ],
)
def test_updates_left_worked_by_hand(budget, left):
    total = Cost(generated=40, device_seconds=8.0)
    assert updates_left(budget, total, 4) == left


def test_budget_left_names_each_limit():
    budget = Budget(updates=10, tokens=5000, device_seconds=100.0)
    total = Cost(generated=1000, device_seconds=39.5)
    assert budget_left(budget, total, 4) == "6 updates, 4,000 tokens, 1m 01s of devices"
    assert budget_left(Budget(), total, 4) == "no limit"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1s"),
        (59.0, "59s"),
        (59.5, "1m 00s"),
        (3600.0, "1h 00m"),
        (7384.0, "2h 03m"),
        (math.inf, "?"),
    ],
)
def test_durations_read_in_two_units(seconds, text):
    assert duration(seconds) == text


def test_a_terminal_keeps_one_line_and_ends_below_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    progress, step = make(stream)
    step(1, 2)
    progress.evaluated(0.5)
    step(2, 2)
    progress.close()
    assert screen(stream.getvalue()) == [
        "update 2/10 | reward 0.250 | accuracy 0.500 | 50 tokens/s | truncated 12%"
        " | left 8 updates | 16s to go",
        "",
    ]


def test_a_warning_on_a_terminal_stays_above_the_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    progress, step = make(stream)
    step(1, 2)
    progress.say("warning: x")
    progress.close()
    rows = screen(stream.getvalue())
    assert rows[0] == "warning: x"
    assert rows[1].startswith("update 1/10")


def test_a_narrow_terminal_never_wraps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    progress, step = make(stream)
    step(1, 2)
    progress.close()
    assert max(map(len, screen(stream.getvalue()))) == 19


def test_elsewhere_lines_come_seconds_apart_and_the_last_one_always():
    stream = io.StringIO()
    progress, step = make(stream)
    for update in range(1, 9):
        step(update, 2)
    progress.say("warning: x")
    progress.close()
    progress.close()
    lines = stream.getvalue().splitlines()
    # At 2, 8 and 14 seconds; the warning; the state at 16 when it ends.
    assert [line.split(" |")[0] for line in lines] == [
        "update 1/10",
        "update 4/10",
        "update 7/10",
        "warning: x",
        "update 8/10",
    ]
    assert "\r" not in stream.getvalue()


def test_time_left_is_not_led_by_the_first_update_that_compiles():
    stream = io.StringIO()
    progress, step = make(stream)
    step(1, 100)
    for update in (2, 3, 4):
        step(update, 10)
    progress.close()
    assert stream.getvalue().splitlines()[-1].endswith("1m 00s to go")


def test_an_evaluation_is_no_part_of_the_next_update():
    stream, time = io.StringIO(), {"now": 0.0}
    book = Ledger(budget=Budget(updates=10))
    progress = Progress(book, stream=stream, every=0.0, now=lambda: time["now"])
    time["now"] = 500.0
    progress.begin_evaluation(0, 0, 64)
    time["now"] = 600.0
    progress.evaluating(64, 500)
    progress.evaluated(0.5)
    time["now"] = 602.0
    row = {"reward": 0.0, "truncated_share": 0.0, "tokens_generated": 100}
    progress.update(row | {"update": 1})
    assert "| 50 tokens/s |" in stream.getvalue()


def test_an_evaluation_shows_its_speed_and_what_is_left():
    stream, time = io.StringIO(), {"now": 0.0}
    progress = Progress(Ledger(), stream=stream, every=0.0, now=lambda: time["now"])
    progress.begin_evaluation(3, 20, 100)  # 20 of 100 problems by an earlier process
    # Seconds per problem of the parts: 3 (which compiles), 1, 1; the median is 1.
    for seconds in (60.0, 20.0, 20.0):
        time["now"] += seconds
        progress.evaluating(20, 400)
    assert stream.getvalue().splitlines()[-1] == (
        "evaluating after update 3 | 80/100 problems | 20 tokens/s | 20s to go"
    )
    time["now"] += 20.0
    progress.evaluating(20, 400)
    assert "to go" not in stream.getvalue().splitlines()[-1]
