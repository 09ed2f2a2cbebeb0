"""A bounded store of converted and compacted copies of partitions.

    STATE/copies/3f0c…/kafka/orders/0/manifest.json      an archive of one partition
    STATE/copies/9a11…/orders-0/…                        a compacted copy of one partition

A folder's name is a hash of the copy's source. A changed source therefore gets another folder, and
a complete copy is found again after a restart. Beyond the limit, the least recently used copies are
deleted. Responses in progress keep the deleted files open; the next request creates the copy again.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator

from lastwrite.storage.files import make_folder, remove_tree, rename, to_log_error

_ASIDE = ".aside"


class CopyStore:
    """The store of all copies in ``folder``, which is created if missing.

    ``limit_bytes`` is for all copies together. The last used copy is kept even if it is larger.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._lock = threading.Lock()
        make_folder(folder)
        for name in os.listdir(folder):
            if name.endswith(_ASIDE):
                remove_tree(os.path.join(folder, name))

    def path_of(self, *what: object) -> str:
        """The path of a source's copy. The values ``what`` identify the source.

        The path is returned even if there is no copy yet.
        """
        text = "\n".join(map(str, what))
        return os.path.join(self._folder, hashlib.sha256(text.encode()).hexdigest()[:32])

    @staticmethod
    def temporary_path(place: str) -> str:
        """The path at which to build a copy before ``install``. Deletes an unfinished copy
        there.
        """
        aside = place + _ASIDE
        if os.path.isdir(aside):
            remove_tree(aside)
        return aside

    def install(self, place: str) -> None:
        """Rename a finished copy from its temporary path to ``place``, replacing an older copy."""
        self.remove(place)
        rename(place + _ASIDE, place)

    def remove(self, place: str) -> None:
        """Delete the copy, if it exists."""
        if os.path.isdir(place):
            remove_tree(place)

    def used(self, place: str) -> None:
        """Mark a copy as used now. Delete the least recently used copies beyond the limit.

        Raises:
            LogError: the folder cannot be read.
        """
        with self._lock:
            try:
                os.utime(place)
                kept = sorted(self._all(), reverse=True)
            except OSError as error:
                raise to_log_error(error, self._folder, "list the copies") from error
            held = 0
            for n, (_, path, size) in enumerate(kept):
                held += size
                if n and held > self._limit and path != place:
                    remove_tree(path)

    def _all(self) -> Iterator[tuple[int, str, int]]:
        """Yield for each copy the time of its last use in ns, its path and its size in bytes."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not entry.name.endswith(_ASIDE) and entry.is_dir():
                    yield entry.stat().st_mtime_ns, entry.path, _bytes_in(entry.path)


def _bytes_in(folder: str) -> int:
    return sum(
        os.path.getsize(os.path.join(where, name))
        for where, _, names in os.walk(folder)
        for name in names
    )
