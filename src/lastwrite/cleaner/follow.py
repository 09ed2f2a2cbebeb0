"""Let an archive follow a live cluster, by repeated fetches in a thread beside the cleaner.

    fetch ──► events: fetched, held back ──► pause ──► fetch
     │                                         ▲
     └── no answer: one note ──► a pause that doubles each time

Both a fetch and a round commit a partition by replacing its manifest. Each waits while the other
works on the partition: see ``docs/decisions/following.md``.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

from lastwrite.archive.following import FollowResult
from lastwrite.cleaner.events import Events, FetchHeldBack, FollowerFetched
from lastwrite.cleaner.following_metrics import FollowingMetrics
from lastwrite.cleaner.pauses import Pauses
from lastwrite.errors import LogError, RemoteFailed
from lastwrite.reports.fetching import HoldReason, LogsFetched
from lastwrite.reports.following import FollowedLog

_GIVE_UP_S = 10.0  # seconds to wait for a running fetch after a stop
_SILENT = (HoldReason.WAITING,)


class ArchiveFollower:
    """Fetches new records of a live cluster repeatedly.

    A *turn* is one fetch of all topics.

    Args:
        followed: the topics to follow; ``run`` closes it.
        every_s: seconds between two turns.
        metrics, events, now_ms: as for the cleaner.
        turned: called after each turn, in the follower's thread.
        failed: called after an error that another turn would not resolve.
    """

    def __init__(
        self,
        followed: FollowResult,
        every_s: float,
        metrics: FollowingMetrics,
        events: Events,
        now_ms: Callable[[], int],
        turned: Callable[[], None] = lambda: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._followed = followed
        self._pauses = Pauses(every_s)
        self._metrics = metrics
        self._events = events
        self._now_ms = now_ms
        self._on_turn, self._failed = turned, failed
        self._ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # the reason why the last turn could not fetch a partition, by the partition's address
        self._held_reasons: dict[str, HoldReason] = {}

    def request_stop(self) -> None:
        """Request a stop. May be called in a signal handler."""
        self._pauses.request_stop()
        self._followed.stop()

    def start(self) -> None:
        """Fetch repeatedly in a thread, until ``stop`` is called."""
        threading.Thread(target=self._work, name="follower", daemon=True).start()

    def run(self) -> None:
        """Fetch repeatedly until a stop is requested.

        Raises:
            LogError: an error that another fetch would not resolve.
        """
        self.start()
        self._end(None)

    def stop(self) -> None:
        """Stop fetching, and wait until the thread has ended, but at most ten seconds.

        Raises:
            LogError: the error that ended the thread before the stop was requested.
        """
        self.request_stop()
        self._end(_GIVE_UP_S)

    def _end(self, seconds: float | None) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                error = self._ended.get(timeout=seconds or _GIVE_UP_S)
                if error is not None:
                    raise error
                return
            if seconds is not None or self._pauses.is_stopping:
                return

    def once(self) -> int:
        """Fetch all topics once, and return the exit status of ``fetch``.

        Raises:
            RemoteFailed, LogError: as ``FollowResult.fetch``.
        """
        try:
            begin = time.monotonic()
            logs = self._followed.fetch()
        finally:
            self._followed.close()
        self._note(logs, time.monotonic() - begin)
        return LogsFetched(archive="", partitions=tuple(each.log for each in logs)).worst()

    def _work(self) -> None:
        failure: Exception | None = None
        try:
            while not self._pauses.is_stopping:
                self._pauses.after(self._run_turn())
        except Exception as error:
            failure = None if self._pauses.is_stopping else error
        with contextlib.suppress(LogError, OSError):
            self._followed.close()
        self._ended.put(failure)
        if failure is not None:
            self._failed()

    def _run_turn(self) -> bool:
        """Fetch all topics once. Return whether the cluster answered.

        Raises:
            LogError: an error that another fetch would not resolve.
        """
        begin = time.monotonic()
        try:
            logs = self._followed.fetch()
        except RemoteFailed as error:
            if self._pauses.is_stopping:
                return False
            self._events.report_once("followed", f"the fetch is tried again later: {error}")
            self._metrics.failed()
            return False
        if self._pauses.is_stopping:
            return True
        self._events.report_once("followed", None)
        self._note(logs, time.monotonic() - begin)
        is_silent = bool(logs) and all(each.log.held in _SILENT for each in logs)
        self._on_turn()
        return not is_silent

    def _note(self, logs: Sequence[FollowedLog], seconds: float) -> None:
        now_ms = self._now_ms()
        self._metrics.record_turn(logs)
        held: dict[str, HoldReason] = {}
        for each in logs:
            log = each.log
            if log.gap is not None:
                self._events.note(f"{log.folder}: the loss was accepted (--accept-gap): {log.gap}")
            if log.held is None:
                continue
            held[log.folder] = log.held
            if self._held_reasons.get(log.folder) is not log.held:
                self._events.emit(FetchHeldBack(time_ms=now_ms, log=each))
        self._held_reasons = held
        size = sum(each.log.size_bytes for each in logs)
        came = sum(1 for each in logs if each.log.size_bytes)
        if came:
            self._events.emit(
                FollowerFetched(
                    time_ms=now_ms,
                    partitions=came,
                    bytes=size,
                    lag_records=sum(each.lag_records or 0 for each in logs),
                    held=len(held),
                    attempts=max(each.log.attempts for each in logs),
                    seconds=seconds,
                )
            )
