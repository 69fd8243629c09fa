"""The mesh, the table, and a model on eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from grpo_jax import models, sharding
from tests.grpo import families


def test_axes_are_auto_and_named():
    mesh = sharding.make_mesh(2, 2, 2)
    assert mesh.axis_names == ("data", "fsdp", "tensor")
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert sharding.make_mesh().devices.shape == (1, 1, 1)


def test_a_mesh_larger_than_the_machine_is_refused():
    with pytest.raises(ValueError, match="data=4 fsdp=4 tensor=1 needs 16 devices"):
        sharding.make_mesh(4, 4)
    with pytest.raises(ValueError, match="sizes of at least 1"):
        sharding.make_mesh(0)


def test_logical_axes_become_mesh_axes():
    assert sharding.spec(("vocab", "embed")) == PartitionSpec("tensor", "fsdp")
    assert sharding.spec(("batch", None)) == PartitionSpec(("data", "fsdp"), None)
    assert sharding.spec(("layers", "norm")) == PartitionSpec(None, None)


def test_a_mesh_axis_used_twice_names_both_logical_axes():
    with pytest.raises(ValueError, match=r"'heads' and 'ffw'.*mesh axis 'tensor'"):
        sharding.spec(("heads", "ffw"))
    with pytest.raises(ValueError, match=r"'batch' and 'embed'.*mesh axis 'fsdp'"):
        sharding.spec(("batch", "embed"))
    with pytest.raises(ValueError, match="logical axis 'width' must be one of"):
        sharding.spec(("width",))


def test_no_parameter_of_any_family_uses_a_mesh_axis_twice():
    for name in families.FAMILIES:
        declared = models.declare(models.from_hf(families.hf_config(name)))
        for parameter in jax.tree.leaves(declared):
            assert len(parameter.axes) == len(parameter.shape)
            sharding.spec(parameter.axes)


def test_a_size_that_does_not_divide_says_which_would():
    mesh = sharding.make_mesh(2, 2, 2)
    with pytest.raises(
        ValueError, match=r"batch=6 must be a multiple of 4 \(data=2 x fsdp=2\); use 4"
    ):
        sharding.place_batch(mesh, jnp.zeros((6, 3)))
    with pytest.raises(ValueError, match="kv_heads=3 must be a multiple of 2"):
        sharding.named(mesh, ("kv_heads",), (3,))


def test_a_batch_is_cut_over_data_and_fsdp():
    mesh = sharding.make_mesh(2, 2, 2)
    placed = sharding.place_batch(mesh, {"x": jnp.zeros((8, 3)), "n": jnp.zeros(())})
    assert placed["x"].addressable_shards[0].data.shape == (2, 3)
    assert placed["n"].is_fully_replicated


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    hf = families.hf_config("qwen3")
    held = families.random_tensors(models.from_hf(hf))
    return families.write_hf(tmp_path_factory.mktemp("model"), held, hf)


def test_a_loaded_model_is_cut_into_shards_and_not_replicated(directory):
    mesh = sharding.make_mesh(2, 2, 2)
    whole = models.load(directory)
    params = models.load(directory, mesh=mesh).params
    assert jax.tree.map(lambda x: x.sharding, params) == models.shardings(
        whole.config, mesh
    )
    layers = params["layers"]
    # q is [L, D / fsdp, H / tensor, head_dim]; every device holds a quarter.
    assert layers["q"].addressable_shards[0].data.shape == (2, 16, 2, 16)
    assert layers["down"].addressable_shards[0].data.shape == (2, 32, 16)
    assert params["embed"].addressable_shards[0].data.shape == (48, 16)
    for x, y in zip(
        jax.tree.leaves(whole.params), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_array_equal(x, y)


@jax.jit
def run(params, tokens):
    model = models.functions(models.from_hf(families.hf_config("qwen3")))
    place = jnp.broadcast_to(jnp.arange(6)[None], tokens.shape)
    hidden = model.hidden(params, tokens, place, jnp.ones_like(tokens))
    layout = model.decode_layout(params)
    length = jnp.full(8, 5)
    first, cache = model.prefill(layout, tokens[:, :5], length, 8)
    second, _ = model.decode(layout, tokens[:, 5], length, cache)
    return hidden @ model.unembed(params), first, second, hidden


def test_logits_and_decoding_on_a_mesh_equal_those_of_one_device(directory):
    tokens = np.random.default_rng(0).integers(0, 96, (8, 6))
    tokens = jnp.asarray(tokens, jnp.int32)
    single = run(models.load(directory).params, tokens)
    for sizes in ((1, 8, 1), (2, 2, 2)):
        mesh = sharding.make_mesh(*sizes)
        params = models.load(directory, mesh=mesh).params
        many = run(params, sharding.place_batch(mesh, tokens))
        for x, y in zip(single, many, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    hidden = single[-1]
    np.testing.assert_allclose(single[1], hidden[:, 4], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(single[2], hidden[:, 5], rtol=1e-4, atol=1e-5)


def test_heads_that_do_not_divide_are_refused_before_reading(directory):
    mesh = sharding.make_mesh(1, 1, 4)
    with pytest.raises(ValueError, match=r"kv_heads=2 must be a multiple of 4"):
        models.load(directory, mesh=mesh)


def test_abstract_parameters_carry_their_shardings():
    config = models.from_hf(families.hf_config("qwen2"))
    mesh = sharding.make_mesh(2, 2, 2)
    abstract = models.abstract(config, mesh=mesh)
    assert jax.tree.map(lambda x: x.sharding, abstract) == models.shardings(
        config, mesh
    )
    assert abstract["head"].sharding.spec == PartitionSpec("fsdp", "tensor")
