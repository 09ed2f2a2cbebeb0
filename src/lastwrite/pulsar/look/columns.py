"""Pulsar's messages as columns for ``lastwrite.rows``.

All messages of a topic are in its raw ledgers. The topic's last writes are in the compacted ledger
and in the raw entries beyond its horizon. A chunked message is joined at its last chunk; the
positions of all chunks are collected once, before the messages are read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from lastwrite.engine.chunks import BatchWindow, BatchWindows
from lastwrite.engine.rules.transactions import aborted_table, flag_aborted
from lastwrite.errors import CorruptLog, UnsupportedFormat, located
from lastwrite.model.columns import IS_ABORTED, ByteArray, Int64Array, RecordColumns
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment
from lastwrite.model.work import Limits, ScanRange
from lastwrite.pulsar.format.chunk import PulsarFormat
from lastwrite.pulsar.format.entry import Entry, decode_entry, messages_of
from lastwrite.pulsar.format.gather import (
    IN_PARTS,
    INDEX_BITS,
    SplitRows,
    gather,
    open_singles,
    with_properties,
)
from lastwrite.pulsar.format.kernels import IS_CHUNKED, IS_ENCRYPTED, MARKER
from lastwrite.pulsar.format.missing import describe_ids
from lastwrite.pulsar.format.position import ENTRY_BITS, MAX_ENTRY, Position
from lastwrite.pulsar.look.chunks import ChunkGroups
from lastwrite.pulsar.store.objects import first_entry_of
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.topic import TopicFolder, find_topics, list_topic, partition_of
from lastwrite.pulsar.store.topic_log import has_parts, is_of_compacted, log_of, read_compacted
from lastwrite.rows.system import RowReader, RowSystem, Wants
from lastwrite.storage.choice import Topics
from lastwrite.storage.reading import reader_of

# A message's number has 63 bits. These are the numbers of bits for its ledger, entry and batch
# index.
_LEDGER, _ENTRY, _INDEX = 27, 24, 12
_PLACE = struct.Struct("<3q")  # one chunk: its segment, position and size
_FINGERPRINT_BYTES = 16 << 10  # bytes of a ledger's first entry that a fingerprint covers


class PartPlace(NamedTuple):
    """The position of one chunk of a message."""

    segment: Segment
    position: int
    size: int


# the positions of each message's chunks, by the offset of the message's last chunk
Parts = Mapping[int, tuple[PartPlace, ...]]


class _PulsarRowReader:
    def __init__(self, plain_bytes: int, parts: Parts | None, raw_keys: bool) -> None:
        self.format = PulsarFormat(plain_bytes)
        self._limit = plain_bytes
        self._parts = parts or {}
        self._raw_keys = raw_keys

    def records(
        self,
        chunk: BatchWindow,
        selected: ByteArray | None,
        span: tuple[int, int],
        *,
        is_committed: bool,
    ) -> Iterator[RecordColumns]:
        given = SplitRows(chunk.buffer, chunk.table, self.format.entries)
        open_singles(given, selected, self._limit)
        for run in self.format.opened(chunk.buffer, chunk.table, selected):
            found = gather(
                given,
                run,
                span,
                is_committed=is_committed,
                raw_keys=self._raw_keys,
                shift=chunk.shift,
            )
            if (found.values[1] == IN_PARTS).any():
                found = self._joined(found)
            yield found

    def with_headers(self, records: RecordColumns) -> RecordColumns:
        return with_properties(records)

    def _joined(self, records: RecordColumns) -> RecordColumns:
        """Add the joined values of chunked messages, and drop messages that lack a chunk."""
        in_parts = records.values[1] == IN_PARTS
        known = np.array([int(offset) in self._parts for offset in records.offsets])
        records = records.take(np.flatnonzero(~in_parts | known))
        starts, lengths = records.values[0].copy(), records.values[1].copy()
        data = [records.data]
        at = len(records.data)
        for row in np.flatnonzero(lengths == IN_PARTS).tolist():
            value = self._value(int(records.offsets[row]))
            starts[row], lengths[row] = at, len(value)
            data.append(np.frombuffer(value, np.uint8))
            at += len(value)
        return records._replace(data=np.concatenate(data), values=(starts, lengths))

    def _value(self, offset: int) -> bytes:
        payload, entry = [], None
        for part in self._parts[offset]:
            bytes_ = np.empty(part.size, np.uint8)
            with reader_of(part.segment) as file, located(part.segment.path, part.position):
                file.read_into(bytes_, part.position)
                entry = decode_entry(bytes_, *Position.of(offset))
            payload.append(entry.payload)
        assert entry is not None
        (message,) = messages_of(replace(entry, payload=b"".join(payload)), self._limit)
        return message.value


class _PulsarRows(RowSystem):
    name = "pulsar"
    is_offset_unique = False
    is_empty_delete = True
    rounds_move_start = True

    def logs_of(
        self,
        path: str,
        topic: Topics = None,
        partition: int | None = None,
        *,
        wants: Wants | None = None,
        is_compacted: bool = False,
        config: Mapping[str, object] | None = None,
    ) -> list[PartitionLog]:
        logs = []
        for folder in find_topics(path, topic, partition):
            if wants is not None and not wants(partition_of(name_of(folder))):
                continue
            listed = list_topic(folder)
            if not is_compacted:
                listed = _backlog(listed)
            log = log_of(listed)
            for problem in log.problems:
                if not problem.is_note:
                    raise _error(problem)
            logs.append(log)
        return logs

    def count_partitions(self, log: PartitionLog) -> int:
        above = log.folder if log.name.partition < 0 else os.path.dirname(log.folder)
        return len(find_topics(above, log.name.topic))

    def reader(self, plain_bytes: int, extra: Any, *, raw_keys: bool) -> RowReader:
        return _PulsarRowReader(plain_bytes, extra, raw_keys)

    def end_of(self, log: PartitionLog, is_committed: bool) -> int:
        if log.first_unstable_offset is None:
            return log.end_offset
        return min(log.end_offset, log.first_unstable_offset)

    def numbers(self, records: RecordColumns) -> Int64Array:
        ledgers, entries = records.offsets >> ENTRY_BITS, records.offsets & MAX_ENTRY
        indexes = records.orders & ((1 << INDEX_BITS) - 1)
        for column, bits in ((ledgers, _LEDGER), (entries, _ENTRY), (indexes, _INDEX)):
            if len(column) and int(column.max()) >> bits:
                row = int(np.argmax(column >> bits != 0))
                raise _beyond(Position.of(int(records.offsets[row])), int(indexes[row]))
        return (ledgers << _ENTRY | entries) << _INDEX | indexes

    def number_of(self, offset: int) -> int:
        at = Position.of(offset)
        if at.ledger >> _LEDGER or at.entry >> _ENTRY:
            raise _beyond(at, 0)
        return (at.ledger << _ENTRY) + at.entry << _INDEX

    def offset_of(self, number: int) -> int:
        entry = number >> _INDEX
        return Position(entry >> _ENTRY, entry & ((1 << _ENTRY) - 1)).offset

    def identity(self, log: PartitionLog, offset: int) -> str | None:
        """Identify the topic by its last raw ledger that begins below ``offset``.

        The result has the ledger's id and a digest of its first entry. None without such a ledger.

        A cluster never reuses a ledger id, but another cluster may have a ledger with the same id.
        """
        ledgers = _raw_ledgers(log)
        below = [ledger for ledger in ledgers if Position(ledger, 0).offset < offset]
        return _fingerprint(ledgers[max(below)]) if below else None

    def difference(self, log: PartitionLog, offset: int, identity: str) -> str | None:
        """Compare the topic with ``identity``, the result of an earlier read.

        Returns the reason why it is another topic, or None if it may be the same topic. If the
        ledger in ``identity`` is gone, the remaining older ledgers are checked.
        """
        known, ledgers = identity.split(":"), _raw_ledgers(log)
        ledger = int(known[0])
        if ledger in ledgers:
            found = (_fingerprint(ledgers[ledger]) or "").split(":")
            # Digests are only compared if they are of the same entry: an entry that was missing
            # before may be present now.
            is_other = found[:2] == known[:2] and found != known
            return (
                f"ledger {ledger} has other contents than the ledger that was read"
                if is_other
                else None
            )
        first = min(ledgers, default=ledger)
        if first < ledger and (log.checkpoint or 0) <= Position(ledger, 0).offset:
            return (
                f"ledger {ledger}, which was read, no longer exists, but the older ledger {first} "
                "does"
            )
        return None

    def extra_of(self, log: PartitionLog) -> Parts | None:
        compacted = read_compacted(log.folder) if log.checkpoint is not None else None
        return _parts_of(log) if has_parts(log, compacted) else None


ROWS = _PulsarRows()


def _beyond(at: Position, index: int) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"message {at}:{index} is beyond the supported ids: ledgers up to "
        f"{(1 << _LEDGER) - 1}, entries up to {(1 << _ENTRY) - 1}, messages in a batch up to "
        f"{(1 << _INDEX) - 1}",
        remedy="read the topic with lastwrite read, or lastwrite.read in Spark",
    )


def _backlog(topic: TopicFolder) -> TopicFolder:
    """The topic without its compacted ledger: only the raw ledgers.

    Raises:
        CorruptLog: entries are missing that compaction no longer needs.
    """
    for ledger in topic.ledgers:
        if ledger.missing:
            raise CorruptLog(
                f"the log lacks {describe_ids(ledger.id, ledger.missing)}",
                path=ledger.path,
                remedy="read the compacted view, or fetch the topic from a source that has these "
                "entries",
            )
    return replace(topic, manifest=None, compacted=None)


def _error(problem: Problem) -> CorruptLog | UnsupportedFormat:
    kind = UnsupportedFormat if problem.kind is ProblemKind.UNSUPPORTED else CorruptLog
    return kind(problem.message, problem.position, problem.path, problem.remedy)


def _raw_ledgers(log: PartitionLog) -> dict[int, Segment]:
    """The segments of the raw ledgers that still exist, by ledger id."""
    raw = [each for each in log.segments if not is_of_compacted(log, each)]
    return {Position.of(each.base_offset).ledger: each for each in (*log.superseded, *raw)}


def _fingerprint(segment: Segment) -> str | None:
    found = first_entry_of(segment, _FINGERPRINT_BYTES)
    if found is None:
        return None
    entry, data = found
    digest = blake2b(data, digest_size=16).hexdigest()
    return f"{Position.of(segment.base_offset).ledger}:{entry}:{digest}"


@lru_cache(maxsize=4)
def _parts_of(log: PartitionLog) -> Parts:
    """The positions of the chunks of each complete chunked message; see ``ChunkGroups``."""
    groups = ChunkGroups(64 << 20)
    found: dict[int, tuple[PartPlace, ...]] = {}
    limits = Limits()
    for n, segment in enumerate(log.segments):
        until = log.segment_end(n)
        start, end = segment.position, segment.position + segment.size_bytes
        piece = ScanRange.of(
            segment, number=n, place=n, start=start, end=end, end_offset=until, keyed=False
        )
        aborted = aborted_table(log.aborted, segment.base_offset, until)
        format = PulsarFormat(limits.plain_bytes)
        for chunk in BatchWindows(limits).of(format, piece):
            table, entries = chunk.table, format.entries[: len(chunk.table)]
            if len(aborted):
                flag_aborted(table, aborted)
            is_part = (entries["marks"] & (IS_CHUNKED | IS_ENCRYPTED) == IS_CHUNKED) & (
                entries["kind"] != MARKER
            )
            is_part &= table["flags"] & IS_ABORTED == 0
            for row in np.flatnonzero(is_part).tolist():
                whole = groups.add(_without_payload(chunk, row, n))
                if whole is not None:
                    places = _PLACE.iter_unpack(whole.payload)
                    found[int(table["base_offset"][row])] = tuple(
                        PartPlace(log.segments[place], position, size)
                        for place, position, size in places
                    )
    return found


def _without_payload(chunk: BatchWindow, row: int, segment: int) -> Entry:
    """The entry of a chunk, with the chunk's position in the place of its payload."""
    at, size = int(chunk.table["position"][row]), int(chunk.table["size"][row])
    with located("", chunk.shift):
        entry = decode_entry(
            chunk.buffer[at : at + size], *Position.of(int(chunk.table["base_offset"][row]))
        )
    return replace(entry, payload=_PLACE.pack(segment, at + chunk.shift, size))
