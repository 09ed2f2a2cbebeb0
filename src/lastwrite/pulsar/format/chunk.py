"""Pulsar's entries, chunk by chunk: what the engine asks of a format.

A chunk is a stretch of a data object in the object-store offloader's layout, from the begin of an
entry, of a block or of padding on. An entry is a batch: ``split`` cuts a chunk into entries and
proves each by its checksum, ``opened`` lays payloads in the clear, ``walk`` visits the messages,
``rebuild`` writes framed entries of what stays. Raw ledgers and compacted ones are read alike: an
entry tells what it is. How it is laid out in the new ledger is the appender's matter.

- A batch that can be read has a record for each message that is present; placeholders are none.
  What is dropped of it leaves a placeholder, so every other message keeps its index. What is kept
  carries ``compacted_batch_indexes`` and ``uncompressed_size``, from which a broker answers the
  last message id, also where all messages stay: then the payload is copied. All other metadata are
  copied byte for byte.
- An older compactor lists no ``compacted_batch_indexes``: placeholders of its batches count as
  records that lost.
- A single message, an encrypted batch (by the key in clear) and a batch that cannot be read are one
  record each, or of the last kind as many as its metadata can rightly claim; of these none
  competes: the entry stays.
- Of a message in chunks the last chunk competes by the key, and the others stay; ``TELLS_GROUPS``:
  they stay and go with it (``Strategy.GROUPS``); ``LIKE_BROKER``: each competes, of which a broker
  keeps the last.
- A marker has no record. Transactional entries carry the transaction's number as their producer.

What ``split`` finds out of each entry beyond a batch's columns stays in this instance until the
next ``split``; the other calls are about that table.

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
    BatchTable,
    ByteArray,
    Int64Array,
    Run,
    UInt64Array,
    batch_table,
)
from lastwrite.model.policy import Policy, Strategy
from lastwrite.pulsar.format import kernels
from lastwrite.pulsar.format.codecs import Codec, Codecs
from lastwrite.pulsar.format.remedy import RESTORE

LIKE_BROKER = kernels.LIKE_BROKER
KEEPS_PREFIX = kernels.KEEPS_PREFIX
TELLS_GROUPS = kernels.TELLS_GROUPS

_ROWS = 2048
_WORDS = {
    kernels.BAD_BORDER: "neither an entry nor a block nor padding begins here",
    kernels.BAD_BLOCK: "the block header contradicts the format or the entry ids",
    kernels.BAD_PADDING: "padding ends where no block begins",
    kernels.BAD_ORDER: "entry ids have a gap, do not rise, or lie below what comes here",
    kernels.BAD_SIZE: "the entry is too small to be one",
    kernels.BAD_FRAME: "the entry's lengths do not fit it",
    kernels.BAD_CRC: "checksum does not match the entry",
    kernels.BAD_METADATA: "the message metadata are broken",
    kernels.BAD_RECORD: "the compacted ledger's record is broken",
    kernels.TOO_FAR: "a ledger id of 2^31 or an entry id of 2^32 and more is not handled",
    kernels.BAD_TRANSACTION: "a transaction id of this size is not handled",
    kernels.CHANGED: "the batch is not what the scan saw",
}
_UNSUPPORTED = (kernels.TOO_FAR, kernels.BAD_TRANSACTION)
_CODECS = tuple(Codec)
_NO_KEYS = np.empty((0, 2), dtype=np.int64)
_PLAIN_BYTES = 1 << 20  # of the buffer for opened payloads, until one needs more
# What is opened before it is walked: it shall still be in the second-level cache then.
_RUN_BYTES = 1 << 19


class _Fault(NamedTuple):
    """What is wrong behind the entries that ``split`` gave last; the next call says it."""

    buffer: ByteArray
    start: int
    lowest_offset: int
    error: LogError


class PulsarFormat:
    """Entries of raw and compacted ledgers. Holds reusable buffers: one instance a worker, no
    sharing.

    ``plain_limit`` bounds the bytes of payloads that are open at once. ``reading``: LIKE_BROKER,
    KEEPS_PREFIX and TELLS_GROUPS as bits, which a System hands on as ``Policy.reading``. Without
    ``checks`` no checksum is looked at.
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
        self._codecs = Codecs()
        self._held = self._plain  # what was split last
        self._fault: _Fault | None = None

    @property
    def entries(self) -> kernels.EntryTable:
        """What each entry is (``kernels.ENTRY``), row for row with the last table, and longer."""
        return self._entries

    def split(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]:
        """Cut ``buffer[start:end]`` into whole entries, each proven by its CRC-32C where it has
        one.

        Returns the table, valid until the next call; where its entries end, block headers and
        padding behind them included; how many bytes the entry needs that is cut short there (-1:
        none is); ``buffer``. A row's position and size are those of the framed entry, its origin is
        where the entry begins in the object.

        Raises:
            CorruptLog: lengths, ids, metadata or a checksum contradict the format, or an entry is
                missing.
            UnsupportedFormat: a ledger, entry or transaction id is larger than we handle.
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

    def kept(self) -> list[tuple[int, str]]:
        """No record that cannot be read is kept."""
        return []

    def opened(
        self, buffer: ByteArray, table: BatchTable, wanted: ByteArray | None = None
    ) -> Iterator[Run]:
        """What is walked of the entries of ``table`` (those with a non-zero byte in ``wanted``), in
        runs.

        Sets ``plain_start`` and ``plain_end``. A run is valid until the next is asked for. A batch
        that does not open, or not to the size it names, becomes one that is kept whole.

        Raises:
            OutOfMemoryBudget: one batch opens to more than the limit.
        """
        entries = self._entries[: len(table)]
        packed = (entries["kind"] == kernels.BATCH) & (table["codec"] != 0)
        if wanted is None:
            borders = [0, len(table)]
        else:
            packed &= wanted != 0
            borders = [0, *(np.flatnonzero(np.diff(wanted != 0)) + 1).tolist(), len(table)]
        in_place = not packed.any()
        for first, last in pairwise(borders if len(table) else ()):
            if wanted is not None and not wanted[first]:
                continue
            while not in_place and first < last:
                b = self._open(buffer, table, first, last)
                yield Run(first, b, self._plain)
                first = b
            if in_place:
                yield Run(first, last, buffer)

    def _open(self, buffer: ByteArray, table: BatchTable, first: int, last: int) -> int:
        """Open entries from ``table[first]`` on, ``last`` at most, as many as make a run; returns
        where it ends.

        Raises:
            OutOfMemoryBudget: as ``opened``, of the first entry; a later one begins the next run.
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
            if size < 0:  # the buffer is full: hand out what is there
                break
            used += size
            b += 1
        return int(b)

    def _open_by_library(
        self, buffer: ByteArray, table: BatchTable, first: int, last: int, used: int
    ) -> tuple[int, int]:
        """Open neighbouring batches from ``first`` on that a kernel cannot, behind ``used`` bytes,
        as many as fit; returns where they end, and the bytes used."""
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
                if size:  # else it is dropped
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
        """Open what ``open_many`` left, behind ``used`` bytes; the bytes it takes, -1 where there
        is no room.
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
                    f"a batch opens to {size} bytes, more than {self._limit}",
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
        run: Run,
        table: BatchTable,
        secret: UInt64Array,
        ordinal: int,
        states: ByteArray,
        entries: UInt64Array,
        filled: int,
        keys: Int64Array | None = None,
    ) -> int:
        """Visit the run's records: a byte of ``states`` each, a row of ``entries`` each that
        competes for its key.

        Returns the rows of ``entries`` that are filled now. Where a row has a third word it takes
        the version (see ``add_versions``). ``keys`` takes (position in ``run.plain``, length) row
        for row with ``entries``.
        """
        chunk = kernels.SplitChunk(self._held, table, self._entries)
        keyed = kernels.Keyed(entries, _NO_KEYS if keys is None else keys)
        return int(kernels.walk(run, chunk, self._reading, secret, ordinal, states, keyed, filled))

    def add_versions(
        self,
        buffer: ByteArray,
        run: Run,
        table: BatchTable,
        policy: Policy,
        ordinal: int,
        entries: UInt64Array,
        start: int,
        filled: int,
    ) -> None:
        """Check them: ``walk`` passes by the event times and has written the versions.

        A version is the event time above the bits IS_SINGLE (no member of a batch) and IS_DELETE.
        An event time that is absent, or below 0 to Java, is 0. With TELLS_GROUPS it is a
        fingerprint of the uuid that the chunks of one message have in common, with the bit IN_GROUP
        on all but the last; 0 for others.

        Raises:
            UnsupportedFormat: an event time that a version cannot hold.
        """
        if policy.strategy is not Strategy.EVENT_TIME or start == filled:
            return
        if int(entries[start:filled, 2].max()) >> TIME_SHIFT >= kernels.MOST_TIME:
            raise UnsupportedFormat(
                f"a message has an event time of {kernels.MOST_TIME} ms or later, which cannot be "
                "compared",
                remedy="the topic was left unchanged; compact it without the setting "
                "compactionServiceFactoryClassName, by the order in which it was written",
            )

    def records_below(self, run: Run, row: np.void, offset: int) -> int:
        """How many records of one entry of ``run`` lie below ``offset``: all or none."""
        return int(row["records"]) if row["base_offset"] < offset else 0

    def rebuilt_size(self, table: BatchTable, records: int) -> int:
        """Bytes that ``rebuild`` may need at most for ``table``, save for batches that grow."""
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

        Writes framed entries to ``out`` (from its begin), one behind the other, and a row
        (position, size, next offset, publish time, base offset, records left) to ``rows`` for each.
        Returns (the output buffer, grown if it had to be; bytes written; rows filled).

        Raises:
            CorruptLog: a batch that must be thinned cannot be read: it is not what the scan saw.
            OutOfMemoryBudget: as ``opened``.
        """
        chunk = kernels.SplitChunk(buffer, table, self._entries)
        orders = kernels.Orders(actions, keep, bool(self._reading & KEEPS_PREFIX))
        done = kernels.Done(0, 0, 0, 0)
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
        """Make room for one entry in ``out``, of which ``at`` bytes are used, and in the scratch."""
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
        orders: kernels.Orders,
        done: kernels.Done,
        out: ByteArray,
        rows: Int64Array,
    ) -> tuple[kernels.Done, ByteArray]:
        """Thin the next run of compressed batches, and compress what changed of them.

        Returns (how far the rebuild has come, the output buffer, grown if it had to be).
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
        return kernels.Done(last, int(keep_at), stop, filled), out

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
        """Write the payloads of batches that ``thin_many`` thinned to ``out`` from ``at`` on, with
        room for heads.

        Returns (``out``, grown if it had to be; position behind; the size of each with its head).
        """
        part, entries = table[first:last], self._entries[first:last]
        notes = self._notes[: last - first]
        thin, held, view, stop = memoryview(self._thin), memoryview(buffer), memoryview(out), at
        begins = entries["framed_at"] if not self._reading & KEEPS_PREFIX else part["position"]
        heads = np.diff(notes[:, kernels.HEAD], prepend=0)
        # Where all stay and lie as they lay, what is packed is copied.
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
            slack = len(view) - begin - size  # room promised to the entries behind this one
            if stop + max(slack, 0) > len(view):
                out = _grown(out, begin, stop + max(slack, 0))
                view = memoryview(out)
            view[begin:stop] = packed
            sizes[n] = stop - begin + head
        return out, stop, sizes


def _grown(out: ByteArray, used: int, need: int) -> ByteArray:
    """A larger buffer with the first ``used`` bytes, as far as there are so many."""
    grown: ByteArray = np.empty(max(need, len(out) + len(out) // 4) + (1 << 16), dtype=np.uint8)
    held = out[:used]
    grown[: len(held)] = held
    return grown


def _error(code: int, at: int) -> LogError:
    kind = UnsupportedFormat if code in _UNSUPPORTED else CorruptLog
    return kind(_WORDS[code], int(at), remedy=RESTORE)
