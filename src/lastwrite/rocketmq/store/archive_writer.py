"""Writes the messages of a live queue to an archive, in the order in which a broker returns them.

``fetching`` writes one archive file for each file of a store. This module starts a new file where a
broker would. Messages are stored unchanged except for their address.
"""

from __future__ import annotations

import time

import numpy as np
from msgspec import structs

from lastwrite.archive.ingest import IngestResult
from lastwrite.archive.partition_store import WriteTransaction, partition_store_at
from lastwrite.errors import CorruptLog
from lastwrite.model.columns import ROW_COLUMNS, ROW_SIZE, ByteArray, Int64Array
from lastwrite.model.work import SegmentOutput
from lastwrite.rocketmq.format import chunk_kernels, kernels
from lastwrite.rocketmq.format.kernels import MESSAGE, MessageTable
from lastwrite.rocketmq.format.sides import TopicConfig
from lastwrite.rocketmq.store import archived
from lastwrite.rocketmq.store.archived import ArchivedQueue, StoredFile
from lastwrite.rocketmq.store.archived_file import ArchivedFile
from lastwrite.rocketmq.store.fetching import digest

_COMMIT_BYTES = 256 << 20  # uncommitted bytes after which ``commit_if_due`` commits


class QueueArchiveWriter:
    """Writes messages to one queue of an archive, in the order of their offsets.

    ``folder`` is the queue's address.

    ``topic`` has the topic's settings; None keeps the archive's settings. ``source`` is the origin
    of the messages. ``file_bytes`` is the largest size of a file, unless the archive's files have
    another size. ``follows`` means that the caller will try again soon, so a write fails while
    another command has an unfinished change.

    Every method that begins to write raises:
        LogHeld: ``follows`` is set, and another command has an unfinished change.
    """

    def __init__(
        self,
        folder: str,
        topic: TopicConfig | None,
        source: str,
        file_bytes: int,
        follows: bool = False,
    ) -> None:
        self._follows = follows
        self._folder = folder
        self._store = partition_store_at(folder)
        self._current = self._store.read()
        self.before = (
            ArchivedQueue()
            if self._current is None
            else archived.contents_of(self._current.manifest, folder)
        )
        self.is_new = self._current is None
        self._file_bytes = self.before.file_bytes or file_bytes
        self._now = structs.replace(
            self.before,
            file_bytes=self._file_bytes,
            topic=topic or self.before.topic,
            source=source,
        )
        self._transaction: WriteTransaction | None = None
        self._file: ArchivedFile | None = None
        self._filled = self._since_commit = self._bytes = 0
        self._gap: tuple[int, int] | None = None

    def append(self, data: ByteArray, table: MessageTable) -> None:
        """Append the messages of ``table``, whose bytes are in ``data``."""
        rows: Int64Array = np.zeros((len(table), ROW_COLUMNS), dtype=np.int64)
        out: ByteArray = np.empty(int(table["size"].sum()), dtype=np.uint8)
        keep: ByteArray = np.zeros(len(table), dtype=np.uint8)
        chunk_kernels.rebuild(data, table, len(table), keep, out, rows)
        begin = 0
        while begin < len(rows):
            ends = self._filled + np.cumsum(rows[begin:, ROW_SIZE])
            count = int(np.searchsorted(ends, self._file_bytes, side="right"))
            if not count and self._filled:
                self._close_file()
                continue
            # A record larger than ``file_bytes`` is written to a separate file.
            part = rows[begin : begin + max(count, 1)]
            self._open_file().append(out, part)
            self._filled += int(part[:, ROW_SIZE].sum())
            begin += len(part)
        last = table[-1]
        at, size = int(last["position"]), int(last["size"])
        self._now = structs.replace(
            self._now,
            end_offset=int(last["queue_offset"]) + 1,
            last_stored_ms=max(self._now.last_stored_ms, int(table["store_time"].max())),
            last_message=digest(data[at : at + size].tobytes()),
        )

    def append_record(self, record: bytes) -> None:
        """Append one message, given as bytes.

        Raises:
            CorruptLog: the bytes are not a message.
        """
        data = np.frombuffer(record, np.uint8).copy()
        table: MessageTable = np.zeros(1, MESSAGE)
        rows, *_ = kernels.split(data, 0, len(data), table, True)
        if rows != 1:
            raise CorruptLog("the data is not exactly one record", 0, self._now.source)
        self.append(data, table)

    def note_gap(self, first: int, end: int) -> None:
        """Record that messages in ``[first, end)`` are lost. All calls together record one gap."""
        self._gap = (first if self._gap is None else self._gap[0], end)
        self._now = structs.replace(self._now, gaps=(*self.before.gaps, self._gap))

    def commit_if_due(self) -> None:
        """Commit the appended messages if they exceed a size limit."""
        if self._since_commit + self._filled >= _COMMIT_BYTES:
            self._commit()

    def finish(self, end: int) -> IngestResult:
        """Commit the appended messages. ``end`` is the queue offset after the last message read.

        Raises:
            CommitConflict: another command changed the queue in the meantime.
            RemoteFailed: the object store failed.
        """
        if self._now.end_offset != end:
            self._now = structs.replace(self._now, end_offset=end, last_message=None)
        before, now = self.before, self._now
        is_new = self.is_new and end > 0  # no manifest is written for an empty new queue
        is_other = now.topic != before.topic and not self.is_new
        if self._transaction is not None or is_new or is_other or self._gap is not None:
            self._commit()
        return self._fetched(is_new)

    def keep(self) -> IngestResult | None:
        """Commit the appended messages although later messages could not be read.

        Returns None if no message was appended.

        Raises:
            CommitConflict, RemoteFailed, LogHeld: as in ``finish``. Uncommitted messages are
                discarded.
        """
        end = self._now.end_offset
        if self._gap is not None and self._gap[1] > end:  # no message after the gap has arrived
            self._gap = (self._gap[0], end) if self._gap[0] < end else None
            new = () if self._gap is None else (self._gap,)
            self._now = structs.replace(self._now, gaps=(*self.before.gaps, *new))
        try:
            if self._transaction is not None:
                self._commit()
        except BaseException:
            self.abandon()
            raise
        return None if end == self.before.end_offset else self._fetched(self.is_new)

    def _fetched(self, is_new: bool) -> IngestResult:
        before = self.before
        files = self._now.files[len(before.files) :]
        first = files[0].base_offset if files and self.is_new else before.end_offset
        return IngestResult(
            first_offset=first,
            end_offset=self._now.end_offset,
            segments=len(files),
            bytes=self._bytes,
            is_new=is_new,
            gap=None if self._gap is None else archived.describe_gap(*self._gap),
        )

    def abandon(self) -> None:
        """Discard the uncommitted messages."""
        if self._file is not None:
            self._file.abandon()
            self._file = None
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            self._store.abandon(transaction)

    def _open_file(self) -> ArchivedFile:
        if self._file is None:
            if self._transaction is None:
                self._transaction = self._begin()
            prefix = self._transaction.prefix
            self._file = ArchivedFile(self._folder, prefix, self._now.next_address)
        return self._file

    def _begin(self) -> WriteTransaction:
        if self._follows and self._current is not None:
            return self._store.begin_after_others(self._current)
        return self._store.begin(self._current)

    def _close_file(self) -> None:
        if self._file is None:
            return
        assert self._transaction is not None
        result = SegmentOutput(0, 0, 0)
        self._file.finish(result, time.time_ns())
        self._file = None
        assert isinstance(result.stored, StoredFile)
        self._now = structs.replace(self._now, files=(*self._now.files, result.stored))
        self._bytes += self._filled
        self._since_commit += self._filled
        self._filled = 0
        self._store.renew(self._transaction)

    def _commit(self) -> None:
        self._close_file()
        transaction = self._transaction or self._begin()
        self._transaction = None  # objects of a failed commit may be in use
        self._now = structs.replace(self._now, brought_ms=time.time_ns() // 1_000_000)
        manifest = archived.manifest_of(self._current, self._now, self._folder)
        self._current = self._store.commit(transaction, manifest)
        self._since_commit = 0
