"""Stage one of dispatch: read pieces of the commit log, and list their records.

A task maps a file and splits the records of its pieces. It writes a row of eight words for each
record to a scratch file, sorted by queue, and three words for each key of the index
(``rocketmq.format.dispatch``). Bodies are not copied.

If a piece begins in the middle of a file, the position of its first record is unknown, because the
consume queues may be lost. So the walk searches a record whose stored address is its position, and
returns where it began and ended. If two adjacent pieces do not meet, the driver starts a second
walk from the right address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import numpy as np

from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.rocketmq.dispatch_work import ScratchSlice, WalkedPiece, WalkUnit
from lastwrite.rocketmq.format import dispatch as rules
from lastwrite.rocketmq.format import kernels
from lastwrite.rocketmq.format.kernels import MESSAGE
from lastwrite.rocketmq.format.names import dispatches_to_light_queues
from lastwrite.rocketmq.store import reading
from lastwrite.rocketmq.store.reading import MappedFile
from lastwrite.storage.files import to_log_error
from lastwrite.storage.mapping import mapped
from lastwrite.storage.scratch import ScratchReader, ScratchWriter

# Reasons why a walk stopped, in addition to the codes of ``kernels``.
OUT_OF_PLACE: Final = 100  # a record has a wrong address, or a broker cannot dispatch it
CUT: Final = 101  # a record is larger than the rest of its file

_TABLE_ROWS = 2048  # messages per call; the table of half a megabyte stays in the CPU cache
_ENTRY_COLUMNS = 3  # columns of an index entry: hash, address, store time

WORDS = {
    **kernels.CODES,
    OUT_OF_PLACE: (
        "a record contains another address than its own, or its INNER_NUM or INNER_BASE is not "
        "an integer"
    ),
    CUT: "a record is larger than the rest of its file",
}


class WalkBuffers:
    """The buffers of a task, reused for each piece of the commit log."""

    def __init__(self) -> None:
        self.table = np.empty(_TABLE_ROWS, MESSAGE)
        self.numbers = rules.QueueNumbers()
        self.rows: Int64Array = np.empty((1 << 15, rules.ROW_WORDS), np.int64)
        self.row_queues: Int64Array = np.empty(1 << 15, np.int64)
        self.entries: list[Int64Array] = [
            np.empty(1 << 15, np.int64) for _ in range(_ENTRY_COLUMNS)
        ]
        self.light: Int64Array = np.zeros((rules.MOST_LIGHT, rules.LIGHT_WORDS), np.int64)

    def grow_rows(self) -> None:
        self.rows = np.concatenate([self.rows, np.empty_like(self.rows)])
        self.row_queues = np.concatenate([self.row_queues, np.empty_like(self.row_queues)])

    def grow_entries(self) -> None:
        self.entries = [np.concatenate([column, np.empty_like(column)]) for column in self.entries]


def walk_all(units: Sequence[WalkUnit]) -> Iterator[WalkedPiece]:
    """Walk the pieces of one task, and write their rows to one scratch file."""
    if not units:
        return
    buffers = WalkBuffers()
    with ScratchWriter(units[0].scratch, "rows") as scratch:
        for unit in units:
            scratch.allow(unit.memory_scratch, unit.memory_bytes)
            yield walk(unit, scratch, buffers)


def walk(unit: WalkUnit, scratch: ScratchWriter, buffers: WalkBuffers) -> WalkedPiece:
    """Walk one piece.

    Raises:
        CommitConflict: the file's size has changed.
        LogError: a scratch file cannot be written.
    """
    with mapped(unit.file.path, unit.file.size_bytes) as data:
        return _RangeWalk(unit, data, buffers).run(scratch)


class _RangeWalk:
    """Walks one piece of a commit log file."""

    def __init__(self, unit: WalkUnit, data: ByteArray, buffers: WalkBuffers) -> None:
        self.unit, self.data, self.buffers = unit, data, buffers
        self.base = unit.file.start
        self.rows = 0
        self.entries = 0
        self.light_bad: Int64Array = np.zeros(2, np.int64)
        self.result = WalkedPiece()

    def run(self, scratch: ScratchWriter) -> WalkedPiece:
        unit, base, result = self.unit, self.base, self.result
        start, limit = unit.start - base, unit.end - base
        at = start if unit.is_exact else int(rules.find_record(self.data, start, limit, base))
        if at < 0:
            return result
        result.begin = base + at
        while at < limit:
            at, stop, stop_at = self._split(at, limit)
            if stop:
                result.stop, result.stop_at = stop, base + stop_at
                break
        result.end = base + at
        result.light_bad, result.light_bad_at = map(int, self.light_bad)
        self._write(scratch)
        return result

    def _split(self, at: int, limit: int) -> tuple[int, int, int]:
        """Process the next records of the piece.

        Returns the next position, and the code and position of a stop; the code is 0 if there is
        none.
        """
        table = self.buffers.table
        n, to, code, code_at, _ = kernels.split(self.data, at, limit, table, False)
        # A record that crosses the end of the piece belongs to this piece.
        if n == 0 and code == kernels.NEED_MORE:
            n, to, code, code_at, _ = kernels.split(self.data, at, len(self.data), table[:1], False)
            if n == 0 and code == kernels.NEED_MORE:
                code = kernels.END if not self.data[at:].any() else CUT
        sound = int(rules.count_dispatchable(table, n, self.base))
        self._take(sound)
        if sound < n:
            place = int(table[sound]["position"])
            return place, OUT_OF_PLACE, place
        if code in (kernels.OK, kernels.NEED_MORE):
            return to, 0, 0
        return to, code, code_at

    def _take(self, count: int) -> None:
        if not count:
            return
        buffers, numbers = self.buffers, self.buffers.numbers
        table = buffers.table
        self.result.records += count
        self.result.last_record = self.base + int(table[count - 1]["position"])
        done = 0
        while done < count:
            done, self.rows, code = rules.take(
                self.data,
                table,
                done,
                count,
                numbers.slots,
                numbers.table,
                numbers.topics,
                buffers.rows,
                buffers.row_queues,
                self.rows,
                self.unit.queued_from,
                self.unit.light,
                buffers.light,
                self.light_bad,
            )
            if code == rules.FULL:
                buffers.grow_rows()
            elif code == rules.NEW_QUEUE:
                message = table[done]
                self._add_queue(message["topic_at"], message["topic_length"], message["queue_id"])
            elif code == rules.NEW_LIGHT_QUEUE:
                self._add_queue(*buffers.light[0, :3])
        self._index(count)

    def _add_queue(self, at: int, length: int, queue: int) -> None:
        topic = self.data[int(at) : int(at) + int(length)].tobytes()
        name = topic.decode("utf-8", "replace")
        light = rules.NO_UNITS if name in self.unit.batched else 0
        if not light and dispatches_to_light_queues(name):
            light = rules.TO_LIGHT
        is_compacted = name in self.unit.compacted
        self.buffers.numbers.add(topic, int(queue), is_compacted=is_compacted, light=light)

    def _index(self, count: int) -> None:
        buffers = self.buffers
        places = buffers.table["physical_offset"][:count]
        if self.unit.indexed_from > places[-1]:
            return
        done = int(np.searchsorted(places, self.unit.indexed_from))
        while done < count:
            filled, before = 0, done
            filled, done = kernels.index_keys(
                self.data,
                buffers.table,
                done,
                count,
                *(column[self.entries :] for column in buffers.entries),
                self.unit.index_tags,
            )
            self.entries += filled
            if done < count:
                buffers.grow_entries()
            assert done > before or filled == 0

    def _write(self, scratch: ScratchWriter) -> None:
        buffers, numbers = self.buffers, self.buffers.numbers
        if self.rows:
            ends: Int64Array = np.empty(len(numbers), np.int64)
            out = np.empty((self.rows, rules.ROW_WORDS), np.int64)
            rules.group(buffers.rows, buffers.row_queues, self.rows, ends, out)
            path, position = scratch.append(out)
            row_bytes = out.itemsize * rules.ROW_WORDS
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
            for number in np.flatnonzero(ends > starts).tolist():
                start, end = int(starts[number]), int(ends[number])
                stretch = ScratchSlice(path, position + start * row_bytes, end - start)
                self.result.queues.append((*numbers.names[number], stretch))
        if self.entries:
            path, position = scratch.append(*(column[: self.entries] for column in buffers.entries))
            self.result.entries = ScratchSlice(path, position, self.entries)


def read_rows(stretch: ScratchSlice) -> Int64Array:
    """The rows of one queue in one piece, from a scratch file."""
    return _read(stretch.path, stretch.position, stretch.count * rules.ROW_WORDS).reshape(
        -1, rules.ROW_WORDS
    )


def read_entries(
    stretch: ScratchSlice, first: int, count: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Hashes, addresses and store times of ``count`` entries of a piece, from ``first`` on."""
    hashes, places, times = (
        _read(stretch.path, stretch.position + 8 * (column * stretch.count + first), count)
        for column in range(_ENTRY_COLUMNS)
    )
    return hashes, places, times


def _read(path: str, position: int, words: int) -> Int64Array:
    out: Int64Array = np.empty(words, np.int64)
    if words:
        with closing(ScratchReader(path)) as reader:
            reader.read_into(out, position)
    return out


def is_empty(file: MappedFile) -> bool:
    """Whether a file has no data. A broker creates the next file in advance.

    Raises:
        LogError: the file cannot be read.
    """
    try:
        handle = os.open(file.path, os.O_RDONLY)
        try:
            return not any(os.pread(handle, 8, 0))
        finally:
            os.close(handle)
    except OSError as error:
        raise to_log_error(error, file.path, "read the commit log") from error


def has_record(file: MappedFile, address: int) -> bool:
    """Whether a valid record begins at ``address``."""
    return _at(file, address)[0]


def starts_record(file: MappedFile, address: int) -> bool:
    """Whether a record, a blank record or unwritten bytes begin at ``address``."""
    is_record, code = _at(file, address)
    return is_record or code in (kernels.BLANK, kernels.END)


def _at(file: MappedFile, address: int) -> tuple[bool, int]:
    """Whether a valid record begins at ``address``, and the code that ``split`` returns there."""
    if not file.start <= address < file.end:
        return False, kernels.NEED_MORE
    table = np.empty(1, MESSAGE)
    with mapped(file.path, file.size_bytes) as data:
        n, _, code, _, _ = kernels.split(data, address - file.start, len(data), table, False)
        return bool(n) and int(rules.count_dispatchable(table, n, file.start)) == n, int(code)


def written_end(file: MappedFile) -> int:
    """The address after the file's last byte that is not in a hole."""
    stretches = list(reading.written_stretches(file))
    return file.start + (stretches[-1][1] if stretches else 0)


def whole_records(
    file: MappedFile, data: ByteArray, start: int, end: int, bad: list[int], *, is_exact: bool
) -> Iterator[kernels.MessageTable]:
    """The complete records in the bytes ``data`` of a file, skipping damage.

    The records are yielded as tables. A table is valid until the next table is requested. ``start``
    and ``end`` are addresses. ``is_exact`` means that a record begins at ``start``; otherwise the
    first record after it is searched. The addresses of damage are added to ``bad``.
    """
    table = np.empty(_TABLE_ROWS, MESSAGE)
    at, is_lost = start - file.start, not is_exact
    while at < end - file.start:
        if is_lost:
            at = int(rules.find_record(data, at, end - file.start, file.start))
            if at < 0:
                return
        n, to, code, _, _ = kernels.split(data, at, len(data), table, False)
        sound = int(rules.count_dispatchable(table, n, file.start))
        if sound:
            yield table[:sound]
        if sound == n and code == kernels.OK:
            at, is_lost = int(to), False
        elif sound == n and code == kernels.BLANK:
            return
        else:
            place = int(table[sound]["position"]) if sound < n else int(to)
            if (not is_lost or sound) and (code != kernels.END or sound < n):
                bad.append(file.start + place)
            at, is_lost = place + 1, True
