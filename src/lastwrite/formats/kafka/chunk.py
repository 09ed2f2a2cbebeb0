"""Kafka batches, chunk by chunk: what the pipeline's stages ask of a format.

A *chunk* is a stretch of a segment in a byte buffer. ``split`` cuts it into batches and proves each by
its checksum; ``opened`` gives the records' bytes, decompressed where they must be, in runs that fit
memory; ``walk`` visits the records; ``rebuild`` writes what the rules decided. The work per record is
in ``kernels``; this module pays for a Python statement per chunk, or per batch that is compressed.

What was written in message format v0 or v1 is converted by ``split``, batch by batch, and is from there on a
batch like any other, whose row says IS_OLD: its records lie in the clear in the buffer that ``split`` gives,
whatever codec its header names, and ``rebuild`` never copies it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget
from lastwrite.formats.checksum import check_against_library
from lastwrite.formats.compression import Codec, OutputTooSmall, compress, decompress_into
from lastwrite.formats.kafka import kernels
from lastwrite.formats.kafka.old_chunk import OldConverter
from lastwrite.formats.kafka.versions import versions
from lastwrite.model.columns import IS_OLD, KEEPS_LAST, BatchTable, ByteArray, Int64Array, Run, UInt64Array, batch_table
from lastwrite.model.policy import Policy, Strategy

_WORDS = {
    kernels.BAD_SIZE: "batch length is too small for a batch",
    kernels.BAD_MAGIC: "no batch begins here: magic is none of 0, 1, 2",
    kernels.BAD_CRC: "checksum does not match the batch",
    kernels.BAD_COUNT: "record count does not fit the batch",
    kernels.BAD_OFFSET: "offsets do not rise, or leave the batch or its segment",
    kernels.BAD_CODEC: "unknown compression codec",
    kernels.BAD_RECORD: "a record's lengths do not fit its batch",
    kernels.TRAILING: "bytes are left behind the batch's last record",
    kernels.BAD_CONTROL: "a control record has no type",
}
_KEEP = "nothing was changed; restore this file from a replica or a backup"
_NO_KEYS = np.empty((0, 2), dtype=np.int64)


class Split(NamedTuple):
    """What a chunk held: whole batches, where they end, and how many bytes the next one announces."""

    table: BatchTable
    consumed: int
    wanted: int  # bytes of the batch that the chunk cuts short; 0: not known yet; -1: none is cut short
    buffer: ByteArray  # that holds the batches: the chunk's own, or one of converted batches


class KafkaFormat:
    """Record batches of all formats. Holds reusable buffers: one instance a worker, no sharing.

    ``plain_limit`` bounds the decompressed bytes held at once, and likewise those converted from older formats.
    """

    name = "kafka"
    smallest_batch = kernels.HEADER_BYTES

    def __init__(self, plain_limit: int = 64 << 20) -> None:
        check_against_library()
        self._limit = plain_limit
        self._plain = np.empty(0, dtype=np.uint8)
        self._thin = np.empty(0, dtype=np.uint8)
        self._table = batch_table(4096)
        self._old: OldConverter | None = None

    def split(self, buffer: ByteArray, start: int, end: int, lowest_offset: int) -> Split:
        """Cut ``buffer[start:end]`` into whole batches, each proven by its CRC.

        Table and buffer are valid until the next call; the batches are all of v2, or all converted. Positions in
        errors count from the begin of ``buffer``, also for converted batches.

        Raises:
            CorruptLog: lengths, magic, offsets, counts or a checksum contradict the format.
            OutOfMemoryBudget: an entry of an older format is too large to be converted.
        """
        rows, consumed, code, at, wanted = kernels.split(buffer, start, end, self._table, lowest_offset)
        if code == kernels.OLD_MAGIC and rows == 0:
            if self._old is None:
                self._old = OldConverter(self._limit)
            found = self._old.convert(buffer, start, end, lowest_offset, self._table)
            return Split(self._table[: found.rows], found.consumed, found.wanted, found.buffer)
        if code not in (kernels.OK, kernels.NEED_MORE) and rows == 0:
            raise _error(code, at)
        return Split(self._table[:rows], int(consumed), int(wanted) if code == kernels.NEED_MORE else -1, buffer)

    def opened(self, buffer: ByteArray, table: BatchTable, wanted: ByteArray | None = None) -> Iterator[Run]:
        """The batches of ``table`` (those with a non-zero byte in ``wanted``) in runs, records in the clear.

        ``buffer`` is the one that ``split`` gave. Sets ``plain_start`` and ``plain_end`` of each batch. A run is
        valid until the next is asked for.

        Raises:
            CorruptLog: a batch does not decompress.
            OutOfMemoryBudget: one batch decompresses to more than the limit.
        """
        chosen = (table["codec"] != 0) & (table["flags"] & IS_OLD == 0)
        if not chosen.any() and wanted is None:
            yield Run(0, len(table), buffer)
            return
        b = 0
        while b < len(table):
            if wanted is not None and not wanted[b]:
                b += 1
                continue
            if not chosen[b]:
                first = b
                while b < len(table) and not chosen[b] and (wanted is None or wanted[b]):
                    b += 1
                yield Run(first, b, buffer)
                continue
            first, used = b, 0
            while b < len(table) and chosen[b] and (wanted is None or wanted[b]):
                size = self._decompress(buffer, table[b], used)
                if size < 0:  # the buffer is full: hand out what is there
                    break
                used += size
                b += 1
            yield Run(first, b, self._plain)

    def _decompress(self, buffer: ByteArray, row: np.void, used: int) -> int:
        start, end = int(row["position"]) + kernels.HEADER_BYTES, int(row["position"] + row["size"])
        if start == end and not row["records"]:  # a bare header, whatever codec it names
            row["plain_start"] = row["plain_end"] = used
            return 0
        size = 0
        while True:
            try:
                size = decompress_into(Codec(int(row["codec"])), buffer[start:end], self._plain[used:])
                break
            except OutputTooSmall:
                if used:
                    return -1
                if len(self._plain) >= self._limit:
                    raise OutOfMemoryBudget(
                        f"a batch decompresses to more than {self._limit} bytes", int(row["position"]),
                        remedy="raise --memory",
                    ) from None  # fmt: skip
                self._plain = np.empty(min(self._limit, max(1 << 20, 4 * len(self._plain))), dtype=np.uint8)
            except LogError as error:
                raise CorruptLog(error.problem, int(row["position"]), remedy=_KEEP) from error
        if int(row["records"]) * kernels.SMALLEST_RECORD > size:
            raise _error(kernels.BAD_COUNT, int(row["position"]) + 57)
        row["plain_start"], row["plain_end"] = used, used + size
        return size

    def walk(
        self, run: Run, table: BatchTable, secret: UInt64Array, ordinal: int, states: ByteArray,
        entries: UInt64Array, filled: int, keys: Int64Array | None = None,
    ) -> int:  # fmt: skip
        """Visit the run's records: a byte of ``states`` each, a row of ``entries`` each that has a key.

        Returns the rows of ``entries`` that are filled now. ``keys`` takes (position in ``run.plain``,
        length) row for row with ``entries``.

        Raises:
            CorruptLog: a record contradicts the format.
        """
        done, _, code, b, at = kernels.walk(
            run.plain, table, run.first, run.last, secret, ordinal, states, entries, filled,
            _NO_KEYS if keys is None else keys,
        )  # fmt: skip
        if code != kernels.OK:
            row = table[b]
            raise _error(code, int(row["origin"] if row["codec"] or row["flags"] & IS_OLD else at))
        return int(done)

    def add_versions(
        self, buffer: ByteArray, run: Run, table: BatchTable, policy: Policy, ordinal: int, entries: UInt64Array,
        start: int, filled: int,
    ) -> None:  # fmt: skip
        """Write to the third column of ``entries[start:filled]``, which ``walk`` made of ``run``, their versions."""
        name = np.frombuffer(policy.strategy_header.encode(), dtype=np.uint8)
        versions(
            buffer, run.plain, table, run.first, run.last, ordinal, policy.strategy is Strategy.HEADER, name,
            entries, start, filled,
        )  # fmt: skip

    def records_below(self, run: Run, row: np.void, offset: int) -> int:
        """How many records of one batch of ``run`` lie below ``offset``."""
        return int(
            kernels.records_below(
                run.plain, int(row["plain_start"]), int(row["plain_end"]), int(row["records"]),
                int(row["base_offset"]), offset,
            )
        )  # fmt: skip

    def rebuilt_size(self, table: BatchTable, records: int) -> int:
        """Bytes that ``rebuild`` may need at most for ``table``, save for compressed batches that grow."""
        return int(table["size"].sum()) + 12 * records + kernels.HEADER_BYTES * len(table)

    def rebuild(
        self, buffer: ByteArray, table: BatchTable, actions: ByteArray, horizons: Int64Array, keep: ByteArray,
        out: ByteArray, rows: Int64Array,
    ) -> tuple[ByteArray, int, int]:  # fmt: skip
        """Carry out ``actions`` on the batches of ``table``.

        Writes to ``out`` (from its begin) and a row (position, size, next offset, largest timestamp, base offset) to
        ``rows`` for each batch that remains. Returns (the output buffer, grown if it had to be; bytes
        written; rows filled).

        Raises:
            CorruptLog: a batch that must be rebuilt contradicts the format.
            OutOfMemoryBudget: as ``opened``.
        """
        b = keep_at = at = filled = 0
        while True:
            b, keep_at, at, filled, code, place = kernels.rebuild(
                buffer, table, b, len(table), actions, horizons, keep, keep_at, out, at, rows, filled
            )
            if code != kernels.OK:
                raise _error(code, int(table[b]["origin"] if table[b]["flags"] & IS_OLD else place))
            if b == len(table):
                return out, int(at), int(filled)
            out, at, rows[filled] = self._rebuild_compressed(buffer, table[b], int(horizons[b]), keep, keep_at, out, at)
            filled += 1
            keep_at += int(table[b]["records"])
            b += 1

    def _rebuild_compressed(
        self, buffer: ByteArray, row: np.void, horizon: int, keep: ByteArray, keep_at: int, out: ByteArray, at: int
    ) -> tuple[ByteArray, int, tuple[int, int, int, int, int]]:
        old = bool(row["flags"] & IS_OLD)
        if old:
            plain, start, stop = buffer, int(row["plain_start"]), int(row["plain_end"])
        else:
            start, stop = 0, self._decompress(buffer, row, 0)
            plain = self._plain
        need = stop - start + 12 * int(row["records"])
        if len(self._thin) < need:
            self._thin = np.empty(need + need // 4, dtype=np.uint8)
        position, base = int(row["position"]), int(row["base_offset"])
        top = int(row["next_offset"]) - 1 - base
        end, kept, reference, largest, code, _, first, last = kernels.thin(
            plain, buffer, position, start, stop, int(row["records"]), keep, keep_at, horizon, old, self._thin, 0
        )
        if code != kernels.OK:
            raise _error(code, int(row["origin"]))
        if old:
            base, top = base + int(first), (top if row["flags"] & KEEPS_LAST else int(last)) - int(first)
        packed = np.frombuffer(compress(Codec(int(row["codec"])), self._thin[:end]), dtype=np.uint8)
        stop = at + kernels.HEADER_BYTES + len(packed)
        slack = len(out) - at - int(row["size"])  # room promised to the batches behind this one
        if stop + max(slack, 0) > len(out):
            grown = np.empty(stop + max(slack, 0) + (1 << 16), dtype=np.uint8)
            grown[:at] = out[:at]
            out = grown
        out[at + kernels.HEADER_BYTES : stop] = packed
        kernels.seal(buffer, position, out, at, stop, kept, reference, largest, horizon, base, top)
        return out, stop, (at, stop - at, base + top + 1, int(largest), base)


def _error(code: int, at: int) -> LogError:
    return CorruptLog(_WORDS[code], int(at), remedy=_KEEP)
