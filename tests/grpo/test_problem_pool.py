import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.base import Problem
from grpo_jax.problem_pool import ProblemPool, digest


def problems(count):
    return [Problem(id=f"p{i}", question=f"{i}?", answer=str(i)) for i in range(count)]


def ids(drawn):
    return [p.id for p in drawn]


def test_each_epoch_holds_every_problem_once_in_another_order():
    pool = ProblemPool(problems(50), seed=3)
    epochs = [ids(pool.draw(50)) for _ in range(4)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(ids(problems(50)))
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_order_follows_from_the_seed():
    first = ids(ProblemPool(problems(50), seed=1).draw(120))
    assert first == ids(ProblemPool(problems(50), seed=1).draw(120))
    assert first != ids(ProblemPool(problems(50), seed=2).draw(120))


@given(
    st.integers(1, 20),
    st.lists(st.integers(0, 30), max_size=8),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=10, deadline=None)
def test_draws_do_not_depend_on_how_they_are_cut_or_resumed(size, counts, seed):
    whole = ids(ProblemPool(problems(size), seed=seed).draw(sum(counts)))
    pool, parts = ProblemPool(problems(size), seed=seed), []
    for count in counts:
        parts += ids(pool.draw(count))
        state = json.loads(json.dumps(pool.get_state()))
        pool = ProblemPool(problems(size), seed=seed)
        pool.draw(5)  # what a fresh process may have read before it restores
        pool.set_state(state)
    assert parts == whole


def test_one_draw_may_be_longer_than_an_epoch():
    assert len(ProblemPool(problems(3), seed=0).draw(10)) == 10


@pytest.mark.parametrize(
    ("other", "seed"), [(problems(5), 1), (problems(6), 0), (problems(5)[::-1], 0)]
)
def test_a_position_in_another_stream_is_refused(other, seed):
    state = ProblemPool(problems(5), seed=0).get_state()
    with pytest.raises(ValueError, match="same problems and seed"):
        ProblemPool(other, seed=seed).set_state(state)


def test_digest_sees_every_field_and_where_it_ends():
    a = [Problem(id="ab", question="c", answer="d")]
    b = [Problem(id="a", question="bc", answer="d")]
    assert digest(a) != digest(b)
    assert digest(a) == digest(tuple(a))


def test_an_empty_pool_and_a_bad_seed_are_refused_in_one_line():
    for bad in (lambda: ProblemPool([], seed=0), lambda: ProblemPool(problems(1), -1)):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            bad()
        assert "\n" not in str(error.value)


def test_drawing_four_thousand_problems_is_cheap():
    pool = ProblemPool(problems(1000), seed=0)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        pool.draw(4096)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5  # 0.05 on an idle core
