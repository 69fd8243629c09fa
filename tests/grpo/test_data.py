import pytest

from grpo_jax import build, config, data, problem_pool, readings
from grpo_jax.base import Problem
from tests.grpo.test_problemsets import root as root
from tests.grpo.test_problemsets import row, write


def settings(tmp_path, root, **options):
    table = {
        "task": {"name": "dataset"},
        "data": {
            "train": "math/train",
            "evaluation": "math/dev",
            "root": str(root),
            "readings": str(tmp_path / "readings.jsonl"),
        }
        | options,
        "sampling": {"max_prompt_tokens": 10},
    }
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(config.from_table(table)))
    return str(path)


def run(capsys, *argv):
    code = data.main(argv)
    return code, capsys.readouterr().out.splitlines()


def test_the_report_counts_hashes_and_measures_each_side(tmp_path, root, capsys):
    path = settings(tmp_path, root)
    code, lines = run(capsys, path, "--show", "0")
    assert code == 0
    task = build.task(config.load(path))
    train = [line.strip() for line in lines[lines.index("train") :]]
    for what, number in task.counts:
        assert f"  {what}: {number}" in lines
    assert f"problems: 5, hash {problem_pool.digest(task.train)}" == train[1]
    assert train[2:5] == [
        "levels: 2 1, 3 1, 4 1, 5 1, unknown 1",
        "subjects: Algebra 5",
        "answers: fraction 1, integer 3, other 1",
    ]
    # One token a character: "train one", two, four, five, and "train three".
    assert "tokens of a prompt: min 9, median 10, 95 % 11, max 11" in train
    assert "prompts over sampling.max_prompt_tokens=10: 1" in train
    assert not any("example" in line for line in lines)


def test_an_example_is_shown_as_text_as_ids_and_with_its_gold(tmp_path, root, capsys):
    path = settings(tmp_path, root)
    _, lines = run(capsys, path, "--show", "9")
    shown = [i for i, line in enumerate(lines) if line.startswith("example ")]
    assert len(shown) == 5 + 2
    problem = build.task(config.load(path)).train[0]
    _, label, text, ids, gold = lines[shown[0] : shown[0] + 5]
    assert label == "prompt as text:"
    assert text == problem.question
    # Ids of the built-in characters: 3 special ones, newline, then from space on.
    assert ids == "prompt as ids: " + " ".join(str(ord(c) - 28) for c in text)
    assert gold == f"gold answer: {problem.answer}"


def test_locked_problems_are_not_shown_and_their_readings_are_told(
    tmp_path, root, capsys
):
    path = settings(tmp_path, root, evaluation="math/fresh")
    for update in (1, 2):
        readings.note(
            tmp_path / "readings.jsonl",
            split="math-fresh",
            run="r",
            update=update,
            purpose="p",
            digest="d",
        )
    _, lines = run(capsys, path, "--show", "9")
    text = "\n".join(lines)
    assert "math-fresh is locked; readings so far: 2" in text
    assert "no example: these problems are locked" in text
    assert sum(line.startswith("example ") for line in lines) == 5
    for name in ("test two", "test three", "test four"):
        assert name not in text


def test_figures_are_counted():
    problems = [
        Problem(id=str(i), question=question, answer="1")
        for i, question in enumerate(["[asy]draw(a);[/asy]", "none", "[asy] [asy]"])
    ]
    assert list(data.report(problems))[-1].endswith("in the question: 2")


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([5], "min 5, median 5, 95 % 5, max 5"),
        ([4, 1, 3, 2], "min 1, median 2, 95 % 4, max 4"),
        (list(range(100, 0, -1)), "min 1, median 50, 95 % 95, max 100"),
    ],
)
def test_the_spread_of_lengths(numbers, expected):
    assert data.lengths(numbers) == expected


def test_faults_of_the_user_are_one_line_and_code_two(tmp_path, root, capsys):
    path = settings(tmp_path, root)
    for extra, said in [
        (["data.train=math/fresh"], "locked"),
        (["model.path=./nowhere"], "nowhere"),
        (["--show", "-1"], "--show -1"),
    ]:
        with pytest.raises(SystemExit) as caught:
            data.main([path, *extra])
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error


# Section data.


def check(task="dataset", **options):
    return config.from_table({"task": {"name": task}, "data": options})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, r"data\.train is empty"),
        ({"train": "math/train", "levels": [0]}, "holds .0.; levels are integers"),
        ({"train": "math/train", "levels": [3, "4"]}, "holds .'4'.; levels are"),
        ({"train": "math/train", "levels": [True]}, "levels are integers"),
        ({"train": "math/train", "levels": [3, 3]}, "names a level twice"),
        (
            {"train": "math/train", "evaluation": "math/dev", "holdout": 0.2},
            "is read only where data.evaluation is empty",
        ),
        ({"task": "addition", "train": "math/train"}, "data.train: section data is"),
        ({"task": "addition", "half": "1H", "max_train": 3}, r"half, data\.max_train"),
    ],
)
def test_a_section_that_contradicts_itself_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        check(**options)


def test_where_readings_are_noted_may_be_set_for_any_task():
    assert check("addition", readings="here.jsonl").data.readings == "here.jsonl"


def test_the_fields_of_own_rows_are_read_from_the_section(tmp_path):
    rows = [
        {"ask": f"q {i}", "gold": i, "why": "because", "hard": 1 + i % 5, "kind": "k"}
        | row("not this", "0")
        for i in range(40)
    ]
    made = check(
        train=write(tmp_path / "a.jsonl", rows),
        holdout=0.5,
        question_field="ask",
        answer_field="gold",
        solution_field="why",
        level_field="hard",
        subject_field="kind",
        levels=[2, 3],
        max_train=3,
        max_evaluation=2,
    )
    task = build.task(made)
    assert (len(task.train), len(task.evaluation)) == (3, 2)
    for problem in (*task.train, *task.evaluation):
        number = int(problem.answer)
        assert problem.question == f"q {number}"
        assert problem.level == str(1 + number % 5)
        assert problem.level in "23"
        assert (problem.solution, problem.subject) == ("because", "k")
