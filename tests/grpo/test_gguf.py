"""GGUF files: block formats, row order, metadata and the tokenizer."""

import json

import gguf
import jax
import numpy as np
import pytest

from grpo_jax import models
from grpo_jax.models import gguf as ours
from grpo_jax.models import gguf_tokenizer, quants
from tests.grpo import families


def config_of(name):
    return models.from_hf(families.hf_config(name))


def random_blocks(kind, count, seed=0):
    """Random bytes with sane scales: every bit pattern of the integers occurs."""
    draw = np.random.default_rng(seed)
    size = quants.FORMATS[kind][0]
    blocks = draw.integers(0, 256, (count, size), np.uint8)
    places = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]}
    places |= {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    for at in places[kind]:
        scale = draw.standard_normal((count, 1)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    return blocks


@pytest.mark.parametrize("kind", quants.FORMATS)
def test_blocks_decode_exactly_as_llama_cpp_does(kind):
    blocks = random_blocks(kind, 64)
    weights = quants.FORMATS[kind][1]
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    decoded = quants.dequantize(blocks, kind, (8, 8 * weights))
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded.reshape(-1), expected.reshape(-1))


def test_a_block_worked_by_hand():
    # d = 0.5, m = -1; byte 0 = 0xA3 gives w[0] = 3/2 - 1 and w[16] = 10/2 - 1.
    head = np.array([0.5, -1.0], np.float16).view(np.uint8)
    block = np.concatenate((head, [0xA3], np.zeros(15))).astype(np.uint8)
    decoded = quants.dequantize(block, "Q4_1", (32,))
    assert decoded[0] == 0.5
    assert decoded[16] == 4.0
    assert (np.delete(decoded, [0, 16]) == -1.0).all()


def test_plain_formats_decode_exactly():
    x = np.array([[1.5, -2.25], [3e-3, 7.0]], np.float32)
    np.testing.assert_array_equal(quants.dequantize(x, "F32", (2, 2)), x)
    half = x.astype(np.float16)
    np.testing.assert_array_equal(quants.dequantize(half, "F16", (2, 2)), half)
    upper = (x.view(np.uint32) >> 16).astype(np.uint16)
    expected = (upper.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(quants.dequantize(upper, "BF16", (2, 2)), expected)


def test_an_unknown_format_is_refused_by_name():
    with pytest.raises(ValueError, match="format Q2_K is not decoded"):
        quants.dequantize(np.zeros(84, np.uint8), "Q2_K", (256,))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "smollm2", "llama with biases"])
def test_a_gguf_file_loads_like_the_directory_it_was_made_from(name, tmp_path):
    hf, config = families.hf_config(name), config_of(name)
    held = families.random_tensors(config)
    plain = models.load(families.write_hf(tmp_path / "hf", held, hf))
    file = families.write_gguf(tmp_path / "model.gguf", held, hf)
    model = models.load(file)
    unsaid = {"bos_id": None, "stop_ids": ()}
    assert vars(model.config) == {**vars(config), **unsaid}
    assert model.tokenizer is None
    for x, y in zip(
        jax.tree.leaves(plain.params), jax.tree.leaves(model.params), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def test_quantised_rows_are_decoded_then_put_in_order(tmp_path):
    hf, config = families.hf_config("llama3"), config_of("llama3")
    held = families.random_tensors(config)
    file = families.write_gguf(tmp_path / "q.gguf", held, hf, kind="Q8_0")
    params = models.load(file).params
    rows = held["model.layers.1.self_attn.k_proj.weight"]
    form = gguf.GGMLQuantizationType.Q8_0
    rows = gguf.quants.dequantize(gguf.quants.quantize(rows, form), form)
    ours = np.asarray(params["layers"]["k"][1]).reshape(32, 16)
    np.testing.assert_array_equal(ours, rows.T)


def test_llama3_rope_is_recovered_from_its_divisors(tmp_path):
    hf = {**families.hf_config("llama3"), "head_dim": 32}
    hf["rope_parameters"] = {**families.LLAMA3, "rope_theta": 5e5, "factor": 32.0}
    hf["rope_parameters"]["original_max_position_embeddings"] = 8192
    config = models.from_hf(hf)
    # The converter's own loop over frequencies.
    divisor = []
    for i in range(16):
        wavelength = 2 * np.pi * 5e5 ** (2 * i / 32)
        if wavelength < 8192 / 4:
            divisor.append(1.0)
        elif wavelength > 8192:
            divisor.append(32.0)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisor.append(1 / ((1 - smooth) / 32 + smooth))
    held, divisor = families.random_tensors(config), np.array(divisor)
    file = families.write_gguf(tmp_path / "a.gguf", held, hf, rope_divisor=divisor)
    assert models.load(file).config.rope_scaling == config.rope_scaling
    divisor[3] *= 2
    file = families.write_gguf(tmp_path / "b.gguf", held, hf, rope_divisor=divisor)
    with pytest.raises(ValueError, match="is not the llama3 rope scaling"):
        models.load(file)


def test_what_a_gguf_file_must_not_be_is_refused_in_one_line(tmp_path):
    hf = families.hf_config("smollm2")
    held = families.random_tensors(config_of("smollm2"))

    def refuse(path, match):
        with pytest.raises(ValueError, match=match) as caught:
            models.load(path)
        assert "\n" not in str(caught.value)

    def write(**options):
        return families.write_gguf(tmp_path / "model.gguf", held, hf, **options)

    refuse(write(extra={"expert_count": 4}), "mixture of experts")
    refuse(write(extra={"attention.sliding_window": 4}), "sliding window")
    path = write()
    whole = path.read_bytes()
    for size in (len(whole) - 5000, 300, 10, 4):
        path.write_bytes(whole[:size])
        refuse(path, "truncated")
    path.write_bytes(b"PK" + whole)
    refuse(path, "neither a directory nor a GGUF file")
    del held["model.norm.weight"]
    refuse(write(), r"missing model.norm.weight \[48\]")


class FakeFile(ours.File):
    """Only the metadata that the tokenizer reads."""

    path = "fake.gguf"

    def __init__(self, **fields):
        self.fields = fields

    def get(self, name, default=None):
        return self.fields.get(name.removeprefix("tokenizer.ggml."), default)


@pytest.mark.parametrize(
    ("pre", "shared"),
    [("smollm", "smollm2"), ("qwen2", "qwen2_5"), ("llama-bpe", "llama3_1")],
)
def test_a_rebuilt_tokenizer_encodes_like_the_original(pre, shared):
    from tokenizers import Tokenizer

    source = families.SHARED / "tokenizers" / shared / "tokenizer.json"
    if not source.is_file():
        pytest.skip(f"no reference tokenizer at {source}")
    content = json.loads(source.read_text())
    ids = dict(content["model"]["vocab"])
    special = {t["content"]: t["special"] for t in content["added_tokens"]}
    ids |= {t["content"]: t["id"] for t in content["added_tokens"]}
    tokens = sorted(ids, key=ids.get)
    merges = content["model"]["merges"]  # older files hold each as one string
    fields = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [{None: 1, True: 3, False: 4}[special.get(t)] for t in tokens],
        "merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
        "bos_token_id": ids.get("<|begin_of_text|>"),
    }
    rebuilt = gguf_tokenizer.tokenizer_json(FakeFile(**fields))
    if pre == "smollm":
        # No merge of this one joins digits, so only the content shows a lost step.
        assert rebuilt == content
    rebuilt = Tokenizer.from_str(json.dumps(rebuilt))
    original = Tokenizer.from_file(str(source))
    texts = [
        "12345 + 67 = ",
        "  It's naïve — don't\n\n\tdo\r\n it!",
        "<|im_end|>\n中文",
    ]
    texts += ["e\u0301 <|eot_id|>x", "\\boxed{42}", ""]
    for text in texts:
        assert rebuilt.encode(text).ids == original.encode(text).ids
        assert rebuilt.decode(original.encode(text).ids) == original.decode(
            original.encode(text).ids
        )


def test_an_unknown_pre_tokenizer_is_refused():
    file = FakeFile(model="gpt2", pre="deepseek-coder", tokens=["a"], merges=[])
    with pytest.raises(ValueError, match="pre-tokenizer 'deepseek-coder' is not"):
        gguf_tokenizer.tokenizer_json(file)


def test_rows_of_a_head_are_put_back_where_they_were():
    x = np.arange(2 * 8 * 3).reshape(16, 3)
    np.testing.assert_array_equal(ours._unpermute(families.permute(x, 2), 2), x)
    # Two heads of eight rows: the first pair of a head is rows 0 and 4.
    assert families.permute(x, 2)[:2, 0].tolist() == [0, 12]
