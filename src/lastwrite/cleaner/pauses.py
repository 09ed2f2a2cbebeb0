"""The pauses of a loop that runs until a stop is requested."""

from __future__ import annotations

import contextlib
import queue

from lastwrite.errors import InvalidConfig

EVERY_S = 30.0
LONGEST_S = 300.0  # longest pause in seconds while the cluster or store is unavailable


class Pauses:
    """The pauses between the passes of a loop.

    While the cluster or store is unavailable, each pause doubles, up to five minutes.

    Attributes:
        is_stopping: whether a stop was requested.

    Args:
        every_s: seconds between two passes.

    Raises:
        InvalidConfig: ``every_s`` is not positive.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = checked(every_s)
        self._tries = 0
        # SimpleQueue, because a signal handler may call ``put`` while ``put`` is running
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.is_stopping = False

    def request_stop(self) -> None:
        """End the current pause and all later ones. May be called in a signal handler."""
        self.is_stopping = True
        self._woken.put(None)

    def after(self, has_answered: bool) -> None:
        """Pause after a pass of the loop, until the next pass is due or a stop is requested."""
        self._tries = 0 if has_answered else self._tries + 1
        if has_answered:
            self.wait(self._every_s)
        else:
            longest_s = max(LONGEST_S, self._every_s)
            self.wait(min(max(self._every_s, 1.0) * 2 ** min(self._tries, 20), longest_s))

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            if not self.is_stopping:
                self._woken.get(timeout=max(seconds, 0.001))


def checked(every_s: float) -> float:
    """Return ``every_s``, the seconds between two passes of a loop, if it is valid.

    Raises:
        InvalidConfig: ``every_s`` is not positive and finite.
    """
    if not 0 < every_s < float("inf"):
        raise InvalidConfig(
            f"the pause is {every_s} seconds", remedy="give a finite number above 0"
        )
    return every_s
