"""The inputs and results of the tasks of ``verify``."""

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
    """The rows of one piece of a log, sorted by bucket, in a scratch file."""

    path: str
    position: int  # byte of the block in the file
    count: int  # number of rows
    first_offset: int  # lowest offset of the rows
    last_offset: int  # highest offset of the rows


@dataclass(frozen=True, slots=True, eq=False)
class FactBlock:
    """The rows that describe the batches of one piece of a log.

    They are in ``rows``, or in a scratch file if ``rows`` is None.
    """

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
    """A scratch file with the records that may be missing, and the batches that must stay.

    The file has ranges of offsets of these records, then base offsets of these batches.
    """

    path: str
    position: int
    discardable: int  # number of ranges (first, last offset); see ``rows.DISCARDABLE``
    owed: int  # number of base offsets; see ``rows.OWED``

    def read(self) -> tuple[Int64Array, Int64Array]:
        pairs = read_numbers(self.path, self.position, self.discardable, 2)
        owed = read_numbers(self.path, self.position + 16 * self.discardable, self.owed, 1)
        return pairs, owed.ravel()


def read_numbers(path: str, position: int, rows: int, columns: int) -> Int64Array:
    """Read rows of int64 from a scratch file."""
    return filled(np.empty((rows, columns), dtype=np.int64), path, position)


class RemovalRules(NamedTuple):
    """The settings and bounds of a log that determine which records may be missing."""

    producer_expiration_ms: int = 0
    # a delete of an older format may be removed if its file was last changed by this time
    old_tombstones_until_ms: int = -1
    order: int = BY_OFFSET  # the value that decides which write of a key is the last
    header: str = ""  # name of the header with the version, if ``order`` is BY_HEADER
    # largest permitted share of missing records without a key in all records of the earlier log
    max_keyless_ratio: float = 1.0
    # whether retention deletes no segment, neither by age nor by the log's size
    keeps_start: bool = False


@dataclass(frozen=True, slots=True)
class ContentsUnit:
    """The work of one reading task: pieces of one log.

    ``seed``, the secret of the digests, is None if there is no earlier log.
    """

    partition: int
    is_after: bool
    system: str
    pieces: tuple[ScanRange, ...]
    bits: int
    seed: bytes | None
    now_ms: int | None
    rules: RemovalRules | None  # None if there is no earlier log
    config: Mapping[str, object]
    limits: Limits
    scratch: str | None


@dataclass(slots=True)
class PieceContents:
    """The result of reading one piece of a log: counts, problems, and rows about its contents."""

    partition: int
    is_after: bool
    piece: ScanRange
    batches: int = 0
    tally: tuple[int, ...] = (0,) * TALLIES
    first_offset: int = -1  # base offset of the first batch; -1 if there is none
    next_offset: int = -1
    largest_timestamp: int = _NO_TIME
    largest_batch_bytes: int = 0
    blocks: list[RowBlock] = field(default_factory=list)
    facts: list[FactBlock] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    is_whole: bool = False  # whether the piece was read to its end


@dataclass(frozen=True, slots=True)
class CompareUnit:
    """The work of one comparison task: some buckets of one partition, in both logs."""

    partition: int
    bits: int
    first_bucket: int
    end_bucket: int
    before: tuple[RowBlock, ...]  # blocks of the earlier log, sorted by offset
    after: tuple[RowBlock, ...]  # blocks of the present log, sorted by offset
    log_start: int
    limit: int  # the last stable offset
    lookups: Lookups | None
    by_version: bool
    last_offset: int  # the last offset of the log
    appended: tuple[int, int]  # end offsets, see ``invariants.judged``
    most_rows: int  # most rows in memory at once

    @property
    def bytes(self) -> int:
        rows = sum(block.count for block in (*self.before, *self.after))
        return ROW_BYTES * rows * (self.end_bucket - self.first_bucket) >> self.bits


@dataclass(slots=True)
class ComparisonResult:
    """The result of comparing buckets: the counts from ``invariants.judged``, and violations.

    Only the first violations are included.

    A violation is (finding, offset, whether the row is of the present log).
    """

    partition: int
    counts: Int64Array
    broken: list[tuple[int, int, bool]] = field(default_factory=list)
    first_keyless: int = -1  # the lowest offset of a missing record without a key
