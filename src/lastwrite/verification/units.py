"""The data exchanged between the driver of ``verify`` and its tasks: the pieces and rules for
reading, the contents of pieces, and the buckets to compare.
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
    """Facts of one piece, in a scratch file, or in ``rows`` if there is no file."""

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
    """The consequences of facts for records and batches, in a scratch file: ranges of offsets, then
    base offsets.
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
    """Settings and bounds of a log that decide which records may be missing."""

    producer_expiration_ms: int = 0
    # a delete of an older format may be removed if its file was last changed by this time
    old_tombstones_until_ms: int = -1
    order: int = BY_OFFSET  # of a key's writes; ``header`` names the header with the version
    header: str = ""
    max_keyless_ratio: float = 1.0  # the share of records that may be missing without a key
    # the given settings let no segment expire by age or by the log's size
    keeps_start: bool = False


@dataclass(frozen=True, slots=True)
class ContentsUnit:
    """Pieces of one log for one task. ``seed`` is None if there is nothing to compare with."""

    partition: int
    is_after: bool
    system: str
    pieces: tuple[ScanRange, ...]
    bits: int
    seed: bytes | None
    now_ms: int | None
    rules: RemovalRules | None  # None if there is nothing to compare with
    config: Mapping[str, object]
    limits: Limits
    scratch: str | None


@dataclass(slots=True)
class PieceContents:
    """The contents of one piece."""

    partition: int
    is_after: bool
    piece: ScanRange
    batches: int = 0
    tally: tuple[int, ...] = (0,) * TALLIES
    first_offset: int = -1  # of the first batch; -1 if there is none
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
    appended: tuple[int, int]  # first offset appended since, and the end of those that supersede
    most_rows: int  # to hold at once

    @property
    def bytes(self) -> int:
        rows = sum(block.count for block in (*self.before, *self.after))
        return ROW_BYTES * rows * (self.end_bucket - self.first_bucket) >> self.bits


@dataclass(slots=True)
class ComparisonResult:
    """Counts as in ``invariants``, and the first broken promises: (finding, offset, whether in the
    log under proof).
    """

    partition: int
    counts: Int64Array
    broken: list[tuple[int, int, bool]] = field(default_factory=list)
    first_keyless: int = -1  # the lowest offset of a missing record without a key
