"""Who works on what in a RocketMQ store: ``storage.lock`` on the broker's own ``STORE/lock``, and
what ``STORE/abort`` says.

A broker locks the first byte of ``lock`` while it serves, and ``abort`` lies there from its start
to its end in order: without the lock it says that a broker was killed. Then the commit log may end
otherwise than the queues do, and the next start mends that: it dispatches again what the queues
lack (docs/formats/rocketmq-compaction.md). A round over such a store is safe as long as each
queue keeps the record with the highest offset, but its judgement may rest on records that the
commit log lost. So it is refused without ``--unclean``.

Of an archive nobody locks anything: whoever commits second has lost.
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
from lastwrite.storage.objects.promises import refuse_if_broken

FILE = "lock"
ABORT = "abort"

# A turn links every file of the tree, or copies it where the file system knows no links.
PLACE = lock.LockPlace(
    FILE, "the store", turn=1, turn_s=600.0, siblings=("checkpoint", ABORT, "config/topics.json")
)

_PID_CHARACTERS = 20


def hold(root: str, names: Iterable[TopicPartition]) -> AbstractContextManager[None]:
    """Keep brokers and other runs away from these queues of the store; see ``storage.lock.hold``.

    Raises:
        InvalidConfig: a part of the store is another one's, by a link.
    """
    if archived.is_root(root):
        refuse_if_broken(os.path.dirname(root))
        return nullcontext()
    links.refuse_others(root)
    return lock.hold(root, names, PLACE)


def try_hold(
    root: str, names: Iterable[TopicPartition]
) -> AbstractContextManager[set[TopicPartition]]:
    """As ``hold``, of those queues that are free now: the context gives which."""
    links.refuse_others(root)
    return lock.try_hold(root, names, PLACE)


def holds(root: str, name: TopicPartition) -> bool:
    """Whether this very process holds the queue."""
    return lock.holds(root, name, PLACE)


def refuse_if_held(root: str, names: Collection[TopicPartition] | None = None) -> None:
    """For work that only reads the queues (None: whatever lies in the store). A broker that has the
    store does not stand in its way (docs/decisions/beside-a-broker.md): it takes its lock when it
    has mended what a crash left.

    Raises:
        LogHeld: a run may change them while they are read.
        InvalidConfig: a part of the store is another one's, by a link.
    """
    if archived.is_root(root):
        return
    links.refuse_others(root)
    if broker_of(root) is None:
        lock.refuse_if_held(root, names, PLACE)


def refuse_broker(root: str) -> None:
    """Before work that takes long to come to ``hold``.

    Raises:
        LogHeld: a broker serves the store.
        InvalidConfig: a part of the store is another one's, by a link.
    """
    links.refuse_others(root)
    broker = broker_of(root)
    if broker is not None:
        raise broker


def broker_of(root: str) -> LogHeld | None:
    """What to tell of the broker that serves the store; None: there is none."""
    return None if archived.is_root(root) else lock.broker_of(root, PLACE)


def turn(root: str) -> AbstractContextManager[None]:
    """Be alone in changing what all queues share: the tree ``compaction`` and the positions in it.

    Raises:
        LogHeld: a broker holds the store, or another run keeps the turn.
        LogError: the store cannot be written.
    """
    return lock.root_turn(root, PLACE)


def unopened(root: str) -> AbstractContextManager[None]:
    """Inside ``turn``: no broker is starting on the store; see ``storage.lock.unopened``."""
    return lock.unopened(root, PLACE)


# ---------------------------------------------------------------------- abort


def was_killed(root: str) -> bool:
    """Whether the store's broker did not stop in order, or has not yet."""
    return os.path.lexists(os.path.join(root, ABORT))


def has_stopped_cut(root: str) -> bool:
    """Whether a cut of the commit log was stopped half way, so that no broker starts."""
    return os.path.lexists(os.path.join(root, COMMIT_LOG, CUT_GUARD))


def refuse_stopped_cut(root: str) -> None:
    """Refuse a store of which some trees are as before a cut and some as after it.

    Raises:
        LogHeld: a cut was stopped there.
    """
    if has_stopped_cut(root):
        raise LogHeld(
            "a cut of the commit log was stopped half way",
            path=os.path.join(root, COMMIT_LOG, CUT_GUARD),
            remedy="run lastwrite cut STORE --undo: it puts everything back",
        )


def refuse_unclean(root: str, *, goes_on: bool) -> None:
    """Refuse a store whose broker did not stop in order, unless ``goes_on``. Of one that runs, and
    can be seen, ``abort`` says nothing; whoever writes asks for its lock.

    Raises:
        LogHeld: its broker was killed; or a cut was stopped half way.
    """
    if archived.is_root(root):
        return
    refuse_stopped_cut(root)
    path = os.path.join(root, ABORT)
    if goes_on or not was_killed(root) or broker_of(root) is not None:
        return
    process = _process_of(path)
    raise LogHeld(
        f"the store's broker{process} was killed, or runs where its lock cannot be seen",
        path=path,
        remedy="start it and stop it in order, or go on all the same with --unclean; a start cuts a damaged commit "
        "log: copy it before",
    )


def _process_of(path: str) -> str:
    """A 5.x broker writes its process there, a 4.x one nothing."""
    content = b""
    try:
        with suppress(FileNotFoundError), open(path, "rb") as file:
            content = file.read(_PID_CHARACTERS)
    except OSError as error:
        raise to_log_error(error, path, "see how the broker ended") from error
    text = content.decode("ascii", "replace").strip()
    return f" (process {text})" if text.isdigit() else ""
