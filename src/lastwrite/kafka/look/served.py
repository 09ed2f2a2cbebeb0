"""Answers Fetch and ListOffsets by a broker's rules, with byte ranges of a partition's files.

A consumer at offset 7 of ``[0 1 2][6 7 8][9]`` (three batches, 3 to 5 compacted away) gets bytes
from the second batch on, up to its limit or the segment's end. The last batch may be incomplete. At
offset 4 it gets the same bytes. The first batch is always complete, however low the limit (KIP-74).
Nothing is decoded: bytes are sent as they are stored.

Source: Kafka 4.4 ``UnifiedLog.read``, ``LocalLog.fetchOffsetsByTimestamp``; KIP-74, KIP-98;
measured on 4.4.0.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from lastwrite.errors import CorruptLog, LogError, located
from lastwrite.kafka.format.batch import decode_batch, decode_batch_header, encode_batch
from lastwrite.kafka.format.batch_layout import MAGIC, Batch, BatchHeader
from lastwrite.kafka.format.index import OffsetIndex, decode_offset_index
from lastwrite.kafka.format.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    KafkaFileKind,
    segment_file_name,
)
from lastwrite.kafka.format.text import (
    LeaderEpoch,
    decode_leader_epochs,
    decode_partition_metadata,
)
from lastwrite.kafka.look.problems import whole_batches
from lastwrite.kafka.look.stretch import stretch_of
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot
from lastwrite.kafka.store.index_files import (
    index_path,
    read_offset_index,
    read_time_index,
    side_file,
)
from lastwrite.model.log import PartitionLog, Problem, Segment
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.problems import BATCH_LIMIT_BYTES
from lastwrite.storage.reading import exists, read_small

Read = Callable[[Segment, int, int], bytes]  # (segment, position, number of bytes)

EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -3, -4, -5
EARLIEST_PENDING = -6  # the first offset that is not in a tier yet: KIP-1023

_WINDOW_BYTES = 16 << 10  # bytes read at once to find headers after an index entry
_MOST_INDEXED = 256  # largest number of segments whose index is cached
_PLACE = struct.Struct(">qi")  # base offset, length: the first fields of an entry of any magic
_LENGTH_END = 12
_HEADER_BYTES = 61


class ByteRange(NamedTuple):
    """A byte range of one segment; for old formats, the batches converted from it."""

    segment: Segment
    position: int
    size: int
    # (producer id, first offset) of aborted transactions; None if not requested
    aborted: tuple[tuple[int, int], ...] | None = None
    converted: bytes | None = None  # the converted batches of old formats


class OutOfRange(Exception):
    """Raised for an offset below the log's start, or beyond its end."""


class SegmentMissing(CorruptLog):
    """Raised for an offset in a range whose segment is missing."""


class OffsetLookup(NamedTuple):
    """The offset and time in a ListOffsets response. Both are -1 if no record was found."""

    offset: int = -1
    timestamp_ms: int = -1


class ServedLog:
    """Answers the requests of clients for a listed partition. ``read`` returns bytes of a segment.

    ``lost`` has the first offset and the end offset of each range whose segments are missing.

    Raises:
        LogError: its leader epochs or its topic's id cannot be read.
    """

    def __init__(self, log: PartitionLog, read: Read, lost: Sequence[tuple[int, int]] = ()) -> None:
        self.log = log
        self._lost = lost
        self._read = read
        self._bases = [segment.base_offset for segment in log.segments]
        self._indexes: OrderedDict[int, OffsetIndex] = OrderedDict()
        self.epochs = _epochs_of(log)
        self.topic_id = _topic_id_of(log)

    @property
    def epoch(self) -> int:
        """The last leader epoch of the log."""
        return self.epochs[-1].epoch if self.epochs else 0

    def end(self, is_committed: bool) -> int:
        """The offset at which a consumer must stop. ``is_committed`` means ``read_committed``."""
        return self.log.last_stable_offset if is_committed else self.log.high_watermark

    def epoch_of(self, offset: int) -> int:
        """The leader epoch in which ``offset`` was written."""
        n = bisect_right([each.start_offset for each in self.epochs], offset) - 1
        return self.epochs[n].epoch if n >= 0 else self.epoch

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The last leader epoch up to ``epoch``, and its end offset (KIP-101).

        Returns (-1, -1) if there is no such epoch.
        """
        if epoch > self.epoch or epoch == -1:
            return -1, -1
        n = bisect_right([each.epoch for each in self.epochs], epoch) - 1
        if not self.epochs:
            return epoch, self.log.end_offset
        if n < 0:
            return epoch, self.log.log_start
        following = self.epochs[n + 1 :]
        end = following[0].start_offset if following else self.log.end_offset
        return self.epochs[n].epoch, end

    def producer_entries(self) -> Mapping[tuple[int, int], ProducerEntry]:
        """Producers by id and epoch, from the broker's snapshot at the log's end.

        Empty if there is no snapshot of that end.

        Raises:
            LogError: the snapshot cannot be read.
        """
        name = segment_file_name(self.log.end_offset, KafkaFileKind.SNAPSHOT)
        path = os.path.join(self.log.folder, name)
        if is_address(path) or not exists(path):
            return {}
        with located(path):
            entries = decode_snapshot(read_small(path))
        return {(each.producer_id, each.producer_epoch): each for each in entries}

    # ------------------------------------------------------------------ by offset

    def stretch(
        self, offset: int, most_bytes: int, is_committed: bool, is_first: bool
    ) -> ByteRange | None:
        """The byte range for a fetch at ``offset``. None if there is nothing to read yet.

        Args:
            most_bytes: the limit of the range's size.
            is_first: return the first batch completely, even if it is larger than the limit.
            is_committed: only offsets below the last stable offset, with the aborted transactions
                among them.

        Raises:
            OutOfRange: the offset is outside the log.
            CorruptLog: the position has no batch, or the offset is lost.
        """
        log, end = self.log, self.end(is_committed)
        if not log.log_start <= offset <= max(log.high_watermark, log.log_start):
            raise OutOfRange
        if offset >= end:
            return None
        for begin, stop in self._lost:
            if begin <= offset < stop:
                words = f"offset {offset} is in no segment"
                raise SegmentMissing(words, path=log.path_of(stop))
        first = max(bisect_right(self._bases, offset) - 1, 0)
        for n in range(first, len(log.segments)):
            segment = log.segments[n]
            if segment.base_offset >= end:
                return None
            place = self._find_batch(n, offset)
            if place is None:
                continue
            position, header = place
            stop = segment.size_bytes
            if log.segment_end(n) > end:
                bound = self._find_batch(n, end)
                stop = stop if bound is None else bound[0]
            size = min(most_bytes, stop - position)
            if is_first:
                size = max(size, header.size_bytes)
            if stop <= position or size <= 0:
                return None
            aborted = self._aborted(n, offset, position + size) if is_committed else None
            if header.magic < MAGIC:
                return self._remade(segment, position, min(size, stop - position))
            return ByteRange(segment, position, size, aborted)
        return None

    def _find_batch(self, n: int, offset: int) -> tuple[int, BatchHeader] | None:
        """The position and header of the first batch that ends at ``offset`` or later."""
        segment = self.log.segments[n]
        start = self._index(n).lookup(offset)[1] if offset > segment.base_offset else 0
        for position, header in self._headers(segment, start):
            if position == start and start and header.base_offset > offset:
                return self._walk(segment, offset)  # the index is wrong
            if header.last_offset >= offset:
                return position, header
        return None

    def _walk(self, segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
        for position, header in self._headers(segment, 0):
            if header.last_offset >= offset:
                return position, header
        return None

    def _headers(self, segment: Segment, start: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the batch headers of a segment from byte ``start`` on.

        Raises:
            CorruptLog: the bytes are not a batch.
        """
        position, begin, window = start, 0, b""
        while position < segment.size_bytes:
            if position + _HEADER_BYTES > begin + len(window):
                begin = position
                window = self._read(segment, begin, min(_WINDOW_BYTES, segment.size_bytes - begin))
            try:  # a ``with`` statement would take as long as the decoding
                header = decode_batch_header(window, position - begin)
            except LogError as error:
                raise error.located(segment.path, begin) from error
            if header.size_bytes > segment.size_bytes - position:
                return
            yield position, header
            position += header.size_bytes

    def _index(self, n: int) -> OffsetIndex:
        found = self._indexes.get(n)
        if found is None:
            found = self._indexes[n] = _index_of(self.log.segments[n])
            if len(self._indexes) > _MOST_INDEXED:
                self._indexes.popitem(last=False)
        return found

    def _aborted(self, n: int, offset: int, position: int) -> tuple[tuple[int, int], ...]:
        """The aborted transactions with data from ``offset`` up to the byte ``position``.

        No such transaction is missing. The result may contain others, which a client ignores.
        """
        index = self._index(n)
        behind = int(index.positions.searchsorted(position, side="left"))
        until = int(index.offsets[behind]) if behind < len(index) else self.log.segment_end(n)
        return tuple(
            (entry.producer_id, entry.first_offset)
            for entry in self.log.aborted
            if entry.last_offset >= offset and entry.first_offset < until
        )

    def _remade(self, segment: Segment, position: int, size: int) -> ByteRange:
        """Complete entries of magic 0 and 1, converted to batches of magic 2 for newer clients."""
        made: list[bytes] = []
        data = self._read(segment, position, size)
        at = 0
        while at + _LENGTH_END <= len(data):
            _, length = _PLACE.unpack_from(data, at)
            if at + _LENGTH_END + length > len(data):
                break
            with located(segment.path, position):
                batch = decode_batch(data, at, BATCH_LIMIT_BYTES)
            at += _LENGTH_END + length
            if batch.records:
                made.append(
                    encode_batch(
                        batch.records,
                        codec=batch.attributes.codec,
                        append_time=batch.attributes.append_time,
                    )
                )
        content = b"".join(made)
        return ByteRange(segment, position, len(content), converted=content)

    # ------------------------------------------------------------------ by time

    def offset_at(self, timestamp: int, is_committed: bool) -> OffsetLookup:
        """The answer of ListOffsets for a time in ms, or for one of its negative constants.

        Raises:
            CorruptLog: a batch on the way cannot be read.
        """
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return OffsetLookup(self.log.log_start)
        if timestamp == LATEST:
            return OffsetLookup(self.end(is_committed))
        if timestamp == MAX_TIMESTAMP:
            return self._newest()
        return self._since(timestamp, self.end(is_committed)) if timestamp >= 0 else OffsetLookup()

    def _since(self, timestamp: int, end: int) -> OffsetLookup:
        """The offset and time of the first record with a timestamp of at least ``timestamp``."""
        for n, segment in enumerate(self.log.segments):
            is_last = n + 1 == len(self.log.segments)
            if segment.largest_timestamp_ms < timestamp and not is_last:
                continue
            for position, header in self._headers(segment, self._before(n, timestamp)):
                if header.base_offset >= end:
                    return OffsetLookup()
                if header.magic == MAGIC and header.max_timestamp_ms < timestamp:
                    continue
                for record in self._batch(segment, position, header).records:
                    is_there = self.log.log_start <= record.offset < end
                    if is_there and record.timestamp_ms >= timestamp:
                        return OffsetLookup(record.offset, record.timestamp_ms)
        return OffsetLookup()

    def _newest(self) -> OffsetLookup:
        """The offset and time of the first record that has the log's largest timestamp."""
        best = OffsetLookup()
        newest = max((each.largest_timestamp_ms for each in self.log.segments), default=-1)
        for n, segment in enumerate(self.log.segments):
            is_last = n + 1 == len(self.log.segments)
            if segment.largest_timestamp_ms < newest and not is_last:
                continue
            start = self._before(n, newest)
            for position, header in self._headers(segment, start):
                if header.magic == MAGIC and header.max_timestamp_ms <= best.timestamp_ms:
                    continue
                for record in self._batch(segment, position, header).records:
                    is_there = self.log.log_start <= record.offset < self.log.high_watermark
                    if is_there and record.timestamp_ms > best.timestamp_ms:
                        best = OffsetLookup(record.offset, record.timestamp_ms)
        return best

    def _before(self, n: int, timestamp: int) -> int:
        """A position in a segment. All records before it have timestamps below ``timestamp``."""
        segment = self.log.segments[n]
        with suppress(LogError):
            times, offsets = read_time_index(segment)
            row = int(times.searchsorted(timestamp, side="left")) - 1
            if row >= 0 and int(offsets[row]) > segment.base_offset:
                place = self._find_batch(n, int(offsets[row]))
                return 0 if place is None else place[0]
        return 0

    def _batch(self, segment: Segment, position: int, header: BatchHeader) -> Batch:
        data = self._read(segment, position, header.size_bytes)
        with located(segment.path, position):
            return decode_batch(data, 0, BATCH_LIMIT_BYTES)


def stretch_from(segment: Segment, offset: int, end: int) -> Segment | None:
    """The part of a segment from the batch with ``offset`` on. None if there is no such batch.

    ``end`` is the segment's end offset.

    Raises:
        CorruptLog: the bytes are not a batch.
        CommitConflict: the segment was deleted or replaced.
    """
    start, _ = stretch_of(segment, offset, end, end)

    def reject(problem: Problem) -> None:
        raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)

    for position, header, _ in whole_batches(segment, reject, start):
        if header.next_offset > offset:
            size = segment.size_bytes - position
            return replace(segment, base_offset=offset, position=position, size_bytes=size)
    return None


def _index_of(segment: Segment) -> OffsetIndex:
    """The segment's offset index. Empty if a crash left no usable index."""
    path = index_path(segment.path)
    with suppress(LogError, ValueError):  # ValueError: a tier's file is not named by an offset
        if segment.position:
            offsets, positions = read_offset_index(segment)
            inside = positions >= segment.position
            return OffsetIndex(
                segment.base_offset, offsets[inside], positions[inside] - segment.position
            )
    with suppress(LogError):
        if segment.is_indexed and not segment.position and exists(path):
            return decode_offset_index(read_small(path), segment.base_offset)
    return decode_offset_index(b"", segment.base_offset)


def _epochs_of(log: PartitionLog) -> tuple[LeaderEpoch, ...]:
    content = side_file(log.folder, LEADER_EPOCHS)
    return () if content is None else decode_leader_epochs(content)


def _topic_id_of(log: PartitionLog) -> str | None:
    content = side_file(log.folder, PARTITION_METADATA)
    return None if content is None else decode_partition_metadata(content)
