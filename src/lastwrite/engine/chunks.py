"""Read a piece of a log in chunks of complete batches.

A worker reads into one buffer repeatedly, so that a chunk is still in the processor's cache when
its records are visited. The buffer grows only for a batch that is larger than the buffer. If a
damaged length field makes a batch exceed the piece, the buffer does not grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lastwrite.engine.buffers import Buffers
from lastwrite.engine.profile import step
from lastwrite.engine.rules.sums import sums_of
from lastwrite.engine.system import Format
from lastwrite.errors import CorruptLog, OutOfMemoryBudget, TruncatedLog, located
from lastwrite.model.columns import BatchTable, ByteArray
from lastwrite.model.work import Limits, ScanRange
from lastwrite.storage.objects.address import use
from lastwrite.storage.reading import reader_of_piece
from lastwrite.storage.throttle import spender


class BatchWindow(NamedTuple):
    """Complete batches in a buffer. A batch's file position is ``shift`` plus its ``origin``."""

    buffer: ByteArray
    table: BatchTable
    shift: int
    records: int  # record count of all batches, according to their headers
    fewest: int  # smallest record count of a batch
    origin_bytes: int  # bytes of the batches in the file, before old formats are converted
    flags: int  # bitwise OR of the batches' flags

    @classmethod
    def of(cls, buffer: ByteArray, table: BatchTable, shift: int) -> BatchWindow:
        """The ``BatchWindow`` of the batches in ``table``, which has at least one row."""
        return cls(buffer, table, shift, *map(int, sums_of(table)))


class BatchWindows:
    """Reads pieces of a log through the worker's buffer.

    ``is_proven`` means that the checksum of every batch was checked before. A format may then skip
    the check of batches that will be dropped.
    """

    def __init__(
        self, limits: Limits, buffers: Buffers | None = None, *, is_proven: bool = False
    ) -> None:
        self._limits = limits
        self._is_proven = is_proven
        if limits.stores is not None:  # the settings with which this process reads object stores
            use(limits.stores)
        self._throttle = spender(limits.reading)
        self._buffers = buffers or Buffers()
        self._buffer: ByteArray = self._buffers.rows("chunk", limits.chunk_bytes, np.uint8)

    def of(self, format: Format, piece: ScanRange) -> Iterator[BatchWindow]:
        """Yield the chunks of ``piece``; each is valid until the next is requested.

        Raises:
            CorruptLog: a batch is damaged (the error has its file and position), or the piece ends
                inside a batch, because the offset index by which it was split is wrong.
            CommitConflict: the file is not the one that was planned.
        """
        split = format.split_proven if self._is_proven else format.split
        with reader_of_piece(piece, self._limits) as reader:
            position = piece.start  # position of buffer[0] in the file
            start = end = 0
            lowest = piece.lowest_offset
            while position + start < piece.end:
                wanted = 0
                if end > start:
                    with located(piece.path, position), step("split"):
                        table, start_of_rest, wanted, held = split(self._buffer, start, end, lowest)
                    if len(table):
                        chunk = BatchWindow.of(held, table, position)
                        if chunk.records > self._limits.block_entries:
                            fits = self._count_fitting(table)
                            if fits < len(table):
                                start_of_rest, wanted = int(table["origin"][fits]), -1
                                table = table[:fits]
                                chunk = BatchWindow.of(held, table, position)
                        lowest = int(table["next_offset"][-1])
                        if lowest > piece.end_offset:
                            row = table[int(np.argmax(table["next_offset"] > piece.end_offset))]
                            raise CorruptLog(
                                f"offset {int(row['next_offset']) - 1} is beyond the "
                                f"segment's end offset {piece.end_offset}",
                                position + int(row["origin"]),
                                piece.path,
                                format.damage_remedy,
                            )
                        yield chunk
                    start = start_of_rest
                    if wanted < 0 and start < end:
                        continue  # ``wanted`` < 0: the table is full, or the next batch is damaged
                left = piece.end - (position + end)
                if (not left and start < end) or wanted > piece.end - (position + start):
                    self._cut_short(format, piece, position + start, wanted)
                if not left:
                    break
                self._reserve(start, end, wanted, piece.path, position)
                position, end, start = position + start, end - start, 0
                n = min(left, len(self._buffer) - end)
                with step("read"):
                    reader.read_into(self._buffer[end : end + n], position + end)
                self._throttle(n)
                end += n
            reader.check_unchanged()

    def _count_fitting(self, table: BatchTable) -> int:
        """The number of leading batches of ``table`` that fit in one chunk.

        A chunk is limited in bytes and in records, because some buffers grow with the record count.
        """
        behind = np.cumsum(table["records"], dtype=np.int64)
        return max(1, int(np.searchsorted(behind, self._limits.block_entries, side="right")))

    def _reserve(self, start: int, end: int, needed: int, path: str, position: int) -> None:
        """Move the unread bytes to the buffer's start. Enlarge the buffer for a larger batch."""
        if needed > len(self._buffer):
            if needed > self._limits.plain_bytes:
                raise OutOfMemoryBudget(
                    f"the batch has {needed} bytes, more than the {self._limits.plain_bytes} "
                    "that the memory setting allows",
                    position + start,
                    path,
                    "raise --memory",
                )
            grown = self._buffers.rows("chunk", needed + (needed >> 2), np.uint8)
            grown[: end - start] = self._buffer[start:end]
            self._buffer = grown
        elif start:
            left = end - start
            if left <= start:
                self._buffer[:left] = self._buffer[start:end]
            else:
                self._buffer[:left] = self._buffer[start:end].copy()

    @staticmethod
    def _cut_short(format: Format, piece: ScanRange, position: int, needed: int) -> None:
        if piece.end < piece.size_bytes:
            raise CorruptLog(
                f"the offset index has a batch that begins at byte {piece.end}, but no batch "
                "ends there",
                position,
                piece.path,
                format.cut_remedy,
            )
        raise TruncatedLog(
            f"the file ends inside a batch{f' of {needed} bytes' if needed else ''}",
            position,
            piece.path,
            format.damage_remedy,
        )
