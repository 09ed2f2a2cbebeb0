"""Reads a commit log or a compaction log from start to end, skipping blank records and damage.

A record is valid if its lengths add up *and* its stored address is its position. This distinguishes
three cases: the end of written data, stale bytes after it (a broker may pad a write from a used
buffer), and damage with whole records after it. After damage the walk continues at the next valid
record.

Source: RocketMQ 5.5.0 ``CommitLog.checkMessageAndReturnSize``; docs/formats/rocketmq.md, "Record";
docs/formats/rocketmq-compaction.md, "What 5.5.0 does otherwise than older releases".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from lastwrite.errors import LogError
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.rocketmq.format import kernels, names, properties
from lastwrite.rocketmq.format.kernels import MESSAGE, MessageTable
from lastwrite.rocketmq.format.properties import RECORD_CRC, RECORD_CRC_BYTES, record_crc_holds
from lastwrite.rocketmq.format.record import (
    IS_INNER,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    SMALLEST_RECORD_BYTES,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    RocketmqMessage,
    decode_message,
)
from lastwrite.rocketmq.store.reading import MappedFile, MappedLog
from lastwrite.storage.problems import CHUNK_BYTES, DAMAGE_REMEDY, damaged, recovered
from lastwrite.storage.reading import SegmentReader

RECORD_LIMIT_BYTES = 256 << 20
TORN_REMEDY = "copy the file before you start a broker, because the broker truncates the log here"

_BAD_ADDRESS = -1  # a further stop code, beside the codes of ``kernels``
_FRAME_BYTES = PHYSICAL_OFFSET_AT + 8
_MAGICS = tuple((magic & 0xFFFF_FFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_CRC_HEAD = np.frombuffer(RECORD_CRC.encode() + b"\x01", np.uint8)

Note = Callable[[Problem], None]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


class RecordWindow(NamedTuple):
    """A chunk of complete records of one file. It is valid until the next chunk is read.

    Positions in ``table`` refer to ``buffer``, whose first byte is at ``base`` in the file.
    """

    file: MappedFile
    base: int
    buffer: ByteArray
    table: MessageTable

    def message(self, row: int) -> RocketmqMessage:
        at = int(self.table["position"][row])
        return decode_message(self.buffer, at, at + int(self.table["size"][row]))

    def position(self, row: int) -> int:
        """The position of a record in its file."""
        return self.base + int(self.table["position"][row])

    def bytes_at(self, at: int, length: int) -> bytes:
        return self.buffer[at : at + length].tobytes()

    @property
    def end(self) -> int:
        """The address after the last record."""
        return self.file.start + self.position(len(self.table) - 1) + int(self.table["size"][-1])

    def is_dispatched(self, rows: Int64Array | slice) -> Flags:
        """For each row, whether a broker writes a unit for the record."""
        stage = self.table["sys_flag"][rows] & TRANSACTION_MASK
        return ~np.isin(stage, (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))

    def is_inner_batch(self, rows: Int64Array | slice) -> Flags:
        """For each row, whether the body is a sequence of messages."""
        flags: Flags = self.table["sys_flag"][rows] & IS_INNER == IS_INNER
        return flags

    def has_topic(self, topic: str) -> Flags:
        """For each row, whether the record belongs to the topic."""
        wanted = topic.encode()
        out: Flags = self.table["topic_length"] == len(wanted)
        rows = np.flatnonzero(out)
        if len(rows) and wanted:
            topics = self._gather(self.table["topic_at"][rows], len(wanted))
            out[rows] = (topics == np.frombuffer(wanted, np.uint8)).all(axis=1)
        return out

    def rows_of(self, topic: str | None, queue: int | None) -> Int64Array:
        """The rows of the topic and queue. None means any."""
        picked = np.ones(len(self.table), dtype=np.bool_)
        if queue is not None:
            picked &= self.table["queue_id"] == queue
        if topic is not None:
            picked &= self.has_topic(topic)
        return np.flatnonzero(picked)

    def by_queue(self) -> Iterator[tuple[TopicPartition, Int64Array]]:
        """The rows of each queue, in order."""
        table = self.table
        for length in np.unique(table["topic_length"]).tolist():
            rows = np.flatnonzero(table["topic_length"] == length)
            topics = self._gather(table["topic_at"][rows], length)
            queues = table["queue_id"][rows].astype(">i4").view(np.uint8).reshape(-1, 4)
            flat = np.ascontiguousarray(np.concatenate([topics, queues], axis=1))
            named = flat.view(np.dtype((np.void, length + 4))).ravel()
            _, firsts, which = np.unique(named, return_index=True, return_inverse=True)
            for group, first in enumerate(firsts.tolist()):
                row = int(rows[first])
                topic = self.bytes_at(int(table["topic_at"][row]), length)
                name = TopicPartition(topic.decode("utf-8", "replace"), int(table["queue_id"][row]))
                yield name, rows[which == group]

    def by_light_queue(
        self, batched: Collection[str]
    ) -> Iterator[tuple[TopicPartition, Int64Array, Int64Array]]:
        """For each light queue, the rows that a broker dispatches to it, and their offsets in it.

        ``batched`` has the topics with batch consume queues, whose records are not in light queues.
        """
        marked = (self.table["marks"] & kernels.HAS_MULTI_DISPATCH) != 0
        marked &= self.is_dispatched(slice(None))
        found: dict[TopicPartition, list[tuple[int, int]]] = {}
        for row in np.flatnonzero(marked).tolist():
            one = self.table[row]
            raw = self.bytes_at(int(one["topic_at"]), int(one["topic_length"]))
            topic = raw.decode("utf-8", "replace")
            if topic in batched or not names.dispatches_to_light_queues(topic):
                continue
            raw = self.bytes_at(int(one["properties_at"]), int(one["properties_length"]))
            for light, queue, offset in properties.light_queues(
                properties.parse(raw), int(one["queue_id"])
            ):
                found.setdefault(TopicPartition(light, queue), []).append((row, offset))
        for name, pairs in sorted(found.items()):
            rows, offsets = np.asarray(pairs, np.int64).T
            yield name, rows, offsets

    def rows_with(self, wanted: bytes) -> list[int]:
        """The rows of records whose properties contain these bytes, each once."""
        table = self.table
        if not len(table) or not wanted:
            return []
        data = self.bytes_at(0, int(table["position"][-1] + table["size"][-1]))
        hits = np.asarray(list(_hits(data, wanted)), dtype=np.int64)
        rows = np.searchsorted(table["position"], hits, side="right") - 1
        inside = rows >= 0
        rows, hits = rows[inside], hits[inside]
        return [int(row) for row in np.unique(rows[hits >= table["properties_at"][rows]])]

    def _gather(self, starts: Int64Array, length: int) -> ByteArray:
        """An array whose rows are the ``length`` bytes from each start."""
        rows: ByteArray = self.buffer[starts[:, None] + np.arange(length)]
        return rows


class Ending(NamedTuple):
    """How the data of a file end."""

    position: int  # position after the last record
    blank: bool  # whether a blank record follows
    damage: str | None = None  # problem if other bytes than a blank record or zeros follow


class LogWalk:
    """The records of a log by address.

    ``note`` is called with each problem. ``endings`` has the end of each file that was read.
    ``checks_crc`` verifies the checksums of bodies, and of whole records if they have one. A record
    with a wrong checksum is reported and also returned. ``is_compaction`` means that zeros may end
    any file, and addresses may be wrong.
    """

    def __init__(
        self,
        log: MappedLog,
        note: Note,
        checks_crc: bool = False,
        is_compaction: bool = False,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        self._log = log
        self._note = note
        self._checks_crc = checks_crc
        self._is_compaction = is_compaction
        self._remedy = names.RESTORE_QUEUE if is_compaction else DAMAGE_REMEDY
        self._advance = advance or (lambda count: None)
        self._buffer: ByteArray = np.empty(CHUNK_BYTES, dtype=np.uint8)
        self._table: MessageTable = np.zeros(
            CHUNK_BYTES // SMALLEST_RECORD_BYTES // 2, dtype=MESSAGE
        )
        self.endings: dict[str, Ending] = {}
        written = (file.start for file in reversed(log.files) if _is_written(file))
        self._last_written = 0 if is_compaction else next(written, 0)
        if log.bound is not None and not is_compaction:
            # A broker wrote records up to the bound, so no file may end before it.
            self._last_written = log.end

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[RecordWindow]:
        """The records with an address in ``[start, end)``, chunk by chunk.

        A record must begin at ``start``, unless ``start`` is below all records.
        """
        if self._log.bound is not None:
            end = self._log.bound if end is None else min(end, self._log.bound)
        for file in self._log.files:
            if file.end <= start or (end is not None and file.start >= end):
                continue
            yield from self._file(file, max(start - file.start, 0), end)

    def records(
        self, start: int = 0, end: int | None = None
    ) -> Iterator[tuple[MappedFile, int, RocketmqMessage]]:
        """The records of ``chunks`` one by one, each with its file and its position in the file."""
        for chunk in self.chunks(start, end):
            for row in range(len(chunk.table)):
                yield chunk.file, chunk.position(row), chunk.message(row)

    # ------------------------------------------------------------------ one file

    def _file(self, file: MappedFile, position: int, end: int | None) -> Iterator[RecordWindow]:
        stop = file.size_bytes if end is None else min(end - file.start, file.size_bytes)
        # Do not read beyond the bound of a log that a broker has open, because records there may
        # be incomplete.
        limit = file.size_bytes if self._log.bound is None else stop
        with file.open() as reader:
            while position < stop:
                have = min(len(self._buffer), limit - position)
                reader.read_into(self._buffer[:have], position)
                rows, consumed, code, at, wanted = kernels.split(
                    self._buffer, 0, have, self._table, self._checks_crc
                )
                if code == kernels.BAD_CRC:
                    wrong = kernels.CODES[kernels.BAD_CRC]
                    self._note(damaged(wrong, file.path, position + int(at), self._remedy))
                    more, consumed, code, at, wanted = kernels.split(
                        self._buffer, consumed, have, self._table[rows : rows + 1], False
                    )
                    rows += more
                table = self._table[:rows]
                if not self._is_compaction:
                    strays = table["physical_offset"] != file.start + position + table["position"]
                    if strays.any():
                        rows = int(np.argmax(strays))
                        at = consumed = int(table["position"][rows])
                        code, table = _BAD_ADDRESS, table[:rows]
                if stop < file.size_bytes:
                    table = table[: int(np.searchsorted(table["position"], stop - position))]
                if self._checks_crc and not self._is_compaction:
                    self._check_record_crcs(file, position, table)
                if len(table):
                    yield RecordWindow(file, position, self._buffer, table)
                self._advance(consumed)
                position += int(consumed)
                if code == kernels.OK:
                    continue
                if code == kernels.NEED_MORE and position + wanted <= limit:
                    if consumed == 0 and not self._grow(wanted):
                        code = kernels.BAD_SIZE
                    else:
                        continue
                is_filled = file.size_bytes - position < 8  # no further record fits
                if code == kernels.NEED_MORE and is_filled and self._is_compaction:
                    break
                found = self._skip_damage(file, reader, position, int(code), int(wanted))
                if found is None:
                    self._advance(file.size_bytes - position)
                    return
                self._advance(found - position)
                position = found
        self.endings[file.path] = Ending(min(position, file.size_bytes), False)

    def _grow(self, needed: int) -> bool:
        if needed > RECORD_LIMIT_BYTES:
            return False
        if needed > len(self._buffer):
            self._buffer = np.empty(int(needed), dtype=np.uint8)
        return True

    def _skip_damage(
        self, file: MappedFile, reader: SegmentReader, position: int, code: int, needed: int
    ) -> int | None:
        """Report damage, and find the next record after it. Returns the record's position.

        Returns None if the file has no record after the damage.
        """
        room = file.size_bytes - position
        is_last = self._is_compaction or file.start >= self._last_written
        if code == kernels.BLANK:
            self.endings[file.path] = Ending(position, True)
            if needed != room:
                wrong = f"a blank record has a size of {needed} bytes, but the file has {room} left"
                self._note(damaged(wrong, file.path, position, self._remedy))
            return None
        if code == kernels.END and is_last:
            if self._is_compaction or self._is_blank(reader, position, room):
                self.endings[file.path] = Ending(position, False)
                return None
        after = self._next_record(file, reader, position + 1)
        wrong = (
            "the record contains another address than its own"
            if code == _BAD_ADDRESS
            else kernels.CODES[code]
        )
        if code == kernels.NEED_MORE:
            wrong = f"the record needs {needed} bytes, but the file has {room} left"
        if after is not None:
            wrong = (
                f"{wrong}; the {after - position} bytes before the next undamaged record are lost"
            )
            self._note(damaged(wrong, file.path, position, self._remedy))
            return after
        self.endings[file.path] = Ending(position, False, wrong)
        if not is_last:
            wrong = f"the log ends here although later files exist: {wrong}"
            self._note(damaged(wrong, file.path, position, self._remedy))
        elif code in (kernels.END, _BAD_ADDRESS):
            wrong, remedy = (
                "the file has stale bytes after the log's end",
                "nothing to do: a broker never reads them",
            )
            self._note(recovered(wrong, file.path, position, remedy))
        else:
            self._note(
                recovered(
                    f"the last record is incomplete: {wrong}", file.path, position, TORN_REMEDY
                )
            )
        return None

    def _is_blank(self, reader: SegmentReader, position: int, room: int) -> bool:
        """Whether zeros begin at ``position``. A file of zeros is not read to its end."""
        head = self._buffer[: min(room, 1 << 16)]
        reader.read_into(head, position)
        return not head.any()

    def _next_record(self, file: MappedFile, reader: SegmentReader, position: int) -> int | None:
        """The position of the first valid record at or after ``position``."""
        buffer = np.empty(min(CHUNK_BYTES, max(file.size_bytes - position, 0)), dtype=np.uint8)
        while file.size_bytes - position >= SMALLEST_RECORD_BYTES:
            have = min(len(buffer), file.size_bytes - position)
            reader.read_into(buffer[:have], position)
            if not buffer[:have].any() and file.start >= self._last_written:
                return None  # the written data has ended
            data = buffer[:have].tobytes()
            for hit in sorted(chain.from_iterable(_hits(data, magic, 4) for magic in _MAGICS)):
                at = hit - 4
                stated = data[at + PHYSICAL_OFFSET_AT : at + _FRAME_BYTES]
                if len(stated) < 8:
                    break
                if int.from_bytes(stated, "big", signed=True) == file.start + position + at:
                    if self._is_whole(file, reader, position + at):
                        return position + at
            if have < len(buffer) or position + have >= file.size_bytes:
                return None
            position += have - _FRAME_BYTES
        return None

    def _is_whole(self, file: MappedFile, reader: SegmentReader, position: int) -> bool:
        frame = np.empty(4, dtype=np.uint8)
        reader.read_into(frame, position)
        size = int(frame.view(">i4")[0])
        if not SMALLEST_RECORD_BYTES <= size <= min(file.size_bytes - position, RECORD_LIMIT_BYTES):
            return False
        whole = np.empty(size, dtype=np.uint8)
        reader.read_into(whole, position)
        try:
            decode_message(whole, 0, size)
        except LogError:
            return False
        return True

    def _check_record_crcs(self, file: MappedFile, position: int, table: MessageTable) -> None:
        """Verify the checksum over the whole record. Few brokers write one."""
        rows = np.flatnonzero(table["properties_length"] >= RECORD_CRC_BYTES)
        starts = table["position"][rows] + table["size"][rows] - RECORD_CRC_BYTES
        heads = self._buffer[starts[:, None] + np.arange(len(_CRC_HEAD))]
        for row in rows[(heads == _CRC_HEAD).all(axis=1)].tolist():
            at, size = int(table["position"][row]), int(table["size"][row])
            if record_crc_holds(memoryview(self._buffer)[at : at + size]) is False:
                wrong = "the record has a wrong checksum"
                self._note(damaged(wrong, file.path, position + at))


def _hits(data: bytes, wanted: bytes, start: int = 0) -> Iterator[int]:
    """The positions where the bytes ``wanted`` occur in ``data`` from ``start`` on, ascending."""
    at = data.find(wanted, start)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


def _is_written(file: MappedFile) -> bool:
    """Whether a broker has written to the file. A file created in advance has only zeros."""
    head = np.zeros(min(8, file.size_bytes), dtype=np.uint8)
    with file.open() as reader:
        reader.read_into(head, 0)
    return bool(head.any())
