"""Wake Fetch requests when their partitions grow.

One thread polls the partitions that requests wait for: files every 50 ms, a bucket every second,
because each poll of a bucket is a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from lastwrite.errors import LogError
from lastwrite.server.catalog import BUCKET_S, FILES_S, ServedPartition
from lastwrite.storage.objects.address import is_address


class ChangeNotifier:
    """Lets requests wait until one of their partitions changes. Polls in one thread."""

    def __init__(self) -> None:
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        # a separate condition, so that a new request wakes the polling thread and no other request
        self._requested = threading.Condition(lock)
        self._waiting: dict[ServedPartition, int] = {}
        self._checked_s: dict[ServedPartition, float] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, daemon=True, name="growth")
        self._thread.start()

    def wait(self, partitions: Iterable[ServedPartition], since: float, seconds: float) -> bool:
        """Wait at most ``seconds`` until one of the partitions changes.

        Returns whether one has changed after ``since``, a time of time.monotonic.
        """
        mine = set(partitions)
        until = time.monotonic() + seconds
        with self._changed:
            for each in mine:
                self._waiting[each] = self._waiting.get(each, 0) + 1
            self._requested.notify()
            try:
                while not self._is_closed:
                    if any(each.changed_s >= since for each in mine):
                        return True
                    left = until - time.monotonic()
                    if left <= 0:
                        return False
                    self._changed.wait(left)
                return False
            finally:
                for each in mine:
                    self._waiting[each] -= 1
                    if not self._waiting[each]:
                        del self._waiting[each]

    def close(self) -> None:
        """Wake all waiting requests, and stop the thread."""
        with self._changed:
            self._is_closed = True
            self._requested.notify()
            self._changed.notify_all()

    def _watch(self) -> None:
        while not self._is_closed:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._requested.wait()
                due = [each for each in self._waiting if self._is_due(each)]
            grown = False
            for each in due:
                self._checked_s[each] = time.monotonic()
                try:
                    grown = each.refresh() or grown
                # An error counts as a change: the waiting request then reads the partition and
                # reports the error.
                except LogError:
                    each.changed_s = time.monotonic()
                    grown = True
            with self._changed:
                if grown:
                    self._changed.notify_all()
                for each in list(self._checked_s):
                    if each not in self._waiting:
                        del self._checked_s[each]
            time.sleep(FILES_S)

    def _is_due(self, partition: ServedPartition) -> bool:
        seconds = BUCKET_S if is_address(partition.folder) else 0.0
        return time.monotonic() - self._checked_s.get(partition, -60.0) >= seconds
