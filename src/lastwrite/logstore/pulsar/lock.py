"""Who works on which topic folder: ``logstore.lock`` on ``lastwrite.lock`` in it. No broker opens such a folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager

from lastwrite.logstore import lock
from lastwrite.model.log import TopicPartition

FILE = "lastwrite.lock"

PLACE = lock.Place(FILE, "the topic folder", turn=0, turn_s=60.0)


def hold(folder: str, names: Iterable[TopicPartition]) -> AbstractContextManager[None]:
    """Keep other runs away from the topic of this folder; see ``logstore.lock.hold``."""
    return lock.hold(folder, names, PLACE)


def try_hold(folder: str, names: Iterable[TopicPartition]) -> AbstractContextManager[set[TopicPartition]]:
    """As ``hold``, if it is free now: the context gives whether."""
    return lock.try_hold(folder, names, PLACE)


def holds(folder: str, name: TopicPartition) -> bool:
    """Whether this very process holds the topic."""
    return lock.holds(folder, name, PLACE)


def refuse_if_held(folder: str, names: Collection[TopicPartition] | None = None) -> None:
    """For work that only reads the topic.

    Raises:
        LogHeld: a run may change it while it is read.
    """
    lock.refuse_if_held(folder, names, PLACE)


__all__ = ["FILE", "PLACE", "hold", "holds", "refuse_if_held", "try_hold"]
