import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_jax import rewards, symbolic


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{3}, no, \boxed{7}", "7"),
        (r"\boxed{\frac{1}{2}} after 9", r"\frac{1}{2}"),
        (r"\boxed{\boxed{7}}", r"\boxed{7}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\\boxed{7}", "7"),  # a backslash doubled by JSON
        (r"so it is $\boxed 7$.", "7"),
        (r"\boxed{7} then \boxed{8", "7"),  # cut off by the length limit
        (r"\boxed{5 or \boxed{7}", "7"),
        (r"\boxed{\{7\}}", r"\{7\}"),
        (r"} \boxed{7}", "7"),
        (r"\boxed{} 7", None),  # an empty box is an answer that is missing
        (r"\boxed{7} \boxed{}", None),
        (r"<think>\boxed{3}</think> it is \boxed{7}", "7"),
        (r"<think>\boxed{3}</think> no more", None),
        ("#### 3\n#### 1,234\nbye", "1,234"),
        ("<answer>3</answer> <answer> 7 </answer>", "7"),
        ("The answer is 3. So the final answer is: 7.5. Then 9", "7.5"),
        ("the answer is $7$. I hope", "$7$"),
        ("**Final Answer:** 7", "7"),
        ("The answer is: $$\n7\n$$", "$$\n7\n$$"),
        ("#### 1 <answer>2</answer>", "1 <answer>2</answer>"),
        ("<answer>2</answer> the answer is 3 or 4", "2"),
        ("the answer is 3 or 4", "3 or 4"),
        ("the answer is 3, surely\n4", "3"),
        ("3+8=11\n11-2=9", "11-2=9"),
        ("(-6)", "(-6)"),
        ("it costs $3.50.", "$3.50"),
        ("about 1,234 of them", "1,234"),
        ("roughly 3/4 of it", "3/4"),
        ("there are 7 of them where $x>3$, and no more", "$x>3$"),
        ("where $x>3$ there are 7", "7"),
        ("between $5 and $10", "$10"),
        ("it is 18 cents", "18 cents"),
        ("it is 3 or 7", "3 or 7"),
        ("as 3x", "3x"),
        ("room B2", None),
        ("no idea", None),
        ("", None),
    ],
)
def test_extract_follows_the_named_order(response, answer):
    assert rewards.extract(response) == answer


def test_without_a_box_nothing_counts_when_a_box_is_required():
    assert not rewards.grade("#### 7", "7", require_box=True).correct
    assert rewards.grade("#### 7", "7", require_box=True).extracted is None
    assert rewards.grade(r"\boxed{7}", "7", require_box=True).correct


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (r"28\%", r"28|28\%|0.28|\frac{7}{25}|28 pct", r"2800|0.28\%|0.0028|29"),
        ("28", r"28\%|2800\%", r"0.28\%|0.28"),
        ("0.28", r"28\%|0.28", r"0.28\text{ million}|28"),
        ("18", r"\$18|18\text{ dollars}|£18|18.00", r"18 cents|1800\text{ cents}"),
        (r"\$0.20", r"0.2|\$0.2|0.20\text{ dollars}", r"20\text{ cents}|20|€0.20"),
        (r"15\mbox{ cm}^2", r"15|15\mathrm{~cm}^{2}|15 sq. cm", r"15\text{ cm}|15 m^2"),
        (
            r"60\text{ mph}",
            r"60\text{ miles per hour}|60 miles/hour",
            r"60\text{ km/h}",
        ),
        (r"90^\circ", r"90|90°|90\text{ degrees}", r"\frac{\pi}{2}|90\text{ radians}"),
        (r"\frac{\pi}{2}", r"\pi/2|0.5\pi", r"90^\circ|1.5708"),
        (
            "7",
            r"7\pm 0|x = 7|\text{The answer is }7|\textbf{7}|7.",
            r"7\pm1|7\pi|7x|7i",
        ),
        (
            "7",
            r"4+3|\sqrt{49}|14/2|(7)|6.\overline{9}",
            r"7 or 3|7, 3|7!|7_8|x>7|7 squared",
        ),
        ("1000000", r"10^6|1 million|\text{1,000,000}", r"1000000.0000001|1.000,000"),
        ("7", r"7\text{ ways}|7 apples", r"7\text{ dozen}|7\text{ or so}|7 hundred"),
        ("72", r"72|8\cdot 9 = 72|\approx 72", r"7 2|\approx 71|x \ne 72|x >= 72"),
        (
            "6,8",
            r"8,6|\{6, 8\}|6\text{ and }8|x=6\text{ or }x=8",
            r"6|6.8|68|6,8,10|(8,6)",
        ),
        ("6,8", "(6,8)", "(8,6)"),
        ("x^2+y^2=13", "13 = y^2+x^2|y^2+x^2=13", "13|x^2-y^2=13"),
        ("(1,2)", r"\left(1, \frac42\right)|(x,y)=(1,2)", r"(2,1)|[1,2]|\{1,2\}|1.2"),
        ("(1,200)", r"(1, 200)", r"1200|(200,1)"),
        ("[0,1)", r"0 \le x < 1|x \in [0,1)", r"(0,1)|[0,1]|0\le x\le 1"),
        ("204_5", r"204_{5}|204_5", r"204|204_6|54"),
        ("3:4", "3:4|3 : 4", r"4:3|\frac34"),
        ("x=5", "5|x = 5", "y=5|x=6"),
        ("y=2x+3", "y=3+2x|2x+3", "y=2x-3|x=2y+3"),
        ("x^2+4x+3", "(x+1)(x+3)", "x^2+4x+4|3"),
        (r"\text{Evelyn}", r"Evelyn|\text{evelyn}", r"\text{Evelny}|Carla"),
        (r"\text{(C)}", r"C|(C)|\textbf{(C)}", "(B)|D"),
        (r"2\sqrt{3}", r"\sqrt{12}|2\sqrt3\text{ cm}|2*sqrt(3)", r"3.4641|3\sqrt2"),
        (r"12\text{ and }13", "13, 12", "12"),
        (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}", r"1+\sqrt{19}"),
        (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,1)", r"(-\infty,1)"),
        (
            r"\begin{pmatrix} 1 \\ 1/2 \end{pmatrix}",
            r"\begin{bmatrix}1\\0.5\end{bmatrix}",
            r"\begin{pmatrix}1&0.5\end{pmatrix}|(1,0.5)",
        ),
        (r"\cos 36^\circ", r"\frac{1+\sqrt5}{4}", r"\cos 36"),
        ("3+4i", "4i+3", "3-4i"),
        ("-1", r"i^2|e^{i\pi}", "1"),
        ("2.74", "2,74", "2, 74"),
        ("1,22", "1.22", "1.23|22"),
    ],
)
def test_the_rules_accept_and_refuse_what_they_say(gold, right, wrong):
    for answer in right.split("|"):
        assert rewards.grade(rf"\boxed{{{answer}}}", gold) == (True, answer, None)
    for answer in wrong.split("|"):
        assert rewards.grade(rf"\boxed{{{answer}}}", gold) == (False, answer, None)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("$9$", "9"),
        (r"\boxed{9}", "9"),
        (r"so it is $\boxed{9}$ in all, not 8", "9"),
        ("Add them up: 4+5=9.\n#### 9", "9"),
        (r"\(\boxed{1}\) and \(\boxed{-2}\).", "-2, 1"),
        (r"\boxed{1} papers and \boxed{2} bins", "1,2"),
        (r"first \boxed{1}, which is far too few, so at last \boxed{2}", "2"),
        (r"the answer is \\boxed{004}.", "4"),
    ],
)
def test_a_gold_answer_is_read_like_an_answer(gold, answer):
    assert rewards.grade(rf"\boxed{{{answer}}}", gold).correct
    assert not rewards.grade(r"\boxed{7}", gold).correct


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("-1", "integer"),
        ("27.0", "decimal"),
        (r"\frac12", "fraction"),
        (r"3\frac{1}{4}", "mixed"),
        (r"16.\overline{6}", "repeating"),
        (r"1.2\times 10^5", "scientific"),
        (r"\$32{,}348", "currency"),
        (r"28\%", "percent"),
        (r"90^\circ", "degree"),
        (r"\text{4 inches}", "unit"),  # words, to be compared as words
        (r"4\text{ inches}", "unit"),
        ("1,234", "thousands"),
        ("x=5", "integer"),
        (r"0.56 = 56\%", "percent"),
        ("x^2+y^2=13", "other"),
        ("(100,101)", "other"),
        (r"\frac{\pi}{2}", "other"),
        (r"2\sqrt3", "other"),
        ("2^{10}", "other"),
        ("11:30", "other"),
        ("1,2", "other"),
        ("204_5", "other"),
        ("", "other"),
    ],
)
def test_kind_names_how_a_number_is_written(answer, kind):
    assert rewards.kind(answer) == kind
    assert rewards.is_numeric(answer) is (kind != "other")


def test_numbers_are_never_asked_of_the_symbolic_worker(monkeypatch):
    def refuse(seconds):
        def ask(gold, answer):
            raise symbolic.Failure("asked")

        return ask

    monkeypatch.setattr(symbolic, "within", refuse)
    rewards._judge.cache_clear()
    assert not rewards.grade(r"\boxed{0.333}", "1/3").error
    assert not rewards.grade(r"\boxed{8 cm}", "7").error
    assert not rewards.grade(r"\boxed{7 or 3}", "7").error
    assert rewards.grade(r"\boxed{\sqrt{49}}", "7").error == "asked"
    rewards._judge.cache_clear()  # a failure is kept too


def test_same_is_equality_of_extracted_answers_in_both_directions():
    assert rewards.same("1/2", "0.50")
    assert rewards.same("x=5", "5")
    assert rewards.same("5", "x=5")
    assert rewards.same("(x+1)^2", "x^2+2x+1")
    assert rewards.same("x^2+y^2=4", "4") == rewards.same("4", "x^2+y^2=4")
    assert not rewards.same("1/2", "0.51")
    assert not rewards.same("", "")
    assert not rewards.same("\\boxed{", "7")


def test_an_empty_gold_answer_is_the_graders_fault():
    verdict = rewards.grade(r"\boxed{}", " ")
    assert verdict.error
    assert not verdict.correct


def test_a_gold_answer_that_cannot_be_read_is_the_graders_fault():
    verdict = rewards.grade(r"\boxed{5}", "[5")
    assert not verdict.correct
    assert re.search("cannot read the gold", verdict.error or "")


@given(st.text(), st.text(min_size=1))
@example("\x00\ud800\\boxed{\ud800}", "7")
@settings(max_examples=200, deadline=None)
def test_any_text_is_graded_without_an_exception(response, answer):
    verdict = rewards.grade(response, answer)
    if verdict.extracted is not None:
        verdict.extracted.encode("utf-8")  # can be written to a file
