"""A cache in segments against a slow loop in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import attention

BATCH, HEADS, KV, DIM = 6, 4, 2, 8


def drawn(length, seed=0):
    rng = np.random.default_rng(seed)
    wide = lambda t, h: rng.normal(size=(BATCH, t, h, DIM)).astype(np.float32)
    return wide(1, HEADS), wide(1, KV), wide(1, KV), wide(length, KV), wide(length, KV)


def slow(query, key, value, keys, values, positions):
    """One row and head at a time; the new token stands at its position."""
    out = np.zeros((BATCH, 1, HEADS, DIM))
    for b, at in enumerate(positions):
        for h in range(HEADS):
            k = keys[b, : at + 1, h // (HEADS // KV)].astype(np.float64)
            v = values[b, : at + 1, h // (HEADS // KV)].astype(np.float64)
            k[at], v[at] = (x[b, 0, h // (HEADS // KV)] for x in (key, value))
            score = k @ query[b, 0, h].astype(np.float64) / np.sqrt(DIM)
            weight = np.exp(score - score.max())
            out[b, 0, h] = weight @ v / weight.sum()
    return out


@pytest.mark.parametrize("backend", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize(
    "positions",
    [[0, 1, 2, 3, 4, 5], [63, 64, 65, 127, 128, 129], [0, 40, 80, 127, 128, 199]],
    ids=["first segment", "its edges", "all"],
)
def test_one_token_attends_to_the_cache_up_to_itself(backend, positions):
    query, key, value, keys, values = drawn(200)
    layout = attention.layout(backend, None)
    # What stands behind a position is filler that must not be read.
    behind = np.arange(200)[None, :, None, None] >= np.array(positions).reshape(
        -1, 1, 1, 1
    )
    cache = layout.store(*(jnp.where(behind, 50.0, x) for x in (keys, values)), 200)
    attend = jax.jit(layout.attend)
    out, cache = attend(query, key, value, jnp.asarray(positions), cache)
    want = slow(query, key, value, keys, values, positions)
    np.testing.assert_allclose(out, want, atol=2e-5)
    # The token was written where it stands: the next one sees it.
    more = [p + 1 if p < 199 else p for p in positions]
    out, _ = attend(query, 2 * key, value, jnp.asarray(more), cache)
    for b, at in enumerate(positions):
        keys[b, at], values[b, at] = key[b, 0], value[b, 0]
    want = slow(query, 2 * key, value, keys, values, more)
    np.testing.assert_allclose(out, want, atol=2e-5)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_an_idle_row_writes_nothing_and_no_further_segment_is_read(backend):
    query, key, value, keys, values = drawn(200)
    layout = attention.layout(backend, None)
    cache = layout.store(jnp.asarray(keys), jnp.asarray(values), 200)
    if backend == "cpu":  # a segment that is read would spread its nan
        poisoned = [jax.tree.map(lambda x: x * jnp.nan, part) for part in cache[1:]]
        cache = (cache[0], *poisoned)
    positions = jnp.array([3, 224, 60, 999, 0, 2**30])
    out, after = jax.jit(layout.attend)(query, key, value, positions, cache)
    live = np.array([0, 2, 4])
    want = slow(query, key, value, keys, values, np.minimum(positions, 199))
    np.testing.assert_allclose(out[live], want[live], atol=2e-5)
    idle = np.array([1, 3, 5])
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[idle], b[idle]), after, cache
    )


@pytest.mark.parametrize("columns", [0, 63, 64, 128, 150])
def test_what_a_group_shares_is_read_from_its_first_row(columns):
    query, key, value, keys, values = drawn(200)
    for x in (keys, values):
        x[:, :columns] = np.repeat(x[::3, :columns], 3, axis=0)
    layout = attention.layout("cpu", None)
    positions = np.array([150, 151, 199, 160, 170, 155])
    want = slow(query, key, value, keys, values, positions)
    for row in (1, 2, 4, 5):  # segments that are shared whole are not read here
        whole = columns // 64 * 64
        keys[row, :whole] = values[row, :whole] = np.nan
    cache = layout.store(jnp.asarray(keys), jnp.asarray(values), 200)

    @jax.jit
    def attend(columns):
        shared = attention.Shared(3, columns)
        new = map(jnp.asarray, (query, key, value, positions))
        return layout.attend(*new, cache, shared)[0]

    out = attend(jnp.asarray(columns))
    np.testing.assert_allclose(out, want, atol=2e-5)


def test_segments_double_in_pairs_and_stay_few():
    assert attention.sizes(40) == (40,)
    assert attention.sizes(576) == (64, 64, 64, 64, 128, 128, 64)
    for length in range(1, 5000, 37):
        sizes = attention.sizes(length)
        assert sum(sizes) == length
        assert len(sizes) <= attention.MOST
        for i in range(2, len(sizes)):  # read: at most half again what is used
            assert sum(sizes[: i + 1]) <= 1.5 * sum(sizes[:i])
