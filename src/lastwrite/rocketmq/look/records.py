"""Verifies every record of a compaction log and writes a row for it, for ``verify``.

The engine reads records with compiled kernels. Here each record is decoded field by field
(``format.record``). Its body's checksum is verified, the body is decompressed, and the record's
unit is compared field by field. Key and content are hashed with keyed BLAKE2 (112 and 128 bits),
which is not the engine's fingerprint function.

A record's content is all its bytes except the address (bytes 28 to 35), which changes with its
file.
Memory: a chunk of the log, a few thousand units, the rows of ``RowSink``.

Source: docs/formats/rocketmq.md, "Record" and "Units".
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b

import numpy as np
from msgspec import structs

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.work import ScanRange
from lastwrite.rocketmq.format import names, units
from lastwrite.rocketmq.format.java_hash import tags_code
from lastwrite.rocketmq.format.properties import KEYS, items
from lastwrite.rocketmq.format.record import PHYSICAL_OFFSET_AT, RocketmqMessage, body_of
from lastwrite.rocketmq.look.walk import LogWalk, RecordWindow
from lastwrite.rocketmq.rules.settings import KEEP, RocketmqConfig
from lastwrite.rocketmq.store.queues import index_path, name_of_file
from lastwrite.rocketmq.store.reading import MappedFile, log_of_one, map_file
from lastwrite.storage.objects.address import use
from lastwrite.storage.problems import damaged, problem_of, recovered
from lastwrite.verification.contents import RowSink
from lastwrite.verification.rows import (
    AFTER,
    DUE,
    FLAG_BITS,
    KEYLESS,
    KEYLESS_RECORDS,
    RECORDS,
    ROW_WORDS,
    TALLIES,
    TOMBSTONE,
    TOMBSTONES,
)
from lastwrite.verification.units import ContentsUnit, PieceContents

INDEX_REMEDY = (
    f"{names.RESTORE_QUEUE}; or, if the commit log still has every message of the queue, move "
    "both folders of the queue out of the store, keep them, and run lastwrite dispatch, which "
    "rebuilds the queue"
)
_UNDECODABLE = (
    f"{names.RESTORE_QUEUE}; or keep the record unchanged with --config undecodable.messages=keep"
)
_MOST_PROBLEMS = 20  # maximum number of problems listed for one piece of a log file
_UNITS_AT_ONCE = 4096
_ROW = struct.Struct("<5Q")
_TWO = struct.Struct("<2Q")
_LANE = 0xFFFFFFFFFFFFFFFF << FLAG_BITS & 0xFFFFFFFFFFFFFFFF
_FIELDS = ("address", "size", "tags code", "store time", "queue offset", "number", "end", "end")

Unit = tuple[int, ...]  # the fields of ``units.BatchUnit``


class CompactionRecordReader:
    """Reads the records of pieces of compaction logs.

    The buffers are reused, so each worker needs an instance.
    """

    def __init__(self, unit: ContentsUnit) -> None:
        config = RocketmqConfig.from_names(unit.config)
        now_ms = time.time_ns() // 1_000_000 if unit.now_ms is None else unit.now_ms
        if unit.limits.stores is not None:
            use(unit.limits.stores)
        self._unit = unit
        self._seed = unit.seed or b""
        self._sink = RowSink(unit)
        # A delete stored at this time or earlier may be missing.
        self._due_until_ms = now_ms - config.delete_retention_ms
        self._keeps_undecodable = config.undecodable_messages == KEEP

    def close(self) -> None:
        self._sink.close()

    def read(self, piece: ScanRange) -> PieceContents:
        found = PieceContents(self._unit.partition, self._unit.is_after, piece)
        self._sink.filled = 0
        proof = _PieceProof(piece, found)
        walk = LogWalk(proof.log, proof.note_walk, is_compaction=True)
        try:
            for chunk in walk.chunks(*proof.span):
                self._take(chunk, proof)
            proof.ends()
            self._sink.flush(found)
        except (CorruptLog, UnsupportedFormat) as error:
            proof.note(problem_of(error, piece.path))
        found.is_whole = all(problem.is_note for problem in proof.wrong)
        found.tally = tuple(proof.tally)
        return found

    def _take(self, chunk: RecordWindow, proof: _PieceProof) -> None:
        packed = bytearray()
        for row in range(len(chunk.table)):
            position = chunk.position(row)
            if position >= proof.piece.end:
                proof.note_unindexed(position)
                break
            message = chunk.message(row)
            proof.check(message, position)
            flags = self._flags(message, position, proof)
            if self._sink.is_seeded:
                data = chunk.bytes_at(int(chunk.table["position"][row]), message.size)
                packed += self._row(message, data, flags)
        if packed:
            rows = np.frombuffer(bytes(packed), dtype="<u8").astype(np.uint64)
            self._sink.add(rows.reshape(-1, ROW_WORDS), proof.found)

    def _flags(self, message: RocketmqMessage, position: int, proof: _PieceProof) -> int:
        """The flags of a record. Also adds the record to the counts."""
        flags = AFTER if self._unit.is_after else 0
        proof.tally[RECORDS] += 1
        try:
            is_delete = not body_of(message, self._unit.limits.plain_bytes)
        except (CorruptLog, UnsupportedFormat) as error:
            is_delete = False
            kind = ProblemKind.KEPT if self._keeps_undecodable else ProblemKind.DAMAGED
            wrong = f"queue offset {message.queue_offset}: {error.problem}"
            remedy = None if self._keeps_undecodable else _UNDECODABLE
            proof.note(Problem(kind, wrong, proof.piece.path, position, remedy))
        if message.keys is None:
            flags |= KEYLESS
            proof.tally[KEYLESS_RECORDS] += 1
        elif is_delete:
            flags |= TOMBSTONE | (DUE if message.store_time_ms <= self._due_until_ms else 0)
            proof.tally[TOMBSTONES] += 1
        return flags

    def _row(self, message: RocketmqMessage, data: bytes, flags: int) -> bytes:
        """A row as in ``verification.rows``. For a record without a key, its offset is the key."""
        if flags & KEYLESS:
            key = self._digest(message.queue_offset.to_bytes(8, "big"), b"keyless")
        else:
            key = self._digest(dict(items(message.properties_bytes))[KEYS.encode()], b"key")
        said = self._digest(data[:PHYSICAL_OFFSET_AT] + data[PHYSICAL_OFFSET_AT + 8 :], b"content")
        one, two = _TWO.unpack(key)
        return _ROW.pack(one, two & _LANE | flags, message.queue_offset, *_TWO.unpack(said))

    def _digest(self, data: bytes, person: bytes) -> bytes:
        return blake2b(data, digest_size=16, key=self._seed, person=person).digest()


class _PieceProof:
    """Checks the records of one piece and their units."""

    def __init__(self, piece: ScanRange, found: PieceContents) -> None:
        self.piece = piece
        self.found = found
        self.tally = [0] * TALLIES
        self.wrong: list[Problem] = found.problems
        start = names.parse_file_name(piece.path.rpartition("/")[2])
        assert start is not None  # files with other names are not listed
        file = MappedFile(
            piece.path,
            start,
            piece.size_bytes,
            piece.mtime_ns,
            piece.growing,
            is_growing=piece.growing > 0,
            etag=piece.etag,
        )
        self.log = log_of_one(file)
        if file.is_growing:
            self.log = replace(self.log, bound=start + piece.end)
        self._start = start
        self._name = name_of_file(piece.path)
        self._topic = self._name.topic.encode()
        self._index = index_path(piece.path)
        self._row, self._units, self._is_last = self._units_of_piece()
        self._unit = next(self._units, None)
        self._lowest = piece.lowest_offset

    @property
    def span(self) -> tuple[int, int | None]:
        """The addresses to walk for the piece.

        The end is None for the last piece, so that the file's end is checked.
        """
        return self._start + self.piece.start, None if self._is_last else (
            self._start + self.piece.end
        )

    def _units_of_piece(self) -> tuple[int, Iterator[Unit], bool]:
        """The units of the piece.

        Returns the number of the first unit, the units, and whether they are the last in the file.
        """
        entries = units.batch_units(map_file(MappedFile(self._index, 0, 0, 0)))
        count = units.valid_count(entries)
        addresses = entries["physical_offset"][:count].astype(np.int64) - self._start
        first, end = np.searchsorted(addresses, [self.piece.start, self.piece.end]).tolist()

        def each() -> Iterator[Unit]:
            for at in range(first, end, _UNITS_AT_ONCE):
                yield from entries[at : min(at + _UNITS_AT_ONCE, end)].tolist()

        return first, each(), end == count and not self.log.bound

    def note(self, problem: Problem) -> None:
        if len(self.wrong) < _MOST_PROBLEMS:
            self.wrong.append(problem)
        elif problem.kind is ProblemKind.DAMAGED:
            self.wrong[-1] = problem

    def note_walk(self, problem: Problem) -> None:
        """Add a problem of the walk. A partial last record is damage if a unit points to it."""
        if problem.is_note and (problem.position or 0) < self.piece.end:
            problem = structs.replace(problem, kind=ProblemKind.DAMAGED, remedy=names.RESTORE_QUEUE)
        self.note(problem)

    def note_unindexed(self, position: int) -> None:
        wrong = "the index has no unit for these records"
        remedy = "no consumer receives these records, and a broker removes them when it starts"
        self.note(recovered(wrong, self.piece.path, position, remedy))

    def _damaged(self, message: str, position: int) -> None:
        self.note(damaged(message, self.piece.path, position, names.RESTORE_QUEUE))

    def check(self, message: RocketmqMessage, position: int) -> None:
        """Check the next record, at ``position``."""
        offset = message.queue_offset
        if not message.body_crc_holds:
            self._damaged("the body has a wrong checksum", position)
        if (message.topic_bytes, message.queue_id) != (self._topic, self._name.partition):
            place = f"{message.topic} queue {message.queue_id}"
            self._damaged(f"the compaction log of {self._name} has a record of {place}", position)
        if offset < self._lowest:
            wrong = f"the record has queue offset {offset}, but {self._lowest} or more is expected"
            self._damaged(wrong, position + 20)
        elif offset >= self.piece.end_offset:
            wrong = (
                f"the record has queue offset {offset}, but the file ends before offset "
                f"{self.piece.end_offset}"
            )
            self._damaged(wrong, position + 20)
        if message.physical_offset != self._start + position:
            wrong = (
                f"the record contains the address {message.physical_offset}, which is not its own"
            )
            remedy = (
                "nothing to do: brokers serve the record, and the next compaction corrects the "
                "address"
            )
            self.note(recovered(wrong, self.piece.path, position + PHYSICAL_OFFSET_AT, remedy))
        found = self.found
        found.batches += 1
        found.first_offset = offset if found.first_offset < 0 else found.first_offset
        found.next_offset = self._lowest = max(self._lowest, offset + 1)
        found.largest_timestamp = max(found.largest_timestamp, message.store_time_ms)
        self._check_unit(message, position)

    def _check_unit(self, message: RocketmqMessage, position: int) -> None:
        address = self._start + position
        while self._unit is not None and self._unit[0] < address:
            self._without_record()
        if self._unit is None or self._unit[0] > address:
            self._damaged(f"{self._index} has no unit for the record", position)
            return
        expected = (
            address,
            message.size,
            tags_code(message.tags),
            message.store_time_ms,
            message.queue_offset,
            1,
            -1,
            0,
        )
        for name, said, true in zip(_FIELDS, self._unit, expected, strict=True):
            if said != true:
                wrong = f"the {name} of unit {self._row} is {said}, but its record has {true}"
                at = self._row * units.BATCH_UNIT.size
                self.note(damaged(wrong, self._index, at, INDEX_REMEDY))
                break
        self._next_unit()

    def _without_record(self) -> None:
        assert self._unit is not None
        position = self._unit[0] - self._start
        self._damaged(
            f"unit {self._row} of {self._index} points to an address where no record begins",
            position,
        )
        self._next_unit()

    def _next_unit(self) -> None:
        self._unit, self._row = next(self._units, None), self._row + 1

    def ends(self) -> None:
        """Check that no unit refers to a record after the last record of the piece."""
        while self._unit is not None:
            self._without_record()
