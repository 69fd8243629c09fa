"""Configurations of models: both spellings, and what is refused."""

import pytest

from grpo_jax import models
from tests.grpo import families


def config_of(name):
    return models.from_hf(families.hf_config(name))


@pytest.mark.parametrize("name", families.FAMILIES)
def test_both_spellings_of_rope_read_alike(name):
    new = families.hf_config(name)
    old = dict(new)
    rope = dict(old.pop("rope_parameters"))
    old["rope_theta"] = rope.pop("rope_theta")
    old["rope_scaling"] = rope if rope["rope_type"] == "llama3" else None
    assert models.from_hf(old) == models.from_hf(new)
    if old["rope_scaling"]:
        # transformers 4 first wrote `type`.
        rope["type"] = rope.pop("rope_type")
        assert models.from_hf({**old, "rope_scaling": rope}) == models.from_hf(new)
        assert models.from_hf(new).rope_scaling is not None


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_written_config_reads_back_equal(name):
    config = config_of(name)
    assert models.from_hf(models.to_hf(config)) == config


@pytest.mark.parametrize("name", families.FAMILIES)
def test_transformers_reads_a_written_config_as_we_do(name):
    transformers = pytest.importorskip("transformers")
    hf = models.to_hf(config_of(name))
    theirs = transformers.AutoConfig.for_model(**hf).to_dict()
    for key in families.hf_config(name):
        if key != "rope_parameters":
            assert theirs[key] == hf[key], key
    assert theirs["rope_parameters"] == hf["rope_parameters"]
    assert models.from_hf(theirs) == config_of(name)


REFUSED = {
    "sliding window in use": {"use_sliding_window": True, "sliding_window": 8}
    | {"max_window_layers": 1},
    "a sliding window is": {"layer_types": ["full_attention", "sliding_attention"]},
    "mixture of experts": {"num_experts": 8},
    "rope type 'yarn'": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
    "rope type 'linear'": {"rope_parameters": None}
    | {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama3' lacks": {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
    "differ by layer": {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
    "partial_rotary_factor=0.5": {"partial_rotary_factor": 0.5},
    "quantised": {"quantization_config": {"quant_method": "gptq"}},
    "model_type='mistral'": {"model_type": "mistral"},
    "model_type='qwen3_moe' is a mixture": {"model_type": "qwen3_moe"},
    "Qwen3ForSequenceClassification": {
        "architectures": ["Qwen3ForSequenceClassification"]
    },
    "hidden_act='gelu'": {"hidden_act": "gelu"},
    "mlp_bias": {"mlp_bias": True},
    r"lacks \['hidden_size'\]": {"hidden_size": None},
    "must be a multiple": {"num_key_value_heads": 3},
    "head_dim=7 must be even": {"head_dim": 7},
    "positive whole number": {"num_hidden_layers": 0},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_decoder_cannot_compute_is_refused_by_name(what):
    hf = {**families.hf_config("qwen3"), **REFUSED[what]}
    match = "sliding window is in use" if what == "sliding window in use" else what
    with pytest.raises(ValueError, match=match) as caught:
        models.from_hf(hf)
    assert "\n" not in str(caught.value)


def test_a_sliding_window_that_is_not_in_use_is_no_reason_to_refuse():
    unused = {"use_sliding_window": False, "sliding_window": 4096}
    hf = {**families.hf_config("qwen2"), **unused, "max_window_layers": 1}
    assert models.from_hf(hf) == config_of("qwen2")
    unused = {"use_sliding_window": True, "sliding_window": 4096}
    hf = {**families.hf_config("qwen2"), **unused, "max_window_layers": 2}
    assert models.from_hf(hf) == config_of("qwen2")
