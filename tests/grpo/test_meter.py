import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

from budgets import flops
from budgets.clock import Clock
from budgets.labels import Labels
from budgets.ledger import Budget, Ledger, Phase
from grpo_jax import (
    ahead,
    keys,
    meter,
    models,
    objectives,
    resident,
    rollout,
    sharding,
)
from grpo_jax.base import Forks, Problem, Verdict, Weights
from grpo_jax.compilations import Watch

CONFIG = models.ModelConfig(
    family="llama",
    vocab_size=31,
    width=16,
    ffw=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)
SHAPE = flops.ModelShape(
    layers=2, width=16, heads=2, kv_heads=1, head_dim=8, ffw=32, vocab=31
)
STOPS = (3, 4)
FUNCTIONS = models.functions(CONFIG)  # once: a program is compiled for each


class Ticking:
    """A clock that moves one second at each reading."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        self.time += 1.0
        return self.time


@pytest.fixture(scope="module")
def params():
    return jax.jit(functools.partial(models.init, CONFIG))(keys.root(2))


@pytest.fixture
def metered():
    watch = Watch()
    made = meter.Meter(
        models={
            "policy": meter.Metered(FUNCTIONS, SHAPE),
            "teacher": meter.Metered(FUNCTIONS, SHAPE),
        },
        ledger=Ledger(budget=Budget(updates=3)),
        clock=Clock(jax.block_until_ready, devices=2, now=Ticking()),
        watch=watch,
        labels=Labels(),
        verify=lambda text, problem: Verdict(text == problem.answer, text, None),
        decode=lambda tokens, sampled: [
            str(int(row[drawn][0])) for row, drawn in zip(tokens, sampled, strict=True)
        ],
    )
    yield made
    watch.close()


def sampler(rows=3, new=6, **options):
    return resident.Sampler(
        decoding=rollout.decoding(1.0),
        stop_ids=rollout.stops(STOPS),
        geometry=rollout.geometry(
            widths=(4,), max_new_tokens=new, sequences=5 * rows, num_samples=5
        ),
        max_new_tokens=new,
        **options,
    )


PROBLEMS = tuple(
    Problem(id=str(i), question="", answer="7", prompt=tuple(range(1, 2 + i)))
    for i in range(3)
)


SAMPLER = sampler()


def sample(metered, params, requests=PROBLEMS, *, phase=Phase.ROLLOUT, **options):
    return metered.services(SAMPLER).sample(
        Weights(params),
        requests,
        num_samples=5,
        phase=phase,
        key=keys.root(0),
        **options,
    )


def rows(metered, phase):
    return [r for r in metered._ledger.rows if r.phase == phase]


def test_a_sample_is_charged_by_a_recount_of_its_ids(metered, params):
    metered.begin(1)
    out = sample(metered, params)
    (charge,) = rows(metered, Phase.ROLLOUT)
    sampled = np.asarray(out.sampled)
    assert charge.cost.generated == sampled.sum()
    assert charge.cost.prefilled == 1 + 2 + 3  # each prompt once, not once a sample
    assert charge.cost.sequences == 15
    assert charge.cost.prompts == 3
    assert charge.update == 1
    assert charge.role == "policy"
    want = flops.rollout(SHAPE, [1, 2, 3], sampled.sum(1).tolist())
    assert charge.cost.flops == want


def test_padding_rows_are_not_charged_and_not_returned(metered, params):
    metered.begin(1)
    out = sample(metered, params, PROBLEMS[:2])
    assert out.tokens.shape[0] == 10
    (charge,) = rows(metered, Phase.ROLLOUT)
    assert charge.cost.generated == np.asarray(out.sampled).sum()
    assert charge.cost.sequences == 10
    whole = sample(metered, params)
    np.testing.assert_array_equal(np.asarray(whole.tokens)[:10], out.tokens)


def test_parts_of_a_set_draw_what_the_whole_draws(metered, params):
    whole = sample(metered, params)
    last = sample(metered, params, PROBLEMS[2:], first=2)
    np.testing.assert_array_equal(np.asarray(whole.tokens)[10:], last.tokens)


def test_every_second_is_charged_exactly_once(metered, params):
    """Two devices and a clock of one second a reading: each lap is two seconds."""
    metered.begin(1)
    out = sample(metered, params)
    metered.services(sampler()).verify(out, PROBLEMS, phase=Phase.ROLLOUT)
    metered.services(sampler()).score(Weights(params), out, phase=Phase.REFERENCE)
    metered.close()
    total = sum(r.cost.device_seconds for r in metered._ledger.rows)
    assert total == pytest.approx(2 * (metered._clock._now.time - 1))
    assert sum(metered.seconds.values()) == pytest.approx(total)


def test_verify_counts_calls_and_labels_each_id_once(metered, params):
    services = metered.services(sampler())
    out = sample(metered, params)
    feedback = services.verify(out, PROBLEMS, phase=Phase.ROLLOUT)
    services.verify(out, PROBLEMS, phase=Phase.CANDIDATE)
    one, two = (r for r in metered._ledger.rows if r.role == "verifier")
    assert (one.cost.labels, one.cost.verifier_calls) == (3, 15)
    assert (two.cost.labels, two.cost.verifier_calls) == (0, 15)
    first = np.asarray(out.tokens)[np.arange(15), np.asarray(out.prompt_length)]
    np.testing.assert_array_equal(feedback.reward, (first == 7).astype(np.float32))


def test_evaluation_uses_no_label(metered, params):
    out = sample(metered, params, phase=Phase.EVAL)
    metered.services(sampler()).verify(out, PROBLEMS, phase=Phase.EVAL)
    total = metered._ledger.total(tuple(Phase))
    assert (total.prompts, total.labels, total.verifier_calls) == (0, 0, 15)
    assert metered._ledger.total().generated == 0


def test_a_score_is_a_prefill_of_every_real_token(metered, params):
    out = sample(metered, params)
    services = metered.services(sampler())
    logp = services.score(Weights(params, "teacher"), out, phase=Phase.TEACHER_SCORE)
    (charge,) = rows(metered, Phase.TEACHER_SCORE)
    lengths = np.asarray(out.length)
    assert (charge.cost.generated, charge.cost.prefilled) == (0, lengths.sum())
    assert charge.role == "teacher"
    gap = np.where(out.sampled, np.asarray(logp) - np.asarray(out.logp), 0)
    assert np.abs(gap).max() < 1e-4


def test_forks_continue_a_rollout_with_what_its_limit_had_left(metered, params):
    parent = sample(metered, params)
    length, start = np.asarray(parent.length), np.asarray(parent.prompt_length)
    row = int(np.argmax(length - start))
    position = int(start[row]) + 2
    forks = Forks(parent, [row, row], [position, position + 1])
    out = sample(metered, params, forks, phase=Phase.CONTINUATION)
    assert out.tokens.shape[0] == 10
    for i in range(10):
        kept = position + i // 5
        np.testing.assert_array_equal(
            np.asarray(out.tokens)[i, :kept], np.asarray(parent.tokens)[row, :kept]
        )
        assert int(out.length[i]) <= start[row] + 6
    (charge,) = rows(metered, Phase.CONTINUATION)
    assert charge.cost.generated == np.asarray(out.sampled).sum()
    assert charge.cost.prefilled == 2 * position + 1
    assert charge.cost.prompts == 0
    assert metered.refilled_forks == 2


def test_forks_of_a_kept_rollout_read_nothing_again(metered, params):
    parent = sample(metered, params, keep=True)
    length, start = np.asarray(parent.length), np.asarray(parent.prompt_length)
    row = int(np.argmax(length - start))
    position = int(start[row]) + 2
    out = sample(
        metered, params, Forks(parent, [row], [position]), phase=Phase.CONTINUATION
    )
    (charge,) = rows(metered, Phase.CONTINUATION)
    new = np.asarray(out.sampled).sum(1).tolist()
    assert (charge.cost.generated, charge.cost.prefilled) == (sum(new), 0)
    # The first new token comes from a step that reads the last token of the prefix.
    steps = sum(new)
    contexts = sum(position + i for n in new for i in range(n))
    assert charge.cost.flops == flops.products(
        SHAPE, tokens=steps, heads=steps, contexts=contexts
    )
    assert metered.refilled_forks == 0
    metered.release()
    sample(metered, params, Forks(parent, [row], [position]), phase=Phase.CONTINUATION)
    assert metered.refilled_forks == 1


def test_a_grader_error_is_no_reward_and_is_recorded(metered, params):
    broken = dataclasses.replace(PROBLEMS[0], answer="x")
    metered._verify = lambda text, problem: Verdict(False, None, "worker died")
    out = sample(metered, params, (broken,))
    feedback = metered.services(sampler()).verify(out, (broken,), phase=Phase.ROLLOUT)
    assert feedback.error.all()
    assert (feedback.reward == 0).all()


def test_host_time_of_an_evaluation_is_outside_the_budget(metered, params):
    metered.begin(1, between=Phase.EVAL)
    out = sample(metered, params, phase=Phase.EVAL)
    metered.services(sampler()).verify(out, PROBLEMS, phase=Phase.EVAL)
    assert metered._ledger.total().device_seconds == 0
    metered.begin(2)
    metered.idle()
    assert metered._ledger.total().device_seconds > 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"want": "logits"}, "score wants 'logits', which is not built; ask for one"),
        ({"want": "top_k"}, "k=0 with want='top_k': top_k needs k of at least 1"),
        ({"want": "hidden", "k": 3}, "k=3 with want='hidden'"),
    ],
)
def test_what_score_cannot_give_is_refused(metered, params, asked, said):
    out = sample(metered, params)
    with pytest.raises(ValueError, match=re.escape(said)):
        metered.services(sampler()).score(
            Weights(params), out, phase=Phase.REFERENCE, **asked
        )
    assert not rows(metered, Phase.REFERENCE)


def score(metered, params, out, **asked):
    return metered.services(sampler()).score(
        Weights(params), out, phase=Phase.REFERENCE, **asked
    )


def test_hidden_states_and_top_k_are_of_what_predicts_each_token(metered, params):
    """Against the logits of the whole sequences, one position earlier."""
    out = sample(metered, params)
    tokens, sampled = np.asarray(out.tokens), np.asarray(out.sampled)
    logits = np.asarray(models.logits(params, CONFIG, out.tokens), np.float64)
    full = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    before = np.roll(full, 1, axis=1)[sampled]
    hidden = score(metered, params, out, want="hidden")
    assert hidden.shape == (*tokens.shape, CONFIG.width)
    read = np.asarray(hidden)[sampled] @ np.asarray(FUNCTIONS.unembed(params))
    np.testing.assert_allclose(
        read, np.roll(logits, 1, axis=1)[sampled], rtol=1e-4, atol=1e-4
    )
    ids, logp, tail = score(metered, params, out, want="top_k", k=5)
    order = np.argsort(-before, axis=-1)[:, :5]
    np.testing.assert_array_equal(np.asarray(ids)[sampled], order)
    best = np.take_along_axis(before, order, -1)
    np.testing.assert_allclose(np.asarray(logp)[sampled], best, rtol=1e-4, atol=1e-4)
    rest = np.log1p(-np.exp(best).sum(-1))
    np.testing.assert_allclose(np.asarray(tail)[sampled], rest, rtol=1e-3, atol=1e-4)
    whole = score(metered, params, out, want="top_k", k=31)
    assert (np.asarray(whole.tail)[sampled] == -np.inf).all()
    # The price does not depend on what is asked.
    assert len({r.cost.flops for r in rows(metered, Phase.REFERENCE)}) == 1


def test_many_forks_run_in_calls_of_one_shape(metered, params):
    parent = sample(metered, params)
    rows, position = [0, 1, 2, 3, 4, 5, 6], 1
    out = sample(metered, params, Forks(parent, rows, [position] * 7))
    assert out.tokens.shape[0] == 35
    one = sample(metered, params, Forks(parent, rows[3:4], [position]), first=3)
    np.testing.assert_array_equal(np.asarray(out.tokens)[15:20], one.tokens)


def test_a_score_in_parts_is_the_score_of_the_whole_and_of_each_row(metered, params):
    """Parts of three rows, and the same on eight devices."""
    out = jax.tree.map(np.asarray, sample(metered, params))
    out = jax.tree.map(lambda x: np.concatenate([x, x[:1]]), out)  # 16 rows
    whole = np.asarray(score(metered, params, out))
    alone, _ = jax.jit(lambda *x: objectives.read(FUNCTIONS, *x))(params, out)
    np.testing.assert_allclose(whole, np.where(out.sampled, alone, 0), atol=1e-5)
    metered._packed = ahead.Programs(5)
    parts = score(metered, params, out)
    np.testing.assert_allclose(parts, whole, atol=1e-5)
    mesh = sharding.make_mesh(data=8)
    metered._packed = ahead.Programs(0, sharding.batch(mesh, 1))
    spread = score(metered, jax.device_put(params, sharding.replicated(mesh)), out)
    np.testing.assert_allclose(spread, whole, atol=1e-5)
    odd = jax.tree.map(lambda x: x[:15], out)  # which eight devices cannot share
    placed = jax.device_put(params, sharding.replicated(mesh))
    np.testing.assert_allclose(score(metered, placed, odd), whole[:15], atol=1e-5)


def test_a_score_of_no_rows_has_none(metered, params):
    """As of forks, where no answer of an update could be forked."""
    parent = sample(metered, params)
    none = sample(metered, params, Forks(parent, [], []))
    assert score(metered, params, none).shape == none.tokens.shape == (0, 10)


def test_a_score_of_other_lengths_compiles_nothing(metered, params):
    out = jax.tree.map(np.array, sample(metered, params))
    score(metered, params, out)
    metered._watch.take()
    short = np.minimum(out.length, out.prompt_length + 1)
    drawn = out.sampled & (np.arange(out.tokens.shape[1])[None] < short[:, None])
    shorter = dataclasses.replace(out, length=short, sampled=drawn)
    score(metered, params, shorter)
    assert metered._watch.take()[0] == 0
