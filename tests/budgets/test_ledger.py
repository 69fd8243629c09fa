import ast
import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest

from budgets import jsonl, ledger
from budgets.ledger import MATCHED, Budget, Charge, Cost, Ledger, Phase

FIELDS = (
    "update stage role phase generated prefilled trained sequences device_seconds"
    " flops prompts labels verifier_calls inside_budget"
).split()


def sample(book, update, tokens, seconds=0.0, phase=Phase.ROLLOUT):
    cost = Cost(generated=tokens, device_seconds=seconds)
    return book.charge(update, "grpo", "policy", phase, cost)


def test_matched_phases_are_the_eight_of_the_accounting_rules():
    assert [phase.value for phase in MATCHED] == [
        "rollout",
        "candidate",
        "continuation",
        "teacher_rollout",
        "teacher_score",
        "reference",
        "train",
        "host",
    ]
    assert [p.value for p in Phase if p not in MATCHED] == [
        "compile",
        "pretrain",
        "eval",
        "checkpoint",
    ]


def test_costs_add_field_by_field_without_rounding():
    names = [field.name for field in dataclasses.fields(Cost)]
    a = Cost(**{n: 2**70 + i for i, n in enumerate(names) if n != "device_seconds"})
    b = Cost(**{n: 10 * i for i, n in enumerate(names) if n != "device_seconds"})
    total = a + b + Cost(device_seconds=0.5) + Cost(device_seconds=0.25)
    for i, name in enumerate(names):
        wanted = 0.75 if name == "device_seconds" else 2**70 + 11 * i
        assert getattr(total, name) == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        {"generated": -1},
        {"device_seconds": -0.1},
        {"device_seconds": float("nan")},
        {"device_seconds": float("inf")},
    ],
)
def test_cost_refuses_values_out_of_range(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Cost(**wrong)


@pytest.mark.parametrize("value", [1.0, True, np.int64(1), "1"])
def test_cost_refuses_what_is_no_exact_integer(value):
    # Called past the type checker of the tests, which would answer first.
    cost = object.__new__(Cost)
    for field in dataclasses.fields(Cost):
        object.__setattr__(cost, field.name, field.default)
    object.__setattr__(cost, "flops", value)
    with pytest.raises(ValueError, match=r"Cost\.flops"):
        cost.__post_init__()


def test_row_on_disk_has_exactly_the_documented_fields_before_charge_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    cost = Cost(generated=3, device_seconds=0.1, flops=10**20)
    charge = book.charge(2, "grpo", "policy", Phase.ROLLOUT, cost)
    (line,) = path.read_text().splitlines()
    row = json.loads(line)
    assert list(row) == FIELDS
    assert (row["update"], row["phase"], row["flops"]) == (2, "rollout", 10**20)
    assert Charge.from_json(row) == charge


def test_rows_with_missing_or_unknown_fields_are_refused_by_name():
    row = sample(Ledger(), 1, 1).to_json()
    with pytest.raises(ValueError, match="tokens"):
        Charge.from_json(row | {"tokens": 1})
    del row["labels"]
    with pytest.raises(ValueError, match="labels"):
        Charge.from_json(row)


def test_inside_budget_turns_false_with_the_row_that_passes_and_stays_so():
    book = Ledger(budget=Budget(tokens=10, device_seconds=5.0))
    # Cumulative tokens 6, 10 (reached, not passed), 10, 11, 11.
    rows = [
        sample(book, 1, 6),
        sample(book, 1, 4),
        sample(book, 2, 0, phase=Phase.TRAIN),
        sample(book, 2, 1),
        sample(book, 2, 0, phase=Phase.TRAIN),
    ]
    assert [row.inside_budget for row in rows] == [True, True, True, False, False]
    assert book.passed() == ("tokens",)
    sample(book, 2, 0, seconds=5.5)
    assert book.passed() == ("tokens", "device_seconds")


def test_work_past_the_wanted_updates_is_outside():
    book = Ledger(budget=Budget(updates=2, tokens=100))
    assert [sample(book, u, 1).inside_budget for u in (1, 2, 3)] == [True, True, False]
    assert book.passed() == ("updates",)


def test_phases_outside_the_budget_never_count_and_inherit_the_state():
    book = Ledger(budget=Budget(tokens=10, device_seconds=1.0, updates=3))
    early = [sample(book, 9, 50, 9.0, phase=p) for p in Phase if p not in MATCHED]
    assert all(row.inside_budget for row in early)
    assert book.total() == Cost()
    sample(book, 1, 11)
    assert not sample(book, 1, 0, phase=Phase.EVAL).inside_budget
    assert book.total().generated == 11


def test_totals_by_phase_and_update_equal_a_slow_sum():
    rng = np.random.default_rng(0)
    book = Ledger()
    slow: dict = {}
    for _ in range(200):
        update, phase = int(rng.integers(4)), list(Phase)[rng.integers(len(Phase))]
        tokens = int(rng.integers(100))
        sample(book, update, tokens, phase=phase)
        slow[update, phase] = slow.get((update, phase), 0) + tokens
    for phase, cost in book.by_phase().items():
        wanted = sum(n for (_, p), n in slow.items() if p == phase)
        assert cost.generated == wanted
    for update in range(4):
        wanted = sum(n for (u, p), n in slow.items() if u == update and p in MATCHED)
        assert book.update_total(update).generated == wanted
    assert book.total().generated == sum(
        n for (_, p), n in slow.items() if p in MATCHED
    )


def play(budget, per_update, train_seconds=0.0):
    """Runs updates of given tokens; returns those trained and those sampled only."""
    book, trained = Ledger(budget=budget), []
    for update, tokens in enumerate(per_update, start=1):
        sample(book, update, tokens)
        if book.ends_on_sampling(update):
            assert book.ended(update)
            return trained, [update]
        trained.append(update)
        sample(book, update, 0, train_seconds, phase=Phase.TRAIN)
        if book.ended(update):
            return trained, []
    return trained, None


# Ten tokens an update throughout; the last number is what never got to train.
@pytest.mark.parametrize(
    ("budget", "trained", "untrained"),
    [
        (Budget(updates=3), 3, []),
        # Tokens are enough for five updates: both waits for them, first does not.
        (Budget(updates=3, tokens=50), 5, []),
        (Budget(updates=3, tokens=50, until="first"), 3, []),
        # 45 tokens: update 5 passes them while sampling.
        (Budget(updates=3, tokens=45), 4, [5]),
        (Budget(updates=9, tokens=45, until="first"), 4, [5]),
        # Under both, updates past the tokens are trained until there are enough.
        (Budget(updates=6, tokens=45), 6, []),
        # Update 5 passes the tokens and is the last one wanted: trained.
        (Budget(updates=5, tokens=45), 5, []),
        (Budget(updates=5, tokens=45, until="first"), 4, [5]),
        (Budget(tokens=30), 3, []),
        (Budget(tokens=29), 2, [3]),
        (Budget(tokens=29, until="first"), 2, [3]),
        # Two seconds of training an update: 5 s are passed after update 3 trained.
        (Budget(device_seconds=5.0), 3, []),
        (Budget(device_seconds=5.0, tokens=20, until="first"), 2, []),
        # Update 3 passes the tokens; the seconds, passed later, end the run.
        (Budget(device_seconds=7.0, tokens=25), 4, []),
        # Seconds are passed after update 2 trained; sampling 5 passes the tokens.
        (Budget(device_seconds=3.0, tokens=45), 4, [5]),
    ],
)
def test_run_ends_where_the_rules_say(budget, trained, untrained):
    result = play(budget, [10] * 20, train_seconds=2.0)
    assert result == (list(range(1, trained + 1)), untrained)


def test_without_a_limit_a_run_never_ends():
    for until in ("both", "first"):
        assert play(Budget(until=until), [10] * 5) == ([1, 2, 3, 4, 5], None)


def test_zero_updates_end_before_the_first():
    assert Ledger(budget=Budget(updates=0)).ended(0)


def test_reading_back_continues_where_the_file_ends(tmp_path):
    path, budget = tmp_path / "ledger.jsonl", Budget(tokens=20, updates=9)
    book = Ledger(path, budget)
    for update in (1, 2):
        sample(book, update, 9, 0.1 * update)
    again = Ledger(path, budget)
    assert again.rows == book.rows
    assert again.total() == book.total()
    assert not sample(again, 3, 3).inside_budget
    assert len(Ledger.read(path).rows) == 3
    sample(Ledger.read(path), 4, 1)
    assert len(Ledger.read(path).rows) == 3, "a read ledger must not write"


def test_torn_last_line_is_dropped_and_a_torn_line_before_it_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    sample(book, 1, 1)
    whole = path.read_text()
    for cut in range(1, len(whole) - 1):
        path.write_text(whole + whole[:cut])
        assert len(Ledger.read(path).rows) == 1
        sample(Ledger(path), 2, 1)
        assert [row.update for row in Ledger.read(path).rows] == [1, 2]
    path.write_text(whole + whole[:40] + "\n" + whole)
    with pytest.raises(ValueError, match=r"ledger\.jsonl:2: "):
        Ledger.read(path)


def test_restore_moves_later_rows_to_lost_and_keeps_the_restored_update(tmp_path):
    path, lost = tmp_path / "ledger.jsonl", tmp_path / "lost.jsonl"
    book = Ledger(path)
    for update, seconds in ((0, 0.1), (1, 0.2), (2, 0.3), (2, 0.4), (3, 0.5)):
        sample(book, update, 5, seconds)
    moved = ledger.restore(path, 2)
    assert [row.update for row in Ledger.read(path).rows] == [0, 1, 2, 2]
    assert [row.cost.device_seconds for row in moved] == [0.5]
    sample(Ledger(path), 3, 5, 0.6)
    ledger.restore(path, 1)
    assert [row["device_seconds"] for row in jsonl.read(lost)] == [0.5, 0.3, 0.4, 0.6]
    assert [row.update for row in Ledger.read(path).rows] == [0, 1]
    ledger.restore(path, -1)
    assert Ledger.read(path).rows == []
    assert len(jsonl.read(lost)) == 6


def test_restore_killed_at_any_point_loses_and_doubles_nothing(tmp_path, monkeypatch):
    path, lost = tmp_path / "ledger.jsonl", tmp_path / "lost.jsonl"

    class Killed(Exception):
        pass

    for survives in range(3):
        path.unlink(missing_ok=True)
        lost.unlink(missing_ok=True)
        book = Ledger(path)
        for update in (1, 2, 3, 4):
            sample(book, update, 5, 0.1 * update)
        calls, replace = [], os.replace

        def dying(*names, calls=calls, replace=replace, survives=survives):
            if len(calls) == survives:
                raise Killed
            calls.append(names)
            replace(*names)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dying)
            if survives < 2:
                with pytest.raises(Killed):
                    ledger.restore(path, 2)
            else:
                ledger.restore(path, 2)
        ledger.restore(path, 2)
        assert [row["update"] for row in jsonl.read(path)] == [1, 2]
        assert [row["update"] for row in jsonl.read(lost)] == [3, 4]


def test_budgets_import_neither_jax_nor_the_packages_above():
    root = pathlib.Path(__file__).parents[2] / "budgets"
    for file in root.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] not in {"jax", "grpo_jax", "distill_jax"}


def test_restore_also_loses_the_charges_of_unfinished_work(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    for update, phase in ((1, Phase.TRAIN), (2, Phase.EVAL), (2, Phase.EVAL)):
        sample(book, update, 1, 0.0, phase)  # the last two are equal
    for _ in range(2):
        ledger.restore(path, 2, unfinished={2})
        assert [r.phase for r in Ledger.read(path).rows] == [Phase.TRAIN, Phase.EVAL]
        assert len(jsonl.read(tmp_path / "lost.jsonl")) == 1
