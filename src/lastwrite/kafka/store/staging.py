"""A new Kafka segment, written aside: records as they come, indexes as they follow.

The names end in ``.cleaned``, so that Kafka's own loader sweeps them away if nobody finishes them, and
carry an attempt, so that a task that was tried twice does not write into its twin's file. Nothing is
renamed here; ``commit`` does that.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from io import FileIO

from lastwrite.formats.kafka import index
from lastwrite.formats.kafka.index import SegmentIndexer
from lastwrite.logstore import files
from lastwrite.logstore.overlap import together
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import AbortedTransaction
from lastwrite.model.work import Rewritten

_VERSION = 0  # of a transaction index
_WRITEBACK_BYTES = 8 << 20


@contextmanager
def changing(operation: str, path: str) -> Iterator[None]:
    """A fault point before, and a clear error for what the system refuses."""
    try:
        files.faults.reach(operation, path)
        yield
    except OSError as error:
        raise files.to_log_error(error, path, f"{operation} a new segment") from error


class AsideSegment:
    """Appends batches to ``<folder>/<base offset>.log.<attempt>.cleaned`` and indexes them.

    ``folder`` None: nothing is written, only counted. ``index_interval_bytes`` None: a part of a segment,
    whose indexes are made when the parts are joined.
    """

    def __init__(
        self, base_offset: int, folder: str | None, index_interval_bytes: int | None
    ) -> None:
        self._indexer = (
            None
            if index_interval_bytes is None
            else SegmentIndexer(base_offset, index_interval_bytes)
        )
        self._attempt = uuid.uuid4().hex[:12]
        self._stem = None if folder is None else os.path.join(folder, f"{base_offset:020d}")
        self._size = 0
        self._begun = 0  # up to here the disk was told to write
        self._largest_timestamp_ms = -1
        self._file: FileIO | None = None
        if self._stem is not None:
            with changing("create", self._path("log")):
                self._file = open(self._path("log"), "xb", buffering=0)

    def _path(self, kind: str) -> str:
        return f"{self._stem}.{kind}.{self._attempt}.cleaned"

    def append(self, data: ByteArray, rows: Int64Array) -> None:
        """Append whole batches; ``rows``: position in ``data``, size, next offset, largest timestamp of each."""
        self.index(rows, self._size)
        if self._file is not None:
            with changing("append", self._path("log")):
                view = memoryview(data)
                while len(view):
                    view = view[self._file.write(view) :]
        self._size += len(data)
        if self._file is not None and self._size - self._begun >= _WRITEBACK_BYTES:
            files.start_writeback(self._file.fileno(), self._begun, self._size - self._begun)
            self._begun = self._size

    def index(self, rows: Int64Array, shift: int) -> None:
        """Take the next batches into the indexes; ``rows`` as in ``append``, positions from ``shift`` on."""
        if not len(rows):
            return
        self._largest_timestamp_ms = max(self._largest_timestamp_ms, int(rows[:, 3].max()))
        if self._indexer is not None:
            self._indexer.append(rows[:, 0] + shift, rows[:, 1], rows[:, 2] - 1, rows[:, 3])

    def take_parts(self, paths: Sequence[str]) -> str:
        """Make the segment of files that were written aside as its parts: the first becomes it, the others' bytes are
        appended, by the system where it can. Returns the segment's path; its batches must still be given to ``index``.
        """
        assert self._file is not None
        whole = self._path("log")
        self._file.close()
        files.rename(paths[0], whole)
        with changing("append", whole):
            self._file = open(whole, "r+b", buffering=0)
            self._size = self._file.seek(0, os.SEEK_END)
        for path in paths[1:]:
            with changing("append", whole):
                self._size += files.append_file(path, self._file.fileno())
            files.start_writeback(self._file.fileno(), self._begun, self._size - self._begun)
            self._begun = self._size
            files.unlink(path)
        return whole

    def finish(
        self, result: Rewritten, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None:
        """Write the indexes, date all files, and name them in ``result``; ``sync_aside`` makes them durable.

        ``aborted`` are the entries of the new transaction index, by their last offset; without any there is none.
        A part of a segment has no index.
        """
        result.bytes_written = self._size
        result.largest_timestamp_ms = self._largest_timestamp_ms
        if self._file is None:
            return
        self._file.close()
        result.log_path = self._path("log")
        if self._indexer is None:
            return
        offsets, times = self._indexer.finish()
        result.index_path, result.time_index_path = self._path("index"), self._path("timeindex")
        for path, data in ((result.index_path, offsets), (result.time_index_path, times)):
            files.write(path, data, is_synced=False)
        if aborted:
            result.transaction_index_path = self._path("txnindex")
            entries = [index.AbortedTransaction(_VERSION, *astuple(entry)) for entry in aborted]
            files.write(
                result.transaction_index_path,
                index.encode_transaction_index(entries),
                is_synced=False,
            )
        for path in result.paths:
            files.set_mtime(path, mtime_ns)

    def abandon(self) -> None:
        """Remove what was written."""
        if self._file is None:
            return
        self._file.close()
        remove_aside([self._path(kind) for kind in ("log", "index", "timeindex", "txnindex")])


def sync_aside(made: Sequence[Rewritten]) -> None:
    """Let new segments and those behind them reach the disk. One that does not gets the error, the others go on."""
    waiting = [
        (result, path) for result in made for new in (result, *result.further) for path in new.paths
    ]
    syncs = [partial(files.fsync_file, path) for _, path in waiting]
    for (result, _), error in zip(waiting, together(syncs), strict=True):
        if error is not None:
            result.error = error


def remove_aside(paths: Iterable[str]) -> None:
    """Remove what was written aside and is not wanted; empty names and missing files are passed over."""
    for path in paths:
        if path and os.path.exists(path):
            os.unlink(path)
