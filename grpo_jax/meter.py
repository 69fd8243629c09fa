"""The services: the only way to the engine, and every call is on the ledger.

A service names its phase, fences the devices, and charges tokens, device-seconds and
model FLOPs before it returns; what passes between two calls is charged to `host`,
what XLA spends on compiling to `compile`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from budgets import flops
from budgets.clock import Clock
from budgets.labels import Labels
from budgets.ledger import Cost, Ledger, Phase
from grpo_jax import ahead, rollout, scoring
from grpo_jax.base import (
    Feedback,
    Forks,
    Functions,
    Key,
    Problem,
    Rollout,
    Services,
    Verdict,
    Weights,
)
from grpo_jax.compilations import Watch
from grpo_jax.requests import cost_of
from grpo_jax.resident import Resident, Sampler


class Metered(NamedTuple):
    """A model whose use is charged: its functions, and the shape they cost by."""

    functions: Functions
    shape: flops.ModelShape


class Sampled(NamedTuple):
    """One call of `sample`, and the judgement of it if there was one."""

    phase: Phase
    rollout: Rollout
    prompts: Sequence[Problem] = ()
    feedback: Feedback | None = None


class Meter:
    """Charges a run's work to its ledger, and counts what the metrics report."""

    def __init__(
        self,
        *,
        models: dict[str, Metered],
        ledger: Ledger,
        clock: Clock,
        watch: Watch,
        labels: Labels,
        verify: Callable[[str, Problem], Verdict],
        decode: Callable[[np.ndarray, np.ndarray], list[str]],
        temperature: float = 1.0,
        microbatches: int = 0,
        row_sharding: NamedSharding | None = None,
        stage: str = "train",
        remembers: bool = False,
    ):
        """Starts with an empty update.

        Args:
          models: by role: `policy`, `teacher`, `reference`.
          ledger: receives every charge.
          clock: measures device-seconds.
          watch: counts compilations.
          labels: which ids were seen and verified.
          verify: grades one completion's text.
          decode: `(tokens[B, T], sampled[B, T]) -> B texts`.
          temperature: of the policy, for scores.
          microbatches: of scores, see `packing.layouts`, as for `row_sharding`.
          row_sharding: how sequences lie on the mesh.
          stage: name of the stage in the ledger.
          remembers: keeps in `sampled` what an update sampled, in any phase.
        """
        self._models = models
        self._ledger = ledger
        self._clock = clock
        self._watch = watch
        self._verify = verify
        self._decode = decode
        self._packed = ahead.Programs(microbatches, row_sharding)
        self._score = jax.jit(
            functools.partial(scoring.score, temperature=temperature),
            static_argnames=("functions", "want", "k"),
        )
        self.labels = labels
        self.stage = stage
        self._remembers = remembers
        self.sampled: list[Sampled] = []
        self.update = 0
        self.compilations = 0
        self.refilled_forks = 0
        self._slot_steps = self._slot_tokens = 0
        self._residents: dict[tuple[Functions, int], Resident] = {}
        self.seconds: dict[str, float] = {}
        self._between = Phase.HOST

    def begin(self, update: int, *, between: Phase = Phase.HOST) -> None:
        """Names the update that the next charges belong to.

        Args:
          update: its number.
          between: the phase of the time between two services: `host`, or that of an
            evaluation or a pretraining, whose host time is outside the budget too.
        """
        self.update = update
        self._between = between
        self.compilations = self.refilled_forks = 0
        self._slot_steps = self._slot_tokens = 0
        self.seconds = {}
        self.sampled = []

    def slot_utilisation(self) -> float | None:
        """Sampled tokens over slots times decode steps; None if nothing was sampled."""
        return self._slot_tokens / self._slot_steps if self._slot_steps else None

    def ends_on_sampling(self) -> bool:
        """Whether the sampling just charged passed the budget that ends the run."""
        return self._ledger.ends_on_sampling(self.update)

    def close(self) -> bool:
        """Charges the host's time up to here; True once the run is over."""
        self.idle()
        return self._ledger.ended(self.update)

    def idle(self) -> None:
        """Charges the time since the last fence as nobody's work."""
        self.charge(self._between, Cost(), role="host")

    def charge(
        self, phase: Phase, cost: Cost, *, done: object = None, role: str = "policy"
    ) -> None:
        """Fences `done` and charges `cost` with the device-seconds since the last.

        Args:
          phase: what the work was.
          cost: all but the seconds.
          done: arrays to wait for.
          role: whose weights did the work.
        """
        seconds = self._clock.lap(done)
        count, compiling = self._watch.take()
        compiling = min(compiling * self._clock.devices, seconds) if count else 0.0
        self.compilations += count
        for name, used in ((Phase.COMPILE, compiling), (phase, seconds - compiling)):
            self.seconds[name.value] = self.seconds.get(name.value, 0.0) + used
        if count:
            spent = Cost(device_seconds=compiling)
            self._ledger.charge(self.update, self.stage, role, Phase.COMPILE, spent)
        timed = cost + Cost(device_seconds=seconds - compiling)
        self._ledger.charge(self.update, self.stage, role, phase, timed)

    def skip(self) -> float:
        """Returns the device-seconds since the last fence, charging nobody."""
        self._watch.take()
        return self._clock.lap()

    def services(self, sampler: Sampler) -> Services:
        """Returns the services that sample as `sampler` says."""
        return Services(
            functools.partial(self._sample, sampler), self._scored, self._verified
        )

    def _sample(
        self,
        sampler: Sampler,
        weights: Weights,
        requests: Sequence[Problem] | Forks,
        *,
        num_samples: int,
        phase: Phase,
        key: Key,
        keep: bool = False,
        first: int = 0,
    ) -> Rollout:
        self.idle()
        model = self._models[weights.role]
        held = self._resident(model.functions, sampler)
        fresh, parents = 0, None
        if isinstance(requests, Forks):
            asked, parents = held.forks(
                requests, num_samples=num_samples, first=first, params=weights.params
            )
            self.refilled_forks += sum(
                r.parent is None and r.limit > 0 for r in asked[::num_samples]
            )
        else:
            asked = rollout.of_prompts(
                [problem.prompt for problem in requests],
                num_samples=num_samples,
                limit=sampler.max_new_tokens,
                first=first,
            )
            if phase != Phase.EVAL:
                fresh = self.labels.see(problem.id for problem in requests)
        out, steps = held.sample(weights.params, asked, key, parents=parents, keep=keep)
        cost = cost_of(model.shape, asked, out, num_samples)
        self._slot_steps += steps
        self._slot_tokens += cost.generated
        self.charge(phase, cost + Cost(prompts=fresh), role=weights.role)
        if self._remembers and phase != Phase.EVAL:
            self.sampled.append(Sampled(phase, out))
        return out

    def _resident(self, functions: Functions, sampler: Sampler) -> Resident:
        name = functions, id(sampler)
        if name not in self._residents:
            self._residents[name] = Resident(functions, sampler)
        return self._residents[name]

    def release(self) -> None:
        """Frees what sampling holds on the devices, before training or at an end."""
        for held in self._residents.values():
            held.release()

    def _scored(
        self,
        weights: Weights,
        rollout: Rollout,
        *,
        phase: Phase,
        want: str = "logp",
        k: int = 0,
    ) -> Any:
        scoring.check(want, k)
        self.idle()
        model = self._models[weights.role]
        lengths = np.asarray(rollout.length)
        size, columns = rollout.tokens.shape
        given = weights.params, self._packed.place(rollout, size)
        how = {"functions": model.functions, "want": want, "k": k}
        out, _ = self._packed.run(self._score, lengths, columns, *given, **how)
        read = int(np.asarray(rollout.sampled).sum())
        cost = Cost(
            prefilled=int(lengths.sum()),
            sequences=size,
            flops=flops.score(model.shape, lengths.tolist(), heads=read),
        )
        self.charge(phase, cost, done=out, role=weights.role)
        return out

    def _verified(
        self, rollout: Rollout, prompts: Sequence[Problem], *, phase: Phase
    ) -> Feedback:
        texts = self._decode(np.asarray(rollout.tokens), np.asarray(rollout.sampled))
        group = len(texts) // len(prompts)
        verdicts = [
            self._verify(text, prompts[i // group]) for i, text in enumerate(texts)
        ]
        ids = {problem.id for problem in prompts}
        new = 0 if phase == Phase.EVAL else self.labels.label(ids)
        # Grading runs on the host while the devices wait: its seconds are host time.
        self.idle()
        self._ledger.charge(
            self.update,
            self.stage,
            "verifier",
            phase,
            Cost(labels=new, verifier_calls=len(texts)),
        )
        feedback = Feedback(
            reward=np.array([v.correct for v in verdicts], np.float32),
            error=np.array([v.error is not None for v in verdicts]),
            answers=tuple(v.extracted for v in verdicts),
            texts=tuple(texts),
        )
        for i, one in enumerate(self.sampled):
            if one.rollout.tokens is rollout.tokens:
                self.sampled[i] = one._replace(prompts=prompts, feedback=feedback)
        return feedback
