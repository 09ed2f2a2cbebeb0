"""Locks of a RocketMQ store, and ``STORE/abort``.

The locks are ``storage.lock`` on the broker's own ``STORE/lock``.

A broker locks the first byte of ``lock`` while it serves. ``abort`` exists from its start to its
clean stop; if it exists without the lock, a broker was killed. The commit log may then end
elsewhere than the queues do. The broker's next start repairs that: it dispatches again what the
queues lack (docs/formats/rocketmq-compaction.md). Compaction of such a store is safe as long as
each queue keeps the record with the highest offset. But it may drop records because of others that
the commit log has lost. So it is refused without ``--unclean``.

An archive needs no lock: of two commits the second one fails.
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

# A turn links every file of the tree, or copies it if the file system has no hard links.
PLACE = lock.LockPlace(
    FILE, "the store", turn=1, turn_s=600.0, siblings=("checkpoint", ABORT, "config/topics.json")
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
    """Lock the queues that are free now, as ``hold`` does. The context returns them."""
    links.reject_others(root)
    return lock.try_lock(root, names, PLACE)


def holds(root: str, name: TopicPartition) -> bool:
    """Whether this process holds the lock of the queue."""
    return lock.holds(root, name, PLACE)


def reject_if_held(root: str, names: Collection[TopicPartition] | None = None) -> None:
    """Refuse to read queues that another command may change. None means all of the store's queues.

    A broker that has the store open is no obstacle (docs/decisions/beside-a-broker.md), because it
    takes its lock after it has repaired what a crash left.

    Raises:
        LogHeld: a command may change the queues while they are read.
        InvalidConfig: a part of the store is in another store, by a link.
    """
    if archived.is_root(root):
        return
    links.reject_others(root)
    if broker_of(root) is None:
        lock.reject_if_held(root, names, PLACE)


def reject_broker(root: str) -> None:
    """Refuse a store that a broker serves, before long work that ends in ``hold``.

    Raises:
        LogHeld: a broker serves the store.
        InvalidConfig: a part of the store is in another store, by a link.
    """
    links.reject_others(root)
    broker = broker_of(root)
    if broker is not None:
        raise broker


def broker_of(root: str) -> LogHeld | None:
    """The error for the broker that serves the store. Returns None if there is no broker."""
    return None if archived.is_root(root) else lock.broker_of(root, PLACE)


def turn(root: str) -> AbstractContextManager[None]:
    """Exclusive access to what all queues share: the tree ``compaction`` and its positions.

    Raises:
        LogHeld: a broker has the store, or another command has this access.
        LogError: the store cannot be written.
    """
    return lock.root_turn(root, PLACE)


def unopened(root: str) -> AbstractContextManager[None]:
    """Inside ``turn``: block brokers from starting on the store; see ``storage.lock.unopened``."""
    return lock.unopened(root, PLACE)


# ---------------------------------------------------------------------- abort


def was_killed(root: str) -> bool:
    """Whether the store's broker was not stopped cleanly, or is still running."""
    return os.path.lexists(os.path.join(root, ABORT))


def has_stopped_cut(root: str) -> bool:
    """Whether a cut of the commit log was interrupted. No broker starts on such a store."""
    return os.path.lexists(os.path.join(root, COMMIT_LOG, CUT_GUARD))


def reject_stopped_cut(root: str) -> None:
    """Refuse a store with some trees from before a cut and some from after it.

    Raises:
        LogHeld: a cut was interrupted.
    """
    if has_stopped_cut(root):
        raise LogHeld(
            "a cut of the commit log was interrupted",
            path=os.path.join(root, COMMIT_LOG, CUT_GUARD),
            remedy="run lastwrite cut STORE --undo: it puts everything back",
        )


def reject_unclean(root: str, *, goes_on: bool) -> None:
    """Refuse a store whose broker was not stopped cleanly, unless ``goes_on``.

    A broker whose lock can be seen is running, so its ``abort`` means nothing. Writers check its
    lock.

    Raises:
        LogHeld: the broker was killed, or a cut was interrupted.
    """
    if archived.is_root(root):
        return
    reject_stopped_cut(root)
    path = os.path.join(root, ABORT)
    if goes_on or not was_killed(root) or broker_of(root) is not None:
        return
    process = _process_of(path)
    raise LogHeld(
        f"the store's broker{process} was killed, or runs where its lock cannot be seen",
        path=path,
        remedy="copy the store, because a start may cut a damaged commit log; then start the broker "
        "and stop it cleanly, or continue without that with --unclean",
    )


def _process_of(path: str) -> str:
    """The process id in ``abort``, as text for a message. A 4.x broker writes none."""
    content = b""
    try:
        with suppress(FileNotFoundError), open(path, "rb") as file:
            content = file.read(_PID_CHARACTERS)
    except OSError as error:
        raise to_log_error(error, path, "see how the broker ended") from error
    text = content.decode("ascii", "replace").strip()
    return f" (process {text})" if text.isdigit() else ""
