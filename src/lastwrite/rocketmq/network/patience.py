"""Retries of requests while brokers and name servers are unreachable or connections break."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from lastwrite.errors import RemoteFailed
from lastwrite.model.attempts import pause_s
from lastwrite.rocketmq.network.connection import RequestRefused

T = TypeVar("T")

REMEDY = (
    "check the network and the broker, and run the command again; to wait longer, raise "
    "default.api.timeout.ms"
)
_SHORT_S = 2.0


class Patience:
    """Retries requests for up to ``seconds``, or until ``stopped`` is set.

    Threads may share an instance.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.stopped = Event()
        self._seconds = seconds
        self._records_s, self._failed_s = 0.0, -1.0

    @property
    def now_s(self) -> float:
        """The current limit in seconds for retries that make no progress.

        After a fetch has given up, the limit is two seconds at most until a message arrives.
        """
        is_short = self._failed_s > self._records_s
        return min(self._seconds, _SHORT_S) if is_short else self._seconds

    def note_records(self) -> None:
        """Record that messages of a queue have arrived."""
        self._records_s = time.monotonic()

    def note_abandoned(self) -> None:
        """Record that a fetch has given up."""
        self._failed_s = time.monotonic()

    def until_answered(
        self, ask: Callable[[], T], forget: Callable[[], None], since_s: float | None = None
    ) -> T:
        """Call ``ask``, which sends a request, until a server answers. Return the result.

        ``forget`` closes old connections before each retry. ``since_s`` is the monotonic time of
        the last progress; None means now.

        Raises:
            RemoteFailed: the request is rejected, or not answered within the limit.
        """
        begin_s, tries = time.monotonic() if since_s is None else since_s, 0
        while True:
            try:
                return ask()
            except RemoteFailed as error:
                if isinstance(error, RequestRefused) or time.monotonic() >= begin_s + self.now_s:
                    raise
                if self.stopped.wait(pause_s(tries)):
                    raise
                tries += 1
            forget()
