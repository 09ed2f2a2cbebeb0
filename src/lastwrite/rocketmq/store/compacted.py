"""Reads a queue's compaction log from a queue offset on, file by file, using the index.

An offset is searched in a file's index by bisection, which reads about 20 units. The records of the
units are then read in chunks. Bytes without a unit are not read: stale bytes of an earlier
compaction may follow the last record (docs/formats/rocketmq-compaction.md).

Each record is compared with its unit. If they differ, the file is walked record by record, which
shows whether the record is damaged or the index is wrong. A damaged record is skipped, and a wrong
index is replaced in memory; both are reported. A file without an index is walked too.

Files may disappear during a read, because a live broker renames and deletes them. So both files of
a pair are opened before either is read. If a file is missing, ``FilesMoved`` is raised and the
folder must be listed again. Queue offsets stay valid.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from lastwrite.errors import CommitConflict, LogError, OutOfMemoryBudget, remedy_at
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.rocketmq.format import kernels
from lastwrite.rocketmq.format.kernels import MESSAGE, MessageTable
from lastwrite.rocketmq.format.record import MAGIC_V1, MAGIC_V2, RECORD_HEAD, RecordHead
from lastwrite.rocketmq.format.units import BATCH_UNIT, BatchUnit, batch_units, valid_count
from lastwrite.rocketmq.rules.pull import FileOffsets
from lastwrite.rocketmq.store import archived
from lastwrite.rocketmq.store.live_files import read_pairs
from lastwrite.rocketmq.store.reading import (
    INDEX_LIMIT_BYTES,
    MappedFile,
    StoreFolder,
    queue_folder,
)
from lastwrite.storage.files import to_log_error
from lastwrite.storage.problems import damaged, error_of, recovered
from lastwrite.storage.reading import SegmentReader

T = TypeVar("T")

CHUNK_BYTES = 4 << 20
_WALKED_ROWS = 1 << 12
_UNIT_BYTES = BATCH_UNIT.size
_MOST_LISTINGS = 8  # attempts to list a queue whose files change

_RESTORE_INDEX = "restore the file from a replica or a backup, because a broker needs it"
_CODES_OF_DAMAGE = (
    kernels.NEED_MORE,
    kernels.BAD_SIZE,
    kernels.BAD_MAGIC,
    kernels.BAD_LENGTHS,
    kernels.BAD_CRC,
    kernels.BAD_ORDER,
)


class FilesMoved(Exception):
    """Raised if the files have changed since they were listed.

    Call ``refresh`` and continue at the same offset.
    """


@dataclass(frozen=True, slots=True)
class FilePair:
    """A log file and its index."""

    log: MappedFile
    index: MappedFile | None


class RecordPlaces(NamedTuple):
    """The positions, sizes and queue offsets of one file's records.

    Row i of each column belongs to record i.
    """

    positions: Int64Array  # position of the record in the log file
    sizes: Int64Array
    bases: Int64Array  # first queue offset; equals the last offset, except in an inner batch
    lasts: Int64Array  # last queue offset
    is_rebuilt: bool  # the columns come from a walk of the log, not from the index

    @property
    def range(self) -> FileOffsets | None:
        return FileOffsets(int(self.bases[0]), int(self.lasts[-1])) if len(self.bases) else None


class RecordBlock(NamedTuple):
    """Contiguous whole records in a buffer.

    A position in ``table`` is a position in the buffer; add ``shift`` for the position in the file.
    """

    file: MappedFile
    buffer: ByteArray
    table: MessageTable
    shift: int
    is_rebuilt: bool
    last_offset: int


class _Stop(NamedTuple):
    """The end of a walk: a code for the reason, and the position in the file."""

    code: int
    position: int


class Ranges:
    """The first and last queue offset of each file, each read on first use."""

    def __init__(self, queue: CompactedQueue) -> None:
        self._queue = queue

    def __len__(self) -> int:
        return len(self._queue.pairs)

    def __getitem__(self, number: int) -> FileOffsets | None:
        return self._queue.range_of(number)

    def __iter__(self) -> Iterator[FileOffsets | None]:
        return map(self._queue.range_of, range(len(self)))


class CompactedQueue:
    """The compaction log of one queue, read only. No file stays open between two calls.

    ``notes`` states where the files differ from a broker's files, and how the read handled each
    difference. ``damage`` lists the records that cannot be read.
    """

    def __init__(self, root: str, name: TopicPartition) -> None:
        self.root = root
        self.name = name
        self.notes: list[Problem] = []
        self.damage: list[Problem] = []
        self.pairs: tuple[FilePair, ...] = ()
        self.exists = False
        self.is_open = False  # a broker appends to the last log and index file
        self._ranges: dict[int, FileOffsets | None] = {}
        self._rebuilt: dict[int, RecordPlaces] = {}
        self._counts: dict[int, int] = {}  # number of valid units by file
        self._last_identity: tuple[tuple[int, int], ...] = ()
        self._listings = 0
        self.refresh()

    @property
    def ranges(self) -> Ranges:
        return Ranges(self)

    def refresh(self) -> None:
        """List the files again. If a broker has the store open, the log's current end is used.

        Raises:
            CommitConflict: the files keep changing.
        """
        self._listings += 1
        if self._listings > _MOST_LISTINGS:
            raise CommitConflict(
                "another program changes the queue's files again and again",
                path=self._folder(StoreFolder.COMPACTION_LOG),
                remedy="stop the program that writes to the queue, or copy the store and read the "
                "copy",
            )
        self._ranges, self._rebuilt, self._counts = {}, {}, {}
        self._last_identity = self._identity()
        is_archived = archived.is_root(self.root)
        self.exists = is_archived or all(
            os.path.isdir(self._folder(part))
            for part in (StoreFolder.COMPACTION_LOG, StoreFolder.COMPACTION_INDEX)
        )
        logs, indexes, _, self.is_open = read_pairs(self.root, self.name)
        index_of = {file.start: file for file in indexes.files}
        self.pairs = tuple(FilePair(file, index_of.pop(file.start, None)) for file in logs.files)
        for problem in (*logs.problems, *indexes.problems):
            is_of_records = is_archived and problem in logs.problems and not problem.is_note
            if is_of_records:  # the object with the records is missing
                self.damage += [] if problem in self.damage else [problem]
            else:
                self._note(problem)
        for file in index_of.values():
            remedy = "restore the log file, because a broker does not start on this store"
            self._note(
                damaged("the index file has no log file of the same name", file.path, None, remedy)
            )
        if self.is_open and self.pairs:
            with suppress(FilesMoved):  # a later read of the file raises the error again
                self.range_of(len(self.pairs) - 1)

    @property
    def end_offset(self) -> int:
        """The queue offset after the last message; 0 if there is no message.

        Raises:
            FilesMoved: a file was deleted.
        """
        return max((found.last + 1 for found in self.ranges if found is not None), default=0)

    def range_of(self, number: int) -> FileOffsets | None:
        """The first and last offset in a log file's index. Returns None if the file has no records.

        Raises:
            FilesMoved: the file was deleted.
        """
        if number not in self._ranges:
            self._ranges[number] = self._find_range(number)
        return self._ranges[number]

    def entries(self, number: int) -> RecordPlaces:
        """All records of the file, from its index, or from a walk if the index is inconsistent.

        Raises:
            FilesMoved: a file was deleted.
            OutOfMemoryBudget: an index file is larger than 1 GiB.
        """
        if number not in self._rebuilt:
            found = self._read_index(number)
            if found is not None:
                return found
            self._rebuild(number, "the units of the index contradict each other")
        return self._rebuilt[number]

    def blocks(self, offset: int = 0) -> Iterator[RecordBlock]:
        """The records of all files from ``offset`` on. A block is valid until the next is read.

        Raises:
            CommitConflict: the files keep changing.
        """
        number = 0
        while True:
            try:
                while number < len(self.pairs):
                    held = self.range_of(number)
                    if held is not None and held.last >= offset:
                        for block in self.blocks_of(number, offset):
                            offset = block.last_offset + 1
                            yield block
                    number += 1
                return
            except FilesMoved:
                self.refresh()
                number = 0

    def blocks_of(self, number: int, offset: int, check_crc: bool = True) -> Iterator[RecordBlock]:
        """The records of one file from ``offset`` on. A block is valid until the next is read.

        Raises:
            FilesMoved: a file was deleted.
        """
        pair = self.pairs[number]
        entries = self.entries(number)
        buffer: ByteArray = np.empty(0, np.uint8)
        with _OpenPair(pair.log) as log:
            at = int(np.searchsorted(entries.lasts, offset))
            while at < len(entries.bases):
                until = _chunk_end(entries, at)
                begin = int(entries.positions[at])
                end = int(entries.positions[until - 1] + entries.sizes[until - 1])
                if len(buffer) < end - begin:
                    buffer = np.empty(end - begin, np.uint8)
                log.read_into(buffer[: end - begin], begin)
                table: MessageTable = np.zeros(until - at, MESSAGE)
                rows, *stop = kernels.split(buffer, 0, end - begin, table, check_crc)
                good = _agreeing(table[:rows], entries, at, begin)
                if good:
                    last = int(entries.lasts[at + good - 1])
                    yield RecordBlock(
                        pair.log, buffer, table[:good], begin, entries.is_rebuilt, last
                    )
                    offset = last + 1
                at += good
                if at == until:
                    continue
                if good == rows and stop[1] in _CODES_OF_DAMAGE:
                    wrong = _Stop(int(stop[1]), begin + int(stop[2]))
                else:
                    wrong = _Stop(kernels.BAD_ORDER, int(entries.positions[at]))
                if self._is_index_correct(number, entries, at, wrong):
                    at += 1
                else:
                    entries = self._rebuilt[number]
                    at = int(np.searchsorted(entries.lasts, offset))

    # ------------------------------------------------------------------ the index

    def _find_range(self, number: int) -> FileOffsets | None:
        pair = self.pairs[number]
        wrong = "the index file is missing"
        if pair.index is not None:
            with _OpenPair(pair.log) as log, _OpenPair(pair.index) as index:
                slots = pair.index.size_bytes // _UNIT_BYTES
                count = bisect_left(
                    range(slots), True, key=lambda slot: not _is_valid(index.unit(slot))
                )
                self._counts[number] = count
                if count:
                    first, last = index.unit(0), index.unit(count - 1)
                    if first.base <= last.base and log.is_record(first) and log.is_record(last):
                        return FileOffsets(first.base, last.base + last.number - 1)
                    wrong = "the index points to positions where no such record begins"
                elif pair.log.is_growing or log.first_size() == 0:
                    return None
                else:
                    wrong = "the index is empty, but the log is not"
        self._rebuild(number, wrong)
        return self._rebuilt[number].range

    def _read_index(self, number: int) -> RecordPlaces | None:
        """The records of a file according to its index file. None if the index is inconsistent."""
        pair = self.pairs[number]
        # ``range_of`` returns None for a file without records. It also checks the first and last
        # unit, and walks the file if one of them is wrong.
        if self.range_of(number) is None:
            none: Int64Array = np.empty(0, np.int64)
            return RecordPlaces(none, none, none, none, is_rebuilt=False)
        if number in self._rebuilt:
            return self._rebuilt[number]
        assert pair.index is not None
        if pair.index.size_bytes > INDEX_LIMIT_BYTES:
            raise OutOfMemoryBudget(
                f"the index file has {pair.index.size_bytes} bytes, more than Lastwrite reads",
                path=pair.index.path,
            )
        data: ByteArray = np.empty(pair.index.size_bytes // _UNIT_BYTES * _UNIT_BYTES, np.uint8)
        with _OpenPair(pair.index) as index:
            index.read_into(data, 0)
        units = batch_units(data.data)
        units = units[: min(valid_count(units), self._counts[number])]
        bases = units["base"].astype(np.int64)
        lasts = bases + units["number"] - 1
        positions = units["physical_offset"].astype(np.int64) - pair.log.start
        sizes = units["size"].astype(np.int64)
        ends = positions + sizes
        is_right = (
            len(units) > 0
            and positions[0] >= 0
            and ends[-1] <= pair.log.size_bytes
            and bool((bases[1:] > lasts[:-1]).all())
            and bool((positions[1:] >= ends[:-1]).all())
            and bool((lasts >= bases).all())
        )
        found = RecordPlaces(positions, sizes, bases, lasts, is_rebuilt=False)
        return found if is_right and found.range == self.range_of(number) else None

    def _rebuild(self, number: int, wrong: str) -> None:
        """Build an index of the file in memory, and add a note."""
        self._check_unmoved()
        pair = self.pairs[number]
        entries, stop = self._walk(number)
        self._take(number, entries)
        path = pair.log.path if pair.index is None else pair.index.path
        made = (
            f"{wrong}; the index was rebuilt in memory from {len(entries.bases)} records of the log"
        )
        self._note(recovered(made, path, None, remedy_at(path, _RESTORE_INDEX)))
        if stop.code in _CODES_OF_DAMAGE:
            unknown = (
                "without the index Lastwrite cannot determine whether the bytes from here on "
                f"are damaged or stale: {kernels.CODES[stop.code]}"
            )
            self._note(recovered(unknown, pair.log.path, stop.position))

    def _take(self, number: int, entries: RecordPlaces) -> None:
        self._rebuilt[number] = entries
        self._ranges[number] = entries.range

    def _is_index_correct(self, number: int, entries: RecordPlaces, at: int, stop: _Stop) -> bool:
        """Whether entry ``at`` of the index is right, although no valid record was read for it.

        If so, the record is damaged, and the damage is reported. If not, a rebuilt index replaces
        the stored index.
        """
        self._check_unmoved()
        pair = self.pairs[number]
        if not entries.is_rebuilt:
            walked, end = self._walk(number)
            place = int(np.searchsorted(walked.positions, entries.positions[at]))
            columns = list(zip(walked[:4], entries[:4], strict=True))
            if place < len(walked.bases):
                is_right = all(int(ours[place]) == int(told[at]) for ours, told in columns)
            else:
                is_right = all(np.array_equal(ours, told[:place]) for ours, told in columns)
            if not is_right:
                self._take(number, walked)
                made = (
                    "the index points to missing records; it was rebuilt in memory from "
                    f"{len(walked.bases)} records of the log"
                )
                path = pair.index.path if pair.index else pair.log.path
                self._note(recovered(made, path, None, remedy_at(path, _RESTORE_INDEX)))
                if end.code in _CODES_OF_DAMAGE:
                    wrong = (
                        "without a valid index no message can be read from here on: "
                        f"{kernels.CODES[end.code]}"
                    )
                    self.damage.append(damaged(wrong, pair.log.path, end.position))
                return False
        wrong = (
            f"the message of queue offset {int(entries.bases[at])} is damaged: "
            f"{kernels.CODES[stop.code]}"
        )
        problem = damaged(wrong, pair.log.path, int(entries.positions[at]))
        if problem not in self.damage:
            self.damage.append(problem)
        return True

    # ------------------------------------------------------------------ the log alone

    def _walk(self, number: int) -> tuple[RecordPlaces, _Stop]:
        """The records of a log file from its first byte on, found without the index.

        The walk ends at a record that is left from an earlier compaction. That is a record whose
        queue offset does not rise, or is not below the next file's first offset. If the first
        record stores its right address, a later record with a wrong address ends the walk too.
        """
        file = self.pairs[number].log
        below = self._first_of(number + 1)
        columns: list[Int64Array] = []
        floor = -1
        states_address: bool | None = None
        stop = _Stop(kernels.END, 0)
        table: MessageTable = np.zeros(_WALKED_ROWS, MESSAGE)
        buffer: ByteArray = np.empty(min(CHUNK_BYTES, file.size_bytes), np.uint8)
        begin = at = filled = 0
        with _OpenPair(file) as log:
            while True:
                rows, at, code, where, wanted = kernels.split(buffer, at, filled, table, False)
                if rows:
                    some = table[:rows]
                    is_own = some["physical_offset"] == some["position"] + (file.start + begin)
                    if states_address is None:
                        states_address = bool(is_own[0])
                    fits = _is_rising(some["queue_offset"], floor) & (some["queue_offset"] < below)
                    if states_address:
                        fits &= is_own
                    count = rows if fits.all() else int(np.argmin(fits))
                    if count:
                        floor = int(some["queue_offset"][count - 1])
                        kept = some[:count]
                        places = (kept["position"] + begin, kept["size"], kept["queue_offset"])
                        columns.append(np.stack(places))
                    if count < rows:
                        stop = _Stop(kernels.BAD_ORDER, begin + int(some["position"][count]))
                        break
                if code == kernels.OK and rows == len(table):
                    continue
                left = file.size_bytes - begin - at
                if code not in (kernels.OK, kernels.NEED_MORE):
                    stop = _Stop(int(code), begin + int(where))
                    break
                if at == filled == file.size_bytes - begin or left < max(int(wanted), 8):
                    stop = _Stop(kernels.END if left < 8 else kernels.NEED_MORE, begin + at)
                    break
                begin += at
                at, filled = 0, min(max(int(wanted), CHUNK_BYTES), left)
                if len(buffer) < filled:
                    buffer = np.empty(filled, np.uint8)
                log.read_into(buffer[:filled], begin)
        found = np.concatenate(columns, axis=1) if columns else np.empty((3, 0), np.int64)
        return RecordPlaces(found[0], found[1], found[2], found[2], is_rebuilt=True), stop

    def _first_of(self, number: int) -> int:
        """The first queue offset of a file. 2**63 - 1 if the file's index is missing or wrong."""
        index = self.pairs[number].index if number < len(self.pairs) else None
        if index is not None:
            with _OpenPair(self.pairs[number].log) as log, _OpenPair(index) as opened:
                first = opened.unit(0) if index.size_bytes >= _UNIT_BYTES else None
                if first is not None and _is_valid(first) and log.is_record(first):
                    return first.base
        return np.iinfo(np.int64).max

    # ------------------------------------------------------------------ files

    def _folder(self, part: StoreFolder) -> str:
        return queue_folder(os.path.join(self.root, part), self.name)

    def _identity(self) -> tuple[tuple[int, int], ...]:
        """A value that changes if a file of the queue is added, removed or renamed.

        An exchange of the folder ``compaction`` changes it, too.
        """
        seen = []
        for part in (StoreFolder.COMPACTION_LOG, StoreFolder.COMPACTION_INDEX):
            try:
                found = os.stat(self._folder(part))
                seen.append((found.st_ino, found.st_mtime_ns))
            except OSError:
                seen.append((-1, -1))
        return tuple(seen)

    def _check_unmoved(self) -> None:
        """Raise ``FilesMoved`` if the folders have changed since they were listed.

        Otherwise files from before and after the change would be compared. They do not match,
        although no file is damaged.
        """
        if self._identity() != self._last_identity:
            raise FilesMoved

    def _note(self, problem: Problem) -> None:
        if problem not in self.notes:
            self.notes.append(problem)


class _OpenPair:
    """One open file of a pair: a log file or its index.

    Raises:
        FilesMoved: the file was deleted or replaced.
        LogError: the file cannot be read.
    """

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self._reader: SegmentReader | None = None
        if file.etag:
            self._reader = _moved_or(file.open)
            return
        try:
            self._handle = os.open(file.path, os.O_RDONLY)
        except FileNotFoundError:
            raise FilesMoved from None
        except OSError as error:
            raise to_log_error(error, file.path, "read the file") from error
        seen = os.fstat(self._handle)
        is_same = seen.st_size == file.size_bytes and seen.st_ino == file.inode
        if not is_same or not (file.is_growing or seen.st_mtime_ns == file.mtime_ns):
            os.close(self._handle)
            raise FilesMoved

    def read_into(self, target: ByteArray, position: int) -> None:
        """Fill ``target`` with the file's bytes from ``position`` on."""
        if self._reader is not None:
            reader = self._reader
            return _moved_or(lambda: reader.read_into(target, position))
        view = memoryview(target)
        while len(view):
            try:
                count = os.preadv(self._handle, [view], position)
            except OSError as error:
                raise to_log_error(error, self.file.path, "read the file") from error
            if not count:
                raise FilesMoved
            view, position = view[count:], position + count

    def bytes_at(self, position: int, count: int) -> bytes:
        """Read ``count`` bytes from ``position`` on, or fewer at the file's end."""
        if self._reader is not None:
            content = np.empty(max(min(count, self.file.size_bytes - position), 0), np.uint8)
            self.read_into(content, position)
            return content.tobytes()
        try:
            return os.pread(self._handle, count, position)
        except OSError as error:
            raise to_log_error(error, self.file.path, "read the file") from error

    def unit(self, slot: int) -> BatchUnit:
        """Read the unit in slot ``slot`` of an index file."""
        data = self.bytes_at(slot * _UNIT_BYTES, _UNIT_BYTES)
        if len(data) < _UNIT_BYTES:
            raise FilesMoved
        return BatchUnit._make(BATCH_UNIT.unpack_from(data, 0))

    def first_size(self) -> int:
        """The size field of a log file's first record; 0 if there is no record."""
        data = self.bytes_at(0, 8)
        is_record = int.from_bytes(data[4:8], "big", signed=True) in (MAGIC_V1, MAGIC_V2)
        return int.from_bytes(data[:4], "big", signed=True) if is_record else 0

    def is_record(self, unit: BatchUnit) -> bool:
        """Whether the log file has a record that matches a unit of its index."""
        position = unit.physical_offset - self.file.start
        if position < 0 or not RECORD_HEAD.size <= unit.size <= self.file.size_bytes - position:
            return False
        data = self.bytes_at(position, RECORD_HEAD.size)
        if len(data) < RECORD_HEAD.size:
            return False
        head = RecordHead._make(RECORD_HEAD.unpack_from(data, 0))
        is_message = head.magic in (MAGIC_V1, MAGIC_V2)
        return is_message and (head.size, head.queue_offset) == (unit.size, unit.base)

    def __enter__(self) -> _OpenPair:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        else:
            os.close(self._handle)


def _moved_or(work: Callable[[], T]) -> T:
    """Call ``work``, which reads an object of an archive, and return its result.

    Raises:
        FilesMoved: compaction has replaced the object.
    """
    try:
        return work()
    except CommitConflict:
        raise FilesMoved from None


def _is_valid(unit: BatchUnit) -> bool:
    return unit.physical_offset >= 0 and unit.size > 0 and unit.base >= 0 and unit.number > 0


def _chunk_end(entries: RecordPlaces, at: int) -> int:
    """The end of the chunk of entries that begins with entry ``at``.

    Entries of a chunk are contiguous.
    """
    ends = entries.positions + entries.sizes
    last = entries.positions[at] + CHUNK_BYTES
    until = max(int(np.searchsorted(ends, last, side="right")), at + 1)
    gaps = np.flatnonzero(ends[at : until - 1] != entries.positions[at + 1 : until])
    return at + 1 + int(gaps[0]) if len(gaps) else until


def _agreeing(table: MessageTable, entries: RecordPlaces, at: int, begin: int) -> int:
    """The number of leading records that match their index entries.

    The entries begin at entry ``at``.
    """
    until = at + len(table)
    same = (
        (table["size"] == entries.sizes[at:until])
        & (table["queue_offset"] == entries.bases[at:until])
        & (table["position"] + begin == entries.positions[at:until])
    )
    return len(table) if same.all() else int(np.argmin(same))


def _is_rising(offsets: Int64Array, floor: int) -> npt.NDArray[np.bool_]:
    """For each offset, whether it is above the previous offset; for the first, above ``floor``."""
    rises = np.empty(len(offsets), np.bool_)
    rises[0] = offsets[0] > floor
    rises[1:] = offsets[1:] > offsets[:-1]
    return rises


def first_damage(queues: Sequence[CompactedQueue]) -> LogError | None:
    """The first unreadable record of the queues, as an error. None without damage."""
    return error_of([problem for queue in queues for problem in queue.damage])
