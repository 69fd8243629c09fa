"""Responses made to hold, crash or fool the grader."""

import json
import pathlib
import sys
import time

import pytest

from grpo_jax import rewards

# A number, an expression, an interval, words, a list and a set with a sign.
GOLDS = ["7", "x^2+4x+3", r"(-\infty,3]", r"\text{Evelyn}", "6,8", r"1 \pm \sqrt{19}"]
UNITS = (
    "9|1,|{|}|\\boxed{|\\boxed|\0|\ud800|the answer is |-|1/|\\frac{1}{|1.1.|the |####|"
    "<answer>|</answer>|1e|,111|$| |\n|=|+-|\\frac11|. |\\|1 |*|\\$|\\(|\\)|\\[|(|\\{|"
    "\\text{|\2|\3|_|^|9^|9**|!|\\sqrt{|\\begin{pmatrix}|\\cup|or |a/|/|a and |m²|½|"
    "answer: |10^|\\approx|% |\\boxed{}|\\boxed 1|<think>|<|a|>|,\\!|\\\\|&|:|\\in |9 9"
).split("|")


def best(response, gold):
    """The least of three times in seconds: other processes only ever add."""

    def seconds():
        rewards._judge.cache_clear()
        start = time.perf_counter()
        verdict = rewards.grade(response, gold)
        taken = time.perf_counter() - start
        assert not verdict.correct
        assert verdict.error is None
        return taken

    taken = seconds()
    return taken if taken < 0.02 else min(taken, seconds(), seconds())


@pytest.fixture(scope="module", autouse=True)
def started_worker():
    """Starts the symbolic worker, whose imports are not the answer's time."""
    assert rewards.grade(r"\boxed{2+2x}", "2(x+1)").correct


@pytest.mark.parametrize("unit", UNITS)
def test_a_megabyte_of_anything_is_graded_at_once(unit):
    megabyte = unit * (10**6 // max(len(unit), 1))
    for gold in ("7", "x^2+4x+3"):
        assert best(megabyte, gold) < 0.05
        assert best("the answer is " + megabyte, gold) < 0.05


@pytest.mark.parametrize("unit", UNITS)
def test_a_box_full_of_anything_is_graded_at_once(unit):
    for length in (990, 380):
        box = rf"\boxed{{{unit * (length // max(len(unit), 1))}}}"
        for gold in GOLDS:
            assert best(box, gold) < 0.05


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9**9",
        "9^{9^{9^9}}",
        "(10^9)!",
        "9999!!!!",
        "((((9!)!)!)!)!",
        "10^{999999999}",
        r"\binom{10^9}{5*10^8}",
        r"\sum_{n=1}^{10^{12}} n",
        "2^{2^{2^{2^{2}}}}",
        "1e999999999",
        r"\prod_{n=1}^{99999} n",
        "{" * 400 + "7" + "}" * 400,
        r"\frac{1}{" * 60 + "2" + "}" * 60,
        "7\0",
        "9" * 999,
    ],
)
def test_an_answer_that_could_grow_without_bound_is_screened_out(answer):
    for gold in GOLDS[1:]:
        assert best(rf"\boxed{{{answer}}}", gold) < 0.05


def test_ten_thousand_nested_braces_and_boxes_are_matched_at_once():
    text = r"\boxed{7} " + "{" * 10_000 + r"\boxed{8}" + "}" * 10_000
    assert rewards.extract(text) == "8"
    assert best(text, "7") < 0.05
    assert best(r"\boxed{" * 10_000 + "7" + "}" * 10_000, "7") < 0.05


def test_digits_beyond_pythons_integer_limit_are_wrong_and_raise_nothing():
    digits = "9" * (sys.get_int_max_str_digits() + 10)
    assert rewards.grade(rf"\boxed{{{digits}}}", "7") == (False, None, None)
    assert rewards.grade(r"\boxed{7}", digits) == (False, "7", None)


@pytest.mark.parametrize("gold", GOLDS)
def test_code_is_never_run(gold, tmp_path):
    mark = tmp_path / "mark"
    for code in (
        f"__import__('pathlib').Path({json.dumps(str(mark))}).touch()",
        f"open('{mark}','w')",
        rf"\text{{__import__('os').system('touch {mark}')}}",
    ):
        assert not rewards.grade(rf"\boxed{{{code}}}", gold).correct
        assert not rewards.grade(code, gold).correct
    assert not pathlib.Path(mark).exists()
