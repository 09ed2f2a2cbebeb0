"""What travels between the driver of ``verify`` and its tasks: which pieces to read and by which
rules, what was found in them, and which buckets to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lastwrite.model.columns import Int64Array
from lastwrite.model.log import Problem
from lastwrite.model.work import Limits, ScanRange
from lastwrite.storage.scratch import filled
from lastwrite.verification.rows import BY_OFFSET, FACT_WORDS, ROW_BYTES, TALLIES

_NO_TIME = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows of one piece, by bucket, in a scratch file."""

    path: str
    position: int
    count: int
    first_offset: int  # of all rows
    last_offset: int


@dataclass(frozen=True, slots=True, eq=False)
class FactBlock:
    """Facts of one piece, in a scratch file, or with it where there is none."""

    path: str
    position: int
    count: int
    rows: Int64Array | None = None

    def read(self) -> Int64Array:
        if self.rows is not None:
            return self.rows
        return read_numbers(self.path, self.position, self.count, FACT_WORDS)


@dataclass(frozen=True, slots=True)
class Lookups:
    """What facts say of records and batches: stretches of offsets, and base offsets behind them, in
    a scratch file.
    """

    path: str
    position: int
    discardable: int  # rows (first, last)
    owed: int

    def read(self) -> tuple[Int64Array, Int64Array]:
        pairs = read_numbers(self.path, self.position, self.discardable, 2)
        owed = read_numbers(self.path, self.position + 16 * self.discardable, self.owed, 1)
        return pairs, owed.ravel()


def read_numbers(path: str, position: int, rows: int, columns: int) -> Int64Array:
    """Rows of int64 from a scratch file."""
    return filled(np.empty((rows, columns), dtype=np.int64), path, position)


class RemovalRules(NamedTuple):
    """Settings and bounds of a log that decide what may be missing from it."""

    producer_expiration_ms: int = 0
    # a delete of an older format may go if its file was last changed by then
    old_tombstones_until_ms: int = -1
    order: int = BY_OFFSET  # of the writes of a key, and the header that tells it
    header: str = ""
    max_keyless_ratio: float = 1.0  # of the records, that may be missing for want of a key
    # by the settings that were given no segment may leave for its age or the log's size
    keeps_start: bool = False


@dataclass(frozen=True, slots=True)
class ContentsUnit:
    """Pieces of one log that one task reads. ``seed`` None: there is nothing to compare with."""

    partition: int
    is_after: bool
    system: str
    pieces: tuple[ScanRange, ...]
    bits: int
    seed: bytes | None
    now_ms: int | None
    rules: RemovalRules | None  # None: as with ``seed``
    config: Mapping[str, object]
    limits: Limits
    scratch: str | None


@dataclass(slots=True)
class PieceContents:
    """What one piece holds."""

    partition: int
    is_after: bool
    piece: ScanRange
    batches: int = 0
    tally: tuple[int, ...] = (0,) * TALLIES
    first_offset: int = -1  # of the first batch; -1: there is none
    next_offset: int = -1
    largest_timestamp: int = _NO_TIME
    largest_batch_bytes: int = 0
    blocks: list[RowBlock] = field(default_factory=list)
    facts: list[FactBlock] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    is_whole: bool = False  # read to its end


@dataclass(frozen=True, slots=True)
class CompareUnit:
    """Some buckets of one partition, in both logs."""

    partition: int
    bits: int
    first_bucket: int
    end_bucket: int
    before: tuple[RowBlock, ...]  # by offset
    after: tuple[RowBlock, ...]
    log_start: int
    limit: int  # the last stable offset
    lookups: Lookups | None
    by_version: bool
    last_offset: int  # of the log
    appended: tuple[int, int]  # where the log under proof has grown, and up to where it supersedes
    most_rows: int  # to hold at once

    @property
    def bytes(self) -> int:
        rows = sum(block.count for block in (*self.before, *self.after))
        return ROW_BYTES * rows * (self.end_bucket - self.first_bucket) >> self.bits


@dataclass(slots=True)
class ComparisonResult:
    """Counts as ``promises`` has them, and the first broken promises: (finding, offset, in the log
    under proof).
    """

    partition: int
    counts: Int64Array
    broken: list[tuple[int, int, bool]] = field(default_factory=list)
    first_keyless: int = -1  # the lowest offset of a record that is missing for want of a key
