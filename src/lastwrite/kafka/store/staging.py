"""Writes a new Kafka segment and its indexes under temporary names.

File names end in ``.cleaned``, so that Kafka's loader removes them if they are never finished. File
names contain an attempt id, so that two attempts at one task never write to the same file.
``commit`` renames them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

from lastwrite.kafka.format.index import SegmentIndexer
from lastwrite.kafka.producers.history import encode_aborted
from lastwrite.model.columns import (
    ROW_MAX_TIMESTAMP,
    ROW_NEXT_OFFSET,
    ROW_POSITION,
    ROW_SIZE,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import AbortedTransaction
from lastwrite.model.work import SegmentOutput
from lastwrite.storage import files, ownership
from lastwrite.storage.new_file import NewFile
from lastwrite.storage.ownership import Ownership
from lastwrite.storage.staging import changing, remove_staged


class StagedSegment:
    """Appends batches to ``<folder>/<base offset>.log.<attempt>.cleaned`` and indexes them.

    ``folder`` None means that bytes are counted but not written. ``is_first`` means the first of
    several parts of a segment, which gets no indexes yet. ``index_interval_bytes`` None means a
    later part, which is appended to the first part. New files get the owner and mode of ``source``,
    the replaced ``.log``. In another folder, they get only those that the process has permission to
    set.
    """

    def __init__(
        self,
        base_offset: int,
        folder: str | None,
        index_interval_bytes: int | None,
        source: str | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        self._source = source
        self._is_first = is_first
        self._indexer = (
            None
            if index_interval_bytes is None
            else SegmentIndexer(base_offset, index_interval_bytes)
        )
        self._attempt = uuid.uuid4().hex[:12]
        self._stem = None if folder is None else os.path.join(folder, f"{base_offset:020d}")
        self._size = 0
        self._largest_timestamp_ms = -1
        self._file: NewFile | None = None
        if self._stem is not None:
            with changing("create", self._path("log")):
                like = ownership.private() if self._indexer is None else self._like("log")
                self._file = NewFile(self._path("log"), like, is_read_soon=self._indexer is None)

    def _like(self, kind: str) -> Ownership | None:
        """The owner and mode for a new file of this kind. None if no segment is replaced."""
        if self._source is None or self._stem is None:
            return None
        folder, name = os.path.split(self._source)
        found = files.owner_of(os.path.join(folder, name.replace("log", kind, 1)), [self._source])
        return found if os.path.dirname(self._stem) == folder else found.as_far_as_may()

    def _path(self, kind: str) -> str:
        return f"{self._stem}.{kind}.{self._attempt}.cleaned"

    def append(self, data: ByteArray, rows: Int64Array) -> None:
        """Append whole batches. ``rows`` describes each batch by a row of ROW_COLUMNS values."""
        self.index(rows, self._size)
        if self._file is not None:
            with changing("append", self._path("log")):
                self._file.append(memoryview(data))
        self._size += len(data)

    def index(self, rows: Int64Array, shift: int) -> None:
        """Add index entries for the next batches.

        ``shift`` is added to the positions in ``rows``.
        """
        if not len(rows):
            return
        self._largest_timestamp_ms = max(
            self._largest_timestamp_ms, int(rows[:, ROW_MAX_TIMESTAMP].max())
        )
        if self._indexer is not None:
            self._indexer.append(
                rows[:, ROW_POSITION] + shift,
                rows[:, ROW_SIZE],
                rows[:, ROW_NEXT_OFFSET] - 1,
                rows[:, ROW_MAX_TIMESTAMP],
            )

    @classmethod
    def continued(cls, first: SegmentOutput, folder: str, source: str) -> StagedSegment:
        """Reopen the finished first part ``first``, so that the other parts can be appended."""
        staged = cls(first.base_offset, None, None, source)
        staged._indexer = first.indexer
        assert staged._indexer is not None
        staged._attempt = first.log_path.split(".")[-2]
        staged._stem = os.path.join(folder, f"{first.base_offset:020d}")
        staged._size = first.bytes_written
        staged._largest_timestamp_ms = first.largest_timestamp_ms
        with changing("append", first.log_path):
            staged._file = NewFile(first.log_path, None, continues=True)
        return staged

    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Write the indexes, set the times of all files, and record their paths in ``result``.

        ``fsync_outputs`` makes them durable. ``aborted`` are the entries of the new transaction
        index, by last offset; without entries there is no index. A part of a segment gets no
        indexes; the first part records its indexer in ``result``.
        """
        result.bytes_written = self._size
        result.largest_timestamp_ms = self._largest_timestamp_ms
        if self._file is None:
            return
        with changing("append", self._path("log")):
            self._file.close()
        result.log_path = self._path("log")
        if self._indexer is None or self._is_first:
            result.indexer = self._indexer
            return
        offsets, times = self._indexer.finish()
        result.index_path, result.time_index_path = self._path("index"), self._path("timeindex")
        for path, data, kind in (
            (result.index_path, offsets, "index"),
            (result.time_index_path, times, "timeindex"),
        ):
            files.write(path, data, is_synced=False, like=self._like(kind))
        if aborted:
            result.transaction_index_path = self._path("txnindex")
            content, like = encode_aborted(aborted), self._like("txnindex")
            files.write(result.transaction_index_path, content, is_synced=False, like=like)
        for path in result.paths:
            files.set_mtime(path, mtime_ns)

    def abandon(self) -> None:
        """Remove all written files."""
        if self._file is None:
            return
        self._file.abandon()
        remove_staged([self._path(kind) for kind in ("log", "index", "timeindex", "txnindex")])
