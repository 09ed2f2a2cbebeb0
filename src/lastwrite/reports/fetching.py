"""The results of ``fetch`` for Kafka's or RocketMQ's logs, as values."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import field

from lastwrite.reports.document import FrozenDocument, figure
from lastwrite.reports.groups import UnreadPosition, worst_of


class HoldReason(StrEnum):
    """The reason why no data of a partition was fetched, as one word."""

    # temporary: a cluster or store is unavailable, or a round on the partition is running
    WAITING = "waiting"
    DAMAGED = "damaged"
    FORK = "fork"  # a leader election truncated the log after it was fetched
    GAP = "gap"  # the log starts above the end of the archive
    DELETES = "deletes"  # deletes may have expired before they were fetched
    ANOTHER = "another"  # the topic was recreated: the archive has another topic of the same name
    FAILED = "failed"  # any other cause


class BucketEnd(FrozenDocument, frozen=True, kw_only=True):
    """The end of the readable records of a partition of AutoMQ, and the objects that have them."""

    uploaded_end: int  # end offset of the records in data objects
    last_object: int | None = None  # id of the last data object of the partition
    # number of records that only write-ahead objects contain
    write_ahead_records: int = 0
    write_ahead_end: int | None = None  # position of the last record in the write-ahead log
    # streams in the objects read so far that belong to no topic; they are not read
    unknown_streams: int = 0


class FetchedLog(FrozenDocument, frozen=True, kw_only=True):
    """The result of fetching one partition: the amount of data, or the reason why there is none."""

    topic: str
    partition: int
    source: str  # folder of the log that is fetched
    folder: str = field(name="path")  # address of the partition in the archive
    # first fetched offset; equal to ``end_offset`` if nothing was fetched
    first_offset: int | None = None
    end_offset: int | None = None
    segments: int = 0
    size_bytes: int = field(default=0, name="bytes")  # bytes that were written
    foreign_bytes: int = 0  # bytes of a tier's segments that the archive only refers to
    # whether this fetch added the partition to the archive
    is_new: bool = field(default=False, name="new")
    reason: str | None = None  # why no more records of the partition were fetched
    is_damaged: bool = field(default=False, name="damaged")
    held: HoldReason | None = None  # the reason as one word
    # offsets before ``first_offset`` whose loss the user accepted with ``--accept-gap``
    gap: str | None = None
    # address of the archive with the records that were set aside because the live log differs
    aside: str | None = None
    attempts: int = 1  # number of attempts; more than 1 if another writer committed first
    objects: BucketEnd | None = None  # AutoMQ: the objects that were read; null for any other log


class LogsFetched(FrozenDocument, frozen=True, kw_only=True):
    """The result of a fetch from Kafka's log directories or RocketMQ's stores."""

    archive: str = field(name="path")
    partitions: tuple[FetchedLog, ...]
    # positions of consumer groups that could not be read; the archive keeps their previous values
    unread_positions: tuple[UnreadPosition, ...] = ()
    # 3 if a partition is damaged, else 1 if one could not be fetched, else 0
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status of the command."""
        if any(each.is_damaged for each in self.partitions):
            return 3
        left = any(each.reason is not None for each in self.partitions)
        return max(int(left), worst_of(self.unread_positions))
