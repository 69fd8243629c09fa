import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax import optim

PARAMS = {
    "embed": jnp.ones((5, 4)),
    "layers": {
        "q": jnp.ones((2, 4, 2, 3)),
        "q_bias": jnp.ones((2, 2, 3)),
        "attn_norm": jnp.ones((2, 4)),
        "norm": {"scale": jnp.ones((2, 4))},
    },
    "final_norm": jnp.ones((4,)),
    "gain": jnp.ones((4,)),
}


def run(tx, params, grads):
    state = tx.init(params)
    out = []
    for g in grads:
        updates, state = tx.update(g, state, params)
        params = optax.apply_updates(params, updates)
        out.append(params)
    return out


def test_adamw_matches_a_slow_loop_with_clipping_warmup_and_decay():
    rng = np.random.default_rng(0)
    w, grads = rng.normal(size=(3, 2)), rng.normal(size=(6, 3, 2))
    tx = optim.adamw(
        learning_rate=0.1,
        b1=0.8,
        b2=0.95,
        eps=1e-3,
        weight_decay=0.2,
        clip_norm=1.0,
        warmup_steps=3,
        schedule=optim.linear,
        decay_steps=6,
    )
    got = run(
        tx,
        {"w": jnp.asarray(w, jnp.float32)},
        [{"w": jnp.asarray(g, jnp.float32)} for g in grads],
    )
    m = v = np.zeros_like(w)
    rates = [0.1 / 3, 0.2 / 3, 0.1, 0.1, 0.1 * 5 / 6, 0.1 * 4 / 6]
    for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        norm = np.sqrt((g**2).sum())
        g = g / max(norm, 1.0)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        mean, square = m / (1 - 0.8**t), v / (1 - 0.95**t)
        w = w - rate * (mean / (np.sqrt(square) + 1e-3) + 0.2 * w)
        np.testing.assert_allclose(got[t - 1]["w"], w, rtol=1e-4, atol=1e-6)


def test_weight_decay_leaves_norms_and_biases_alone():
    tx = optim.adamw(learning_rate=0.5, weight_decay=0.1)
    zero = jax.tree.map(jnp.zeros_like, PARAMS)
    (after,) = run(tx, PARAMS, [zero])
    moved = jax.tree.map(lambda x: float(x.ravel()[0]), after)
    shrunk = 1 - 0.5 * 0.1
    assert moved == {
        "embed": pytest.approx(shrunk),
        "layers": {
            "q": pytest.approx(shrunk),
            "q_bias": 1.0,
            "attn_norm": 1.0,
            "norm": {"scale": 1.0},
        },
        "final_norm": 1.0,
        "gain": 1.0,
    }


def test_a_given_mask_decides_what_decays():
    tx = optim.adamw(
        learning_rate=0.5,
        weight_decay=0.1,
        decay_mask=lambda params: jax.tree.map(lambda x: x.ndim == 1, params),
    )
    (after,) = run(tx, PARAMS, [jax.tree.map(jnp.zeros_like, PARAMS)])
    assert float(after["embed"][0, 0]) == 1.0
    assert float(after["gain"][0]) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [2, 2, 2, 2, 2, 2]),
        ({"warmup_steps": 4}, [0.5, 1, 1.5, 2, 2, 2]),
        ({"decay": optim.linear, "decay_steps": 4}, [2, 1.5, 1, 0.5, 0, 0]),
        (
            {"warmup_steps": 2, "decay": optim.linear, "decay_steps": 2},
            [1, 2, 2, 1, 0, 0],
        ),
        (
            {"decay": optim.cosine, "decay_steps": 2},
            [2, 1, 0, 0, 0, 0],
        ),
        ({"decay": optim.linear}, [2] * 6),
        ({"decay": optim.constant, "decay_steps": 3}, [2] * 6),
    ],
)
def test_learning_rates_match_values_by_hand(options, want):
    rate = optim.learning_rates(peak=2.0, **options)
    got = [float(rate(jnp.asarray(i))) for i in range(6)]
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_learning_rate_zero_moves_nothing_bit_for_bit():
    tx = optim.adamw(learning_rate=0.0, weight_decay=0.1)
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    after = run(tx, PARAMS, [grads] * 3)[-1]
    jax.tree.map(np.testing.assert_array_equal, after, PARAMS)


def test_clip_norm_none_leaves_large_gradients_as_they_are():
    # With b1 = b2 = 0 and a large eps the step is proportional to the gradient.
    options = {"learning_rate": 1.0, "b1": 0.0, "b2": 0.0, "eps": 1e6}
    params, grads = {"w": jnp.zeros((2, 2))}, {"w": jnp.full((2, 2), 50.0)}
    (free,) = run(optim.adamw(clip_norm=None, **options), params, [grads])
    (clipped,) = run(optim.adamw(clip_norm=1.0, **options), params, [grads])
    # The norm is 100, and each entry becomes 0.5.
    np.testing.assert_allclose(
        free["w"] / clipped["w"], np.full((2, 2), 100), rtol=1e-3
    )


def test_nnx_style_paths_are_told_by_name_too():
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.LayerNorm(4, rngs=rngs)
            self.up = nnx.Linear(4, 4, rngs=rngs)

    params = nnx.state(Block(nnx.Rngs(0)), nnx.Param)
    mask = nnx.to_pure_dict(jax.tree.map(lambda x: x, optim.decays(params)))
    assert mask == {
        "norm": {"bias": False, "scale": False},
        "up": {"bias": False, "kernel": True},
    }
