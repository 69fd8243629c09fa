"""GGUF files of Llama and Qwen models: metadata, weights, and the tokenizer's parts.

The container is parsed by the `gguf` package; the block formats are decoded in
`quants`. llama.cpp stores the query and key rows of Llama models with rotary pairs
interleaved; they are put back into the order of Hugging Face checkpoints.
"""

import pathlib
from typing import Any

import numpy as np
from gguf import GGUFReader

from grpo_jax.models import quants, tensors
from grpo_jax.models.config import SUPPORTED, Llama3Rope, ModelConfig
from grpo_jax.models.rope import rope_frequencies

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE = "rope_freqs.weight"


class File:
    """An open GGUF file: its metadata and its tensors, read when asked for."""

    def __init__(self, path: pathlib.Path) -> None:
        """Parses the header; tensors stay on disk."""
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (ValueError, IndexError, KeyError, OSError) as error:
            raise ValueError(
                f"{path} is truncated or no GGUF file ({error}); fetch it again"
            ) from error
        self.tensors = {t.name: t for t in self._reader.tensors}
        self.architecture = str(self.get("general.architecture", ""))

    def get(self, name: str, default: Any = None) -> Any:
        """Returns one entry of the metadata, a list if it is an array."""
        field = self._reader.fields.get(name)
        return default if field is None else field.contents()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape, slowest axis first."""
        return tuple(int(n) for n in reversed(self.tensors[name].shape))

    def read(self, name: str) -> np.ndarray:
        """Decodes one tensor to float32."""
        tensor = self.tensors[name]
        try:
            return quants.dequantize(
                tensor.data, tensor.tensor_type.name, self.shape(name)
            )
        except ValueError as error:
            raise ValueError(f"{self.path}: {name}: {error}") from error


def read_config(file: File) -> ModelConfig:
    """Reads the decoder's shape from a GGUF file's metadata."""
    arch = file.architecture
    if arch not in ("llama", "qwen2", "qwen3"):
        raise ValueError(
            f"{file.path}: architecture {arch!r} is not supported; {SUPPORTED}"
        )

    def get(name: str, default: Any = None) -> Any:
        found = file.get(f"{arch}.{name}", default)
        if found is None:
            raise ValueError(f"{file.path}: its metadata lacks {arch}.{name}")
        if isinstance(found, list):
            raise ValueError(
                f"{file.path}: {arch}.{name} differs by layer, which is not supported"
            )
        return found

    _refuse_unsupported(file, get)
    heads, width = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", width // heads)
    theta = get("rope.freq_base", 10_000.0)
    stop = [file.get(f"tokenizer.ggml.{n}_token_id") for n in ("eos", "eot", "eom")]
    has_qkv_bias = "blk.0.attn_q.bias" in file.tensors
    config = {
        "family": arch,
        "vocab_size": file.shape("token_embd.weight")[0],
        "width": width,
        "ffw": get("feed_forward_length"),
        "num_layers": get("block_count"),
        "num_heads": heads,
        "num_kv_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "norm_epsilon": _shortest(get("attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": _shortest(theta),
        "qk_norm": arch == "qwen3",
        "qkv_bias": has_qkv_bias,
        "out_bias": "blk.0.attn_output.bias" in file.tensors,
        "tied": "output.weight" not in file.tensors,
        "max_positions": get("context_length", 32_768),
        "bos_id": file.get("tokenizer.ggml.bos_token_id"),
        "stop_ids": tuple(dict.fromkeys(i for i in stop if i is not None)),
        "pad_id": file.get("tokenizer.ggml.padding_token_id"),
    }
    plain = ModelConfig(**config)
    if ROPE not in file.tensors:
        return plain
    return ModelConfig(**config, rope_scaling=_llama3_rope(file, plain))


def _refuse_unsupported(file: File, get: Any) -> None:
    refused = {
        "expert_count": "a mixture of experts",
        "attention.sliding_window": "a sliding window in use",
    }
    for name, what in refused.items():
        if get(name, 0):
            raise ValueError(f"{file.path}: {what} is not supported; {SUPPORTED}")
    scaling = get("rope.scaling.type", "none")
    if scaling != "none":
        raise ValueError(
            f"{file.path}: rope type {scaling!r} is not supported; supported are "
            "default and llama3"
        )
    if file.get("split.count", 1) > 1:
        raise ValueError(f"{file.path} is one of several parts; merge them first")
    if "token_embd.weight" not in file.tensors:
        raise ValueError(f"{file.path} has no token_embd.weight; give a whole model")


def _llama3_rope(file: File, plain: ModelConfig) -> Llama3Rope:
    # The file holds the divisor of each frequency; its parameters are those of the
    # published models up to the factor, which is the largest divisor.
    divisor = file.read(ROPE)
    guess = Llama3Rope(factor=float(divisor.max()))
    fields = {**vars(plain), "rope_scaling": guess}
    expected = rope_frequencies(plain) / rope_frequencies(ModelConfig(**fields))
    if divisor.shape != expected.shape or not np.allclose(divisor, expected, rtol=1e-4):
        raise ValueError(
            f"{file.path}: {ROPE} is not the llama3 rope scaling; other rope types "
            "are not supported"
        )
    return guess


def _shortest(value: float) -> float:
    # Metadata is float32: 1e-5 is stored as 9.9999997e-6.
    return float(str(np.float32(value)))


def open_weights(file: File, config: ModelConfig) -> tensors.Source:
    """Returns the file's tensors under their Hugging Face names."""
    ours = {_rename(name): name for name in file.tensors if name != ROPE}
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}

    def read(name: str) -> np.ndarray:
        x = file.read(ours[name])
        part = name.split(".")[-2]
        if file.architecture == "llama" and part in heads:
            return _unpermute(x, heads[part])
        return x

    shapes = {name: file.shape(theirs) for name, theirs in ours.items()}
    return tensors.Source(shapes, read, str(file.path))


def _unpermute(x: np.ndarray, heads: int) -> np.ndarray:
    # Interleaved pairs (2i, 2i + 1) of each head back to (i, i + head_dim / 2).
    pairs = x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:])
    return pairs.swapaxes(1, 2).reshape(x.shape)


def _rename(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in NAMES:
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in NAMES:
        return f"{NAMES[parts[0]]}.{parts[1]}"
    return name  # unknown names are then listed as extra tensors
