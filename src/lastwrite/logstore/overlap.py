"""Many small pieces of work that wait for the disk, in threads, so that they wait together.

A sync takes a small partition longer than all its bytes, and a disk ends twenty of them in little more than the time
of one. Where fault points are armed everything goes in order, so that a test knows the operation it stops at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lastwrite.logstore import files

THREADS = 24

T = TypeVar("T")
R = TypeVar("R")


def overlapped(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The results of ``work``, item for item. What one raises is raised here, and what has not begun never does."""
    if len(items) < 2 or files.faults.is_armed:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(THREADS, len(items)), thread_name_prefix="lastwrite-disk") as pool:
        try:
            yield from pool.map(work, items)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
