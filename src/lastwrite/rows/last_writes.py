"""An index of the last writes of one topic: record positions in the logs of its partitions.

Keys can be looked up, all last writes can be iterated, and the index can follow the logs.

A log changes in three ways. If it *grows*, the new records are scanned. If compaction *replaces*
segments, their entries leave the index, and the new segments are scanned up to the old end. A key
without an entry after the scan was deleted, and compaction removed the delete before the index read
it. If the log *moves*, changes may be missing, which is an error: the log's start is now above the
records read so far, or another log has the name.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import numpy as np

from lastwrite.encoding.fingerprint import SECRET_WORDS, fingerprint, secret_from
from lastwrite.errors import CommitConflict, LogError
from lastwrite.model.columns import RecordColumns
from lastwrite.model.log import PartitionLog, Segment
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits
from lastwrite.rows.places import (
    PlaceIndex,
    PlaceIndexBuilder,
    PlacesInOrder,
    RecordPointer,
    SegmentPartitions,
    SegmentSlice,
)
from lastwrite.rows.reading import RowUnit, SegmentRecordReader, add_places_of, row_units
from lastwrite.rows.system import RowSystem
from lastwrite.storage.file_state import FileState, checksum_of_ends, state_of
from lastwrite.storage.machine import core_count
from lastwrite.storage.objects.address import is_address

_CHUNK_SHARE = 16  # 1/16 of the memory is for the threads' decompressed chunks
_USUAL = ("key", "value")
_ANEW = "create the table again"
_Name: TypeAlias = tuple[int, str, int, str]  # partition, path, position, etag of a segment
_States: TypeAlias = list[tuple[PartitionLog, list[FileState | None]]]


class MissedDelete(NamedTuple):
    """A deleted key.

    The reader never saw its delete, because compaction removed the delete first.
    """

    partition: int
    key: bytes


class _ListedSegment(NamedTuple):
    """A segment of a partition, as last listed.

    Only the last segment of a log has a checksum, because only the last one grows.
    """

    log: PartitionLog
    segment: Segment
    reader: SegmentRecordReader
    state: FileState | None  # None if the segment is an object, or its file is missing
    checksum: int | None

    def is_same(self, later: Segment, state: FileState | None) -> bool:
        """Whether ``later``, a segment with the same name, begins with the records of this one.

        True if size, inode and change time are the same. A file that grew must also have the same
        first and last batch as before, because another file may have got its inode.
        """
        was = self.segment
        if state == self.state and was.size_bytes == later.size_bytes:
            return True
        return (
            self.checksum is not None
            and state is not None
            and was.size_bytes <= later.size_bytes
            and checksum_of_ends(was.path, was.position, was.size_bytes, self.state)
            == self.checksum
        )


class LastWrites:
    """An index of the last writes of one topic.

    Attributes:
        ends: the first offset that was not read, by partition.
        scanned_bytes, scanned_records: log bytes and records that the last scan read.

    Args:
        since: the first offset to read, by partition. None means the entire logs.
        progress: receives the progress of scans. An exception that it raises ends the scan.
        has_index: whether to build an index for ``record`` and ``catch_up``. Without an index, the
            last writes can only be iterated.
    """

    def __init__(
        self,
        system: RowSystem,
        logs: Sequence[PartitionLog],
        memory_bytes: int,
        raw_keys: bool = False,
        since: Mapping[int, int] | None = None,
        progress: Progress | None = None,
        has_index: bool = True,
    ) -> None:
        self.system = system
        self._progress = progress or NoProgress()
        self.scanned_bytes = self.scanned_records = 0
        self.logs = tuple(logs)
        self.ends: dict[int, int] = {}
        self._identities: dict[int, str | None] = {}
        self._raw_keys = raw_keys
        self._memory = memory_bytes
        self._secret = secret_from(secrets.token_bytes(8 * SECRET_WORDS))
        self._threads = core_count()
        share = memory_bytes // _CHUNK_SHARE // self._threads
        self.limits = Limits(
            chunk_bytes=min(1 << 20, max(1 << 18, share // 4)),
            plain_bytes=max(4 << 20, memory_bytes // 8),
            block_entries=max(1 << 14, min(1 << 19, share // 40)),
        )
        self._segments: dict[int, _ListedSegment] = {}  # segment number to segment
        self._next_number = 0
        self._unseen: list[MissedDelete] | None = None
        self._sources = SegmentPartitions.of([])
        self._writes: PlaceIndex | PlacesInOrder
        self._list(self._states(self.logs), {})
        given = since or {}
        wanted = [
            (number, given.get(each.log.name.partition, 0), None)
            for number, each in self._segments.items()
        ]
        self.ends = {log.name.partition: system.end_of(log, True) for log in logs}
        if has_index:
            self._identities = self._identities_of(self.logs)
        self._writes = self._scanned(wanted) if has_index else self._in_order(wanted)

    def __len__(self) -> int:
        return len(self._writes)

    @property
    def _index(self) -> PlaceIndex:
        assert isinstance(self._writes, PlaceIndex), "without an index no key is looked for"
        return self._writes

    def _identities_of(self, logs: Sequence[PartitionLog]) -> dict[int, str | None]:
        system = self.system
        return {log.name.partition: system.identity(log, system.end_of(log, True)) for log in logs}

    # ------------------------------------------------------------------ segments

    def _states(self, logs: Sequence[PartitionLog]) -> _States:
        return [(log, [_state_of(segment) for segment in log.segments]) for log in logs]

    def _list(self, states: _States, known: Mapping[_Name, int]) -> None:
        """Assign a number to each segment of the logs. Segments in ``known`` keep their numbers."""
        listed: dict[int, _ListedSegment] = {}
        places: dict[int, tuple[int, int]] = {}
        for log, of_segments in states:
            reader = SegmentRecordReader(
                self.system.reader(
                    self.limits.plain_bytes, self.system.extra_of(log), raw_keys=self._raw_keys
                ),
                self.limits.plain_bytes,
            )
            for rank, segment in enumerate(log.segments):
                number = known.get(_name_of(log, segment), -1)
                if number < 0:
                    number, self._next_number = self._next_number, self._next_number + 1
                state, checksum = of_segments[rank], None
                if state is not None and segment is log.segments[-1]:
                    checksum = checksum_of_ends(
                        segment.path, segment.position, segment.size_bytes, state
                    )
                listed[number] = _ListedSegment(log, segment, reader, state, checksum)
                places[number] = log.name.partition, rank
        self.logs, self._segments = tuple(log for log, _ in states), listed
        # Removed segments keep their partition: the old index still refers to them.
        was = self._sources.partitions.tolist()
        of = [
            places.get(number, (was[number] if number < len(was) else -1, -1))
            for number in range(self._next_number)
        ]
        self._sources = SegmentPartitions.of([each[0] for each in of], [each[1] for each in of])

    def _units(
        self, columns: Sequence[str], wanted: Sequence[tuple[int, int, int | None]]
    ) -> Iterator[tuple[RowUnit, int]]:
        """Yield units that cover the requested segments, in order, each with its segment's number.
        An element of ``wanted`` is a segment's number, the first offset and the exclusive end.
        """
        by_place = {}
        for number, first, end in wanted:
            log = self._segments[number].log
            by_place[log.name.partition, first, end] = log
        asked = {number: (first, end) for number, first, end in wanted}
        numbers = {
            (each.log.name.partition, each.segment.path, each.segment.position): number
            for number, each in self._segments.items()
        }
        for (partition, first, end), log in by_place.items():
            units = row_units(self.system, log, columns, is_committed=True, first=first, end=end)
            for unit in units:
                segment = log.segments[unit.piece.segment]
                number = numbers[partition, segment.path, segment.position]
                if asked.get(number) == (first, end):
                    yield unit._replace(raw_keys=self._raw_keys), number

    def _scan(
        self, builder: PlaceIndexBuilder, wanted: Sequence[tuple[int, int, int | None]]
    ) -> None:
        units = list(self._units(_USUAL, wanted))
        self.scanned_bytes = sum(unit.piece.end - unit.piece.start for unit, _ in units)
        if not units:
            return
        self._progress.stage("scan", self.scanned_bytes)
        with ThreadPoolExecutor(self._threads, "table") as pool:
            work = [
                pool.submit(add_places_of, unit, number, self._secret, self.limits, builder.add)
                for unit, number in units
            ]
            try:
                for (unit, _), each in zip(units, work, strict=True):
                    each.result()
                    self._progress.advance(unit.piece.end - unit.piece.start)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _scanned(
        self, wanted: Sequence[tuple[int, int, int | None]], kept: PlaceIndex | None = None
    ) -> PlaceIndex:
        """An index of the last writes in these ranges of segments.

        The index also has the entries of ``kept`` whose segments still exist.
        """
        builder = PlaceIndexBuilder(self._sources, self._memory // 4)
        try:
            if kept is not None:
                is_there = np.zeros(self._next_number, dtype=np.bool_)
                is_there[list(self._segments)] = True
                for block in kept.blocks():
                    builder.add(block.take(np.flatnonzero(is_there[block.segments])))
            self._scan(builder, wanted)
            self.scanned_records = builder.rows
            return builder.finish()
        except BaseException:
            builder.abandon()
            raise

    def _in_order(self, wanted: Sequence[tuple[int, int, int | None]]) -> PlacesInOrder:
        """The last writes in these ranges of segments, for iteration only, not for lookups."""
        builder = PlaceIndexBuilder(self._sources, self._memory // 4)
        try:
            self._scan(builder, wanted)
            self.scanned_records = builder.rows
            return builder.finish_in_order()
        except BaseException:
            builder.abandon()
            raise

    # ------------------------------------------------------------------ lookups

    @property
    def has_moved_keys(self) -> bool:
        """Whether a key occurred in several partitions."""
        return self._writes.has_moved_keys

    def last_deletes(self) -> dict[int, int]:
        """The latest timestamp, in ms, of a delete that is its key's last write, by partition.

        Partitions without such a delete are left out.
        """
        return self._writes.last_deletes()

    def value(self, key: bytes) -> bytes | None:
        """The value of a key's last write, or None if the key is unknown or deleted.

        Raises the same errors as ``record``.
        """
        found = self.record(key)
        return None if found is None else found[0]

    def record(
        self, key: bytes, *, has_headers: bool = False
    ) -> tuple[bytes, RecordColumns] | None:
        """The value of a key's last write, and the record as columns, with headers if requested.
        Returns None if the key is unknown or deleted.

        Raises:
            CommitConflict: the record is no longer at its position.
        """
        place = self._find(key)
        if place is None:
            return None
        _, segment, reader, *_ = self._segments[place.segment]
        found = reader.record(segment, place.position, place.order, has_headers=has_headers)
        if found is None or found[1] is None:
            raise CommitConflict(
                "the record is no longer at its position", place.position, segment.path
            )
        if found[0] == key:
            return found[1], found[2]
        if found[0] is None or self._lanes_of(found[0]) != self._lanes_of(key):
            raise CommitConflict(
                "another record is at the position of this record", place.position, segment.path
            )
        return None  # another key has the same fingerprint

    def _find(self, key: bytes) -> RecordPointer | None:
        return self._index.find(*self._lanes_of(key))

    def _lanes_of(self, key: bytes) -> tuple[int, int]:
        """The two numbers of a key's fingerprint by which the index finds the key."""
        one, two = fingerprint(np.frombuffer(key, np.uint8), 0, len(key), self._secret)
        return int(one), int(two) >> 32

    def units(self, columns: Sequence[str]) -> Iterator[RowUnit]:
        """Yield units of work that cover all last writes, in order.

        A unit lists its last writes by their order in the segment, so that another process can
        read these records.
        """
        return self._select(columns, dict.fromkeys(self.ends, 0), has_deletes=False)

    def changes(self, columns: Sequence[str], since: Mapping[int, int]) -> Iterator[RowUnit]:
        """Yield units for last writes and deletes from the offsets ``since`` on; see ``units``."""
        return self._select(columns, since, has_deletes=True)

    def _select(
        self, columns: Sequence[str], since: Mapping[int, int], *, has_deletes: bool
    ) -> Iterator[RowUnit]:
        wanted = []
        for number, each in self._segments.items():
            partition = each.log.name.partition
            if since[partition] < self.ends[partition]:
                wanted.append((number, since[partition], self.ends[partition]))
        for unit, number in self._units(columns, wanted):
            stretch = SegmentSlice(number, unit.piece.start, unit.piece.end)
            orders = self._writes.orders_in(stretch, has_deletes=has_deletes)
            if len(orders):
                yield unit.limit_to(orders)

    # ------------------------------------------------------------------ updates

    def open_all(self) -> None:
        """Open the files of all segments, up to the process's limit of open files.

        While a file is open, it can be read even after compaction has deleted it, and no new file
        gets its inode.
        """
        for _, segment, reader, *_ in self._segments.values():
            if segment.size_bytes and not is_address(segment.path):
                try:
                    reader.open(segment)
                except CommitConflict:  # compaction has replaced the segment
                    continue
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    return

    def catch_up(self, logs: Sequence[PartitionLog]) -> None:
        """Update the index to a new listing of the logs.

        If that fails, the index is unchanged, and the caller may try again with a newer listing.

        Raises:
            CommitConflict: changes are missing, the topic is another one of the same name, or a
                segment was replaced while it was read.
        """
        was = self.logs, self._segments, self._sources, self.ends, self._identities
        try:
            self._catch_up(logs)
        except BaseException:
            now = self._segments
            self.logs, self._segments, self._sources, self.ends, self._identities = was
            if now is not self._segments:
                self._close_readers(now)
            raise

    def check_missed_deletes(self) -> list[MissedDelete] | None:
        """The keys whose missed deletes were detected since the last call.

        Returns None if the logs have not changed since the last call.
        """
        found, self._unseen = self._unseen, None
        if found is None:
            return None
        # Keys that were written again since then are left out.
        return [each for each in found if self._find(each.key) is None]

    def _catch_up(self, logs: Sequence[PartitionLog]) -> None:
        before = self._segments
        states = self._states(logs)
        known = {_name_of(each.log, each.segment): n for n, each in before.items()}
        kept: dict[_Name, int] = {}
        for log, of_segments in states:
            for segment, state in zip(log.segments, of_segments, strict=True):
                name = _name_of(log, segment)
                number = known.get(name, -1)
                if number >= 0 and before[number].is_same(segment, state):
                    kept[name] = number
        gone = before.keys() - kept.values()
        ends = {log.name.partition: self.system.end_of(log, True) for log in logs}
        if not gone and ends == self.ends and len(kept) == sum(len(log.segments) for log in logs):
            return
        self._check_moves(logs)
        self._identities = self._identities_of(logs)
        was_ends, was_index = self.ends, self._index
        self._list(states, kept)
        wanted: list[tuple[int, int, int | None]] = []
        for number, each in self._segments.items():
            partition = each.log.name.partition
            start = was_ends.get(partition, 0) if number in before else 0
            if start < ends[partition]:
                wanted.append((number, start, ends[partition]))
        self.ends = ends
        if not gone and self._has_added(wanted):
            self._unseen = self._unseen or []
            self._close_readers(before)
            return
        index = self._scanned(wanted, was_index)
        try:
            unseen = (
                list(_unseen(was_index, index, before, gone, self._sources, self._lanes_of))
                if gone
                else []
            )
        except BaseException:
            index.close()
            raise
        self._writes = index
        self._unseen = [*(self._unseen or []), *unseen]
        was_index.close()
        self._close_readers(before)

    def _has_added(self, wanted: Sequence[tuple[int, int, int | None]]) -> bool:
        builder = PlaceIndexBuilder(self._sources, self._memory // 4)
        try:
            self._scan(builder, wanted)
            later = builder.finish()
        except BaseException:
            builder.abandon()
            raise
        try:
            (*blocks,) = later.blocks()
            return all(self._index.take_in(block, self._sources) for block in blocks)
        finally:
            later.close()

    def _check_moves(self, logs: Sequence[PartitionLog]) -> None:
        found = {log.name.partition: log for log in logs}
        for was in self.logs:
            log = found.get(was.name.partition)
            if log is None:
                raise CommitConflict(
                    "the topic no longer has this partition", path=was.folder, remedy=_ANEW
                )
            end = self.ends[was.name.partition]
            known = self._identities.get(was.name.partition)
            other = None if known is None else self.system.difference(log, end, known)
            if other is not None:
                problem = f"the topic was deleted and created again: {other}"
            elif self.system.end_of(log, True) < end:
                problem = (
                    f"the log ends before offset {end}, which was read: the topic was deleted "
                    "and created again, or the log was truncated"
                )
            elif self.system.lost_after(log, end):
                problem = (
                    f"the log begins at offset {log.log_start}, but was read only up to {end}, "
                    "so changes are missing"
                )
            else:
                continue
            raise CommitConflict(problem, path=log.folder, remedy=self.system.before_anew + _ANEW)

    def _close_readers(self, segments: Mapping[int, _ListedSegment]) -> None:
        for reader in {id(each.reader): each.reader for each in segments.values()}.values():
            reader.close()

    def close(self) -> None:
        """Close the segments' files, and remove the index's files."""
        self._close_readers(self._segments)
        self._writes.close()


def _name_of(log: PartitionLog, segment: Segment) -> _Name:
    """The identity of a segment, by which listings are compared. It includes an object's etag."""
    return log.name.partition, segment.path, segment.position, segment.etag


def _state_of(segment: Segment) -> FileState | None:
    """The state of a segment's file. None for an object, which has an etag instead."""
    return None if segment.etag or is_address(segment.path) else state_of(segment.path)


def _unseen(
    was: PlaceIndex,
    now: PlaceIndex,
    segments: Mapping[int, _ListedSegment],
    missing: set[int],
    sources: SegmentPartitions,
    lanes_of: Callable[[bytes], tuple[int, int]],
) -> Iterator[MissedDelete]:
    """Yield the keys of last writes in removed segments that the new index does not contain.

    Raises:
        CommitConflict: such a key cannot be read any more, or another file has the segment's name.
    """
    for number in sorted(missing):
        log, segment, reader, *_ = segments[number]
        live = was.in_segment(number)
        lost = live.take(now.unknown(live, sources))
        for row in range(lost.rows):
            position, order = int(lost.positions[row]), int(lost.orders[row])
            lost_delete = CommitConflict(
                "a key was deleted, and compaction removed the delete before it was read",
                position,
                segment.path,
                _ANEW,
            )
            try:
                found = reader.record(segment, position, order)
            except LogError as error:
                raise lost_delete from error
            key = None if found is None else found[0]
            if key is None or lanes_of(key) != (lost.lanes[row], lost.other_lanes[row]):
                raise lost_delete
            yield MissedDelete(log.name.partition, key)
