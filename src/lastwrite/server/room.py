"""Memory that all requests in work share. Whoever needs more than is left waits for the others."""

from __future__ import annotations

import threading
import time


class Room:
    """``most_bytes`` for all."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._changed = threading.Condition()

    def take(self, size: int, until: float) -> None:
        """
        Raises:
            TimeoutError: there is not enough at ``until``, of time.monotonic.
        """
        with self._changed:
            while self._left < size:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError("no memory is left for requests")
                self._changed.wait(left)
            self._left -= size

    def give(self, size: int) -> None:
        with self._changed:
            self._left += size
            self._changed.notify_all()
