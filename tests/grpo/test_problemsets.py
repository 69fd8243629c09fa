import functools
import hashlib
import json
import pathlib
import random

import pytest

from grpo_jax import collect, filters, presets, problemsets, splits
from grpo_jax.base import Problem
from grpo_jax.splits import Count, text_identity

DATA = pathlib.Path(__file__).parents[2].parent / "shared/data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is absent")


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


@functools.cache
def real(**options):
    return load(DATA, **options)


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
        Count("train: of unknown level", 1),
        Count("train: of other levels", 1),
        Count("train: not numeric", 1),
        Count("train: kept", 2),
        Count("evaluation: rows read of math/test", 5),
        Count("evaluation: repeated, removed", 0),
        Count("evaluation: not in math500/test, removed", 3),
        Count("evaluation: of unknown level", 0),
        Count("evaluation: of other levels", 1),
        Count("evaluation: not numeric", 0),
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
    with pytest.raises(ValueError, match="neither math_test.jsonl nor"):
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
    assert task.split.endswith("b.jsonl")
    assert "/" not in task.split


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
    with pytest.raises(ValueError, match=r"no problem is left .*of other levels 4"):
        load(root, levels=[1])


# Damage.


def damaged(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        [row(f"q{i}") for i in range(40)]
        + ['{"problem": "torn', "[]", {"problem": "p"}, row("", "1"), row("r", None)],
    )
    return path


def test_a_damaged_file_is_refused_with_places_reasons_and_remedy(tmp_path):
    path = damaged(tmp_path)
    with pytest.raises(ValueError, match="rows are malformed") as caught:
        problemsets.load(path)
    said = str(caught.value)
    assert said.startswith("5 of 45 rows are malformed")
    for place in (f"{path}:41: not JSON", f"{path}:42: '[]' is not", f"{path}:43: it"):
        assert place in said
    assert f"{path}:44" not in said
    assert "; …)" in said
    assert "set data.max_dropped=5 to leave them out (now 0)" in said
    assert "\n" not in said


def test_malformed_rows_are_dropped_and_counted_up_to_the_limit(tmp_path):
    path = damaged(tmp_path)
    with pytest.raises(ValueError, match=r"\(now 4\)"):
        problemsets.load(path, max_dropped=4)
    task = problemsets.load(path, max_dropped=5)
    assert Count("train: malformed, dropped", 5) in task.counts
    assert len(task.train) + len(task.evaluation) == 40


def test_damage_of_both_sides_is_counted_together(tmp_path):
    rows = [row(f"q{i}") for i in range(5)]
    a = write(tmp_path / "a.jsonl", [*rows[:3], "{"])
    b = write(tmp_path / "b.jsonl", ["{", *rows[3:]])
    with pytest.raises(ValueError, match="2 of 7 rows are malformed"):
        problemsets.load(a, b, max_dropped=1)
    task = problemsets.load(a, b, max_dropped=2)
    assert (len(task.train), len(task.evaluation)) == (3, 2)


def test_damage_of_a_held_out_set_that_is_only_compared_counts_too(root):
    with (root / "math_test.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"1 of 1\d rows are malformed"):
        load(root, evaluation="math500/test")


# Division by hash.


def problems(count):
    return [Problem(id=f"id{i}", question=f"q {i}", answer="1") for i in range(count)]


def own(tmp_path, count, order=None):
    rows = [row(f"question {i}", str(i)) for i in range(count)]
    random.Random(order).shuffle(rows)
    return write(tmp_path / f"own{order}.jsonl", rows)


def test_the_share_held_out_is_about_what_was_asked():
    held = sum(splits.in_share(f"q {i}", 0.1) for i in range(10_000))
    assert abs(held - 1000) < 5 * (10_000 * 0.1 * 0.9) ** 0.5
    assert not any(splits.in_share(f"q {i}", 1e-12) for i in range(1000))
    assert all(splits.in_share(f"q {i}", 1 - 1e-12) for i in range(1000))


def test_what_is_held_out_depends_on_each_text_alone(tmp_path):
    whole = problemsets.load(own(tmp_path, 200), holdout=0.25)
    part = problemsets.load(own(tmp_path, 100, order=7), holdout=0.25)
    limited = problemsets.load(own(tmp_path, 200), holdout=0.25, max_train=3)
    asked = questions(whole.evaluation)
    assert questions(limited.evaluation) == asked
    fewer = {p.question for p in (*part.train, *part.evaluation)}
    assert questions(part.evaluation) == [q for q in asked if q in fewer]
    assert len(whole.train) + len(asked) == 200
    assert 200 * 0.25 - 31 < len(asked) < 200 * 0.25 + 31  # five sigma
    # A larger share holds out the same ones and more.
    assert set(asked) < set(
        questions(problemsets.load(own(tmp_path, 200), holdout=0.5).evaluation)
    )


def test_white_space_changes_no_side():
    assert splits.text_rank("a b\n c", "x") == splits.text_rank("abc ", "x")
    assert splits.text_rank("abc", "x") != splits.text_rank("abc", "y")


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_halves_are_equal_disjoint_and_whole(count):
    first, second = (splits.half(problems(count), name) for name in ("1H", "2H"))
    assert len(first) - len(second) == count % 2
    assert not first & second
    assert first | second == {f"id{i}" for i in range(count)}


def test_halves_do_not_depend_on_the_order():
    backwards = list(reversed(problems(101)))
    assert splits.half(backwards, "1H") == splits.half(problems(101), "1H")


def test_halves_are_independent_of_what_is_held_out_and_of_subsets():
    """At five sigma: a subset takes from both halves, as a fair sample does."""
    every = problems(2000)
    first = splits.half(every, "1H")
    subset = {p.id for p in filters.first(every, 400)}
    held = {p.id for p in every if splits.in_share(p.question, 0.2)}
    for chosen in (subset, held):
        share = len(chosen & first) / len(chosen)
        assert abs(share - 0.5) < 5 * (0.25 / len(chosen)) ** 0.5


def test_both_halves_of_a_task_are_its_whole(tmp_path):
    path = own(tmp_path, 99)
    sides = [problemsets.load(path, half=name).train for name in ("1H", "2H", "")]
    assert questions(sides[0] + sides[1]) == questions(sides[2])
    assert 0 <= len(sides[0]) - len(sides[1]) <= 1
    with pytest.raises(ValueError, match="must be '1H' or '2H'"):
        problemsets.load(path, half="3H")


def test_halves_are_taken_after_filters(root):
    both = [
        load(root, half=half, levels=[3, 4, 5]).train for half in ("1H", "2H")
    ]  # of three: train one, two and five
    assert sorted(map(len, both)) == [1, 2]


def test_the_order_of_rows_changes_nothing(tmp_path):
    options = {"holdout": 0.3, "half": "2H", "max_train": 20, "max_evaluation": 10}
    one, other = (
        problemsets.load(own(tmp_path, 150, order), **options) for order in (1, 2)
    )
    assert one[:2] == other[:2]
    assert (len(one.train), len(one.evaluation)) == (20, 10)


def test_a_limit_keeps_the_first_of_a_fixed_order_and_counts_the_rest(tmp_path):
    path = own(tmp_path, 150)
    whole, few = problemsets.load(path), problemsets.load(path, max_train=7)
    assert few.train == whole.train[:7]
    assert few.evaluation == whole.evaluation
    assert Count("train: beyond 7", len(whole.train) - 7) in few.counts
    assert problemsets.load(path, max_train=10**6).train == whole.train


def test_a_rank_is_the_hash_of_the_purpose_and_the_bare_text():
    # Fixed for ever: every published split and half follows from it.
    expected = hashlib.sha256(b"half\nWhatis1+1?").digest()
    assert splits.text_rank(" What is 1 + 1?", "half") == expected


# The real sets.


@needs_data
def test_real_math_has_the_counts_found_independently():
    task = load(DATA, levels=[3, 4, 5])
    counts = dict(task.counts)
    assert counts["train: rows read of math/train"] == 7500
    assert counts["train: published without an answer, removed"] == 2
    assert counts["train: repeated, removed"] == 2
    assert counts["train: also in math/test, removed"] == 2
    assert counts["train: also in math500/test, removed"] == 0
    assert counts["train: of unknown level"] == 2
    # Levels 3 to 5: 1592 + 1690 + 2304 rows, less 2 without an answer, 1 repeated and
    # 2 that stand in MATH test.
    assert counts["train: kept"] == len(task.train) == 5586 - 5
    assert counts["evaluation: not in math500/test, removed"] == 4500
    assert counts["evaluation: kept"] == len(task.evaluation) == 105 + 128 + 134


@needs_data
def test_real_dev_and_fresh_make_up_math_test():
    dev, fresh, whole = (
        load(DATA, evaluation=f"math/{part}", levels=[3, 4, 5], numeric=True)
        for part in ("dev", "fresh", "test")
    )
    assert dev.train == fresh.train == whole.train
    assert questions(dev.evaluation + fresh.evaluation) == questions(whole.evaluation)
    sides = [collect.identities(t.evaluation) for t in (dev, fresh)]
    assert not sides[0] & sides[1]
    trained = {text_identity(p.question) for p in dev.train}
    assert not trained & (sides[0] | sides[1])
    # An independent count of numeric answers, within two per cent.
    for found, expected in ((dev.train, 4454), (whole.evaluation, 2930)):
        assert abs(len(found) - expected) < 0.02 * expected


@needs_data
def test_a_subset_of_real_math_is_balanced_over_subjects():
    """500 of 7,494: each subject at its share, to five sigma; a file's head is one."""
    few, whole = real(max_train=500).train, real().train
    for subject in {p.subject for p in whole}:
        share = sum(p.subject == subject for p in whole) / len(whole)
        found = sum(p.subject == subject for p in few)
        assert abs(found - 500 * share) < 5 * (500 * share * (1 - share)) ** 0.5


@needs_data
@pytest.mark.parametrize(
    ("train", "evaluation", "sizes"),
    [
        ("gsm8k/train", "gsm8k/test", (7473, 1319)),
        ("gsm8k/train", "aime24/test", (7473, 30)),
        ("gsm8k/train", "amc23/test", (7473, 40)),
    ],
)
def test_real_sets_combine(train, evaluation, sizes):
    task = load(DATA, train=train, evaluation=evaluation)
    assert (len(task.train), len(task.evaluation)) == sizes
    assert (len(real().train), len(real().evaluation)) == (7494, 500)
    for problem in task.evaluation:
        assert task.verify(rf"\boxed{{{problem.answer}}}", problem).correct


def test_no_preset_leaves_its_held_out_side_unguarded():
    guarded = set(presets.HELD_OUT)
    for parts in presets.PRESETS.values():
        for split in parts.values():
            assert split.source in guarded or not split.held_out
