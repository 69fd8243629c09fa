import pytest

from grpo_jax import prompts, tokens
from tests.grpo.prompt_cases import (
    BOX,
    EXAMPLES,
    FAMILIES,
    TOKENIZERS,
    characters,
    chat_tokenizer,
    load,
    needs_tokenizers,
    problem,
    read,
)

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def test_layouts_place_examples_and_instruction():
    turns = prompts.as_turns("Q", "I", [("E", "A")])
    assert [(m["role"], m["content"]) for m in turns] == [
        ("user", "E\n\nI"),
        ("assistant", "A"),
        ("user", "Q\n\nI"),
    ]
    single = prompts.in_message("Q", "I", [("E", "A"), ("F", "B")])
    assert single == [{"role": "user", "content": "I\n\nE\nA\n\nF\nB\n\nQ"}]
    assert prompts.as_turns("Q", "", ()) == [{"role": "user", "content": "Q"}]
    assert prompts.in_message("Q", "", ()) == [{"role": "user", "content": "Q"}]


def test_plain_is_the_question_alone_for_the_embedded_model():
    ids = prompts.plain(characters(), "3+8-2=")
    assert characters().decode(ids) == "3+8-2="
    assert len(ids) == 6


@pytest.mark.parametrize("system", [None, "", "S"])
def test_a_system_message_is_written_only_if_given(system):
    tokenizer = chat_tokenizer(TURNS)
    text = tokenizer.decode(prompts.chat(system=system)(tokenizer, "Q"))
    assert text == ("" if system is None else f"[system]{system}") + "[user]Q"


@needs_tokenizers
@pytest.mark.parametrize("name", FAMILIES)
def test_chat_prompts_equal_the_templates_own_ids(name):
    tokenizer = load(name)
    template = prompts.chat(
        system="Be brief.", instruction="Box it.", examples=EXAMPLES
    )
    messages = [
        {"role": "system", "content": "Be brief."},
        *prompts.as_turns("What is 1 + 2?", "Box it.", EXAMPLES),
    ]
    expected = tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=True,
        tokenize=True,
        enable_thinking=False,
        return_dict=False,
    )
    ids = template(tokenizer, "What is 1 + 2?")
    assert ids == list(expected)
    text = tokenizer.decode(ids)
    assert text.index("12 + 34") < text.index("50 + 21") < text.index("1 + 2?")


@needs_tokenizers
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("template", [prompts.plain, prompts.base(), prompts.chat()])
def test_bos_is_written_once_where_there_is_one(name, template):
    tokenizer = load(name)
    ids = template(tokenizer, "What is 1 + 2?")
    if name == "llama3_1":
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1
    else:
        # SmolLM2 calls its start of turn BOS and puts none before text.
        assert tokenizer("")["input_ids"] == []
    if template is prompts.plain:
        assert ids == tokenizer("What is 1 + 2?")["input_ids"]


@needs_tokenizers
def test_text_that_begins_with_bos_gets_no_second_one():
    tokenizer = load("llama3_1")
    template = prompts.base(system=tokenizer.bos_token + "Solve.")
    ids = template(tokenizer, "Q")
    assert ids == prompts.base(system="Solve.")(tokenizer, "Q")
    assert ids.count(tokenizer.bos_token_id) == 1


@needs_tokenizers
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "qwen3",
            "<|im_start|>user\nQ\n\n{box}<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        (
            "qwen2_5",
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud."
            " You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nQ\n\n{box}<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3_1",
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
            "Q\n\n{box}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "smollm2",
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM,"
            " trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nQ\n\n{box}<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_the_chat_prompt_of_each_model_as_text(name, expected):
    ids = prompts.chat(instruction=BOX)(load(name), "Q")
    # A system message is the template's own where none is given.
    assert read(load(name), ids) == expected.replace("{box}", BOX)


@needs_tokenizers
@pytest.mark.parametrize("layout", [prompts.as_turns, prompts.in_message])
def test_thinking_is_off_in_qwen3_with_worked_examples_too(layout):
    template = prompts.chat(instruction=BOX, examples=EXAMPLES, layout=layout)
    text = read(load("qwen3"), template(load("qwen3"), "Q"))
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert text.count("<think>") == 1


def test_a_template_that_writes_the_date_writes_one_day_for_ever():
    dated = chat_tokenizer(
        "{% if not date_string is defined %}{% if strftime_now is defined %}"
        '{% set date_string = strftime_now("%d %b %Y") %}{% else %}'
        '{% set date_string = "no clock" %}{% endif %}{% endif %}'
        "[{{ date_string }}]" + TURNS
    )
    text = dated.decode(prompts.chat()(dated, "Q"))
    assert text == "[26 Jul 2024][user]Q"


@needs_tokenizers
@pytest.mark.parametrize(
    ("name", "end", "pad"),
    [
        ("qwen3", "<|im_end|>", "<|endoftext|>"),
        ("qwen2_5", "<|im_end|>", "<|endoftext|>"),
        ("llama3_1", "<|eot_id|>", None),  # no padding token at all
        ("smollm2", "<|im_end|>", "<|im_end|>"),  # padding is the stop token
    ],
)
def test_stop_ids_hold_eos_end_of_turn_and_what_the_model_lists(name, end, pad):
    tokenizer = load(name)
    assert tokenizer.pad_token == pad
    end_id = tokenizer.convert_tokens_to_ids(end)
    assert prompts.end_of_turn(tokenizer) == end_id
    assert prompts.stop_ids(tokenizer) == tuple(
        sorted({end_id, tokenizer.eos_token_id})
    )
    listed = prompts.stop_ids(tokenizer, [end_id, 7, 3])
    assert listed == tuple(sorted({3, 7, end_id, tokenizer.eos_token_id}))
    assert prompts.stop_ids(tokenizer, 7) == tuple(
        sorted({7, *prompts.stop_ids(tokenizer)})
    )


@needs_tokenizers
def test_an_eos_the_template_never_writes_does_not_hide_the_end_of_turn():
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / "llama3_1")
    tokenizer.eos_token = "<|end_of_text|>"
    ids = {
        tokenizer.convert_tokens_to_ids(t) for t in ("<|end_of_text|>", "<|eot_id|>")
    }
    assert set(prompts.stop_ids(tokenizer)) == ids


def test_end_of_turn_is_none_without_a_special_token_after_the_answer():
    assert prompts.end_of_turn(characters()) is None
    assert prompts.end_of_turn(chat_tokenizer(TURNS)) is None
    closed = chat_tokenizer("<pad>" + TURNS + " \n{{ eos_token }}<unk>")
    assert prompts.end_of_turn(closed) == closed.eos_token_id
    assert prompts.stop_ids(characters()) == (characters().eos_token_id,)


def test_a_tokenizer_without_any_stop_is_refused():
    tokenizer = tokens.character_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no EOS token"):
        prompts.stop_ids(tokenizer)
    assert prompts.stop_ids(tokenizer, 5) == (5,)


def test_encode_all_keeps_order_and_fields_and_replaces_prompts():
    given = [problem("1+2=", "a"), problem("34+5=", "b")]
    encoded = prompts.encode_all(given, prompts.plain, characters(), limit=5)
    assert [p.id for p in encoded] == ["a", "b"]
    assert [characters().decode(list(p.prompt)) for p in encoded] == ["1+2=", "34+5="]
    assert given[0].prompt == ()
    again = prompts.encode_all(encoded, prompts.plain, characters(), limit=5)
    assert again == encoded


def test_over_long_prompts_are_named_with_their_lengths():
    given = [problem("1" * n, f"p{n}") for n in (3, 5, 6, 7, 8, 9)]
    with pytest.raises(ValueError, match="have more than 5 tokens") as error:
        prompts.encode_all(given, prompts.plain, characters(), limit=5)
    said = str(error.value)
    assert "4 of 6" in said
    assert "(p6: 6, p7: 7, p8: 8, …)" in said
    assert "p5" not in said
    assert "to 9" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("template", "question", "said"),
    [
        (prompts.plain, "", "empty"),
        (prompts.plain, "é", "does not know"),
        (prompts.chat(), "1+2=", "no chat template"),
    ],
)
def test_what_cannot_be_encoded_is_refused_in_one_line(template, question, said):
    with pytest.raises(ValueError, match=said) as error:
        prompts.encode_all([problem(question)], template, characters(), limit=9)
    assert "\n" not in str(error.value)
