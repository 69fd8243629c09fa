import functools

import jax
import numpy as np
import pytest

from grpo_jax import credit, keys, loop, methods, optim, step
from tests import helpers


class FakeAccount:
    """Ends on sampling at one update, or after another."""

    def __init__(self, last=100, untrained=None):
        self.calls, self.last, self.untrained = [], last, untrained

    def begin(self, update):
        self.update = update
        self.calls.append(("begin", update))

    def ends_on_sampling(self):
        self.calls.append("asked")
        return self.update == self.untrained

    def close(self):
        self.calls.append("close")
        return self.update in (self.last, self.untrained)


@pytest.fixture
def parts(getkey):
    method = methods.grpo(
        helpers.TABLE,
        group_size=4,
        prompts_per_update=2,
        compare=credit.leave_one_out,
        chunk_size=2,
    )
    tx = optim.adamw(learning_rate=0.1)
    state = step.init(helpers.random_table(getkey()), tx)

    train_step = jax.jit(
        functools.partial(step.train_step, objective=method.objective, tx=tx)
    )

    def learn(state, batch, frozen, key):
        del key
        state, metrics = train_step(state, batch, frozen)
        return state, {name: float(r.total) for name, r in metrics.items()}

    return method, state, learn


def run(parts, account, **options):
    method, state, learn = parts
    services = helpers.FakeServices()
    updates = loop.run(
        state,
        helpers.FakePool(),
        method=method,
        services=services.bound(),
        learn=learn,
        account=account,
        root=keys.root(0),
        selection=(),
        **options,
    )
    return list(updates), services


def test_it_ends_when_the_account_says_so(parts):
    account = FakeAccount(last=3)
    updates, _ = run(parts, account)
    assert [u.number for u in updates] == [1, 2, 3]
    assert [u.over for u in updates] == [False, False, True]
    assert account.calls == 3 * ["asked"] or account.calls[:3] == [
        ("begin", 1),
        "asked",
        "close",
    ]


def test_the_update_that_ends_on_sampling_is_not_trained(parts):
    updates, services = run(parts, FakeAccount(untrained=2))
    one, two = updates
    assert (one.trained, two.trained) == (True, False)
    assert two.metrics == {}
    helpers.trees_close(one.state.params, two.state.params, rtol=0)
    assert sum(call[0] == "sample" for call in services.calls) == 2


def test_a_run_continued_in_the_middle_samples_what_the_whole_run_samples(parts):
    whole, _ = run(parts, FakeAccount(last=3))
    method, _, learn = parts
    pool = helpers.FakePool(position=4)
    (third,) = loop.run(
        whole[1].state,
        pool,
        method=method,
        services=helpers.FakeServices().bound(),
        learn=learn,
        account=FakeAccount(last=3),
        root=keys.root(0),
        selection=whole[1].selection,
        start=3,
    )
    np.testing.assert_array_equal(
        third.batch.rollout.tokens, whole[2].batch.rollout.tokens
    )
    helpers.trees_close(third.state.params, whole[2].state.params, rtol=0)


def test_updates_draw_from_different_keys(parts):
    updates, _ = run(parts, FakeAccount(last=3))
    drawn = {np.asarray(u.batch.rollout.tokens).tobytes() for u in updates}
    assert len(drawn) == 3


def test_a_rollout_made_while_selecting_is_not_sampled_again(parts):
    method, state, learn = parts

    def select(services, params, selection, pool, key):
        from budgets.ledger import Phase
        from grpo_jax.base import Picked, Weights

        prompts = pool.draw(2)
        made = services.sample(
            Weights(params), prompts, num_samples=4, phase=Phase.CANDIDATE, key=key
        )
        return Picked(prompts, made), selection

    updates, services = run(
        (method._replace(select=select), state, learn), FakeAccount(last=1)
    )
    assert len(updates) == 1
    assert [c[2] for c in services.calls if c[0] == "sample"] == ["candidate"]


def test_learning_goes_up(parts):
    updates, _ = run(parts, FakeAccount(last=25))
    assert jax.nn.softmax(updates[-1].state.params["table"][0])[1] > 0.6
