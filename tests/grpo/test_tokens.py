import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import tokens


@pytest.fixture(scope="module")
def tokenizer():
    return tokens.character_tokenizer()


def test_every_character_has_one_id_and_the_vocabulary_is_small(tokenizer):
    assert len(tokenizer) == len(tokens.SPECIAL) + len(tokens.CHARACTERS) < 100
    ids = tokens.encode(tokenizer, tokens.CHARACTERS)
    assert ids == list(range(len(tokens.SPECIAL), len(tokenizer)))
    assert set("0123456789+-*/=().,?! \nazAZ") <= set(tokens.CHARACTERS)


# "<" is left out so that no drawn text spells a special token.
@given(st.text([c for c in tokens.CHARACTERS if c != "<"]))
@settings(max_examples=200, deadline=None)
def test_decoding_what_was_encoded_keeps_every_space_and_newline(text):
    tokenizer = tokens.character_tokenizer()
    ids = tokens.encode(tokenizer, text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokens.decode(tokenizer, [ids]) == [text]
    assert tokenizer(text)["input_ids"] == ids  # nothing is added by default


def test_a_saved_tokenizer_loads_as_any_other(tokenizer, tmp_path):
    import transformers

    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "3+8=11\n 11 - 2 = 9 .\n\n(a , b 's)"
    assert loaded(text)["input_ids"] == tokens.encode(tokenizer, text)
    assert loaded.decode(loaded(text)["input_ids"]) == text
    for name in ("eos_token_id", "pad_token_id", "unk_token_id"):
        assert getattr(loaded, name) == getattr(tokenizer, name)
    assert loaded.bos_token_id is None
    assert len(loaded) == len(tokenizer)


def test_special_ids_differ_and_an_unknown_character_is_marked(tokenizer):
    special = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert special == (0, 1, 2)
    assert tokens.encode(tokenizer, "1é2")[1] == tokenizer.unk_token_id


def test_completions_are_what_the_mask_says_whatever_the_padding(tokenizer):
    prompt, answer = tokens.encode(tokenizer, "1+2="), tokens.encode(tokenizer, "3\n 4")
    eos = tokenizer.eos_token_id
    # Padding is a digit in one row and the stop token in the other.
    row = np.array(
        [prompt + answer + [eos] + [filler] * 2 for filler in (answer[0], eos)]
    )
    sampled = np.zeros(row.shape, bool)
    sampled[:, len(prompt) : len(prompt) + len(answer) + 1] = True
    assert tokens.decode_completions(tokenizer, row, sampled) == ["3\n 4", "3\n 4"]


def test_nothing_sampled_is_an_empty_text(tokenizer):
    row = np.array([tokens.encode(tokenizer, "1+2=")])
    assert tokens.decode_completions(tokenizer, row, np.zeros(row.shape, bool)) == [""]
