"""Pytrees that flow between stages, the method contract, and the axis names.

Axes: P prompts in an update, G samples per prompt, B = P * G sequences in
prompt-major order, T token positions, S reasoning steps, V vocabulary, L layers,
D width, H heads, K key-value heads. Batch axes lead.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, PyTree

from budgets.ledger import Phase

Params: TypeAlias = PyTree[Array]
Key: TypeAlias = jax.Array  # one typed key, shape []


class Ratio(NamedTuple):
    """A mean kept as its two sums, so that it adds exactly across micro-batches."""

    total: jax.Array
    weight: jax.Array


Metrics: TypeAlias = dict[str, Ratio]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One prompt with its gold answer.

    Attributes:
      id: stable identity; the same text has the same id in every run.
      question: what is asked, before any template.
      answer: the gold answer as text, given to the verifier.
      prompt: token ids of the templated question; empty until it is encoded.
      solution: a worked solution to pretrain on; empty where there is none.
      level: difficulty or level as text; empty where there is none.
      subject: field of mathematics, or another kind; empty where there is none.
    """

    id: str
    question: str
    answer: str
    prompt: tuple[int, ...] = ()
    solution: str = ""
    level: str = ""
    subject: str = ""


class Verdict(NamedTuple):
    """What a grader says: `error` is a fault of the grader, not a wrong answer."""

    correct: bool
    extracted: str | None
    error: str | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """Sampled sequences, right-padded, and what the sampler knew when it drew them.

    Attributes:
      tokens: `[B, T] int32` prompt from column 0, then completion, then padding.
      sampled: `[B, T] bool` True where the policy drew the token, stop token
        included; never on the prompt, never on padding.
      logp: `[B, T] float32` log-probability of `tokens` under the distribution
        really sampled, in nats; zero where not `sampled`.
      prompt_length: `[B] int32` tokens of the prompt.
      length: `[B] int32` tokens of prompt and completion together.
      truncated: `[B] bool` True where the length limit ended the sequence.
    """

    tokens: jax.Array
    sampled: jax.Array
    logp: jax.Array
    prompt_length: jax.Array
    length: jax.Array
    truncated: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """A rollout with a credit for each token, as the objective reads it.

    Attributes:
      rollout: the sequences.
      advantage: `[B, T] float32` credit per token; read where `mask`.
      mask: `[B, T] bool` True where the loss reads a token: `rollout.sampled`,
        less what the method leaves out.
      targets: what another model says of the tokens: a dict of `[B, ...]` arrays.
      packed: a `packing.Place`, where the sequences lie in packed rows, for the model's
        forward pass; None reads them one to a row.
    """

    rollout: Rollout
    advantage: jax.Array
    mask: jax.Array
    targets: dict[str, jax.Array]
    packed: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feedback:
    """What a verifier says about a rollout; lives on the host.

    Attributes:
      reward: `[B] float32` outcome of each completion.
      error: `[B] bool` True where the grader failed; its reward is 0 and is no
        judgement.
      answers: the extracted answer of each completion, None where none was found.
      texts: what was graded; empty where nothing was.
      num_steps: `[B] int` steps that credit was given to; None where none was.
    """

    reward: np.ndarray
    error: np.ndarray
    answers: tuple[str | None, ...]
    texts: tuple[str, ...] = ()
    num_steps: np.ndarray | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
    """What an optimiser step reads and replaces.

    Attributes:
      step: `[] int32` optimiser steps taken.
      params: fp32 master weights.
      opt_state: state of the gradient transformation.
    """

    step: jax.Array
    params: Params
    opt_state: PyTree


class Functions(NamedTuple):
    """A language model as pure functions; the rest of the code sees nothing else.

    Attributes:
      hidden: `(params, tokens[B, T], positions[B, T], segments[B, T]) -> [B, T, D]`
        final hidden states, causal within a segment; segment 0 is padding.
      unembed: `params -> [D, V]`.
      prefill: `(params, tokens[B, T], length[B], cache_length) -> ([B, D], cache)`
        hidden state of the last real token of each row, and a cache with room for
        `cache_length` positions. Every leaf of a cache leads with B.
      decode: `(params, tokens[B], positions[B], cache) -> ([B, D], cache)` one token
        per row, written at its position. A row whose position lies beyond its cache
        is idle: it writes nothing, and its hidden state is not read.
      decode_layout: `params -> params` as `prefill` and `decode` read them.
      decode_alike: `decode` with keywords `group` and `columns`, for rows of which
        every `group` neighbours have the same first `columns` positions, so that these
        may be read once for all; None if the model has no use for it.
      cache_axes: returns logical names of the first axes of every leaf of a cache;
        None is an axis that is cut nowhere.
    """

    hidden: Callable[..., jax.Array]
    unembed: Callable[[Params], jax.Array]
    prefill: Callable[..., tuple[jax.Array, PyTree]]
    decode: Callable[..., tuple[jax.Array, PyTree]]
    decode_layout: Callable[[Params], Params]
    decode_alike: Callable[..., tuple[jax.Array, PyTree]] | None = None
    cache_axes: Callable[[], tuple[str | None, ...]] = lambda: ("batch",)


class Weights(NamedTuple):
    """Parameters and whose they are: `policy`, `teacher` or `reference`."""

    params: Params
    role: str = "policy"


class Forks(NamedTuple):
    """Continuations of a rollout: row `rows[i]` kept up to `positions[i]` tokens."""

    rollout: Rollout
    rows: Sequence[int]
    positions: Sequence[int]


class Picked(NamedTuple):
    """The prompts of an update, with a rollout if selecting made one to reuse."""

    prompts: tuple[Problem, ...]
    rollout: Rollout | None = None


@runtime_checkable
class Sample(Protocol):
    """Draws completions; on the ledger before it returns.

    `first` is the number of the first request in every key, so that a set sampled in
    parts draws what it draws whole; `keep` announces forks of the rollout.
    """

    def __call__(
        self,
        weights: Weights,
        requests: Sequence[Problem] | Forks,
        *,
        num_samples: int,
        phase: Phase,
        key: Key,
        keep: bool = False,
        first: int = 0,
    ) -> Rollout:
        """Returns one row per request and sample, in their order."""
        ...


@runtime_checkable
class Score(Protocol):
    """Reads a rollout with other weights: a prefill, no generation.

    Entry t is of token t, read from the state before it: `logp` is `[B, T]`, `hidden`
    `[B, T, D]` that state, `top_k` a `scoring.TopK`. See `scoring.score`.
    """

    def __call__(
        self,
        weights: Weights,
        rollout: Rollout,
        *,
        phase: Phase,
        want: str = "logp",
        k: int = 0,
    ) -> Any:
        """Returns what `want` names."""
        ...


@runtime_checkable
class Verify(Protocol):
    """Grades completions; counts verifier calls and labelled ids."""

    def __call__(
        self, rollout: Rollout, prompts: Sequence[Problem], *, phase: Phase
    ) -> Feedback:
        """Returns a judgement per row; rows are prompt-major over `prompts`."""
        ...


class Services(NamedTuple):
    """Everything that costs compute; a method reaches the engine only through it."""

    sample: Sample
    score: Score
    verify: Verify


@runtime_checkable
class Pool(Protocol):
    """The labelled prompts, as a stream whose position a checkpoint holds."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def place(self, name: str) -> int:
        """Returns the number of the problem with an id, from 0."""
        ...

    def draw(self, count: int) -> tuple[Problem, ...]:
        """Returns the next `count` problems of the endless shuffled stream."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Returns the position as JSON."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a position that `get_state` returned."""
        ...


Selection: TypeAlias = PyTree
Objective: TypeAlias = Callable[[Params, Batch, PyTree], tuple[Ratio, Metrics]]


class Method(NamedTuple):
    """A training method: a value made of pure functions.

    Attributes:
      init: `pool -> selection`, a pytree, `()` if stateless; in the checkpoint.
      select: `(services, params, selection, pool, key) -> (Picked, selection)`.
      generate: `(services, params, frozen, prompts, key) -> Rollout`.
      credit: `(services, params, frozen, rollout, prompts, key) -> (Batch, Feedback)`.
      observe: `(selection, prompts, feedback) -> selection`.
      objective: `(params, batch, frozen) -> (Ratio, metrics)`, to be minimised.
      frozen: weights read and never updated: an argument of every call, since
        arrays closed over by a jitted function become constants of its program.
    """

    init: Callable[[Pool], Selection]
    select: Callable[..., tuple[Picked, Selection]]
    generate: Callable[..., Rollout]
    credit: Callable[..., tuple[Batch, Feedback]]
    observe: Callable[..., Selection]
    objective: Objective
    frozen: PyTree = ()
