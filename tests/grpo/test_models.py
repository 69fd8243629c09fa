"""The decoder against transformers, and its own paths against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import models
from tests.grpo import families

NAMES = list(families.FAMILIES)
LENGTHS = np.array([12, 7, 1])
compiled = jax.jit(models.logits, static_argnums=1)


def logits(params, config, tokens, positions=None, segments=None):
    """All arguments given, so that a shape compiles once in the whole module."""
    segments = jnp.ones_like(tokens) if segments is None else jnp.asarray(segments)
    if positions is None:
        positions = models.segment_positions(segments)
    return compiled(params, config, tokens, positions, segments)


def tiny(name):
    """Random parameters of a family, norms and biases included."""
    config = models.from_hf(families.hf_config(name))
    draw = np.random.default_rng(0)
    spread = lambda p: jnp.asarray(0.3 * draw.standard_normal(p.shape, np.float32))
    return config, jax.tree.map(spread, models.abstract(config))


def tokens_of(shape=(3, 12), seed=0):
    draw = np.random.default_rng(seed)
    return jnp.asarray(draw.integers(0, families.COMMON["vocab_size"], shape), int)


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name, tmp_path):
    torch = pytest.importorskip("torch")
    reference = families.torch_model(name)
    reference.save_pretrained(tmp_path)
    model, tokens = models.load(tmp_path), tokens_of()
    ours = logits(model.params, model.config, tokens)
    theirs = families.torch_logits(reference, tokens)
    assert families.relative_error(ours, theirs) < 1e-5
    # Right padding.
    real = np.arange(12)[None] < LENGTHS[:, None]
    ours = logits(model.params, model.config, tokens, segments=real.astype(np.int32))
    theirs = families.torch_logits(reference, tokens, real.astype(int))
    assert families.relative_error(ours[real], theirs[real]) < 1e-5
    # Explicit positions, with gaps.
    positions = jnp.broadcast_to(jnp.arange(12)[None] * 7 + 20, tokens.shape)
    ours = logits(model.params, model.config, tokens, positions)
    with torch.no_grad():
        ids = torch.tensor(np.asarray(tokens))
        theirs = reference(ids, position_ids=torch.tensor(np.asarray(positions)))
    assert families.relative_error(ours, theirs.logits.numpy()) < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_model_has_identical_logits_in_transformers(name, tmp_path):
    pytest.importorskip("torch")
    import transformers

    config, params = tiny(name)
    models.save(models.Model(config=config, params=params), tmp_path / "out")
    reference, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = tokens_of()
    theirs = families.torch_logits(reference.eval(), tokens)
    assert str(reference.dtype) == "torch.float32"
    ours = logits(params, config, tokens)
    assert families.relative_error(ours, theirs) < 1e-5


@pytest.mark.parametrize("backend", ["cpu", "gpu"])  # each lays its cache out its way
@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_decode_equal_hidden_at_every_position(name, backend):
    config, params = tiny(name)
    model = models.functions(config, backend=backend)
    tokens = tokens_of()
    segments = jnp.ones_like(tokens)
    place = jnp.broadcast_to(jnp.arange(12)[None], tokens.shape)
    whole = np.asarray(jax.jit(model.hidden)(params, tokens, place, segments))
    layout = jax.jit(model.decode_layout)(params)
    prompt = np.array([3, 5, 1])
    # What stands behind a prompt is padding and must not be read.
    filled = jnp.where(np.arange(5)[None] < prompt[:, None], tokens[:, :5], 95)
    prefill = jax.jit(model.prefill, static_argnums=3)
    hidden, cache = prefill(layout, filled, jnp.asarray(prompt), 13)
    rows = np.arange(3)
    np.testing.assert_allclose(hidden, whole[rows, prompt - 1], rtol=1e-4, atol=1e-5)
    assert all(len(x) == 3 for x in jax.tree.leaves(cache))
    positions = prompt.copy()
    decode = jax.jit(model.decode)
    while positions.min() < 12:
        at = np.minimum(positions, 11)  # rows that are done repeat their last token
        hidden, cache = decode(layout, tokens[rows, at], jnp.asarray(at), cache)
        np.testing.assert_allclose(hidden, whole[rows, at], rtol=1e-4, atol=1e-5)
        positions += 1


def test_unembed_of_the_decode_layout_is_that_of_the_parameters():
    for name in ("qwen3", "qwen2"):
        config, params = tiny(name)
        model = models.functions(config)
        ours = model.unembed(jax.jit(model.decode_layout)(params))
        np.testing.assert_array_equal(ours, model.unembed(params))


def test_the_cache_must_hold_the_prompts():
    config, params = tiny("qwen3")
    model = models.functions(config)
    tokens = tokens_of()
    layout = jax.eval_shape(model.decode_layout, params)
    with pytest.raises(ValueError, match="cache_length=11 must be at least the 12"):
        jax.eval_shape(lambda p: model.prefill(p, tokens, jnp.ones(3, int), 11), layout)


def test_packed_segments_equal_separate_sequences():
    config, params = tiny("llama3")
    a, b = tokens_of((1, 5)), tokens_of((1, 4), seed=1)
    packed = jnp.concatenate((a, b, jnp.zeros((1, 3), jnp.int32)), axis=1)
    segments = jnp.array([[1] * 5 + [2] * 4 + [0] * 3])
    out = logits(params, config, packed, segments=segments)
    apart = logits(params, config, a), logits(params, config, b)
    np.testing.assert_allclose(out[:, :5], apart[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out[:, 5:9], apart[1], rtol=1e-4, atol=1e-5)


def test_positions_count_from_the_start_of_each_segment():
    segments = jnp.array([[1, 1, 1, 2, 2, 0, 0], [3, 1, 1, 1, 1, 1, 1]])
    expected = [[0, 1, 2, 0, 1, 0, 1], [0, 0, 1, 2, 3, 4, 5]]
    np.testing.assert_array_equal(models.segment_positions(segments), expected)


def test_padding_changes_neither_logits_nor_gradients_and_gives_no_nan():
    config, params = tiny("qwen3")

    def loss(params, tokens, segments):
        out = models.logits(params, config, tokens, segments=segments)
        return jnp.square(jnp.where((segments > 0)[..., None], out, 0)).sum()

    step = jax.jit(jax.value_and_grad(loss))
    real = np.arange(12)[None] < LENGTHS[:, None]
    junk = jnp.where(real, tokens_of(), tokens_of(seed=1))
    segments = jnp.asarray(real, jnp.int32)
    one, two = step(params, tokens_of(), segments), step(params, junk, segments)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-3)
    # Rows that are padding altogether are finite as well.
    for x in jax.tree.leaves(step(params, junk, jnp.zeros_like(segments))):
        assert np.isfinite(np.asarray(x)).all()


def test_rematerialisation_changes_no_gradient():
    config, params = tiny("qwen3")
    tokens = tokens_of()
    one, place = jnp.ones_like(tokens), jnp.broadcast_to(jnp.arange(12)[None], (3, 12))

    def gradient(model):
        loss = lambda p: jnp.square(model.hidden(p, tokens, place, one)).sum()
        return jax.jit(jax.grad(loss))(params)

    plain = gradient(models.functions(config))
    for remat in ("full", "dots"):
        again = gradient(models.functions(config, remat=remat))
        for x, y in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_an_unknown_remat_is_refused():
    config = models.from_hf(families.hf_config("qwen3"))
    with pytest.raises(ValueError, match="remat='some' must be one of"):
        models.functions(config, remat="some")


def test_bfloat16_compute_keeps_float32_gradients_and_norms():
    config, params = tiny("qwen3")
    model = models.functions(config, compute_dtype="bfloat16")
    tokens = tokens_of()
    one, place = jnp.ones_like(tokens), jnp.broadcast_to(jnp.arange(12)[None], (3, 12))
    hidden = jax.jit(model.hidden)(params, tokens, place, one)
    table = model.unembed(params)
    assert hidden.dtype == table.dtype == jnp.bfloat16
    rounded = hidden.astype(jnp.float32) @ table.astype(jnp.float32)
    assert families.relative_error(rounded, logits(params, config, tokens)) < 0.05
    loss = lambda p: model.hidden(p, tokens, place, one).astype(jnp.float32).sum()
    gradients = jax.eval_shape(jax.grad(loss), params)
    assert {str(x.dtype) for x in jax.tree.leaves(gradients)} == {"float32"}
    layout = jax.eval_shape(model.decode_layout, params)
    assert layout["layers"][0]["qkv"].dtype == jnp.bfloat16
    assert layout["layers"][0]["attn_norm"].dtype == jnp.float32
    prefill = lambda p: model.prefill(p, tokens, jnp.array([12, 3, 5]), 12)
    _, cache = jax.eval_shape(prefill, layout)
    assert {str(x.dtype) for x in jax.tree.leaves(cache)} == {"bfloat16"}


@pytest.mark.parametrize("name", NAMES)
def test_declared_shapes_are_those_of_drawn_parameters(name, getkey):
    config = models.from_hf(families.hf_config(name))
    drawn = jax.eval_shape(lambda: models.init(config, getkey()))
    declared = models.abstract(config)
    shape = lambda x: (x.shape, x.dtype)
    assert jax.tree.map(shape, drawn) == jax.tree.map(shape, declared)
    assert models.count(config) == sum(x.size for x in jax.tree.leaves(drawn))


def test_no_two_drawn_parameters_are_alike(getkey):
    config = models.from_hf(families.hf_config("qwen2"))
    layers = models.init(config, getkey())["layers"]
    assert not np.allclose(layers["gate"], layers["up"])
    assert not np.allclose(layers["k"], layers["v"])
    # One draw for all layers, so they differ as well.
    assert not np.allclose(layers["gate"][0], layers["gate"][1])


def test_weight_decay_spares_norms_and_biases_and_nothing_else(getkey):
    config = models.from_hf(families.hf_config("qwen3 with biases"))
    params = models.init(config, getkey())
    mask = models.decay_mask(params)
    decayed = {k for k, v in mask["layers"].items() if v}
    assert decayed == {"q", "k", "v", "o", "gate", "up", "down"}
    top = {k: v for k, v in mask.items() if k != "layers"}
    assert top == {"embed": True, "final_norm": False, "head": True}


def test_smollm2_logits_equal_transformers():
    torch = pytest.importorskip("torch")
    import transformers

    directory = families.smollm2()
    model = models.load(directory)
    chat = [{"role": "user", "content": "What is 27 + 45? Answer with a number."}]
    ids = model.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32
    ).eval()
    theirs = families.torch_logits(reference, [ids])
    ours = logits(model.params, model.config, jnp.asarray([ids]))
    assert families.relative_error(ours, theirs) < 1e-4
    # It is the trained model, not only the same one twice.
    answer = ours[0, -1].argmax()
    assert model.tokenizer.decode([int(answer)]).strip()
