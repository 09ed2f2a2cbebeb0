"""Locks on partitions of a log root: byte-range locks on the broker's own lock file.

A broker holds an exclusive POSIX record lock on that file while it runs. Lastwrite locks single
bytes of the file, one for each log that a run changes. In Kafka, whose broker locks all of
``<root>/.lock``::

    0                           the root lock: held while a file in the root is rewritten
    1 + 62 bits of a hash       the partition <topic>-<partition>

In RocketMQ, whose broker locks only the first byte of ``STORE/lock``::

    0                           the broker's byte; runs lock it in shared mode
    1                           the root lock
    2 + 62 bits of a hash       the queue

Runs on different logs can therefore share a root. A run that holds a single byte prevents a broker
from starting, and a broker prevents every run. A crash releases the locks.

Record locks belong to a process, with three consequences. ``flock`` does not detect them. A second
run in the same process could lock the same bytes, so this module has a registry of its locks.
Closing *any* handle of the file releases all of the process's locks on it, so a process has one
handle per root.

Source: Kafka 4.4 ``FileLock`` (``FileChannel.tryLock``: from 0, without end); RocketMQ 5.5.0
``DefaultMessageStore.start`` (``tryLock(0, 1, false)``).
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
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from lastwrite.errors import LogHeld
from lastwrite.model.log import TopicPartition
from lastwrite.storage import ownership
from lastwrite.storage.files import to_log_error

_HASH_BITS = 62  # bits of the hash; the byte's position then fits a file offset of 63 bits
_LONGEST_PAUSE_S = 0.02
_OPEN_S = 2.0  # seconds to wait for a process that has the lock file open only to check locks
_GONE = -1
STOP_OR_WAIT = "stop that process, or wait until it has finished"


@dataclass(frozen=True, slots=True)
class LockPlace:
    """The lock file of a system's roots, and the bytes of it that brokers and Lastwrite lock."""

    file: str
    root_word: str  # the word for a root in error messages, such as "the store"
    # byte of the root lock; a broker locks the lower bytes exclusively, and runs lock them in
    # shared mode
    root_lock_byte: int
    root_lock_s: float  # seconds to wait for another process that holds the root lock
    # files of the broker in the root; a new lock file gets the mode of the first that exists
    siblings: tuple[str, ...] = ()

    def byte_of(self, name: TopicPartition) -> int:
        """The position in the lock file of the byte that stands for a partition."""
        digest = hashlib.blake2b(str(name).encode(errors="surrogateescape"), digest_size=8).digest()
        return self.root_lock_byte + 1 + (int.from_bytes(digest, "big") >> (64 - _HASH_BITS))

    def is_brokers(self, kind: int, start: int, length: int) -> bool:
        """Whether a lock of this kind on these bytes is a broker's. ``length`` 0 means no end."""
        return kind == fcntl.F_WRLCK and start == 0 and (self.root_lock_byte > 0 or length != 1)


@dataclass(slots=True)
class _Root:
    """The process's only handle of a root's lock file, and the locks held through it."""

    place: LockPlace
    key: str  # the file's real path
    path: str
    handle: int
    users: int = 0
    held: dict[int, TopicPartition] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Blocker:
    """Another process that has locked a byte which this process requested."""

    pid: int  # process id; 0 or negative on another machine or in another container
    is_broker: bool

    def __str__(self) -> str:
        process = (
            f" (process {self.pid})"
            if self.pid > 0
            else " (on another machine or in another container)"
        )
        return f"a broker{process}" if self.is_broker else f"another run{process}"


_roots: dict[str, _Root] = {}
_registry = threading.RLock()


def _forget() -> None:
    """Reset the registry after a fork: the child inherits the registry, but no lock."""
    global _registry
    _registry = threading.RLock()
    for entry in _roots.values():
        os.close(entry.handle)
        entry.handle = _GONE
    _roots.clear()


os.register_at_fork(after_in_child=_forget)


# ---------------------------------------------------------------------- partitions


@contextlib.contextmanager
def hold(root: str, names: Iterable[TopicPartition], place: LockPlace) -> Iterator[None]:
    """Lock the partitions ``names`` of ``root`` against brokers and other runs, all or none.

    The lock file is created if missing, with the root's owner. Lastwrite never deletes it.

    Raises:
        LogHeld: a broker, another process or another run in this process holds a partition. The
            message names the holder and the partition. Also raised if a broker may hold it.
        LogError: the root cannot be written.
    """
    wanted = {place.byte_of(name): name for name in names}
    entry = _enter(root, place)
    taken: list[int] = []
    try:
        for byte in sorted(wanted):
            _take(entry, byte, wanted[byte])
            taken.append(byte)
        _reject_removed(entry)
        yield
    finally:
        with _registry:
            for byte in taken:
                del entry.held[byte]
                _unlock(entry, byte)
        _leave(entry)


def try_lock(
    root: str, names: Iterable[TopicPartition], place: LockPlace
) -> AbstractContextManager[set[TopicPartition]]:
    """Lock the free partitions among ``names``.

    Yields the names of the locked partitions.

    Raises:
        LogError: the root cannot be written.
    """
    return try_each(names, lambda name: hold(root, [name], place))


@contextlib.contextmanager
def try_each(
    names: Iterable[TopicPartition],
    hold_one: Callable[[TopicPartition], AbstractContextManager[None]],
) -> Iterator[set[TopicPartition]]:
    """Lock those of the partitions that are free, by ``hold_one``.

    Yields the names of these partitions.
    """
    with contextlib.ExitStack() as stack:
        got = set()
        for name in names:
            with contextlib.suppress(LogHeld):
                stack.enter_context(hold_one(name))
                got.add(name)
        yield got


def _reject_removed(entry: _Root) -> None:
    """Check that the lock file, which is locked now, still exists under its name.

    Kafka's broker deletes its lock file when it stops. A lock on the deleted file excludes nothing.

    Raises:
        LogHeld: the file was deleted.
    """
    try:
        here, there = os.fstat(entry.handle), os.stat(entry.path)
        is_same = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
    except FileNotFoundError:
        is_same = False
    if not is_same:
        raise LogHeld(
            "a broker deleted the lock file when it stopped, during the command",
            path=entry.path,
            remedy="run the command again",
        )


def _take(entry: _Root, byte: int, name: TopicPartition) -> None:
    with _registry:
        if byte in entry.held:
            raise LogHeld(
                f"{name} is locked by another run in this process",
                path=entry.path,
                remedy=STOP_OR_WAIT,
            )
        if not _lock(entry, byte):
            raise _locked_error(
                entry.place, entry.path, _blocker(entry.handle, entry.place, byte), name
            )
        entry.held[byte] = name


def holds(root: str, name: TopicPartition, place: LockPlace) -> bool:
    """Whether this process has locked the partition."""
    with _registry:
        entry = _roots.get(_key(root, place))
        return entry is not None and place.byte_of(name) in entry.held


def is_locked(root: str, names: Collection[TopicPartition] | None, place: LockPlace) -> bool:
    """Whether a broker or a run, also of this process, has locked one of ``names``.

    ``names`` None means any partition.
    """
    return _holder(root, names, place) is not None


def reject_if_locked(root: str, names: Collection[TopicPartition] | None, place: LockPlace) -> None:
    """Check that no broker and no run has locked the partitions, before they are read.

    ``names`` None means all partitions of the root.

    Raises:
        LogHeld: a partition is locked, so it may change while it is read.
    """
    found = _holder(root, names, place)
    if found is not None:
        raise _locked_error(place, os.path.join(root, place.file), *found)


def broker_of(root: str, place: LockPlace) -> LogHeld | None:
    """The error that names the broker that has locked ``root``. None if there is no broker."""
    blocker = _broker(root, place)
    if blocker is None:
        return None
    return _locked_error(place, os.path.join(root, place.file), blocker, None)


def broker_pid(root: str, place: LockPlace) -> int | None:
    """The process id of the broker that has locked ``root``. None if there is no broker.

    0 or a negative number means another machine or container.
    """
    blocker = _broker(root, place)
    return None if blocker is None else blocker.pid


def _broker(root: str, place: LockPlace) -> _Blocker | None:
    with _query_handle(root, place) as (handle, entry):
        if handle is None or (entry is not None and entry.held):
            return None
        blocker = _blocker(handle, place, 0)
    return blocker if blocker is not None and blocker.is_broker else None


def _holder(
    root: str, names: Collection[TopicPartition] | None, place: LockPlace
) -> tuple[_Blocker, TopicPartition | None] | None:
    """The process that has locked one of ``names``, and that name. None if all are free."""
    asked: list[TopicPartition | None] = [None] if names is None else list(names)
    with _query_handle(root, place) as (handle, entry):
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
        broker = _blocker(handle, place, 0) if place.root_lock_byte else None
        if broker is not None and broker.is_broker:
            return broker, asked[0]
        for name in asked:
            start, length = (
                (place.root_lock_byte + 1, 0) if name is None else (place.byte_of(name), 1)
            )
            found = _blocker(handle, place, start, length)
            if found is not None:
                return found, name
    return None


@contextlib.contextmanager
def _query_handle(root: str, place: LockPlace) -> Iterator[tuple[int | None, _Root | None]]:
    """A handle of the lock file for queries, and the locks of this process.

    The handle is None if there is no lock file. The locks are None if this process has none.
    """
    path = os.path.join(root, place.file)
    with _registry:
        entry = _roots.get(_key(root, place))
        handle: int | None = None
        try:
            with contextlib.suppress(FileNotFoundError):
                handle = os.open(path, os.O_RDONLY) if entry is None else entry.handle
            yield handle, entry
        except OSError as error:
            raise to_log_error(error, path, "read the lock of the log") from error
        finally:
            if entry is None and handle is not None:
                os.close(handle)


def _locked_error(
    place: LockPlace, path: str, blocker: _Blocker | None, name: TopicPartition | None
) -> LogHeld:
    if blocker is None:  # meanwhile, the other process has released the lock
        return LogHeld(
            f"{name} was locked by another process a moment ago",
            path=path,
            remedy="run the command again",
        )
    what = (
        place.root_word
        if blocker.is_broker
        else f"a part of {place.root_word}"
        if name is None
        else str(name)
    )
    remedy = "stop the broker first" if blocker.is_broker else STOP_OR_WAIT
    return LogHeld(f"{what} is locked by {blocker}", path=path, remedy=remedy)


# ---------------------------------------------------------------------- the root's own files


@contextlib.contextmanager
def root_lock(root: str, place: LockPlace) -> Iterator[None]:
    """A context that holds the lock for rewriting a root's file, such as a checkpoint.

    Entering the context waits for the lock.

    Raises:
        LogHeld: a broker holds the root, or another run holds this lock for too long.
        LogError: the root cannot be written.
    """
    entry = _enter(root, place)
    try:
        with entry.lock:
            _wait_for_root_lock(entry)
            try:
                yield
            finally:
                with _registry:
                    _unlock(entry, place.root_lock_byte)
    finally:
        _leave(entry)


def _wait_for_root_lock(entry: _Root) -> None:
    # Polling, because a blocking wait has no timeout, and cannot distinguish a broker from a run.
    place = entry.place
    deadline = time.monotonic() + place.root_lock_s
    pause = 0.0005
    while not _lock(entry, place.root_lock_byte):
        blocker = _blocker(entry.handle, place, place.root_lock_byte)
        if blocker is not None and (blocker.is_broker or time.monotonic() > deadline):
            raise _locked_error(place, entry.path, blocker, None)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


@contextlib.contextmanager
def unopened(root: str, place: LockPlace) -> Iterator[None]:
    """A context in which no other process can open the lock file. Use it inside ``root_lock``.

    A RocketMQ broker opens the file first, and locks it only after it has read the whole store.
    Files must not be exchanged after a broker has started to read them. On Linux, the owner of the
    lock file can take a lease, which shows whether the file is open elsewhere. Without leases, or
    if another run has the file open, the context does nothing.

    Raises:
        LogHeld: another process has the file open.
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
                    "another process has the lock file open; it may be a broker that is "
                    f"starting and reads {place.root_word}",
                    path=entry.path,
                    remedy=STOP_OR_WAIT,
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
    """Take a lease on the open lock file.

    True means that the lease is held: no other process has the file open or can open it. None means
    that another process has the file open. False means that leases are not available.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        # When another process opens the file, the kernel sends a signal. The default signal would
        # end this process, but SIGURG does not.
        fcntl.fcntl(entry.handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(entry.handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return None if error.errno == errno.EAGAIN else False
    return True


# ---------------------------------------------------------------------- the handle


def _key(root: str, place: LockPlace) -> str:
    return os.path.join(os.path.realpath(root), place.file)


def _enter(root: str, place: LockPlace) -> _Root:
    key = _key(root, place)
    path = os.path.join(root, place.file)
    with _registry:
        entry = _roots.get(key)
        if entry is None:
            try:
                entry = _Root(place, key, path, _open(root, place))
            except OSError as error:
                raise to_log_error(error, path, "lock the log") from error
            if place.root_lock_byte:
                _share(entry)
            _roots[key] = entry
        entry.users += 1
        return entry


def siblings(root: str, place: LockPlace) -> list[str]:
    """The broker's files in ``root``. A new file gets the mode of the first that exists."""
    return [os.path.join(root, name) for name in place.siblings]


def _open(root: str, place: LockPlace) -> int:
    """Open the lock file, or create it atomically, so that the broker's user can open it."""
    path = os.path.join(root, place.file)
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return _make(path, root, place)
    seen = os.fstat(handle)
    if seen.st_uid == os.geteuid() != os.stat(root).st_uid and not os.path.islink(path):
        # Correct the owner: an earlier release, run as root, created the file in the broker's
        # folder.
        with contextlib.suppress(OSError):
            ownership.give(handle, ownership.of_new(root, siblings(root, place)).as_far_as_may())
    return handle


def _make(path: str, root: str, place: LockPlace) -> int:
    like = ownership.of_new(root, siblings(root, place)).as_far_as_may()
    made = f"{path}.{os.getpid()}"
    handle = ownership.make(made, like, is_new=False)
    try:
        # link instead of renaming: a link never replaces a lock file that a broker has just created
        os.link(made, path)
        return handle
    except OSError as error:
        os.close(handle)
        if error.errno == errno.EEXIST:
            return os.open(path, os.O_RDWR)
        # on a file system without links, create the file under its final name
        try:
            return ownership.make(path, like)
        except FileExistsError:
            return os.open(path, os.O_RDWR)
    finally:
        os.unlink(made)


def _share(entry: _Root) -> None:
    """Lock the broker's bytes in shared mode, which excludes brokers but not other runs."""
    try:
        if not _lock(entry, 0, entry.place.root_lock_byte, is_shared=True):
            raise _locked_error(
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
    """Try to lock bytes of the lock file. Returns whether they are locked now."""
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


def _blocker(handle: int, place: LockPlace, start: int, length: int = 1) -> _Blocker | None:
    """The other process with a lock on the bytes. None if the bytes are free."""
    answer = fcntl.fcntl(handle, fcntl.F_GETLK, _FLOCK.question(start, length))
    kind, first, covered, pid = _FLOCK.answer(answer)
    if kind == fcntl.F_UNLCK:
        return None
    return _Blocker(pid, place.is_brokers(kind, first, covered))


__all__ = [
    "LockPlace",
    "broker_of",
    "broker_pid",
    "hold",
    "holds",
    "is_locked",
    "reject_if_locked",
    "root_lock",
    "siblings",
    "try_each",
    "try_lock",
    "unopened",
]
