"""Units of work and their results: the small values sent between the driver and the workers.

They are plain data and small when pickled; they never contain the bytes of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from lastwrite.model.columns import Int64Array
from lastwrite.model.log import AbortedTransaction, Problem, Segment
from lastwrite.model.policy import Policy, Strategy
from lastwrite.model.stores import StoreSettings

R = TypeVar("R")
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class PendingResult(Generic[T]):
    """Work in progress elsewhere."""

    result: Callable[[], T]  # waits for the end of the work and returns its result
    cancel: Callable[[], None] = lambda: None  # stops the work: its result is not needed

    def then(self, make: Callable[[T], R]) -> PendingResult[R]:
        """The same work, with ``make`` applied to its result."""
        return PendingResult(lambda: make(self.result()), self.cancel)


class FailedUnit(Generic[U]):
    """A unit that raised an exception; takes the place of its result."""

    def __init__(self, unit: U, error: Exception) -> None:
        self.unit = unit
        self.error = error


@dataclass(frozen=True, slots=True)
class ScanRange:
    """A range of a segment, from the start of one batch to the start of another."""

    number: int  # in the partition, oldest first
    segment: int  # index in the partition's list
    path: str
    start: int
    end: int
    size_bytes: int  # of the whole file; identifies it, together with ``mtime_ns``
    mtime_ns: int
    lowest_offset: int  # the segment has no offset below
    end_offset: int  # nor at or above
    keyed: bool  # False if it is outside the range, and only checked and counted
    is_indexed: bool = True  # False if a crash left wrong indexes, which must not be read
    cached: CachedScan | None = None  # the scan of an earlier round
    growing: int = 0  # as ``Segment.growing``
    etag: str = ""  # as ``Segment.etag``

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
        """A range of ``segment``, which has the index ``place`` in its log, with the segment's
        identity.
        """
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
        )

    @property
    def bytes(self) -> int:
        return self.end - self.start

    @property
    def scan_bytes(self) -> int:
        """About how many bytes a scan reads."""
        return self.bytes if self.cached is None else self.cached.read_bytes


class CachedScan(Protocol):
    """Replaces the scan of a piece; see ``scan_cache``."""

    @property
    def read_bytes(self) -> int: ...

    def scanned(
        self, unit: ScanUnit, piece: ScanRange, hand_on: Callable[[Any], None]
    ) -> PieceScan | None:
        """The piece's result, except its states, which are all 0. None means that it must be
        scanned.

        Blocks that are not in a file that other workers can read are passed to ``hand_on``.
        """


class Rates(NamedTuple):
    """Bytes per second, over all workers together; infinity means no limit."""

    both: float = math.inf  # read plus written
    reading: float = math.inf
    writing: float = math.inf


@dataclass(frozen=True, slots=True)
class Throttle:
    """A rate limit over all workers together; see ``storage.throttle``."""

    # the file that the workers of this machine share; empty if each worker limits itself
    path: str
    bytes_per_second: float  # infinity means no limit
    what: str = ""  # what is counted; distinguishes throttles without a file


@dataclass(frozen=True, slots=True)
class Limits:
    """The memory that a worker may use for each purpose, and its rate limits."""

    # bytes of a segment read at once; grows to the largest batch, up to plain_bytes
    chunk_bytes: int = 1 << 20
    plain_bytes: int = 64 << 20  # a batch, decompressed
    block_entries: int = 1 << 18  # entries collected before they are handed on
    slice_bytes: int = 16 << 20  # entries elected at once
    piece_bytes: int = 32 << 20  # of a segment; the states of its records are in memory at once
    piece_records: int = 1 << 25  # about so many records in a piece
    reading: tuple[Throttle, ...] = ()  # each of these counts the bytes read
    writing: tuple[Throttle, ...] = ()  # each of these counts the bytes written
    # bytes of an object requested at once; up to three such while the next is on its way
    ahead_bytes: int = 8 << 20
    stores: StoreSettings | None = None  # None: the settings of this process


@dataclass(frozen=True, slots=True)
class Block:
    """Entries of one piece, by bucket, in a scratch file."""

    piece: int
    path: str
    position: int
    count: int
    key_bytes: int = 0  # of the keys behind the entries, with exact comparison
    columns: int = 2  # words per entry
    finer: int = 0  # additional bits by which it is sorted, if an earlier round made it


@dataclass(frozen=True, slots=True)
class ScanUnit:
    """Pieces of one partition that one task scans."""

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
    memory_scratch: str = ""  # a folder in memory, of which this unit may use ``memory_bytes``
    memory_bytes: int = 0
    thins: bool = True  # a block's own losers need not be handed on


@dataclass(frozen=True, slots=True)
class PendingMarker:
    """A transaction marker that a piece cannot decide alone."""

    producer_id: int
    offset: int
    ordinal: int  # of its record in the piece; negative if the piece has data of the transaction
    aborts: bool
    horizon_ms: int | None


@dataclass(frozen=True, slots=True, eq=False)
class PieceTransactions:
    """A piece's facts about transactions that may have begun before it.

    See ``engine.rules.transactions``.
    """

    producers: Int64Array
    seen: npt.NDArray[np.uint8]  # bits, one byte per producer
    markers: tuple[PendingMarker, ...]
    contradiction: int | None  # offset of a marker that contradicts the transaction index


@dataclass(slots=True)
class PieceScan:
    """The result of scanning one piece."""

    partition: int
    piece: int
    records: int = 0
    batches: int = 0
    keyed: int = 0
    tombstones: int = 0
    changed_batches: int = 0  # batches that change regardless of the election
    dirty_from: int = 0  # ordinal of the first dirty record
    first_offset: int = -1  # base of the first batch; -1 if there is none
    next_offset: int = -1  # end of the last batch
    states: str = ""  # scratch file of state bytes, and the position of this piece's
    states_at: int = 0
    blocks: list[Block] = field(default_factory=list)
    losers: int = 0
    lost_last: bool = False  # the block with its last record marked that record as a loser
    transactions: PieceTransactions | None = None
    problem: Problem | None = None
    # about records that cannot be read and are kept
    notes: list[Problem] = field(default_factory=list)
    keyless: int = 0  # records without a key that the policy drops
    first_keyless: int = -1  # the offset of the first of these
    # the latest horizon of a tombstone that is held; -1 if none is
    held_until_ms: int = -1
    hidden: int = 0  # control records, and records of aborted transactions
    # all its records are plain: live, keyed, in no transaction, in batches that are neither empty
    # nor of an old format
    is_plain: bool = False
    is_cached: bool = False  # an earlier round scanned it, and it was not read

    @property
    def place_of_states(self) -> tuple[str, int, int]:
        """The states of its records: scratch file, position, number of records."""
        return self.states, self.states_at, self.records


@dataclass(frozen=True, slots=True)
class ElectUnit:
    """Some buckets of one partition."""

    partition: int
    bits: int
    first_bucket: int
    end_bucket: int
    blocks: tuple[Block, ...]  # oldest first
    dirty_from: tuple[int, ...]  # by block
    last_records: tuple[int, ...]  # by block: ordinal of its piece's last record
    # by block: scratch file, position of the piece's first state
    states: tuple[tuple[str, int], ...]
    exact: bool
    limits: Limits
    strategy: Strategy = Strategy.OFFSET

    @property
    def entry_bytes(self) -> int:
        """About how many bytes of entries are in these buckets."""
        buckets = self.end_bucket - self.first_bucket
        return 16 * sum(block.count for block in self.blocks) * buckets >> self.bits


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """The result of an election: losers by piece."""

    partition: int
    winners: int
    losers: dict[int, int]
    lost_last: tuple[int, ...] = ()  # the pieces whose last record lost


@dataclass(frozen=True, slots=True)
class RewriteUnit:
    """Pieces that one task rewrites into one new segment, or into a part of one."""

    partition: int
    system: str
    group: int
    part: int
    parts: int
    base_offset: int
    pieces: tuple[ScanRange, ...]
    states: tuple[tuple[str, int, int], ...]  # by piece: scratch file, position, records
    # by piece: ordinals of markers that are spent, in addition to those in the states
    spent: tuple[tuple[int, ...], ...]
    policy: Policy
    index_interval_bytes: int
    limits: Limits
    folder: str | None  # where the outputs are staged; None to measure only
    mtime_ns: int = 0  # of the new files: the last source's
    aborted: tuple[AbortedTransaction, ...] = ()  # the entries of the new transaction index
    tells_left: bool = False  # report the rest of each piece: see ``PieceLeft``
    cost: int = 0  # in bytes read
    like_broker: bool = False  # lay out the new segment as the system's own cleaner would
    # the first segment that it replaces, whose owner and permissions it gets
    source: str | None = None


class ScannedEntries(NamedTuple):
    """The result of a piece's scan, if it is in no file."""

    blocks: list[npt.NDArray[np.uint8]]  # in order, as in a scratch file
    states: npt.NDArray[np.uint8]  # after the election


class CacheUnit(Protocol):
    """A segment whose scan is to be kept."""

    @property
    def partition(self) -> int: ...
    @property
    def scans(self) -> tuple[PieceScan, ...]: ...
    @property
    def entry_bytes(self) -> int: ...


@dataclass(slots=True)
class PieceLeft:
    """The rest of a piece after a rewrite, in the terms of a scan."""

    piece: int
    start: int  # in the new segment, or in its part
    end: int
    records: int = 0
    batches: int = 0
    first_offset: int = -1
    next_offset: int = -1
    is_plain: bool = True  # as ``PieceScan.is_plain``


@dataclass(slots=True)
class SegmentOutput:
    """A new segment, or a part of one, that is staged."""

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
    transaction_index_path: str = ""  # empty if the new segment has none
    largest_timestamp_ms: int = -1  # of its batches; -1 if there is none
    # segments behind this one, needed if offsets are too far from its base
    further: tuple[SegmentOutput, ...] = ()
    base_offset: int = -1
    is_gone: bool = False  # nothing is left, and the system has no segments without records
    problem: Problem | None = None
    error: Exception | None = None
    left: tuple[PieceLeft, ...] = ()  # one per piece
    indexer: Any = None  # of the first of several parts: indexes the batches of the others
    # in an archive: its entry in the manifest; parts are segments there
    stored: object = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of this segment; only the log of a part."""
        named = (self.log_path, self.index_path, self.time_index_path, self.transaction_index_path)
        return tuple(path for path in named if path)
