"""Who works on which topic folder: ``storage.lock`` on ``lastwrite.lock`` in it. No broker opens
such a folder.

A topic has a lock file of its own, which is open as long as it is held; so a run over an archive of
many topics takes the files that the system grants, not only as many as a process gets unasked.
"""

from __future__ import annotations

import resource
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress

from lastwrite.model.log import TopicPartition
from lastwrite.pulsar.format.names import MANAGED_LEDGER, MANAGED_LEDGER_JSON, MANIFEST
from lastwrite.pulsar.store.archived import archive_of, is_archived
from lastwrite.storage import lock
from lastwrite.storage.objects.promises import refuse_if_broken

FILE = "lastwrite.lock"

PLACE = lock.LockPlace(
    FILE,
    "the topic folder",
    turn=0,
    turn_s=60.0,
    siblings=(MANIFEST, MANAGED_LEDGER, MANAGED_LEDGER_JSON),
)


def hold(folder: str, names: Iterable[TopicPartition]) -> AbstractContextManager[None]:
    """Keep other runs away from the topic of this folder; see ``storage.lock.hold``. In an archive
    nobody locks anything: of two rounds one wins.
    """
    if is_archived(folder):
        refuse_if_broken(archive_of(folder))
        return nullcontext()
    _allow_files()
    return lock.hold(folder, names, PLACE)


def try_hold(
    folder: str, names: Iterable[TopicPartition]
) -> AbstractContextManager[set[TopicPartition]]:
    """As ``hold``, if it is free now: the context gives whether."""
    if is_archived(folder):
        refuse_if_broken(archive_of(folder))
        return nullcontext(set(names))
    _allow_files()
    return lock.try_hold(folder, names, PLACE)


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # a system may grant less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def holds(folder: str, name: TopicPartition) -> bool:
    """Whether this very process holds the topic."""
    return lock.holds(folder, name, PLACE)


def refuse_if_held(folder: str, names: Collection[TopicPartition] | None = None) -> None:
    """For work that only reads the topic.

    Raises:
        LogHeld: a run may change it while it is read.
    """
    if not is_archived(folder):
        lock.refuse_if_held(folder, names, PLACE)


__all__ = ["FILE", "PLACE", "hold", "holds", "refuse_if_held", "try_hold"]
