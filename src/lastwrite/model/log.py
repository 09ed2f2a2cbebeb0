"""Partitions, segments and their bounds, as values.

An offset is a record's number in its partition, a position is a byte in a file. ``first`` and
``last`` are inclusive, ``end`` is exclusive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import msgspec

from lastwrite.errors import remedy_at


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """The name of one log; the partition is -1 if the topic has no partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"


class KeptScan(NamedTuple):
    """An object of an archive that stores the scan of a segment (see ``scan_cache``)."""

    address: str
    size_bytes: int
    etag: str


class SegmentOpener(Protocol):
    """Opens a segment that is stored in parts of several objects. Small when pickled."""

    def open(self, start: int, end: int, limits: Any = None) -> Any:
        """A ``storage.reading.SegmentReader`` of the segment.

        Args:
            start: position of a sequential read; negative means unknown.
            end: bytes from this position on are not read ahead.
            limits: the ``Limits`` of a worker. None means the defaults.
        """


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of records of a log, or a range of such a file, and the state of its indexes.

    After a crash, the last segment may have bytes after its last complete batch, and its indexes
    may be wrong. Such bytes are never read. The indexes are not read if ``is_indexed`` is false.
    """

    base_offset: int  # base offset of the segment; -1 means before all offsets
    path: str
    size_bytes: int  # bytes of the batches
    mtime_ns: int
    # timestamp of the last time index entry; without a time index, the file's modification time
    largest_timestamp_ms: int
    # largest timestamp of the first batch; None if the segment has no batch
    first_batch_timestamp_ms: int | None = None
    index_bytes: int = 0
    time_index_bytes: int = 0
    # bytes after the last complete batch, which a broker removes when it starts
    torn_bytes: int = 0
    # bytes after the batches in a preallocated file, or in another range of the file
    unused_bytes: int = 0
    is_indexed: bool = True
    # whether the transaction index is right; if not, ``PartitionLog.aborted`` is read from the log
    is_abort_indexed: bool = True
    position: int = 0  # first byte of the segment in the file
    # Inode of a file that a broker appends to, which identifies the file while it does not shrink.
    # 0 for any other file.
    growing: int = 0
    # ETag of an immutable object in an archive, which identifies it together with the size; empty
    # for a file
    etag: str = ""
    # bytes of a small index object in a bucket, so that tasks do not read the object
    index: bytes = b""
    kept: KeptScan | None = None  # stored scan of a segment in an archive; None in a log directory
    # opens a segment that is stored in parts of several objects; None for one file or object
    opener: SegmentOpener | None = None

    @property
    def file_bytes(self) -> int:
        """The size of the file, which identifies it together with ``mtime_ns``."""
        return self.position + self.size_bytes + self.torn_bytes + self.unused_bytes

    @property
    def mtime_ms(self) -> int:
        return self.mtime_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of an idempotent or transactional producer at the log's end."""

    producer_id: int
    producer_epoch: int
    last_offset: int  # last offset of the producer's last data batch in this epoch; -1 unknown
    timestamp_ms: int  # timestamp of the producer's last batch or marker
    open_from: int = -1  # first offset of the producer's open transaction; -1 if none is open


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An entry of a transaction index: an aborted transaction that wrote data."""

    producer_id: int
    first_offset: int  # first offset of the transaction; may be in an earlier segment
    last_offset: int  # offset of the abort marker
    # first offset of the earliest other transaction that was open at the marker; last_offset + 1 if
    # there was none
    last_stable_offset: int


class ProblemKind(StrEnum):
    """The kinds of problems that are found while reading a log."""

    DAMAGED = "damaged"  # bytes violate their format
    # a valid format that this release does not support; the partition is skipped
    UNSUPPORTED = "unsupported"
    # a note: traces of a crash; the log was read as a broker would recover it
    RECOVERED = "recovered"
    # a note: an unreadable record, which is kept because of a setting
    KEPT = "kept"
    # a note: a broker has the log open, so it was read only up to some offset
    OPEN = "open"
    # a note about offsets that are in no segment; the user accepted their loss, or compaction may
    # have removed them
    GAP = "gap"


class Problem(msgspec.Struct, frozen=True):
    """One problem of a log, with its file and position."""

    kind: ProblemKind
    message: str
    path: str
    position: int | None = None
    remedy: str | None = None

    def __post_init__(self) -> None:
        if self.kind is ProblemKind.DAMAGED:
            remedy = remedy_at(self.path, self.remedy)
            if remedy != self.remedy:
                msgspec.structs.force_setattr(self, "remedy", remedy)

    @property
    def is_note(self) -> bool:
        """Whether the problem needs no action before the log is processed."""
        return self.kind in (
            ProblemKind.RECOVERED,
            ProblemKind.KEPT,
            ProblemKind.OPEN,
            ProblemKind.GAP,
        )

    def __str__(self) -> str:
        place = self.path if self.position is None else f"{self.path}, byte {self.position}"
        return f"{place}: {self.message}" + (f" — {self.remedy}" if self.remedy else "")


def any_damaged(problems: Iterable[Problem]) -> bool:
    """Whether one of the problems is damage."""
    return any(problem.kind is ProblemKind.DAMAGED for problem in problems)


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition on disk: its segments, oldest first, and its bounds.

    The last segment is the active one, unless ``is_closed``. ``checkpoint`` is the first dirty
    offset after the last round; None means that no round has finished. ``problems`` were found
    while listing the files. ``producers`` includes expired ones, because only a caller with a clock
    can exclude them. ``aborted`` has the entries of all transaction indexes, sorted by last offset.
    """

    name: TopicPartition
    folder: str
    segments: tuple[Segment, ...]
    log_start: int
    end_offset: int
    high_watermark: int
    checkpoint: int | None
    problems: tuple[Problem, ...] = field(default=())
    producers: tuple[ProducerState, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    # first offset of the earliest transaction that is open or whose marker is not replicated
    first_unstable_offset: int | None = None
    # files of segments beyond the offset at which the log ends after a crash
    unseen: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()  # names of Lastwrite's files with scans of earlier rounds
    # state of a log that a broker has open, to detect changes; None if no broker has it open
    open_as: Hashable | None = None
    # whether the log is in an archive, so that no broker appends to the last segment
    is_closed: bool = False
    # generation of the manifest that the log was read from; 0 outside an archive
    generation: int = 0
    # Base offset of the live log's active segment, of which each fetch archives a new segment. None
    # unless the archive follows a live log.
    active_from: int | None = None
    # topic id of a log in an archive or a tier; a log directory has it in partition.metadata
    topic_id: str | None = None
    # offset and path of each producer snapshot, if they are not in ``folder``; else None
    snapshots: tuple[tuple[int, str], ...] | None = None
    # in Pulsar: the remaining raw ledgers below the compaction horizon
    superseded: tuple[Segment, ...] = ()
    # gaps between segments as (first offset, end), except gaps that compaction explains
    holes: tuple[tuple[int, int], ...] = ()

    @property
    def closed_end(self) -> int:
        """The end offset of the closed segments.

        This is the base offset of the active segment, or the log's end.
        """
        if not self.is_closed and self.segments:
            return self.segments[-1].base_offset
        return self.end_offset if self.active_from is None else self.active_from

    @property
    def is_damaged(self) -> bool:
        """Whether damage was found while listing the files. Such a log is not changed."""
        return any_damaged(self.problems)

    @property
    def is_torn(self) -> bool:
        """Whether the last segment must not be changed.

        A broker is appending to the segment, or would truncate it when it starts.
        """
        return bool(self.unseen) or any(
            segment.torn_bytes or segment.growing for segment in self.segments[-1:]
        )

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset. Records below it are replicated, and their transactions ended."""
        if self.first_unstable_offset is None:
            return self.high_watermark
        return min(self.high_watermark, self.first_unstable_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def path_of(self, offset: int) -> str:
        """The path of the segment that contains ``offset``, or the folder if none does."""
        n = bisect_right([segment.base_offset for segment in self.segments], offset) - 1
        return self.segments[max(n, 0)].path if self.segments else self.folder

    def aborted_in(self, index: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions whose marker is in segment ``index``."""
        begin, end = self.segments[index].base_offset, self.segment_end(index)
        return tuple(entry for entry in self.aborted if begin <= entry.last_offset < end)

    def segment_end(self, index: int) -> int:
        """The end offset of segment ``index``: the base of the next segment, or the log's end."""
        if index + 1 < len(self.segments):
            return self.segments[index + 1].base_offset
        return max(self.end_offset, self.segments[index].base_offset)
