"""The results of ``fetch`` for Kafka's or RocketMQ's logs, as values."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import field

from lastwrite.reports.document import FrozenDocument, figure
from lastwrite.reports.groups import UnreadPosition, worst_of


class HoldReason(StrEnum):
    """Why nothing of a partition was fetched, in a word."""

    # temporary: a cluster or a store does not answer, or a round is running there
    WAITING = "waiting"
    DAMAGED = "damaged"
    FORK = "fork"  # an election truncated the log after it was fetched
    GAP = "gap"  # the log begins after the archive's end
    DELETES = "deletes"  # they may have expired before they were seen
    ANOTHER = "another"  # another topic of that name
    FAILED = "failed"  # any other cause


class FetchedLog(FrozenDocument, frozen=True, kw_only=True):
    """One partition: what was fetched, or why nothing was."""

    topic: str
    partition: int
    source: str  # the source folder
    folder: str = field(name="path")  # its address in the archive
    # of the fetched records; equal to ``end_offset`` if there are none
    first_offset: int | None = None
    end_offset: int | None = None
    segments: int = 0
    size_bytes: int = field(default=0, name="bytes")  # written
    foreign_bytes: int = 0  # of a tier's segments that the archive refers to without copying
    is_new: bool = field(default=False, name="new")  # the archive did not have the partition
    reason: str | None = None  # why no more of it was fetched
    is_damaged: bool = field(default=False, name="damaged")
    held: HoldReason | None = None  # the reason in a word
    gap: str | None = None  # offsets before it that were accepted as lost, see ``--accept-gap``
    aside: str | None = None  # the archive with the records that could not be continued
    attempts: int = 1  # more than one if another writer changed the partition first


class LogsFetched(FrozenDocument, frozen=True, kw_only=True):
    """All partitions of a fetch from Kafka's log directories, or from RocketMQ's stores."""

    archive: str = field(name="path")
    partitions: tuple[FetchedLog, ...]
    # of consumer groups; the archive keeps its previous positions of them
    unread_positions: tuple[UnreadPosition, ...] = ()
    # 3 if something is damaged, 1 if something could not be fetched; everything else was fetched
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status."""
        if any(each.is_damaged for each in self.partitions):
            return 3
        left = any(each.reason is not None for each in self.partitions)
        return max(int(left), worst_of(self.unread_positions))
