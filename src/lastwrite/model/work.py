"""Units of work and what comes back: the small values that travel between the driver and the
workers.

Everything here is plain and pickles small; bytes of records never ride along.
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
class Begun(Generic[T]):
    """Work that goes on elsewhere."""

    result: Callable[[], T]  # what came of it; waits for its end
    cancel: Callable[[], None] = lambda: None  # gives it up: nobody asks for its result

    def then(self, make: Callable[[T], R]) -> Begun[R]:
        """The same work, and what is made of its result."""
        return Begun(lambda: make(self.result()), self.cancel)


class Failed(Generic[U]):
    """A unit that raised: what a caller gets in place of its result."""

    def __init__(self, unit: U, error: Exception) -> None:
        self.unit = unit
        self.error = error


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a segment, from one batch's begin to another's."""

    number: int  # in the partition, oldest first
    segment: int  # place in the partition's list
    path: str
    start: int
    end: int
    size_bytes: int  # of the whole file, with the next field its identity
    mtime_ns: int
    lowest_offset: int  # nothing in the segment lies below
    end_offset: int  # nor at or above
    keyed: bool  # False: outside the range; checked and counted, no more
    is_indexed: bool = True  # False: a crash left indexes that nobody may look into
    cached: CachedScan | None = None  # what an earlier round found in it
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
    ) -> Piece:
        """A stretch of a segment that stands at ``place`` in its log, by the segment's identity."""
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
        """About how many bytes a scan goes over."""
        return self.bytes if self.cached is None else self.cached.read_bytes


class CachedScan(Protocol):
    """Stands in for the scan of a piece; see ``scan_cache``."""

    @property
    def read_bytes(self) -> int: ...

    def scanned(
        self, unit: ScanUnit, piece: Piece, hand_on: Callable[[Any], None]
    ) -> PieceScan | None:
        """The piece's result, all but its states, which are all 0; None: it is to be scanned.
        Blocks that do not lie where others find them are given to ``hand_on``.
        """


class Rates(NamedTuple):
    """Bytes a second, over all workers together; infinity: as fast as it goes."""

    both: float = math.inf  # read plus written
    reading: float = math.inf
    writing: float = math.inf


@dataclass(frozen=True, slots=True)
class Throttle:
    """How fast all workers together may go; see ``storage.throttle``."""

    # of the file that the workers of this machine share; empty: each keeps to the rate by itself
    path: str
    bytes_per_second: float  # infinity: as fast as it goes
    what: str = ""  # is counted; tells throttles without a file apart


@dataclass(frozen=True, slots=True)
class Limits:
    """How much memory a worker may take for what, and how fast it may go."""

    # of a segment, read at once; grows to the largest batch, up to plain_bytes
    chunk_bytes: int = 1 << 20
    plain_bytes: int = 64 << 20  # a batch, decompressed
    block_entries: int = 1 << 18  # entries held before they are handed on
    slice_bytes: int = 16 << 20  # entries elected at once
    piece_bytes: int = 32 << 20  # of a segment, whose records' states are held at once
    piece_records: int = 1 << 25  # about so many of them
    reading: tuple[Throttle, ...] = ()  # what is read is counted by each of these
    writing: tuple[Throttle, ...] = ()  # and what is written by these
    # of an object, asked for at once; three of these while the next is on its way
    ahead_bytes: int = 8 << 20
    stores: StoreSettings | None = None  # None: as this process reaches buckets


@dataclass(frozen=True, slots=True)
class Block:
    """Entries of one piece, by bucket, in a scratch file."""

    piece: int
    path: str
    position: int
    count: int
    key_bytes: int = 0  # with exact comparison: the keys behind the entries
    columns: int = 2  # words of an entry
    finer: int = 0  # bits by which it is sorted finer than the round asks: an earlier one made it


@dataclass(frozen=True, slots=True)
class ScanUnit:
    """Pieces of one partition that one task scans."""

    partition: int
    system: str
    pieces: tuple[Piece, ...]
    first_dirty: int
    bits: int
    exact: bool
    secret: bytes = field(repr=False)
    policy: Policy
    aborted: Int64Array  # see compaction.transactions.aborted_table
    limits: Limits
    scratch: str
    memory_scratch: str = ""  # a folder that is memory, of which this unit may use ``memory_bytes``
    memory_bytes: int = 0
    thins: bool = True  # what a block's own records shadow need not be handed on


@dataclass(frozen=True, slots=True)
class PendingMarker:
    """A transaction marker of which a piece alone cannot tell all."""

    producer_id: int
    offset: int
    ordinal: int  # of its record in the piece; below 0: the piece has data of the transaction
    aborts: bool
    horizon_ms: int | None


@dataclass(frozen=True, slots=True, eq=False)
class PieceTransactions:
    """What a piece says of transactions that may have begun before it; see
    ``engine.rules.transactions``.
    """

    producers: Int64Array
    seen: npt.NDArray[np.uint8]  # bits, by producer
    markers: tuple[PendingMarker, ...]
    contradiction: int | None  # offset of a marker that contradicts the transaction index


@dataclass(slots=True)
class PieceScan:
    """What a scan found in one piece."""

    partition: int
    piece: int
    records: int = 0
    batches: int = 0
    keyed: int = 0
    tombstones: int = 0
    changed_batches: int = 0  # that change whatever election says
    dirty_from: int = 0  # ordinal of the first dirty record
    first_offset: int = -1  # base of the first batch; -1: there is none
    next_offset: int = -1  # behind the last batch
    states: str = ""  # scratch file of state bytes, and where this piece's begin in it
    states_at: int = 0
    blocks: list[Block] = field(default_factory=list)
    losers: int = 0
    lost_last: bool = False  # the block that holds its last record marked that one a loser
    transactions: PieceTransactions | None = None
    problem: Problem | None = None
    # of records that cannot be read and are kept
    notes: list[Problem] = field(default_factory=list)
    keyless: int = 0  # records without a key that the policy drops
    first_keyless: int = -1  # the offset of the first of them
    # the latest horizon of a tombstone that is held; -1: none is
    held_until_ms: int = -1
    hidden: int = 0  # control records, and those of aborted transactions
    # all its records are plain: live, keyed, in no transaction, no batch empty or of an old format
    is_plain: bool = False
    is_cached: bool = False  # it was not read: an earlier round knew this

    @property
    def place_of_states(self) -> tuple[str, int, int]:
        """Where the states of its records lie: scratch file, position, records."""
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
        """About how many bytes of entries lie in these buckets."""
        buckets = self.end_bucket - self.first_bucket
        return 16 * sum(block.count for block in self.blocks) * buckets >> self.bits


@dataclass(frozen=True, slots=True)
class Elected:
    """What an election found: losers by piece."""

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
    pieces: tuple[Piece, ...]
    states: tuple[tuple[str, int, int], ...]  # by piece: scratch file, position, records
    # by piece: ordinals of markers that are spent, beside those in the states
    spent: tuple[tuple[int, ...], ...]
    policy: Policy
    index_interval_bytes: int
    limits: Limits
    folder: str | None  # where the outputs are written aside; None: measure only
    mtime_ns: int = 0  # of the new files: that of the last source
    aborted: tuple[AbortedTransaction, ...] = ()  # the entries of the new transaction index
    tells_left: bool = False  # what is left of each piece: see ``PieceLeft``
    cost: int = 0  # in bytes read
    like_broker: bool = False  # the new segment is laid out as the system's own cleaner would
    # the segment that it replaces, the first of them: whose owner and rights it takes
    source: str | None = None


class ScannedEntries(NamedTuple):
    """What a piece's scan found, where no file has it."""

    blocks: list[npt.NDArray[np.uint8]]  # as in a scratch file, in their order
    states: npt.NDArray[np.uint8]  # as election left them


class KeepUnit(Protocol):
    """A segment of which it is to be kept what its scan found."""

    @property
    def partition(self) -> int: ...
    @property
    def scans(self) -> tuple[PieceScan, ...]: ...
    @property
    def entry_bytes(self) -> int: ...


@dataclass(slots=True)
class PieceLeft:
    """What a rewrite left of a piece, as a scan of it would find it."""

    piece: int
    start: int  # in the new segment, or in its part
    end: int
    records: int = 0
    batches: int = 0
    first_offset: int = -1
    next_offset: int = -1
    is_plain: bool = True  # as PieceScan


@dataclass(slots=True)
class SegmentOutput:
    """A new segment, or a part of one, written aside."""

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
    transaction_index_path: str = ""  # empty: the new segment has none
    largest_timestamp_ms: int = -1  # of its batches; -1: none
    # segments behind this one, where offsets outgrow its base
    further: tuple[SegmentOutput, ...] = ()
    base_offset: int = -1
    is_gone: bool = False  # nothing was left, and the system keeps no segment without records
    problem: Problem | None = None
    error: Exception | None = None
    left: tuple[PieceLeft, ...] = ()  # of each piece
    indexer: Any = None  # of the first of several parts: what the others' batches are indexed by
    # of an archive: what its manifest will say of the segment; parts are segments there
    stored: object = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of this segment, of a part of one its log."""
        named = (self.log_path, self.index_path, self.time_index_path, self.transaction_index_path)
        return tuple(path for path in named if path)
