"""A memory budget shared by all requests in progress. A request waits until enough is free."""

from __future__ import annotations

import threading
import time


class MemoryBudget:
    """A memory budget of ``most_bytes``, shared by threads."""

    def __init__(self, most_bytes: int) -> None:
        self._free_bytes = most_bytes
        self._changed = threading.Condition()

    def take(self, size: int, until: float) -> None:
        """Reserve ``size`` bytes. Waits until they are free.

        Raises:
            TimeoutError: too few bytes are free when time.monotonic reaches ``until``.
        """
        with self._changed:
            while self._free_bytes < size:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError("no memory is free for requests")
                self._changed.wait(left)
            self._free_bytes -= size

    def release(self, size: int) -> None:
        with self._changed:
            self._free_bytes += size
            self._changed.notify_all()
