import jax
import jax.numpy as jnp

from grpo_jax.compilations import Watch


def test_counts_programs_and_their_seconds_once():
    watch = Watch()
    try:
        x = jnp.arange(7.0)
        watch.take()
        program = jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x) + 11)
        program(x).block_until_ready()
        count, seconds = watch.take()
        assert count == 1
        assert seconds > 0
        program(x).block_until_ready()
        assert watch.take() == (0, 0)
    finally:
        watch.close()


def test_nested_spans_are_not_counted_twice():
    now = iter([5.0, 10.0, 12.0])
    watch = Watch(now=lambda: next(now))
    try:
        inner, outer, later = 3.0, 9.0, 1.5
        watch._heard("/jax/core/compile/jaxpr_trace_duration", inner)  # 2 .. 5
        watch._heard("/jax/core/compile/jaxpr_trace_duration", outer)  # 1 .. 10
        watch._heard("/jax/core/compile/backend_compile_duration", later)  # 10.5 .. 12
        assert watch.take() == (1, 9.0 + 1.5)
    finally:
        watch.close()


def test_a_closed_watch_hears_nothing():
    watch = Watch()
    watch.close()
    jax.jit(lambda x: x * 17 + 3)(jnp.ones(3)).block_until_ready()
    assert watch.take() == (0, 0)
