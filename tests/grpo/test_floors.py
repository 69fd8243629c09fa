"""The least time that work can take: worked by hand, and measured sanely."""

import pytest

from budgets import flops
from grpo_jax import floors

# Blocks: 2 layers x (attention 4 x 2 x 2(2 + 1) = 48, feed-forward 3 x 4 x 8 = 96)
# = 288 weights; head: 4 x 10 = 40.
SHAPE = flops.ModelShape(
    layers=2, width=4, heads=2, kv_heads=1, head_dim=2, ffw=8, vocab=10
)
MACHINE = floors.Machine(
    bandwidth=1000.0, decode_rate=10_000.0, matmul_rate=20_000.0, rows=3
)


def step(**changed):
    plain = {"weight_bytes": 600, "cache_bytes": 400, "parameters": 100, "rows": 8}
    return floors.decode_step(**(plain | changed), bandwidth=500.0, matmul_rate=400.0)


def test_a_decode_step_is_bound_by_what_takes_longer():
    # (600 + 400) / 500 = 2 s of reading; 2 x 100 x 8 / 400 = 4 s of products.
    assert step() == 4.0
    assert step(rows=2) == 2.0
    assert step(rows=2, cache_bytes=900) == 3.0


def test_forward_and_backward_are_two_four_and_eight_per_weight_and_token():
    forward = floors.prefill(parameters=100, tokens=30, matmul_rate=500.0)
    assert forward == 12.0  # 2 x 100 x 30 / 500
    both = floors.training(parameters=100, tokens=30, matmul_rate=500.0)
    assert both == 36.0
    again = floors.training(
        parameters=100, tokens=30, matmul_rate=500.0, rematerialised=True
    )
    assert again == 48.0


def test_a_rollout_by_hand():
    # Two prompts of 5 and 7 tokens, two samples each, 4 + 6 + 4 + 6 = 20 new tokens.
    found = floors.rollout(
        SHAPE,
        MACHINE,
        generated=20,
        prefilled=12,
        sequences=4,
        group=2,
        itemsize=4,
    )
    prompts = 2 * 288 * 12 / 20_000 + 2 * 40 * 2 / 20_000
    # 20 - 4 = 16 tokens by 3 rows are 6 steps. Mean context: 12 x 2 / 4 + 20 / 4 / 2
    # = 8.5 positions of 2 x 2 layers x 1 head x 2 numbers x 4 bytes = 32 bytes.
    reading = ((288 + 40) * 4 + 3 * 8.5 * 32) / 1000.0
    products = 2 * 328 * 3 / 10_000
    assert reading > products
    assert found == pytest.approx(prompts + 6 * reading, rel=1e-12)


def test_fewer_sequences_than_rows_are_decoded_as_they_are():
    few = {"generated": 20, "prefilled": 12, "sequences": 2, "group": 1, "itemsize": 4}
    wide = MACHINE._replace(rows=64)
    assert floors.rollout(SHAPE, wide, **few) == floors.rollout(
        SHAPE, MACHINE._replace(rows=2), **few
    )


def test_no_sequence_takes_no_time():
    none = {"generated": 0, "prefilled": 0, "sequences": 0, "group": 1, "itemsize": 4}
    assert floors.rollout(SHAPE, MACHINE, **none) == 0.0


def test_the_floor_of_a_rollout_approaches_its_model_flops_where_products_bind():
    """Without attention and with free reading, both count the same products."""
    shape = flops.ModelShape(
        layers=3, width=64, heads=4, kv_heads=2, head_dim=16, ffw=160, vocab=300
    )
    free = floors.Machine(bandwidth=1e30, decode_rate=1e9, matmul_rate=1e9, rows=8)
    counted = flops.rollout(shape, prompts=[6, 10], new=[9] * 8)
    contexts = flops.products(
        shape,
        tokens=0,
        heads=0,
        contexts=21 + 55 + 4 * sum(range(7, 15)) + 4 * sum(range(11, 19)),
    )
    found = floors.rollout(
        shape, free, generated=72, prefilled=16, sequences=8, group=4, itemsize=4
    )
    assert found == pytest.approx((counted - contexts) / 1e9, rel=1e-12)


def test_measurements_are_what_a_machine_can_do():
    shape = flops.ModelShape(
        layers=2, width=64, heads=2, kv_heads=1, head_dim=32, ffw=128, vocab=100
    )
    bytes_per_second = floors.bandwidth(1 << 24)
    assert 1e8 < bytes_per_second < 1e14
    few, many = (
        floors.matmul_rate(shape, rows=rows, layers=2, dtype="float32")
        for rows in (1, 256)
    )
    assert 1e6 < few < many < 1e16


def test_products_of_decoding_are_counted_at_the_rate_of_few_rows():
    wide = MACHINE._replace(bandwidth=1e30)
    sampled = {"generated": 20, "prefilled": 12, "sequences": 4}
    slow, fast = (
        floors.rollout(
            SHAPE, wide._replace(decode_rate=rate), **sampled, group=2, itemsize=4
        )
        for rate in (5_000.0, 10_000.0)
    )
    # 6 steps of 2 x 328 x 3 FLOPs; the prefill is the same in both.
    assert slow - fast == pytest.approx(6 * 2 * 328 * 3 * (1 / 5_000 - 1 / 10_000))
