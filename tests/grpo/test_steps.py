"""Where answers are cut into steps."""

import pathlib

import hypothesis
import hypothesis.strategies as st
import pytest

from grpo_jax import credit, steps, tokens

TOKENIZERS = pathlib.Path(__file__).parents[3] / "shared" / "tokenizers"
# Rich in what decides: separators, closers, decimals, LaTeX of every kind.
PIECES = ("a", "bc ", "\n", ". ", "! ", "?", ")", " ", "3.14", "x=1", "é", "漢", "🙂")
LATEX = ("$", "$$", "\\", "\\$", "\\(", "\\)", "\\[", "\\]", "\\\\")
TEXTS = st.lists(st.sampled_from(PIECES + LATEX), max_size=30).map("".join)


@pytest.mark.parametrize(
    ("text", "min_chars", "wanted"),
    [
        ("3+8=11\n11-2=9\n9", 1, ["3+8=11\n", "11-2=9\n", "9"]),
        ("a\n", 1, ["a\n"]),  # nothing is left to be a step
        ("a\n\nb", 1, ["a\n", "\n", "b"]),
        ("a\n\nb", 2, ["a\n", "\nb"]),
        ("ab. cd", 1, ["ab. ", "cd"]),
        ("ab. cd", 5, ["ab. cd"]),
        ("pi is 3.14 here", 1, ["pi is 3.14 here"]),
        ("It is so.) Then", 1, ["It is so.) ", "Then"]),
        ("$a. b$ c. d", 1, ["$a. b$ c. ", "d"]),
        ("$$a. b$$ c. d", 1, ["$$a. b$$ c. ", "d"]),
        (r"\(a. b\) c. d", 1, [r"\(a. b\) c. ", "d"]),
        (r"\[a. b\] c. d", 1, [r"\[a. b\] c. ", "d"]),
        (r"\$5. He", 1, [r"\$5. ", "He"]),
        ("$5. A\nB. C", 1, ["$5. A\n", "B. ", "C"]),  # a price ends with its line
        (r"a \\(b. c", 1, [r"a \\(b. ", "c"]),  # a line break, then a parenthesis
        ("", 1, [""]),
    ],
)
def test_steps_worked_by_hand(text, min_chars, wanted):
    assert credit.split_steps(text, min_chars=min_chars) == wanted


def test_the_last_of_max_steps_runs_to_the_end():
    text = "a\nb\nc\nd\n"
    assert credit.split_steps(text, max_steps=3, min_chars=1) == [
        "a\n",
        "b\n",
        "c\nd\n",
    ]
    assert credit.split_steps(text, max_steps=1, min_chars=1) == [text]


@hypothesis.settings(deadline=None)
@hypothesis.given(TEXTS, st.integers(1, 7), st.integers(1, 12))
def test_the_steps_joined_are_the_text_and_none_is_empty(text, most, least):
    found = credit.split_steps(text, max_steps=most, min_chars=least)
    assert "".join(found) == text
    assert len(found) <= most
    assert all(found) or text == ""
    assert all(len(step) >= least for step in found[:-1])


@hypothesis.settings(deadline=None)
@hypothesis.given(TEXTS, st.integers(1, 7), st.integers(1, 12))
def test_the_cuts_of_a_prefix_are_the_cuts_of_the_whole_inside_it(text, most, least):
    how = {"max_steps": most, "min_chars": least}
    whole = steps.cuts(text, **how)
    for end in range(len(text) + 1):
        assert steps.cuts(text[:end], **how) == [c for c in whole if c <= end]


def letters(ids):
    """Token 1 is a newline, 2 the end, which has no text, 3 two lines at once."""
    return "".join({0: "a", 1: "\n", 2: "", 3: "\n\n", 4: "b\nc"}[i] for i in ids)


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        ([0, 1, 0, 2], [2]),
        ([0, 1, 2], [2]),  # the end is a step of its own: no look ahead
        ([0, 1], []),  # nothing was sampled behind the cut
        ([0, 3, 0, 2], [2]),  # two cuts in one token are one
        ([0, 4, 0, 2], [2]),  # a token belongs where its first character lies
        ([1, 1, 0], [1, 2]),
        ([2], []),
        ([], []),
    ],
)
def test_boundaries_worked_by_hand(ids, wanted):
    assert steps.segmenter(letters, min_chars=1)(ids) == wanted


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 5))
def test_whether_a_token_begins_a_step_depends_on_the_tokens_before_it_only(ids, most):
    segment = steps.segmenter(letters, max_steps=most, min_chars=1)
    whole = segment(ids)
    for end in range(1, len(ids)):
        for following in range(5):
            other = segment([*ids[:end], following])
            assert [b for b in other if b <= end] == [b for b in whole if b <= end]


def test_tokens_that_are_no_text_alone_fall_back_to_prefixes():
    # Each id is a byte: é, 漢 and 🙂 are two, three and four tokens.
    decode = lambda ids: bytes(ids).decode("utf-8", "replace")
    ids = list("é🙂x\n漢y\nz".encode())
    segment = steps.segmenter(decode, min_chars=1)
    assert [bytes(ids[b:]).decode() for b in segment(ids)] == ["漢y\nz", "z"]


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "llama3_1", "smollm2"])
def test_boundaries_of_real_tokenizers_lie_at_the_cuts_of_the_text(name):
    transformers = pytest.importorskip("transformers")
    if not (TOKENIZERS / name).exists():
        pytest.skip("../shared/tokenizers is absent")
    made = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / name)
    text = (
        "First, 2 + 3 = 5 🙂.\n\nThen 5 * 4 = 20, so 漢字. Hence $x = 1. 5$.\n"
        "Done \\boxed{20}"
    )
    ids = made(text, add_special_tokens=False)["input_ids"] + [made.eos_token_id]
    decode = lambda some: tokens.decode(made, [list(some)])[0]
    assert decode(ids) == text
    segment = steps.segmenter(decode, min_chars=5)
    for b in segment(ids):
        before, places = decode(ids[:b]), steps.cuts(text, min_chars=5)
        last = len(decode(ids[: b - 1]))
        # The token before a boundary holds the cut, or ends at it.
        assert any(last < c <= len(before) for c in places)
    assert len(segment(ids)) == 3


def test_the_embedded_tokenizer_cuts_after_each_line():
    made = tokens.character_tokenizer()
    decode = lambda some: tokens.decode(made, [list(some)])[0]
    ids = [*tokens.encode(made, "1+2=3\n3+4=7\n7"), int(made.eos_token_id)]
    assert steps.segmenter(decode, min_chars=1)(ids) == [6, 12]
