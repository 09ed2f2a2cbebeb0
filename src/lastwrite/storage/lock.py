"""Who works on what in a log root: byte-range locks on the broker's own lock file.

A broker keeps an exclusive POSIX record lock on that file as long as it runs. We lock single bytes of it, one for each
log that a run works on. Of Kafka, whose broker locks the whole of ``<root>/.lock``::

    0                           the root's turn: for the moment in which a file of the root itself is rewritten
    1 + 62 bits of a hash       the partition <topic>-<partition>

Of RocketMQ, whose broker locks the first byte of ``STORE/lock`` and no more::

    0                           the broker's; runs share it
    1                           the turn
    2 + 62 bits of a hash       the queue

So runs on different logs share a root, a run keeps a broker from starting as long as it holds a single byte,
a broker keeps every run out, and whoever crashes has let go. Such locks belong to a process, which makes three
things surprising: ``flock`` does not see them; a second run in the same process would get them too, hence the
registry here; and closing *any* handle of the file drops them all, hence the one handle a root.

Source: Kafka 4.4 ``FileLock`` (``FileChannel.tryLock``: from 0, without end); spec/kafka-storage S.1. RocketMQ 5.5.0
``DefaultMessageStore.start`` (``tryLock(0, 1, false)``); spec/rocketmq.md section 9.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from lastwrite.errors import LogHeld
from lastwrite.logstore.files import to_log_error
from lastwrite.model.log import TopicPartition

FILE = ".lock"

_HASH_BITS = 62  # with what precedes it less than the 63 that an offset in a file has
_LONGEST_PAUSE_S = 0.02
_OPEN_S = 2.0  # who only looks has the file open for less
_GONE = -1
_STOP_OR_WAIT = "stop it first, or wait until it is done"


@dataclass(frozen=True, slots=True)
class Place:
    """Where brokers of a system lock a root, and where we lock beside them."""

    file: str
    what: str  # the root, as people call it
    turn: int  # the byte of the root's turn; those below are a broker's, and runs share them
    turn_s: float  # whoever keeps the turn for longer has been stopped

    def byte_of(self, name: TopicPartition) -> int:
        """The byte that stands for a log."""
        digest = hashlib.blake2b(str(name).encode(errors="surrogateescape"), digest_size=8).digest()
        return self.turn + 1 + (int.from_bytes(digest, "big") >> (64 - _HASH_BITS))

    def is_brokers(self, kind: int, start: int, length: int) -> bool:
        """Whether such a lock is a broker's; ``length`` 0: without end."""
        return kind == fcntl.F_WRLCK and start == 0 and (self.turn > 0 or length != 1)


KAFKA = Place(FILE, "the log root", turn=0, turn_s=60.0)  # a turn takes milliseconds


@dataclass(slots=True)
class _Root:
    """The one handle of a root's lock file in this process, and what is locked by it."""

    place: Place
    key: str  # the file's real path
    path: str
    handle: int
    users: int = 0
    held: dict[int, TopicPartition] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Blocker:
    """Who holds a byte that we asked for."""

    pid: int  # 0 or less: of another machine or container
    is_broker: bool

    def __str__(self) -> str:
        process = (
            f", process {self.pid},"
            if self.pid > 0
            else ", on another machine or in another container,"
        )
        return f"a broker{process}" if self.is_broker else f"another run{process}"


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
    """The byte of Kafka's lock file that stands for a partition."""
    return KAFKA.byte_of(name)


# ---------------------------------------------------------------------- partitions


@contextlib.contextmanager
def hold(root: str, names: Iterable[TopicPartition], place: Place = KAFKA) -> Iterator[None]:
    """Keep brokers and other runs away from the partitions ``names`` of ``root`` for as long as the context lasts.

    All of them or none. The lock file is made where it is missing, and left there as a broker leaves it.

    Raises:
        LogHeld: a broker, another process or another run in this process has one of them; it says which and who.
        LogError: the root cannot be written.
    """
    wanted = {place.byte_of(name): name for name in names}
    entry = _enter(root, place)
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
def try_hold(
    root: str, names: Iterable[TopicPartition], place: Place = KAFKA
) -> Iterator[set[TopicPartition]]:
    """As ``hold``, of those that are free now: the context gives which.

    Raises:
        LogError: the root cannot be written.
    """
    with contextlib.ExitStack() as stack:
        got = set()
        for name in names:
            with contextlib.suppress(LogHeld):
                stack.enter_context(hold(root, [name], place))
                got.add(name)
        yield got


def _take(entry: _Root, byte: int, name: TopicPartition) -> None:
    with _registry:
        if byte in entry.held:
            raise LogHeld(
                f"another run in this process works on {name}",
                path=entry.path,
                remedy=_STOP_OR_WAIT,
            )
        if not _lock(entry, byte):
            raise _held_elsewhere(
                entry.place, entry.path, _blocker(entry.handle, entry.place, byte), name
            )
        entry.held[byte] = name


def holds(root: str, name: TopicPartition, place: Place = KAFKA) -> bool:
    """Whether this very process holds the partition."""
    with _registry:
        entry = _roots.get(_key(root, place))
        return entry is not None and place.byte_of(name) in entry.held


def is_held(
    root: str, names: Collection[TopicPartition] | None = None, place: Place = KAFKA
) -> bool:
    """Whether a broker or a run, this process's included, holds one of the partitions (None: any) now."""
    return _holder(root, names, place) is not None


def refuse_if_held(
    root: str, names: Collection[TopicPartition] | None = None, place: Place = KAFKA
) -> None:
    """For work that only reads ``names`` (None: whatever lies in the root).

    Raises:
        LogHeld: somebody may change them while they are read.
    """
    found = _holder(root, names, place)
    if found is not None:
        raise _held_elsewhere(place, os.path.join(root, place.file), *found)


def broker_of(root: str, place: Place = KAFKA) -> str | None:
    """The broker that has the whole of ``root``, as people read it; None: there is none."""
    with _looking(root, place) as (handle, entry):
        if handle is None or (entry is not None and entry.held):
            return None
        blocker = _blocker(handle, place, 0)
    return str(blocker).rstrip(",") if blocker is not None and blocker.is_broker else None


def _holder(
    root: str, names: Collection[TopicPartition] | None, place: Place
) -> tuple[_Blocker, TopicPartition | None] | None:
    """Somebody who holds one of ``names``, and which."""
    asked: list[TopicPartition | None] = [None] if names is None else list(names)
    with _looking(root, place) as (handle, entry):
        if handle is None:
            return None
        if entry is not None:
            for name in asked:
                if (
                    name is None
                    and entry.held
                    or name is not None
                    and place.byte_of(name) in entry.held
                ):
                    return _Blocker(os.getpid(), False), name or next(iter(entry.held.values()))
        broker = _blocker(handle, place, 0) if place.turn else None
        if broker is not None and broker.is_broker:
            return broker, asked[0]
        for name in asked:
            start, length = (place.turn + 1, 0) if name is None else (place.byte_of(name), 1)
            found = _blocker(handle, place, start, length)
            if found is not None:
                return found, name
    return None


@contextlib.contextmanager
def _looking(root: str, place: Place) -> Iterator[tuple[int | None, _Root | None]]:
    """A handle of the lock file to ask by, and what this process has locked; None: there is no such file."""
    path = os.path.join(root, place.file)
    with _registry:
        entry = _roots.get(_key(root, place))
        handle: int | None = None
        try:
            with contextlib.suppress(FileNotFoundError):
                handle = os.open(path, os.O_RDONLY) if entry is None else entry.handle
            yield handle, entry
        except OSError as error:
            raise to_log_error(error, path, "see whether the log is held") from error
        finally:
            if entry is None and handle is not None:
                os.close(handle)


def _held_elsewhere(
    place: Place, path: str, blocker: _Blocker | None, name: TopicPartition | None
) -> LogHeld:
    if blocker is None:  # it let go in the meantime
        return LogHeld(
            f"somebody else worked on {name} a moment ago", path=path, remedy="try again"
        )
    what = (
        place.what
        if blocker.is_broker
        else f"a part of {place.what}"
        if name is None
        else str(name)
    )
    return LogHeld(f"{blocker} holds {what}", path=path, remedy=_STOP_OR_WAIT)


# ---------------------------------------------------------------------- the root's own files


@contextlib.contextmanager
def root_turn(root: str, place: Place = KAFKA) -> Iterator[None]:
    """Be alone in reading and rewriting a file of the root itself, such as a checkpoint; waits for others' turns.

    Raises:
        LogHeld: a broker holds the root, or somebody keeps the turn for longer than ``place`` allows.
        LogError: the root cannot be written.
    """
    entry = _enter(root, place)
    try:
        with entry.turn:
            _wait_for_turn(entry)
            try:
                yield
            finally:
                with _registry:
                    _unlock(entry, place.turn)
    finally:
        _leave(entry)


def _wait_for_turn(entry: _Root) -> None:
    # Asking again and again, because a wait in the system has no end and cannot tell a broker from a turn.
    place = entry.place
    deadline = time.monotonic() + place.turn_s
    pause = 0.0005
    while not _lock(entry, place.turn):
        blocker = _blocker(entry.handle, place, place.turn)
        if blocker is not None and (blocker.is_broker or time.monotonic() > deadline):
            raise _held_elsewhere(place, entry.path, blocker, None)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


@contextlib.contextmanager
def unopened(root: str, place: Place) -> Iterator[None]:
    """For a moment, inside ``root_turn``: nobody else has the lock file open, and who opens it waits.

    A RocketMQ broker opens the file when it is made and locks it only when it has read the whole store: what it has
    begun to read must not be exchanged. Linux tells, to the file's owner, by a lease. Where nobody tells, or another
    run has the file open as well, the context does nothing.

    Raises:
        LogHeld: somebody has it open.
    """
    with _registry:
        entry = _roots[_key(root, place)]
        deadline = time.monotonic() + _OPEN_S
        pause = 0.0005
        while (is_leased := _lease(entry)) is None:
            guard = _blocker(entry.handle, place, 0)
            if guard is not None and not guard.is_broker:
                break
            if time.monotonic() > deadline:
                raise LogHeld(
                    f"somebody has the lock file open; perhaps a broker that is starting reads {place.what}",
                    path=entry.path,
                    remedy=_STOP_OR_WAIT,
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        try:
            yield
        finally:
            if is_leased:
                with contextlib.suppress(OSError):
                    fcntl.fcntl(entry.handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _lease(entry: _Root) -> bool | None:
    """Whether nobody else has the file open: True, and who opens it waits; None: somebody has; False: not known."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        # Who opens it makes the system send a signal, by default one that ends the process.
        fcntl.fcntl(entry.handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(entry.handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return None if error.errno == errno.EAGAIN else False
    return True


# ---------------------------------------------------------------------- the handle


def _key(root: str, place: Place) -> str:
    return os.path.join(os.path.realpath(root), place.file)


def _enter(root: str, place: Place) -> _Root:
    key = _key(root, place)
    path = os.path.join(root, place.file)
    with _registry:
        entry = _roots.get(key)
        if entry is None:
            try:
                entry = _Root(place, key, path, os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            except OSError as error:
                raise to_log_error(error, path, "lock the log") from error
            if place.turn:
                _share(entry)
            _roots[key] = entry
        entry.users += 1
        return entry


def _share(entry: _Root) -> None:
    """Keep brokers away whose lock would not cover our bytes."""
    try:
        if not _lock(entry, 0, entry.place.turn, is_shared=True):
            raise _held_elsewhere(
                entry.place, entry.path, _blocker(entry.handle, entry.place, 0), None
            )
    except BaseException:
        os.close(entry.handle)
        raise


def _leave(entry: _Root) -> None:
    with _registry:
        entry.users -= 1
        if not entry.users and entry.handle != _GONE:
            del _roots[entry.key]
            os.close(entry.handle)


def _lock(entry: _Root, byte: int, length: int = 1, *, is_shared: bool = False) -> bool:
    """Whether the bytes are ours now."""
    try:
        fcntl.lockf(
            entry.handle,
            (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB,
            length,
            byte,
        )
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


def _blocker(handle: int, place: Place, start: int, length: int = 1) -> _Blocker | None:
    """Which other process has a lock on the bytes; None: nobody has."""
    answer = fcntl.fcntl(handle, fcntl.F_GETLK, _FLOCK.question(start, length))
    kind, first, covered, pid = _FLOCK.answer(answer)
    if kind == fcntl.F_UNLCK:
        return None
    return _Blocker(pid, place.is_brokers(kind, first, covered))


__all__ = [
    "FILE",
    "KAFKA",
    "Place",
    "broker_of",
    "byte_of",
    "hold",
    "holds",
    "is_held",
    "refuse_if_held",
    "root_turn",
    "try_hold",
    "unopened",
]
