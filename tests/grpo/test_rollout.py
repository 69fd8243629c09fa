import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import keys, losses, models, rollout, sharding
from grpo_jax.compilations import Watch

CONFIG = models.ModelConfig(
    family="qwen3",
    qk_norm=True,
    vocab_size=97,
    width=32,
    ffw=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    tied=False,
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
STOPS = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def params():
    drawn = jax.jit(functools.partial(models.init, CONFIG))(keys.root(1))
    # Sharper than at the start of training, so that truncation has something to cut.
    return drawn | {"head": 8 * drawn["head"]}


def generate(params, prompts=PROMPTS, *, seed=0, num_samples=4, **options):
    options = {"max_new_tokens": 12, "stop_ids": STOPS} | options
    return rollout.generate(
        params, CONFIG, prompts, num_samples=num_samples, key=keys.root(seed), **options
    )


def logp_of(params, out, **options):
    logits = models.logits(params, CONFIG, out.tokens)
    score = functools.partial(losses.token_logp, **options)
    return jax.vmap(score)(logits, out.tokens)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=["whole", "top_k", "top_p", "min_p", "all"],
)
def test_sampler_logp_is_the_scorers(temperature, cut, params):
    out = generate(params, temperature=temperature, **cut)
    again = logp_of(params, out, temperature=temperature, **cut)
    gap = np.where(out.sampled, np.asarray(again) - np.asarray(out.logp), 0)
    assert np.abs(gap).max() < 1e-4


def test_off_values_sample_the_whole_distribution_and_are_not_greedy(params):
    out = generate(params, num_samples=16, top_k=0, top_p=1.0, min_p=0.0)
    new = np.asarray(out.tokens)[np.asarray(out.sampled)]
    assert len(set(new.tolist())) > 20


def test_temperature_zero_takes_the_likeliest_token(params):
    out = generate(params, temperature=0.0, stop_ids=[])
    tokens, sampled = np.asarray(out.tokens), np.asarray(out.sampled)
    logits = np.asarray(models.logits(params, CONFIG, out.tokens))
    best = logits[:, :-1].argmax(-1)
    assert (tokens[:, 1:] == best)[sampled[:, 1:]].all()
    assert (np.asarray(out.logp)[sampled] == 0).all()


def test_rows_are_prompt_then_completion_then_padding(params):
    out = generate(params)
    tokens, sampled = np.asarray(out.tokens), np.asarray(out.sampled)
    start, end = np.asarray(out.prompt_length), np.asarray(out.length)
    for row in range(len(tokens)):
        prompt = PROMPTS[row // 4]
        assert tokens[row, : len(prompt)].tolist() == prompt
        assert start[row] == len(prompt)
        drawn = np.flatnonzero(sampled[row])
        assert drawn.tolist() == list(range(start[row], end[row]))
        assert (tokens[row, end[row] :] == 0).all()
        assert (np.asarray(out.logp)[row][~sampled[row]] == 0).all()


def test_the_stop_token_is_kept_and_nothing_follows_it(params):
    out = generate(params, num_samples=32)
    tokens, sampled = np.asarray(out.tokens), np.asarray(out.sampled)
    ended = 0
    for row in range(len(tokens)):
        new = tokens[row][sampled[row]]
        stops = np.flatnonzero(np.isin(new, STOPS))
        truncated = bool(out.truncated[row])
        assert truncated == (stops.size == 0)
        if stops.size:
            assert stops.tolist() == [len(new) - 1]
            ended += 1
    assert ended > 5


def test_a_stop_at_the_limit_is_not_a_truncation(params):
    out = generate(params, num_samples=64, max_new_tokens=1)
    last = np.asarray(out.tokens)[np.asarray(out.sampled)]
    assert (np.asarray(out.truncated) == ~np.isin(last, STOPS)).all()


def test_padding_with_a_stop_id_in_the_prompt_changes_nothing(params):
    # Prompts that hold stop ids, and padding equal to one, do not end a sequence.
    out = generate(params, [[5, 6], [7, 7, 7]], stop_ids=[0, 5, 7])
    assert (np.asarray(out.length) > np.asarray(out.prompt_length)).all()


def test_two_seeds_and_two_members_of_a_group_differ(params):
    one, two = generate(params, num_samples=8), generate(params, num_samples=8, seed=1)
    assert (np.asarray(one.tokens) != np.asarray(two.tokens)).any(1).mean() > 0.8
    for group in np.asarray(one.tokens).reshape(3, 8, -1):
        assert len({row.tobytes() for row in group}) >= 7


def test_the_same_key_draws_the_same(params):
    one, two = generate(params), generate(params)
    np.testing.assert_array_equal(one.tokens, two.tokens)
    np.testing.assert_array_equal(one.logp, two.logp)


def test_a_sequence_depends_on_neither_its_neighbours_nor_the_group_size(params):
    whole = generate(params, num_samples=4)
    fewer = generate(params, PROMPTS[:1], num_samples=2)
    width = fewer.tokens.shape[1]
    np.testing.assert_array_equal(whole.tokens[:2, :width], fewer.tokens)
    np.testing.assert_allclose(whole.logp[:2, :width], fewer.logp, atol=1e-5)


def test_other_options_and_prompts_of_one_shape_compile_nothing(params):
    generate(params)
    watch = Watch()
    try:
        generate(params, [[1], [2, 3], [4, 5, 6, 7, 8]], temperature=0.5, top_p=0.9)
        generate(params, top_k=3, stop_ids=list(range(6)), seed=3)
        assert watch.take()[0] == 0
    finally:
        watch.close()


def test_weights_may_lie_elsewhere_from_one_call_to_the_next(params):
    here = generate(params)
    mesh = sharding.make_mesh(data=2, fsdp=2)
    there = jax.device_put(params, jax.devices()[1])
    spread = jax.device_put(params, models.shardings(CONFIG, mesh))
    for placed in (there, spread, params):
        out = generate(placed)
        np.testing.assert_array_equal(out.tokens, here.tokens)
        np.testing.assert_allclose(out.logp, here.logp, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompts": []}, "no prompt"),
        ({"prompts": [[97]]}, "token id 97 is none of the model's 97"),
        ({"prompts": [[-1]]}, "token id -1"),
        ({"max_new_tokens": 10**6}, "max_new_tokens=1000000 exceed"),
        ({"prompts": [[1], []]}, "empty"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"min_p": 1.0}, "min_p=1.0"),
        ({"top_k": -1}, "top_k=-1"),
    ],
)
def test_options_without_meaning_are_refused_by_name(options, said, params):
    with pytest.raises(ValueError, match=said):
        generate(params, **options)


def test_prompts_may_be_arrays():
    whole = np.array([[1, 2, 3], [4, 5, 6]])
    for given in (whole, list(whole), [jnp.asarray(row) for row in whole]):
        assert rollout.as_ids(given) == [[1, 2, 3], [4, 5, 6]]
    assert rollout.as_ids([[1], []]) == [[1], []]


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ([[1], "hello"], "prompt 1 is 'hello'; a prompt is a list of token ids"),
        ([1, 2], "prompt 0 is '1'"),
        ([[0.5]], "encode text with a tokenizer"),
    ],
)
def test_what_is_no_prompt_is_refused(prompts, said):
    with pytest.raises(ValueError, match=said):
        rollout.as_ids(prompts)


def test_logits_that_are_not_finite_stop_at_once(params):
    broken = params | {"head": params["head"].at[0, 3].set(jnp.nan)}
    with pytest.raises(FloatingPointError, match="not finite"):
        generate(broken)


def test_the_cache_gives_what_a_whole_forward_gives(params):
    """Greedy ids by the cache are those of recomputing the sequence at each step."""
    out = generate(params, [[3, 1, 4, 1]], num_samples=1, temperature=0.0, stop_ids=[])
    ids = [3, 1, 4, 1]
    for _ in range(12):
        logits = models.logits(params, CONFIG, jnp.asarray([ids]))
        ids.append(int(logits[0, -1].argmax()))
    assert np.asarray(out.tokens)[0].tolist() == ids
