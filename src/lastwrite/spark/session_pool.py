"""Keep a started Spark between two calls of a program, to save the seconds of the next start.

At most one Spark is parked: an idle JVM of about 200 MB, its fork server, and for one more minute
its Python workers. A parked Spark has no lock and no scratch folder, only the JVM's folder. It ends
with the process, even if the process crashes, and after ten minutes without a call. It also ends if
a call needs another ``master``, ``conf``, environment or working folder, or if the caller has
started a session. Forks of the process do not use it. PySpark does not see it, so the caller's
session is a different one.

A process can have only one such Spark, so each thread that needs it waits for it with
``exclusive``.
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
_turn = threading.RLock()  # reentrant, because a nested call in the same thread uses the same Spark
_has_daemon = False  # whether a daemon uses the shared Spark, perhaps for ever
# In a fork: objects of the parent process. They are never freed, because their finalizers would
# call the parent's JVM.
_of_parents: list[Any] = []


@contextlib.contextmanager
def exclusive(progress: Progress, *, is_daemon: bool = False) -> Iterator[None]:
    """Wait until no other thread uses the shared Spark. ``progress`` reports the wait.

    Raises:
        EnvironmentUnfit: a daemon uses the shared Spark, perhaps for ever.
    """
    global _has_daemon
    if not _turn.acquire(blocking=False):
        progress.note("waiting for another call of this process that uses Spark")
        while not _turn.acquire(timeout=_SECONDS_A_LOOK):
            if _has_daemon:
                raise EnvironmentUnfit(
                    "clean runs in this process and uses its Spark",
                    remedy="run clean in a separate process, or pass the same session to both "
                    "calls with spark=",
                )
    try:
        _has_daemon |= is_daemon
        yield
    finally:
        _has_daemon &= not is_daemon
        _turn.release()


def take(master: str, conf: Mapping[str, str]) -> OwnSpark | None:
    """The parked Spark, if it is alive and suits these settings. None if there is none."""
    found = _take()
    if found is None:
        return None
    key, spark = found
    if key == _key(master, conf) and spark.is_alive and spark.step_in():
        return spark
    spark.close()
    return None


def park(spark: OwnSpark, master: str, conf: Mapping[str, str]) -> bool:
    """Park ``spark`` for the next call. Returns False if the caller must close it instead."""
    global _parked
    if not spark.can_wait:
        return False
    spark.hide()
    end()  # end the Spark that a call in another thread has parked
    timer = threading.Timer(SECONDS_PARKED, end)
    timer.daemon = True
    with _lock:
        _parked = _key(master, conf), spark, timer
    timer.start()
    atexit.unregister(end)
    # registered last, so that it runs before the exit handlers of the parts of Spark
    atexit.register(end)
    return True


def end() -> None:
    """End the parked Spark, if there is one."""
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
    """The values that must be equal for two calls to use the same Spark.

    They include the environment, because workers inherit it from the JVM.
    """
    try:
        folder = os.getcwd()
    except OSError:  # the current working folder was deleted
        folder = ""
    return master, dict(conf), folder, dict(os.environ)


def _forget_parked() -> None:
    """Forget the parked Spark in a fork of the process."""
    global _parked, _lock, _turn, _has_daemon
    _lock, _turn, _has_daemon = threading.Lock(), threading.RLock(), False
    _of_parents.append(_parked)
    _parked = None


os.register_at_fork(after_in_child=_forget_parked)
