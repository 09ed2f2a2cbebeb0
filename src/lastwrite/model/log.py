"""What lies on disk, as values: partitions, segments and their bounds.

A log store lists them, the rules judge them, the engine reads them. Offsets are places in the
partition, positions are bytes in a file; ``first``/``last`` include, ``end`` excludes.
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
    """The name of one log; a topic without partitions has -1."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"


class KeptScan(NamedTuple):
    """An object of an archive with what a scan of a segment found (``scan_cache``)."""

    address: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of records of a log, or a stretch of one, with what the rules need to know of its
    side files.

    A crash may leave bytes behind the last whole batch of the last segment, and indexes that are
    not true. Nobody reads those bytes, and where ``is_indexed`` is false, nobody looks into the
    indexes.
    """

    base_offset: int  # -1: it stands before all offsets
    path: str
    size_bytes: int  # of its batches
    mtime_ns: int
    largest_timestamp_ms: int  # last time index entry, else the file's modification time
    first_batch_timestamp_ms: int | None = None  # largest timestamp of the first batch; None: empty
    index_bytes: int = 0
    time_index_bytes: int = 0
    torn_bytes: int = 0  # behind the batches; a broker's start cuts them off
    # behind the batches: of a file that has its full size from the start, or of another stretch
    unused_bytes: int = 0
    is_indexed: bool = True
    # the same of the transaction index: ``PartitionLog.aborted`` is from the log itself
    is_abort_indexed: bool = True
    position: int = 0  # where its batches begin in the file
    # the inode of a file that a broker appends to, its identity as long as it is no shorter; 0: of
    # one that nobody does
    growing: int = 0
    # of an object of an archive, which nobody changes: with its size its identity; empty: of a file
    etag: str = ""
    kept: KeptScan | None = None  # of a segment of an archive

    @property
    def file_bytes(self) -> int:
        """The size of the file; with ``mtime_ns`` its identity."""
        return self.position + self.size_bytes + self.torn_bytes + self.unused_bytes

    @property
    def mtime_ms(self) -> int:
        return self.mtime_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class Producer:
    """What a log knows of one idempotent or transactional producer, as of its end."""

    producer_id: int
    producer_epoch: int
    last_offset: int  # of its last data batch in this epoch; -1: none is known
    timestamp_ms: int  # of its last batch or marker
    open_from: int = -1  # first offset of its open transaction; -1: none is open


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An entry of a transaction index: one aborted transaction that wrote data."""

    producer_id: int
    first_offset: int  # may lie in an earlier segment than the entry
    last_offset: int  # of the ABORT marker
    # first offset of the earliest other transaction then open, else marker + 1
    last_stable_offset: int


class ProblemKind(StrEnum):
    """What is wrong with a partition before a single record was judged."""

    DAMAGED = "damaged"  # bytes contradict their format
    # well formed, not handled by this release: the partition is skipped
    UNSUPPORTED = "unsupported"
    # what a crash left, seen as a broker's start would leave it: a note, nothing is wrong
    RECOVERED = "recovered"
    # a record that cannot be read, and stays as it is because a setting says so: a note
    KEPT = "kept"
    # a broker has the log open, and what lies behind a certain offset was not looked at: a note
    OPEN = "open"
    # offsets that were lost before they were fetched, as somebody has accepted: a note
    GAP = "gap"


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, with its place."""

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
        """Whether nothing has to be done about it before the log can be worked on."""
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
    """Whether one of them is damage."""
    return any(problem.kind is ProblemKind.DAMAGED for problem in problems)


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition as it lies on disk: its segments, oldest first, and its bounds.

    The last segment is the active one, unless ``is_closed``. ``checkpoint`` is the first dirty
    offset that an earlier round left behind, None where no round was finished. ``problems`` were
    seen while listing.
    ``producers`` are all that are known, idle ones too: expiry needs a clock. ``aborted`` has the
    entries of all segments' transaction indexes, by their last offset.
    """

    name: TopicPartition
    folder: str
    segments: tuple[Segment, ...]
    log_start: int
    end_offset: int
    high_watermark: int
    checkpoint: int | None
    problems: tuple[Problem, ...] = field(default=())
    producers: tuple[Producer, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    # of the earliest transaction open, or whose marker is not replicated
    first_unstable_offset: int | None = None
    unseen: tuple[str, ...] = ()  # files of segments behind the place where a crash ended the log
    cached: tuple[str, ...] = ()  # files of our own: what earlier rounds scanned
    # of a log that a broker has open: by what it is known again; None: nobody has
    open_as: Hashable | None = None
    is_closed: bool = False  # nobody appends to the last segment: the log is of an archive
    generation: int = 0  # of the manifest that it was read from; 0: it is of no archive
    # of an archive that follows a live log: where its active segment begins, in as many segments as
    # turns made of it; None: it has none
    active_from: int | None = None
    # of a log in an archive or a tier; a log directory has it in partition.metadata
    topic_id: str | None = None

    @property
    def closed_end(self) -> int:
        """The offset behind the closed segments: where the active one begins, or the log's end."""
        if not self.is_closed and self.segments:
            return self.segments[-1].base_offset
        return self.end_offset if self.active_from is None else self.active_from

    @property
    def is_damaged(self) -> bool:
        """Whether something is wrong that was seen while listing: the log stays as it is."""
        return any_damaged(self.problems)

    @property
    def is_torn(self) -> bool:
        """Whether a broker's start would cut the log where it ends here, or a broker goes on
        there: its last segment must stay as it is.
        """
        return bool(self.unseen) or any(
            segment.torn_bytes or segment.growing for segment in self.segments[-1:]
        )

    @property
    def last_stable_offset(self) -> int:
        """What lies below is replicated and of decided transactions (LSO)."""
        if self.first_unstable_offset is None:
            return self.high_watermark
        return min(self.high_watermark, self.first_unstable_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def path_of(self, offset: int) -> str:
        """The segment that holds ``offset``, or would; the folder of a log without segments."""
        n = bisect_right([segment.base_offset for segment in self.segments], offset) - 1
        return self.segments[max(n, 0)].path if self.segments else self.folder

    def aborted_in(self, index: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions whose marker lies in segment ``index``."""
        begin, end = self.segments[index].base_offset, self.segment_end(index)
        return tuple(entry for entry in self.aborted if begin <= entry.last_offset < end)

    def segment_end(self, index: int) -> int:
        """The offset behind segment ``index``: the next one's base, or the log's end."""
        if index + 1 < len(self.segments):
            return self.segments[index + 1].base_offset
        return max(self.end_offset, self.segments[index].base_offset)
