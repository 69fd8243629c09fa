"""Numbers with words around them, as models write them: which count and which not."""

import time

import pytest

from grpo_jax import rewards


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"\boxed{\text{12 cm}^2}", r"12\text{ cm}^2"),
        (r"\boxed{\text{12 square centimeters}}", r"12\text{ cm}^2"),
        (r"\boxed{4}", r"\text{4 inches}"),
        (r"\boxed{\text{72 clips}}", "72"),
        (r"\boxed{\text{\$18}}", "18"),
        (r"\boxed{\text{USD }18}", r"\$18"),
        (r"\boxed{\$18\text{ per day}}", r"\$18"),
        (r"\boxed{60\,\frac{\text{miles}}{\text{hour}}}", r"60\text{ mph}"),
        (r"\boxed{28\%\text{ of the students}}", r"28\%"),
        (r"\boxed{18^\circ\text{C}}", "18"),
        (r"\boxed{\text{Total: } 5}", "5"),
        (r"\boxed{\therefore 5}", "5"),
        (r"\boxed{= 5}", "5"),
        (r"\boxed{5 \checkmark}", "5"),
        (r"\boxed{\textcolor{red}{5}}", "5"),
        (r"\boxed{10{:}30}", "10:30"),
        (r"\boxed{\varnothing}", r"\emptyset"),
        ("The area is 15 cm^2.", "15"),
        ("She earns $1,000 per month.", "1000"),
        ("The answer is 18 dollars per day.", "18"),
        ("The answer is 7 (because 3 times two is 6).", "7"),
        ("#### Final Answer\n\n**42**", "42"),
        ("#### Step 2: check\nThe answer is 42.", "42"),
        ("so we get\n\\begin{align*}\nx &= 7\n\\end{align*}", "7"),
        ("= 7", "7"),
        ("It is 3 square meters.", "3"),
        (r"\boxed{\mathbf{\frac{1}{2}}}", r"\frac12"),
        (r"\boxed{y = 1/2 x + 2}", r"y=\frac12 x+2"),
    ],
)
def test_words_around_a_number_do_not_change_it(response, gold):
    assert rewards.grade(response, gold).correct


@pytest.mark.parametrize(
    "words",
    "tenths fifths hundredths millionths thirteen twenty-five half-dozen one-half lakh "
    "quadrillion doubled squared fewer twice square excluded instead".split(),
)
def test_words_that_make_another_number_are_no_unit(words):
    assert not rewards.grade(rf"\boxed{{7\text{{ {words}}}}}", "7").correct
    assert not rewards.grade(rf"\boxed{{7 {words}}}", "7").correct


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"\boxed{41 = 42}", "42"),
        (r"\boxed{\not= 5}", "5"),
        (r"\boxed{12, 345}", "12345"),
        (r"\boxed{7. 25}", "7.25"),
        (r"\boxed{x=6=5}", "5"),
        (r"\boxed{4 < x = 5}", "5"),
        (r"\boxed{\text{not }x=5}", "5"),
        (r"\boxed{2x=4}", "x=4"),
        (r"\boxed{0.5\%}", "0.5"),
        (r"\boxed{5'}", "5"),
        (r"\boxed{7\ldots}", "7"),
        (r"\boxed{\frac{5\theta}{\theta}}", "5"),
        (r"\boxed{\text{not } 5}", "5"),
        ("<think>the answer is 42", "42"),
        (r"<think>\boxed{42}", "42"),
    ],
)
def test_what_only_looks_like_the_gold_answer_is_wrong(response, gold):
    assert not rewards.grade(response, gold).correct


def test_a_figure_equal_to_its_percent_is_no_contradiction():
    assert rewards.grade(r"\boxed{0.56 = 56\%}", r"56\%").correct
    assert not rewards.grade(r"\boxed{0.57 = 56\%}", r"56\%").correct


@pytest.mark.parametrize("piece", ["TEXT", "x_", "x_{1}", "cents", "million", "9_"])
def test_products_of_many_letters_are_screened_out_before_they_cost_time(piece):
    for frame in ("({})", r"\{{{}\}}", "x={}", "{}"):
        answer = frame.format(piece * (380 // len(piece)))
        rewards.grade(r"\boxed{z+z}", "2z")  # the worker is there
        start = time.perf_counter()
        assert rewards.grade(rf"\boxed{{{answer}}}", "x^2+4x+3")[::2] == (False, None)
        assert time.perf_counter() - start < 0.25


def test_numbers_that_differ_at_once_need_no_proof():
    for answer in (r"\log 2", r"\sqrt2^{\sqrt2}", r"\log 7/\log 3"):
        start = time.perf_counter()
        assert rewards.grade(rf"\boxed{{{answer}}}", "996506")[::2] == (False, None)
        assert time.perf_counter() - start < 1.5


def test_an_answer_that_is_no_mathematics_is_wrong_and_no_fault():
    assert rewards.grade(r"\boxed{-1 <+ i}", "2")[::2] == (False, None)
