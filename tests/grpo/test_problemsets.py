import json

import pytest

from grpo_jax import presets, problemsets, splits
from grpo_jax.splits import Count
from tests.grpo.test_sources import hub_layout


def write(path, rows):
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def row(question, answer="1", **fields):
    return {"problem": question, "answer": answer, **fields}


def math_row(question, level, answer="1", subject="Algebra"):
    solution = rf"So \boxed{{{answer}}}."
    return {
        "problem": question,
        "level": level if isinstance(level, str) else f"Level {level}",
        "type": subject,
        "solution": solution,
    }


@pytest.fixture
def root(tmp_path):
    """MATH in little: two overlaps, two repeats, an unknown level, 2 of 5 in dev."""
    write(
        tmp_path / "math_train.jsonl",
        [
            math_row("train one", 3),
            math_row("train two", 5, r"\frac{1}{2}"),
            math_row("train  two ", 5, r"\frac12"),  # repeated
            math_row("test one", 4),  # also in test, and in MATH-500
            math_row("train three", "Level ?"),
            math_row("train four", 2),
            math_row("testthree", 1),  # also in test, not in MATH-500
            math_row("train five", 4, r"\pi"),
            math_row("train one", 3),  # repeated
        ],
    )
    write(
        tmp_path / "math_test.jsonl",
        [
            math_row("test one", 3),
            math_row("test two", 4),
            math_row("test three", 5),
            math_row("test four", 3, "x^2"),
            math_row("test five", 1),
        ],
    )
    fields = {"solution": r"\boxed{1}", "subject": "Algebra"}
    write(
        tmp_path / "math500_test.jsonl",
        [
            row("test five", level=1, **fields),
            row("test one", level=3, **fields),
        ],
    )
    return tmp_path


def questions(problems):
    return sorted(p.question for p in problems)


def load(root, train="math/train", evaluation="math/dev", **options):
    return problemsets.load(train, evaluation, root=str(root), **options)


def test_dev_is_the_part_of_math_test_that_math500_has_and_fresh_is_the_rest(root):
    dev, fresh = load(root), load(root, evaluation="math/fresh")
    whole = load(root, evaluation="math/test")
    assert questions(dev.evaluation) == ["test five", "test one"]
    assert questions(fresh.evaluation) == ["test four", "test three", "test two"]
    assert questions(whole.evaluation) == questions(dev.evaluation + fresh.evaluation)
    # Rows of MATH test, whose level is a text and whose subject is in another field.
    assert {(p.level, p.subject) for p in dev.evaluation} == {
        ("1", "Algebra"),
        ("3", "Algebra"),
    }
    assert [t.locked for t in (dev, fresh, whole)] == [False, True, True]
    assert (dev.split, fresh.split) == ("math-dev", "math-fresh")


def test_training_loses_repeats_and_what_stands_in_any_part_of_math_test(root):
    """Whichever part is evaluated, so that the locked part stays clean."""
    kept = ["train five", "train four", "train one", "train three", "train two"]
    for evaluation in ("math/dev", "math/fresh", "math/test", "math500/test"):
        assert questions(load(root, evaluation=evaluation).train) == kept


def test_counts_tell_every_step_in_order(root):
    task = load(root, levels=[3, 4, 5], numeric=True)
    assert task.counts == (
        Count("train: rows read of math/train", 9),
        Count("train: repeated, removed", 2),
        Count("train: also in math/test, removed", 2),
        Count("train: also in math500/test, removed", 0),
        Count("train: also in math/dev, removed", 0),
        Count("train: of unknown level, removed", 1),
        Count("train: of other levels, removed", 1),
        Count("train: not numeric, removed", 1),
        Count("train: kept", 2),
        Count("evaluation: rows read of math/test", 5),
        Count("evaluation: repeated, removed", 0),
        Count("evaluation: not in math500/test, removed", 3),
        Count("evaluation: of unknown level, removed", 0),
        Count("evaluation: of other levels, removed", 1),
        Count("evaluation: not numeric, removed", 0),
        Count("evaluation: kept", 1),
    )
    assert questions(task.train) == ["train one", "train two"]
    assert questions(task.evaluation) == ["test one"]


def test_the_first_of_a_repeat_stays(root):
    (two,) = [p for p in load(root).train if p.answer == r"\frac{1}{2}"]
    assert two.question == "train two"


def test_without_a_copy_of_math_test_dev_is_math500_itself(root):
    (root / "math_test.jsonl").unlink()
    task = load(root)
    assert questions(task.evaluation) == ["test five", "test one"]
    assert Count("evaluation: rows read of math500/test", 2) in task.counts
    # Nobody can say what else stands in MATH test, and the counts say that.
    missing = "train: not compared with math/test, of which there is no copy"
    assert Count(missing, 0) in task.counts
    assert "testthree" in questions(task.train)
    with pytest.raises(ValueError, match="neither math_test"):
        load(root, evaluation="math/fresh")


def test_a_problem_has_one_id_in_every_part_of_math(root):
    by_question = {}
    for evaluation in ("math/dev", "math/test", "math500/test"):
        for problem in load(root, evaluation=evaluation).evaluation:
            by_question.setdefault(problem.question, set()).add(problem.id)
    assert all(len(ids) == 1 for ids in by_question.values())
    assert by_question["test one"] == {splits.problem_id("math", "testone")}


def test_verify_grades_against_the_gold_and_minds_the_box(root):
    task, strict = load(root), load(root, require_box=True)
    (half,) = [p for p in task.train if p.question == "train two"]
    assert task.verify("The answer is 0.5", half).correct
    assert not strict.verify("The answer is 0.5", half).correct
    assert strict.verify(r"\boxed{0.5}", half).correct


@pytest.mark.parametrize(
    ("train", "match"),
    [
        ("math/fresh", "'math/fresh' is a locked split, which is not trained on"),
        ("math/test", "is a locked split"),
        ("math/dev", "is a held-out split"),
        ("math500/test", "is a held-out split"),
        ("gsm8k/test", "is a held-out split"),
    ],
)
def test_what_is_held_out_is_not_trained_on(root, train, match):
    with pytest.raises(ValueError, match=match):
        load(root, train=train, evaluation="math/dev")


def test_training_on_what_is_evaluated_is_refused(root, monkeypatch):
    own = write(root / "own.jsonl", [row(f"q{i}") for i in range(9)])
    for name in ("math/train", own):
        with pytest.raises(ValueError, match="are the same rows"):
            load(root, train=name, evaluation=name)
    monkeypatch.chdir(root)
    with pytest.raises(ValueError, match="are the same rows"):
        load(root, train="own.jsonl", evaluation=own)


def test_the_file_of_a_held_out_set_is_not_trained_on_under_its_path(root):
    path = str(root / "math_test.jsonl")
    with pytest.raises(ValueError, match="are the same rows"):
        load(root, train=path, evaluation="math/dev")
    copy = write(root / "copy.jsonl", [row("test one"), row("test two")])
    with pytest.raises(ValueError, match=r"no problem is left .*math/test, removed 2"):
        load(root, train=copy, evaluation="math/dev")


def test_an_overlap_that_slips_through_is_an_error(root, monkeypatch):
    monkeypatch.setattr(
        problemsets, "_without_held_out", lambda side, *rest: side
    )  # the step that removes them
    with pytest.raises(ValueError, match="1 problems stand in training and in evalua"):
        load(root)


def test_own_rows_that_are_evaluated_are_removed_from_training(tmp_path):
    train = write(tmp_path / "a.jsonl", [row("x y"), row("z"), row("w")])
    held = write(tmp_path / "b.jsonl", [row("xy"), row("v"), row("v ")])
    task = problemsets.load(train, held)
    assert questions(task.train) == ["w", "z"]
    assert questions(task.evaluation) == ["v", "xy"]
    assert Count(f"train: also in {held}, removed", 1) in task.counts
    assert Count("evaluation: repeated, removed", 1) in task.counts
    assert task.split == "b"


# Levels and kinds.


def test_a_side_without_levels_passes_a_level_filter_and_says_so(root):
    write(root / "aime25_test.jsonl", [row("aime", 70)])
    task = load(root, evaluation="aime25/test", levels=[3])
    assert questions(task.evaluation) == ["aime"]
    assert Count("evaluation: kept whole, as none has a level", 1) in task.counts
    assert questions(task.train) == ["train one"]


def test_levels_that_no_problem_has_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", [row(f"q{i}") for i in range(50)])
    with pytest.raises(ValueError, match=r"no problem of either side has a level"):
        problemsets.load(path, levels=[3])


def test_a_level_that_is_unknown_passes_while_no_filter_is_on(root):
    assert "train three" in questions(load(root).train)
    assert "train three" not in questions(load(root, levels=[1, 2, 3, 4, 5]).train)


def test_filters_that_leave_nothing_name_what_they_took(root):
    with pytest.raises(
        ValueError, match=r"no problem is left .*of other levels, removed 4"
    ):
        load(root, levels=[1])


def test_files_and_the_layout_of_the_hub_make_the_same_task(root, tmp_path):
    """Other files, configurations and order of rows; the same problems."""
    other = tmp_path / "hub"
    parts = {name: {} for name in presets.MATH_TRAIN.configs}
    for split in ("train", "test"):
        lines = (root / f"math_{split}.jsonl").read_text().splitlines()
        for i, config in enumerate(parts):
            rows = [json.loads(line) for line in reversed(lines[i::7])]
            empty = [math_row(f"{split} {config}", "Level ?")]
            parts[config][split] = rows or empty
    hub_layout(other / "EleutherAI/hendrycks_math", parts)
    lines = (root / "math500_test.jsonl").read_text().splitlines()
    rows = {"default": {"test": [json.loads(line) for line in lines]}}
    hub_layout(other / "HuggingFaceH4/MATH-500", rows)
    for evaluation in ("math/dev", "math/fresh"):
        flat, hub = (
            load(where, evaluation=evaluation, levels=[1, 2, 3, 4, 5])
            for where in (root, other)
        )
        assert flat.train == hub.train
        assert flat.evaluation == hub.evaluation
