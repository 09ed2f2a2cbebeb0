"""Putting rewritten queues in the place of old ones, all of a wave and their positions in one step.

A queue's log and its index lie in two folders, so no rename of files changes both at once. But both lie below
``STORE/compaction``, and two folders can exchange their names. Take queue 0 of topic t, of whose files 0, 5060 and
10120 the first loses records and the second all of them::

    compaction.lastwrite-aside/t/0/…     written aside by workers, synced
    compaction.lastwrite/                the whole tree once more: files that stay by a second name (a hard link, no byte
                                         is written), 0 the new one, 5060 missing, the positions new; all synced
    compaction <-> compaction.lastwrite  exchanged: here, and only here, the new state counts, for us and for a broker
    (nothing)                            the old tree, now ``compaction.lastwrite``, is removed

A broker opens ``compaction`` and nothing beside it, so before the exchange it finds the old state and after it the new
one, whatever a crash left of the other tree. And ``recover`` need not know where the crash was: it removes that tree.

Source: RocketMQ 5.5.0; spec/rocketmq.md sections 11, 14.3, 21, 24.3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lastwrite.logstore.overlap import Outcome
from lastwrite.model.log import PartitionLog, TopicPartition


@dataclass(frozen=True, slots=True)
class Pair:
    """A new log file with its index, written aside in ``aside_folder``; ``name`` is what both will be called."""

    name: str  # 20 digits, a multiple of the log files' size
    log_path: str
    index_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of one queue: the pairs ``gone`` go, ``pairs`` come; one that replaces another may be in both.

    ``log`` is the queue as it was read, and must still be so; None: it is not held against anything. All that is not
    named stays as it is.
    """

    name: TopicPartition
    log: PartitionLog | None = None
    gone: Collection[str] = ()  # names of pairs
    pairs: Sequence[Pair] = ()
    position: int | None = None  # the highest offset that rounds have compared; None: stays as it is


def aside_folder(root: str, name: TopicPartition) -> str:
    """Where new files of a queue of the store ``root`` are written; made if it is not there.

    Raises:
        LogError: no folder can be made there, or the file system could not put its content in place later.
    """
    raise NotImplementedError


def publish(root: str, wave: Sequence[Change]) -> list[Outcome]:
    """Make the changes, all in one step; a crash before ``tidy`` leaves what ``recover`` clears away.

    The caller holds the queues. Returns, change for change, why it failed: the queue is then as it was, and the others
    are changed all the same.
    """
    raise NotImplementedError


def publish_copies(root: str, copies: Sequence[Change]) -> list[Outcome]:
    """Put copies of queues of another store into the store ``root``, in one step: ``log`` with its change.

    Returns, copy for copy, why it failed; there is no such queue then.
    """
    raise NotImplementedError


def record(root: str, positions: Mapping[TopicPartition, int]) -> None:
    """Set the positions of queues of which nothing else changes."""
    raise NotImplementedError


def tidy(root: str) -> None:
    """Remove what ``publish`` left: the old tree.

    Raises:
        LogError: something could not be removed. The next run does it; a broker does not mind.
    """
    raise NotImplementedError


def recover(root: str, name: TopicPartition) -> None:
    """Clear away what a crash left of a run on the queue, which the caller holds, and of any exchange.

    Raises:
        CommitConflict: ``compaction`` is gone, so that what is left may be all there is.
    """
    raise NotImplementedError
