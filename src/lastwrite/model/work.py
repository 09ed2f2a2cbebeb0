"""Units of work and what comes back: the small values that travel between the driver and the workers.

Everything here is plain and pickles small; bytes of records never ride along.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lastwrite.model.log import Problem


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

    @property
    def bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Limits:
    """How much memory a worker may take for what."""

    chunk_bytes: int = 1 << 20  # of a segment, read at once; grows to the largest batch, up to plain_bytes
    plain_bytes: int = 64 << 20  # a batch, decompressed
    block_entries: int = 1 << 18  # entries held before they are handed on
    slice_bytes: int = 16 << 20  # entries elected at once


@dataclass(frozen=True, slots=True)
class Block:
    """Entries of one piece, by bucket, in a scratch file."""

    piece: int
    path: str
    position: int
    count: int
    key_bytes: int = 0  # with exact comparison: the keys behind the entries


@dataclass(frozen=True, slots=True)
class ScanUnit:
    """Pieces of one partition that one task scans."""

    partition: int
    system: str
    pieces: tuple[Piece, ...]
    first_dirty: int
    bits: int
    exact: bool
    secret: bytes
    policy: tuple[int, int, bool, int]  # see compaction.verdict.Policy
    limits: Limits
    scratch: str


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
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class ElectUnit:
    """Some buckets of one partition."""

    partition: int
    bits: int
    first_bucket: int
    end_bucket: int
    blocks: tuple[Block, ...]  # oldest first
    dirty_from: tuple[int, ...]  # by block
    states: tuple[tuple[str, int], ...]  # by block: scratch file, position of the piece's first state
    exact: bool
    limits: Limits


@dataclass(frozen=True, slots=True)
class Elected:
    """What an election found: losers by piece."""

    partition: int
    winners: int
    losers: dict[int, int]


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
    policy: tuple[int, int, bool, int]
    index_interval_bytes: int
    limits: Limits
    folder: str | None  # where the outputs are written aside; None: measure only


@dataclass(slots=True)
class Rewritten:
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
    problem: Problem | None = None
    error: Exception | None = None
