"""How long brokers and name servers that are away, or whose connections break, are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from lastwrite.errors import RemoteFailed
from lastwrite.rocketmq.network.connection import Refused

T = TypeVar("T")

REMEDY = (
    "see to the network and the broker, and run the same command again; default.api.timeout.ms is "
    "how long it waits"
)
_FIRST_AGAIN_S, _AGAIN_S = 0.01, 0.1
_SHORT_S = 2.0


class Patience:
    """Waits ``seconds`` for an answer; not once ``stopped`` is set. Threads may share it."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.stopped = Event()
        self._seconds = seconds
        self._records_s, self._gave_up_s = 0.0, -1.0

    @property
    def now_s(self) -> float:
        """For how long work is tried again that does not advance. Once a fetch has given up and no
        message has come of any queue since, a few seconds.
        """
        is_short = self._gave_up_s > self._records_s
        return min(self._seconds, _SHORT_S) if is_short else self._seconds

    def note_records(self) -> None:
        """Messages came of a queue."""
        self._records_s = time.monotonic()

    def note_given_up(self) -> None:
        """A fetch gave up."""
        self._gave_up_s = time.monotonic()

    def until_answered(
        self, ask: Callable[[], T], forget: Callable[[], None], since_s: float | None = None
    ) -> T:
        """The result of ``ask``, which is tried again while nobody answers; before each try
        ``forget`` ends old conversations. ``since_s``: when the work last advanced, by the
        monotonic clock; None: now.

        Raises:
            RemoteFailed: a refusal, or no answer in that time.
        """
        begin_s, tries = time.monotonic() if since_s is None else since_s, 0
        while True:
            try:
                return ask()
            except RemoteFailed as error:
                if isinstance(error, Refused) or time.monotonic() >= begin_s + self.now_s:
                    raise
                if self.stopped.wait(min(_FIRST_AGAIN_S * 2**tries, _AGAIN_S)):
                    raise
                tries = min(tries + 1, 10)
            forget()
