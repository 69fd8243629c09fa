"""Policies small enough to enumerate, so that expectations are exact."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import losses, objectives
from grpo_jax.base import Batch, Feedback, Functions, Problem, Rollout, Services

VOCAB, LENGTH, BOS, EOS, PAD = 3, 3, 0, 2, 0  # padding looks like a real token


def table_policy(params, tokens):
    """A bigram policy's logits: they depend on the current token alone."""
    return params["table"][tokens]


def _hidden(params, tokens, positions, segments):
    del positions, segments
    return params["table"][tokens]


def _prefill(params, tokens, length, cache_length):
    last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)[:, 0]
    return params["table"][last], jnp.zeros((tokens.shape[0], cache_length))


# The bigram policy in a transformer's place.
TABLE = Functions(
    hidden=_hidden,
    unembed=lambda params: jnp.eye(params["table"].shape[1]),
    prefill=_prefill,
    decode=lambda params, tokens, positions, cache: (params["table"][tokens], cache),
    decode_layout=lambda params: params,
)


def random_table(key, scale=1.0):
    return {"table": scale * jax.random.normal(key, (VOCAB, VOCAB))}


def all_sequences():
    """Every completion of LENGTH tokens after BOS: `[V**LENGTH, LENGTH + 1]`."""
    tails = itertools.product(range(VOCAB), repeat=LENGTH)
    return np.array([(BOS, *tail) for tail in tails], np.int32)


def all_rollouts(params, *, temperature=1.0, stop=True):
    """Every completion the policy can sample, once each, with its log-probability.

    With `stop` a completion ends at its first EOS, so lengths differ.
    """
    tokens = all_sequences()
    ended = np.zeros(tokens.shape, bool)
    if stop:
        hit = (tokens == EOS) & (np.arange(LENGTH + 1) > 0)
        ended[:, 1:] = np.cumsum(hit, axis=1)[:, :-1] > 0
    tokens = np.unique(np.where(ended, -1, tokens), axis=0)
    sampled = (tokens >= 0) & (np.arange(LENGTH + 1) > 0)
    return teacher_forced(params, tokens, sampled, temperature=temperature)


@functools.partial(jax.jit, static_argnames="temperature")
def _logp(params, tokens, temperature):
    return jax.vmap(lambda x, t: losses.token_logp(x, t, temperature=temperature))(
        table_policy(params, tokens), tokens
    )


def teacher_forced(params, tokens, sampled, *, temperature=1.0):
    """A rollout of given tokens (-1 is padding), each row with one prompt token."""
    length = (tokens >= 0).sum(1).astype(np.int32)
    last = np.take_along_axis(tokens, length[:, None] - 1, axis=1)[:, 0]
    tokens = jnp.asarray(np.where(tokens < 0, PAD, tokens), jnp.int32)
    logp = _logp(params, tokens, temperature)
    return Rollout(
        tokens=tokens,
        sampled=jnp.asarray(sampled),
        logp=jnp.where(sampled, logp, 0.0),
        prompt_length=jnp.ones(len(length), jnp.int32),
        length=jnp.asarray(length),
        truncated=jnp.asarray(last != EOS),
    )


def probability(rollout):
    return jnp.exp(rollout.logp.sum(1))


def expectation(prob):
    """A denominator that weighs each sequence's sum by its probability."""

    def reduce(x, mask):
        total = (prob * jnp.where(mask, x, 0.0).sum(1)).sum()
        return losses.Ratio(total, jnp.ones(()))

    return reduce


def make_batch(rollout, advantage, **targets):
    return Batch(
        rollout=rollout, advantage=advantage, mask=rollout.sampled, targets=targets
    )


def reward(tokens):
    """An arbitrary function of the sequence with no structure to exploit."""
    return np.sin(np.asarray(tokens)[:, 1:] @ np.array([1.0, 2.7, 7.1])).astype(
        np.float32
    )


def trees_close(a, b, **tol):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tol), a, b)


def widen(tree, columns, fill=0):
    """Pads every `[B, T]` leaf on the right."""

    def pad(x):
        if x.ndim != 2:
            return x
        filler = jnp.full((x.shape[0], columns), fill).astype(x.dtype)
        return jnp.concatenate([x, filler], axis=1)

    return jax.tree.map(pad, tree)


@dataclasses.dataclass
class FakePool:
    """Problems 0, 1, 2, ... without end."""

    position: int = 0
    size: int = 1000

    def place(self, name):
        return int(name)

    def draw(self, count):
        first, self.position = self.position, self.position + count
        return tuple(
            Problem(id=str(i), question="", answer="", prompt=(BOS,))
            for i in range(first, self.position)
        )

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


@jax.jit
def _score(params, rollout):
    return objectives.read(TABLE, params, rollout, chunk_size=2)[0]


class FakeServices:
    """Services without an engine: a table policy, and a reward for each token 1."""

    def __init__(self):
        self.calls = []

    def sample(self, weights, requests, *, num_samples, phase, key, keep=False):
        self.calls.append(("sample", weights.role, phase, num_samples))
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        prob = np.asarray(jax.nn.softmax(weights.params["table"]), np.float64)
        rows = len(requests) * num_samples
        tokens = np.full((rows, LENGTH + 1), -1)
        tokens[:, 0] = BOS
        for row in tokens:
            for t in range(1, LENGTH + 1):
                p = prob[row[t - 1]]
                row[t] = rng.choice(VOCAB, p=p / p.sum())
                if row[t] == EOS:
                    break
        sampled = (tokens >= 0) & (np.arange(LENGTH + 1) > 0)
        return teacher_forced(weights.params, tokens, sampled)

    def score(self, weights, rollout, *, phase, want="logp"):
        self.calls.append(("score", weights.role, phase, want))
        return _score(weights.params, rollout)

    def verify(self, rollout, prompts, *, phase):
        self.calls.append(("verify", phase))
        tokens, sampled = np.asarray(rollout.tokens), np.asarray(rollout.sampled)
        paid = ((tokens == 1) & sampled).sum(1).astype(np.float32)
        return Feedback(
            reward=paid, error=np.zeros(len(paid), bool), answers=(None,) * len(paid)
        )

    def bound(self):
        return Services(self.sample, self.score, self.verify)
