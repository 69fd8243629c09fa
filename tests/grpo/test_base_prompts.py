import pytest

from grpo_jax import prompts, rewards, tokens
from tests.grpo.prompt_cases import (
    BOX,
    EXAMPLES,
    FAMILIES,
    load,
    needs_tokenizers,
    problem,
    read,
)

BASE = f"""Be brief.

Question: What is 12 + 34?

{BOX}
Answer: \\boxed{{46}}

Question: What is 50 + 21?

{BOX}
Answer: \\boxed{{71}}

Question: What is 1 + 2?

{BOX}
Answer:"""


@needs_tokenizers
@pytest.mark.parametrize("name", FAMILIES)
def test_the_base_prompt_as_text(name):
    tokenizer = load(name)
    template = prompts.base(system="Be brief.", instruction=BOX, examples=EXAMPLES)
    ids = template(tokenizer, "What is 1 + 2?")
    assert read(tokenizer, ids[name == "llama3_1" :]) == BASE
    bare = prompts.base()(tokenizer, "1 + 2")
    assert read(tokenizer, bare[name == "llama3_1" :]) == "Question: 1 + 2\nAnswer:"


@needs_tokenizers
@pytest.mark.parametrize("name", FAMILIES)
def test_sampling_after_a_base_prompt_can_give_the_ids_of_a_worked_answer(name):
    tokenizer = load(name)
    for answer in ("We add the numbers.", "$1$ and", "2.", r"\boxed{4}", r"\[x\]"):
        # Example and question are one text each, so any seam would show in the ids.
        shown = prompts.base(instruction=BOX, examples=[("What is 2 + 2?", answer)])
        whole = shown(tokenizer, "Next")
        asked = prompts.base(instruction=BOX)(tokenizer, "What is 2 + 2?")
        answered = [*asked, *tokens.encode(tokenizer, " " + answer)]
        assert whole[: len(asked)] == asked
        # The last token may join what follows the answer.
        assert whole[: len(answered) - 1] == answered[:-1]


def test_a_response_is_read_up_to_its_next_question():
    cut = prompts.before_next_question
    own = r" It is \boxed{3}."
    assert cut(own + "\n\nQuestion: What is 2 + 2?\nAnswer: \\boxed{4}") == own + "\n"
    assert cut(own + "\nQuestion:") == own
    assert cut("a\nQuestion: b\nQuestion: c") == "a"
    # Only the exact mark, and only where it begins a line after the first.
    for whole in (
        own,
        "",
        "Question: is it 3? Yes.",
        "The Question: is it 3?",
        "a\nquestion: b",
        "a\n Question: b",
        "a\nQuestions: b",
        "a\nQuestion 2: b",
    ):
        assert cut(whole) == whole


@needs_tokenizers
def test_what_follows_an_answer_in_the_base_template_is_cut_off():
    text = read(
        load("qwen2_5"),
        prompts.base(instruction=BOX, examples=EXAMPLES)(load("qwen2_5"), "Q"),
    )
    asked = prompts.base(instruction=BOX)(load("qwen2_5"), EXAMPLES[0][0])
    response = text.removeprefix(read(load("qwen2_5"), asked))
    assert prompts.before_next_question(response).strip() == EXAMPLES[0][1]


def test_a_check_of_the_first_answer_does_not_see_the_next():
    def check(response, problem):
        return rewards.grade(response, problem.answer)

    first = prompts.of_first_answer(check)
    response = " \\boxed{1}\n\nQuestion: 1 + 1?\nAnswer: \\boxed{2}"
    assert not check(response, problem("Q")).correct
    assert first(response, problem("Q")) == (True, "1", None)
