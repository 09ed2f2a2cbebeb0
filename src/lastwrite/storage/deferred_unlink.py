"""Giving back the room of files that were removed, beside the work instead of in its way.

A system frees a file's blocks and cached pages when nobody holds it any more, and whoever lets go
last waits: a fifth of a second a GiB, and a millisecond a file, however small, where the disk is
told what is free. So a file is held open while its name goes, and a thread lets go of it. A process
that ends does the same at once.

Where the disk is told what is free, a sync beside that waits until it knows: two seconds for 1.8
GB. So whoever has syncs to come lets go when they are done (``after_syncs``).
"""

from __future__ import annotations

import os
import queue
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_MOST_HELD = 256  # files: a process may not have many more open

_held: queue.Queue[int] = queue.Queue(_MOST_HELD)
_starting = threading.Lock()
_syncing: set[object] = set()  # who has syncs to come
_may_free = threading.Condition()
_thread: threading.Thread | None = None


def hold(path: str) -> int | None:
    """A handle that keeps a file's room while its name goes; None: it has none, or it goes at once,
    since as many are held as may be.
    """
    if _held.full():
        return None
    with suppress(OSError):
        seen = os.lstat(path)
        if stat.S_ISREG(seen.st_mode) and seen.st_size:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    return None


def release(handle: int | None) -> None:
    """Close the handle, in the background where there is room for one more."""
    global _thread
    if handle is None:
        return
    with _starting:
        if _thread is None:
            _thread = threading.Thread(
                target=_close_all, args=(_held,), name="lastwrite-freeing", daemon=True
            )
            _thread.start()
    try:
        _held.put_nowait(handle)
    except queue.Full:
        os.close(handle)


@contextmanager
def after_syncs() -> Iterator[None]:
    """Until this ends, nothing is freed that the queue has room for."""
    who = object()
    with _may_free:
        _syncing.add(who)
    try:
        yield
    finally:
        with _may_free:
            _syncing.discard(who)
            _may_free.notify_all()


def wait() -> None:
    """Wait until all that was let go of is free."""
    _held.join()


def _close_all(held: queue.Queue[int]) -> None:
    while True:
        handle = held.get()
        with _may_free:
            _may_free.wait_for(lambda: not _syncing)
        os.close(handle)
        held.task_done()


def _forget() -> None:
    """In a fork: it has no threads, and who has syncs to come is in the parent."""
    global _held, _starting, _thread, _may_free
    _held, _starting, _thread = queue.Queue(_MOST_HELD), threading.Lock(), None
    _syncing.clear()
    _may_free = threading.Condition()


os.register_at_fork(after_in_child=_forget)
