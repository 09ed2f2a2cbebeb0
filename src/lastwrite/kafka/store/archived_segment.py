"""A new segment of an archive: records are written as they arrive, and indexes at the end.

A segment of up to ``LEAST_INDEXED_BYTES`` has no offset index and no time index. Reading the
complete segment takes one request, and so would reading an index.

Each attempt at a task has its own folder below the write transaction's folder, so that two attempts
never write to the same object. The transaction's journal lists all of these folders.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from lastwrite.archive.partition_store import partition_store_at
from lastwrite.kafka.format.index import DEFAULT_INTERVAL_BYTES, SegmentIndexer
from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name
from lastwrite.kafka.producers.history import encode_aborted
from lastwrite.kafka.store.archived import StoredSegment
from lastwrite.model.columns import (
    ROW_BASE_OFFSET,
    ROW_COLUMNS,
    ROW_MAX_TIMESTAMP,
    ROW_NEXT_OFFSET,
    ROW_POSITION,
    ROW_SIZE,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import AbortedTransaction
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import SegmentOutput
from lastwrite.storage.objects.store import Writer

LEAST_INDEXED_BYTES = 256 << 10


class ArchivedSegment:
    """Appends batches to a new object of the partition at address ``folder``, and indexes them.

    Each object's key, relative to ``folder``, is ``<round_folder><attempt id>/<name>``. If
    ``base_offset`` is None, the first batch's base offset is used, and without batches no object is
    written. ``stores`` are the store settings that the driver passes to the worker.
    """

    def __init__(
        self,
        folder: str,
        round_folder: str,
        base_offset: int | None,
        index_interval_bytes: int = DEFAULT_INTERVAL_BYTES,
        stores: StoreSettings | None = None,
    ) -> None:
        self._place = partition_store_at(folder, stores)
        self._folder = f"{round_folder}{uuid.uuid4().hex[:12]}/"
        self._address = f"{folder}/{self._folder}"
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._indexer: SegmentIndexer | None = None
        self._writer: Writer | None = None
        self._size = 0
        self._largest_timestamp_ms = -1
        self._first_timestamp_ms: int | None = None

    def _name(self, kind: KafkaFileKind) -> str:
        assert self._base_offset is not None
        return f"{self._folder}{segment_file_name(self._base_offset, kind)}"

    def append(self, data: ByteArray, rows: Int64Array) -> None:
        """Append whole batches. ``rows`` describes each batch by a row of ROW_COLUMNS values."""
        if not len(rows):
            return
        if self._writer is None or self._indexer is None:
            if self._base_offset is None:
                self._base_offset = int(rows[0, ROW_BASE_OFFSET])
            self._writer = self._place.store.writer(self._place.key(self._name(KafkaFileKind.LOG)))
            self._indexer = SegmentIndexer(self._base_offset, self._interval_bytes)
            self._first_timestamp_ms = int(rows[0, ROW_MAX_TIMESTAMP])
        self._largest_timestamp_ms = max(
            self._largest_timestamp_ms, int(rows[:, ROW_MAX_TIMESTAMP].max())
        )
        self._indexer.append(
            rows[:, ROW_POSITION] + self._size,
            rows[:, ROW_SIZE],
            rows[:, ROW_NEXT_OFFSET] - 1,
            rows[:, ROW_MAX_TIMESTAMP],
        )
        self._writer.write(data)
        self._size += len(data)

    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Complete the objects, and describe them in ``result``."""
        result.bytes_written = self._size
        result.largest_timestamp_ms = self._largest_timestamp_ms
        if self._writer is None or self._indexer is None or self._base_offset is None:
            result.is_deleted = True
            return
        offsets, times = self._indexer.finish()
        of_transactions = encode_aborted(aborted) if aborted else b""
        is_indexed = self._size > LEAST_INDEXED_BYTES
        sides = (
            [(KafkaFileKind.INDEX, offsets), (KafkaFileKind.TIME_INDEX, times)]
            if is_indexed
            else []
        )
        if of_transactions:
            sides.append((KafkaFileKind.TRANSACTION_INDEX, of_transactions))
        with ThreadPoolExecutor(3, "indexes") as pool:  # in parallel, because requests mostly wait
            written = [pool.submit(self._place.put, self._name(kind), data) for kind, data in sides]
            found = self._writer.close()
            for each in written:
                each.result()
        mtime_ms = mtime_ns // 1_000_000
        largest = self._largest_timestamp_ms
        result.base_offset = self._base_offset
        result.log_path = (
            f"{self._address}{segment_file_name(self._base_offset, KafkaFileKind.LOG)}"
        )
        result.stored = StoredSegment(
            base_offset=self._base_offset,
            folder=self._folder,
            bytes=self._size,
            etag=found.version.etag,
            index_bytes=len(offsets),
            time_index_bytes=len(times),
            transaction_index_bytes=len(of_transactions),
            is_indexed=is_indexed,
            largest_timestamp_ms=largest if largest >= 0 else mtime_ms,
            first_batch_timestamp_ms=self._first_timestamp_ms,
            mtime_ms=mtime_ms,
        )

    def abandon(self) -> None:
        """Discard all written bytes, so that no object is created."""
        if self._writer is not None:
            self._writer.abandon()


def rows_of(table: np.ndarray) -> Int64Array:
    """The rows that ``ArchivedSegment.append`` needs for batches that are written unchanged."""
    rows = np.zeros((len(table), ROW_COLUMNS), dtype=np.int64)
    rows[:, ROW_POSITION] = table["origin"] - table["origin"][0]
    rows[:, ROW_SIZE] = table["origin_size"]
    rows[:, ROW_NEXT_OFFSET] = table["next_offset"]
    rows[:, ROW_MAX_TIMESTAMP] = table["max_timestamp"]
    rows[:, ROW_BASE_OFFSET] = table["base_offset"]
    return rows
