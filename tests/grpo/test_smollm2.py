"""The real SmolLM2, for whoever has minutes: `python -m pytest -m slow`."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax import keys, losses, models, rollout
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


def test_greedy_ids_are_those_of_transformers(model, tmp_path):
    torch = pytest.importorskip("torch")
    import transformers

    models.save(model, tmp_path / "saved")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    families.assert_greedy_ids_agree(
        torch, theirs.eval(), model, sums(model.tokenizer, 20), max_new_tokens=24
    )
