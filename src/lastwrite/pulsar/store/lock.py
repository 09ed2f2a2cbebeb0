"""The lock of a topic folder, on the file ``lastwrite.lock`` in the folder (see ``storage.lock``).

No broker opens such a folder.

Each topic has a separate lock file, which stays open while the topic is locked. A run over an
archive of many topics therefore raises the limit of open files to the system's hard limit.
"""

from __future__ import annotations

import resource
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress

from lastwrite.model.log import TopicPartition
from lastwrite.pulsar.format.names import MANAGED_LEDGER, MANAGED_LEDGER_JSON, MANIFEST
from lastwrite.pulsar.store.archived import archive_of, is_archived
from lastwrite.storage import lock
from lastwrite.storage.objects.promises import reject_if_broken

FILE = "lastwrite.lock"

PLACE = lock.LockPlace(
    FILE,
    "the topic folder",
    root_lock_byte=0,
    root_lock_s=60.0,
    siblings=(MANIFEST, MANAGED_LEDGER, MANAGED_LEDGER_JSON),
)


def hold(folder: str, names: Iterable[TopicPartition]) -> AbstractContextManager[None]:
    """Lock the topic of this folder against other runs; see ``storage.lock.hold``.

    Topics of an archive are not locked: of two concurrent compactions only the first can commit.
    """
    if is_archived(folder):
        reject_if_broken(archive_of(folder))
        return nullcontext()
    _allow_files()
    return lock.hold(folder, names, PLACE)


def try_lock(
    folder: str, names: Iterable[TopicPartition]
) -> AbstractContextManager[set[TopicPartition]]:
    """Lock the topic of this folder, unless another run has locked it.

    The context's value is the set of topics that this call locked.
    """
    if is_archived(folder):
        reject_if_broken(archive_of(folder))
        return nullcontext(set(names))
    _allow_files()
    return lock.try_lock(folder, names, PLACE)


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # a system may grant less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def holds(folder: str, name: TopicPartition) -> bool:
    """Whether this process has locked the topic."""
    return lock.holds(folder, name, PLACE)


def reject_if_locked(folder: str, names: Collection[TopicPartition] | None = None) -> None:
    """Check that no run has locked the topic. For work that only reads the topic.

    Raises:
        LogHeld: a run may change the topic meanwhile.
    """
    if not is_archived(folder):
        lock.reject_if_locked(folder, names, PLACE)


__all__ = ["FILE", "PLACE", "hold", "holds", "reject_if_locked", "try_lock"]
