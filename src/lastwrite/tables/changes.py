"""The changes of a table's rows in a log, by bucket: the last write or the delete of each key.

A ``Changes`` covers the log from the table's offsets on, or, if ``is_complete``, the entire log.
After the entire log was read, rows of the table whose key has no change are deleted. Changes
beyond a memory limit are in scratch files, so each bucket can be processed by itself.

Reading from the table's offsets on is enough under three conditions. Otherwise the entire log is
read:

- The log was not compacted from these offsets on. A compaction could have removed a delete before
  it was read.
- No key occurs in several partitions, neither before nor now. The row of such a key is its write
  with the latest timestamp, as in ``latest``. The table does not contain its other writes.
- Each write is later than all earlier deletes in other partitions. Otherwise one of these deletes
  may be of the same key, and later than the write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastwrite.engine.chunks import BatchWindows
from lastwrite.model.columns import RecordColumns
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import Progress
from lastwrite.model.work import Limits
from lastwrite.reports.table_round import RecordTime
from lastwrite.rows.arrow import batch_of, odd_times
from lastwrite.rows.last_writes import LastWrites
from lastwrite.rows.reading import read_records, row_units
from lastwrite.rows.system import RowSystem
from lastwrite.storage.objects import address
from lastwrite.tables.bucket_layout import BucketedRows
from lastwrite.tables.buckets import buckets_at, by_bucket
from lastwrite.tables.columns import PARTITION, TIMESTAMP
from lastwrite.tables.rows import IS_DELETE, Rows

_CHUNK_BYTES = 4 << 20  # bytes of the log whose rows are distributed over buckets at once


class NeedsFullScan(Exception):
    """Raised if the entire log must be read; see the module's docstring."""


class Changes:
    """The changes of a table's rows, by bucket. ``close`` removes their scratch files.

    Attributes:
        is_complete: whether the changes cover the entire log.
        ends: the first offset that was not read, by partition.
        moved, deletes_ms: as in ``TableState``.
        counts: the number of changes, by bucket.
        odd_times: the number of writes whose time no column can represent.
        first_odd_time: the first write whose time no column can represent, or None.
    """

    def __init__(
        self, last: LastWrites, rows: Rows, since: Mapping[int, int] | None, memory_bytes: int
    ) -> None:
        self.is_complete = since is None
        self.ends = dict(last.ends)
        self.moved = last.has_moved_keys
        self.deletes_ms = last.last_deletes()
        self.odd_times = 0
        self.first_odd_time: RecordTime | None = None
        self._last, self._rows, self._since = last, rows, since
        self._limit = memory_bytes
        self._buckets = 0
        self._laid = BucketedRows(rows.identity, memory_bytes)

    def gather(self, buckets: int, progress: Progress) -> None:
        """Read the changes and distribute them over this number of buckets.

        Raises:
            CorruptLog, UnsupportedFormat, CommitConflict, OutOfMemoryBudget: as ``read_records``.
            BadValue: as ``Rows.changes``.
        """
        since, self._buckets = self._since, buckets
        units = (
            self._last.units(self._rows.read_columns)
            if since is None
            else self._last.changes(
                self._rows.read_columns,
                {partition: since.get(partition, 0) for partition in self.ends},
            )
        )
        progress.stage("read", self._last.scanned_bytes)
        limits = self._last.limits
        chunk_bytes = max(limits.chunk_bytes, min(_CHUNK_BYTES, self._limit // 16))
        limits = replace(limits, chunk_bytes=chunk_bytes)
        for unit in units:
            for records in read_records(unit, limits):
                records = self._last.system.with_deletes(records)
                self._count_odd_times(records, unit.name.partition)
                if not self._rows.decodes and records.header_names is None:
                    # Sort by bucket here, so that ``BucketedRows`` need not move the rows. Rows
                    # that will be decoded stay in log order, so that the first bad row is reported.
                    found = buckets_at(records.data, *records.keys, buckets)
                    order = by_bucket(found, buckets)
                    records = records if order is None else records.take(order)
                changes = self._rows.changes(batch_of(records, unit.name, unit.columns))
                if len(changes):
                    self._laid.add(changes, buckets)
            progress.advance(unit.piece.end - unit.piece.start)
        self._laid.settle()

    def rewrite_buckets(self, buckets: int) -> None:
        """Distribute the changes again, over at least as many buckets as before."""
        if buckets == self._buckets:
            return
        before, self._laid = self._laid, BucketedRows(self._rows.identity, self._limit)
        with before:
            for bucket in sorted(before.counts):
                for batch in before.of(bucket):
                    self._laid.add(batch, buckets)
        self._laid.settle()

    def _count_odd_times(self, records: RecordColumns, partition: int) -> None:
        odd = odd_times(records.times_ms)
        if odd is None:
            return
        rows = np.flatnonzero(odd & (records.values[1] >= 0))
        self.odd_times += len(rows)
        if len(rows) and self.first_odd_time is None:
            offset, time_ms = (int(each[rows[0]]) for each in (records.offsets, records.times_ms))
            self.first_odd_time = RecordTime(
                partition=partition, offset=offset, timestamp_ms=time_ms
            )

    @property
    def counts(self) -> Mapping[int, int]:
        return self._laid.counts

    @property
    def bytes(self) -> int:
        """The size that all changes would have in memory."""
        return self._laid.bytes

    def of(self, bucket: int) -> pa.Table:
        """The changes of one bucket in ``Rows.change_schema``, one for each key, in any order."""
        return pa.Table.from_batches(self._laid.of(bucket), self._rows.change_schema)

    def check_times(self, changes: pa.Table, deletes_ms: Mapping[int, int]) -> None:
        """Check that the writes of one bucket are later than the deletes that were read before.

        Args:
            deletes_ms: as in the table's ``TableState``.

        Raises:
            NeedsFullScan: a write is not later than all deletes in other partitions.
        """
        if self.is_complete or len(self.ends) < 2 or not deletes_ms or not len(changes):
            return
        writes = changes.filter(pc.invert(changes.column(IS_DELETE)))
        partitions = np.asarray(writes.column(PARTITION))
        if writes.column(TIMESTAMP).null_count:  # a write's time does not fit in the column
            raise NeedsFullScan
        times = np.asarray(writes.column(TIMESTAMP).cast(pa.int64())) // 1000
        for partition in np.unique(partitions).tolist():
            others = [time for other, time in deletes_ms.items() if other != partition]
            if others and (times[partitions == partition] <= max(others)).any():
                raise NeedsFullScan

    def close(self) -> None:
        """Remove the scratch files."""
        self._laid.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def was_compacted_since(
    system: RowSystem, logs: Sequence[PartitionLog], since: Mapping[int, int]
) -> bool:
    """Whether a compaction may have removed records at or above these offsets.

    True if a log's checkpoint is above them, or an offset has no record. The latter is checked only
    if no two records share an offset.
    """
    for log in logs:
        first = since.get(log.name.partition, 0)
        end = system.end_of(log, True)
        if first >= end:
            continue
        if log.checkpoint is not None and log.checkpoint > first:
            return True
        if system.is_offset_unique and _present(system, log, first, end) < end - first:
            return True
    return False


def _present(system: RowSystem, log: PartitionLog, first: int, end: int) -> int:
    """The number of records, with markers, in the batches that are entirely in [first, end)."""
    limits, present = Limits(), 0
    for unit in row_units(system, log, ("offset",), is_committed=True, first=first, end=end):
        address.use(unit.stores)
        reader = unit.reader(limits)
        for chunk in BatchWindows(limits).of(reader.format, unit.piece):
            table = chunk.table
            wanted = (table["base_offset"] >= first) & (table["next_offset"] <= end)
            present += int(table["records"][wanted].sum())
    return present


def bytes_of(last: LastWrites, rows: int) -> int:
    """Estimate the log bytes of a number of rows from the average size of scanned records."""
    return rows * last.scanned_bytes // max(1, last.scanned_records)
