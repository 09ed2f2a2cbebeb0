"""Who waits for a partition to grow is woken when it does.

One thread looks at the partitions that somebody waits for, and only at them: files every 50 ms, a
bucket every second, since each look there is a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from lastwrite.errors import LogError
from lastwrite.server.catalog import BUCKET_S, FILES_S, Partition
from lastwrite.storage.objects.address import is_address


class Growth:
    """See ``wait``."""

    def __init__(self) -> None:
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        # whoever begins to wait wakes the thread that looks, and not a thousand who wait, too
        self._asked = threading.Condition(lock)
        self._wanted: dict[Partition, int] = {}
        self._looked: dict[Partition, float] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._look, daemon=True, name="growth")
        self._thread.start()

    def wait(self, partitions: Iterable[Partition], since: float, seconds: float) -> bool:
        """Until one of them is another than it was at ``since``, of time.monotonic; whether any is
        in time.
        """
        mine = set(partitions)
        until = time.monotonic() + seconds
        with self._changed:
            for each in mine:
                self._wanted[each] = self._wanted.get(each, 0) + 1
            self._asked.notify()
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
                    self._wanted[each] -= 1
                    if not self._wanted[each]:
                        del self._wanted[each]

    def close(self) -> None:
        """Let everybody go."""
        with self._changed:
            self._is_closed = True
            self._asked.notify()
            self._changed.notify_all()

    def _look(self) -> None:
        while not self._is_closed:
            with self._changed:
                while not self._wanted and not self._is_closed:
                    self._asked.wait()
                due = [each for each in self._wanted if self._is_due(each)]
            grown = False
            for each in due:
                self._looked[each] = time.monotonic()
                try:
                    grown = each.look() or grown
                except LogError:  # a request will find it, and answer so
                    each.changed_s = time.monotonic()
                    grown = True
            with self._changed:
                if grown:
                    self._changed.notify_all()
                for each in list(self._looked):
                    if each not in self._wanted:
                        del self._looked[each]
            time.sleep(FILES_S)

    def _is_due(self, partition: Partition) -> bool:
        seconds = BUCKET_S if is_address(partition.folder) else 0.0
        return time.monotonic() - self._looked.get(partition, -60.0) >= seconds
