"""How many programs this process compiled or read from a cache, and for how long.

Seconds spent tracing, lowering and compiling are charged to `compile`, outside the
matched budget, so that a run is not dearer for being the first of its shape. A program
read from the persistent cache counts like one that was compiled, and its reading is
charged alike: that a program is first seen late is a fault whether or not an earlier
process has met it.
"""

import time
from collections.abc import Callable

import jax

_COUNTED = "/jax/core/compile/backend_compile_duration"
_TIMED = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    _COUNTED,
}


class Watch:
    """Listens to JAX's own measurements from its making until `close`."""

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        """Starts to listen.

        Args:
          now: a monotonic clock in seconds.
        """
        self._now = now
        self._count = 0
        self._spans: list[tuple[float, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event not in _TIMED:
            return
        self._count += event == _COUNTED
        end = self._now()
        start = end - duration_secs
        # Tracing nests: an outer span ends after, and swallows, the ones inside it.
        while self._spans and self._spans[-1][0] >= start:
            self._spans.pop()
        if self._spans and self._spans[-1][1] > start:
            start = self._spans[-1][1]
        self._spans.append((start, end))

    def take(self) -> tuple[int, float]:
        """Returns programs compiled or read, and seconds spent since the last call."""
        count = self._count
        seconds = sum((end - start for start, end in self._spans), 0.0)
        self._count, self._spans = 0, []
        return count, seconds

    def close(self) -> None:
        """Stops listening."""
        jax.monitoring.unregister_event_duration_listener(self._heard)
