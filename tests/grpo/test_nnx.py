"""A user's own NNX module behind the same functions as our decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grpo_jax import models

VOCAB, WIDTH = 11, 8


class Tiny(nnx.Module):
    """A running mean over the segment, then a dense layer: causal, with positions."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2)])
        self.head = nnx.Param(jax.random.normal(rngs.params(), (WIDTH, VOCAB)))

    def hidden(self, tokens, positions, segments):
        x = self.embed(tokens) + 0.01 * positions[..., None]
        index = jnp.arange(tokens.shape[1])
        same = segments[:, :, None] == segments[:, None, :]
        seen = same & (index[:, None] >= index[None, :])[None]
        weight = seen / seen.sum(-1, keepdims=True)
        for block in self.blocks:
            x = x + jnp.tanh(block(weight @ x))
        return x

    def unembed(self):
        return self.head[...]


@pytest.fixture
def tiny():
    return Tiny(nnx.Rngs(0))


def test_functions_equal_the_modules_own_methods(tiny):
    functions, params = models.from_nnx(tiny)
    tokens = jnp.array([[1, 2, 3], [4, 5, 6]])
    place, one = jnp.broadcast_to(jnp.arange(3)[None], (2, 3)), jnp.ones_like(tokens)
    ours = jax.jit(functions.hidden)(params, tokens, place, one)
    np.testing.assert_allclose(ours, tiny.hidden(tokens, place, one), rtol=1e-5)
    np.testing.assert_array_equal(functions.unembed(params), tiny.unembed())


def test_parameters_are_a_plain_tree_and_an_argument(tiny):
    functions, params = models.from_nnx(tiny)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(params))
    assert isinstance(params, dict)
    tokens = jnp.array([[1, 2, 3]])
    place, one = jnp.arange(3)[None], jnp.ones_like(tokens)
    doubled = jax.tree.map(lambda x: 2 * x, params)
    before = functions.hidden(params, tokens, place, one)
    after = functions.hidden(doubled, tokens, place, one)
    assert not np.allclose(before, after)
    # The first call left no trace in what is closed over.
    again = functions.hidden(params, tokens, place, one)
    np.testing.assert_array_equal(before, again)
    constants = jax.make_jaxpr(functions.hidden)(params, tokens, place, one).consts
    assert sum(np.size(c) for c in constants) == 0


def test_gradients_reach_every_parameter(tiny):
    functions, params = models.from_nnx(tiny)
    tokens = jnp.array([[1, 2, 3]])

    def loss(params):
        hidden = functions.hidden(params, tokens, tokens, jnp.ones_like(tokens))
        return jnp.square(hidden @ functions.unembed(params)).sum()

    for gradient in jax.tree.leaves(jax.grad(loss)(params)):
        assert np.abs(gradient).max() > 0


def test_decoding_without_a_cache_equals_hidden_at_every_position(tiny):
    functions, params = models.from_nnx(tiny)
    draw = np.random.default_rng(0)
    tokens = jnp.asarray(draw.integers(0, VOCAB, (3, 8)), jnp.int32)
    place = jnp.broadcast_to(jnp.arange(8)[None], (3, 8))
    whole = np.asarray(functions.hidden(params, tokens, place, jnp.ones_like(tokens)))
    layout, rows = functions.decode_layout(params), np.arange(3)
    length = np.array([4, 2, 1])
    filled = jnp.where(np.arange(4)[None] < length[:, None], tokens[:, :4], 10)
    hidden, cache = functions.prefill(layout, filled, jnp.asarray(length), 9)
    np.testing.assert_allclose(hidden, whole[rows, length - 1], rtol=1e-5, atol=1e-6)
    assert {x.shape[0] for x in jax.tree.leaves(cache)} == {3}
    decode = jax.jit(functions.decode)
    for step in range(4):
        at = length + step
        hidden, cache = decode(layout, tokens[rows, at], jnp.asarray(at), cache)
        np.testing.assert_allclose(hidden, whole[rows, at], rtol=1e-5, atol=1e-6)


def test_a_modules_own_cache_is_used():
    class Cached(Tiny):
        def prefill(self, tokens, length, cache_length):
            return jnp.full((tokens.shape[0], WIDTH), 7.0), jnp.zeros((2, 1))

        def decode(self, tokens, positions, cache):
            return jnp.full((tokens.shape[0], WIDTH), 8.0), cache + 1

    functions, params = models.from_nnx(Cached(nnx.Rngs(0)))
    ids = jnp.array([1, 2])
    hidden, cache = functions.prefill(params, ids[:, None], jnp.array([1, 1]), 4)
    assert (np.asarray(hidden) == 7).all()
    hidden, cache = functions.decode(params, ids, ids, cache)
    assert (np.asarray(hidden) == 8).all()
    assert (np.asarray(cache) == 1).all()


def test_what_a_module_lacks_is_named():
    class Half(nnx.Module):
        def hidden(self, tokens, positions, segments):
            return tokens

    with pytest.raises(ValueError, match=r"Half lacks \['unembed'\]; define"):
        models.from_nnx(Half())

    class OnlyDecode(Tiny):
        def decode(self, tokens, positions, cache):
            return tokens, cache

    with pytest.raises(ValueError, match="has decode but not both"):
        models.from_nnx(OnlyDecode(nnx.Rngs(0)))


def test_shapes_that_do_not_meet_are_refused():
    class Transposed(Tiny):
        def unembed(self):
            return self.head[...].T

    with pytest.raises(ValueError, match=r"must be \[B, T, D\] and \[D, V\]"):
        models.from_nnx(Transposed(nnx.Rngs(0)))


def test_state_that_is_not_a_parameter_is_refused():
    class Noisy(Tiny):
        def __init__(self, rngs):
            super().__init__(rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

    with pytest.raises(ValueError, match="holds state that is no"):
        models.from_nnx(Noisy(nnx.Rngs(0)))
