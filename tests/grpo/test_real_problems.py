"""The real sets, against counts that others found."""

import functools
import pathlib

import pytest

from grpo_jax import collect, presets, problemsets, rewards, rows, sources
from grpo_jax.rows import Layout

DATA = pathlib.Path(__file__).parents[2].parent / "shared/data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is absent")


def load(train="math/train", evaluation="math/dev", **options):
    return problemsets.load(train, evaluation, root=str(DATA), **options)


@functools.cache
def real(**options):
    return load(**options)


@needs_data
def test_real_math_has_the_counts_found_independently():
    task = load(levels=[3, 4, 5])
    counts = dict(task.counts)
    assert counts["train: rows read of math/train"] == 7500
    assert counts["train: published without an answer, removed"] == 2
    assert counts["train: repeated, removed"] == 2
    assert counts["train: also in math/test, removed"] == 2
    assert counts["train: also in math500/test, removed"] == 0
    assert counts["train: of unknown level, removed"] == 2
    # Levels 3 to 5: 1592 + 1690 + 2304 rows, less 2 without an answer, 1 repeated and
    # 2 that stand in MATH test.
    assert counts["train: kept"] == len(task.train) == 5586 - 5
    assert counts["evaluation: not in math500/test, removed"] == 4500
    assert counts["evaluation: kept"] == len(task.evaluation) == 105 + 128 + 134


@needs_data
def test_real_dev_and_fresh_make_up_math_test(tmp_path):
    options = {"levels": [3, 4, 5], "numeric": True}
    dev = load(evaluation="math/dev", **options)
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "1 + 1?", "answer": 2, "level": 3}\n')
    fresh = load(str(path), "math/fresh", **options)
    sides = [collect.identities(t.evaluation) for t in (dev, fresh)]
    assert not sides[0] & sides[1]
    assert not collect.identities(dev.train) & (sides[0] | sides[1])
    # Independent counts of numeric answers, within two per cent.
    whole = dev.evaluation + fresh.evaluation
    for found, expected in ((dev.train, 4454), (whole, 2930), (dev.evaluation, 293)):
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
    task = load(train=train, evaluation=evaluation)
    assert (len(task.train), len(task.evaluation)) == sizes
    assert (len(real().train), len(real().evaluation)) == (7494, 500)
    for problem in task.evaluation:
        assert task.verify(rf"\boxed{{{problem.answer}}}", problem).correct


def read(source):
    return collect.collect(source, presets.origins(source, str(DATA)))


REAL = {  # rows, distinct, numbers as answers
    presets.GSM8K_TRAIN: (7473, 7473, 7473),
    presets.GSM8K_TEST: (1319, 1319, 1319),
    presets.AIME_24: (30, 30, 30),
    presets.AIME_25: (30, 30, 30),
    presets.AMC_23: (40, 40, 40),
}


@needs_data
@pytest.mark.parametrize("source", REAL, ids=lambda source: source.name)
def test_real_files_read_whole_and_their_golds_are_numbers(source):
    found = read(source)
    numbers = sum(rewards.number(p.answer) is not None for p in found.problems)
    assert (found.rows, len(found.problems), numbers) == REAL[source]
    assert (found.malformed, found.duplicates) == (0, 0)


@needs_data
def test_real_gsm8k_solutions_box_their_answer_and_keep_no_marks():
    for source in (presets.GSM8K_TRAIN, presets.GSM8K_TEST):
        for problem in read(source).problems:
            assert "<<" not in problem.solution
            assert "####" not in problem.solution
            assert rewards.extract(problem.solution, require_box=True) == problem.answer


@needs_data
def test_real_aime_and_amc_answers_are_whole_numbers_as_published():
    first = [read(s).problems[0].answer for s in (presets.AIME_25, presets.AMC_23)]
    assert first == ["70", "27"]
    assert "025" in {p.answer for p in read(presets.AIME_24).problems}
    for problem in read(presets.AMC_23).problems:
        assert problem.answer.lstrip("-").isdigit()


@needs_data
def test_real_math_answers_are_the_last_box_of_their_solution():
    """The `answer` of the local copy, found by others, against ours from the box."""
    for source in (presets.MATH_TRAIN, presets.MATH_TEST):
        (origin,) = presets.origins(source, str(DATA))
        boxed = Layout(question=("problem",), answer=("none",))
        for row in sources.read(origin):
            assert isinstance(row, sources.Row)
            given = row.fields["answer"]
            if given:
                assert (
                    rows.problem(row.fields, boxed, task="math").answer == given.strip()
                ), row.where


@needs_data
def test_math_train_has_two_problems_published_without_an_answer():
    found = read(presets.MATH_TRAIN)
    assert (found.rows, found.unanswered, found.malformed) == (7500, 2, 0)
    assert (found.duplicates, found.conflicts, len(found.problems)) == (2, 0, 7496)
