"""Stage two of dispatch: write new files of queues, compaction logs and the index to a work folder.

A task updates one queue, one compaction log or one index file from its rows. It writes each changed
file completely: the old bytes up to the old end, the new bytes, and zeros up to the full size, as
in a broker's file. File names are random, so that a second attempt does not write to a file of the
first. Existing files are not changed; ``trees`` moves the new files into the store.

Source: RocketMQ 5.5.0 ``ConsumeQueue.putMessagePositionInfo`` and ``fillPreBlank``,
``CompactionLog``, ``SparseConsumeQueue.putEndPositionInfo``, ``IndexService.putKey``;
docs/formats/rocketmq.md, "Units" and "Index file"; docs/formats/rocketmq-compaction.md, "Into the
compaction log".
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from lastwrite.errors import CorruptLog, LogError
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.dispatch_work import (
    BuildUnit,
    IndexUnit,
    LogUnit,
    QueueState,
    QueueUnit,
    StagedIndexFiles,
)
from lastwrite.rocketmq.format import dispatch as rules
from lastwrite.rocketmq.format import index_file, units
from lastwrite.rocketmq.format.kernels import put_entries
from lastwrite.rocketmq.format.names import COMPACTION_LOGS, COMPACTION_QUEUES, file_name
from lastwrite.rocketmq.reports import QueueKind
from lastwrite.rocketmq.store.reading import MappedFile, queue_folder
from lastwrite.rocketmq.store.walking import read_entries, read_rows
from lastwrite.storage import files, ownership
from lastwrite.storage.mapping import mapped, mapped_for_writing
from lastwrite.storage.parallel_sync import all_or_raise

_COPY_BYTES = 8 << 20
_ENTRIES_AT_ONCE = 1 << 20


def build(unit: BuildUnit) -> StagedIndexFiles:
    """Write the new files of one queue, compaction log or index file to the work folder; sync them.

    Raises:
        CorruptLog: a record is no longer at its address.
        LogError: a file cannot be read or written.
    """
    if isinstance(unit, QueueUnit):
        built = _build_queue(unit)
    elif isinstance(unit, LogUnit):
        built = _build_log(unit)
    else:
        built = _build_index(unit)
    all_or_raise([partial(files.fsync_file, path) for _, path in built.files])
    return built


@contextmanager
def _writing(operation: str, path: str) -> Iterator[None]:
    """Convert an OSError during a write to a LogError. Tests inject faults here."""
    try:
        files.faults.reach(operation, path)
        yield
    except OSError as error:
        raise files.to_log_error(error, path, "write a new file") from error


class _StagedFile:
    """A file that is being written to the work folder."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, uuid.uuid4().hex)
        self.size = 0
        with _writing("create aside", self.path):
            self._file = files.create(self.path, ownership.private())

    def append(self, data: bytes | ByteArray) -> None:
        with _writing("append aside", self.path):
            view = memoryview(data)
            while len(view):
                written = self._file.write(view)
                view = view[written:]
                self.size += written

    def append_file(self, path: str, size_bytes: int) -> None:
        """Append the first ``size_bytes`` of another file."""
        with mapped(path) as data:
            if len(data) < size_bytes:
                wrong = f"the file has {len(data)} bytes, but {size_bytes} are expected"
                raise LogError(wrong, path=path)
            for at in range(0, size_bytes, _COPY_BYTES):
                self.append(data[at : min(at + _COPY_BYTES, size_bytes)])

    def finish(self, size_bytes: int) -> None:
        """Extend the file to its full size with zeros, which take no disk space."""
        with _writing("size aside", self.path):
            self._file.truncate(size_bytes)
            self._file.close()


# ---------------------------------------------------------------------- consume queues


class _QueueFiles:
    """The new files of a consume queue, from its current end on."""

    def __init__(self, unit: QueueUnit, unit_bytes: int) -> None:
        self._unit, self._unit_bytes = unit, unit_bytes
        self._file: _StagedFile | None = None
        self._start = 0  # byte position in the queue at which the open file begins
        self._at = 0  # byte position in the queue of the next byte to write
        self._state: QueueState | None = unit.state
        self.done: list[tuple[str, str]] = []
        if unit.state.next_number >= 0:
            self._at = unit.state.next_number * unit_bytes

    def begin_at(self, number: int) -> None:
        """Restart the queue at unit ``number``. Deletes the files that were written so far."""
        self.drop()
        self._state = None
        self._at = number * self._unit_bytes

    def drop(self) -> None:
        """Delete the new files written so far."""
        if self._file is not None:
            self._end_file()
        for _, path in self.done:
            files.unlink(path)
        self.done.clear()

    def append(self, data: ByteArray) -> None:
        while len(data):
            if self._file is None:
                self._open()
            assert self._file is not None
            part = data[: self._start + self._unit.file_bytes - self._at]
            self._file.append(part)
            self._at += len(part)
            data = data[len(part) :]
            if self._at == self._start + self._unit.file_bytes:
                self._end_file()

    def _open(self) -> None:
        size = self._unit.file_bytes
        self._start = self._at // size * size
        self._file = _StagedFile(self._unit.folder)
        held = self._at - self._start
        if not held:
            return
        if self._state is None:
            self._file.append(units.FILLER * (held // self._unit_bytes))
        elif self._state.tail_start == self._start:
            self._file.append_file(self._state.tail_path, held)
        else:
            wrong = "the queue's last file does not contain the queue's end"
            raise CorruptLog(wrong, None, self._state.tail_path)

    def _end_file(self) -> None:
        assert self._file is not None
        self._file.finish(self._unit.file_bytes)
        self.done.append((queue_file(self._unit.name, self._start), self._file.path))
        self._file = None

    def close(self) -> None:
        if self._unit.is_cut and self._file is None and not self.done:
            if self._at % self._unit.file_bytes:
                self._open()
        if self._file is not None:
            self._end_file()


def queue_file(name: TopicPartition, start: int) -> str:
    """The path of a queue's file, relative to ``consumequeue`` or another folder tree of queues."""
    return os.path.join(queue_folder("", name), file_name(start))


def _build_queue(unit: QueueUnit) -> StagedIndexFiles:
    is_batch = unit.kind is QueueKind.BATCH
    unit_bytes = rules.BATCH_UNIT_BYTES if is_batch else rules.UNIT_BYTES
    fill = rules.fill_batch_queue if is_batch else rules.fill_queue
    state: Int64Array = np.zeros(rules.STATE_WORDS, np.int64)
    state[rules.NEXT], state[rules.END] = unit.state.next_number, unit.state.end
    out = _QueueFiles(unit, unit_bytes)
    built = StagedIndexFiles(next_number=unit.state.next_number)
    last_number = (1 << 63) // unit_bytes - 2 * unit.file_bytes
    for stretch in unit.rows:
        rows = read_rows(stretch)
        if unit.delay_ms is not None:
            is_delayed = (rows[:, rules.FLAGS] & rules.IS_DELAYED) != 0
            rows[is_delayed, rules.TAGS] = rows[is_delayed, rules.STORED] + unit.delay_ms
        was_empty = not is_batch and state[rules.NEXT] < 0
        state[rules.FILLED] = state[rules.IS_ANEW] = 0
        data = np.empty(len(rows) * unit_bytes, np.uint8)
        done, code = fill(rows, unit.until, state, data)
        if code == rules.GAP or state[rules.NEXT] > last_number:
            place = min(int(done), len(rows) - 1)
            built.gap_at = int(rows[place, rules.ADDRESS])
            expected = max(int(state[rules.NEXT]), 0)
            offset = int(rows[place, rules.OFFSET])
            built.gap = f"queue offset {offset} of {unit.name}, but offset {expected} is expected"
            out.close()
            out.drop()
            return built
        if state[rules.IS_ANEW]:
            built.is_anew, built.added = unit.state.next_number >= 0 or built.is_anew, 0
        if was_empty and state[rules.FILLED] and state[rules.FIRST]:
            built.begins_late = True
        if state[rules.IS_ANEW] or (was_empty and state[rules.FILLED]):
            out.begin_at(int(state[rules.FIRST]))
        filled = int(state[rules.FILLED])
        built.added += filled
        out.append(data[: filled * unit_bytes])
    out.close()
    built.passed = int(state[rules.PASSED])
    built.next_number = (
        int(state[rules.NEXT]) if not is_batch else unit.state.next_number + built.added
    )
    built.files = out.done
    built.bytes_written = len(out.done) * unit.file_bytes
    return built


# ---------------------------------------------------------------------- compaction logs


class _PairFiles:
    """The new pairs of log and index files of a compaction log, from its last pair on."""

    def __init__(self, unit: LogUnit) -> None:
        self._unit = unit
        self._first = max(unit.state.start, 0)
        self._pair = -1
        self._log: _StagedFile | None = None
        self._index: _StagedFile | None = None
        self.done: list[tuple[str, str]] = []

    def address(self, pair: int) -> int:
        """The address of the first byte of the log file number ``pair``."""
        return self._first + pair * self._unit.log_bytes

    def turn_to(self, pair: int) -> None:
        """Continue with log and index file number ``pair``, and close all earlier files."""
        state = self._unit.state
        if self._pair < 0 and state.start >= 0:
            self._open(0)
            assert self._log is not None and self._index is not None
            self._log.append_file(state.log_path, state.log_wrote)
            self._index.append_file(state.index_path, state.index_wrote)
        while self._pair < pair:
            if self._log is not None:
                self._finish(is_closed=True)
            self._open(self._pair + 1)

    def _open(self, pair: int) -> None:
        self._pair = pair
        self._log, self._index = _StagedFile(self._unit.folder), _StagedFile(self._unit.folder)

    def append(self, records: ByteArray, entries: ByteArray) -> None:
        assert self._log is not None and self._index is not None
        self._log.append(records)
        self._index.append(entries)

    def _finish(self, *, is_closed: bool) -> None:
        assert self._log is not None and self._index is not None
        unit = self._unit
        if is_closed:
            blank, ends = rules.closing(
                self._log.size, self._index.size, unit.log_bytes, unit.index_bytes
            )
            self._log.append(blank)
            if ends:
                self._index.append(units.END_UNIT)
        for file, tree, size in (
            (self._log, COMPACTION_LOGS, unit.log_bytes),
            (self._index, COMPACTION_QUEUES, unit.index_bytes),
        ):
            file.finish(size)
            self.done.append(
                (os.path.join(tree, queue_file(unit.name, self.address(self._pair))), file.path)
            )
        self._log = self._index = None

    def close(self) -> None:
        if self._log is not None:
            self._finish(is_closed=False)


class _CommitLog:
    """The files of the commit log, opened for reading; one is mapped at a time."""

    def __init__(self, log: Sequence[MappedFile]) -> None:
        self._log, self._starts = log, [file.start for file in log]
        self._stack = ExitStack()
        self._place = -1
        self._data: ByteArray = np.empty(0, np.uint8)

    def at(self, address: int) -> tuple[ByteArray, MappedFile]:
        """The commit log file that contains an address, and the file's bytes."""
        place = bisect_right(self._starts, address) - 1
        if place != self._place:
            self.close()
            file = self._log[place]
            self._data = self._stack.enter_context(mapped(file.path, file.size_bytes))
            self._place = place
        return self._data, self._log[self._place]

    def close(self) -> None:
        self._data = np.empty(0, np.uint8)
        self._stack.close()
        self._stack = ExitStack()


def _build_log(unit: LogUnit) -> StagedIndexFiles:
    state: Int64Array = np.zeros(rules.LOG_STATE_WORDS, np.int64)
    state[rules.HIGHEST] = unit.state.highest
    state[rules.PAIR] = 0 if unit.state.start >= 0 else -1
    state[rules.LOG_WROTE], state[rules.INDEX_WROTE] = unit.state.log_wrote, unit.state.index_wrote
    out, built = _PairFiles(unit), StagedIndexFiles()
    log = _CommitLog(unit.commit_log)
    try:
        for stretch in unit.rows:
            rows = read_rows(stretch)
            pairs, positions = np.empty((2, len(rows)), np.int64)
            rules.place_records(
                rows, unit.until, unit.log_bytes, unit.index_bytes, state, pairs, positions
            )
            kept = np.flatnonzero(pairs >= 0)
            rows, pairs, positions = rows[kept], pairs[kept], positions[kept]
            built.added += len(rows)
            for start, end in _runs(rows, pairs):
                out.turn_to(int(pairs[start]))
                data, file = log.at(int(rows[start, rules.ADDRESS]))
                _copy(data, file, rows[start:end], out, int(pairs[start]), positions[start:end])
        out.close()
    finally:
        log.close()
    built.files = out.done
    built.passed, built.keyless, built.too_large = (
        int(state[word]) for word in (rules.OLD, rules.KEYLESS, rules.TOO_LARGE)
    )
    built.next_number = int(state[rules.HIGHEST]) + 1
    built.bytes_written = sum(os.path.getsize(path) for _, path in out.done)
    return built


def _runs(rows: Int64Array, pairs: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield runs of adjacent rows of one log file, each of about ``_COPY_BYTES`` of records."""
    ends = np.cumsum(rows[:, rules.SIZE])
    start = 0
    while start < len(rows):
        end = int(np.searchsorted(pairs, pairs[start], "right"))  # ``pairs`` is ascending
        before = int(ends[start - 1]) if start else 0
        end = min(end, max(start + 1, int(np.searchsorted(ends, before + _COPY_BYTES, "right"))))
        yield start, end
        start = end


def _copy(
    data: ByteArray,
    file: MappedFile,
    rows: Int64Array,
    out: _PairFiles,
    pair: int,
    positions: Int64Array,
) -> None:
    """Copy records of one commit log file into a compaction log."""
    records = np.empty(int(rows[:, rules.SIZE].sum()), np.uint8)
    entries = np.empty(len(rows) * rules.BATCH_UNIT_BYTES, np.uint8)
    size = rules.copy_records(
        data,
        file.start,
        np.ascontiguousarray(rows),
        out.address(pair),
        np.ascontiguousarray(positions),
        records,
        entries,
    )
    if size < 0:
        at = int(rows[0, rules.ADDRESS]) - file.start
        wrong = "records that were read before are missing from this position on"
        remedy = (
            "nothing was changed; find out which program changes the store, stop it, and run "
            "lastwrite dispatch again"
        )
        raise CorruptLog(wrong, at, file.path, remedy)
    out.append(records, entries)


# ---------------------------------------------------------------------- index


def _build_index(unit: IndexUnit) -> StagedIndexFiles:
    file = _StagedFile(unit.folder)
    size = index_file.index_bytes(unit.slots, unit.capacity)
    if unit.old_path:
        held = index_file.INDEX_HEADER.size + 4 * unit.slots
        held += index_file.INDEX_ENTRY.size * max(unit.old_count, 1)
        file.append_file(unit.old_path, min(held, size))
    else:
        address, stored = unit.last_address, unit.last_stored
        if unit.before is not None:
            _, addresses, times = read_entries(unit.before[0], unit.before[1], 1)
            address, stored = int(addresses[0]), int(times[0])
        stored, address = max(stored, 0), max(address, 0)
        file.append(index_file.INDEX_HEADER.pack(stored, stored, address, address, 0, 1))
    file.finish(size)
    added = 0
    with _writing("fill aside", file.path), mapped_for_writing(file.path) as out:
        for stretch, first, count in unit.entries:
            for at in range(first, first + count, _ENTRIES_AT_ONCE):
                some = min(_ENTRIES_AT_ONCE, first + count - at)
                hashes, places, times = read_entries(stretch, at, some)
                added += int(
                    put_entries(out, unit.slots, unit.capacity, hashes, places, times, 0, some)
                )
    if added != sum(count for _, _, count in unit.entries):
        raise LogError(
            "the new index file has fewer entries than were added",
            path=file.path,
            remedy="report this fault in Lastwrite",
        )
    return StagedIndexFiles(files=[(unit.name, file.path)], added=added, bytes_written=size)
