"""Locks of partitions in a log root: ``storage.lock`` on the broker's ``.lock`` file.

Archives have no locks: of two concurrent commits, the second fails.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from lastwrite.errors import InvalidConfig, LogHeld
from lastwrite.kafka.format.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    live_partition,
)
from lastwrite.kafka.store import archived, links, tiered
from lastwrite.model.log import TopicPartition
from lastwrite.storage import lock as locking
from lastwrite.storage.lock import LockPlace
from lastwrite.storage.objects.promises import reject_if_broken

FILE = ".lock"
# If a broker's start time is unknown, its high watermarks must be at most this old. By default, a
# broker writes them every five seconds.
_NOTES_AT_LEAST_S = 60.0
# High watermarks written sooner after a broker's start may be those of the previous broker.
_STARTS_AT_LEAST_S = 1.0
PLACE = LockPlace(
    FILE,
    "the log root",
    root_lock_byte=0,
    root_lock_s=60.0,  # most seconds to wait for the lock; normally it is free after milliseconds
    siblings=(META_PROPERTIES, RECOVERY_POINTS, HIGH_WATERMARKS, CLEANER_OFFSETS),
)

byte_of = PLACE.byte_of
holds = partial(locking.holds, place=PLACE)
root_turn = partial(locking.root_lock, place=PLACE)
siblings = partial(locking.siblings, place=PLACE)


def broker_of(root: str) -> LogHeld | None:
    """The error that names the broker that has the root open.

    None if no broker has it open, or if the root is an archive.
    """
    return None if archived.is_root(root, ()) else locking.broker_of(root, PLACE)


def is_tier(root: str) -> bool:
    """Whether the root is the folder of a tier, which is only read and has no locks."""
    return not links.is_brokers(root) and tiered.is_root(root)


def reject_tier(root: str) -> None:
    """Check that a root is not a broker's tier, which Lastwrite never changes.

    Raises:
        InvalidConfig: the root is a broker's tier.
    """
    if is_tier(root):
        why, options = "the path is a broker's tier, which Lastwrite only reads", ""
        if tiered.is_located(root):
            why = (
                "the path is a bucket of AutoMQ, which Lastwrite only reads: the controller owns "
                "its objects, and deletes objects that its metadata does not list"
            )
            options = " --system automq --metadata PATH"
        raise InvalidConfig(
            why,
            path=root,
            remedy="fetch the topics into an archive, and compact the archive: lastwrite fetch "
            f"{root}{options} --to ARCHIVE, then lastwrite compact ARCHIVE",
        )


@contextlib.contextmanager
def hold(root: str, names: Iterable[TopicPartition]) -> Iterator[None]:
    """A context that locks partitions of a log root, against brokers and other runs.

    If a folder is a symbolic link, the roots along its path are locked too.

    Raises:
        LogHeld, LogError: as ``storage.lock.hold``, or a folder links into another broker's root.
        InvalidConfig: the root is a broker's tier.
    """
    names = list(names)
    reject_tier(root)
    if archived.is_root(root, names):
        reject_if_broken(os.path.dirname(root))
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(locking.hold(root, names, PLACE))
        for other, inside in _other_roots(root, names).items():
            if links.is_brokers(root) and links.is_brokers(other):
                raise LogHeld(
                    f"the partition's folder {inside[0][0]} is a symbolic link into another "
                    f"broker's log root, {other}",
                    path=os.path.join(root, str(inside[0][0])),
                    remedy="give the partition's path in that log root, and remove the link",
                )
            stack.enter_context(locking.hold(other, [there for _, there in inside], PLACE))
        _reject_if_written(root, names)
        yield


def try_lock(
    root: str, names: Iterable[TopicPartition]
) -> AbstractContextManager[set[TopicPartition]]:
    """Lock the partitions of a root that are free now. Yields the set of locked partitions.

    Raises:
        LogError: the root cannot be written.
    """
    return locking.try_each(names, lambda name: hold(root, [name]))


def is_locked(root: str, names: Collection[TopicPartition] | None = None) -> bool:
    """Whether a broker or a run has locked one of the partitions ``names``.

    Runs of this process count, too. ``names`` None means any partition.
    """
    return locking.is_locked(root, names, PLACE)


def reject_if_locked(root: str, names: Collection[TopicPartition] | None = None) -> None:
    """Check that ``names`` can be read. None means all partitions of the root.

    A broker that has the root open is no obstacle once it has started
    (docs/decisions/beside-a-broker.md).

    Raises:
        LogHeld: a process may change the partitions while they are read.
    """
    if archived.is_root(root, names or ()) or is_tier(root):
        return
    try:
        locking.reject_if_locked(root, names, PLACE)
    except LogHeld:
        if broker_of(root) is None:
            raise
        reject_starting(root)
    if names is not None:
        for other, inside in _other_roots(root, names).items():
            locking.reject_if_locked(other, [there for _, there in inside], PLACE)


def reject_starting(root: str) -> None:
    """Check that no broker is starting, because it truncates logs and rebuilds indexes then.

    A broker writes high watermarks when it has loaded all logs, and then every few seconds.

    Raises:
        LogHeld: the broker has written no high watermark since it started.
    """
    pid = locking.broker_pid(root, PLACE)
    if pid is None:
        return
    begun_s = process_start_s(pid)
    if begun_s is None:
        begun_s = time.time() - _NOTES_AT_LEAST_S
    path = os.path.join(root, HIGH_WATERMARKS)
    try:
        noted_s = os.stat(path).st_mtime
    except OSError:
        noted_s = 0.0
    if noted_s < begun_s + _STARTS_AT_LEAST_S:
        raise LogHeld(
            "a broker is starting on the log root: it has not written the high watermarks yet",
            path=path,
            remedy="try again in a few seconds",
        )


def process_start_s(pid: int) -> float | None:
    """The start time of a process on this machine, in seconds since 1970. None if unknown."""
    if pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot_s + ticks / os.sysconf("SC_CLK_TCK")


def _other_roots(
    root: str, names: Iterable[TopicPartition]
) -> dict[str, list[tuple[TopicPartition, TopicPartition]]]:
    """The other log roots along the symbolic links of partition folders.

    For each of these roots, the result has pairs of names: the partition's name in ``root``, and
    its name in the other root.
    """
    found: dict[str, list[tuple[TopicPartition, TopicPartition]]] = {}
    for name in names:
        folder = os.path.join(root, str(name))
        if os.path.islink(folder):
            for way in list(links.ways_to(folder))[1:]:
                there = live_partition(os.path.basename(way)) or name
                found.setdefault(os.path.dirname(way), []).append((name, there))
    found.pop(os.path.realpath(root), None)  # the same root by another path is locked already
    return found


def _reject_if_written(root: str, names: Iterable[TopicPartition]) -> None:
    """Check that no broker has one of the logs open by another path.

    Only a root without a broker's files is checked. On Linux, a process that has the active segment
    open for writing can be detected.

    Raises:
        LogHeld: a process has the active segment open for writing.
    """
    if links.is_brokers(root):
        return
    for name in names:
        try:
            folder = os.path.join(root, str(name))
            active = max(
                (entry for entry in os.listdir(folder) if entry.endswith(".log")), default=None
            )
        except OSError:  # reading the partition will report the error
            continue
        if active is not None and _is_written(os.path.join(folder, active)):
            raise LogHeld(
                "a process has the segment open for writing; it may be a broker that uses another "
                "path to this folder",
                path=os.path.join(folder, active),
                remedy=locking.STOP_OR_WAIT,
            )


def _is_written(path: str) -> bool:
    """Whether a process has the file open for writing. False if this cannot be determined.

    Linux grants a read lease only on a file that no process has open for writing. The lease is
    released at once.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # An open by another process breaks the lease with a signal. The default signal would end
        # this process.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(handle)
