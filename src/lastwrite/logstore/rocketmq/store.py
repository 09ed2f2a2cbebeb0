"""A store's compaction logs as the engine sees them: queues, their files as segments, what their indexes say.

``compaction/compactionLog/orders/3`` is queue 3 of ``orders``: a partition. Its files are the segments, each with an
index of the same name below ``compactionCq``. A file has its full size from the start, so only its index says how much
of it is records: they end where the last unit points to. Behind them lie a blank record, zeros, or bytes of an earlier
use.

A broker serves what the index says, but its own compaction goes by the log, so the two have to agree before a record is
dropped: units and records follow each other without a gap, offsets rise, and behind the last unit of a closed file no
record begins.

Source: RocketMQ 5.5.0 CompactionLog, SparseConsumeQueue; spec/rocketmq.md sections 11, 22, 24.3.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from lastwrite.errors import CorruptLog, LogError, NotALog
from lastwrite.formats.rocketmq import names
from lastwrite.formats.rocketmq.record import MAGIC_V1, MAGIC_V2
from lastwrite.formats.rocketmq.units import BATCH_UNIT, END_UNIT, Units, batch_units, valid_count
from lastwrite.logstore.files import to_log_error
from lastwrite.logstore.rocketmq import positions, publish, reading
from lastwrite.logstore.rocketmq.reading import MappedFile, MappedLog, Part
from lastwrite.model.columns import BatchTable
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment, TopicPartition
from lastwrite.model.work import Piece

_RESTORE = "nothing was changed; restore the file from a replica or a backup"
_REBUILD = (
    "nothing was changed; restore the queue from a replica or a backup, or remove both its folders and dispatch the "
    "commit log again, if that still has all of it"
)
_BLOCK_UNITS = 1 << 15

# ---------------------------------------------------------------------- where queues lie


def find_queues(path: str, topic: str | None = None, partition: int | None = None) -> list[str]:
    """The folders of the compaction logs at ``path``, by topic and queue.

    ``path`` is a store, a folder of its ``compaction``, or a file in there. Queues without a file are left out.

    Raises:
        NotALog: nothing of the kind lies there, or nothing of that topic and queue.
    """
    path = os.path.abspath(path)
    place = reading.find_place(path)
    parts = (None, Part.COMPACTION, Part.COMPACTION_LOG, Part.COMPACTION_INDEX)
    if place.root is None or place.part not in parts or (place.part is None and place.file is not None):
        raise NotALog("this part of a store is not compacted", path=path, remedy="give the store, or a compaction log")
    found = [name for name in reading.list_queues(place.root, Part.COMPACTION_LOG) if _has_files(place.root, name)]
    chosen = [
        name for name in found
        if place.topic in (None, name.topic) and place.queue in (None, name.partition)
        and topic in (None, name.topic) and partition in (None, name.partition)
    ]  # fmt: skip
    if not found:
        raise NotALog(
            "no compaction log with a file in this store", path=path,
            remedy="only topics with cleanup.policy=COMPACTION have one; lastwrite dispatch makes it of the commit log",
        )  # fmt: skip
    if not chosen:
        listed = ", ".join(str(name) for name in found[:5])
        raise NotALog("no such compaction log", path=path, remedy=f"there are: {listed}")
    return [folder_of(place.root, name) for name in chosen]


def _has_files(root: str, name: TopicPartition) -> bool:
    folder = folder_of(root, name)
    return any(names.parse_file_name(entry) is not None for entry in _listed(folder))


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error


def folder_of(root: str, name: TopicPartition) -> str:
    """Where a queue's log files lie."""
    return os.path.join(root, Part.COMPACTION_LOG, name.topic, str(name.partition))


def name_of(folder: str) -> TopicPartition:
    """The queue whose log files lie in ``folder``."""
    above, queue = os.path.split(os.path.abspath(folder))
    return TopicPartition(os.path.basename(above), int(queue))


def root_of(folder: str) -> str:
    """The store of a queue's folder."""
    root = os.path.abspath(folder)
    for _ in range(4):
        root = os.path.dirname(root)
    return root


def index_path(log_path: str) -> str:
    """The index of a log file."""
    folder, file = os.path.split(os.path.abspath(log_path))
    name = name_of(folder)
    return os.path.join(root_of(folder), Part.COMPACTION_INDEX, name.topic, str(name.partition), file)


# ---------------------------------------------------------------------- an index


@dataclass(frozen=True, slots=True)
class Index:
    """What one index file says. ``first_address`` is that of the log file's first byte."""

    units: Units  # the valid ones
    ends_marked: bool  # an end unit follows, as where a broker has closed the file
    size_bytes: int  # of the file

    @property
    def end_address(self) -> int:
        """Behind the last record; of an index without one -1."""
        if not len(self.units):
            return -1
        last = self.units[-1]
        return int(last["physical_offset"]) + int(last["size"])

    @property
    def next_offset(self) -> int:
        """Behind the last record's queue offset; -1: there is none."""
        return int(self.units[-1]["base"]) + 1 if len(self.units) else -1


def read_index(path: str) -> Index:
    """The units of an index file, up to the first that is not valid.

    Of what was never written nothing is read.

    Raises:
        CorruptLog: a valid unit lies behind one that is not: something was lost in between.
        LogError: the file cannot be read.
    """
    try:
        seen = os.stat(path)
        file = MappedFile(path, 0, seen.st_size, seen.st_mtime_ns)
        stretches = list(reading.written_stretches(file))
        with open(path, "rb", buffering=0) as opened:
            return _read_units(opened.fileno(), file, stretches)
    except OSError as error:
        raise to_log_error(error, path, "read the index") from error


def _read_units(handle: int, file: MappedFile, stretches: list[tuple[int, int]]) -> Index:
    kept: list[Units] = []
    count = done = 0
    has_ended = ends_marked = False
    for start, end in stretches:
        at = max(done, start - start % BATCH_UNIT.size)
        has_ended = has_ended or at > done  # what lies between was never written
        while at < end:
            units = batch_units(os.pread(handle, _BLOCK_UNITS * BATCH_UNIT.size, at))
            if not len(units):
                break
            first = 0
            if not has_ended:
                first = valid_count(units)
                kept.append(units[:first])
                count += first
                has_ended = first < len(units)
                ends_marked = has_ended and units[first].tobytes() == END_UNIT
            if has_ended:
                stray = _first_valid(units, first)
                if stray is not None:
                    raise CorruptLog(
                        f"unit {count} is not valid, though others follow", at + stray * BATCH_UNIT.size, file.path,
                        _REBUILD,
                    )  # fmt: skip
            done = at = at + len(units) * BATCH_UNIT.size
    return Index(np.concatenate(kept) if kept else batch_units(b""), ends_marked, file.size_bytes)


def _first_valid(units: Units, start: int) -> int | None:
    rest = units[start:]
    good = (rest["physical_offset"] >= 0) & (rest["size"] > 0) & (rest["base"] >= 0) & (rest["number"] > 0)
    return start + int(np.argmax(good)) if good.any() else None


# ---------------------------------------------------------------------- one queue


def read_queue(folder: str) -> PartitionLog:
    """List one queue: its files, how far records go in each, its bounds, and what is wrong with them.

    The checkpoint is the offset behind the position that the store keeps.

    Raises:
        LogError: a file cannot be read.
    """
    return _Reading(folder).log()


class _Reading:
    """The listing of one queue, on its way to a ``PartitionLog``."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._name = name_of(folder)
        self._root = root_of(folder)
        self._problems: list[Problem] = []
        self._end_offset = 0

    def log(self) -> PartitionLog:
        logs = reading.read_files(self._folder)
        indexes = reading.read_files(os.path.dirname(index_path(os.path.join(self._folder, "0"))))
        self._problems += [*logs.problems, *indexes.problems]
        known = positions.read_positions(publish.live_tree(self._root))
        position = known.of(self._name)
        self._check_pairs(logs, indexes)
        segments: list[Segment] = []
        if not any(problem.kind is ProblemKind.DAMAGED for problem in self._problems):
            for file in logs.files:
                segments.append(self._segment(file, logs))
        # A pair without a record begins where the next one's records do.
        following = self._end_offset
        for n in range(len(segments) - 1, -1, -1):
            if segments[n].size_bytes:
                following = segments[n].base_offset
            else:
                segments[n] = _moved(segments[n], following)
        return PartitionLog(
            name=self._name, folder=self._folder, segments=tuple(segments),
            log_start=segments[0].base_offset if segments else 0, end_offset=self._end_offset,
            high_watermark=self._end_offset, checkpoint=position + 1 if position >= 0 else None,
            problems=tuple(self._problems),
        )  # fmt: skip

    def _damaged(self, message: str, path: str, position: int | None = None, remedy: str = _RESTORE) -> None:
        self._problems.append(Problem(ProblemKind.DAMAGED, message, path, position, remedy))

    def _check_pairs(self, logs: MappedLog, indexes: MappedLog) -> None:
        """Every log file has an index of its name, and the other way round; names are whole multiples of the size."""
        starts = {file.start for file in logs.files}, {file.start for file in indexes.files}
        for file in logs.files:
            if file.start not in starts[1]:
                self._damaged("a log file without its index: a broker does not start", file.path, None, _REBUILD)
            elif logs.file_size and file.start % logs.file_size:
                message = f"begins at {file.start}, no multiple of its {logs.file_size} bytes"
                remedy = "a broker would serve nothing of the queue and destroy it: rename both files of each pair"
                self._damaged(message, file.path, None, remedy)
        for file in indexes.files:
            if file.start not in starts[0]:
                self._damaged("an index without its log file: a broker does not start", file.path, None, _REBUILD)

    def _segment(self, file: MappedFile, logs: MappedLog) -> Segment:
        """One file; from what its index says of it."""
        path = index_path(file.path)
        times: tuple[int | None, int | None] = (None, None)
        size, count, base = 0, 0, self._end_offset
        try:
            index = read_index(path)
            self._check_units(index, file, path)
        except CorruptLog as error:
            self._damaged(error.problem, error.path or path, error.at, error.remedy or _REBUILD)
        else:
            count = len(index.units)
            if count:
                size = index.end_address - file.start
                base = int(index.units[0]["base"])
                stored = index.units["store_time_ms"]
                times = int(stored.max()), int(stored[0])
                self._end_offset = index.next_offset
            if not logs.is_last(file):
                self._check_end(file, size)
        largest, first = times
        return Segment(
            base_offset=base, path=file.path, size_bytes=size, mtime_ns=file.mtime_ns,
            largest_timestamp_ms=file.mtime_ns // 1_000_000 if largest is None else largest,
            first_batch_timestamp_ms=first, index_bytes=count * BATCH_UNIT.size, unused_bytes=file.size_bytes - size,
        )  # fmt: skip

    def _check_units(self, index: Index, file: MappedFile, path: str) -> None:
        """The units follow each other as their records do, inside the file.

        Raises:
            CorruptLog: they do not.
        """
        units = index.units
        if not len(units):
            return
        sizes = units["size"].astype(np.int64)
        wanted = file.start + np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        bases = units["base"].astype(np.int64)
        floors = np.concatenate([[self._end_offset], bases[:-1] + 1])
        for is_wrong, what in (
            (
                units["physical_offset"].astype(np.int64) != wanted[:-1],
                "its record would not lie behind the one before",
            ),
            (wanted[1:] > file.end, "its record would end behind its file"),
            (bases < floors, "its queue offset is not above those before it"),
            (units["number"] != 1, "it stands for more than one record"),
            (bases == np.iinfo(np.int64).max, "its queue offset is the largest there is"),
        ):
            if is_wrong.any():
                row = int(np.argmax(is_wrong))
                raise CorruptLog(f"unit {row}: {what}", row * BATCH_UNIT.size, path, _REBUILD)

    def _check_end(self, file: MappedFile, size: int) -> None:
        """Behind the records of a closed file no other begins, of which the index would not know."""
        if file.size_bytes - size < 8:
            return
        with file.open() as reader:
            head = np.empty(8, dtype=np.uint8)
            reader.read_into(head, size)
        announced, magic = (int(number) for number in head.view(">i4"))
        if announced > 0 and magic in (MAGIC_V1, MAGIC_V2):
            self._damaged("a record begins where the index says that records end", file.path, size, _REBUILD)


def _moved(segment: Segment, base_offset: int) -> Segment:
    return Segment(
        base_offset=base_offset, path=segment.path, size_bytes=0, mtime_ns=segment.mtime_ns,
        largest_timestamp_ms=segment.largest_timestamp_ms, unused_bytes=segment.unused_bytes,
    )  # fmt: skip


def end_offset_of(segment: Segment) -> int:
    """Behind the highest queue offset in the segment; its base where there is no record."""
    if not segment.index_bytes:
        return segment.base_offset
    units = _units_at(index_path(segment.path), segment.index_bytes - BATCH_UNIT.size, 1)
    return int(units[0]["base"]) + 1


def _units_at(path: str, position: int, count: int) -> Units:
    try:
        with open(path, "rb", buffering=0) as file:
            return batch_units(os.pread(file.fileno(), count * BATCH_UNIT.size, position))
    except OSError as error:
        raise to_log_error(error, path, "read the index") from error


def first_offset_from(log: PartitionLog, offset: int) -> int:
    """The lowest queue offset from ``offset`` on that a record has; ``offset`` where there is none."""
    for segment in log.segments:
        if segment.size_bytes and end_offset_of(segment) > offset:
            bases = _units_at(index_path(segment.path), 0, segment.index_bytes // BATCH_UNIT.size)["base"]
            return int(bases[int(np.searchsorted(bases, offset))])
    return offset


def record_count(log: PartitionLog) -> int:
    """How many records the queue has."""
    return sum(segment.index_bytes for segment in log.segments) // BATCH_UNIT.size


# ---------------------------------------------------------------------- pieces


def cuts_of(segment: Segment, piece_bytes: int) -> list[int]:
    """Positions at which the segment may be cut into pieces of about so many bytes: units name them."""
    cuts = [0]
    if segment.size_bytes > piece_bytes * 3 // 2:
        units = _units_at(index_path(segment.path), 0, segment.index_bytes // BATCH_UNIT.size)
        places = units["physical_offset"].astype(np.int64) - _address_of(segment.path)
        count = -(-segment.size_bytes // piece_bytes)
        for n in range(1, count):
            found = int(np.searchsorted(places, segment.size_bytes * n // count))
            if found < len(places) and cuts[-1] < int(places[found]) < segment.size_bytes:
                cuts.append(int(places[found]))
    if segment.size_bytes:
        cuts.append(segment.size_bytes)
    return cuts


def _address_of(path: str) -> int:
    address = names.parse_file_name(os.path.basename(path))
    if address is None:
        raise LogError("no name of a log file", path=path, remedy=_RESTORE)
    return address


class IndexChecker:
    """Holds the units of a piece of a log file against its records."""

    def __init__(self, piece: Piece) -> None:
        self._path = index_path(piece.path)
        self._start = _address_of(piece.path)
        units = read_index(self._path).units
        places = units["physical_offset"].astype(np.int64) - self._start
        first, end = np.searchsorted(places, [piece.start, piece.end]).tolist()
        self._first, self._units = first, units[first:end]
        self._seen = 0

    def check(self, table: BatchTable, shift: int) -> None:
        """The next records; ``shift`` is what their origins lack to positions in the file.

        Raises:
            CorruptLog: a unit says otherwise, or there is none.
        """
        units = self._units[self._seen : self._seen + len(table)]
        count = len(units)
        row = self._first + self._seen
        for column, told, what in (
            ("origin", units["physical_offset"].astype(np.int64) - self._start - shift, "the address"),
            ("origin_size", units["size"], "the size"),
            ("base_offset", units["base"], "the queue offset"),
            ("max_timestamp", units["store_time_ms"], "the store time"),
        ):
            is_wrong = table[column][:count] != told
            if is_wrong.any():
                found = int(np.argmax(is_wrong))
                raise CorruptLog(
                    f"unit {row + found} has not {what} of its record", (row + found) * BATCH_UNIT.size, self._path,
                    _REBUILD,
                )  # fmt: skip
        if count < len(table):
            raise CorruptLog("a record has no unit", (row + count) * BATCH_UNIT.size, self._path, _REBUILD)
        self._seen += count
