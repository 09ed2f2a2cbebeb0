"""The broker's own lock on a log root, held while we change what lies there.

A broker keeps a POSIX record lock on ``<root>/.lock`` as long as it runs. Such a lock belongs to a process,
which makes three things surprising: ``flock`` does not see it; a second run in the same process would get it
too, hence the registry here; and closing *any* handle of the file drops it, hence no look at a root that we
hold ourselves opens the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator

from lastwrite.errors import LogHeld
from lastwrite.logstore.files import to_log_error

FILE = ".lock"

_held: set[str] = set()
_registry = threading.Lock()


@contextlib.contextmanager
def hold(root: str) -> Iterator[None]:
    """Keep brokers and other runs out of ``root`` for as long as the context lasts.

    The file ``.lock`` is made where it is missing, and left there as a broker leaves it.

    Raises:
        LogHeld: a broker, another process or another run in this process holds the root.
        LogError: the root cannot be written.
    """
    place = os.path.realpath(root)
    path = os.path.join(root, FILE)
    with _registry:
        if place in _held:
            raise LogHeld("another run in this process works on the log", path=path, remedy="wait until it is done")
        handle = _open(path)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _held_elsewhere(path) from None
            raise to_log_error(error, path, "lock the log") from error
        _held.add(place)
    try:
        yield
    finally:
        with _registry:
            _held.discard(place)
            os.close(handle)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise to_log_error(error, path, "lock the log") from error


def holds(root: str) -> bool:
    """Whether this very process holds the root."""
    with _registry:
        return os.path.realpath(root) in _held


def is_held(root: str) -> bool:
    """Whether a broker or a run, this process's included, holds the root now."""
    path = os.path.join(root, FILE)
    with _registry:
        if os.path.realpath(root) in _held:
            return True
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise to_log_error(error, path, "see whether the log is held") from error
        try:
            fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return True
            raise to_log_error(error, path, "see whether the log is held") from error
        finally:
            os.close(handle)
        return False


def refuse_if_held(root: str) -> None:
    """For work that only reads.

    Raises:
        LogHeld: somebody may change the log while it is read.
    """
    if is_held(root):
        raise _held_elsewhere(os.path.join(root, FILE))


def _held_elsewhere(path: str) -> LogHeld:
    return LogHeld("a broker or another run holds the log", path=path, remedy="stop it first, or wait until it is done")
