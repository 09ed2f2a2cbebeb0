"""Between two calls of a program: Spark of our own is parked when a call has ended, and the next
one takes it, which saves the seconds of a start.

One is parked at most: a JVM that has nothing to do, some 200 MB of memory, the fork server beside
it, and for a minute more its Python workers. No lock is held and no scratch folder kept; there is
the folder of the JVM's own. It ends with the process, however that ends; after ten minutes in which
no call has come; and when a call comes that needs another: another ``master``, ``conf``,
environment or working folder, or a caller who has a session of their own by then. A fork of the
process leaves it alone. PySpark does not know of it: a caller's own session is another.

A process can have one Spark of ours, so calls of several threads that need it take ``turn``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from lastwrite.errors import EnvironmentUnfit
from lastwrite.model.progress import Progress
from lastwrite.spark.session import OwnSpark

SECONDS_PARKED = 600.0
_SECONDS_A_LOOK = 0.5

_lock = threading.Lock()
_parked: tuple[Any, OwnSpark, threading.Timer] | None = None
_turn = threading.RLock()  # what a call calls in its own thread uses its Spark
_has_daemon = False  # the turn lasts until somebody stops it
_of_parents: list[Any] = []  # kept, since what Python collects of them would be told to their JVM


@contextlib.contextmanager
def turn(progress: Progress, *, is_daemon: bool = False) -> Iterator[None]:
    """Wait until no call of another thread uses Spark of ours; ``progress`` is told of that.

    Raises:
        EnvironmentUnfit: it is a daemon that uses it, which may do so for ever.
    """
    global _has_daemon
    if not _turn.acquire(blocking=False):
        progress.note("waiting for another call of this process, which uses Spark")
        while not _turn.acquire(timeout=_SECONDS_A_LOOK):
            if _has_daemon:
                raise EnvironmentUnfit(
                    "clean runs in this process and has its Spark",
                    remedy="run clean in a process of its own, or pass both one session, spark=",
                )
    try:
        _has_daemon |= is_daemon
        yield
    finally:
        _has_daemon &= not is_daemon
        _turn.release()


def take(master: str, conf: Mapping[str, str]) -> OwnSpark | None:
    """The parked Spark, if it is as a new one would be and still lives; None: start one."""
    found = _take()
    if found is None:
        return None
    key, spark = found
    if key == _key(master, conf) and spark.is_alive and spark.step_in():
        return spark
    spark.close()
    return None


def park(spark: OwnSpark, master: str, conf: Mapping[str, str]) -> bool:
    """Keep it for the next call; False: it cannot wait, and is to be closed."""
    global _parked
    if not spark.can_wait:
        return False
    spark.step_aside()
    end()  # of another thread's call
    timer = threading.Timer(SECONDS_PARKED, end)
    timer.daemon = True
    with _lock:
        _parked = _key(master, conf), spark, timer
    timer.start()
    atexit.unregister(end)
    atexit.register(end)  # before those of whatever it consists of
    return True


def end() -> None:
    """End what is parked."""
    found = _take()
    if found is not None:
        found[1].close()


def _take() -> tuple[Any, OwnSpark] | None:
    global _parked
    with _lock:
        found, _parked = _parked, None
    if found is None:
        return None
    key, spark, timer = found
    timer.cancel()
    return key, spark


def _key(master: str, conf: Mapping[str, str]) -> Any:
    """What two calls have in common that can use one Spark. Workers have the JVM's environment."""
    try:
        folder = os.getcwd()
    except OSError:  # it is no more
        folder = ""
    return master, dict(conf), folder, dict(os.environ)


def _leave_alone() -> None:
    """In a fork of the process."""
    global _parked, _lock, _turn, _has_daemon
    _lock, _turn, _has_daemon = threading.Lock(), threading.RLock(), False
    _of_parents.append(_parked)
    _parked = None


os.register_at_fork(after_in_child=_leave_alone)
