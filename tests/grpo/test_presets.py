import json
import pathlib

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from grpo_jax import collect, presets
from grpo_jax.rows import Layout
from grpo_jax.sources import Origin
from tests.grpo.test_sources import hub_layout

HERE = pathlib.Path().absolute()
BEFORE = (
    "Solve the following math problem step by step. The last line of your response"
    " should be of the form Answer: $Answer (without quotes) where $Answer is the"
    " answer to the problem."
)
AFTER = 'Remember to put your answer on its own line after "Answer:".'


def dapo_row(question, answer, index=0):
    return {
        "data_source": "math_dapo",
        "prompt": [
            {"content": f"{BEFORE}\n\n{question}\n\n{AFTER}", "role": "user"},
        ],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": str(index)},
    }


def load(source, root):
    return collect.collect(source, presets.origins(source, str(root)))


def test_dapo_loses_its_baked_in_instruction_and_its_repeats(tmp_path):
    rows = [dapo_row(f"What is\n\n{i % 3} + 1?", str(i % 3 + 1), i) for i in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "dapo_train.parquet")
    found = load(presets.DAPO, tmp_path)
    assert [(p.question, p.answer) for p in found.problems] == [
        ("What is\n\n0 + 1?", "1"),
        ("What is\n\n1 + 1?", "2"),
        ("What is\n\n2 + 1?", "3"),
    ]
    assert (found.rows, found.duplicates, found.conflicts) == (30, 27, 0)


def test_dapo_keeps_a_question_that_only_resembles_the_instruction(tmp_path):
    asked = 'Why "Remember to put your answer on its own line after "Answer:"." so?'
    row = dapo_row(asked, "1")
    (tmp_path / "dapo_train.jsonl").write_text(json.dumps(row) + "\n")
    assert load(presets.DAPO, tmp_path).problems[0].question == asked


def test_a_repeat_with_another_answer_is_counted_and_the_first_stays(tmp_path):
    rows = [
        dapo_row("a b", "1"),
        dapo_row("ab", "2"),
        dapo_row(" ab", "1.0"),
        dapo_row("c", r"\pi"),
        dapo_row("c", "x"),
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "dapo_train.jsonl").write_text(text)
    found = load(presets.DAPO, tmp_path)
    assert [(p.question, p.answer) for p in found.problems] == [
        ("a b", "1"),
        ("c", r"\pi"),
    ]
    # "1.0" is another spelling of 1; "2" and "x" are other answers.
    assert (found.duplicates, found.conflicts) == (3, 2)


def hendrycks(directory):
    """Two problems in each of the seven subjects, one of them for training."""

    def row(subject, split):
        return {
            "problem": f"{split} {subject}?",
            "level": "Level ?" if subject == "geometry" else "Level 3",
            "type": subject.title(),
            "solution": rf"Not \boxed{{0}} but \boxed{{\frac{{1}}{{{len(subject)}}}}}.",
        }

    parts = {
        subject: {split: [row(subject, split)] for split in ("train", "test")}
        for subject in presets.MATH_TRAIN.configs
    }
    return hub_layout(directory / "EleutherAI" / "hendrycks_math", parts)


def test_math_in_the_layout_of_the_hub_joins_its_seven_configurations(tmp_path):
    hendrycks(tmp_path)
    found = load(presets.MATH_TEST, tmp_path)
    assert found.rows == 7
    assert [p.question for p in found.problems] == [
        f"test {subject}?" for subject in presets.MATH_TEST.configs
    ]
    assert found.problems[0].answer == r"\frac{1}{7}"
    assert [p.level for p in found.problems] == ["3", "3", "", "3", "3", "3", "3"]
    assert found.problems[2].subject == "Geometry"


@pytest.mark.parametrize(
    ("source", "config", "split", "row", "expected"),
    [
        (
            presets.MATH_500,
            "default",
            "test",
            {
                "problem": "q",
                "solution": r"\boxed{9}",
                "answer": "9",
                "subject": "Algebra",
                "level": 2,
                "unique_id": "test/algebra/1.json",
            },
            ("9", "2", "Algebra"),
        ),
        (
            presets.GSM8K_TEST,
            "main",
            "test",
            {"question": "q", "answer": "so <<1+1=2>>2\n#### 2"},
            ("2", "", ""),
        ),
        (
            presets.AIME_24,
            "default",
            "train",
            {"problem": "q", "solution": "s", "answer": "025", "year": "2024"},
            ("025", "", ""),
        ),
        (
            presets.AIME_25,
            "default",
            "test",
            {"problem": "q", "answer": "70", "id": "0"},
            ("70", "", ""),
        ),
        (
            presets.AMC_23,
            "default",
            "test",
            {"question": "q", "answer": 27.0, "id": 0, "url": "u"},
            ("27", "", ""),
        ),
        (
            presets.DAPO,
            "default",
            "train",
            dapo_row("q", "34"),
            ("34", "", ""),
        ),
    ],
)
def test_every_preset_reads_its_layout_on_the_hub(
    tmp_path, source, config, split, row, expected
):
    hub_layout(tmp_path / source.hub, {config: {split: [row]}})
    (problem,) = load(source, tmp_path).problems
    assert problem.question == "q"
    assert (problem.answer, problem.level, problem.subject) == expected


@pytest.mark.parametrize("text", ["math/train", "math/fresh", "math500/test"])
def test_presets_are_named_by_preset_and_split(text):
    assert presets.find(text, Layout()).source.family == "math"


def test_what_is_locked_is_all_that_holds_fresh_problems():
    locked = [
        f"{name}/{part}"
        for name, parts in presets.PRESETS.items()
        for part, split in parts.items()
        if split.locked
    ]
    assert locked == ["math/fresh", "math/test"]


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("a.jsonl", Origin(f"{HERE}/a.jsonl", "", "")),
        ("/x/a@b:c.parquet", Origin("/x/a@b:c.parquet", "", "")),
        ("./math/train", Origin(f"{HERE}/math/train", "", "train")),
        ("/x/y:main@test", Origin("/x/y", "main", "test")),
        ("owner/name", Origin("owner/name", "", "train")),
        ("owner/name@test", Origin("owner/name", "", "test")),
        ("owner/name:main", Origin("owner/name", "main", "train")),
        ("owner/math_train:all@dev", Origin("owner/math_train", "all", "dev")),
    ],
)
def test_paths_and_hub_names_are_told_from_presets(text, origin):
    side = presets.find(text, Layout(question=("mine",)))
    assert presets.origins(side.source, "/elsewhere") == (origin,)
    assert side.source.layout.question == ("mine",)
    assert not side.held_out
    assert not side.locked


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("math/validation", "math has no split 'validation'; use one of math/train"),
        ("mathtrain", "did you mean 'math/train'"),
        ("train.json", "no .jsonl or .parquet file"),
        ("a/b/c", "no name on the hub"),
        ("owner/", "no name on the hub"),
    ],
)
def test_what_names_nothing_says_what_could(text, match):
    with pytest.raises(ValueError, match=match):
        presets.find(text, Layout())


def test_a_copy_as_a_file_goes_before_one_as_a_directory(tmp_path):
    hendrycks(tmp_path)
    assert len(presets.origins(presets.MATH_TRAIN, str(tmp_path))) == 7
    (tmp_path / "math_train.parquet").touch()
    (origin,) = presets.origins(presets.MATH_TRAIN, str(tmp_path))
    assert origin.path == str(tmp_path / "math_train.parquet")


def test_a_copy_that_is_not_there_says_what_was_looked_for(tmp_path):
    match = "neither math_train.jsonl nor math_train.parquet nor the directory Eleuther"
    with pytest.raises(ValueError, match=match):
        presets.origins(presets.MATH_TRAIN, str(tmp_path))


def test_without_a_root_presets_are_read_from_the_hub():
    origins = presets.origins(presets.GSM8K_TRAIN, "")
    assert origins == (Origin("openai/gsm8k", "main", "train"),)
    assert {o.path for o in presets.origins(presets.MATH_TEST, "")} == {
        "EleutherAI/hendrycks_math"
    }


def test_no_preset_leaves_its_held_out_side_unguarded():
    guarded = set(presets.HELD_OUT)
    for parts in presets.PRESETS.values():
        for split in parts.values():
            assert split.source in guarded or not split.held_out
