"""Model directories: what is read, what is refused, what is written."""

import json
import tracemalloc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from grpo_jax import models
from grpo_jax.models import huggingface, tensors
from tests.grpo import families


def config_of(name):
    return models.from_hf(families.hf_config(name))


@pytest.fixture
def qwen3(tmp_path):
    """A directory written by hand, with its tensors."""
    held = families.random_tensors(config_of("qwen3"))
    hf = families.hf_config("qwen3")
    return families.write_hf(tmp_path / "model", held, hf), held


@pytest.mark.parametrize("name", families.FAMILIES)
def test_save_then_load_is_bit_exact(name, tmp_path):
    config = config_of(name)
    held = families.random_tensors(config)
    hf = families.hf_config(name)
    first = models.load(families.write_hf(tmp_path / "a", held, hf))
    models.save(first, tmp_path / "b")
    written = load_file(tmp_path / "b" / "model.safetensors")
    assert written.keys() == held.keys()
    for key, x in held.items():
        np.testing.assert_array_equal(written[key], x)
    again = models.load(tmp_path / "b")
    assert again.config == first.config == config
    for x, y in zip(
        jax.tree.leaves(first.params), jax.tree.leaves(again.params), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def test_sharded_weights_load_like_whole_ones(qwen3, tmp_path):
    model = models.load(qwen3[0])
    out = tmp_path / "out"
    huggingface.write(out, model.config, model.params, None, shard_bytes=20_000)
    assert len(list(out.glob("model-*-of-*.safetensors"))) > 2
    again = models.load(out)
    for x, y in zip(
        jax.tree.leaves(model.params), jax.tree.leaves(again.params), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    # A later export in one file leaves no shard of this one behind.
    models.save(model, out)
    assert [f.name for f in out.glob("*.safetensors*")] == ["model.safetensors"]
    huggingface.write(out, model.config, model.params, None, shard_bytes=20_000)
    next(out.glob("model-00002*")).unlink()
    with pytest.raises(ValueError, match=r"model-00002.*not present"):
        models.load(out)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files_widen_exactly(dtype, qwen3, tmp_path):
    half = {
        "float16": np.float16,
        "bfloat16": ml_dtypes.bfloat16,
    }[dtype]
    held = {k: v.astype(half) for k, v in qwen3[1].items()}
    hf = families.hf_config("qwen3")
    path = families.write_hf(tmp_path / "half", held, hf)
    params = models.load(path).params
    assert {str(x.dtype) for x in jax.tree.leaves(params)} == {"float32"}
    embed = held["model.embed_tokens.weight"].astype(np.float32)
    np.testing.assert_array_equal(params["embed"], embed)
    narrow = models.load(path, dtype=dtype)
    assert {str(x.dtype) for x in jax.tree.leaves(narrow.params)} == {dtype}
    models.save(narrow, tmp_path / "again")
    written = load_file(tmp_path / "again" / "model.safetensors")
    for key, x in held.items():
        np.testing.assert_array_equal(written[key], x)


def test_a_projection_lands_where_its_rows_say(qwen3):
    # Row h * head_dim + j of q_proj makes entry j of head h.
    path, held = qwen3
    params = models.load(path).params
    rows = held["model.layers.1.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(params["layers"]["q"][1, :, 3, 5], rows[3 * 16 + 5])
    columns = held["model.layers.0.self_attn.o_proj.weight"]
    np.testing.assert_array_equal(
        params["layers"]["o"][0, 2, 7], columns[:, 2 * 16 + 7]
    )


def test_a_tied_head_that_is_stored_twice_is_accepted_if_equal(qwen3, tmp_path):
    hf, held = families.hf_config("qwen3"), dict(qwen3[1])
    held["lm_head.weight"] = held["model.embed_tokens.weight"].copy()
    families.write_hf(tmp_path / "same", held, hf)
    assert "head" not in models.load(tmp_path / "same").params
    held["lm_head.weight"] = held["lm_head.weight"] + 1
    families.write_hf(tmp_path / "other", held, hf)
    with pytest.raises(ValueError, match=r"1 tensors do not fit.*extra lm_head"):
        models.load(tmp_path / "other")


def test_every_missing_extra_and_misshaped_tensor_is_listed(qwen3, tmp_path):
    held = dict(qwen3[1])
    del held["model.norm.weight"], held["model.layers.1.self_attn.k_norm.weight"]
    held["model.layers.0.mlp.up_proj.weight"] = np.zeros((64, 31), np.float32)
    held["model.layers.3.mlp.up_proj.weight"] = np.zeros((64, 32), np.float32)
    held["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    path = families.write_hf(tmp_path / "bad", held, families.hf_config("qwen3"))
    with pytest.raises(ValueError, match="4 tensors") as caught:
        models.load(path)
    said = str(caught.value)
    assert "missing model.norm.weight [32]" in said
    assert "missing model.layers.1.self_attn.k_norm.weight [16]" in said
    assert "extra model.layers.3.mlp.up_proj.weight [64, 32]" in said
    assert "model.layers.0.mlp.up_proj.weight is [64, 31], not [64, 32]" in said
    assert "\n" not in said


def one_line(path, match):
    with pytest.raises(ValueError, match=match) as caught:
        models.load(path)
    assert "\n" not in str(caught.value)


def test_broken_directories_end_in_one_line(qwen3, tmp_path):
    path, held = qwen3
    one_line(tmp_path / "absent", "does not exist")
    one_line(tmp_path, "no config.json")
    one_line(path / "config.json", "neither a directory nor a GGUF file")
    one_line("no-such-model", "does not exist; give a model directory")
    weights = path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    one_line(path, "truncated")
    weights.write_bytes(whole[:6])
    one_line(path, "truncated")
    weights.unlink()
    one_line(path, r"0 \.safetensors files")
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    one_line(path, "pickled weights only")
    (path / "config.json").write_text("{")
    one_line(path, "cannot be read as JSON")
    held = {**held, "model.norm.weight": np.zeros(32, np.int8)}
    bad = families.write_hf(tmp_path / "int8", held, families.hf_config("qwen3"))
    one_line(bad, "model.norm.weight is I8")
    with pytest.raises(ValueError, match="dtype='int8' must be one of"):
        models.load(bad, dtype="int8")


def test_an_unknown_name_in_the_cache_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_JAX_CACHE", str(tmp_path))
    one_line("smollm2", "run `grpo-jax get smollm2`")


def test_a_hub_name_is_fetched_and_a_failure_is_one_line(qwen3, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot(name, *, allow_patterns):
        asked.append((name, allow_patterns))
        if name == "someone/absent":
            raise OSError("401 Client Error.\nRepository Not Found")
        return str(qwen3[0])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert models.load("someone/model").config == config_of("qwen3")
    assert not any("bin" in pattern for pattern in asked[0][1])
    one_line("someone/absent", "401 Client Error")


def write_tokenizer(path, size):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {f"t{i}": i for i in range(size)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="t2", chat_template="{{ messages }}"
    ).save_pretrained(path)


def test_a_tokenizer_travels_with_the_model(qwen3, tmp_path):
    assert models.load(qwen3[0]).tokenizer is None
    write_tokenizer(qwen3[0], 96)
    model = models.load(qwen3[0])
    models.save(model, tmp_path / "out")
    again = models.load(tmp_path / "out").tokenizer
    assert again("t5 t7").input_ids == model.tokenizer("t5 t7").input_ids == [5, 7]
    assert again.chat_template == "{{ messages }}"


def test_a_tokenizer_with_more_ids_than_the_embedding_is_refused(qwen3):
    write_tokenizer(qwen3[0], 97)
    one_line(qwen3[0], "tokenizer has 97 ids but the embedding has 96 rows")


def test_stop_ids_of_the_generation_config_are_added(qwen3):
    extra = {"eos_token_id": [7, 2], "pad_token_id": 3}
    (qwen3[0] / "generation_config.json").write_text(json.dumps(extra))
    config = models.load(qwen3[0]).config
    assert config.stop_ids == (7, 2)
    assert config.pad_id == 3


def test_an_unwritable_place_is_one_line_and_leaves_nothing(qwen3, tmp_path):
    model = models.load(qwen3[0])
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        models.save(model, tmp_path / "file" / "out")
    with pytest.raises(ValueError, match="cannot be written"):
        models.save(model, tmp_path / "file")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "model"]


def test_reading_holds_one_stacked_parameter_beside_the_model(tmp_path, monkeypatch):
    # The model itself is dropped as it is placed, so what tracemalloc sees is the
    # host's working memory: one stacked array and one tensor.
    hf = {**families.hf_config("qwen3"), "num_hidden_layers": 24}
    held = families.random_tensors(models.from_hf(hf))
    path = families.write_hf(tmp_path / "deep", held, hf)
    total = sum(x.nbytes for x in held.values())
    largest = max(x.nbytes for x in held.values()) * 24
    del held
    monkeypatch.setattr(tensors, "_place", lambda host, where: jnp.zeros(()))
    tracemalloc.start()
    models.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * largest < total / 2
