"""Locks of a RocketMQ store, and ``STORE/abort``.

The locks are ``storage.lock`` on the broker's own ``STORE/lock``.

A broker locks the first byte of ``lock`` while it runs. ``abort`` exists from its start to its
clean stop; if it exists without the lock, a broker was killed. The commit log and the queues may
then end at different records. The next start of the broker repairs that: it dispatches the missing
records again (docs/formats/rocketmq-compaction.md). Compaction of such a store keeps the record
with the highest offset of each queue. But it may drop records in favor of later records that the
commit log has lost. So compaction of the store requires ``--unclean``.

An archive needs no lock: the second of two concurrent commits fails.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress

from lastwrite.errors import LogHeld
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.names import COMMIT_LOG, CUT_GUARD
from lastwrite.rocketmq.store import archived, links
from lastwrite.storage import lock
from lastwrite.storage.files import to_log_error
from lastwrite.storage.objects.promises import reject_if_broken

FILE = "lock"
ABORT = "abort"

# ``root_lock_s`` is long, because a command that holds the root lock links every file of the
# store's folder, or copies the files if the file system has no hard links.
PLACE = lock.LockPlace(
    FILE,
    "the store",
    root_lock_byte=1,
    root_lock_s=600.0,
    siblings=("checkpoint", ABORT, "config/topics.json"),
)

_PID_CHARACTERS = 20


def hold(root: str, names: Iterable[TopicPartition]) -> AbstractContextManager[None]:
    """Lock these queues of the store against brokers and other commands; see ``storage.lock.hold``.

    Raises:
        InvalidConfig: a part of the store is in another store, by a link.
    """
    if archived.is_root(root):
        reject_if_broken(os.path.dirname(root))
        return nullcontext()
    links.reject_others(root)
    return lock.hold(root, names, PLACE)


def try_lock(
    root: str, names: Iterable[TopicPartition]
) -> AbstractContextManager[set[TopicPartition]]:
    """Lock the queues that no other command has locked.

    The context's value is the set of the locked queues. Raises the errors of ``hold``.
    """
    links.reject_others(root)
    return lock.try_lock(root, names, PLACE)


def holds(root: str, name: TopicPartition) -> bool:
    """Whether this process holds the lock of the queue."""
    return lock.holds(root, name, PLACE)


def reject_if_locked(root: str, names: Collection[TopicPartition] | None = None) -> None:
    """Raise if another command may change the queues ``names``. None means all queues of the store.

    A store that a broker has open may be read (docs/decisions/beside-a-broker.md), because a broker
    takes its lock after it has repaired the effects of a crash.

    Raises:
        LogHeld: a command may change the queues while they are read.
        InvalidConfig: a part of the store is in another store, by a link.
    """
    if archived.is_root(root):
        return
    links.reject_others(root)
    if broker_of(root) is None:
        lock.reject_if_locked(root, names, PLACE)


def reject_broker(root: str) -> None:
    """Raise if a broker serves the store. Called before long work that needs ``hold`` at its end.

    Raises:
        LogHeld: a broker serves the store.
        InvalidConfig: a part of the store is in another store, by a link.
    """
    links.reject_others(root)
    broker = broker_of(root)
    if broker is not None:
        raise broker


def broker_of(root: str) -> LogHeld | None:
    """The error that states that a broker serves the store. None if there is no such broker."""
    return None if archived.is_root(root) else lock.broker_of(root, PLACE)


def exclusive(root: str) -> AbstractContextManager[None]:
    """Exclusive access to the folder ``compaction`` and its positions file, which queues share.

    Raises:
        LogHeld: a broker has the store, or another command has this access.
        LogError: the store cannot be written.
    """
    return lock.root_lock(root, PLACE)


def unopened(root: str) -> AbstractContextManager[None]:
    """Block brokers from starting on the store. Use inside ``exclusive``.

    See ``storage.lock.unopened``.
    """
    return lock.unopened(root, PLACE)


# ---------------------------------------------------------------------- abort


def was_killed(root: str) -> bool:
    """Whether the store's broker was not stopped cleanly, or is still running."""
    return os.path.lexists(os.path.join(root, ABORT))


def has_stopped_cut(root: str) -> bool:
    """Whether a cut of the commit log was interrupted. No broker starts on such a store."""
    return os.path.lexists(os.path.join(root, COMMIT_LOG, CUT_GUARD))


def reject_stopped_cut(root: str) -> None:
    """Raise if a cut of the store was interrupted, so that some folders are old and others new.

    Raises:
        LogHeld: a cut was interrupted.
    """
    if has_stopped_cut(root):
        raise LogHeld(
            "a cut of the commit log was interrupted",
            path=os.path.join(root, COMMIT_LOG, CUT_GUARD),
            remedy="run lastwrite cut STORE --undo, which restores the store from before the cut",
        )


def reject_unclean(root: str, *, goes_on: bool) -> None:
    """Raise if the store's broker was not stopped cleanly.

    A broker creates the file ``abort`` when it starts, and removes it when it stops cleanly. While
    a broker has the store's lock, the file is therefore ignored.

    Args:
        goes_on: if true, a store whose broker was killed is accepted.

    Raises:
        LogHeld: the broker was killed, or ``lastwrite cut`` was interrupted.
    """
    if archived.is_root(root):
        return
    reject_stopped_cut(root)
    path = os.path.join(root, ABORT)
    if goes_on or not was_killed(root) or broker_of(root) is not None:
        return
    process = _process_of(path)
    raise LogHeld(
        f"the store's broker{process} was killed, or is running and its lock is not visible "
        "from here",
        path=path,
        remedy="make sure that the broker is not running, and copy the store, because the broker "
        "may truncate a damaged commit log when it starts. Then start the broker and stop "
        "it cleanly, or continue without a start with --unclean",
    )


def _process_of(path: str) -> str:
    """The process id in ``abort``, as text for an error message. Empty for a 4.x broker."""
    content = b""
    try:
        with suppress(FileNotFoundError), open(path, "rb") as file:
            content = file.read(_PID_CHARACTERS)
    except OSError as error:
        raise to_log_error(error, path, "find out how the broker ended") from error
    text = content.decode("ascii", "replace").strip()
    return f" (process {text})" if text.isdigit() else ""
