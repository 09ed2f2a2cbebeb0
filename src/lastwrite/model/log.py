"""Partitions, segments and their bounds, as values.

A log store lists them, the rules judge them, the engine reads them. An offset is a record's number
in the partition, a position a byte in a file; ``first``/``last`` include, ``end`` excludes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

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
    """An object of an archive that stores the scan of a segment (``scan_cache``)."""

    address: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of records of a log, or a range of it, with facts about its side files.

    After a crash, bytes may follow the last whole batch of the last segment, and indexes may be
    wrong. Those bytes are never read, nor the indexes if ``is_indexed`` is false.
    """

    base_offset: int  # -1 means before all offsets
    path: str
    size_bytes: int  # of its batches
    mtime_ns: int
    largest_timestamp_ms: int  # last time index entry, else the file's modification time
    # largest timestamp of the first batch; None if there is none
    first_batch_timestamp_ms: int | None = None
    index_bytes: int = 0
    time_index_bytes: int = 0
    torn_bytes: int = 0  # after the batches; a broker removes them when it starts
    # after the batches: in a preallocated file, or part of another range
    unused_bytes: int = 0
    is_indexed: bool = True
    # the same for the transaction index; if false, ``PartitionLog.aborted`` is read from the log
    is_abort_indexed: bool = True
    position: int = 0  # of its first batch in the file
    # The inode of a file that a broker appends to, or 0. It identifies the file as long as the file
    # does not shrink.
    growing: int = 0
    # Of an immutable object of an archive: it identifies the object, with the size. Empty for a
    # file.
    etag: str = ""
    kept: KeptScan | None = None  # only for a segment of an archive

    @property
    def file_bytes(self) -> int:
        """The size of the file, which identifies it together with ``mtime_ns``."""
        return self.position + self.size_bytes + self.torn_bytes + self.unused_bytes

    @property
    def mtime_ms(self) -> int:
        return self.mtime_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of one idempotent or transactional producer at the log's end."""

    producer_id: int
    producer_epoch: int
    last_offset: int  # of its last data batch in this epoch; -1 if unknown
    timestamp_ms: int  # of its last batch or marker
    open_from: int = -1  # first offset of its open transaction; -1 if none is open


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An entry of a transaction index: one aborted transaction that wrote data."""

    producer_id: int
    first_offset: int  # may be in an earlier segment than the entry
    last_offset: int  # of the ABORT marker
    # first offset of the earliest other transaction open at that time, else marker + 1
    last_stable_offset: int


class ProblemKind(StrEnum):
    """The kinds of problems that are found before any record is judged."""

    DAMAGED = "damaged"  # bytes contradict their format
    # well formed, but not supported by this release: the partition is skipped
    UNSUPPORTED = "unsupported"
    # a note: traces of a crash, read as a broker would leave them after its start
    RECOVERED = "recovered"
    # a note: an unreadable record, which a setting keeps as it is
    KEPT = "kept"
    # a note: a broker has the log open, and nothing beyond a certain offset was read
    OPEN = "open"
    # a note: offsets that no segment has: lost before they were fetched, which the user accepted,
    # or perhaps removed by compaction
    GAP = "gap"


class Problem(msgspec.Struct, frozen=True):
    """One problem, with its file and position."""

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
        """Whether work on the log can go on without any action."""
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
    while listing the files. ``producers`` includes idle ones, because expiry needs a clock.
    ``aborted`` has the entries of all segments' transaction indexes, by last offset.
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
    # of the earliest transaction that is open, or whose marker is not replicated
    first_unstable_offset: int | None = None
    unseen: tuple[str, ...] = ()  # files of segments beyond the offset where a crash ended the log
    cached: tuple[str, ...] = ()  # files of Lastwrite: the scans of earlier rounds
    # identifies the state of a log that a broker has open; None if no broker has
    open_as: Hashable | None = None
    is_closed: bool = False  # no broker appends to the last segment: the log is in an archive
    generation: int = 0  # of the manifest that it was read from; 0 if it is in no archive
    # Only in an archive that follows a live log: the base of the active segment, which has one
    # archived segment per fetch. None if there is none.
    active_from: int | None = None
    # of a log in an archive or a tier; in a log directory, partition.metadata has the id
    topic_id: str | None = None
    superseded: tuple[Segment, ...] = ()  # in Pulsar: remaining raw ledgers up to the horizon
    # first offset and end of each range between two segments that no segment has, and that no
    # round of a cleaner accounts for
    holes: tuple[tuple[int, int], ...] = ()

    @property
    def closed_end(self) -> int:
        """The end of the closed segments: the base of the active segment, or the log's end."""
        if not self.is_closed and self.segments:
            return self.segments[-1].base_offset
        return self.end_offset if self.active_from is None else self.active_from

    @property
    def is_damaged(self) -> bool:
        """Whether damage was found while listing; the log is then not changed."""
        return any_damaged(self.problems)

    @property
    def is_torn(self) -> bool:
        """Whether the last segment must not be changed.

        A broker would truncate the log there when it starts, or is appending to it.
        """
        return bool(self.unseen) or any(
            segment.torn_bytes or segment.growing for segment in self.segments[-1:]
        )

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset: everything below is replicated, and its transactions have ended."""
        if self.first_unstable_offset is None:
            return self.high_watermark
        return min(self.high_watermark, self.first_unstable_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def path_of(self, offset: int) -> str:
        """The path of the segment that contains ``offset``, or would; the folder if there are no
        segments.
        """
        n = bisect_right([segment.base_offset for segment in self.segments], offset) - 1
        return self.segments[max(n, 0)].path if self.segments else self.folder

    def aborted_in(self, index: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions whose marker is in segment ``index``."""
        begin, end = self.segments[index].base_offset, self.segment_end(index)
        return tuple(entry for entry in self.aborted if begin <= entry.last_offset < end)

    def segment_end(self, index: int) -> int:
        """The end offset of segment ``index``: the next one's base, or the log's end."""
        if index + 1 < len(self.segments):
            return self.segments[index + 1].base_offset
        return max(self.end_offset, self.segments[index].base_offset)
