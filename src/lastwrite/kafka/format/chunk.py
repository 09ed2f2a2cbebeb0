"""Kafka's batches chunk by chunk: the format interface of the engine.

A *chunk* is a contiguous range of a segment in a byte buffer. ``split`` divides it into batches and
verifies the checksum of each batch. ``opened`` decompresses the batches in runs that fit in memory.
``walk`` visits the records. ``rebuild`` applies the decisions of the rules. The work per record is
in ``kernels``; this module executes Python code per chunk, or per compressed batch.

``split`` converts messages of format v0 or v1 to batches of v2, with IS_OLD in their rows. The
buffer that ``split`` returns has their records uncompressed, even if the header has a codec.
``rebuild`` never copies such a batch unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lastwrite.encoding.checksum import check_against_library
from lastwrite.encoding.compression import Codec, Codecs, OutputTooSmall
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.kafka.format import kernels, packed_kernels, remedy
from lastwrite.kafka.format.batch_layout import UNKNOWN_MAGIC
from lastwrite.kafka.format.versions import versions
from lastwrite.kafka.old_format.chunk import OldConverter
from lastwrite.model.columns import (
    IS_OLD,
    REBUILD,
    BatchRun,
    BatchTable,
    ByteArray,
    Int64Array,
    UInt64Array,
    batch_table,
)
from lastwrite.model.policy import Policy, Strategy

_WORDS = {
    kernels.BAD_SIZE: "the batch length is less than a batch header",
    kernels.BAD_MAGIC: UNKNOWN_MAGIC,
    kernels.BAD_CRC: "the batch's checksum is wrong",
    kernels.BAD_COUNT: "the batch's record count contradicts its length or its offsets",
    kernels.BAD_OFFSET: "record offsets do not increase, or are outside of the batch or segment",
    kernels.BAD_CODEC: "the batch has a compression codec that this release cannot read",
    kernels.BAD_RECORD: "a length inside a record exceeds its batch",
    kernels.TRAILING: "bytes follow the batch's last record",
    kernels.BAD_CONTROL: "a control record has no type",
}
_CODECS = tuple(Codec)
_IN_KERNELS = (Codec.LZ4, Codec.ZSTD)
_NO_KEYS = np.empty((0, 2), dtype=np.int64)
_FACT_NAMES = ("position", "size", "records", "codec")
_PLAIN_BYTES = 1 << 20  # initial buffer for decompressed batches
# Decompressed bytes per run. They stay in the second-level cache until ``walk`` reads them.
_RUN_BYTES = 1 << 19


class Split(NamedTuple):
    """The result of splitting a chunk: complete batches, their end, and the next batch's size."""

    table: BatchTable
    consumed: int
    # size of the incomplete batch at the chunk's end; 0: unknown; -1: no incomplete batch
    wanted: int
    buffer: ByteArray  # the chunk's buffer, or a buffer with the converted batches


class KafkaFormat:
    """Splits, decodes and rebuilds record batches of all formats.

    Each worker needs its own instance. An instance has reusable buffers. ``plain_limit`` is the
    largest number of decompressed bytes in memory. The bytes converted from older formats have a
    separate limit of the same size.
    """

    name = "kafka"
    cut_remedy = remedy.REBUILD
    damage_remedy = remedy.RESTORE
    smallest_batch = kernels.HEADER_BYTES

    def __init__(self, plain_limit: int = 64 << 20) -> None:
        check_against_library()
        self._limit = plain_limit
        self._plain = np.empty(0, dtype=np.uint8)
        self._thin = np.empty(0, dtype=np.uint8)
        self._thinned = np.empty((64, packed_kernels.THINNED), dtype=np.int64)
        self._codecs = Codecs()
        self._table = batch_table(4096)
        self._old: OldConverter | None = None

    def split(self, buffer: ByteArray, start: int, end: int, lowest_offset: int) -> Split:
        """Divide ``buffer[start:end]`` into complete batches and verify their CRCs.

        Table and buffer are valid until the next call. Either all returned batches are converted
        from an older format, or none is. The position in an error is a byte of ``buffer``, also for
        converted batches.

        Raises:
            CorruptLog: a length, a magic, an offset, a count or a checksum is invalid.
            OutOfMemoryBudget: an entry of an older format is too large to convert.
        """
        rows, consumed, code, at, wanted = kernels.split(
            buffer, start, end, self._table, lowest_offset
        )
        if code == kernels.OLD_MAGIC and rows == 0:
            if self._old is None:
                self._old = OldConverter(self._limit)
            found = self._old.convert(buffer, start, end, lowest_offset, self._table)
            return Split(self._table[: found.rows], found.consumed, found.wanted, found.buffer)
        if code not in (kernels.OK, kernels.NEED_MORE) and rows == 0:
            raise _error(code, at)
        return Split(
            self._table[:rows],
            int(consumed),
            int(wanted) if code == kernels.NEED_MORE else -1,
            buffer,
        )

    # A chunk that an earlier pass verified is verified again. A checksum covers a whole batch, and
    # most batches keep some records, so almost no checksum could be skipped.
    split_proven = split

    def take_problems(self) -> list[tuple[int, str]]:
        """The problems of unreadable records that were kept.

        Always empty for Kafka, which keeps none.
        """
        return []

    def opened(
        self, buffer: ByteArray, table: BatchTable, selected: ByteArray | None = None
    ) -> Iterator[BatchRun]:
        """Decompress the batches of ``table``, and yield them in runs.

        ``buffer`` comes from ``split``. ``wanted`` has one byte per batch and selects the batches
        with a non-zero byte. None selects all. Sets ``plain_start`` and ``plain_end`` of each
        batch. A run is valid until the next run is requested.

        Raises:
            CorruptLog: a batch does not decompress.
            OutOfMemoryBudget: one batch decompresses to more than the limit.
        """
        chosen = (table["codec"] != 0) & (table["flags"] & IS_OLD == 0)
        if not chosen.any() and selected is None:
            yield BatchRun(0, len(table), buffer)
            return
        kinds = (
            np.where(chosen, 2, 1)
            if selected is None
            else np.where(selected, np.where(chosen, 2, 1), 0)
        )
        borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(table)]
        for first, last in pairwise(borders if len(table) else ()):
            if kinds[first] == 1:
                yield BatchRun(first, last, buffer)
            while kinds[first] == 2:
                b = self._open(buffer, table, first, last)
                yield BatchRun(first, b, self._plain)
                if b == last:
                    break
                first = b

    def _open(self, buffer: ByteArray, table: BatchTable, first: int, last: int) -> int:
        """Decompress as many of the batches ``table[first:last]`` as fit.

        Returns the next batch's index.

        Raises:
            CorruptLog, OutOfMemoryBudget: as ``opened``, for the first batch only. A later faulty
                batch ends this run and begins the next run.
        """
        if not len(self._plain):
            self._plain = np.empty(min(self._limit, _PLAIN_BYTES), dtype=np.uint8)
        b, used = first, 0
        data, codecs = memoryview(buffer), table["codec"]
        starts, ends = table["plain_start"], table["plain_end"]
        while b < last and used < _RUN_BYTES:
            if codecs[b] in _IN_KERNELS:
                before, words = b, self._codecs.contexts.words
                b, used = packed_kernels.open_many(
                    buffer, table, b, last, self._plain, used, _RUN_BYTES, words
                )
                if b > before:
                    continue
            position, size, records, codec = (int(table[name][b]) for name in _FACT_NAMES)
            try:
                opened = self._decompress(data, position, size, records, codec, used)
            except LogError:
                if b > first:
                    break
                raise
            if opened < 0:  # the buffer is full
                break
            starts[b], ends[b] = used, used + opened
            used += opened
            b += 1
        return int(b)

    def _decompress(
        self, data: memoryview, position: int, size: int, records: int, codec: int, used: int
    ) -> int:
        """Decompress a batch to ``self._plain[used:]``.

        Returns the number of bytes written, or -1 if the buffer is full.
        """
        start, end = position + kernels.HEADER_BYTES, position + size
        if start == end and not records:  # a batch without records may have any codec
            return 0
        opened = 0
        while True:
            try:
                opened = self._codecs.decompress_into(
                    _CODECS[codec], data[start:end], self._plain[used:]
                )
                break
            except OutputTooSmall:
                if used:
                    return -1
                if len(self._plain) >= self._limit:
                    raise OutOfMemoryBudget(
                        f"a batch decompresses to more than {self._limit} bytes",
                        position,
                        remedy="raise --memory",
                    ) from None
                self._plain = np.empty(
                    min(self._limit, max(_PLAIN_BYTES, 4 * len(self._plain))), dtype=np.uint8
                )
            except LogError as error:
                raise CorruptLog(error.problem, position, remedy=remedy.RESTORE) from error
        if records * kernels.SMALLEST_RECORD > opened:
            raise _error(kernels.BAD_COUNT, position + 57)
        return opened

    def walk(
        self,
        run: BatchRun,
        table: BatchTable,
        secret: UInt64Array,
        ordinal: int,
        states: ByteArray,
        entries: UInt64Array,
        filled: int,
        keys: Int64Array | None = None,
    ) -> int:
        """Compute the state and the key fingerprint of each record of ``run``.

        Writes a byte of ``states`` per record, and a row of ``entries`` per record with a key.
        ``keys``, if given, receives a row (position in ``run.plain``, length) per row of
        ``entries``. Returns the number of filled rows of ``entries``.

        Raises:
            CorruptLog: a record is malformed.
        """
        done, _, code, b, at = kernels.walk(
            run.plain,
            table,
            run.first,
            run.last,
            secret,
            ordinal,
            states,
            entries,
            filled,
            _NO_KEYS if keys is None else keys,
        )
        if code != kernels.OK:
            raise record_error(code, table[b], at)
        return int(done)

    def add_versions(
        self,
        buffer: ByteArray,
        run: BatchRun,
        table: BatchTable,
        policy: Policy,
        ordinal: int,
        entries: UInt64Array,
        start: int,
        filled: int,
    ) -> None:
        """Write each record's version to the third column of ``entries[start:filled]``.

        ``run`` has the records of these entries.
        """
        name = np.frombuffer(policy.strategy_header.encode(), dtype=np.uint8)
        by_header, span = policy.strategy is Strategy.HEADER, entries[start:filled]
        versions(buffer, run.plain, table, run.first, run.last, ordinal, by_header, name, span)

    def records_below(self, run: BatchRun, row: np.void, offset: int) -> int:
        """Count the records below ``offset`` in one batch of ``run``."""
        return int(
            kernels.records_below(
                run.plain,
                int(row["plain_start"]),
                int(row["plain_end"]),
                int(row["records"]),
                int(row["base_offset"]),
                offset,
            )
        )

    def rebuilt_size(self, table: BatchTable, records: int) -> int:
        """An upper bound of the bytes that ``rebuild`` writes, unless compressed batches grow."""
        return int(table["size"].sum()) + 12 * records + kernels.HEADER_BYTES * len(table)

    def rebuild(
        self,
        buffer: ByteArray,
        table: BatchTable,
        actions: ByteArray,
        horizons: Int64Array,
        keep: ByteArray,
        out: ByteArray,
        rows: Int64Array,
    ) -> tuple[ByteArray, int, int]:
        """Apply ``actions`` to the batches of ``table``, and write the kept batches to ``out``.

        For each kept batch, writes a row to ``rows``: position, size, next offset, largest
        timestamp, base offset. Returns (output buffer, bytes written, rows filled). The output
        buffer is a new one if ``out`` is too small.

        Raises:
            CorruptLog: a batch that must be rebuilt is malformed.
            OutOfMemoryBudget: as ``opened``.
        """
        b = keep_at = at = filled = 0
        borders: Int64Array | None = None  # the ends of the runs of batches to recompress
        while True:
            b, keep_at, at, filled, code, place = kernels.rebuild(
                buffer,
                table,
                b,
                len(table),
                actions,
                horizons,
                keep,
                keep_at,
                out,
                at,
                rows,
                filled,
            )
            if code != kernels.OK:
                raise _error(code, int(table[b]["origin"] if table[b]["flags"] & IS_OLD else place))
            if b == len(table):
                return out, int(at), int(filled)
            if borders is None:
                is_packed = (actions == REBUILD) & (table["codec"] != 0)
                borders = np.flatnonzero(np.append(~is_packed, True))
            last, keep_at, out, stop = self._rebuild_packed(
                buffer,
                table,
                int(b),
                int(borders[np.searchsorted(borders, b, side="right")]),
                horizons,
                keep,
                int(keep_at),
                out,
                int(at),
                rows,
                int(filled),
            )
            filled += last - b
            b, at = last, stop

    # More than eight parameters: it calls two kernels, and Numba requires separate arguments.
    def _rebuild_packed(
        self,
        buffer: ByteArray,
        table: BatchTable,
        first: int,
        last: int,
        horizons: Int64Array,
        keep: ByteArray,
        keep_at: int,
        out: ByteArray,
        at: int,
        rows: Int64Array,
        filled: int,
    ) -> tuple[int, int, ByteArray, int]:
        """Remove records from the compressed batches ``table[first:last]``, and recompress them.

        Returns (index after the run, keep_at, output buffer, position in the output buffer).
        """
        plain = buffer
        if table["flags"][first] & IS_OLD:
            # Converted batches are large, so each is a separate run.
            last = first + 1
        else:
            last, plain = self._open(buffer, table, first, last), self._plain
        part = table[first:last]
        need = int((part["plain_end"] - part["plain_start"] + 12 * part["records"]).sum())
        if len(self._thin) < need:
            self._thin = np.empty(need + need // 4, dtype=np.uint8)
        if len(self._thinned) < len(part):
            self._thinned = np.empty((2 * len(part), packed_kernels.THINNED), dtype=np.int64)
        done, keep_at, code = packed_kernels.thin_many(
            plain, buffer, table, first, last, keep, keep_at, horizons, self._thin, self._thinned
        )
        if code != kernels.OK:
            raise _error(code, int(table["origin"][done]))
        sizes = np.empty(len(part), dtype=np.int64)
        out, stop = self._pack(table, first, last, out, at, sizes)
        packed_kernels.seal_many(
            buffer, table, first, last, horizons, self._thinned, out, at, sizes, rows, filled
        )
        return last, int(keep_at), out, stop

    def _pack(
        self, table: BatchTable, first: int, last: int, out: ByteArray, at: int, sizes: Int64Array
    ) -> tuple[ByteArray, int]:
        """Compress the remaining records of the batches ``table[first:last]`` to ``out[at:]``.

        Leaves space for a header before each batch. Sets ``sizes``. Returns (output buffer,
        position in the output buffer).
        """
        b = first
        while b < last:
            if table["codec"][b] in _IN_KERNELS:
                words = self._codecs.contexts.words
                b, at = packed_kernels.pack_many(
                    table, first, b, last, self._thin, self._thinned, out, at, sizes, words
                )
                if b == last:
                    break
            start, end = self._thinned[b - first, : packed_kernels.END + 1]
            packed = self._codecs.compress(_CODECS[table["codec"][b]], self._thin[start:end])
            behind = at + kernels.HEADER_BYTES + len(packed)
            # space reserved for the batches after this one
            slack = max(0, len(out) - at - int(table["size"][b]))
            if behind + slack > len(out):
                grown = np.empty(behind + slack + (1 << 16), dtype=np.uint8)
                grown[:at] = out[:at]
                out = grown
            memoryview(out)[at + kernels.HEADER_BYTES : behind] = packed
            sizes[b - first] = behind - at
            at, b = behind, b + 1
        return out, int(at)


def record_error(code: int, row: np.void, at: int) -> LogError:
    """The exception for a kernel's error code at byte ``at`` of a batch's decompressed records.

    For a compressed or converted batch the error has the position of the batch instead.
    """
    return _error(code, int(row["origin"] if row["codec"] or row["flags"] & IS_OLD else at))


def _error(code: int, at: int) -> LogError:
    if code in (kernels.BAD_MAGIC, kernels.BAD_CODEC):
        return UnsupportedFormat(_WORDS[code], int(at), remedy=remedy.UPGRADE)
    return CorruptLog(_WORDS[code], int(at), remedy=remedy.RESTORE)
