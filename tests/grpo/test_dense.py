"""What dense GRPO asks of its services, and the credit that it makes of the answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from budgets.ledger import Phase
from grpo_jax import credit, keys, methods, steps
from grpo_jax.base import Feedback, Forks, Problem, Rollout, Services
from tests import helpers

LETTER, LINE, END, OTHER, PROMPT = 0, 1, 2, 3, 4
COLUMNS, GROUP = 8, 2


def decode(ids):
    return "".join("a\n?b"[i] for i in ids if i != END)


def laid(rows):
    """A rollout of (prompt, completion) pairs."""
    tokens = np.full((len(rows), COLUMNS), PROMPT, np.int32)
    start = np.array([len(p) for p, _ in rows], np.int32)
    length = np.array([len(p) + len(c) for p, c in rows], np.int32)
    for row, (prompt, completion) in zip(tokens, rows, strict=True):
        ids = [*prompt, *completion]
        row[: len(ids)] = ids
    column = np.arange(COLUMNS)[None]
    return Rollout(
        tokens=jnp.asarray(tokens),
        sampled=jnp.asarray((column >= start[:, None]) & (column < length[:, None])),
        logp=jnp.zeros(tokens.shape),
        prompt_length=jnp.asarray(start),
        length=jnp.asarray(length),
        truncated=jnp.zeros(len(rows), bool),
    )


P = [PROMPT, PROMPT]
ROWS = [
    (P, [LETTER, LINE, LETTER, END]),  # the first lines of rows 0 and 1 are one state
    (P, [LETTER, LINE, OTHER, LINE, END]),
    (P, [LETTER, END]),  # no boundary
    (P, [LETTER, LINE, OTHER, END]),  # the ids of row 0 and 1, of another problem
]
PROBLEMS = tuple(
    Problem(id=name, question="", answer="", prompt=tuple(P)) for name in ("x", "y")
)


class Scripted:
    """Each state is continued by the letter in sample 0, and the other in sample 1."""

    def __init__(self):
        self.calls = []

    def sample(self, weights, requests, *, num_samples, phase, key, keep=False):
        if not isinstance(requests, Forks):
            self.calls.append((phase, "prompts", num_samples, keep))
            if phase == Phase.ROLLOUT:
                return laid(ROWS)
            return laid([(p.prompt, [LETTER, END]) for p in requests for _ in range(4)])
        tokens = np.asarray(requests.rollout.tokens)
        pairs = list(zip(requests.rows, requests.positions, strict=True))
        self.calls.append((phase, pairs, num_samples, keep))
        return laid(
            [
                (tokens[row, :at].tolist(), [(LETTER, OTHER)[s % 2], END])
                for row, at in pairs
                for s in range(num_samples)
            ]
        )

    def verify(self, rollout, prompts, *, phase):
        """Right if the whole answer has more of `b` than of `a`."""
        tokens, sampled = np.asarray(rollout.tokens), np.asarray(rollout.sampled)
        texts = [
            decode(row[drawn].tolist())
            for row, drawn in zip(tokens, sampled, strict=True)
        ]
        self.calls.append((phase, "verify", [p.id for p in prompts], texts))
        reward = np.array([t.count("b") >= t.count("a") for t in texts], np.float32)
        return Feedback(
            reward=reward,
            error=np.zeros(len(texts), bool),
            answers=(None,) * len(texts),
            texts=tuple(texts),
        )

    def score(self, *args, **options):
        raise AssertionError("nothing is scored without a reference")

    def bound(self):
        return Services(self.sample, self.score, self.verify)


def made(**options):
    defaults = {
        "group_size": GROUP,
        "prompts_per_update": 2,
        "segment": steps.segmenter(decode, max_steps=4, min_chars=1),
        "max_steps": 4,
        "num_continuations": 2,
        "normalise": credit.as_they_are,
    }
    return methods.dense(helpers.TABLE, **(defaults | options))


def credited(method):
    services, key = Scripted(), keys.at(keys.root(0), keys.Stream.CREDIT, 1)
    bound = services.bound()
    rollout = method.generate(bound, {}, {}, PROBLEMS, keys.root(1))
    batch, feedback = method.credit(bound, {}, {}, rollout, PROBLEMS, key)
    return services.calls, batch, feedback


def test_each_state_is_continued_once_and_graded_as_a_whole_answer():
    calls, _, feedback = credited(made())
    assert calls[0] == (Phase.ROLLOUT, "prompts", GROUP, True)  # caches are kept
    assert calls[1][:2] == (Phase.ROLLOUT, "verify")
    # Row 0 and 1 share "a\n"; row 1 ends a second line; row 3 is of another problem.
    assert calls[2] == (Phase.CONTINUATION, [(0, 4), (1, 6), (3, 4)], 2, False)
    phase, _, ids, texts = calls[3]
    assert (phase, ids) == (Phase.CONTINUATION, ["x", "x", "y"])
    assert texts == ["a\na", "a\nb", "a\nb\na", "a\nb\nb", "a\na", "a\nb"]
    np.testing.assert_array_equal(feedback.num_steps, [2, 3, 1, 2])
    assert len(calls) == 4


def test_advantages_are_differences_of_values_worked_by_hand():
    _, batch, feedback = credited(made())
    # Rewards: "aa" 0, "ab" 1 | "a" 0, "ab" 1; first values are the other's reward.
    np.testing.assert_array_equal(feedback.reward, [0, 1, 0, 1])
    # V("a\n") = (0 + 1) / 2; V("a\nb\n") = (0 + 1) / 2: "aba" has more a than b.
    np.testing.assert_allclose(
        batch.advantage,
        [
            [0, 0, -0.5, -0.5, -0.5, -0.5, 0, 0],
            [0, 0, 0.5, 0.5, 0, 0, 0.5, 0],
            [0, 0, -1, -1, 0, 0, 0, 0],
            [0, 0, 0.5, 0.5, 0.5, 0.5, 0, 0],
        ],
    )
    np.testing.assert_array_equal(batch.mask, batch.rollout.sampled)


@pytest.mark.parametrize("max_steps", [2, 3, 4, 6])
def test_the_steps_of_every_row_add_up_to_its_outcome_minus_its_first_value(max_steps):
    segment = steps.segmenter(decode, max_steps=max_steps, min_chars=1)
    _, batch, feedback = credited(made(segment=segment, max_steps=max_steps))
    first = [1, 0, 1, 0]  # the other of each group
    for row, (prompt, completion) in enumerate(ROWS):
        edges = [0, *segment(completion)]
        tokens = np.asarray(batch.advantage)[row, len(prompt) :]
        total = sum(float(tokens[edge]) for edge in edges)
        np.testing.assert_allclose(total, feedback.reward[row] - first[row], atol=1e-6)


def test_a_fresh_first_value_is_sampled_apart_and_charged_as_continuations():
    calls, batch, _ = credited(made(fresh_baseline=4))
    assert calls[4] == (Phase.CONTINUATION, "prompts", 4, False)
    assert calls[5][:3] == (Phase.CONTINUATION, "verify", ["x", "y"])
    # All fresh samples are "a" and wrong: the first value is 0.
    np.testing.assert_allclose(batch.advantage[1, 2:7], [0.5, 0.5, 0, 0, 0.5])


def test_the_mixed_variant_weighs_the_groups_advantage_with_the_steps():
    _, plain, _ = credited(made())
    _, mixed, _ = credited(made(outcome_share=0.25, compare=credit.centred))
    outcome = np.array([-0.5, 0.5, -0.5, 0.5])[:, None]
    want = np.where(plain.mask, 0.25 * outcome + 0.75 * np.asarray(plain.advantage), 0)
    np.testing.assert_allclose(mixed.advantage, want, atol=1e-6)


def test_scaled_advantages_are_in_spreads_of_the_real_steps():
    _, plain, _ = credited(made())
    _, scaled, _ = credited(made(normalise=credit.in_spreads))
    real = [-0.5, -0.5, 0.5, 0, 0.5, -1, 0.5, 0.5]
    np.testing.assert_allclose(
        scaled.advantage, np.asarray(plain.advantage) / np.std(real), rtol=1e-4
    )


def test_answers_of_one_step_are_continued_nowhere():
    calls, batch, feedback = credited(made(segment=lambda ids: []))
    assert [call[0] for call in calls] == [Phase.ROLLOUT, Phase.ROLLOUT]
    np.testing.assert_array_equal(feedback.num_steps, [1, 1, 1, 1])
    # What is left is the outcome against the others of its group.
    alone = jax.vmap(credit.leave_one_out)(jnp.array([[0.0, 1], [0, 1]])).reshape(-1, 1)
    np.testing.assert_allclose(batch.advantage, np.where(batch.mask, alone, 0))
