import json
import math
import pathlib
import random

import numpy as np
import pytest

from grpo_jax import build, config, prompts, shots, splits, tasks, tokens
from grpo_jax.base import Problem, Verdict
from grpo_jax.rewards import extract

DATA = pathlib.Path(__file__).parents[2].parent / "shared/data"


def problem(question, solution="because", answer="1"):
    return Problem(id=question, question=question, answer=answer, solution=solution)


MANY = [problem(f"What is {i} + {i}?", f"It is {2 * i}.") for i in range(60)]


def task(problems):
    verify = lambda response, problem: Verdict(False, None, None)
    return tasks.Task(tuple(problems), (), verify)


def test_examples_do_not_depend_on_the_order_or_the_spacing_of_a_file():
    expected = shots.worked_examples(MANY, 4)
    shuffled = MANY.copy()
    random.Random(0).shuffle(shuffled)
    assert shots.worked_examples(shuffled, 4) == expected
    assert shots.worked_examples(iter(MANY), 4) == expected
    spaced = [problem(p.question.replace(" ", "  "), p.solution) for p in MANY]
    again = shots.worked_examples(spaced, 4)
    assert [answer for _, answer in again] == [answer for _, answer in expected]


def test_fewer_examples_are_the_first_of_more_and_another_problem_moves_none():
    four = shots.worked_examples(MANY, 4)
    assert shots.worked_examples(MANY, 2) == four[:2]
    rest = [p for p in MANY if p.question != four[0][0]]
    assert shots.worked_examples(rest, 3) == four[1:]
    assert shots.worked_examples(MANY, 0) == ()


def test_examples_are_no_run_of_the_file_nor_of_the_alphabet():
    found = {question for question, _ in shots.worked_examples(MANY, 10)}
    for order in ([p.question for p in MANY], sorted(p.question for p in MANY)):
        # Ten of sixty: ten in the first or the last thirty has a chance of 0.0004 each.
        assert 0 < len(found & set(order[:30])) < 10


def test_what_cannot_be_shown_is_passed_over():
    given = [
        problem("unsolved", ""),
        problem("blank", " \n"),
        problem("a figure [asy]draw();[/asy]"),
        problem("drawn", "[asy]draw();[/asy]"),
        problem("usable", "\n because \n"),
        problem("us able", "zoo"),  # the same problem, solved again
    ]
    for order in (given, given[::-1]):
        assert shots.worked_examples(order, 1) == (("us able", "zoo"),)
        with pytest.raises(ValueError, match=r"^prompt.shots=2 and 1 training [^\n]+$"):
            shots.worked_examples(order, 2)


@pytest.mark.skipif(not DATA.exists(), reason="needs the shared data")
def test_examples_of_math_are_neither_short_nor_long():
    rows = [json.loads(line) for line in (DATA / "math_train.jsonl").open()]
    given = [problem(row["problem"], row["solution"]) for row in rows]
    usable = [p for p in given if "[asy]" not in p.question + p.solution]
    found = shots.worked_examples(given, 300)
    assert all(extract(answer, require_box=True) for _, answer in found)
    assert not any("[asy]" in text for pair in found for text in pair)
    assert len({splits.text_identity(asked) for asked, _ in found}) == 300
    lengths = np.log([len(p.solution.strip()) for p in usable])
    shown = np.log([len(answer) for _, answer in found])
    off = abs(shown.mean() - lengths.mean()) / (lengths.std() / math.sqrt(300))
    assert off < 5


@pytest.mark.parametrize(
    ("style", "layout"), [("chat", "turns"), ("chat", "message"), ("base", "turns")]
)
def test_templates_show_the_examples_of_the_task(tmp_path, style, layout):
    path = tmp_path / "c.toml"
    path.write_text(
        f"[prompt]\nstyle = {style!r}\nlayout = {layout!r}\nshots = 2\n"
        "instruction = 'Box it.'\n[task]\nname = 'dataset'\n[data]\ntrain = 'x.jsonl'\n"
    )
    wanted = config.load(path)
    examples = build.examples(wanted, task(MANY))
    assert examples == shots.worked_examples(MANY, 2)
    tokenizer = tokens.character_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    text = tokenizer.decode(build.template(wanted, examples)(tokenizer, "Why?"))
    places = [text.index(part) for pair in examples for part in pair]
    assert places == sorted(places)
    assert places[-1] < text.index("Why?")
    assert text.count("Box it.") == (1 if layout == "message" else 3)


def test_written_examples_are_shown_as_they_stand(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[prompt]\nstyle = 'base'\nexamples = [['1 + 1?', '2']]\n")
    wanted = config.load(path)
    assert build.examples(wanted, task(MANY)) == [("1 + 1?", "2")]
    plain = config.load(path, ["prompt.style=plain", "prompt.examples=[]"])
    assert build.template(plain, []) is prompts.plain


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["prompt.shots=2"], "does not read prompt.shots"),
        (["prompt.system=x", "prompt.instruction=y"], "system and prompt.instruction"),
        (["prompt.layout=message"], "prompt.layout=turns"),
        (["prompt.style=base", "prompt.layout=message"], "not by 'base'"),
        (
            ["prompt.style=base", "prompt.shots=2", "prompt.examples=[['q', 'a']]"],
            "one of them only",
        ),
        (
            ["prompt.style=base", "prompt.shots=2", "task.name=addition"],
            "task.name='addition'",
        ),
    ],
)
def test_prompt_options_that_contradict_are_refused_in_one_line(
    tmp_path, overrides, said
):
    path = tmp_path / "c.toml"
    path.write_text("")
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        config.load(path, overrides)
    assert said in str(caught.value)
