"""What a log says of a table's rows: the last write, or the delete, of each key, bucket by bucket.

Either of what was written since the table's offsets, or, ``whole``, of all that the log has: then
what the table has beyond that is deleted. Changes are held by bucket, and beyond a limit lie in
scratch files, so that each bucket can be looked at by itself.

What was written since is enough where three things hold; else all of the log is looked at:

- The part since then was not compacted: a delete may have gone from it before it was seen.
- No key was met in several partitions, neither before nor now. Of such a key the write of the
  later timestamp counts, as in ``latest``, and the table does not have the others.
- A write is later than every delete that was met in another partition, or it might be a key that
  is deleted there, later than it was written here.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastwrite.engine.chunks import Chunks
from lastwrite.model.columns import RecordColumns
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import Limits
from lastwrite.rows.arrow import batches_of
from lastwrite.rows.last_writes import LastWrites
from lastwrite.rows.reading import read_records, row_units
from lastwrite.rows.system import RowSystem
from lastwrite.storage.objects import address
from lastwrite.storage.run_folder import make_folder, remove_folder
from lastwrite.tables.buckets import bucket_count, buckets_of
from lastwrite.tables.columns import PARTITION, TIMESTAMP, as_bytes
from lastwrite.tables.rows import IS_DELETE, Rows

_BUCKET = "_bucket"
_ROWS_TOGETHER = 1 << 16  # that are laid into buckets together


class Doubt(Exception):
    """What was written since does not tell what the table is: see the module's words."""


class Changes:
    """Changes by bucket; closing them removes their scratch files.

    Attributes:
        whole: whether they are of all of the log.
        ends: partition to the first offset that was not looked at.
        moved, deletes_ms: as ``TableState``.
        counts: bucket to the number of its changes.
    """

    def __init__(
        self, last: LastWrites, rows: Rows, since: Mapping[int, int] | None, memory_bytes: int
    ) -> None:
        self.whole = since is None
        self.ends = dict(last.ends)
        self.moved = last.has_moved_keys
        self.deletes_ms = last.last_deletes()
        self.counts: dict[int, int] = {}
        self.bytes = 0  # of all changes, in memory
        self._last, self._rows, self._since = last, rows, since
        self._limit = memory_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._spilt: list[_Spilt] = []
        self._sorted: tuple[pa.Table, np.ndarray] | None = None
        self._folder: Path | None = None

    def gather(self, buckets: int) -> None:
        """Read them, and lay them into so many buckets.

        Raises:
            CorruptLog, UnsupportedFormat, CommitConflict, OutOfMemoryBudget: as ``read_records``.
            BadValue: as ``Rows.changes``.
        """
        since = self._since
        units = (
            self._last.units(self._rows.read_columns)
            if since is None
            else self._last.changes(
                self._rows.read_columns,
                {partition: since.get(partition, 0) for partition in self.ends},
            )
        )
        waiting: list[pa.RecordBatch] = []
        for unit in units:
            for records in read_records(unit, self._last.limits):
                records = _with_deletes(records, self._last.system)
                waiting += batches_of(records, unit.name, unit.columns)
                if sum(map(len, waiting)) >= _ROWS_TOGETHER:
                    self._add(waiting, buckets)
                    waiting = []
        self._add(waiting, buckets)
        if self._spilt:
            self._spill()
        elif self._held:
            self._sorted = self._in_order()
        pa.default_memory_pool().release_unused()  # before buckets take theirs

    def _add(self, batches: Sequence[pa.RecordBatch], buckets: int) -> None:
        if not batches:
            return
        found = self._rows.changes(pa.concat_batches(batches))
        places = buckets_of(as_bytes(found.column(self._rows.identity)), buckets)
        for bucket, count in zip(*np.unique(places, return_counts=True), strict=True):
            self.counts[int(bucket)] = self.counts.get(int(bucket), 0) + int(count)
        table = pa.Table.from_batches([found]).append_column(_BUCKET, pa.array(places))
        self._held.append(table)
        self._held_bytes += found.nbytes
        self.bytes += found.nbytes
        if self._held_bytes > self._limit:
            self._spill()

    def _spill(self) -> None:
        if not self._held:
            return
        self._folder = self._folder or make_folder()
        self._spilt.append(_Spilt.of(self._folder, *self._in_order()))

    def _in_order(self) -> tuple[pa.Table, np.ndarray]:
        """What is held, by bucket and in it by key, and the bucket of each row; then nothing is
        held any more.
        """
        whole = pa.concat_tables(self._held).combine_chunks()  # rows of one chunk move faster
        self._held, self._held_bytes = [], 0
        keys = [(_BUCKET, "ascending"), (self._rows.identity, "ascending")]
        ordered = whole.take(pc.sort_indices(whole, sort_keys=keys))
        return ordered, np.asarray(ordered.column(_BUCKET))

    def of(self, bucket: int) -> pa.Table:
        """The changes of one bucket, of ``Rows.change_schema``, each key once; sorted by key where
        nothing was spilt.
        """
        empty = self._rows.change_schema.empty_table()
        if self._sorted is not None:
            table, starts = self._sorted
            at = np.searchsorted(starts, [bucket, bucket + 1])
            return table.slice(int(at[0]), int(at[1] - at[0])).drop_columns([_BUCKET])
        found = [part for each in self._spilt if (part := each.of_bucket(bucket)) is not None]
        return (
            pa.concat_tables([each.drop_columns([_BUCKET]) for each in found]) if found else empty
        )

    def check_times(self, changes: pa.Table, deletes_ms: Mapping[int, int]) -> None:
        """Compare writes of one bucket with the deletes that were met before this part of the log.

        Raises:
            Doubt: one is not later than all of other partitions.
        """
        if self.whole or len(self.ends) < 2 or not deletes_ms or not len(changes):
            return
        writes = changes.filter(pc.invert(changes.column(IS_DELETE)))
        partitions = np.asarray(writes.column(PARTITION))
        times = np.asarray(writes.column(TIMESTAMP).cast(pa.int64())) // 1000
        for partition in np.unique(partitions).tolist():
            others = [time for other, time in deletes_ms.items() if other != partition]
            if others and (times[partitions == partition] <= max(others)).any():
                raise Doubt

    def close(self) -> None:
        """Remove its files."""
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Spilt:
    """Changes in a file of Arrow's: a batch a bucket."""

    def __init__(self, path: str, numbers: Mapping[int, tuple[int, int]]) -> None:
        self._path, self._numbers = path, numbers

    @classmethod
    def of(cls, folder: Path, table: pa.Table, places: np.ndarray) -> Self:
        path = os.path.join(folder, f"changes-{uuid.uuid4().hex[:12]}")
        numbers, number = {}, 0
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
            for bucket in np.unique(places).tolist():
                first, end = np.searchsorted(places, [bucket, bucket + 1]).tolist()
                batches = table.slice(first, end - first).to_batches()
                for batch in batches:
                    file.write_batch(batch)
                numbers[bucket] = number, number + len(batches)
                number += len(batches)
        return cls(path, numbers)

    def of_bucket(self, bucket: int) -> pa.Table | None:
        """The changes of one bucket; None: there are none."""
        if bucket not in self._numbers:
            return None
        with pa.OSFile(self._path) as source:
            file = pa.ipc.open_file(source)
            return pa.Table.from_batches(
                [file.get_batch(number) for number in range(*self._numbers[bucket])]
            )


def _with_deletes(records: RecordColumns, system: RowSystem) -> RecordColumns:
    """With null for a value that deletes its key."""
    if not system.is_empty_delete:
        return records
    starts, lengths = records.values
    return records._replace(values=(starts, np.where(lengths == 0, -1, lengths)))


def was_compacted_since(
    system: RowSystem, logs: Sequence[PartitionLog], since: Mapping[int, int]
) -> bool:
    """Whether something may have been compacted away of what was written since these offsets.

    Where offsets follow each other one of them is missing then; else the log says up to where it
    was compacted.
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
    """How many records, markers included, there are in a range of offsets, of batches that lie in
    it whole.
    """
    limits, present = Limits(), 0
    for unit in row_units(system, log, ("offset",), is_committed=True, first=first, end=end):
        address.use(unit.stores)
        reader = unit.reader(limits)
        for chunk in Chunks(limits).of(reader.format, unit.piece):
            table = chunk.table
            wanted = (table["base_offset"] >= first) & (table["next_offset"] <= end)
            present += int(table["records"][wanted].sum())
    return present


def buckets_for(last: LastWrites, bucket_bytes: int) -> int:
    """How many buckets a table of these last writes gets, by the share of records that they are."""
    size = sum(log.size_bytes for log in last.logs)
    offsets = sum(last.system.end_of(log, True) - log.log_start for log in last.logs)
    return bucket_count(size * min(len(last), offsets) // max(offsets, 1), bucket_bytes)
