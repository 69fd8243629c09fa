"""Tiny random models of every family, as transformers and as llama.cpp write them."""

import contextlib
import functools
import json
import pathlib

import gguf
import numpy as np
import pytest

from grpo_jax import get, keys, rollout

SHARED = pathlib.Path(__file__).parents[2].parent / "shared"

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Small, so that a dozen positions already meet all three bands.
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "qwen2": {
        "model_type": "qwen2",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "qwen3": {
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,  # not width / heads = 8
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e3},
    },
    "qwen3 with biases": {
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "llama3": {
        "model_type": "llama",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": False,
        "rope_parameters": LLAMA3,
    },
    "llama with biases": {
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 777.0},
    },
    "smollm2": {
        "model_type": "llama",
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "hidden_size": 48,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
    },
}


def hf_config(name):
    return {**COMMON, **FAMILIES[name]}


def torch_model(name):
    """A transformers model whose norms and biases are random too."""
    torch = pytest.importorskip("torch")
    import transformers

    config = hf_config(name)
    kind = config.pop("model_type")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **config)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def torch_logits(model, tokens, mask=None):
    import torch

    mask = None if mask is None else torch.tensor(np.asarray(mask))
    with torch.no_grad():
        out = model(torch.tensor(np.asarray(tokens)), attention_mask=mask).logits
    return out.float().numpy()


def relative_error(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def permute(x, heads):
    """llama.cpp's order of query and key rows, from its conversion script."""
    two = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:])
    return two.swapaxes(1, 2).reshape(x.shape)


SHORT = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def gguf_name(name):
    body, last = name.rsplit(".", 1)
    if body.startswith("model.layers."):
        _, _, layer, part = body.split(".", 3)
        return f"blk.{layer}.{SHORT[part]}.{last}"
    return f"{TOP.get(body, 'output')}.{last}"


def write_gguf(path, tensors, hf, *, kind="F32", rope_divisor=None, extra=None):
    """Writes tensors of a Hugging Face checkpoint as llama.cpp's converter does."""
    arch = hf["model_type"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(hf["num_hidden_layers"])
    writer.add_context_length(hf["max_position_embeddings"])
    writer.add_embedding_length(hf["hidden_size"])
    writer.add_feed_forward_length(hf["intermediate_size"])
    writer.add_head_count(hf["num_attention_heads"])
    writer.add_head_count_kv(hf["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(hf["rms_norm_eps"])
    writer.add_rope_freq_base(hf["rope_parameters"]["rope_theta"])
    if "head_dim" in hf:
        writer.add_key_length(hf["head_dim"])
    for name, value in (extra or {}).items():
        writer.add_uint32(f"{arch}.{name}", value)
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for name, x in tensors.items():
        part = name.split(".")[-2]
        if arch == "llama" and part in heads:
            x = permute(x, hf[heads[part]])
        quantised = kind != "F32" and x.ndim == 2 and x.shape[1] % 32 == 0
        form = gguf.GGMLQuantizationType[kind if quantised else "F32"]
        data = gguf.quants.quantize(np.ascontiguousarray(x), form)
        writer.add_tensor(gguf_name(name), data, raw_dtype=form)
    if rope_divisor is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_tensors(config, *, seed=0):
    """A checkpoint's tensors of the right shapes, from NumPy alone."""
    from grpo_jax.models import tensors

    draw = np.random.default_rng(seed)
    return {
        name: 0.3 * draw.standard_normal(shape, np.float32)
        for name, shape in tensors.expected_shapes(config).items()
    }


def write_hf(path, tensors, hf):
    """Writes a Hugging Face directory by hand, not through our exporter."""
    from safetensors.numpy import save_file

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(hf))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@functools.cache
def _fetch():
    with contextlib.redirect_stdout(None):
        return get.fetch("smollm2")


def smollm2():
    """The real SmolLM2's directory, fetched once per machine; skips without it."""
    try:
        return _fetch()
    except ValueError as error:
        pytest.skip(f"SmolLM2 is not in the cache and cannot be fetched: {error}")


def assert_greedy_ids_agree(torch, theirs, ours, prompts, *, max_new_tokens):
    """Greedy ids of a transformers model and of ours, token for token."""
    out = rollout.generate(
        ours.params,
        ours.config,
        prompts,
        num_samples=1,
        max_new_tokens=max_new_tokens,
        stop_ids=ours.config.stop_ids,
        key=keys.root(0),
        temperature=0.0,
    )
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        wanted = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
        kept = np.asarray(out.tokens)[row, : int(out.length[row])]
        assert kept.tolist() == wanted[0].tolist()
