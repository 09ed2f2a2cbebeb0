"""Units of work and their results: small values that the driver and the workers exchange.

They are small when pickled, and never contain the bytes of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from lastwrite.model.columns import Int64Array
from lastwrite.model.log import AbortedTransaction, Problem, Segment, SegmentOpener
from lastwrite.model.policy import Policy, Strategy
from lastwrite.model.stores import StoreSettings

R = TypeVar("R")
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class PendingResult(Generic[T]):
    """Work that is running in another thread or process."""

    result: Callable[[], T]  # waits for the work to end, and returns its result
    cancel: Callable[[], None] = lambda: None  # stops the work, whose result is no longer needed

    def then(self, make: Callable[[T], R]) -> PendingResult[R]:
        """Return pending work whose result is ``make``, applied to the result of this work."""
        return PendingResult(lambda: make(self.result()), self.cancel)


class FailedUnit(Generic[U]):
    """The error of a unit that raised an exception, in place of its result."""

    def __init__(self, unit: U, error: Exception) -> None:
        self.unit = unit
        self.error = error


@dataclass(frozen=True, slots=True)
class ScanRange:
    """A range of a segment, from the start of one batch to the start of another."""

    number: int  # number of the piece in its partition, oldest first
    segment: int  # index of the segment in the partition's list
    path: str
    start: int
    end: int
    size_bytes: int  # size of the file, which identifies it together with ``mtime_ns``
    mtime_ns: int
    lowest_offset: int  # lowest offset that the segment may have
    end_offset: int  # end of the segment's offsets, exclusive
    keyed: bool  # whether the piece is in the round's range; others are only checked and counted
    is_indexed: bool = True  # false if the indexes may be wrong after a crash, and must not be read
    cached: CachedScan | None = None  # stored scan of an earlier round, if any
    growing: int = 0  # as ``Segment.growing``
    etag: str = ""  # as ``Segment.etag``
    index: bytes = b""  # as ``Segment.index``
    opener: SegmentOpener | None = None  # as ``Segment.opener``

    @classmethod
    def of(
        cls,
        segment: Segment,
        *,
        number: int,
        place: int,
        start: int,
        end: int,
        end_offset: int,
        keyed: bool,
        cached: CachedScan | None = None,
    ) -> ScanRange:
        """A range of ``segment``. ``place`` is the segment's index in its log."""
        return cls(
            number=number,
            segment=place,
            path=segment.path,
            start=start,
            end=end,
            size_bytes=segment.file_bytes,
            mtime_ns=segment.mtime_ns,
            lowest_offset=segment.base_offset,
            end_offset=end_offset,
            keyed=keyed,
            is_indexed=segment.is_indexed,
            cached=cached,
            growing=segment.growing,
            etag=segment.etag,
            index=segment.index,
            opener=segment.opener,
        )

    @property
    def bytes(self) -> int:
        return self.end - self.start

    @property
    def scan_bytes(self) -> int:
        """The approximate number of bytes that a scan reads."""
        return self.bytes if self.cached is None else self.cached.read_bytes


class CachedScan(Protocol):
    """A stored scan that replaces the scan of a piece; see ``scan_cache``."""

    @property
    def read_bytes(self) -> int: ...

    def scanned(
        self, unit: ScanUnit, piece: ScanRange, hand_on: Callable[[Any], None]
    ) -> PieceScan | None:
        """The stored scan result of a piece. None means that the piece must be scanned.

        The result does not include the piece's record states, which are all 0.

        Blocks are passed to ``hand_on``, unless they are in a file that other workers can read.
        """


class Rates(NamedTuple):
    """Rate limits in bytes per second, over all workers together. Infinity means no limit."""

    both: float = math.inf  # limit of bytes read plus bytes written
    reading: float = math.inf
    writing: float = math.inf


@dataclass(frozen=True, slots=True)
class Throttle:
    """A rate limit for all workers together; see ``storage.throttle``."""

    # the file that the workers of this machine share; empty if each worker limits itself
    path: str
    bytes_per_second: float  # infinity means no limit
    label: str = ""  # name of the counted bytes; distinguishes throttles without a file


@dataclass(frozen=True, slots=True)
class Limits:
    """The memory that a worker may use for each purpose, and its rate limits."""

    # bytes of a segment that are read at once; grows to the largest batch, at most plain_bytes
    chunk_bytes: int = 1 << 20
    plain_bytes: int = 64 << 20  # bytes of the largest batch after decompression
    block_entries: int = 1 << 18  # entries per block
    slice_bytes: int = 16 << 20  # bytes of entries in memory during an election
    # bytes of the largest piece; the states of all its records are in memory
    piece_bytes: int = 32 << 20
    piece_records: int = 1 << 25  # approximate largest number of records in a piece
    reading: tuple[Throttle, ...] = ()  # throttles for bytes that are read
    writing: tuple[Throttle, ...] = ()  # throttles for bytes that are written
    # bytes per request of an object; requests run ahead of sequential reads
    ahead_bytes: int = 8 << 20
    # object store settings; None means the settings of the worker's process
    stores: StoreSettings | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A block of entries of one piece, sorted by bucket, in a scratch file."""

    piece: int
    path: str
    position: int
    count: int
    key_bytes: int = 0  # bytes of the keys after the entries, if keys are compared exactly
    columns: int = 2  # words per entry
    # number of bits by which the block is sorted beyond the bucket bits of the round, if an earlier
    # round wrote the block
    finer: int = 0


@dataclass(frozen=True, slots=True)
class ScanUnit:
    """The work of one scan task: pieces of one partition."""

    partition: int
    system: str
    pieces: tuple[ScanRange, ...]
    first_dirty: int
    bits: int
    exact: bool
    secret: bytes = field(repr=False)
    policy: Policy
    aborted: Int64Array  # see engine.rules.transactions.aborted_table
    limits: Limits
    scratch: str
    memory_scratch: str = ""  # folder in memory, in which this unit may write ``memory_bytes``
    memory_bytes: int = 0
    thins: bool = True  # whether entries of records that lose within a block may be dropped


@dataclass(frozen=True, slots=True)
class PendingMarker:
    """A transaction marker whose verdict needs earlier pieces."""

    producer_id: int
    offset: int
    # ordinal of the marker's record; negative if the piece has data of the transaction
    ordinal: int
    aborts: bool
    horizon_ms: int | None


@dataclass(frozen=True, slots=True, eq=False)
class PieceTransactions:
    """The data of a piece that other pieces need to decide on transactions.

    See ``engine.rules.transactions``.
    """

    producers: Int64Array
    marks: npt.NDArray[np.uint8]  # flags, one byte per producer; see ``engine.rules.transactions``
    markers: tuple[PendingMarker, ...]
    contradiction: int | None  # offset of a marker that disagrees with the transaction index


@dataclass(slots=True)
class PieceScan:
    """The result of scanning one piece."""

    partition: int
    piece: int
    records: int = 0
    batches: int = 0
    keyed: int = 0
    tombstones: int = 0
    changed_batches: int = 0  # number of batches that change, whatever the election's result
    dirty_from: int = 0  # ordinal of the piece's first dirty record
    first_offset: int = -1  # base offset of the first batch; -1 if the piece has no batch
    next_offset: int = -1  # end offset of the last batch
    states: str = ""  # scratch file with the piece's states
    states_at: int = 0
    blocks: list[Block] = field(default_factory=list)
    losers: int = 0
    lost_last: bool = False  # whether the piece's last record lost within its block
    transactions: PieceTransactions | None = None
    problem: Problem | None = None
    # notes on unreadable records that are kept
    notes: list[Problem] = field(default_factory=list)
    keyless: int = 0  # records without a key that the policy drops
    first_keyless: int = -1  # offset of the first record in ``keyless``; -1 if none
    # latest horizon of a held tombstone; -1 if none is held
    held_until_ms: int = -1
    hidden: int = 0  # control records, and records of aborted transactions
    # whether all records are plain: live, with keys, in no transaction, in no old format, and in no
    # empty batch
    is_plain: bool = False
    is_cached: bool = False  # whether a stored scan replaced the scan

    @property
    def states_location(self) -> tuple[str, int, int]:
        """The location of the piece's record states: scratch file, position, number of records."""
        return self.states, self.states_at, self.records


@dataclass(frozen=True, slots=True)
class ElectUnit:
    """The work of one election task: buckets of one partition."""

    partition: int
    bits: int
    first_bucket: int
    end_bucket: int
    blocks: tuple[Block, ...]  # oldest first
    dirty_from: tuple[int, ...]  # by block: ordinal of the first dirty record
    last_records: tuple[int, ...]  # by block: ordinal of the last record of the block's piece
    # by block: scratch file and position of the piece's states
    states: tuple[tuple[str, int], ...]
    exact: bool
    limits: Limits
    strategy: Strategy = Strategy.OFFSET

    @property
    def entry_bytes(self) -> int:
        """The approximate number of bytes that the entries in these buckets have."""
        buckets = self.end_bucket - self.first_bucket
        return 16 * sum(block.count for block in self.blocks) * buckets >> self.bits


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """The result of an election: winners, and superseded records (losers) by piece of the log."""

    partition: int
    winners: int
    losers: dict[int, int]
    lost_last: tuple[int, ...] = ()  # numbers of pieces whose last record lost


@dataclass(frozen=True, slots=True)
class RewriteUnit:
    """The work of one rewrite task: pieces that become a new segment, or a part of a segment."""

    partition: int
    system: str
    group: int
    part: int
    parts: int
    base_offset: int
    pieces: tuple[ScanRange, ...]
    # by piece: scratch file, position and number of states
    states: tuple[tuple[str, int, int], ...]
    # by piece: ordinals of markers whose transaction has no batch left, if the states do not
    # mark them
    used_markers: tuple[tuple[int, ...], ...]
    policy: Policy
    index_interval_bytes: int
    limits: Limits
    folder: str | None  # folder in which the output is staged; None means that it is only measured
    mtime_ns: int = 0  # modification time of the last replaced segment, which new files get
    aborted: tuple[AbortedTransaction, ...] = ()  # entries of the new segment's transaction index
    reports_rest: bool = False  # whether the result has a ``PieceLeft`` for each piece
    cost: int = 0  # cost of the rewrite in bytes read, see ``engine.shares``
    # whether to lay out the new segment as the system's own cleaner would
    like_broker: bool = False
    # first replaced segment, whose owner and permissions the new segment gets
    source: str | None = None


class ScannedEntries(NamedTuple):
    """The blocks and states of a scanned piece, if they are in memory rather than in a file."""

    blocks: list[npt.NDArray[np.uint8]]  # blocks in order, in the format of a scratch file
    states: npt.NDArray[np.uint8]  # record states after the election


class CacheUnit(Protocol):
    """A segment whose scan will be stored in the scan cache."""

    @property
    def partition(self) -> int: ...
    @property
    def scans(self) -> tuple[PieceScan, ...]: ...
    @property
    def entry_bytes(self) -> int: ...


@dataclass(slots=True)
class PieceLeft:
    """The surviving records of a piece after a rewrite, described like the result of a scan."""

    piece: int
    start: int  # first byte in the new segment, or in the part of the segment
    end: int
    records: int = 0
    batches: int = 0
    first_offset: int = -1
    next_offset: int = -1
    is_plain: bool = True  # whether all records are plain, as in ``PieceScan.is_plain``


@dataclass(slots=True)
class SegmentOutput:
    """A staged new segment, or a staged part of one."""

    partition: int
    group: int
    part: int
    bytes_read: int = 0
    bytes_written: int = 0
    records: int = 0
    counts: tuple[int, ...] = ()
    log_path: str = ""
    index_path: str = ""
    time_index_path: str = ""
    transaction_index_path: str = ""  # path of the index; empty if the new segment has none
    largest_timestamp_ms: int = -1  # largest timestamp of the batches; -1 if there is none
    # further new segments, if offsets are too far from this segment's base
    more_outputs: tuple[SegmentOutput, ...] = ()
    base_offset: int = -1
    # whether no record is left, and the system has no segments without records
    is_deleted: bool = False
    problem: Problem | None = None
    error: Exception | None = None
    rests: tuple[PieceLeft, ...] = ()  # surviving records, by piece
    # in the first of several parts: an object that adds the batches of other parts to the indexes
    indexer: Any = None
    # in an archive, where parts are separate segments: the manifest's entry for this segment
    stored: object = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of this segment's staged files. A part has only the log."""
        named = (self.log_path, self.index_path, self.time_index_path, self.transaction_index_path)
        return tuple(path for path in named if path)
