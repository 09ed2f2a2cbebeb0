"""What ``fetch`` brought of Kafka's or RocketMQ's logs into an archive, as values."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import field

from lastwrite.reports.document import FrozenDocument, figure
from lastwrite.reports.groups import UnreadPosition, worst_of


class Held(StrEnum):
    """Why nothing of a partition was brought, in a word."""

    WAITING = "waiting"  # what may pass: a cluster or a store is silent, or a round runs there
    DAMAGED = "damaged"
    FORK = "fork"  # an election cut the log after it was fetched
    GAP = "gap"  # the log begins behind the archive's end
    DELETES = "deletes"  # may have expired before they were seen
    ANOTHER = "another"  # topic of that name
    FAILED = "failed"  # all else


class FetchedLog(FrozenDocument, frozen=True, kw_only=True):
    """One partition: what came of it, or why nothing did."""

    topic: str
    partition: int
    source: str  # the folder that it was in
    folder: str = field(name="path")  # its address in the archive
    first_offset: int | None = None  # of what came; with ``end_offset`` equal to it: nothing
    end_offset: int | None = None
    segments: int = 0
    size_bytes: int = field(default=0, name="bytes")  # written
    foreign_bytes: int = 0  # of segments of a tier that the archive names where they lie
    is_new: bool = field(default=False, name="new")  # the archive did not have the partition
    reason: str | None = None  # why nothing more of it was brought
    is_damaged: bool = field(default=False, name="damaged")
    held: Held | None = None  # the same in a word
    gap: str | None = None  # what was accepted as lost before it, see ``--accept-gap``
    aside: str | None = None  # the archive in which lies what could not be continued


class LogsFetched(FrozenDocument, frozen=True, kw_only=True):
    """All partitions of a fetch from Kafka's log directories, or from RocketMQ's stores."""

    archive: str = field(name="path")
    partitions: tuple[FetchedLog, ...]
    # of consumer groups; the archive keeps what it had of them
    unread_positions: tuple[UnreadPosition, ...] = ()
    # 3 where something is damaged, 1 where something could not be brought; all else was
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status."""
        if any(each.is_damaged for each in self.partitions):
            return 3
        left = any(each.reason is not None for each in self.partitions)
        return max(int(left), worst_of(self.unread_positions))
