"""Who works on what in a log root: byte-range locks on the broker's own lock file, ``<root>/.lock``.

A broker keeps an exclusive POSIX record lock on the whole of that file as long as it runs. We lock single bytes of
it, one for each partition that a run works on::

    0                           the root's turn: for the moment in which a file of the root itself is rewritten
    1 + 62 bits of a hash       the partition <topic>-<partition>

So runs on different partitions share a root, a run keeps a broker from starting as long as it holds a single byte,
a broker keeps every run out, and whoever crashes has let go. Such locks belong to a process, which makes three
things surprising: ``flock`` does not see them; a second run in the same process would get them too, hence the
registry here; and closing *any* handle of the file drops them all, hence the one handle a root.

Source: Kafka 4.4 ``FileLock`` (``FileChannel.tryLock``: from 0, without end); spec/kafka-storage S.1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from lastwrite.errors import LogHeld
from lastwrite.formats.kafka.names import folder_name
from lastwrite.logstore.files import to_log_error
from lastwrite.model.log import TopicPartition

FILE = ".lock"

_TURN = 0
_HASH_BITS = 62  # with what precedes it less than the 63 that an offset in a file has
_TURN_S = 60.0  # a turn takes milliseconds; whoever keeps it for a minute has been stopped
_LONGEST_PAUSE_S = 0.02
_GONE = -1
_STOP_OR_WAIT = "stop it first, or wait until it is done"


@dataclass(slots=True)
class _Root:
    """The one handle of a root's lock file in this process, and what is locked by it."""

    place: str  # the root's real path
    path: str
    handle: int
    users: int = 0
    held: dict[int, TopicPartition] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Blocker:
    """Who holds a byte that we asked for."""

    pid: int  # 0 or less: of another machine or container
    is_whole_file: bool

    def __str__(self) -> str:
        process = f", process {self.pid}," if self.pid > 0 else ", on another machine or in another container,"
        return f"a broker{process}" if self.is_whole_file else f"another run{process}"


_roots: dict[str, _Root] = {}
_registry = threading.RLock()


def _forget() -> None:
    """A forked child inherits the registry, but not one lock."""
    global _registry
    _registry = threading.RLock()
    for entry in _roots.values():
        os.close(entry.handle)
        entry.handle = _GONE
    _roots.clear()


os.register_at_fork(after_in_child=_forget)


def byte_of(name: TopicPartition) -> int:
    """The byte of the lock file that stands for a partition."""
    digest = hashlib.blake2b(folder_name(name).encode(), digest_size=8).digest()
    return 1 + (int.from_bytes(digest, "big") >> (64 - _HASH_BITS))


# ---------------------------------------------------------------------- partitions


@contextlib.contextmanager
def hold(root: str, names: Iterable[TopicPartition]) -> Iterator[None]:
    """Keep brokers and other runs away from the partitions ``names`` of ``root`` for as long as the context lasts.

    All of them or none. The file ``.lock`` is made where it is missing, and left there as a broker leaves it.

    Raises:
        LogHeld: a broker, another process or another run in this process has one of them; it says which and who.
        LogError: the root cannot be written.
    """
    wanted = {byte_of(name): name for name in names}
    entry = _enter(root)
    taken: list[int] = []
    try:
        for byte in sorted(wanted):
            _take(entry, byte, wanted[byte])
            taken.append(byte)
        yield
    finally:
        with _registry:
            for byte in taken:
                del entry.held[byte]
                _unlock(entry, byte)
        _leave(entry)


@contextlib.contextmanager
def try_hold(root: str, names: Iterable[TopicPartition]) -> Iterator[set[TopicPartition]]:
    """As ``hold``, of those that are free now: the context gives which.

    Raises:
        LogError: the root cannot be written.
    """
    with contextlib.ExitStack() as stack:
        got = set()
        for name in names:
            with contextlib.suppress(LogHeld):
                stack.enter_context(hold(root, [name]))
                got.add(name)
        yield got


def _take(entry: _Root, byte: int, name: TopicPartition) -> None:
    with _registry:
        if byte in entry.held:
            raise LogHeld(f"another run in this process works on {name}", path=entry.path, remedy=_STOP_OR_WAIT)
        if not _lock(entry, byte):
            raise _held_elsewhere(entry.path, _blocker(entry.handle, byte), name)
        entry.held[byte] = name


def holds(root: str, name: TopicPartition) -> bool:
    """Whether this very process holds the partition."""
    with _registry:
        entry = _roots.get(os.path.realpath(root))
        return entry is not None and byte_of(name) in entry.held


def is_held(root: str, names: Collection[TopicPartition] | None = None) -> bool:
    """Whether a broker or a run, this process's included, holds one of the partitions (None: any) now."""
    return _holder(root, names) is not None


def refuse_if_held(root: str, names: Collection[TopicPartition] | None = None) -> None:
    """For work that only reads ``names`` (None: whatever lies in the root).

    Raises:
        LogHeld: somebody may change them while they are read.
    """
    found = _holder(root, names)
    if found is not None:
        raise _held_elsewhere(os.path.join(root, FILE), *found)


def broker_of(root: str) -> str | None:
    """The broker that has the whole of ``root``, as people read it; None: there is none."""
    path = os.path.join(root, FILE)
    with _registry:
        entry = _roots.get(os.path.realpath(root))
        if entry is not None and entry.held:
            return None
        handle = -1
        try:
            handle = os.open(path, os.O_RDONLY) if entry is None else entry.handle
            blocker = _blocker(handle, _TURN)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise to_log_error(error, path, "see whether the log is held") from error
        finally:
            if entry is None and handle >= 0:
                os.close(handle)
    return str(blocker).rstrip(",") if blocker is not None and blocker.is_whole_file else None


def _holder(root: str, names: Collection[TopicPartition] | None) -> tuple[_Blocker, TopicPartition | None] | None:
    """Somebody who holds one of ``names``, and which."""
    path = os.path.join(root, FILE)
    asked: list[TopicPartition | None] = [None] if names is None else list(names)
    with _registry:
        entry = _roots.get(os.path.realpath(root))
        if entry is not None:
            for name in asked:
                if name is None and entry.held or name is not None and byte_of(name) in entry.held:
                    return _Blocker(os.getpid(), False), name or next(iter(entry.held.values()))
            return _first_blocked(entry.handle, asked, path)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise to_log_error(error, path, "see whether the log is held") from error
        try:
            return _first_blocked(handle, asked, path)
        finally:
            os.close(handle)


def _first_blocked(
    handle: int, asked: list[TopicPartition | None], path: str
) -> tuple[_Blocker, TopicPartition | None] | None:
    try:
        for name in asked:
            start, length = (_TURN + 1, 0) if name is None else (byte_of(name), 1)
            found = _blocker(handle, start, length)
            if found is not None:
                return found, name
    except OSError as error:
        raise to_log_error(error, path, "see whether the log is held") from error
    return None


def _held_elsewhere(path: str, blocker: _Blocker | None, name: TopicPartition | None) -> LogHeld:
    if blocker is None:  # it let go in the meantime
        return LogHeld(f"somebody else worked on {name} a moment ago", path=path, remedy="try again")
    what = "the log root" if blocker.is_whole_file else "a part of the log root" if name is None else str(name)
    return LogHeld(f"{blocker} holds {what}", path=path, remedy=_STOP_OR_WAIT)


# ---------------------------------------------------------------------- the root's own files


@contextlib.contextmanager
def root_turn(root: str) -> Iterator[None]:
    """Be alone in reading and rewriting a file of the root itself, such as a checkpoint; waits for others' turns.

    Raises:
        LogHeld: a broker holds the root, or somebody keeps the turn for a minute.
        LogError: the root cannot be written.
    """
    entry = _enter(root)
    try:
        with entry.turn:
            _wait_for_turn(entry)
            try:
                yield
            finally:
                with _registry:
                    _unlock(entry, _TURN)
    finally:
        _leave(entry)


def _wait_for_turn(entry: _Root) -> None:
    # Asking again and again, because a wait in the system has no end and cannot tell a broker from a turn.
    deadline = time.monotonic() + _TURN_S
    pause = 0.0005
    while not _lock(entry, _TURN):
        blocker = _blocker(entry.handle, _TURN)
        if blocker is not None and (blocker.is_whole_file or time.monotonic() > deadline):
            raise _held_elsewhere(entry.path, blocker, None)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


# ---------------------------------------------------------------------- the handle


def _enter(root: str) -> _Root:
    place = os.path.realpath(root)
    path = os.path.join(root, FILE)
    with _registry:
        entry = _roots.get(place)
        if entry is None:
            try:
                entry = _Root(place, path, os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            except OSError as error:
                raise to_log_error(error, path, "lock the log") from error
            _roots[place] = entry
        entry.users += 1
        return entry


def _leave(entry: _Root) -> None:
    with _registry:
        entry.users -= 1
        if not entry.users and entry.handle != _GONE:
            del _roots[entry.place]
            os.close(entry.handle)


def _lock(entry: _Root, byte: int) -> bool:
    """Whether the byte is ours now."""
    try:
        fcntl.lockf(entry.handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise to_log_error(error, entry.path, "lock the log") from error
    return True


def _unlock(entry: _Root, byte: int) -> None:
    if entry.handle != _GONE:
        fcntl.lockf(entry.handle, fcntl.LOCK_UN, 1, byte)


class _LinuxFlock(struct.Struct):
    """``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""

    def __init__(self) -> None:
        super().__init__("@hhqqi4x")

    def question(self, start: int, length: int) -> bytes:
        return self.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)

    def answer(self, raw: bytes) -> tuple[int, int, int, int]:
        kind, _, start, length, pid = self.unpack(raw)
        return kind, start, length, pid


class _DarwinFlock(struct.Struct):
    """``struct flock`` of macOS: start, length, pid, type, whence."""

    def __init__(self) -> None:
        super().__init__("@qqihh")

    def question(self, start: int, length: int) -> bytes:
        return self.pack(start, length, 0, fcntl.F_WRLCK, os.SEEK_SET)

    def answer(self, raw: bytes) -> tuple[int, int, int, int]:
        start, length, pid, kind, _ = self.unpack(raw)
        return kind, start, length, pid


_FLOCK = _DarwinFlock() if sys.platform == "darwin" else _LinuxFlock()


def _blocker(handle: int, start: int, length: int = 1) -> _Blocker | None:
    """Which other process has a lock on the bytes; None: nobody has."""
    answer = fcntl.fcntl(handle, fcntl.F_GETLK, _FLOCK.question(start, length))
    kind, first, covered, pid = _FLOCK.answer(answer)
    if kind == fcntl.F_UNLCK:
        return None
    return _Blocker(pid, first == 0 and covered != 1)


__all__ = [
    "FILE", "broker_of", "byte_of", "hold", "holds", "is_held", "refuse_if_held", "root_turn", "try_hold",
]  # fmt: skip
