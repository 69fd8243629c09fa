"""The byte-level BPE tokenizer inside a GGUF file.

The file holds vocabulary, merges and special tokens, but of the pre-tokenizer only
its name. The steps behind each name are written here; a name that is not known is
refused, since a wrong pre-tokenizer yields other ids without any error.
"""

import json
from typing import Any

from grpo_jax.models.gguf import File

CONTROL, USER_DEFINED = 3, 4
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(numbers: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": _WORDS % numbers},
        "behavior": "Isolated",
        "invert": False,
    }


# Name: first step, whether ByteLevel splits words too, normaliser, whether a word
# that is in the vocabulary skips the merges, whether BOS is added by default.
PRE_TOKENIZERS: dict[str, tuple[dict[str, Any], bool, str | None, bool, bool]] = {
    "smollm": ({"type": "Digits", "individual_digits": True}, True, None, False, False),
    "qwen2": (_split(r"\p{N}"), False, "NFC", False, False),
    "llama-bpe": (_split(r"\p{N}{1,3}"), False, None, True, True),
}


def build(file: File) -> Any | None:
    """Returns the file's tokenizer for transformers, or None if it has none."""
    kind = file.get("tokenizer.ggml.model")
    if kind is None:
        return None
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    content = tokenizer_json(file)
    tokens = file.get("tokenizer.ggml.tokens")
    names = {
        "bos_token": "bos",
        "eos_token": "eos",
        "unk_token": "unknown",
        "pad_token": "padding",
    }
    ids = {k: file.get(f"tokenizer.ggml.{v}_token_id") for k, v in names.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        **{k: tokens[i] for k, i in ids.items() if i is not None},
    )
    tokenizer.chat_template = file.get("tokenizer.chat_template")
    return tokenizer


def tokenizer_json(file: File) -> dict[str, Any]:
    """Returns the content of the `tokenizer.json` that the file was made from."""
    kind, pre = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"{file.path}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not "
            f"supported; supported are gpt2 with {sorted(PRE_TOKENIZERS)}: use the "
            "model's Hugging Face directory instead"
        )
    first, use_regex, normaliser, ignore_merges, adds_bos = PRE_TOKENIZERS[pre]
    tokens = file.get("tokenizer.ggml.tokens")
    types = file.get("tokenizer.ggml.token_type", [1] * len(tokens))
    adds_bos = file.get("tokenizer.ggml.add_bos_token", adds_bos)
    bos = file.get("tokenizer.ggml.bos_token_id") if adds_bos else None
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(i, text, special=types[i] == CONTROL)
            for i, text in enumerate(tokens)
            if types[i] in (CONTROL, USER_DEFINED)
        ],
        "normalizer": normaliser and {"type": normaliser},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [first, _byte_level(space=False, use_regex=use_regex)],
        },
        "post_processor": _template(None if bos is None else (tokens[bos], bos)),
        "decoder": _byte_level(space=True, use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": [m.split(" ", 1) for m in file.get("tokenizer.ggml.merges")],
        },
    }


def _byte_level(*, space: bool, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _added(number: int, text: str, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": special}


def _template(bos: tuple[str, int] | None) -> dict[str, Any]:
    first = [{"Sequence": {"id": "A", "type_id": 0}}]
    second = [{"Sequence": {"id": "B", "type_id": 1}}]
    special: dict[str, Any] = {}
    if bos is not None:
        text, number = bos
        special = {text: {"id": text, "ids": [number], "tokens": [text]}}
        first = [{"SpecialToken": {"id": text, "type_id": 0}}, *first]
        second = [{"SpecialToken": {"id": text, "type_id": 1}}, *second]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": first + second,
        "special_tokens": special,
    }
