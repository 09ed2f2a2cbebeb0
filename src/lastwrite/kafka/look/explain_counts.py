"""The records of a partition that compaction will take one day, counted; and those of one key, each
with its facts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastwrite.encoding.fingerprint import secret_from
from lastwrite.engine.chunks import Chunk, Chunks
from lastwrite.engine.plan import new_secret
from lastwrite.engine.rules.verdict import Verdict, judge
from lastwrite.engine.system import Decision
from lastwrite.errors import LogError
from lastwrite.kafka.format.batch import decode_batch, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.rules.explain_record import RecordFacts
from lastwrite.kafka.system import KAFKA
from lastwrite.model.columns import (
    ABORTED,
    CONTROL,
    IS_OLD,
    IS_TRANSACTIONAL,
    KEYLESS,
    NO_HORIZON,
    SHADOWED,
    SPENT,
    TOMBSTONE,
    BatchTable,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import Limits, Piece
from lastwrite.reports.explanation import Part, Waiting
from lastwrite.storage.reading import SegmentReader

_LANE = np.uint64(0xFFFFFFFF00000000)


@dataclass(frozen=True, slots=True)
class Hit:
    """A record of the key."""

    facts: RecordFacts
    timestamp_ms: int
    segment: int  # base offset
    position: int  # of its batch
    value_bytes: int | None


class WaitingRecords:
    """Fed piece by piece, oldest first: ``waiting`` counts, ``hits`` are the records of ``key``."""

    def __init__(
        self,
        log: PartitionLog,
        decision: Decision,
        include_active: bool,
        key: bytes | None,
        limits: Limits,
    ) -> None:
        self.waiting = Waiting()
        self.hits: list[Hit] = []
        self._log = log
        self._decision = decision
        self._include_active = include_active
        self._key = key
        self._format = KAFKA.new_format(limits.plain_bytes)
        self._chunks = Chunks(limits)
        self._open = {
            producer.producer_id: producer.open_from
            for producer in log.producers
            if producer.open_from >= 0
        }
        self._secret = secret_from(new_secret())
        self._lanes = None if key is None else self._lanes_of(key)

    def piece(self, piece: Piece, following: ByteArray | None, ever: ByteArray | None) -> None:
        """The next piece; ``following``: states as the next round has them, None: it does not reach
        the piece.

        ``ever``: states as if all of the log were closed and replicated.

        Raises:
            CorruptLog: as ``Chunks.of``.
        """
        assert ever is not None
        at = 0
        for chunk in self._chunks.of(self._format, piece):
            records = int(chunk.table["records"].sum())
            inside = None if following is None else following[at : at + records]
            keep = np.ones(records, dtype=np.uint8)
            if inside is not None:
                self._judge(chunk.table, inside, piece, keep)
                self._count_inside(chunk.table, inside, ever[at : at + records], keep)
            else:
                self._count_above(ever[at : at + records])
            if self._lanes is not None:
                self._find(chunk, piece, inside, ever[at : at + records], keep)
            at += records

    def _judge(self, table: BatchTable, states: ByteArray, piece: Piece, keep: ByteArray) -> None:
        judge(
            table,
            states,
            self._decision.policy,
            piece.mtime_ns // 1_000_000,
            keep,
            np.empty(len(table), dtype=np.uint8),
            np.empty(len(table), dtype=np.int64),
            np.zeros(len(Verdict), dtype=np.int64),
        )

    # ------------------------------------------------------------------ counts

    def _count_inside(
        self, table: BatchTable, states: ByteArray, ever: ByteArray, keep: ByteArray
    ) -> None:
        """Count what the range of the next round holds."""
        waiting = self.waiting
        batch = np.repeat(np.arange(len(table)), table["records"])
        horizons: Int64Array = table["horizon"][batch]
        old = (table["flags"][batch] & IS_OLD) != 0
        control = (states & CONTROL) != 0
        data, gone = ~control, keep == 0
        aborted = data & ((states & ABORTED) != 0)
        shadowed = (states & SHADOWED) != 0
        waiting.superseded_next += _count(data & gone & shadowed)
        waiting.superseded_later += _count(data & ~gone & ((ever & SHADOWED) != 0) & ~shadowed)
        waiting.aborted_next += _count(aborted)
        waiting.keyless_next += _count(data & gone & ((states & KEYLESS) != 0))
        deletes = data & ((states & TOMBSTONE) != 0) & ~aborted & ~shadowed
        stamped = horizons != NO_HORIZON
        waits = deletes & ~gone & stamped
        waiting.deletes_due += _count(deletes & gone)
        waiting.deletes_waiting += _count(waits)
        waiting.deletes_unstamped += _count(deletes & ~gone & ~stamped & ~old)
        waiting.deletes_old += _count(deletes & ~gone & old)
        if waits.any():
            first, last = int(horizons[waits].min()), int(horizons[waits].max())
            waiting.first_horizon_ms = min(
                first, first if waiting.first_horizon_ms is None else waiting.first_horizon_ms
            )
            waiting.last_horizon_ms = max(
                last, last if waiting.last_horizon_ms is None else waiting.last_horizon_ms
            )
        spent = control & ((states & SPENT) != 0)
        waiting.markers_needed += _count(control & ~spent)
        waiting.markers_due += _count(spent & gone)
        waiting.markers_waiting += _count(spent & ~gone & stamped)
        waiting.markers_unstamped += _count(spent & ~gone & ~stamped)

    def _count_above(self, ever: ByteArray) -> None:
        """Count what lies above the range."""
        data = (ever & CONTROL) == 0
        aborted = data & ((ever & ABORTED) != 0)
        shadowed = data & ((ever & SHADOWED) != 0)
        self.waiting.aborted_later += _count(aborted)
        self.waiting.superseded_later += _count(shadowed)
        self.waiting.deletes_above += _count(
            data & ((ever & TOMBSTONE) != 0) & ~aborted & ~shadowed
        )

    # ------------------------------------------------------------------ one key

    def _lanes_of(self, key: bytes) -> tuple[np.uint64, np.uint64]:
        """The key's fingerprint, as ``walk`` makes it of a record."""
        data = np.frombuffer(encode_batch([Record(0, 0, key, None)], base_offset=0), dtype=np.uint8)
        table = self._format.split(data, 0, len(data), 0)[0]
        entries = np.empty((1, 2), dtype=np.uint64)
        for run in self._format.opened(data, table):
            self._format.walk(run, table, self._secret, 0, np.empty(1, dtype=np.uint8), entries, 0)
        return entries[0, 0], entries[0, 1] & _LANE

    def _find(
        self, chunk: Chunk, piece: Piece, inside: ByteArray | None, ever: ByteArray, keep: ByteArray
    ) -> None:
        """Add the chunk's records of the key to ``hits``; aborted ones too, since the table does
        not flag them.
        """
        assert self._lanes is not None
        table = chunk.table
        starts = np.cumsum(table["records"]) - table["records"]
        for run in self._format.opened(chunk.buffer, table):
            records = int(table["records"][run.first : run.last].sum())
            entries = np.empty((records, 2), dtype=np.uint64)
            states = np.empty(records, dtype=np.uint8)
            first = int(starts[run.first])
            filled = self._format.walk(run, table, self._secret, first, states, entries, 0)
            found = (entries[:filled, 0] == self._lanes[0]) & (
                (entries[:filled, 1] & _LANE) == self._lanes[1]
            )
            for ordinal in (entries[:filled, 1][found] & ~_LANE).astype(np.int64).tolist():
                row = int(np.searchsorted(starts, ordinal, side="right")) - 1
                self._take(
                    chunk, piece, row, ordinal - int(starts[row]), ordinal, inside, ever, keep
                )

    def _take(
        self,
        chunk: Chunk,
        piece: Piece,
        row: int,
        place: int,
        ordinal: int,
        inside: ByteArray | None,
        ever: ByteArray,
        keep: ByteArray,
    ) -> None:
        batch = chunk.table[row]
        position = int(batch["origin"]) + chunk.shift
        record = self._record(piece, position, int(batch["origin_size"]), place)
        if record.key != self._key:  # another key of the same fingerprint
            return
        flags, producer_id = int(batch["flags"]), int(batch["producer_id"])
        open_from = self._open.get(producer_id) if flags & IS_TRANSACTIONAL else None
        base_offset = self._log.segments[piece.segment].base_offset
        self.hits.append(
            Hit(
                RecordFacts(
                    offset=record.offset,
                    part=self._part(piece, record.offset, inside is not None),
                    deletes=record.value is None,
                    producer_id=producer_id,
                    aborted=bool(ever[ordinal] & ABORTED),
                    undecided=open_from is not None and int(batch["base_offset"]) >= open_from,
                    goes=not keep[ordinal],
                    shadowed=inside is not None and bool(inside[ordinal] & SHADOWED),
                    shadowed_ever=bool(ever[ordinal] & SHADOWED),
                    horizon_ms=None
                    if int(batch["horizon"]) == NO_HORIZON
                    else int(batch["horizon"]),
                    is_old=bool(flags & IS_OLD),
                    file_ms=piece.mtime_ns // 1_000_000,
                ),
                record.timestamp_ms,
                base_offset,
                position,
                None if record.value is None else len(record.value),
            )
        )

    def _record(self, piece: Piece, position: int, size: int, place: int) -> Record:
        data = np.empty(size, dtype=np.uint8)
        with SegmentReader(piece.path, piece.size_bytes, piece.mtime_ns) as reader:
            reader.read_into(data, position)
        try:
            return decode_batch(memoryview(data), 0).records[place]
        except LogError as error:
            raise error.located(piece.path, position) from error

    def _part(self, piece: Piece, offset: int, is_inside: bool) -> Part:
        if is_inside:
            return Part.CLEAN if offset < self._decision.first_dirty else Part.DIRTY
        is_active = piece.segment + 1 == len(self._log.segments) and not self._include_active
        return Part.ACTIVE if is_active else Part.ABOVE


def _count(chosen: np.ndarray) -> int:
    return int(np.count_nonzero(chosen))
