"""Folders of the server's own with what it made of partitions, and no more of them than fit.

    STATE/copies/3f0c…/kafka/orders/0/manifest.json      an archive of one partition
    STATE/copies/9a11…/orders-0/…                        a cleaned copy of one

A folder's name follows from what it was made of, so what is another gets another folder, and one
that is whole is found again after a restart. Of those that are more than fit the one that was used
longest ago goes; whoever reads it keeps its open files, and it is made anew when it is asked for.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator

from lastwrite.storage.files import make_folder, remove_tree, rename, to_log_error

_ASIDE = ".aside"


class Copies:
    """``folder``: made where it is not there. ``limit_bytes``: of all together, but for the one
    that was made last.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._lock = threading.Lock()
        make_folder(folder)
        for name in os.listdir(folder):
            if name.endswith(_ASIDE):
                remove_tree(os.path.join(folder, name))

    def place(self, *what: object) -> str:
        """Where a copy lies, or will, that is made of this."""
        text = "\n".join(map(str, what))
        return os.path.join(self._folder, hashlib.sha256(text.encode()).hexdigest()[:32])

    @staticmethod
    def aside(place: str) -> str:
        """Where a copy is made before ``keep``: nothing is there."""
        aside = place + _ASIDE
        if os.path.isdir(aside):
            remove_tree(aside)
        return aside

    def keep(self, place: str) -> None:
        """Let what was made aside count."""
        self.remove(place)
        rename(place + _ASIDE, place)

    def remove(self, place: str) -> None:
        """Nothing lies there then."""
        if os.path.isdir(place):
            remove_tree(place)

    def used(self, place: str) -> None:
        """Note that a copy is used now; remove those that are too many.

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
        """When each copy was used, where it lies, its bytes."""
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
