"""Tokenizers, questions and texts that the tests of prompts share."""

import functools
import pathlib

import pytest

from grpo_jax import tokens
from grpo_jax.base import Problem

TOKENIZERS = pathlib.Path(__file__).parents[2].parent / "shared/tokenizers"
FAMILIES = ("qwen3", "qwen2_5", "llama3_1", "smollm2")
BOX = r"Please reason step by step, and put your final answer within \boxed{}."
EXAMPLES = [("What is 12 + 34?", r"\boxed{46}"), ("What is 50 + 21?", r"\boxed{71}")]
needs_tokenizers = pytest.mark.skipif(
    not TOKENIZERS.exists(), reason="needs the shared tokenizers"
)


@functools.cache
def load(name):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(TOKENIZERS / name)


@functools.cache
def characters():
    return tokens.character_tokenizer()


def read(tokenizer, ids):
    """The exact text of ids, special tokens and spaces included."""
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def problem(question, name="p"):
    return Problem(id=name, question=question, answer="1")


def chat_tokenizer(template):
    """The character tokenizer with a chat template, to try one out."""
    tokenizer = tokens.character_tokenizer()
    tokenizer.chat_template = template
    return tokenizer
