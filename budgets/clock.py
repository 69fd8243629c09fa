"""Device-seconds between fences, and the drift of the machine under a run.

The fence is passed in, so this package needs no accelerator library: it takes what
work returned and comes back when the devices have finished it.
"""

import time
from collections.abc import Callable
from typing import Any

DRIFT_ALARM = 0.1  # share by which a fixed kernel may slow down or speed up in a run


class Clock:
    """Measures laps: wall seconds from fence to fence, times the devices held."""

    def __init__(
        self,
        fence: Callable[[Any], Any],
        *,
        devices: int = 1,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Starts the first lap."""
        self._fence = fence
        self.devices = devices
        self._now = now
        self._last = now()

    def lap(self, value: Any = None) -> float:
        """Returns the device-seconds since the last lap, once `value` is computed."""
        self._fence(value)
        last, self._last = self._last, self._now()
        return (self._last - last) * self.devices


def drift(before: float, after: float) -> float:
    """Returns the change of a fixed kernel's time over a run, as a share of `before`.

    Args:
      before: seconds of the kernel before the run, positive.
      after: seconds of the same kernel after it.
    """
    if before <= 0:
        raise ValueError(f"drift: {before=} must be positive seconds")
    return after / before - 1


def drifted(before: float, after: float) -> bool:
    """Whether the drift, in either direction, is beyond `DRIFT_ALARM`."""
    return abs(drift(before, after)) > DRIFT_ALARM
