"""What is made of a matrix, against values worked by hand."""

import json

import numpy as np
import pytest

from budgets.ledger import Charge, Cost, Phase
from grpo_jax import evaluation, resumption, scores


def made(ids="abc", correct=((1, 0), (1, 1), (0, 0))):
    correct = np.array(correct, bool)
    answers = [["7" if right else "8" for right in row] for row in correct]
    answers[-1][0] = None
    return evaluation.Evaluation(
        ids=tuple(ids),
        correct=correct,
        errors=np.zeros(correct.shape, bool),
        answers=tuple(map(tuple, answers)),
        lengths=np.arange(correct.size).reshape(correct.shape),
        truncated=np.arange(correct.size).reshape(correct.shape) == 0,
        golds=("7",) * len(correct),
        levels=("3", "4", "4"),
        subjects=("", "", ""),
    )


def test_a_summary_worked_by_hand():
    found = scores.summary(made(), equal=lambda a, b: a == b)
    # Shares of right samples: 1/2, 1, 0.
    assert found["accuracy"] == pytest.approx(0.5)
    assert found["error_over_problems"] == pytest.approx(0.5 / 3**0.5)
    # Only the first problem varies: sqrt(1/4 / (2 - 1)) / 3.
    assert found["error_of_sampling"] == pytest.approx(0.5 / 3)
    assert found["pass_at_k"] == pytest.approx({1: 0.5, 2: 2 / 3})
    # The first problem's 7 and 8 tie: half of it; the last has an 8 and no answer.
    assert found["majority_at_k"] == pytest.approx({1: 0.5, 2: 0.5})
    assert found["no_answer_share"] == pytest.approx(1 / 6)
    assert found["truncated_share"] == pytest.approx(1 / 6)
    assert found["mean_length"] == pytest.approx(2.5)
    assert found["levels"]["3"]["accuracy"] == 0.5
    assert found["levels"]["4"] == {
        "problems": 2,
        "accuracy": 0.5,
        "error_over_problems": pytest.approx(0.5),
        "error_of_sampling": 0.0,
    }
    assert found["subjects"] == {}
    json.dumps(found, allow_nan=False)
    text = "\n".join(scores.lines("dev", made(), found))
    assert "level 4: 0.5000 ± 0.5000 over problems (2 problems)" in text


def test_problems_are_paired_by_name_not_by_place(tmp_path):
    rows = evaluation.rows(made(), update=3, split="dev")
    evaluation.jsonl.extend(tmp_path / "eval.jsonl", rows)
    found = scores.other(tmp_path, "dev", ("c", "a", "b"))
    assert found.ids == ("c", "a", "b")
    assert found.correct.tolist() == [[False, False], [True, False], [True, True]]
    assert found.levels == ("4", "3", "4")
    with pytest.raises(ValueError, match="has 3 problems of dev, 2 of them among"):
        scores.other(tmp_path, "dev", ("c", "a", "x"))
    with pytest.raises(ValueError, match="has no evaluation of test"):
        scores.other(tmp_path, "test", ("c",))


def test_a_recorded_evaluation_is_read_back_as_it_was(tmp_path):
    part = evaluation.Part((), made(), ())
    evaluation.record(tmp_path, part, update=2, split="dev", first=True)
    back = evaluation.read(tmp_path, 2, "dev")
    for mine, theirs in zip(back, made(), strict=True):
        assert np.array_equal(mine, theirs)
    assert evaluation.read(tmp_path, 1, "dev") is None
    assert evaluation.read(tmp_path, 2, "eval") is None


def test_a_comparison_has_the_sign_of_the_better_one():
    better = scores.comparison(made(), made(correct=((0, 0), (1, 0), (0, 0))))
    assert better["difference"] == pytest.approx(1 / 3)
    assert better["accuracy"] == pytest.approx(1 / 6)
    assert better["low"] <= better["difference"] <= better["high"]


def test_only_the_charges_of_the_unfinished_part_are_lost():
    def charge(update, role, phase=Phase.EVAL):
        return Charge(
            update=update,
            stage="train",
            role=role,
            phase=phase,
            cost=Cost(),
            inside_budget=True,
        )

    part = [charge(3, role) for role in ("host", "policy", "host", "verifier", "host")]
    before = [charge(3, "policy", Phase.TRAIN), charge(0, "verifier")]
    # A compilation is no part's: it was spent, and the next process compiles anew.
    charges = [*before, *part, charge(3, "policy", Phase.COMPILE), *part, *part[:3]]
    first = len(before)
    assert resumption.cut_off(charges, 3, 2) == {first + 11, first + 12, first + 13}
    assert min(resumption.cut_off(charges, 3, 1)) == first + 6
    assert resumption.cut_off(charges, 3, 0) == {
        i for i in range(first, len(charges)) if i != first + 5
    }
    assert resumption.cut_off(charges[: first + 5], 3, 1) == set()


def test_a_problem_of_a_part_without_an_end_is_not_kept():
    assert resumption.whole_parts(9, total=10, batch=4) == 8
    assert resumption.whole_parts(10, total=10, batch=4) == 10
    assert resumption.whole_parts(3, total=10, batch=4) == 0
