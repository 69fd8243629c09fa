"""The built-in character tokenizer, and the text of sampled ids.

The tokenizer is made in code, one id per printable ASCII character, so that the
embedded model needs no file and no network; it is an ordinary `transformers` tokenizer
and saves as one. It has no beginning-of-sequence token and no chat template.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Tokenizer: TypeAlias = Any  # a `transformers` tokenizer; its base class varies
SPECIAL = ("<pad>", "<eos>", "<unk>")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))


def character_tokenizer() -> Tokenizer:
    """Makes the character tokenizer: decoding what it encoded gives the same text.

    A character outside printable ASCII and newline becomes `<unk>`, which the prompt
    encoder refuses.
    """
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS))}
    core = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(  # pyright: ignore
        tokenizers.Regex(r"[\s\S]"), behavior="isolated"
    )
    core.decoder = decoders.Fuse()  # pyright: ignore
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,  # spaces and newlines are content here
        model_input_names=["input_ids", "attention_mask"],
    )


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text and of nothing else: no BOS, no EOS."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def decode(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """Texts of rows of ids, special tokens left out and every space kept."""
    return tokenizer.batch_decode(
        list(rows),
        skip_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def decode_completions(
    tokenizer: Tokenizer, tokens: np.ndarray, sampled: np.ndarray
) -> list[str]:
    """Texts of what the policy sampled, without stop tokens.

    Args:
      tokenizer: a `transformers` tokenizer.
      tokens: `[B, T]` ids.
      sampled: `[B, T]` True where the policy drew the token; the mask decides, never
        the ids, since padding may be the stop token.
    """
    rows = [row[drawn].tolist() for row, drawn in zip(tokens, sampled, strict=True)]
    return decode(tokenizer, rows)
