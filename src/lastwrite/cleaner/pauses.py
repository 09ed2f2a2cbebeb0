"""The pauses of what takes turn after turn, until somebody asks it to stop."""

from __future__ import annotations

import contextlib
import queue

from lastwrite.errors import InvalidConfig

EVERY_S = 30.0
LONGEST_S = 300.0  # while nothing answers


class Pauses:
    """As long as nothing answers, each is twice as long as the last, five minutes at most.

    Attributes:
        is_stopping: whether somebody has asked.

    Args:
        every_s: seconds between two turns.

    Raises:
        InvalidConfig: none.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = checked(every_s)
        self._tries = 0
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()  # a signal's handler may put
        self.is_stopping = False

    def request_stop(self) -> None:
        """Let there be no other. May be called in a signal's handler."""
        self.is_stopping = True
        self._woken.put(None)

    def after(self, has_answered: bool) -> None:
        """Pause after a turn, until the next or until somebody asks to stop."""
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
    """
    Raises:
        InvalidConfig: no pause between turns.
    """
    if not 0 < every_s < float("inf"):
        raise InvalidConfig(f"a pause of {every_s} seconds", remedy="give more than 0")
    return every_s
