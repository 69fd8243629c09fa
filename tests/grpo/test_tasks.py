import importlib.util
import math
import random
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import splits, tasks
from grpo_jax.base import Problem

STEP = re.compile(r"(-?\d+)([-+*])(-?\d+)=(-?\d+)")
TRUE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}

GOLDEN_EVALUATION = ["8-5-4=", "8-7+5="]
GOLDEN_SOLUTIONS = ["6-0=-1\n-1-1=-2", "9-4=5\n5-6=7", "6-2=4\n4+7=11"]
GOLDEN_ID = "arithmetic/a17a55b2805e"


needs_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason="needs the package reasoning-gym",
)


def identities(problems):
    return {splits.text_identity(p.question) for p in problems}


def exact(question):
    # Python's own reading of the chain, precedence included: the question is ours.
    return eval(question.removesuffix("="))


def test_a_chain_worked_by_hand():
    # 3 + 8 = 11, 11 - 2 = 9; the product first, then from the left.
    assert tasks.solve("3+8-2=") == (9, ["3+8=11", "11-2=9"])
    assert tasks.solve("3-8+9=") == (4, ["3-8=-5", "-5+9=4"])
    assert tasks.solve("3+8*2-1=") == (18, ["8*2=16", "3+16=19", "19-1=18"])
    assert tasks.solve("3-8+9*2=") == (13, ["9*2=18", "3-8=-5", "-5+18=13"])


@pytest.mark.parametrize("noise", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("operators", ["+-", "+-*"])
def test_gold_answers_are_right_however_noisy_the_solutions(noise, operators):
    task = tasks.arithmetic(
        num_train=200, num_eval=50, seed=1, operands=4, operators=operators, noise=noise
    )
    for problem in (*task.train, *task.evaluation):
        assert problem.answer == str(exact(problem.question))
    for problem in task.evaluation:
        assert problem.solution.endswith(f"={problem.answer}")


def noisy(seed=0, **options):
    return tasks.arithmetic(
        num_train=4000, num_eval=100, seed=seed, operands=4, noise=0.25, **options
    )


def test_every_wrong_step_carries_its_result_forward():
    for problem in noisy().train[:500]:
        steps = [STEP.fullmatch(line) for line in problem.solution.split("\n")]
        numbers = re.findall(r"\d+", problem.question)
        signs = re.findall(r"[-+]", problem.question)
        carried = numbers[0]
        for step, sign, number in zip(steps, signs, numbers[1:], strict=True):
            assert step.groups()[:3] == (carried, sign, number)
            carried = step[4]


def errors(task):
    for problem in task.train:
        for a, sign, b, result in STEP.findall(problem.solution):
            yield int(result) - TRUE[sign](int(a), int(b))


def test_the_share_of_wrong_steps_is_the_noise_to_five_sigma():
    found = [e != 0 for e in errors(noisy())]
    assert len(found) == 4000 * 3
    sigma = math.sqrt(0.25 * 0.75 / len(found))
    assert abs(sum(found) / len(found) - 0.25) < 5 * sigma


def test_errors_are_uniform_up_to_the_limit_and_either_way():
    wrong = [e for e in errors(noisy(max_error=3)) if e]
    assert set(wrong) == {-3, -2, -1, 1, 2, 3}
    sigma = math.sqrt(len(wrong) * (1 / 6) * (5 / 6))
    for value in set(wrong):
        assert abs(wrong.count(value) - len(wrong) / 6) < 5 * sigma


def test_all_steps_are_wrong_at_noise_one_and_none_at_noise_zero():
    for noise, wrong in ((1.0, True), (0.0, False)):
        task = tasks.arithmetic(num_train=200, num_eval=1, seed=0, noise=noise)
        assert all((e != 0) is wrong for e in errors(task))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "make",
    [
        lambda **o: tasks.arithmetic(**o, noise=0.5),
        lambda **o: tasks.addition(**o),
        pytest.param(
            lambda **o: tasks.reasoning_gym(
                "chain_sum",
                **o,
                options={"min_terms": 2, "max_terms": 3, "max_digits": 2},
            ),
            marks=needs_gym,
        ),
    ],
)
def test_tasks_are_deterministic_distinct_and_disjoint(make, seed):
    task = make(num_train=150, num_eval=60, seed=seed)
    assert make(num_train=150, num_eval=60, seed=seed)[:2] == task[:2]
    assert make(num_train=150, num_eval=60, seed=seed + 1)[:2] != task[:2]
    train, held_out = identities(task.train), identities(task.evaluation)
    assert (len(train), len(held_out)) == (150, 60)
    assert not train & held_out
    assert len({p.id for p in (*task.train, *task.evaluation)}) == 210
    # The same text has the same id in every run, whatever the side it falls on.
    names = {p.question: p.id for p in (*task.train, *task.evaluation)}
    for p in make(num_train=80, num_eval=130, seed=seed).evaluation:
        assert names.get(p.question, p.id) == p.id
    for problem in (*task.train, *task.evaluation):
        assert task.verify(rf"\boxed{{{problem.answer}}}", problem).correct
        wrong = int(problem.answer) + 1
        assert not task.verify(rf"\boxed{{{wrong}}}", problem).correct


def test_the_draw_is_the_same_on_every_python():
    # Made by running this version once; a change here changes every published run.
    task = tasks.arithmetic(num_train=3, num_eval=2, seed=0, noise=0.5)
    assert [p.question for p in task.evaluation] == GOLDEN_EVALUATION
    assert [p.solution for p in task.train] == GOLDEN_SOLUTIONS
    assert task.train[0].id == GOLDEN_ID


def test_held_out_problems_do_not_depend_on_training_options():
    few = tasks.arithmetic(num_train=10, num_eval=40, seed=5)
    many = tasks.arithmetic(num_train=900, num_eval=40, seed=5, noise=0.3)
    assert few.evaluation == many.evaluation
    assert [p.question for p in few.train] == [p.question for p in many.train[:10]]


def test_no_pair_is_on_both_sides_in_either_order():
    # 9 * 10 / 2 = 55 unordered pairs of one-digit numbers: every one is used.
    examples = [("What is 3 + 4?", "7"), ("What is 9 + 1?", "10")]
    task = tasks.addition(
        num_train=33, num_eval=20, seed=0, digits=1, examples=examples
    )
    sides = [
        {frozenset(re.findall(r"\d", p.question)) for p in side}
        for side in (task.train, task.evaluation)
    ]
    assert [len(side) for side in sides] == [33, 20]
    assert not sides[0] & sides[1]
    shown = {frozenset("34"), frozenset("91")}
    assert not shown & (sides[0] | sides[1])
    with pytest.raises(ValueError, match="there are 53"):
        tasks.addition(num_train=34, num_eval=20, seed=0, digits=1, examples=examples)


def test_addition_asks_both_orders_and_all_sizes():
    task = tasks.addition(num_train=1500, num_eval=500, seed=0)
    pairs = [tuple(map(int, re.findall(r"\d+", p.question))) for p in task.train]
    assert min(map(min, pairs)) == 10
    assert max(map(max, pairs)) == 99
    larger_first = sum(a > b for a, b in pairs)
    different = sum(a != b for a, b in pairs)
    assert abs(larger_first - different / 2) < 5 * math.sqrt(different) / 2
    for problem, (a, b) in zip(task.train, pairs, strict=True):
        assert problem.answer == str(a + b)


def test_addition_counts_boxes_only_unless_told_otherwise():
    options = {"num_train": 1, "num_eval": 1, "seed": 0}
    for require_box in (True, False):
        task = tasks.addition(**options, require_box=require_box)
        problem = task.train[0]
        verdict = task.verify(f"It is {problem.answer}.", problem)
        assert verdict.correct is not require_box


@given(st.integers(1, 30), st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_permuted_yields_each_number_once(size, seed):
    drawn = list(splits.permuted(random.Random(seed), size))
    assert sorted(drawn) == list(range(size))


def test_permuted_is_uniform_over_permutations():
    rng, count = random.Random(0), 6000
    drawn = [tuple(splits.permuted(rng, 3)) for _ in range(count)]
    sigma = math.sqrt(count * (1 / 6) * (5 / 6))
    assert len(set(drawn)) == 6
    for permutation in set(drawn):
        assert abs(drawn.count(permutation) - count / 6) < 5 * sigma


def test_long_chains_need_no_list_of_all_problems():
    task = tasks.arithmetic(
        num_train=10, num_eval=5, seed=0, operands=30, max_operand=999
    )
    assert all(p.answer == str(exact(p.question)) for p in task.train)


GOOD = {"num_train": 5, "num_eval": 5, "seed": 0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tasks.arithmetic(**GOOD | {"num_train": 0}), "num_train=0"),
        (lambda: tasks.arithmetic(**GOOD | {"num_eval": 0}), "num_eval=0"),
        (lambda: tasks.addition(**GOOD | {"num_train": -1}), "num_train=-1"),
        (lambda: tasks.arithmetic(**GOOD | {"num_train": 5000}), "there are 4000"),
        (lambda: tasks.arithmetic(**GOOD, operands=1), "operands=1"),
        (lambda: tasks.arithmetic(**GOOD, min_operand=10), "min_operand=10"),
        (lambda: tasks.arithmetic(**GOOD, operators="+/"), "operators='\\+/'"),
        (lambda: tasks.arithmetic(**GOOD, operators=""), "operators=''"),
        (lambda: tasks.arithmetic(**GOOD, operators="++"), "twice"),
        (lambda: tasks.arithmetic(**GOOD, noise=1.5), "noise=1.5"),
        (lambda: tasks.arithmetic(**GOOD, max_error=0), "max_error=0"),
        (lambda: tasks.addition(**GOOD, digits=0), "digits=0"),
        (lambda: tasks.addition(**GOOD, examples=[("1+2+3", "6")]), "two numbers"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(make, said):
    with pytest.raises(ValueError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


@needs_gym
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tasks.reasoning_gym("chain_sun", **GOOD), "mean 'chain_sum'"),
        (lambda: tasks.reasoning_gym("spell_backward", **GOOD), "not a number"),
        (
            lambda: tasks.reasoning_gym("chain_sum", **GOOD, options={"terms": 3}),
            "refuses the options",
        ),
        (
            lambda: tasks.reasoning_gym("chain_sum", **GOOD, options={"min_terms": -1}),
            "must be positive",
        ),
        (
            lambda: tasks.reasoning_gym("coin_flip", **GOOD | {"num_train": 900}),
            "distinct problems",
        ),
    ],
)
def test_a_generator_that_cannot_serve_is_refused_in_one_line(make, said):
    with pytest.raises(ValueError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r'pip install "grpo-jax\[tasks\]"'):
        tasks.reasoning_gym("chain_sum", **GOOD)


def gym_with(monkeypatch, score):
    """A task whose generator scores every answer by `score(answer)`."""
    from reasoning_gym.arithmetic.chain_sum import ChainSumDataset

    asked = []

    def score_answer(self, answer, entry):
        asked.append(answer)
        return score(answer)

    monkeypatch.setattr(ChainSumDataset, "score_answer", score_answer)
    return tasks.reasoning_gym("chain_sum", **GOOD), asked


@needs_gym
@pytest.mark.parametrize(("score", "correct"), [(1, True), (0.99, False), (0.0, False)])
def test_only_a_full_score_is_right(monkeypatch, score, correct):
    task, _ = gym_with(monkeypatch, lambda answer: score)
    assert task.verify("#### 7", task.train[0]) == (correct, "7", None)


@needs_gym
def test_a_fault_of_the_generators_grader_is_an_error_and_not_a_wrong_answer(
    monkeypatch,
):
    def fail(answer):
        raise RuntimeError("broken")

    task, asked = gym_with(monkeypatch, fail)
    verdict = task.verify("#### 7", task.train[0])
    assert verdict == (False, "7", "RuntimeError: broken")
    # What is not a number never reaches foreign code, and is no fault of it.
    asked.clear()
    for response in ("#### x**9", "", r"\boxed{__import__('os')}"):
        assert task.verify(response, task.train[0]).error is None
    assert asked == []


@needs_gym
def test_the_generators_grader_sees_plain_digits(monkeypatch):
    task, asked = gym_with(monkeypatch, lambda answer: 0.0)
    problem = task.train[0]
    gold = int(problem.answer)
    for written in (f"{gold}.0", f"{2 * gold}/2", f"${gold:,}$", str(gold)):
        task.verify(f"#### {written}", problem)
    assert asked == [problem.answer] * 4  # one number, the generator's own spelling
    asked.clear()
    for written in (r"\frac{1}{8}", f"{10**6:,}.50", "-3.0"):
        task.verify(f"#### {written}", problem)
    assert asked == ["0.125", "1000000.5", "-3"]


def test_a_verifier_reads_the_answer_and_nothing_of_the_prompt():
    task = tasks.arithmetic(**GOOD)
    problem = task.train[0]
    other = Problem(id=problem.id, question="another", answer=problem.answer)
    assert task.verify(problem.solution, other).correct
