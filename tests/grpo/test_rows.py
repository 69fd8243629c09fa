from decimal import Decimal
from fractions import Fraction

import pytest

from grpo_jax import rewards, rows, splits
from grpo_jax.rows import Layout


def problem(layout=None, **fields):
    return rows.problem(fields, layout or Layout(), task="own")


def test_a_row_in_the_usual_names_is_a_problem():
    found = problem(
        question=" What is 1 + 1? ",
        final_answer="2",
        solution="It is two.\n",
        level="Level 3",
        type="Algebra",
    )
    assert found.question == "What is 1 + 1?"
    assert found.id == splits.problem_id("own", "What is 1+1?")
    assert (found.answer, found.solution) == ("2", "It is two.")
    assert (found.level, found.subject) == ("3", "Algebra")


def test_the_first_field_that_is_there_and_not_null_is_read():
    found = problem(question=None, problem="p", prompt="q", answer=None, final_answer=1)
    assert (found.question, found.answer) == ("p", "1")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (70, "70"),
        (-1.0, "-1"),
        (27.0, "27"),
        (Decimal("27.0"), "27"),
        (0.1, "0.1"),
        (Decimal("0.10"), "0.1"),
        (Decimal("1e3"), "1000"),
        (1e22, "1" + "0" * 22),
        (Decimal("0.1000000000000000000000000000000001"), "0.1" + "0" * 32 + "1"),
        (9007199254740993, "9007199254740993"),
        (
            Decimal("123456789012345678901234567890.5"),
            "123456789012345678901234567890.5",
        ),
        ("025", "025"),
        (" $\\frac{1}{2}$ ", "$\\frac{1}{2}$"),
        ("27.0", "27.0"),
    ],
)
def test_an_answer_is_the_text_of_the_same_value(value, text):
    found = problem(question="q", answer=value).answer
    assert found == text
    if not isinstance(value, str):
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        assert rewards.number(found) == Fraction(exact)


@pytest.mark.parametrize(
    "value",
    [
        True,
        float("nan"),
        float("inf"),
        Decimal("1e999999999"),
        Decimal("1e-5000"),
        ["1"],
        {"a": 1},
    ],
)
def test_an_answer_that_is_no_text_and_no_finite_number_is_refused(value):
    with pytest.raises(ValueError, match=r"the answer is .* finite number"):
        problem(question="q", answer=value)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"answer": "1"}, "no question in question, problem, prompt"),
        ({"question": "q"}, "no answer in answer, final_answer"),
        ({"question": " \n", "answer": "1"}, "the question is empty"),
        ({"question": "q", "answer": "  "}, "the answer is empty"),
        ({"question": 5, "answer": "1"}, "the question is 5; it must be text"),
        ({"question": "q", "solution": "no box"}, "has no .* answer"),
        ({"question": "q", "solution": r"so \boxed{}"}, "has no .* answer"),
        ({"question": "q", "answer": "1", "solution": 7}, "solution is 7; .* text"),
        ({"question": "q", "answer": "1", "subject": ["a"]}, "subject or type is"),
        ({"question": "q", "answer": "1", "level": ["3"]}, "level is"),
        ({"question": "q \ud800", "answer": "1"}, "half a surrogate"),
        ({"question": "q", "answer": "steps\n####"}, "no answer after ####"),
    ],
)
def test_a_row_that_is_no_problem_says_why(fields, match):
    with pytest.raises(ValueError, match=match):
        problem(**fields)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"First \boxed{1}, but it is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"So \fbox{4}", "4"),
        (r"it is $\boxed 9$.", "9"),
        (r"\boxed{\text{(A) }}", r"\text{(A) }"),
    ],
)
def test_without_an_answer_of_its_own_the_last_box_of_the_solution_is_it(
    solution, answer
):
    assert problem(problem="q", solution=solution).answer == answer


@pytest.mark.parametrize(
    ("level", "text"),
    [
        ("Level 3", "3"),
        (3, "3"),
        (3.0, "3"),
        ("3", "3"),
        ("level 05", "5"),
        ("Level ?", ""),
        ("?", ""),
        ("", ""),
        (None, ""),
        ("hard", "hard"),
    ],
)
def test_levels_are_digits_and_an_unknown_one_is_empty(level, text):
    assert problem(question="q", answer="1", level=level).level == text


GSM8K = Layout(question=("question",), answer=("answer",), marked=True)
STEPS = "She sold 48/2 = $<<48/2=24>>24 in May.\nIn all 1,000 + 80 = <<1000+80=1080>>"


def test_a_marked_solution_gives_the_answer_and_a_solution_that_boxes_it():
    found = problem(GSM8K, question="q", answer=f"{STEPS}1,080.\n#### 1,080\n")
    assert found.answer == "1,080"
    assert rewards.number(found.answer) == 1080
    assert found.solution == (
        "She sold 48/2 = $24 in May.\nIn all 1,000 + 80 = 1,080.\n"
        r"The answer is \boxed{1,080}."
    )
    assert rewards.grade(found.solution, found.answer, require_box=True).correct


def test_the_last_mark_counts_and_own_rows_may_be_marked_too():
    assert problem(question="q", answer="#### 1\nno:\n#### 2").answer == "2"


@pytest.mark.parametrize("answer", ["72", "steps ####  ", 72])
def test_a_marked_layout_refuses_an_answer_without_its_mark(answer):
    with pytest.raises(ValueError, match="####"):
        problem(GSM8K, question="q", answer=answer)


def chat(*contents, role="user"):
    return [{"role": role, "content": content} for content in contents]


def test_a_question_may_be_a_chat_of_one_message():
    assert problem(prompt=chat("q"), answer="1").question == "q"
    with_system = chat("be brief", role="system") + chat("q")
    assert problem(prompt=with_system, answer="1").question == "q"


@pytest.mark.parametrize("prompt", [[], chat("a", "b"), chat(None), ["q"], chat(["q"])])
def test_any_other_chat_is_refused(prompt):
    with pytest.raises(ValueError, match="the question is"):
        problem(prompt=prompt, answer="1")


def test_a_dot_leads_into_a_table():
    fields = {"reward_model": {"ground_truth": "34", "style": "rule"}}
    assert problem(prompt="q", **fields).answer == "34"
    with pytest.raises(ValueError, match="no answer"):
        problem(prompt="q", reward_model="34")


def test_columns_are_the_tops_of_the_fields():
    layout = Layout(
        question=("a.b",), answer=("a.c", "d"), solution=("e",), level=(), subject=()
    )
    assert layout.columns() == {"a", "d", "e"}
