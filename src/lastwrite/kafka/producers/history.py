"""Producers and transactions of a Kafka log, read when compaction is planned.

A broker writes a snapshot of its producers at the base of each new segment, and at the log's end
when it shuts down. So the state at the log's end is the newest snapshot plus the batches after it.
After a clean shutdown there are no such batches; after a crash there is up to a segment of them.
Only headers and markers are read.

A transaction whose marker is not replicated counts as open. If the newest snapshot was written
after that marker, it does not contain the transaction. The walk then begins at a snapshot below the
high watermark.

Source: Kafka 4.4 ``UnifiedLog.rebuildProducerState``, ``ProducerStateManager``;
docs/formats/kafka.md, "Indexes" and "Producer snapshot"; docs/formats/kafka-cleaning.md, "Loading a
log".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import NamedTuple

import numpy as np

from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.kafka.format import index
from lastwrite.kafka.format.batch import ControlType, decode_batch, decode_control_record
from lastwrite.kafka.format.batch_layout import BATCH_HEADER, BatchHeader
from lastwrite.kafka.format.index import decode_transaction_index
from lastwrite.kafka.producers import headers
from lastwrite.kafka.producers.snapshot import ProducerEntry
from lastwrite.kafka.rules.producers import ProducerStates
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import AbortedTransaction, PartitionLog, ProducerState, Segment
from lastwrite.storage.files import to_log_error
from lastwrite.storage.reading import reader_of

_VERSION = 0  # version of a transaction index entry
_WINDOW_BYTES = 256 << 10
_NARROW_BYTES = 4 << 10  # bytes per read if batches are large, because only headers are needed
_ROWS = 4096


class ProducerHistory(NamedTuple):
    """The producers and transactions of a log, computed from its batches."""

    producers: tuple[ProducerState, ...]
    aborted: tuple[AbortedTransaction, ...]  # ascending by the marker's offset
    # (producer id, first offset) of open transactions, ascending by first offset
    open: tuple[tuple[int, int], ...]
    # (producer id, offset) of all ABORT markers, also of transactions without remaining data
    aborts: frozenset[tuple[int, int]]


class ProducerBatch(NamedTuple):
    """The header fields of a batch that has a producer id."""

    kind: int  # a kind of ``kafka.producers.headers``
    producer_id: int
    epoch: int
    base_offset: int
    last_offset: int
    timestamp_ms: int
    # last sequence number of a data batch; -1 unless from ``sightings_in``
    last_sequence: int = -1
    # coordinator epoch of a marker; -1 unless from ``sightings_in``
    coordinator_epoch: int = -1


def read_producers(
    segments: Sequence[Segment],
    snapshots: Sequence[int],
    read_snapshot: Callable[[int], tuple[ProducerEntry, ...]],
    log_start: int,
    high_watermark: int,
    end_offset: int,
    bare_from: int | None = None,
) -> tuple[tuple[ProducerState, ...], int | None]:
    """The producers at a log's end, by id, and the first unstable offset.

    The first unstable offset is the first offset of the earliest transaction that is open or whose
    marker is not replicated. None if there is no such transaction.

    ``snapshots`` are the offsets of the snapshot files; ``read_snapshot`` decodes one. As in a
    broker, a snapshot is skipped if it does not decode, or is at or below ``log_start`` or above
    ``end_offset``. Without a snapshot the walk begins at ``log_start``. The walk ends at the first
    damage. No batch at or after ``bare_from`` has a producer; None means unknown.

    Raises:
        LogError: a file cannot be read.
    """
    useful = [
        offset for offset in sorted(snapshots, reverse=True) if log_start < offset <= end_offset
    ]
    newest, known = _newest(useful, read_snapshot, log_start)
    states = ProducerStates(known, high_watermark)
    if bare_from is not None:
        end_offset = min(end_offset, bare_from)
    if newest <= high_watermark:
        feed(states, _sightings(segments, newest, end_offset))
        return states.producers, _not_below(states.first_unstable_offset, log_start)
    # Two snapshots are used: the newest for the producers, and an older one for the transactions
    # that count as open. Neither has both.
    older, known = _newest(
        [offset for offset in useful if offset <= high_watermark], read_snapshot, log_start
    )
    replicated = ProducerStates(known, high_watermark)
    for sighting in _sightings(segments, older, end_offset):
        feed(replicated, (sighting,))
        if sighting.last_offset >= newest:
            feed(states, (sighting,))
    unstable = [
        s.first_unstable_offset for s in (states, replicated) if s.first_unstable_offset is not None
    ]
    return states.producers, _not_below(min(unstable, default=None), log_start)


def read_history(log: PartitionLog) -> ProducerHistory:
    """Producers and transactions from the batches of ``log``, without snapshots and indexes.

    If compaction removed the first batches of an aborted transaction, its first offset is later
    than in the transaction index. If compaction removed all its batches, the transaction is
    missing. For readers the result is the same.

    Raises:
        LogError: a segment cannot be read.
    """
    states = ProducerStates()
    aborts: set[tuple[int, int]] = set()
    if log.segments:
        for sighting in _sightings(log.segments, log.segments[0].base_offset, log.end_offset):
            feed(states, (sighting,))
            if sighting.kind == headers.ABORT:
                aborts.add((sighting.producer_id, sighting.last_offset))
    return ProducerHistory(states.producers, states.aborted, states.open, frozenset(aborts))


def sightings_in(data: ByteArray, floor: int, end_offset: int) -> Iterator[ProducerBatch]:
    """The batches in ``data`` that have a producer, up to ``end_offset``.

    ``floor`` is the smallest valid base offset of the first batch.

    Raises:
        CorruptLog: the bytes are not complete batches.
    """
    rows, at = np.empty((_ROWS, headers.COLUMNS), dtype=np.int64), 0
    while at < len(data):
        left = data[at:]
        filled, done, floor, _, why = headers.walk_headers(
            left, len(left), floor, 0, end_offset, rows
        )
        for kind, *fields, place in rows[:filled].tolist():
            if kind == headers.PACKED:
                kind = _packed_marker(left[place:])
            if kind is not None:
                yield ProducerBatch._make((kind, *fields, *_more(left[place:], kind)))
        if why == headers.END:
            return
        if why != headers.FULL:
            raise CorruptLog("the scan for producers stopped before the last batch", at + int(done))
        at += int(done)


def _more(batch: ByteArray, kind: int) -> tuple[int, int]:
    """Returns (last sequence number of a data batch, coordinator epoch of a marker).

    The number that does not apply to the batch is -1.
    """
    header = BATCH_HEADER.unpack_from(batch)
    found = BatchHeader._make(header)
    if kind <= headers.TRANSACTIONAL:
        return (found.base_sequence + found.last_offset_delta) & 0x7FFFFFFF, -1
    record = decode_batch(batch[: found.batch_length + 12].tobytes(), 0).records[0]
    value = record.value or b""
    return -1, int.from_bytes(value[2:6], "big", signed=True) if len(value) >= 6 else -1


def entry_after(before: ProducerEntry | None, batch: ProducerBatch) -> ProducerEntry:
    """The snapshot entry of a producer after ``batch``.

    ``before`` is the producer's entry before the batch. None if it had no entry.
    """
    is_other = before is None or before.producer_epoch != batch.epoch
    open_from = -1 if before is None else before.current_txn_first_offset
    coordinator_epoch = -1 if before is None else before.coordinator_epoch
    if batch.kind > headers.TRANSACTIONAL:  # a marker ends the transaction and may begin an epoch
        last = (-1, -1, 0) if is_other or before is None else before[2:5]
        return ProducerEntry(
            batch.producer_id, batch.epoch, *last, batch.timestamp_ms, batch.coordinator_epoch, -1
        )
    if batch.kind == headers.TRANSACTIONAL and open_from < 0:
        open_from = batch.base_offset
    return ProducerEntry(
        batch.producer_id,
        batch.epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.last_offset - batch.base_offset,
        batch.timestamp_ms,
        coordinator_epoch,
        open_from,
    )


def feed(states: ProducerStates, sightings: Iterable[ProducerBatch]) -> None:
    """Add the batches to ``states``, in order."""
    for kind, producer_id, epoch, base_offset, last_offset, timestamp_ms, *_ in sightings:
        if kind <= headers.TRANSACTIONAL:
            states.data(
                producer_id,
                epoch,
                base_offset,
                last_offset,
                timestamp_ms,
                kind == headers.TRANSACTIONAL,
            )
        else:
            states.marker(producer_id, epoch, base_offset, timestamp_ms, kind == headers.ABORT)


def decode_aborted(data: bytes, base_offset: int) -> tuple[AbortedTransaction, ...]:
    """Decode the transaction index of the segment at ``base_offset``. Ignores a partial last entry.

    Raises:
        CorruptLog: a version is not 0, or the offsets of the markers do not rise from
            ``base_offset``.
    """
    try:
        entries = decode_transaction_index(data, base_offset)
    except LogError as error:  # an unknown version is damage too: Kafka does not load such a log
        raise CorruptLog(error.problem, error.at, error.path, error.remedy) from error
    return tuple(
        AbortedTransaction(e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in entries
    )


def encode_aborted(aborted: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of a transaction index. Write no file if there are no entries."""
    return index.encode_transaction_index(
        [index.AbortedEntry(_VERSION, *astuple(entry)) for entry in aborted]
    )


def _newest(
    offsets: Iterable[int],
    read_snapshot: Callable[[int], tuple[ProducerEntry, ...]],
    log_start: int,
) -> tuple[int, tuple[ProducerState, ...]]:
    """The offset and the producers of the first snapshot that decodes.

    If no snapshot decodes, returns ``log_start`` and no producers.
    """
    for offset in offsets:
        try:
            entries = read_snapshot(offset)
        except (CorruptLog, UnsupportedFormat):
            continue
        return offset, tuple(
            ProducerState(
                e.producer_id,
                e.producer_epoch,
                e.last_offset,
                e.timestamp_ms,
                e.current_txn_first_offset,
            )
            for e in entries
        )
    return log_start, ()


def _not_below(offset: int | None, log_start: int) -> int | None:
    return None if offset is None else max(offset, log_start)


# ---------------------------------------------------------------------- the walk


def _sightings(
    segments: Sequence[Segment], from_offset: int, end_offset: int
) -> Iterator[ProducerBatch]:
    """The batches with a producer and a last offset in [``from_offset``, ``end_offset``).

    Stops at the first damage.
    """
    if from_offset >= end_offset:
        return
    rows = np.empty((_ROWS, headers.COLUMNS), dtype=np.int64)
    for segment, after in zip(segments, [*segments[1:], None], strict=True):
        if after is not None and after.base_offset <= from_offset:
            continue
        if segment.base_offset >= end_offset or not (
            yield from _in_segment(segment, from_offset, end_offset, rows)
        ):
            return


def _in_segment(
    segment: Segment, from_offset: int, end_offset: int, rows: Int64Array
) -> Generator[ProducerBatch, None, bool]:
    """Yield one segment's batches that have a producer.

    Returns whether the walk reached the file's end.
    """
    position, floor, window = 0, segment.base_offset, _WINDOW_BYTES
    room = np.empty(_WINDOW_BYTES, dtype=np.uint8)
    try:
        reader = reader_of(segment)
    except OSError as error:
        raise to_log_error(error, segment.path, "read the segment") from error
    try:
        while position < segment.size_bytes:
            data = room[: min(window, segment.size_bytes - position)]
            reader.read_into(data, position)
            filled, at, floor, seen, why = headers.walk_headers(
                data, segment.size_bytes - position, floor, from_offset, end_offset, rows
            )
            for kind, *fields, place in rows[:filled].tolist():
                if kind == headers.PACKED:
                    kind = _packed_marker(data[place:])
                if kind is not None:
                    yield ProducerBatch(kind, *fields)
            if why in (headers.END, headers.DAMAGED) or (at == 0 and window == _WINDOW_BYTES):
                return bool(position + at == segment.size_bytes)
            window = (
                _NARROW_BYTES if at > seen * _NARROW_BYTES and at > len(data) else _WINDOW_BYTES
            )
            position += at
    except CorruptLog:
        return False
    except OSError as error:
        raise to_log_error(error, segment.path, "read the segment") from error
    finally:
        reader.close()
    return True


def _packed_marker(data: ByteArray) -> int | None:
    """The kind of a compressed control batch. Brokers read such batches but do not write them."""
    records = decode_batch(data.tobytes(), 0).records
    kind = decode_control_record(records[0]).type if records else None
    if kind == ControlType.ABORT:
        return headers.ABORT
    return headers.COMMIT if kind == ControlType.COMMIT else None
