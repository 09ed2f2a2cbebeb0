"""Pulsar's entries, chunk by chunk: Pulsar's implementation of the engine's format interface.

A chunk is a range of a data object in the object-store offloader's layout. A chunk begins with an
entry, a block or padding. An entry is a batch: ``split`` divides a chunk into entries and verifies
each checksum, ``opened`` decompresses payloads, ``walk`` visits the messages, and ``rebuild``
writes the kept messages as framed entries. Raw and compacted ledgers are read in the same way,
because an entry's bytes show its kind. The appender writes the entries to the new ledger.

- A readable batch has a record for each message that is present; placeholders do not count. A
  dropped message leaves a placeholder, so every other message keeps its index. A rebuilt batch
  always has ``compacted_batch_indexes`` and ``uncompressed_size``: a broker reads the last message
  id from them. If all messages stay, the payload is copied. All other metadata are copied byte for
  byte.
- An older compactor lists no ``compacted_batch_indexes``. The placeholders of its batches count as
  superseded records.
- A single message, an encrypted batch (by its clear-text key) and an unreadable batch are one
  record each. If the metadata of an unreadable batch validly state more records, all of them count.
  They do not compete, so the entry stays.
- The last chunk of a chunked message competes by its key, and the other chunks are kept. With
  ``TELLS_GROUPS`` the other chunks are kept or removed with the last one (``Strategy.GROUPS``).
  With ``LIKE_BROKER`` each chunk competes, and the last chunk is kept, as in a broker.
- A marker has no record. Transactional entries have the transaction's number as their producer.

``split`` also fills a table with the metadata of each entry (``kernels.ENTRY``). The table is valid
until the next ``split``. The other methods read the table.

Source: Pulsar 4.2.4 TwoPhaseCompactor, RawBatchConverter; docs/formats/pulsar.md, "Entry";
docs/formats/pulsar-compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lastwrite.encoding.checksum import check_against_library
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.model.columns import (
    COPY,
    TIME_SHIFT,
    BatchRun,
    BatchTable,
    ByteArray,
    Int64Array,
    UInt64Array,
    batch_table,
)
from lastwrite.model.policy import Policy, Strategy
from lastwrite.pulsar.format import kernels
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.format.remedy import RESTORE

LIKE_BROKER = kernels.LIKE_BROKER
KEEPS_PREFIX = kernels.KEEPS_PREFIX
TELLS_GROUPS = kernels.TELLS_GROUPS

_ROWS = 2048
_WORDS = {
    kernels.BAD_BORDER: "no entry, block or padding begins at this byte",
    kernels.BAD_BLOCK: "the block header contradicts the format or the entry ids",
    kernels.BAD_PADDING: "padding ends where no block begins",
    kernels.BAD_ORDER: "the entry id does not follow the id before it",
    kernels.BAD_SIZE: "the entry is shorter than its smallest possible size",
    kernels.BAD_FRAME: "the length fields of the entry do not fit its size",
    kernels.BAD_CRC: "the checksum does not match the entry",
    kernels.BAD_METADATA: "the entry's message metadata cannot be decoded",
    kernels.BAD_RECORD: "the record of the compacted ledger cannot be decoded",
    kernels.TOO_FAR: (
        "the ledger id is 2^31 or higher, or the entry id is 2^32 or higher, which is not supported"
    ),
    kernels.BAD_TRANSACTION: "the transaction id is too large for Lastwrite",
    kernels.CHANGED: "the entry was changed after Lastwrite had scanned it",
}
_UNSUPPORTED = (kernels.TOO_FAR, kernels.BAD_TRANSACTION)
_CODECS = tuple(PulsarCodec)
_NO_KEYS = np.empty((0, 2), dtype=np.int64)
_PLAIN_BYTES = 1 << 20  # initial size of the buffer for decompressed payloads
# Maximum bytes of decompressed payloads in a run, few enough to stay in the second-level cache.
_RUN_BYTES = 1 << 19


class _Fault(NamedTuple):
    """Damage after the entries that the last ``split`` returned. The next ``split`` raises it."""

    buffer: ByteArray
    start: int
    lowest_offset: int
    error: LogError


class PulsarFormat:
    """Reads and rebuilds entries of raw and compacted ledgers.

    Has reusable buffers, so use one instance per worker.

    ``plain_limit`` bounds the bytes of payloads decompressed at once. ``reading`` has the bits
    LIKE_BROKER, KEEPS_PREFIX and TELLS_GROUPS, which a System passes as ``Policy.reading``. Without
    ``checks`` no checksum is verified.
    """

    name = "pulsar"
    damage_remedy = RESTORE
    cut_remedy = RESTORE

    def __init__(self, plain_limit: int = 64 << 20, reading: int = 0, checks: bool = True) -> None:
        check_against_library()
        self._limit = plain_limit
        self._reading = reading | (0 if checks else kernels.SKIPS_CHECKSUMS)
        self._table = batch_table(_ROWS)
        self._entries = np.empty(_ROWS, dtype=kernels.ENTRY)
        self._plain = np.empty(0, dtype=np.uint8)
        self._thin = np.empty(0, dtype=np.uint8)
        self._heads = np.empty(0, dtype=np.uint8)
        self._indexes = np.empty(1024, dtype=np.int64)
        self._notes = np.empty((64, kernels.THINNED), dtype=np.int64)
        self._codecs = PulsarCodecs()
        self._held = self._plain  # the buffer that the last ``split`` returned
        self._fault: _Fault | None = None

    @property
    def entries(self) -> kernels.EntryTable:
        """The metadata of the entries of the last ``split``: a row of ``kernels.ENTRY`` for each.

        The array may have more rows than the table that ``split`` returned.
        """
        return self._entries

    def split(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]:
        """Split ``buffer[start:end]`` into complete entries, and verify their CRC-32C if present.

        Returns (table, end, wanted, buffer). The table is valid until the next call. ``end`` is the
        position after the table's entries, block headers and padding. ``wanted`` is the size of the
        next, incomplete entry, or -1 if all are complete. Position and size of a row refer to the
        framed entry; its origin is where the entry begins in the object.

        Raises:
            CorruptLog: lengths, ids, metadata or a checksum are wrong, or an entry is
                missing.
            UnsupportedFormat: a ledger, entry or transaction id is too large.
        """
        fault, self._fault = self._fault, None
        if fault is not None and fault.buffer is buffer:
            if (fault.start, fault.lowest_offset) == (start, lowest_offset):
                raise fault.error
        given, limit, reading = (self._table, self._entries), self._limit, self._reading
        rows, consumed, code, at, wanted = kernels.split(
            buffer, start, end, *given, lowest_offset, limit, reading
        )
        table, consumed, self._held = self._table[:rows], int(consumed), buffer
        if code in (kernels.OK, kernels.NEED_MORE):
            return table, consumed, int(wanted) if code == kernels.NEED_MORE else -1, buffer
        error = _error(code, at)
        if not rows:
            raise error
        self._fault = _Fault(buffer, consumed, int(table["next_offset"][-1]), error)
        return table, consumed, -1, buffer

    split_proven = split

    def take_problems(self) -> list[tuple[int, str]]:
        """An empty list, because this format keeps no unreadable records."""
        return []

    def opened(
        self, buffer: ByteArray, table: BatchTable, selected: ByteArray | None = None
    ) -> Iterator[BatchRun]:
        """Decompress the entries of ``table`` in runs.

        ``selected`` has a byte per entry; 0 skips the entry. None means all entries. Sets
        ``plain_start`` and ``plain_end`` of the table. A run is valid until the next run is
        requested. A batch that does not decompress to its stated size is kept unchanged.

        Raises:
            OutOfMemoryBudget: one batch decompresses to more than the limit.
        """
        entries = self._entries[: len(table)]
        packed = (entries["kind"] == kernels.BATCH) & (table["codec"] != 0)
        if selected is None:
            borders = [0, len(table)]
        else:
            packed &= selected != 0
            borders = [0, *(np.flatnonzero(np.diff(selected != 0)) + 1).tolist(), len(table)]
        in_place = not packed.any()
        for first, last in pairwise(borders if len(table) else ()):
            if selected is not None and not selected[first]:
                continue
            while not in_place and first < last:
                b = self._open(buffer, table, first, last)
                yield BatchRun(first, b, self._plain)
                first = b
            if in_place:
                yield BatchRun(first, last, buffer)

    def _open(self, buffer: ByteArray, table: BatchTable, first: int, last: int) -> int:
        """Decompress a run of entries from ``table[first]`` to at most ``last``.

        Returns the run's end.

        Raises:
            OutOfMemoryBudget: the first entry exceeds the limit. A later entry that exceeds it
                begins the next run.
        """
        if not len(self._plain):
            self._plain = np.empty(max(1, min(self._limit, _PLAIN_BYTES)), dtype=np.uint8)
        b, used = first, 0
        while b < last and used < _RUN_BYTES:
            b, used = kernels.open_many(
                buffer, table, self._entries, b, last, self._plain, used, _RUN_BYTES
            )
            if b == last or used >= _RUN_BYTES:
                break
            stop, used = self._open_by_library(buffer, table, int(b), last, int(used))
            if stop > b:
                b = stop
                continue
            try:
                size = self._open_one(buffer, table[b], self._entries[b], used)
            except OutOfMemoryBudget:
                if b > first:
                    break
                raise
            if size < 0:  # the payload does not fit the rest of the buffer: end the run before it
                break
            used += size
            b += 1
        return int(b)

    def _open_by_library(
        self, buffer: ByteArray, table: BatchTable, first: int, last: int, used: int
    ) -> tuple[int, int]:
        """Decompress adjacent batches, from ``first`` on, that the kernels cannot decompress.

        A compression library writes their payloads to the buffer from byte ``used`` on. Returns the
        end of the batches that fit, and the bytes used.
        """
        last = int(kernels.library_end(table, self._entries, first, last))
        part, entries = table[first:last], self._entries[first:last]
        held, plain, most = memoryview(buffer), memoryview(self._plain), len(self._plain)
        places = [used]
        for b, (codec, start, stop, size) in enumerate(
            zip(
                part["codec"].tolist(),
                entries["payload_at"].tolist(),
                (part["position"] + part["size"]).tolist(),
                np.where(entries["marks"] & kernels.IS_DROPPED, 0, entries["plain_size"]).tolist(),
                strict=True,
            ),
            first,
        ):
            if used + size > most or used >= _RUN_BYTES:
                break
            try:
                if size:  # a dropped batch has size 0, and is not decompressed
                    room = plain[used : used + size]
                    self._codecs.open_into(_CODECS[codec], held[start:stop], size, room)
                used += size
            except LogError:
                self._entries["kind"][b] = kernels.WHOLE
            places.append(used)
        done = len(places) - 1
        part["plain_start"][:done] = places[:-1]
        part["plain_end"][:done] = places[1:]
        return first + done, used

    def _open_one(self, buffer: ByteArray, row: np.void, entry: np.void, used: int) -> int:
        """Decompress the entry at which ``open_many`` stopped into the buffer, at byte ``used``.

        Returns the decompressed size, or -1 if the payload does not fit.
        """
        if entry["kind"] != kernels.BATCH or not row["codec"]:
            start, size = int(entry["key_at"]), max(int(entry["key_length"]), 0)
            if entry["kind"] == kernels.BATCH:
                start = int(entry["payload_at"])
                size = int(row["position"] + row["size"]) - start
            if used:
                return -1
            self._plain = np.empty(size, dtype=np.uint8)
            self._plain[:] = buffer[start : start + size]
            row["plain_start"], row["plain_end"] = 0, size
            return size
        payload = buffer[int(entry["payload_at"]) : int(row["position"] + row["size"])]
        size, codec = int(entry["plain_size"]), _CODECS[int(row["codec"])]
        while True:
            try:
                if self._codecs.open_into(codec, payload, size, self._plain[used:]):
                    break
            except LogError:
                entry["kind"] = kernels.WHOLE
                row["plain_start"] = row["plain_end"] = used
                return 0
            if used:
                return -1
            if len(self._plain) >= min(self._limit, size):
                raise OutOfMemoryBudget(
                    f"the batch decompresses to {size} bytes, more than the limit of {self._limit}",
                    int(row["origin"]),
                    remedy="raise --memory",
                )
            self._plain = np.empty(
                min(self._limit, size, max(_PLAIN_BYTES, 4 * len(self._plain))), dtype=np.uint8
            )
        row["plain_start"], row["plain_end"] = used, used + size
        return size

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
        """Visit the run's records, and write a byte of ``states`` for each.

        Each competing record also gets a row of ``entries``.

        Returns the number of filled rows of ``entries``. The third word of a row, if rows have it,
        is the version (see ``add_versions``). ``keys`` receives (position in ``run.plain``,
        length), row for row with ``entries``.
        """
        chunk = kernels.SplitChunk(self._held, table, self._entries)
        keyed = kernels.KeyedRecords(entries, _NO_KEYS if keys is None else keys)
        return int(kernels.walk(run, chunk, self._reading, secret, ordinal, states, keyed, filled))

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
        """Check the versions that ``walk`` has written.

        A version is the event time above the bits IS_SINGLE (not a member of a batch) and
        IS_DELETE. An event time that is absent, or negative in Java, is 0. With TELLS_GROUPS the
        version is a fingerprint of the uuid that the chunks of one message share, with the bit
        IN_GROUP on all but the last chunk. The version is 0 for other messages.

        Raises:
            UnsupportedFormat: a version cannot hold the event time.
        """
        if policy.strategy is not Strategy.EVENT_TIME or start == filled:
            return
        if int(entries[start:filled, 2].max()) >> TIME_SHIFT >= kernels.MOST_TIME:
            raise UnsupportedFormat(
                f"a message has an event time of {kernels.MOST_TIME} ms or later, which "
                "Lastwrite cannot compare",
                remedy="the topic was left unchanged; compact it by publish order: leave out the "
                "setting compactionServiceFactoryClassName",
            )

    def records_below(self, run: BatchRun, row: np.void, offset: int) -> int:
        """The number of an entry's records with offsets below ``offset``.

        The result is all records or none, because they share the entry's offset.
        """
        return int(row["records"]) if row["base_offset"] < offset else 0

    def rebuilt_size(self, table: BatchTable, records: int) -> int:
        """The maximum number of bytes that ``rebuild`` writes for ``table`` if no batch grows."""
        return int(kernels.rebuilt_size(table, self._entries, len(table)))

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
        """Carry out ``actions`` on the entries of ``table``.

        Writes adjacent framed entries to ``out``, from its start. For each it writes a row
        (position, size, next offset, publish time, base offset, records left) to ``rows``. Returns
        (the output buffer, which may have been enlarged; bytes written; rows filled).

        Raises:
            CorruptLog: a batch with records to drop cannot be read: it changed after the scan.
            OutOfMemoryBudget: one batch decompresses to more than the limit.
        """
        chunk = kernels.SplitChunk(buffer, table, self._entries)
        orders = kernels.EntryActions(actions, keep, bool(self._reading & KEEPS_PREFIX))
        done = kernels.RebuildProgress(0, 0, 0, 0)
        while True:
            done, code = kernels.rebuild(chunk, orders, self._scratch, done, out, rows)
            b = done.entries
            if code == kernels.OK:
                return out, done.at, done.rows
            if code == kernels.CHANGED:
                raise _error(code, int(table["origin"][b]))
            if code == kernels.NEED_ROOM:
                out = self._grow(table[b], self._entries[b], out, done.at)
            else:
                done, out = self._rebuild_packed(chunk, orders, done, out, rows)

    @property
    def _scratch(self) -> kernels.Scratch:
        return kernels.Scratch(self._plain, self._thin, self._indexes, self._heads, self._notes)

    def _grow(self, row: np.void, entry: np.void, out: ByteArray, at: int) -> ByteArray:
        """Enlarge the scratch buffers and ``out`` to fit one more entry.

        ``out`` has ``at`` bytes in use.
        """
        payload = int(row["position"] + row["size"] - entry["payload_at"])
        plain = int(entry["plain_size"]) if row["codec"] else payload
        if row["codec"] and len(self._plain) < plain:
            self._plain = np.empty(max(plain, min(self._limit, _PLAIN_BYTES)), dtype=np.uint8)
        room = max(int(kernels.thin_room(entry, plain)), payload)
        self._make_scratch(room, int(row["records"]))
        need = at + room + int(kernels.head_room(row, entry))
        return out if need <= len(out) else _grown(out, at, need)

    def _make_scratch(self, payloads: int, records: int, heads: int = 0) -> None:
        if len(self._thin) < payloads:
            self._thin = np.empty(payloads + payloads // 4, dtype=np.uint8)
        if len(self._heads) < heads:
            self._heads = np.empty(heads + heads // 4, dtype=np.uint8)
        if len(self._indexes) < records:
            self._indexes = np.empty(2 * records, dtype=np.int64)

    def _rebuild_packed(
        self,
        chunk: kernels.SplitChunk,
        orders: kernels.EntryActions,
        done: kernels.RebuildProgress,
        out: ByteArray,
        rows: Int64Array,
    ) -> tuple[kernels.RebuildProgress, ByteArray]:
        """Rebuild the next run of compressed batches. Changed batches are compressed again.

        Returns (progress of the rebuild, the output buffer, which may have been enlarged).
        """
        buffer, table, entries = chunk
        first, keep_at, at, filled = done
        last = int(kernels.packed_end(table, entries, first, orders.actions))
        last = self._open(buffer, table, first, last)
        needed = kernels.rooms(table, entries, first, last, 2 * _RUN_BYTES)
        last, payloads, heads, records = map(int, needed)
        self._make_scratch(payloads, records, heads)
        if len(self._notes) < last - first:
            self._notes = np.empty((2 * (last - first), kernels.THINNED), dtype=np.int64)
        scratch = self._scratch
        b, keep_at, code = kernels.thin_many(chunk, orders, scratch, first, last, keep_at)
        if code != kernels.OK:
            raise _error(code, int(table["origin"][b]))
        out, stop, sizes = self._pack(buffer, table, first, last, orders.actions, out, at)
        filled = int(kernels.seal_many(table, scratch, first, sizes, out, at, rows, filled))
        return kernels.RebuildProgress(last, int(keep_at), stop, filled), out

    def _pack(
        self,
        buffer: ByteArray,
        table: BatchTable,
        first: int,
        last: int,
        actions: ByteArray,
        out: ByteArray,
        at: int,
    ) -> tuple[ByteArray, int, Int64Array]:
        """Write the payloads from ``thin_many`` to ``out``, each after space for its head.

        The first space begins at byte ``at``. Returns (``out``, which may have been enlarged; the
        end position; the size of each entry, head included).
        """
        part, entries = table[first:last], self._entries[first:last]
        notes = self._notes[: last - first]
        thin, held, view, stop = memoryview(self._thin), memoryview(buffer), memoryview(out), at
        begins = entries["framed_at"] if not self._reading & KEEPS_PREFIX else part["position"]
        heads = np.diff(notes[:, kernels.HEAD], prepend=0)
        # If a batch keeps all messages at their positions, its compressed payload is copied
        # unchanged.
        thinned = notes[:, kernels.END] - notes[:, kernels.START]
        same = (actions[first:last] == COPY) & (thinned == part["plain_end"] - part["plain_start"])
        behinds = part["position"] + part["size"]
        is_dropped, is_whole = notes[:, kernels.KEPT] < 0, entries["kind"] == kernels.WHOLE
        copied = np.where(same, entries["payload_at"], -1)
        copied = np.where(is_dropped, behinds, np.where(is_whole, begins, copied))
        sizes = np.empty(last - first, dtype=np.int64)
        for n, (codec, start, end, head, copy, behind, size) in enumerate(
            zip(
                part["codec"].tolist(),
                notes[:, kernels.START].tolist(),
                notes[:, kernels.END].tolist(),
                heads.tolist(),
                copied.tolist(),
                behinds.tolist(),
                part["size"].tolist(),
                strict=True,
            )
        ):
            packed: bytes | memoryview = held[copy:behind]
            if copy < 0:
                packed = self._codecs.compress(_CODECS[codec], thin[start:end])
            begin = stop + head
            stop = begin + len(packed)
            # bytes at the buffer's end that stay reserved for the following entries
            slack = len(view) - begin - size
            if stop + max(slack, 0) > len(view):
                out = _grown(out, begin, stop + max(slack, 0))
                view = memoryview(out)
            view[begin:stop] = packed
            sizes[n] = stop - begin + head
        return out, stop, sizes


def _grown(out: ByteArray, used: int, need: int) -> ByteArray:
    """A copy of the first ``used`` bytes of ``out``, in a buffer of at least ``need`` bytes."""
    grown: ByteArray = np.empty(max(need, len(out) + len(out) // 4) + (1 << 16), dtype=np.uint8)
    held = out[:used]
    grown[: len(held)] = held
    return grown


def _error(code: int, at: int) -> LogError:
    kind = UnsupportedFormat if code in _UNSUPPORTED else CorruptLog
    return kind(_WORDS[code], int(at), remedy=RESTORE)
