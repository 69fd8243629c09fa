"""SIGTERM, obeyed between two pieces of work."""

import signal


class Terminated(Exception):
    """SIGTERM came, and what had to be saved is saved."""


class Signals:
    """Remembers SIGTERM, so that it is obeyed between two pieces of work."""

    def __init__(self):
        """Takes over the signal."""
        self.stopping = False
        signal.signal(signal.SIGTERM, self._heard)

    def _heard(self, number: int, frame: object) -> None:
        del number, frame
        self.stopping = True

    def obey(self) -> None:
        """Raises `Terminated` if the signal has come."""
        if self.stopping:
            raise Terminated
