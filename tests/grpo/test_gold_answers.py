r"""Gold answers of the public sets, graded against their own full solutions.

Levels 3 to 5 of MATH hold 4,483 numeric answers of 5,586 in train, 2,944 of 3,669 in
test and 295 of 367 in MATH-500. An independent count found 4,454, 2,930 and 293, which
is fewer by 29, 14 and 2. A name or another figure before the number (`k = 6`,
`0.56 = 56\%`) makes 21, 12 and 1 of them: what names its value is still a number. Which
the other 8, 2 and 1 are cannot be told from a count; forms that a stricter reader may
leave out are an approximation (`\approx 8.24 \text{ mph}`), a number in words
(`\text{13}`), a full stop behind it, and things counted (`9\text{ values}`).
Not numeric in both: roots, pi, powers such as `2^{10}`, other bases, ratios and times.
"""

import collections
import json
import pathlib

import pytest

from grpo_jax import rewards

DATA = pathlib.Path(__file__).parents[2].parent / "shared/data"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs the shared data")


def rows(name):
    with open(DATA / name, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize(
    ("name", "num_rows", "num_numeric", "num_named"),
    [
        ("math_train.jsonl", 5586, 4483, 21),
        ("math_test.jsonl", 3669, 2944, 12),
        ("math500_test.jsonl", 367, 295, 1),
    ],
)
def test_numeric_golds_of_math_are_graded_right_against_their_solutions(
    name, num_rows, num_numeric, num_named
):
    hard = [r for r in rows(name) if str(r["level"])[-1] in "345"]
    kinds = collections.Counter(rewards.kind(r["answer"]) for r in hard)
    print(name, dict(kinds.most_common()))
    assert len(hard) == num_rows
    assert num_rows - kinds["other"] == num_numeric
    numeric = [r for r in hard if rewards.is_numeric(r["answer"])]
    assert sum("=" in r["answer"] for r in numeric) == num_named
    verdicts = [rewards.grade(r["solution"], r["answer"]) for r in numeric]
    assert sum(v.correct for v in verdicts) >= 0.995 * len(numeric)


def test_golds_of_math_that_are_no_numbers_equal_their_own_solutions():
    hard = [r for r in rows("math500_test.jsonl") if str(r["level"])[-1] in "345"]
    for row in hard:
        if not rewards.is_numeric(row["answer"]):
            assert rewards.grade(row["solution"], row["answer"]).correct, row["answer"]


@pytest.mark.parametrize("name", ["gsm8k_train.jsonl", "gsm8k_test.jsonl"])
def test_golds_of_gsm8k_are_numbers_and_right_against_their_solutions(name):
    for row in rows(name):
        gold = row["answer"].rpartition("####")[2].strip()
        assert rewards.is_numeric(gold)
        assert rewards.grade(row["answer"], gold).correct
        assert rewards.grade(rf"\boxed{{{gold}}}", row["answer"]).correct


@pytest.mark.parametrize(
    "name", ["aime24_test.jsonl", "aime25_test.jsonl", "amc23_test.jsonl"]
)
def test_golds_of_competitions_are_integers_however_they_are_written(name):
    for row in rows(name):
        gold = str(row["answer"])  # "025", 70 and 27.0 stand in the files
        number = rewards.number(gold)
        assert number is not None
        assert number.denominator == 1
        assert rewards.grade(rf"\boxed{{{number}}}", gold).correct
        assert not rewards.grade(rf"\boxed{{{number + 1}}}", gold).correct
