"""Who works on what in a log root: ``storage.lock`` on the broker's ``.lock``; links too.

Of an archive nobody locks anything: whoever commits second has lost, if the store keeps its word.
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
from lastwrite.storage.objects.promises import refuse_if_broken

FILE = ".lock"
_NOTES_AT_LEAST_S = 60.0  # by default every five seconds
_STARTS_AT_LEAST_S = 1.0  # a note of that time after its begin may be of the process before
PLACE = LockPlace(
    FILE,
    "the log root",
    turn=0,
    turn_s=60.0,  # a turn takes milliseconds
    siblings=(META_PROPERTIES, RECOVERY_POINTS, HIGH_WATERMARKS, CLEANER_OFFSETS),
)

byte_of = PLACE.byte_of
holds = partial(locking.holds, place=PLACE)
root_turn = partial(locking.root_turn, place=PLACE)
siblings = partial(locking.siblings, place=PLACE)


def broker_of(root: str) -> LogHeld | None:
    """As ``storage.lock.broker_of``."""
    return None if archived.is_root(root, ()) else locking.broker_of(root, PLACE)


def is_tier(root: str) -> bool:
    """Whether it is the folder of a tier, where nobody locks anything."""
    return not links.is_brokers(root) and tiered.is_root(root)


def refuse_tier(root: str) -> None:
    """
    Raises:
        InvalidConfig: a broker's tier lies there.
    """
    if is_tier(root):
        raise InvalidConfig(
            "the segments of a broker's tier are only read",
            path=root,
            remedy="bring them into an archive and compact that: "
            f"lastwrite fetch {root} --to ARCHIVE, then lastwrite compact ARCHIVE",
        )


@contextlib.contextmanager
def hold(root: str, names: Iterable[TopicPartition]) -> Iterator[None]:
    """As ``storage.lock.hold``. Of a folder that is a symbolic link the roots on the way are locked
    too.

    Raises:
        LogHeld, LogError: as there; or a folder is a symbolic link into another broker's root.
        InvalidConfig: it is a broker's tier.
    """
    names = list(names)
    refuse_tier(root)
    if archived.is_root(root, names):
        refuse_if_broken(os.path.dirname(root))
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(locking.hold(root, names, PLACE))
        for other, inside in _other_roots(root, names).items():
            if links.is_brokers(root) and links.is_brokers(other):
                raise LogHeld(
                    f"{inside[0][0]} is a symbolic link into another broker's log root, {other}",
                    path=os.path.join(root, str(inside[0][0])),
                    remedy="give the path below the root that has it, and take the link away",
                )
            stack.enter_context(locking.hold(other, [there for _, there in inside], PLACE))
        _refuse_if_written(root, names)
        yield


def try_hold(
    root: str, names: Iterable[TopicPartition]
) -> AbstractContextManager[set[TopicPartition]]:
    """As ``hold``, of those that are free now: the context gives which.

    Raises:
        LogError: the root cannot be written.
    """
    return locking.try_each(names, lambda name: hold(root, [name]))


def is_held(root: str, names: Collection[TopicPartition] | None = None) -> bool:
    """Whether a broker or a run, also of this process, holds one of ``names`` (None: any)."""
    return locking.is_held(root, names, PLACE)


def refuse_if_held(root: str, names: Collection[TopicPartition] | None = None) -> None:
    """For work that only reads ``names`` (None: whatever lies in the root). A broker that has the
    root does not stand in its way (docs/decisions/beside-a-broker.md), once it has started.

    Raises:
        LogHeld: somebody may change them while they are read.
    """
    if archived.is_root(root, names or ()) or is_tier(root):
        return
    try:
        locking.refuse_if_held(root, names, PLACE)
    except LogHeld:
        if broker_of(root) is None:
            raise
        refuse_starting(root)
    if names is not None:
        for other, inside in _other_roots(root, names).items():
            locking.refuse_if_held(other, [there for _, there in inside], PLACE)


def refuse_starting(root: str) -> None:
    """A broker that starts cuts logs and makes indexes anew. It notes high watermarks once it has
    loaded them all, and then every few seconds.

    Raises:
        LogHeld: it has noted none since it began.
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
            "a broker that has the log root has noted no high watermark yet: it is starting",
            path=path,
            remedy="try again in some seconds",
        )


def process_start_s(pid: int) -> float | None:
    """When a process of this machine began, in seconds since 1970; None: nobody tells."""
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
    """Other roots on the ways of linked folders, and what each is called here and there."""
    found: dict[str, list[tuple[TopicPartition, TopicPartition]]] = {}
    for name in names:
        folder = os.path.join(root, str(name))
        if os.path.islink(folder):
            for way in list(links.ways_to(folder))[1:]:
                there = live_partition(os.path.basename(way)) or name
                found.setdefault(os.path.dirname(way), []).append((name, there))
    found.pop(
        os.path.realpath(root), None
    )  # a second name beside the first: the same root is locked
    return found


def _refuse_if_written(root: str, names: Iterable[TopicPartition]) -> None:
    """Where nothing tells whose root it is, a broker may have the folder by another name: it has
    the active segment open for writing, and Linux tells so.

    Raises:
        LogHeld: somebody has.
    """
    if links.is_brokers(root):
        return
    for name in names:
        try:
            folder = os.path.join(root, str(name))
            active = max(
                (entry for entry in os.listdir(folder) if entry.endswith(".log")), default=None
            )
        except OSError:  # reading the partition will say it
            continue
        if active is not None and _is_written(os.path.join(folder, active)):
            raise LogHeld(
                "a process has the segment open for writing, perhaps a broker that uses another path",
                path=os.path.join(folder, active),
                remedy=locking.STOP_OR_WAIT,
            )


def _is_written(path: str) -> bool:
    """Whether anybody has the file open for writing; False too where the system does not tell.

    A lease for reading is granted on a file that nobody has open so. It is let go at once.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Who opens it in this moment makes the system send a signal, by default one that ends the
        # process.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(handle)
