"""From a question to prompt ids, and the ids that end an answer.

A template is a function of a tokenizer and a question. `plain` is the question alone;
`base` writes questions and answers as text, for a model that never saw a chat; `chat`
renders the tokenizer's own chat template, which writes every special token itself, so
nothing is added when the text is encoded.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from grpo_jax import tokens
from grpo_jax.base import Problem, Verdict
from grpo_jax.splits import Check
from grpo_jax.tokens import Tokenizer

Template: TypeAlias = Callable[[Tokenizer, str], list[int]]
Message: TypeAlias = dict[str, str]
Examples: TypeAlias = Sequence[tuple[str, str]]  # (question, worked answer)
# (question, instruction, worked examples) -> the messages up to the answer
Layout: TypeAlias = Callable[[str, str, Examples], list[Message]]

QUESTION, ANSWER = "Question:", "Answer:"  # marks of the base template
# Llama 3.2's template writes today's date, and a prompt must not change overnight. This
# is the day that it writes where it cannot read the clock.
_TODAY = "26 Jul 2024"
_SHOWN = 3  # offenders named in an error


def plain(tokenizer: Tokenizer, question: str) -> list[int]:
    """Ids of the question, after one BOS where the tokenizer puts one before text."""
    ids = tokens.encode(tokenizer, question)
    bos = [i for i in tokenizer("")["input_ids"] if i == tokenizer.bos_token_id]
    return ids if ids[:1] == bos else [*bos, *ids]


def base(
    *, system: str = "", instruction: str = "", examples: Examples = ()
) -> Template:
    """Text for a base model: worked examples, then the question, up to `Answer:`.

    Parts are a blank line apart, and the instruction ends every question. There is no
    space after `Answer:`, since the first token of a word holds the space before it.

    Args:
      system: what stands before everything else.
      instruction: how to answer, as text after the question.
      examples: worked examples.
    """

    def ask(question: str) -> str:
        return f"{QUESTION} {_join(question, instruction)}\n{ANSWER}"

    before = [system, *(f"{ask(asked)} {answer}" for asked, answer in examples)]

    def template(tokenizer: Tokenizer, question: str) -> list[int]:
        return plain(tokenizer, _join(*before, ask(question)))

    return template


def before_next_question(response: str) -> str:
    """What answers the question: the response up to a line that begins `Question:`.

    A base model that has answered goes on with questions of its own, and the last box
    is then not the answer. The first line stands after `Answer:` and is never cut.
    """
    return response.split(f"\n{QUESTION}", 1)[0]


def of_first_answer(check: Check) -> Check:
    """The same check, which reads a response up to its next question."""
    return functools.partial(_check_first_answer, check)


def _check_first_answer(check: Check, response: str, problem: Problem) -> Verdict:
    return check(before_next_question(response), problem)


def as_turns(question: str, instruction: str, examples: Examples) -> list[Message]:
    """Worked examples as earlier turns; the instruction ends every question."""
    messages = []
    for asked, answer in examples:
        messages.append({"role": "user", "content": _join(asked, instruction)})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": _join(question, instruction)}]


def in_message(question: str, instruction: str, examples: Examples) -> list[Message]:
    """One message: the instruction, then the worked examples, then the question."""
    worked = [f"{asked}\n{answer}" for asked, answer in examples]
    return [{"role": "user", "content": _join(instruction, *worked, question)}]


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def chat(
    *,
    system: str | None = None,
    instruction: str = "",
    examples: Examples = (),
    layout: Layout = as_turns,
) -> Template:
    """The tokenizer's chat template, up to where the assistant begins to answer.

    Args:
      system: the system message; None leaves it to the template, which may have one.
      instruction: how to answer, as text beside the question.
      examples: worked examples.
      layout: where examples and instruction stand: `as_turns` or `in_message`.
    """

    def template(tokenizer: Tokenizer, question: str) -> list[int]:
        messages = layout(question, instruction, examples)
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        text = _render(tokenizer, messages, add_generation_prompt=True)
        return tokens.encode(tokenizer, text)

    return template


def _render(tokenizer: Tokenizer, messages: list[Message], **options) -> str:
    if not tokenizer.chat_template:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template and "
            "the prompt style is chat; use the base style"
        )
    # Templates that know nothing of thinking or of dates ignore these.
    return tokenizer.apply_chat_template(
        messages,
        tokenize=False,
        enable_thinking=False,
        date_string=_TODAY,
        **options,
    )


def encode(
    problems: Iterable[Problem], template: Template, tokenizer: Tokenizer
) -> tuple[Problem, ...]:
    """Problems with their prompt ids, whatever their length; old ids are replaced."""
    return tuple(
        dataclasses.replace(p, prompt=tuple(map(int, template(tokenizer, p.question))))
        for p in problems
    )


def encode_all(
    problems: Iterable[Problem], template: Template, tokenizer: Tokenizer, *, limit: int
) -> tuple[Problem, ...]:
    """Problems with their prompt ids; refuses what cannot be encoded or is too long.

    Args:
      problems: with or without prompts, which are replaced.
      template: from a tokenizer and a question to ids.
      tokenizer: a `transformers` tokenizer.
      limit: the most tokens a prompt may have.
    """
    encoded = encode(problems, template, tokenizer)
    check_known(encoded, tokenizer)
    check_lengths(encoded, limit)
    return encoded


def check_known(problems: Sequence[Problem], tokenizer: Tokenizer) -> None:
    """Raises if a prompt holds a character that the tokenizer has no token for."""
    unknown = tokenizer.unk_token_id
    # Tokenizers without a token of its own for the unknown reuse the end of text.
    if unknown is None or unknown in (
        tokenizer.eos_token_id,
        tokenizer.bos_token_id,
        tokenizer.pad_token_id,
    ):
        return
    lost = [p for p in problems if unknown in p.prompt]
    if lost:
        raise ValueError(
            f"{len(lost)} of {len(problems)} prompts hold characters that the "
            f"tokenizer does not know ({lost[0].id}: {lost[0].question!r}); "
            "use another tokenizer or remove them"
        )


def check_lengths(problems: Sequence[Problem], limit: int) -> None:
    """Raises unless every prompt has between 1 and `limit` tokens."""
    empty = [p.id for p in problems if not p.prompt]
    if empty:
        raise ValueError(
            f"{len(empty)} of {len(problems)} prompts are empty ({_some(empty)}); "
            "a prompt needs at least 1 token: give them a question"
        )
    long = [f"{p.id}: {len(p.prompt)}" for p in problems if len(p.prompt) > limit]
    if long:
        longest = max(len(p.prompt) for p in problems)
        raise ValueError(
            f"{len(long)} of {len(problems)} prompts have more than {limit} tokens "
            f"({_some(long)}); remove them or raise the limit to {longest}"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def end_of_turn(tokenizer: Tokenizer) -> int | None:
    """The token the chat template writes after an assistant's answer.

    Found by rendering an answer and reading on, since a tokenizer may declare an EOS
    that its template never writes, and a model trained on it never does either.

    Returns:
      The first special token after the answer; None without a template or without a
      special token there.
    """
    if not tokenizer.chat_template:
        return None
    answer = "end-of-turn-probe"
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": answer},
    ]
    _, found, after = _render(tokenizer, messages).rpartition(answer)
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ids = tokens.encode(tokenizer, after) if found else []
    return next((i for i in ids if i in special), None)


def stop_ids(
    tokenizer: Tokenizer, eos: int | Sequence[int] | None = None
) -> tuple[int, ...]:
    """Every id that ends an answer, ascending.

    Args:
      tokenizer: its EOS and its template's end of turn stop.
      eos: further ids, as the model's generation configuration lists them.
    """
    declared = [eos] if isinstance(eos, int) else list(eos or ())
    found = {*declared, tokenizer.eos_token_id, end_of_turn(tokenizer)} - {None}
    if not found:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no EOS token and no end of "
            "turn, so no answer could end; set eos_token in its tokenizer_config.json"
        )
    return tuple(sorted(map(int, found)))
