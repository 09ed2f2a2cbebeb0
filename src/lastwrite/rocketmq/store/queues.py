"""A store's compaction logs for the engine: queues as partitions, and their files as segments.

``compaction/compactionLog/orders/3`` is queue 3 of ``orders``, a partition. Its files are the
segments, each with an index of the same name below ``compactionCq``. A file has its full size from
the start, so only its index shows where the records end: at the end of the last unit's record. A
blank record, zeros, or stale bytes follow.

A broker serves the records in the index, but its compaction reads the log. So both must agree
before a record is dropped: units and records are contiguous, offsets rise, and no record follows
the last unit's record in a closed file.

Source: RocketMQ 5.5.0 CompactionLog, SparseConsumeQueue; docs/formats/rocketmq-compaction.md,
"Files and their sizes" and "A store rewritten offline".
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np

from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.errors import CorruptLog, LogError, NotALog
from lastwrite.model.columns import BatchTable, ByteArray
from lastwrite.model.log import PartitionLog, Problem, Segment, TopicPartition, any_damaged
from lastwrite.model.work import ScanRange
from lastwrite.rocketmq.format import chunk_kernels, names
from lastwrite.rocketmq.format.chunk_kernels import FITS, compare_units, count_units, follow_units
from lastwrite.rocketmq.format.record import BLANK_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from lastwrite.rocketmq.format.units import BATCH_UNIT, END_UNIT, BatchUnit, batch_units
from lastwrite.rocketmq.store import archived, links, live_files, lock, ordinary, reading
from lastwrite.rocketmq.store.place import find_place
from lastwrite.rocketmq.store.reading import MappedFile, MappedLog, StoreFolder
from lastwrite.storage.choice import Topics, choose, topic_of
from lastwrite.storage.files import to_log_error
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.problems import damaged
from lastwrite.storage.reading import TRIES, one_try, read_small, reader_of

_RESTORE = f"nothing was changed; {names.RESTORE_QUEUE}"
_REBUILD = (
    f"{_RESTORE}; or, if the commit log still has every message of the queue, move both folders "
    "of the queue out of the store, keep them, and run lastwrite dispatch, which rebuilds the "
    "queue"
)
_DISPATCH = (
    "nothing was changed; run lastwrite dispatch, which appends the message from the commit log"
)
_BLOCK_UNITS = 1 << 13
_LAST_OFFSET = (1 << 63) - 2  # largest queue offset: the next offset still fits in a long
NAMES_OF_PARTS = ("compacted topic", "queue")
_WRONG = {
    chunk_kernels.GAP: "its record does not directly follow the previous record",
    chunk_kernels.BEHIND: "its record would end after the end of the file",
    chunk_kernels.ORDER: "its queue offset is not higher than the previous one",
    chunk_kernels.NUMBER: "it counts more than one record",
    chunk_kernels.PLACE: "its address differs from the record's address",
    chunk_kernels.SIZE: "its size differs from the record's size",
    chunk_kernels.OFFSET: "its queue offset differs from the record's queue offset",
    chunk_kernels.TIME: "its store time differs from the record's store time",
    chunk_kernels.NONE: "the unit is missing",
}

# ---------------------------------------------------------------------- finding queues


def find_queues(path: str, topic: Topics = None, partition: int | None = None) -> list[str]:
    """The folders of the compaction logs at ``path``, by topic and queue.

    ``path`` is a store, a folder below its ``compaction``, or a file there. Queues without a file
    are skipped.

    Raises:
        NotALog: the path has no compaction log, or none of ``topic`` and ``partition``.
    """
    in_archive = archived.find(path)
    if in_archive:
        return choose(sorted(in_archive.items()), topic, partition, path, topic_of, *NAMES_OF_PARTS)
    if is_address(path):
        raise NotALog(
            "the address has no queue of an archive", path=path, remedy="check the address"
        )
    path = os.path.abspath(path)
    place = find_place(path)
    if place.root is None:
        path = os.path.realpath(path)
        place = find_place(path)
    elif (home := links.home_of(place.root)) != place.root:
        place = replace(place, root=home)
    parts = (None, StoreFolder.COMPACTION, StoreFolder.COMPACTION_LOG, StoreFolder.COMPACTION_INDEX)
    is_side_file = place.part is None and place.file is not None
    if place.root is None or place.part not in parts or is_side_file:
        raise NotALog(
            "the path is not a compaction log or a part of one",
            path=path,
            remedy="give the store, or one of its compaction logs",
        )
    queues = reading.list_queues(place.root, StoreFolder.COMPACTION_LOG)
    found = [name for name in queues if _has_files(place.root, name)]
    if not found:
        raise NotALog(
            "this store has no compaction log with a file",
            path=path,
            remedy="only topics with cleanup.policy=COMPACTION have a compaction log; lastwrite "
            "dispatch builds it from the commit log",
        )
    here = [(name, folder_of(place.root, name)) for name in found]
    for wanted, number in ((place.topic, place.queue), (topic, partition)):
        kept = set(choose(here, wanted, number, path, topic_of, *NAMES_OF_PARTS))
        here = [each for each in here if each[1] in kept]
    return [folder for _, folder in here]


def _has_files(root: str, name: TopicPartition) -> bool:
    folder = folder_of(root, name)
    try:
        return any(names.parse_file_name(entry) is not None for entry in os.listdir(folder))
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error


def folder_of(root: str, name: TopicPartition) -> str:
    """The folder of a queue's log files."""
    return reading.log_folder(root, name)


def name_of(folder: str) -> TopicPartition:
    """The queue whose log files are in ``folder``."""
    if archived.is_archived(folder):
        return archived.name_of(folder)
    above, queue = os.path.split(os.path.abspath(folder))
    return TopicPartition(os.path.basename(above), int(queue))


def root_of(folder: str) -> str:
    """The store of a queue's folder. In an archive, the folder with all topics."""
    if archived.is_archived(folder):
        return archived.root_of(folder)
    root, *_ = os.path.abspath(folder).rsplit("/", 4)
    return root or "/"


def name_of_file(log_path: str) -> TopicPartition:
    """The queue of a log file in a store or in an archive."""
    return name_of(archived.queue_of_file(log_path) or os.path.dirname(log_path))


def index_path(log_path: str) -> str:
    """The path of the index of a log file, in a store or in an archive."""
    if archived.queue_of_file(log_path) is not None:
        return log_path + archived.INDEX_SUFFIX
    root, _, _, topic, queue, file = os.path.abspath(log_path).rsplit("/", 5)
    return f"{root}/{StoreFolder.COMPACTION_INDEX}/{topic}/{queue}/{file}"


# ---------------------------------------------------------------------- indexes


def valid_units(path: str, is_growing: bool = False) -> Iterator[ByteArray]:
    """The units of an index file up to the first invalid unit, in blocks.

    Units after it are checked too, unless the file grows. Holes of the file are not read.

    Raises:
        CorruptLog: a valid unit follows an invalid unit, so units between them were lost.
        LogError: the file cannot be read.
    """
    with _opened(path) as file:
        listed = MappedFile(path, 0, file.size, 0)
        done = 0
        has_ended = False
        for start, end in list(reading.written_stretches(listed)):
            at = max(done, start - start % BATCH_UNIT.size)
            has_ended = has_ended or at > done  # a hole precedes ``at``
            while at < end:
                data = _whole_units(file.read(_BLOCK_UNITS * BATCH_UNIT.size, at))
                if not len(data):
                    break
                used = 0
                if not has_ended:
                    used = count_units(data, True) * BATCH_UNIT.size
                    has_ended = used < len(data)
                    yield data[:used]
                if has_ended and is_growing:
                    return
                rest = data[used:]
                strange = count_units(rest, False) * BATCH_UNIT.size
                if strange < len(rest):
                    wrong = "a valid unit follows invalid units"
                    raise CorruptLog(wrong, at + used + strange, path, _REBUILD)
                done = at = at + len(data)


def _unit(units: ByteArray, at: int) -> BatchUnit:
    return BatchUnit._make(BATCH_UNIT.unpack_from(memoryview(units), at))


def _whole_units(data: bytes) -> ByteArray:
    return np.frombuffer(data, dtype=np.uint8)[: len(data) - len(data) % BATCH_UNIT.size]


class _Index:
    """An open index: a local file, or the bytes of an object."""

    def __init__(self, handle: int, content: bytes = b"") -> None:
        self._handle = handle
        self._content = content
        self.size = os.fstat(handle).st_size if handle >= 0 else len(content)

    def read(self, count: int, at: int) -> bytes:
        """Read ``count`` bytes from position ``at`` on; fewer at the end of the index."""
        if self._handle < 0:
            return self._content[at : at + count]
        return os.pread(self._handle, count, at)


@contextmanager
def _opened(path: str) -> Iterator[_Index]:
    if is_address(path):
        yield _Index(-1, read_small(path))
        return
    try:
        with open(path, "rb", buffering=0) as file:
            yield _Index(file.fileno())
    except OSError as error:
        raise to_log_error(error, path, "read the index") from error


def index_end(path: str) -> tuple[int, bool]:
    """The size of an index file, and whether an end unit follows the last valid unit.

    The end unit means that a broker has closed the file. The last two units are read first, because
    most files are full. If both are invalid, the end is searched by bisection, which assumes that
    all units before it are valid.
    """
    with _opened(path) as file:
        slots = file.size // BATCH_UNIT.size
        full = [row for row in range(max(slots - 2, 0), slots) if _unit_at(file, row)]
        end = full[-1] + 1 if full else _row_of(file, slots, lambda unit: False)
        return file.size, file.read(BATCH_UNIT.size, end * BATCH_UNIT.size) == END_UNIT


def _row_of(file: _Index, slots: int, is_there: Callable[[BatchUnit], bool]) -> int:
    """Find the first valid unit that the function ``is_there`` accepts, by bisection.

    The result is the row of this unit.

    ``is_there`` must accept all later units too. Returns the row after the valid units if no unit
    is accepted.
    """

    def accepts(row: int) -> bool:
        unit = _unit_at(file, row)
        return unit is None or is_there(unit)

    return bisect_left(range(slots), True, key=accepts)


def _row_at(file: _Index, slots: int, address: int) -> int:
    """The row of the first unit whose record is at or after ``address``."""
    return _row_of(file, slots, lambda unit: unit.physical_offset >= address)


def _unit_at(file: _Index, row: int) -> BatchUnit | None:
    """The unit in row ``row`` of an index. None if it is invalid."""
    data = file.read(BATCH_UNIT.size, row * BATCH_UNIT.size)
    if len(data) < BATCH_UNIT.size:
        return None
    unit = BatchUnit._make(BATCH_UNIT.unpack_from(data, 0))
    return unit if unit.size > 0 and unit.physical_offset >= 0 else None


# ---------------------------------------------------------------------- one queue


def read_queue(folder: str) -> PartitionLog:
    """List one queue of a store: its files, where their records end, its bounds and problems.

    The checkpoint is the offset after the queue's position in ``position-checkpoint``.

    Raises:
        CommitConflict: a broker replaced files during each attempt to list them.
        LogError: a file cannot be read.
    """
    if archived.is_archived(folder):
        return archived.log_of(read_versioned_manifest(folder).manifest, folder)
    root = root_of(folder)
    for tries in range(1, TRIES + 1):
        with one_try(tries, is_open=live_files.is_open(root)):
            log = _QueueListing(folder).log()
            live_files.check_unmoved(log)
            return log
    raise AssertionError("unreachable")


def read_below(folder: str, end: int) -> PartitionLog:
    """List a queue that a broker has open as if it ended at queue offset ``end``.

    Raises:
        LogError: a file cannot be read.
    """
    log = read_queue(folder)
    if log.end_offset <= end:
        return log
    segments = [segment for segment in log.segments if segment.base_offset < end]
    if segments:
        last = segments[-1]
        count = last.index_bytes // BATCH_UNIT.size
        with _opened(index_path(last.path)) as file:
            row = _row_of(file, count, lambda unit: unit.base >= end)
            found = _unit_at(file, row) if row < count else None
        if found is not None:
            size = found.physical_offset - address_of(last.path)
            segments[-1] = replace(
                last,
                size_bytes=size,
                unused_bytes=last.file_bytes - size,
                index_bytes=row * BATCH_UNIT.size,
            )
    return replace(log, segments=tuple(segments), end_offset=end, high_watermark=end)


class _QueueListing:
    """Builds the ``PartitionLog`` of one queue."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._name = name_of(folder)
        self._root = root_of(folder)
        self._problems: list[Problem] = []
        self._end_offset = 0
        self._is_open = False

    def log(self) -> PartitionLog:
        logs, indexes, known, is_open = live_files.read_pairs(self._root, self._name)
        self._is_open = is_open
        self._problems += [*logs.problems, *indexes.problems]
        position = min(known.of(self._name), _LAST_OFFSET)
        self._check_pairs(logs, indexes)
        segments: list[Segment] = []
        if not self._is_damaged:
            segments = [self._segment(file, logs) for file in logs.files]
        if not self._is_damaged and position >= 0:
            self._check_gaps(logs, segments, position)
        if not self._is_damaged:
            self._prove_whole(segments, position)
        # A file without a record gets the base offset of the next file with records.
        following = self._end_offset
        for n in range(len(segments) - 1, -1, -1):
            if segments[n].size_bytes:
                following = segments[n].base_offset
            else:
                segments[n] = replace(segments[n], base_offset=following)
        if is_open:
            self._problems.append(live_files.open_queue(self._folder, self._end_offset))
        return PartitionLog(
            name=self._name,
            folder=self._folder,
            segments=tuple(segments),
            log_start=segments[0].base_offset if segments else 0,
            end_offset=self._end_offset,
            high_watermark=self._end_offset,
            checkpoint=position + 1 if position >= 0 else None,
            problems=tuple(self._problems),
            open_as=live_files.marks(logs, indexes) if is_open else None,
        )

    def _damaged(
        self, message: str, path: str, position: int | None = None, remedy: str = _RESTORE
    ) -> None:
        self._problems.append(damaged(message, path, position, remedy))

    @property
    def _is_damaged(self) -> bool:
        return any_damaged(self._problems)

    def _check_pairs(self, logs: MappedLog, indexes: MappedLog) -> None:
        """Check that log and index files are paired, and that names are file size multiples."""
        for file in logs.files:
            if file.start not in indexes.starts:
                wrong = (
                    "the log file has no index file of the same name, and a broker does not start"
                )
                self._damaged(wrong, file.path, None, _REBUILD)
            elif logs.file_size and file.start % logs.file_size:
                wrong = (
                    f"the file's name, {file.start}, is not a multiple of the file size, "
                    f"{logs.file_size} bytes"
                )
                remedy = (
                    f"do not start a broker on the store, because it destroys the queue; {_RESTORE}"
                )
                self._damaged(wrong, file.path, None, remedy)
        for file in indexes.files:
            if file.start not in logs.starts:
                wrong = (
                    "the index file has no log file of the same name, and a broker does not start"
                )
                self._damaged(wrong, file.path, None, _REBUILD)

    def _check_gaps(self, logs: MappedLog, segments: list[Segment], position: int) -> None:
        """Check that no file with uncompacted records is missing."""
        for (before, after), segment in zip(pairwise(logs.files), segments, strict=False):
            is_new = segment.size_bytes > 0 and segment.base_offset > position
            if is_new and after.start > before.end:
                wrong = f"the file is missing, and the log continues at address {after.start}"
                path = os.path.join(os.path.dirname(before.path), names.file_name(before.end))
                self._damaged(
                    f"{wrong}; the missing records were not compacted", path, None, _REBUILD
                )

    def _segment(self, file: MappedFile, logs: MappedLog) -> Segment:
        """The segment for one log file, as the file's index describes it."""
        path = index_path(file.path)
        size = count = 0
        base, largest, first = self._end_offset, file.mtime_ns // 1_000_000, None
        try:
            place = file.start
            for units in valid_units(path, file.is_growing):
                code, row, place, stored = follow_units(units, place, file.end, self._end_offset)
                if code != FITS:
                    raise _wrong_unit(code, int(row) + count, path)
                if len(units):
                    begin, last = (_unit(units, at) for at in (0, len(units) - BATCH_UNIT.size))
                    if not count:
                        base, largest, first = begin.base, int(stored), begin.store_time_ms
                    largest = max(largest, int(stored))
                    count += len(units) // BATCH_UNIT.size
                    self._end_offset = last.base + 1
        except CorruptLog as error:
            self._damaged(error.problem, error.path or path, error.at, error.remedy or _REBUILD)
        else:
            size = int(place) - file.start
            if not logs.is_last(file):
                self._check_end(file, size)
        return Segment(
            base_offset=base,
            path=file.path,
            size_bytes=size,
            mtime_ns=file.mtime_ns,
            largest_timestamp_ms=largest,
            first_batch_timestamp_ms=first,
            index_bytes=count * BATCH_UNIT.size,
            unused_bytes=file.size_bytes - size,
            growing=file.inode if file.is_growing else 0,
        )

    def _prove_whole(self, segments: list[Segment], position: int) -> None:
        """Add a problem if records are missing because a file ends too early.

        A broker closes a pair before it creates the next pair, with two exceptions: the last pair
        that its compaction wrote, and a pair that is empty because a record was too large for it.
        Records above the position are not compacted, so above it no message with a key may be
        missing.
        """
        end = 0
        for segment, following in pairwise(segments):
            end = end_offset_of(segment) if segment.size_bytes else end
            is_closed = _is_closed(segment)
            if is_closed and max(end, position + 1) >= following.base_offset:
                continue
            if not is_closed and not segment.size_bytes:
                self._damaged(
                    "the file is closed, but has no record and no end mark", segment.path, 0
                )
                continue
            missing = ordinary.keyed_between(
                self._root, self._name, max(end, position + 1), following.base_offset
            )
            if missing is not None:
                self._ends_early(segment, missing)
        if not segments or self._is_open or lock.was_killed(self._root):
            return
        next_offset = ordinary.next_offset(self._root, self._name)
        # A next offset at or below the position is no damage: the topic was created again, and its
        # offsets began at 0 again.
        if position >= self._end_offset and not 0 <= next_offset <= position:
            message = (
                f"the log's records end before queue offset {self._end_offset}, but compaction "
                f"has reached offset {position}"
            )
            self._damaged(message, segments[-1].path, segments[-1].size_bytes)
            return
        if not ordinary.is_compacted(self._root, self._name.topic):
            return
        missing = ordinary.keyed_between(
            self._root, self._name, max(self._end_offset, position + 1), next_offset
        )
        if missing is not None:
            self._ends_early(segments[-1], missing, _DISPATCH)

    def _ends_early(self, segment: Segment, missing: int, remedy: str = _RESTORE) -> None:
        wrong = (
            f"the log file ends before queue offset {missing}, but the commit log has a message "
            "with a key there"
        )
        self._damaged(wrong, segment.path, segment.size_bytes, remedy)

    def _check_end(self, file: MappedFile, size: int) -> None:
        """Add a problem if a record follows the last unit's record in a closed file."""
        if file.size_bytes - size < 8:
            return
        with file.open() as reader:
            head = np.empty(8, dtype=np.uint8)
            reader.read_into(head, size)
        announced, magic = (int(number) for number in head.view(">i4"))
        if announced > 0 and magic in (MAGIC_V1, MAGIC_V2):
            self._damaged(
                "the log file has a record after the last unit of its index",
                file.path,
                size,
                _REBUILD,
            )


def _wrong_unit(code: int, row: int, path: str) -> CorruptLog:
    return CorruptLog(f"unit {row}: {_WRONG[code]}", row * BATCH_UNIT.size, path, _REBUILD)


def _is_closed(segment: Segment) -> bool:
    """Whether the file is closed: it or its index has an end mark, or no room for a record."""
    with _opened(index_path(segment.path)) as index:
        left = index.size - segment.index_bytes
        if segment.unused_bytes < BLANK_BYTES or left < BATCH_UNIT.size:
            return True
        if index.read(BATCH_UNIT.size, segment.index_bytes) == END_UNIT:
            return True
    with _opened(segment.path) as log:
        head = log.read(BLANK_BYTES, segment.size_bytes)
        return int.from_bytes(head[4:], "big", signed=True) == MAGIC_BLANK


def end_offset_of(segment: Segment) -> int:
    """The queue offset after the segment's last record. Without records, its base offset."""
    count = segment.index_bytes // BATCH_UNIT.size
    with _opened(index_path(segment.path)) as file:
        last = _unit_at(file, count - 1) if count else None
    return segment.base_offset if last is None else last.base + 1


def first_offset_from(log: PartitionLog, offset: int) -> int:
    """The queue offset of the first record at or after ``offset``; ``offset`` if there is none."""
    for n, segment in enumerate(log.segments):
        if segment.size_bytes and segment.base_offset >= offset:
            return segment.base_offset
        if log.segment_end(n) <= offset:
            continue
        if segment.size_bytes and end_offset_of(segment) > offset:
            with _opened(index_path(segment.path)) as file:
                count = segment.index_bytes // BATCH_UNIT.size
                found = _unit_at(file, _row_of(file, count, lambda unit: unit.base >= offset))
            return offset if found is None else found.base
    return offset


def record_count(log: PartitionLog) -> int:
    """The number of records in the queue."""
    return sum(segment.index_bytes for segment in log.segments) // BATCH_UNIT.size


def gaps(log: PartitionLog, first: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges of queue offsets in ``[first, end)`` for which a queue has no record."""
    for n, segment in enumerate(log.segments):
        if log.segment_end(n) <= first:
            continue
        for data in valid_units(index_path(segment.path), segment.growing > 0):
            bases = batch_units(data.data)["base"].astype(np.int64)
            bases = bases[(bases >= first) & (bases < end)]
            if len(bases):
                begins = np.concatenate(([first], bases[:-1] + 1))
                for row in np.flatnonzero(begins < bases).tolist():
                    yield int(begins[row]), int(bases[row])
                first = int(bases[-1]) + 1
    if first < end:
        yield first, end


def last_stored_before(log: PartitionLog, end: int) -> tuple[int, int] | None:
    """The queue offset and store time of the latest stored message below offset ``end``."""
    found: tuple[int, int] | None = None
    for segment in log.segments:
        if segment.base_offset >= end or not segment.size_bytes:
            continue
        for data in valid_units(index_path(segment.path), segment.growing > 0):
            some = batch_units(data.data)
            some = some[some["base"] < end]
            if len(some):
                row = int(np.argmax(some["store_time_ms"]))
                stored = int(some["base"][row]), int(some["store_time_ms"][row])
                found = stored if found is None or stored[1] > found[1] else found
    return found


def record_at(log: PartitionLog, offset: int) -> bytes | None:
    """The record at a queue offset. None if the log has no such record."""
    for n, segment in enumerate(log.segments):
        if segment.base_offset <= offset < log.segment_end(n) and segment.size_bytes:
            with _opened(index_path(segment.path)) as file:
                count = segment.index_bytes // BATCH_UNIT.size
                found = _unit_at(file, _row_of(file, count, lambda unit: unit.base >= offset))
            if found is not None and found.base == offset:
                return _record_of(segment, found)
    return None


def last_record_before(log: PartitionLog, end: int) -> tuple[BatchUnit, bytes] | None:
    """The last record below queue offset ``end``, and its unit. None if there is none.

    Raises:
        CommitConflict: a file was replaced after it was listed.
    """
    for segment in reversed(log.segments):
        if segment.base_offset >= end or not segment.size_bytes:
            continue
        with _opened(index_path(segment.path)) as file:
            count = segment.index_bytes // BATCH_UNIT.size
            row = _row_of(file, count, lambda unit: unit.base >= end) - 1
            found = _unit_at(file, row) if row >= 0 else None
        if found is not None:
            return found, _record_of(segment, found)
    return None


def _record_of(segment: Segment, unit: BatchUnit) -> bytes:
    data = np.empty(unit.size, dtype=np.uint8)
    with reader_of(segment) as reader:
        reader.read_into(data, unit.physical_offset - address_of(segment.path))
    return data.tobytes()


# ---------------------------------------------------------------------- pieces


def cuts_of(segment: Segment, piece_bytes: int) -> list[int]:
    """Positions that split a segment into pieces of about ``piece_bytes``, from 0 to its end."""
    cuts = [0]
    if segment.size_bytes > piece_bytes * 3 // 2:
        count, slots = -(-segment.size_bytes // piece_bytes), segment.index_bytes // BATCH_UNIT.size
        start = address_of(segment.path)
        with _opened(index_path(segment.path)) as file:
            for n in range(1, count):
                wanted = start + segment.size_bytes * n // count
                found = _unit_at(file, _row_at(file, slots, wanted))
                if found is not None:
                    place = found.physical_offset - start
                    if cuts[-1] < place < segment.size_bytes:
                        cuts.append(place)
    if segment.size_bytes:
        cuts.append(segment.size_bytes)
    return cuts


def address_of(path: str) -> int:
    """The address of a log file's first byte, from its name."""
    address = names.parse_file_name(os.path.basename(path))
    if address is None:
        raise LogError("the file's name is not the name of a log file", path=path, remedy=_RESTORE)
    return address


class QueueIndexChecker:
    """Compares the records of a piece of a log file with their units.

    Units in an archive are not checked. They were computed from the records that were written,
    compaction does not read them, and ``verify`` checks them.
    """

    def __init__(self, piece: ScanRange) -> None:
        self._is_needed = not piece.etag
        if not self._is_needed:
            return
        self._path = index_path(piece.path)
        self._start = address_of(piece.path)
        self._row = 0  # row of the next record's unit
        if piece.start:
            with _opened(self._path) as file:
                slots = file.size // BATCH_UNIT.size
                self._row = _row_at(file, slots, self._start + piece.start)

    def check(self, table: BatchTable, shift: int) -> None:
        """Check the next records.

        A record's position in the file is its origin in ``table`` plus ``shift``.

        Raises:
            CorruptLog: a unit differs from its record, or is missing.
        """
        if not self._is_needed:
            return
        with _opened(self._path) as file:
            data = file.read(len(table) * BATCH_UNIT.size, self._row * BATCH_UNIT.size)
        code, row = compare_units(_whole_units(data), table, self._start + shift)
        if code != FITS:
            raise _wrong_unit(code, self._row + int(row), self._path)
        self._row += len(table)

    def ends(self) -> None:
        """Does nothing: units after the last record were checked when the files were listed."""
