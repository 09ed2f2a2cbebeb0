"""Giving back the room of large files that were removed, beside the work instead of in its way.

A system frees a file's blocks and cached pages when nobody holds it any more, and whoever lets go
last waits: a fifth of a second a GiB. So a large file is held open while its name goes, and a
thread lets go of it. A process that ends does the same at once.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress

_LARGE_BYTES = 16 << 20
_MOST_HELD = 256  # files: a process may not have many more open

_held: queue.Queue[int] = queue.Queue(_MOST_HELD)
_starting = threading.Lock()
_thread: threading.Thread | None = None
_process = 0


def hold(path: str) -> int | None:
    """A handle that keeps a large file's room while its name goes; None: it may go at once."""
    with suppress(OSError):
        if os.stat(path, follow_symlinks=False).st_size >= _LARGE_BYTES:
            return os.open(path, os.O_RDONLY)
    return None


def let_go(handle: int | None) -> None:
    """Close the handle, in the background where there is room for one more."""
    global _held, _thread, _process
    if handle is None:
        return
    with _starting:
        if _thread is None or _process != os.getpid():  # a fork has no threads
            _held, _process = queue.Queue(_MOST_HELD), os.getpid()
            _thread = threading.Thread(
                target=_close_all, args=(_held,), name="lastwrite-freeing", daemon=True
            )
            _thread.start()
    try:
        _held.put_nowait(handle)
    except queue.Full:
        os.close(handle)


def wait() -> None:
    """Wait until all that was let go of is free."""
    _held.join()


def _close_all(held: queue.Queue[int]) -> None:
    while True:
        handle = held.get()
        os.close(handle)
        held.task_done()
