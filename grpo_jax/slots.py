"""Continuous batching: which sequence decodes in which slot, and when.

A sequence that ends frees its slot at once for the next that waits. Prompts are
prefilled a batch at a time as slots ask for them, each once for all of its samples; a
fork copies the cache of the rollout it continues. What a sequence draws depends on
its own coordinates and tokens, never on its slot, its neighbours or the order here.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from grpo_jax.base import Params
from grpo_jax.decoding import Cache, Decoding, Occupied
from grpo_jax.engine import Engine
from grpo_jax.requests import Kept, Request, Result

PATIENCE = 1  # sequences that may end before slots are filled, where others wait


class _Waiting(NamedTuple):
    """A request whose prefix is in a cache: `row` of it, or of its shard's part."""

    request: Request
    source: Cache
    row: int
    whole: bool


def run(
    engine: Engine,
    layout: Params,
    requests: Sequence[Request],
    stop_ids: np.ndarray,
    how: Decoding,
    key: Array,
    *,
    cache: Cache | None = None,
    parents: Kept | None = None,
    keep: int = 0,
) -> Result:
    """Samples every request.

    Args:
      engine: the compiled programs.
      layout: of the parameters, by `engine.layout`.
      requests: what to sample, in any order; their rows are numbered from 0.
      stop_ids: any of these ends a sequence.
      how: temperature and truncation.
      key: consumed.
      cache: of an earlier call, consumed; whatever it holds, nothing of it is read.
      parents: caches that the requests with a parent continue.
      keep: caches of so many of the first rows are kept.
    """
    state = _Run(engine, layout, stop_ids, how, key)
    state.begin(requests, cache, parents, keep)
    return state.result()


class _Run:
    """The slots during one call."""

    def __init__(self, engine, layout, stop_ids, how, key):
        self.engine, self.layout = engine, layout
        self.stop_ids, self.how, self.key = np.asarray(stop_ids), how, key
        size, self.shards = engine.geometry.slots, engine.geometry.shards
        blank = lambda: np.zeros(size, np.int32)  # noqa: E731
        self.held = Occupied(
            token=blank(),
            length=blank(),
            limit=blank(),
            live=np.zeros(size, bool),
            prompt=blank(),
            sample=blank(),
        )
        self.owner: list[Request | None] = [None] * size
        self.tokens: dict[int, list[int]] = {}
        self.logp: dict[int, list[float]] = {}
        # Any shard may take a prompt; what continues a cache goes to its shard.
        self.shared: deque[_Waiting] = deque()
        self.own: list[deque[_Waiting]] = [deque() for _ in range(self.shards)]
        self.slot_steps = 0

    def begin(self, requests, cache, parents, keep):
        """Queues the requests, and makes room for what is kept of them."""
        self.cache = cache
        self.tokens = {r.row: [] for r in requests}
        self.logp = {r.row: [] for r in requests}
        self.keep, self.kept = min(keep, len(requests)), None
        if self.keep:
            capacity = -(-self.keep // self.shards) * self.shards
            # Few sizes, so that another number of rows rarely is another program.
            capacity = min(1 << (capacity - 1).bit_length(), max(keep, capacity))
            capacity = -(-capacity // self.shards) * self.shards
            self.kept = Kept(self.engine.blank(self.layout, capacity), {})
        wanted = [r for r in requests if r.limit > 0]
        # Forks that may become long go first, so that the slots end about together.
        forks = [r for r in wanted if r.parent is not None]
        for r in sorted(forks, key=lambda r: -r.limit):
            shard, row = parents.place[r.parent]
            self.own[shard].append(_Waiting(r, parents.cache, row, whole=False))
        self.batches = self._batches([r for r in wanted if r.parent is None])

    def result(self) -> Result:
        """Decodes until nothing waits and nothing is live."""
        self._fill()
        while self.held.live.any():
            waits = bool(self.shared or any(self.own) or self.batches)
            self._decode(PATIENCE if waits else self.engine.geometry.slots + 1)
            self._fill()
        return Result(self.tokens, self.logp, self.kept, self.cache, self.slot_steps)

    def _batches(self, requests: Sequence[Request]) -> deque[list[list[Request]]]:
        """Prefills: prompts of similar length, each with all of its samples."""
        groups: dict[tuple[int, ...], list[Request]] = {}
        for request in requests:
            groups.setdefault(tuple(request.prefix), []).append(request)
        ordered = [groups[prefix] for prefix in sorted(groups, key=len)]
        size = self.engine.geometry.rows
        return deque(ordered[i : i + size] for i in range(0, len(ordered), size))

    def _prefill(self) -> None:
        """Reads the next prompts; their samples wait for slots."""
        groups = self.batches.popleft()
        cache = self.engine.prefill(self.layout, [g[0].prefix for g in groups])
        for row, group in enumerate(groups):
            for request in group:
                waiting = _Waiting(request, cache, row, whole=True)
                if request.row < self.keep:
                    shard = request.row * self.shards // self.keep
                    self.own[shard].append(waiting)
                else:
                    self.shared.append(waiting)

    def _fill(self) -> None:
        """Gives free slots to what waits, in its order."""
        while True:
            taken = list(self._take())
            for whole, source, moves in _by_source(taken, self.shards):
                self.cache = self._moved(source, moves, whole)
            if self.held.live.all() or not self.batches:
                return
            self._prefill()

    def _moved(self, source: Cache, moves, whole: bool) -> Cache:
        """The slots' cache with rows of a source, or a new one made of them."""
        size = len(self.owner)
        if self.cache is None and whole:
            rows = np.zeros(size, np.int32)
            for shard, pairs in enumerate(moves):
                for of, to in pairs:
                    rows[shard * (size // self.shards) + to] = of
            return self.engine.spread(source, rows)
        cache = self.cache
        if cache is None:
            cache = self.engine.blank(self.layout, size)
        return self.engine.copy(cache, source, moves, whole_source=whole)

    def _take(self) -> Iterator[tuple[int, int, _Waiting]]:
        """Occupies free slots: shard, slot within it, and what it was given."""
        each = len(self.owner) // self.shards
        for slot in np.flatnonzero(~self.held.live).tolist():
            shard = slot // each
            queue = self.own[shard] or self.shared
            if queue:
                waiting = queue.popleft()
                self._occupy(slot, waiting.request)
                yield shard, slot % each, waiting

    def _occupy(self, slot: int, request: Request) -> None:
        length = len(request.prefix)
        values = (
            request.prefix[-1],
            length,
            length + request.limit,
            True,
            request.prompt,
            request.sample,
        )
        for array, value in zip(self.held, values, strict=True):
            array[slot] = value
        self.owner[slot] = request

    def _alike(self) -> int:
        """Positions that the live slots of each group share with its first."""
        group, most = self.engine.geometry.group, np.iinfo(np.int32).max
        for slot in np.flatnonzero(self.held.live).tolist():
            mine, first = self.owner[slot], self.owner[slot - slot % group]
            if first is None or mine is None or group == 1:
                return 0
            # The last token of a prefix is written by the first step of its rows.
            most = min(most, _common(mine.prefix, first.prefix))
        return most

    def _decode(self, patience: int) -> None:
        """Runs a chunk of steps and takes down what it drew and what ended."""
        held = self.held
        self.cache, drawn = self.engine.advance(
            self.layout,
            self.cache,
            held,
            self.stop_ids,
            self.how,
            self.key,
            patience=patience,
            alike=self._alike(),
        )
        self.slot_steps += int(drawn.steps) * len(self.owner)
        ended = []
        for slot in np.flatnonzero(held.live).tolist():
            owner, count = self.owner[slot], int(drawn.count[slot])
            if owner is None or not count:
                continue
            if not np.isfinite(drawn.logp[slot, :count]).all():
                raise FloatingPointError(
                    "the logits of a sampled token are not finite: the weights or the"
                    " hidden states of the model are not; look at them"
                )
            self.tokens[owner.row] += drawn.tokens[slot, :count].tolist()
            self.logp[owner.row] += drawn.logp[slot, :count].tolist()
            last = drawn.tokens[slot, count - 1]
            held.token[slot] = last
            held.length[slot] += count
            if held.length[slot] >= held.limit[slot] or last in self.stop_ids:
                held.live[slot] = False
                ended.append(slot)
        self._retain(ended)

    def _retain(self, ended: Sequence[int]) -> None:
        """Keeps the caches of the sequences that ended, where that was asked for."""
        if self.kept is None:
            return
        each = len(self.owner) // self.shards
        capacity = -(-self.keep // self.shards)
        moves: list[list[tuple[int, int]]] = [[] for _ in range(self.shards)]
        place = dict(self.kept.place)
        used = Counter(shard for shard, _ in place.values())
        for slot in ended:
            owner = self.owner[slot]
            if owner is not None and owner.row < self.keep:
                shard = slot // each
                row = used[shard]
                if row < capacity:
                    used[shard] += 1
                    place[owner.row] = shard, row
                    moves[shard].append((slot % each, row))
        if any(moves):
            cache = self.engine.copy(self.kept.cache, self.cache, moves)
            self.kept = Kept(cache, place)


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    """Length of the longest prefix that two sequences share."""
    if one is two:
        return len(one)
    pairs = enumerate(zip(one, two, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)))


def _by_source(
    taken: Sequence[tuple[int, int, _Waiting]], shards: int
) -> Iterator[tuple[bool, Cache, list[list[tuple[int, int]]]]]:
    """Moves `(of, to)` of each shard, for each cache that they come from."""
    sources = {id(waiting.source): waiting for _, _, waiting in taken}
    for name, first in sources.items():
        moves: list[list[tuple[int, int]]] = [[] for _ in range(shards)]
        for shard, slot, waiting in taken:
            if id(waiting.source) == name:
                moves[shard].append((waiting.row, slot))
        yield first.whole, first.source, moves
