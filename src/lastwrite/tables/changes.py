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
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastwrite.engine.chunks import Chunks
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import Progress
from lastwrite.model.work import Limits
from lastwrite.rows.arrow import batch_of
from lastwrite.rows.last_writes import LastWrites
from lastwrite.rows.reading import read_records, row_units
from lastwrite.rows.system import RowSystem
from lastwrite.storage.objects import address
from lastwrite.storage.run_folder import make_folder, remove_folder
from lastwrite.tables.buckets import bucket_count, buckets_at, buckets_of, by_bucket
from lastwrite.tables.columns import PARTITION, TIMESTAMP, as_bytes
from lastwrite.tables.rows import IS_DELETE, Rows

_FEW = 1 << 10  # rows of a bucket that are no part by themselves
_CHUNK_BYTES = 4 << 20  # of the log, whose rows are laid into buckets together


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
        self._held: list[_Laid] = []
        self._held_bytes = 0
        self._spilt: list[_Spilt] = []
        self._folder: Path | None = None

    def gather(self, buckets: int, progress: Progress) -> None:
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
        progress.stage("read", self._last.scanned_bytes)
        limits = self._last.limits
        chunk_bytes = max(limits.chunk_bytes, min(_CHUNK_BYTES, self._limit // 16))
        limits = replace(limits, chunk_bytes=chunk_bytes)
        for unit in units:
            for records in read_records(unit, limits):
                records = self._last.system.with_deletes(records)
                if not self._rows.decodes and records.header_names is None:
                    # Rows that come in order need not be moved again; a bad one is named first.
                    found = buckets_at(records.data, *records.keys, buckets)
                    order = by_bucket(found, buckets)
                    records = records if order is None else records.take(order)
                self._add(self._rows.changes(batch_of(records, unit.name, unit.columns)), buckets)
            progress.advance(unit.piece.end - unit.piece.start)
        if self._spilt:
            self._spill()
        pa.default_memory_pool().release_unused()  # before buckets take theirs

    def _add(self, changes: pa.RecordBatch, buckets: int) -> None:
        laid = _Laid.of(changes, self._rows, buckets)
        for bucket, (first, end) in laid.places.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + end - first
        self._held.append(laid)
        self._held_bytes += laid.rows.nbytes
        self.bytes += laid.rows.nbytes
        if self._held_bytes > self._limit:
            self._spill()

    def _spill(self) -> None:
        if self._held:
            self._folder = self._folder or make_folder()
            self._spilt.append(_Spilt.of(self._folder, self._held))
            self._held, self._held_bytes = [], 0

    def of(self, bucket: int) -> pa.Table:
        """The changes of one bucket, of ``Rows.change_schema``, each key once, in any order."""
        found = [part for each in self._spilt for part in each.of_bucket(bucket)]
        found += [part for each in self._held for part in each.of_bucket(bucket)]
        return pa.Table.from_batches(found, self._rows.change_schema)

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


class _Laid(NamedTuple):
    """Changes by bucket, and where those of each one begin and end."""

    rows: pa.RecordBatch
    places: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, changes: pa.RecordBatch, rows: Rows, buckets: int) -> Self:
        found = buckets_of(as_bytes(changes.column(rows.identity)), buckets)
        order = by_bucket(found, buckets)
        if order is not None:
            found, changes = found[order], changes.take(pa.array(order))
        starts = np.flatnonzero(np.diff(found, prepend=-1))
        ends = [*starts[1:].tolist(), len(found)]
        places = zip(starts.tolist(), ends, strict=True)
        return cls(changes, dict(zip(found[starts].tolist(), places, strict=True)))

    def of_bucket(self, bucket: int) -> list[pa.RecordBatch]:
        first, end = self.places.get(bucket, (0, 0))
        return [self.rows.slice(first, end - first)] if first < end else []


class _Spilt:
    """Changes in a file of Arrow's, bucket by bucket."""

    def __init__(self, path: str, numbers: Mapping[int, range]) -> None:
        self._path, self._numbers = path, numbers

    @classmethod
    def of(cls, folder: Path, held: Sequence[_Laid]) -> Self:
        path = os.path.join(folder, f"changes-{uuid.uuid4().hex[:12]}")
        numbers, number = {}, 0
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, held[0].rows.schema) as file:
            for bucket in sorted({bucket for each in held for bucket in each.places}):
                batches = [batch for each in held for batch in each.of_bucket(bucket)]
                if sum(map(len, batches)) < _FEW * len(batches):
                    batches = [pa.concat_batches(batches)]
                for batch in batches:
                    file.write_batch(batch)
                numbers[bucket] = range(number, number + len(batches))
                number += len(batches)
        return cls(path, numbers)

    def of_bucket(self, bucket: int) -> list[pa.RecordBatch]:
        """They are of the file's own pages."""
        numbers = self._numbers.get(bucket)
        if numbers is None:
            return []
        file = pa.ipc.open_file(pa.memory_map(self._path))
        return [file.get_batch(number) for number in numbers]


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
