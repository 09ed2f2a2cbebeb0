"""A new file of a compaction log in an archive: records are streamed to one object, then the index.

Each attempt of a task writes to a separate folder below the folder of the compaction, so that a
second attempt does not overwrite the files of the first. The journal has the names of all folders.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np

from lastwrite.archive.partition_store import partition_store_at
from lastwrite.model.columns import (
    ROW_BASE_OFFSET,
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
from lastwrite.rocketmq.format.chunk_kernels import place
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.format.units import BATCH_UNIT
from lastwrite.rocketmq.store.archived import INDEX_SUFFIX, StoredFile
from lastwrite.storage.objects.store import Writer


class ArchivedFile:
    """Appends records to a new object of an archived queue, and creates the object's index.

    ``folder`` is the queue's address; if it is None, records are only counted. ``round_folder`` is
    the prefix of the objects' keys, relative to ``folder``; an attempt id and ``/`` are appended.
    ``start`` is the address of the first record. ``stores`` are the object store settings, passed
    by the driver.
    """

    def __init__(
        self,
        folder: str | None,
        round_folder: str,
        start: int,
        stores: StoreSettings | None = None,
    ) -> None:
        self._place = None if folder is None else partition_store_at(folder, stores)
        self._folder = f"{round_folder}{uuid.uuid4().hex[:12]}/"
        self._address = f"{folder}/{self._folder}{file_name(start)}"
        self._key = f"{self._folder}{file_name(start)}"
        self._start = start
        self._writer: Writer | None = None
        self._units = bytearray()
        self._size = 0
        self._base_offset = self._end_offset = -1
        self._first_timestamp_ms = self._largest_timestamp_ms = -1

    def append(self, data: ByteArray, rows: Int64Array) -> None:
        """Append records, and set their new addresses in ``data``.

        ``rows`` has the ``ROW_COLUMNS`` of each record.
        """
        if not len(rows):
            return
        if self._base_offset < 0:
            if self._place is not None:
                self._writer = self._place.store.writer(self._place.key(self._key))
            self._base_offset = int(rows[0, ROW_BASE_OFFSET])
            self._first_timestamp_ms = int(rows[0, ROW_MAX_TIMESTAMP])
        begin = int(rows[0, ROW_POSITION])
        end = int(rows[-1, ROW_POSITION] + rows[-1, ROW_SIZE])
        if self._writer is not None:
            self._write(data, rows, begin, end)
        self._size += end - begin
        self._end_offset = int(rows[-1, ROW_NEXT_OFFSET])
        newest = int(rows[:, ROW_MAX_TIMESTAMP].max())
        self._largest_timestamp_ms = max(self._largest_timestamp_ms, newest)

    def _write(self, data: ByteArray, rows: Int64Array, begin: int, end: int) -> None:
        assert self._writer is not None
        units: ByteArray = np.empty(len(rows) * BATCH_UNIT.size, dtype=np.uint8)
        place(data, rows, 0, len(rows), self._start + self._size, units, 0)
        self._units += units.data
        self._writer.write(data[begin:end])

    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Complete the objects, and store their description in ``result``."""
        result.bytes_written = self._size
        result.largest_timestamp_ms = self._largest_timestamp_ms
        if self._base_offset < 0:
            result.is_deleted = True
            return
        result.base_offset = self._base_offset
        if self._writer is None or self._place is None:
            return
        index = self._place.put(self._key + INDEX_SUFFIX, bytes(self._units))
        found = self._writer.close()
        result.log_path = self._address
        result.stored = StoredFile(
            base_offset=self._base_offset,
            end_offset=self._end_offset,
            address=self._start,
            folder=self._folder,
            bytes=self._size,
            etag=found.version.etag,
            index_bytes=len(self._units),
            index_etag=index.version.etag,
            largest_timestamp_ms=self._largest_timestamp_ms,
            first_timestamp_ms=self._first_timestamp_ms,
            mtime_ms=mtime_ns // 1_000_000,
        )

    def abandon(self) -> None:
        """Discard the written bytes; no object is created."""
        if self._writer is not None:
            self._writer.abandon()
