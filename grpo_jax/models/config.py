"""The shape of a decoder, and how Hugging Face configurations spell it.

Every difference between the supported families is a field here. What the decoder
cannot compute is refused by name when a configuration is read, never ignored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SUPPORTED = "supported are llama, qwen2 and qwen3 (dense, full attention)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Rope:
    """Llama 3's stretching of the slow rotary frequencies."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One decoder-only transformer: RMSNorm, rotary positions, GQA, SwiGLU."""

    vocab_size: int
    width: int
    ffw: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    family: str = "llama"  # which Hugging Face architecture it is exported as
    norm_epsilon: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Rope | None = None
    qk_norm: bool = False  # RMSNorm on each query and key head
    qkv_bias: bool = False
    out_bias: bool = False  # bias on the attention's output projection
    tied: bool = True  # the head is the embedding, transposed
    max_positions: int = 32_768
    bos_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    pad_id: int | None = None

    def __post_init__(self) -> None:
        """Refuses shapes that no decoder has."""
        sizes = ("vocab_size", "width", "ffw", "num_layers", "num_heads")
        for name in (*sizes, "num_kv_heads", "head_dim", "max_positions"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} must be a positive whole number")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must be a multiple of "
                f"num_kv_heads={self.num_kv_heads}; change one of them"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} must be even: rotary positions turn pairs"
            )
        if self.family not in ARCHITECTURES:
            raise ValueError(f"family={self.family!r} is unknown; {SUPPORTED}")
        self._check_family()

    def _check_family(self) -> None:
        # A field that the exported architecture cannot express would be lost.
        expected = {
            "llama": (False, self.qkv_bias, self.qkv_bias),
            "qwen2": (False, True, False),
            "qwen3": (True, self.qkv_bias, self.qkv_bias),
        }[self.family]
        seen = (self.qk_norm, self.qkv_bias, self.out_bias)
        if seen != expected:
            raise ValueError(
                f"family={self.family!r} has (qk_norm, qkv_bias, out_bias) = "
                f"{expected}, not {seen}; change them or the family"
            )


def _refuse_unsupported(hf: Mapping[str, Any]) -> None:
    kind = hf.get("model_type")
    if "moe" in str(kind) or hf.get("num_experts") or hf.get("num_local_experts"):
        raise ValueError(
            f"model_type={kind!r} is a mixture of experts, which is not supported; "
            + SUPPORTED
        )
    if kind not in ARCHITECTURES:
        raise ValueError(f"model_type={kind!r} is not supported; {SUPPORTED}")
    named = hf.get("architectures") or [ARCHITECTURES[kind]]
    if ARCHITECTURES[kind] not in named:
        raise ValueError(
            f"architectures={named!r} is not supported for model_type={kind!r}; "
            f"use a checkpoint of {ARCHITECTURES[kind]}"
        )
    if hf.get("quantization_config"):
        raise ValueError(
            "quantization_config is set: quantised checkpoints are not supported; "
            "use the unquantised one, or a GGUF file"
        )
    if hf.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(
            f"hidden_act={hf['hidden_act']!r} is not supported; only silu is"
        )
    if hf.get("mlp_bias"):
        raise ValueError("mlp_bias=true is not supported; only false is")
    _refuse_sliding_window(hf)


def _refuse_sliding_window(hf: Mapping[str, Any]) -> None:
    kinds = hf.get("layer_types")
    if kinds:
        other = sorted({str(k) for k in kinds} - {"full_attention"})
        if other:
            raise ValueError(
                f"layer_types has {other}: a sliding window is in use, which is not "
                "supported; only full_attention is"
            )
    elif hf.get("use_sliding_window") and hf.get("sliding_window"):
        first = hf.get("max_window_layers", 28)
        if first < hf.get("num_hidden_layers", 0):
            raise ValueError(
                f"use_sliding_window=true from layer {first}: a sliding window is in "
                "use, which is not supported; only full attention is"
            )


def _rope(hf: Mapping[str, Any]) -> tuple[float, Llama3Rope | None]:
    # transformers 4: rope_theta and rope_scaling; transformers 5: rope_parameters.
    new, old = hf.get("rope_parameters") or {}, hf.get("rope_scaling") or {}
    both = {**old, **new}
    kind = both.get("rope_type", both.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(
            f"rope type {kind!r} is not supported; supported are default and llama3"
        )
    if any(isinstance(v, Mapping) for v in both.values()):
        raise ValueError(
            "rope_parameters differ by layer type, which is not supported; "
            "give one set for all layers"
        )
    partial = both.get("partial_rotary_factor", hf.get("partial_rotary_factor")) or 1.0
    if partial != 1.0:
        raise ValueError(f"partial_rotary_factor={partial} is not supported; only 1 is")
    theta = float(both.get("rope_theta") or hf.get("rope_theta") or 10_000.0)
    if kind == "default":
        return theta, None
    needed = ("factor", "low_freq_factor", "high_freq_factor")
    missing = [k for k in needed if k not in both]
    if missing:
        raise ValueError(f"rope type 'llama3' lacks {missing} in its parameters")
    original = both.get("original_max_position_embeddings") or hf.get(
        "original_max_position_embeddings", hf.get("max_position_embeddings", 8192)
    )
    return theta, Llama3Rope(
        **{k: float(both[k]) for k in needed}, original_max_positions=int(original)
    )


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def from_hf(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads the content of a `config.json`, in either spelling of rotary positions.

    Raises:
      ValueError: names the first thing the decoder does not support.
    """
    _refuse_unsupported(hf)
    needed = ("vocab_size", "hidden_size", "intermediate_size")
    needed += ("num_hidden_layers", "num_attention_heads")
    missing = [k for k in needed if hf.get(k) is None]
    if missing:
        raise ValueError(f"the model's config lacks {missing}; add them")
    kind = hf["model_type"]
    heads = hf["num_attention_heads"]
    default_kv = heads if kind == "llama" else 32
    default_head = 128 if kind == "qwen3" else hf["hidden_size"] // heads
    bias = bool(hf.get("attention_bias"))
    theta, scaling = _rope(hf)
    return ModelConfig(
        family=kind,
        vocab_size=hf["vocab_size"],
        width=hf["hidden_size"],
        ffw=hf["intermediate_size"],
        num_layers=hf["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=hf.get("num_key_value_heads") or default_kv,
        head_dim=hf.get("head_dim") or default_head,
        norm_epsilon=float(hf.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        qk_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2" or bias,
        out_bias=kind != "qwen2" and bias,
        tied=bool(hf.get("tie_word_embeddings", False)),
        max_positions=hf.get("max_position_embeddings") or 32_768,
        bos_id=hf.get("bos_token_id"),
        stop_ids=_ids(hf.get("eos_token_id")),
        pad_id=hf.get("pad_token_id"),
    )


def to_hf(config: ModelConfig, *, dtype: str = "float32") -> dict[str, Any]:
    """Returns the content of a `config.json` that transformers 4 and 5 both read."""
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": (
                config.rope_scaling.original_max_positions
            ),
        }
    stop = list(config.stop_ids)
    hf: dict[str, Any] = {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.ffw,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_epsilon,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_theta,
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied,
        "bos_token_id": config.bos_id,
        "eos_token_id": stop[0] if len(stop) == 1 else stop or None,
        "pad_token_id": config.pad_id,
        "dtype": dtype,
    }
    if config.rope_scaling is not None:
        hf["rope_scaling"] = rope
    if config.family != "qwen2":
        hf["attention_bias"] = config.qkv_bias
    return hf
