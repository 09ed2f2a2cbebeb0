"""Writes new compaction log files to a staging folder: records with new addresses, and their index.

A new file has the name of the file that it replaces. Only the broker's algorithm (``like_broker``)
packs the records into full files from address 0. It begins a new file if a record, a blank record
of eight bytes after it, or its unit does not fit (docs/formats/rocketmq-compaction.md). A file
without records is not created.

The files are owned by the user of the process until ``publish`` moves them and sets their owner.
All files have their full size, with a hole after the data. If the replaced file was closed, the new
file ends with a blank record and an end unit. The active file has neither, so that a broker can
append to it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

import numpy as np

from lastwrite.errors import LogError
from lastwrite.model.columns import (
    ROW_BASE_OFFSET,
    ROW_MAX_TIMESTAMP,
    ROW_POSITION,
    ROW_SIZE,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import AbortedTransaction
from lastwrite.model.work import RewriteUnit, SegmentOutput
from lastwrite.rocketmq.format.chunk_kernels import place
from lastwrite.rocketmq.format.names import file_name, parse_file_name
from lastwrite.rocketmq.format.record import encode_blank
from lastwrite.rocketmq.format.units import BATCH_UNIT, END_UNIT
from lastwrite.rocketmq.store.queues import index_end, index_path
from lastwrite.storage import files, ownership
from lastwrite.storage.new_file import NewFile
from lastwrite.storage.staging import changing, remove_staged

_BLANK_BYTES = 8
_NOTHING_LEFT = (
    "compaction would remove every record of the closed files, and the broker's algorithm "
    "fails in that case"
)


class PairWriter:
    """Appends records to pairs of a log file and an index file, one pair after another."""

    def __init__(self) -> None:
        self._pairs: list[NewPair] = []

    def _append(self, data: ByteArray, rows: Int64Array) -> None:
        done = 0
        while done < len(rows):
            fits = self._pairs[-1].fits(rows[done:]) if self._pairs else 0
            if fits:
                self._pairs[-1].append(data, rows, done, done + fits)
                done += fits
                continue
            if self._pairs:
                self._check_next(int(rows[done, ROW_SIZE]))
                self._pairs[-1].close(is_marked=True)
            self._pairs.append(self._next())

    def _check_next(self, size: int) -> None:
        """Raise if a record of ``size`` bytes must not begin a new log file."""
        raise NotImplementedError

    def _next(self) -> NewPair:
        raise NotImplementedError

    def abandon(self) -> None:
        """Remove the files written so far."""
        for file in self._pairs:
            file.abandon()


class StagedFiles(PairWriter):
    """Appends records to new pairs of a log file and an index file.

    A log file is ``<folder>/<name>.<attempt>``. Its index file has the same name and ``.index``.

    If ``unit.folder`` is None, records are only counted.
    """

    def __init__(self, unit: RewriteUnit) -> None:
        super().__init__()
        source = unit.pieces[0]
        index_bytes, is_closed = index_end(index_path(source.path))
        self._folder = unit.folder
        self._log_bytes = source.size_bytes
        self._index_bytes = index_bytes
        self._repacks = unit.like_broker
        self._is_closed = is_closed and not unit.like_broker
        name = os.path.basename(source.path)
        self._address = 0 if unit.like_broker else parse_file_name(name) or 0
        self._largest_timestamp_ms = -1

    def append(self, data: ByteArray, rows: Int64Array) -> None:
        """Append records, and set their new addresses in ``data``.

        ``rows`` has the ``ROW_COLUMNS`` of each record.
        """
        if len(rows):
            newest = int(rows[:, ROW_MAX_TIMESTAMP].max())
            self._largest_timestamp_ms = max(self._largest_timestamp_ms, newest)
            self._append(data, rows)

    def _check_next(self, size: int) -> None:
        if not self._repacks or not self._pairs[-1].count:
            raise LogError(
                "a record does not fit into its new file",
                remedy="nothing was changed; report this fault in Lastwrite",
            )

    def _next(self) -> NewPair:
        start = self._address + len(self._pairs) * self._log_bytes
        path = None
        if self._folder is not None:
            path = os.path.join(self._folder, f"{file_name(start)}.{uuid.uuid4().hex[:12]}")
        sizes = self._log_bytes, self._index_bytes
        return NewPair(path, start, *sizes, keeps_last_slot=self._repacks)

    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Complete the files, and store their paths in ``result``.

        Files after the first log and index are in ``result.further``. ``sync_staged`` syncs all
        files.

        Raises:
            LogError: ``like_broker`` is used, and no record is left; a broker fails in that case.
        """
        if not self._pairs:
            if self._repacks:
                raise LogError(_NOTHING_LEFT, remedy="leave out --like-broker")
            result.is_deleted = True
            return
        self._pairs[-1].close(is_marked=self._is_closed)
        further = tuple(
            SegmentOutput(result.partition, result.group, result.part) for _ in self._pairs[1:]
        )
        for new, file in zip((result, *further), self._pairs, strict=True):
            new.base_offset = file.base_offset
            new.bytes_written = file.size
            new.largest_timestamp_ms = self._largest_timestamp_ms
            if file.path is not None:
                new.log_path, new.index_path = file.path, file.index_path
        result.more_outputs = further


class NewPair:
    """A new log file and its index file. If ``path`` is None, records are only counted."""

    def __init__(
        self,
        path: str | None,
        start: int,
        log_bytes: int,
        index_bytes: int,
        *,
        keeps_last_slot: bool,
    ) -> None:
        self.path = path
        self.index_path = f"{path}.index"
        self.base_offset = -1
        self.size = 0  # bytes of the records
        self.count = 0
        self._start = start
        self._log_bytes, self._index_bytes = log_bytes, index_bytes
        # A broker leaves room for a blank record and an end unit in its files.
        self._room = log_bytes - (_BLANK_BYTES if keeps_last_slot else 0)
        self._most = index_bytes // BATCH_UNIT.size - keeps_last_slot
        self._units = np.empty(0, dtype=np.uint8)
        self._file: NewFile | None = None
        if path is not None:
            with changing("create", path):
                self._file = NewFile(path, ownership.private())

    def fits(self, rows: Int64Array) -> int:
        """The number of leading records that fit in the log file and its index."""
        ends = self.size + np.cumsum(rows[:, ROW_SIZE])
        return min(int(np.searchsorted(ends, self._room, side="right")), self._most - self.count)

    def append(self, data: ByteArray, rows: Int64Array, first: int, last: int) -> None:
        begin = int(rows[first, ROW_POSITION])
        end = int(rows[last - 1, ROW_POSITION] + rows[last - 1, ROW_SIZE])
        if self.base_offset < 0:
            self.base_offset = int(rows[first, ROW_BASE_OFFSET])
        if self._file is not None:
            at = self.count * BATCH_UNIT.size
            need = at + (last - first) * BATCH_UNIT.size
            if need > len(self._units):
                grown = np.empty(min(self._index_bytes, 2 * need), dtype=np.uint8)
                grown[:at] = self._units[:at]
                self._units = grown
            place(data, rows, first, last, self._start + self.size, self._units, at)
            self._write(memoryview(data)[begin:end])
        self.count += last - first
        self.size += end - begin

    def _write(self, view: memoryview) -> None:
        assert self._file is not None and self.path is not None
        with changing("append", self.path):
            self._file.append(view)

    def close(self, *, is_marked: bool) -> None:
        """Complete both files. ``is_marked`` writes the blank record and the end unit."""
        if self._file is None or self.path is None:
            return
        units = self._units[: self.count * BATCH_UNIT.size].tobytes()
        if is_marked:
            room = self._log_bytes - self.size
            if room >= _BLANK_BYTES:
                self._write(memoryview(encode_blank(room)))
            if len(units) + BATCH_UNIT.size <= self._index_bytes:
                units += END_UNIT
        with changing("append", self.path):
            self._file.close()
        files.truncate(self.path, self._log_bytes)
        files.write(self.index_path, units, is_synced=False, like=ownership.private())
        files.truncate(self.index_path, self._index_bytes)

    def abandon(self) -> None:
        if self._file is not None and self.path is not None:
            self._file.abandon()
            remove_staged((self.path, self.index_path))
