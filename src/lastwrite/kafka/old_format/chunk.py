"""Converts entries of message formats v0 and v1 chunk by chunk, for ``format.chunk``.

The work per record is in ``old_format.kernels``. This module executes Python code per chunk, or
per wrapper (a compressed message, see ``old_format.entries``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lastwrite.encoding.checksum import check_crc32_against_library
from lastwrite.encoding.compression import (
    Codec,
    OutputTooSmall,
    decompress_into,
    with_lz4_header_checksum,
)
from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.kafka.format import kernels
from lastwrite.kafka.format.batch_layout import UNKNOWN_MAGIC
from lastwrite.kafka.format.remedy import RESTORE, UPGRADE
from lastwrite.kafka.old_format import kernels as old_kernels
from lastwrite.model.columns import BatchTable, ByteArray

_WORDS = {
    kernels.BAD_SIZE: "the message size is too small, or exceeds the wrapper message",
    kernels.BAD_MAGIC: UNKNOWN_MAGIC,
    kernels.BAD_CRC: "the message's checksum is wrong",
    kernels.BAD_OFFSET: "message offsets do not increase, or are outside of the segment",
    kernels.BAD_CODEC: "the compression codec does not exist in message formats v0 and v1",
    kernels.BAD_RECORD: "key and value do not fill the message",
    old_kernels.NESTED: "a compressed message contains a compressed message",
    old_kernels.NO_MESSAGE: "a compressed message contains no message",
}
_OUT_BYTES = 4 << 20  # bytes of output per call, unless a single entry is larger
_MOST_OFFSETS = 0x7FFFFFFF  # largest difference between the last and the first offset of a batch


class ConvertedBatches(NamedTuple):
    """The batches of v2 that were converted from the start of a chunk. ``buffer`` contains them."""

    rows: int
    consumed: int
    # size of the incomplete entry at the chunk's end; 0: unknown; -1: no incomplete entry
    wanted: int
    buffer: ByteArray


class OldConverter:
    """Converts entries of v0 and v1 to batches of v2, with reusable buffers.

    The converted batches have at most ``limit_bytes`` bytes. A decompressed wrapper has at most
    half as many bytes.
    """

    def __init__(self, limit_bytes: int) -> None:
        check_crc32_against_library()
        self._limit = limit_bytes
        self._plain = np.empty(0, dtype=np.uint8)
        self._out = np.empty(0, dtype=np.uint8)

    def convert(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int, table: BatchTable
    ) -> ConvertedBatches:
        """Convert the old entries at the start of ``buffer[start:end]`` to batches, one per entry.

        Fills one row of ``table`` per batch. Stops before a batch of magic 2, before a faulty
        entry, or when the table or the output is full. The result is valid until the next call. The
        position in an error is a byte of ``buffer``.

        Raises:
            CorruptLog: the first entry is malformed.
            OutOfMemoryBudget: the first entry is too large for the buffers.
        """
        rows, at, floor, to = 0, start, lowest_offset, 0
        while True:
            rows, at, code, place, wanted, floor, to = old_kernels.convert_messages(
                buffer, at, end, table, rows, floor, self._out, to
            )
            try:
                if code == old_kernels.WRAPPER:
                    made, floor = self._wrapper(
                        buffer, int(at), int(wanted), int(floor), table, rows, int(to)
                    )
                    if made:
                        rows, at, to = rows + 1, at + wanted, to + made
                        continue
                elif code == old_kernels.NEED_ROOM:
                    if not rows:
                        self._reserve(int(wanted), int(at))
                        continue
                elif code not in (kernels.OK, kernels.NEED_MORE, old_kernels.NEW_MAGIC):
                    raise _error(code, place)
            except LogError:
                # If there are rows, they are returned now, and the next call raises the error.
                if not rows:
                    raise
            return ConvertedBatches(
                rows, int(at), int(wanted) if code == kernels.NEED_MORE else -1, self._out
            )

    def _wrapper(
        self,
        buffer: ByteArray,
        at: int,
        size: int,
        floor: int,
        table: BatchTable,
        rows: int,
        to: int,
    ) -> tuple[int, int]:
        """Convert the wrapper ``buffer[at:at + size]`` to a batch.

        Returns (bytes written, lowest valid offset of the next entry). No byte is written if the
        output has no space; the caller then returns the rows so far.
        """
        value_at = int(old_kernels.wrapped_value(buffer, at, size))
        if value_at < 0:
            raise _error(kernels.BAD_RECORD, at)
        magic, offset = int(buffer[at + 16]), int.from_bytes(buffer[at : at + 8].tobytes(), "big")
        codec = Codec(int(buffer[at + 17]) & 7)
        blob: Buffer = buffer[value_at : at + size]
        if codec is Codec.LZ4 and magic == 0:
            blob = with_lz4_header_checksum(blob)
        plain_size = self._decompress(codec, blob, at)
        code, place, count, first, last, made, base_time = old_kernels.measure_wrapper(
            self._plain, plain_size, buffer, at
        )
        if code != kernels.OK:
            raise CorruptLog(
                f"{_WORDS[code]}, at byte {place} of the decompressed messages", at, remedy=RESTORE
            )
        # Some clients set a wrapper's offset to 0. The offsets of its messages then count from 0.
        shift = offset - int(last) if magic and offset else 0
        base, top = int(first) + shift, max(offset, int(last) + shift)
        if 0 < offset < last or base < floor or top - base > _MOST_OFFSETS:
            raise _error(kernels.BAD_OFFSET, at)
        need = kernels.HEADER_BYTES + int(made)
        if to + need > len(self._out):
            if rows:
                return 0, floor
            self._reserve(need, at)
        old_kernels.convert_wrapper(
            self._plain,
            plain_size,
            buffer,
            at,
            size,
            base,
            top,
            first,
            base_time,
            count,
            made,
            table,
            rows,
            self._out,
            to,
        )
        return need, top + 1

    def _decompress(self, codec: Codec, blob: Buffer, at: int) -> int:
        """Decompress a wrapper's value to the start of ``_plain``. Returns the number of bytes."""
        limit = self._limit // 2
        while True:
            try:
                return decompress_into(codec, blob, self._plain)
            except OutputTooSmall:
                if len(self._plain) >= limit:
                    raise _too_large(
                        f"a compressed message decompresses to more than {limit} bytes", at
                    ) from None
                self._plain = np.empty(
                    min(limit, max(1 << 20, 4 * len(self._plain))), dtype=np.uint8
                )
            except LogError as error:
                raise CorruptLog(error.problem, at, remedy=RESTORE) from error

    def _reserve(self, need: int, at: int) -> None:
        """Allocate an output buffer of at least ``need`` bytes. The old content is lost."""
        if need > self._limit:
            raise _too_large(
                f"a message has {need} bytes, and the memory setting allows {self._limit}", at
            )
        self._out = np.empty(max(need, min(self._limit, _OUT_BYTES)), dtype=np.uint8)


def _too_large(problem: str, at: int) -> OutOfMemoryBudget:
    return OutOfMemoryBudget(problem, at, remedy="raise --memory")


def _error(code: int, at: int) -> LogError:
    if code in (kernels.BAD_MAGIC, kernels.BAD_CODEC):
        return UnsupportedFormat(_WORDS[code], int(at), remedy=UPGRADE)
    return CorruptLog(_WORDS[code], int(at), remedy=RESTORE)
