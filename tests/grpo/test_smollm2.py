"""The real SmolLM2, for whoever has minutes: `python -m pytest -m slow`."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax import (
    engine,
    keys,
    losses,
    models,
    rollout,
    sampling,
    slots,
    truncation,
)
from tests.grpo import families

pytestmark = pytest.mark.slow
OPTIONS = [
    {"temperature": 0.5},
    {"temperature": 1.0},
    {"temperature": 2.0},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
]


@pytest.fixture(scope="module")
def model():
    return models.load(families.smollm2())


def sums(tokenizer, count):
    texts = [f"What is {11 + 4 * i} + {97 - 3 * i}?" for i in range(count)]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for text in texts
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sampler_logp_is_the_scorers_to_1e_4(options, model):
    out = rollout.generate(
        model.params,
        model.config,
        sums(model.tokenizer, 3),
        num_samples=4,
        max_new_tokens=24,
        stop_ids=model.config.stop_ids,
        key=keys.root(3),
        **options,
    )
    logits = models.logits(model.params, model.config, out.tokens)
    score = jax.vmap(functools.partial(losses.token_logp, **options))
    gap = np.where(out.sampled, np.asarray(score(logits, out.tokens) - out.logp), 0)
    assert np.abs(gap).max() < 1e-4


@pytest.mark.parametrize(
    "cut",
    [{}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.95, "min_p": 0.02}],
    ids=str,
)
def test_draws_from_real_logits_pass_a_chi_square_at_five_sigma(cut, model):
    prompt = jax.numpy.asarray(sums(model.tokenizer, 1))
    logits = models.logits(model.params, model.config, prompt)[0, -1]
    policy = truncation.policy_logits(logits, temperature=1.5, **cut)
    p = np.asarray(jax.nn.softmax(policy), np.float64)
    part, parts = 500, 80
    draw, seen = jax.jit(sampling.draw), np.zeros(p.size)
    for i in range(parts):
        zero = jax.numpy.zeros(part, jax.numpy.int32)
        keys_b = keys.per_sequence(keys.root(i), zero, keys.numbers(part))
        rows = jax.numpy.broadcast_to(policy[None], (part, p.size))
        seen += np.bincount(np.asarray(draw(keys_b, rows)[0]), minlength=p.size)
    assert (seen[p == 0] == 0).all()
    # Rare tokens are pooled, so that every cell has a normal error.
    want = p / p.sum() * part * parts
    common = want > 20
    cells = np.append(want[common], want[~common].sum())
    found = np.append(seen[common], seen[~common].sum())
    kept = cells > 0
    square = ((found - cells)[kept] ** 2 / cells[kept]).sum()
    freedom = kept.sum() - 1
    assert square < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("num_slots", [3, 8])
def test_ids_do_not_depend_on_the_slots(num_slots, model):
    functions = models.functions(model.config)
    asked = rollout.of_prompts(sums(model.tokenizer, 2), num_samples=4, limit=40)
    asked = [r._replace(limit=5 + 5 * r.row) for r in asked]
    sizes = rollout.geometry(
        widths=(max(len(r.prefix) for r in asked),),
        max_new_tokens=40,
        sequences=8,
        num_samples=4,
        num_slots=num_slots,
    )
    made = engine.Engine(functions, sizes)
    layout, how = made.layout(model.params), rollout.decoding(1.0)
    stop = rollout.stops(model.config.stop_ids)
    together = slots.run(made, layout, asked, stop, how, keys.root(0))
    for request in asked:
        own = slots.run(made, layout, [request], stop, how, keys.root(0))
        assert own.tokens[request.row] == together.tokens[request.row]
        gap = np.subtract(own.logp[request.row], together.logp[request.row])
        assert np.abs(gap).max() < 1e-5


def test_greedy_ids_are_those_of_transformers(model, tmp_path):
    torch = pytest.importorskip("torch")
    import transformers

    models.save(model, tmp_path / "saved")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    families.assert_greedy_ids_agree(
        torch, theirs.eval(), model, sums(model.tokenizer, 20), max_new_tokens=24
    )
