"""Kafka's share of ``verify``: contents of batches, the truth of indexes, side files that must not change."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from lastwrite.audit.contents import PieceContents, Rules
from lastwrite.compaction.batch_promises import KnownProducer, Snapshot
from lastwrite.compaction.settings import KafkaTopicConfig
from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.formats.kafka import index_truth
from lastwrite.formats.kafka.content import KafkaContents, seed_from
from lastwrite.formats.kafka.index import ABORTED_TRANSACTION, OFFSET_ENTRY, TIME_ENTRY
from lastwrite.formats.kafka.index_truth import NO_TIME, Lie, TransactionTruth
from lastwrite.formats.kafka.names import LEADER_EPOCHS, PARTITION_METADATA
from lastwrite.formats.kafka.snapshot import decode_snapshot
from lastwrite.formats.kafka.text import decode_leader_epochs
from lastwrite.logstore import kafka as store
from lastwrite.logstore.single import read_small
from lastwrite.model.columns import BatchTable, Int64Array
from lastwrite.model.contents import BY_HEADER, BY_OFFSET, BY_TIMESTAMP
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment
from lastwrite.model.verification import Violation
from lastwrite.model.work import Piece
from lastwrite.pipeline.kafka import KAFKA

_DELETE_IT = "delete the index: a broker makes it anew"
_DELETE_INDEXES = "delete all indexes of the segment: a broker then makes them anew"
_NO_END = (1 << 63) - 1
_ORDERS = {"offset": BY_OFFSET, "timestamp": BY_TIMESTAMP, "header": BY_HEADER}
_POLICY = {"cleanup.policy", "log.cleanup.policy"}
# Brokers before 4.0 made at most one entry an append, however large: no advice below that.
_SPARSE_BYTES = 1 << 20
_NOTHING: Int64Array = np.empty(0, dtype=np.int64)


class KafkaProof:
    """See ``contents.Proof`` for what each call owes."""

    def contents(
        self, seed: bytes | None, is_after: bool, now_ms: int | None, order: int, header: str
    ) -> KafkaContents:
        return KafkaContents(
            None if seed is None else seed_from(seed), is_after, now_ms, order, header
        )

    def indexes(self, piece: Piece) -> KafkaIndexProof:
        return KafkaIndexProof(piece)

    def index_interval_bytes(self, config: Mapping[str, object]) -> int:
        return KafkaTopicConfig.from_names(config).index_interval_bytes

    def rules(self, log: PartitionLog, config: Mapping[str, object]) -> Rules:
        """Kafka ages deletes of v0 and v1 by the file of the last clean segment (cleanup section 7)."""
        settings = KAFKA.settings(log, config)
        checkpoint = log.checkpoint
        if checkpoint is None or not log.log_start <= checkpoint <= log.end_offset:
            checkpoint = log.log_start
        clean = [segment.mtime_ms for segment in log.segments if segment.base_offset < checkpoint]
        return Rules(
            producer_expiration_ms=settings.producer_id_expiration_ms,
            old_tombstones_until_ms=clean[-1] - settings.delete_retention_ms if clean else 0,
            order=_ORDERS[settings.compaction_strategy],
            header=settings.compaction_strategy_header,
            keeps_start=bool(_POLICY & config.keys()) and not settings.deletes,
        )

    def snapshot(self, log: PartitionLog) -> Snapshot | None:
        for offset, path in reversed(store.snapshots_of(log.folder)):
            if not log.log_start < offset <= log.end_offset:
                continue
            try:
                entries = decode_snapshot(read_small(path))
            except (CorruptLog, UnsupportedFormat):  # a broker takes the next older one, too
                continue
            return Snapshot(
                offset,
                tuple(
                    KnownProducer(
                        e.producer_id,
                        e.producer_epoch,
                        e.last_offset,
                        e.last_offset - e.offset_delta,
                        e.timestamp_ms,
                        e.current_txn_first_offset,
                    )
                    for e in entries
                ),
            )
        return None

    def transactions(self, log: PartitionLog) -> KafkaTransactionProof:
        return KafkaTransactionProof(log)

    def judge_segment(
        self,
        segment: Segment,
        parts: Sequence[PieceContents],
        is_closed: bool,
        index_interval_bytes: int,
    ) -> tuple[list[Problem], list[str]]:
        """What needs the whole segment; ``parts``: all its pieces, in order, each read to its end."""
        indexes = KafkaIndexProof(segment)
        next_offset, largest, advice = segment.base_offset, NO_TIME, []
        for part in parts:
            indexes.hides(next_offset, largest)
            next_offset = max(next_offset, part.next_offset)
            largest = max(largest, part.largest_timestamp)
        indexes.ends(segment.size_bytes, next_offset, largest if is_closed and parts else None)
        if is_closed and parts:
            if largest >= 0 and not len(indexes.times):
                advice.append(
                    f"{segment.path}: its time index is empty, so lookups by time go by the file's own time"
                )
            scanned = index_truth.widest_gap(indexes.positions, segment.size_bytes)
            batch = max(part.largest_batch_bytes for part in parts)
            if scanned > _SPARSE_BYTES + index_interval_bytes + 2 * batch:
                advice.append(
                    f"{segment.path}: its offset index is sparse, a reader may scan {scanned} bytes"
                )
        return indexes.problems, advice

    def differences(self, before: PartitionLog, after: PartitionLog) -> list[Violation]:
        span = max(before.log_start, after.log_start), min(before.end_offset, after.end_offset)
        found = []
        for name, what in (
            (PARTITION_METADATA, "the topic's id"),
            (LEADER_EPOCHS, "the leader epochs"),
        ):
            was, now = os.path.join(before.folder, name), os.path.join(after.folder, name)
            if not os.path.exists(was):
                continue
            if not os.path.exists(now):
                found.append(
                    Violation("side_file", f"{what} were there before and are missing", None, now)
                )
            elif _meaning(name, was, *span) != _meaning(name, now, *span):
                found.append(Violation("side_file", f"{what} are not what they were", None, now))
        return found


def _meaning(name: str, path: str, first: int, end: int) -> object:
    """What a side file says of offsets from ``first`` to below ``end``; a broker may forget other epochs."""
    content = read_small(path)
    if name != LEADER_EPOCHS:
        return content
    try:
        epochs = decode_leader_epochs(content)
    except UnsupportedFormat:  # of a version that we do not know: the bytes count
        return content
    ends = [*(epoch.start_offset for epoch in epochs[1:]), end]
    spans = [
        (epoch.epoch, max(epoch.start_offset, first), min(after, end))
        for epoch, after in zip(epochs, ends, strict=False)
    ]
    return [span for span in spans if span[1] < span[2]]


class KafkaIndexProof:
    """The entries of a segment's two indexes, held against batches in order; see ``formats.kafka.index_truth``."""

    def __init__(self, source: Segment | Piece) -> None:
        self._log_path = log_path = source.path
        self.problems: list[Problem] = []
        self.offsets, self.positions = _NOTHING, _NOTHING
        self.times, self.time_offsets = _NOTHING, _NOTHING
        try:
            self.offsets, self.positions = store.read_offset_index(source)
        except LogError as error:
            self._unreadable(error, store.index_path(log_path))
        try:
            self.times, self.time_offsets = store.read_time_index(source)
        except LogError as error:
            self._unreadable(error, store.time_index_path(log_path))
        self._reached = NO_TIME
        self._last = -1

    def check(self, table: BatchTable, shift: int) -> None:
        """The next batches of a piece; ``shift`` is what their positions lack to file positions."""
        begins = table["origin"] + shift
        end = int(begins[-1]) + int(table["origin_size"][-1])
        self._offset_lie(
            index_truth.false_offset_entry(
                self.offsets, self.positions, begins, end, table["base_offset"]
            )
        )
        last = table["next_offset"] - 1
        before = self._last if self._last >= 0 else int(last[0])
        self._time_lie(
            index_truth.false_time_entry(
                self.times, self.time_offsets, last, table["max_timestamp"], self._reached, before
            )
        )
        self._reached = max(self._reached, int(table["max_timestamp"].max()))
        self._last = int(last[-1])

    def hides(self, next_offset: int, reached: int) -> None:
        """Hold the time index against all batches below ``next_offset``, the latest of them at ``reached``."""
        if reached != NO_TIME:
            self._time_lie(
                index_truth.hidden_from_time_entry(
                    self.times, self.time_offsets, next_offset, reached
                )
            )

    def ends(self, size_bytes: int, next_offset: int, largest: int | None) -> None:
        """Hold the last entries against the segment's end; ``largest`` None: more may be appended."""
        self._offset_lie(
            index_truth.entry_beyond(self.offsets, self.positions, size_bytes, next_offset)
        )
        if largest is not None:
            self._time_lie(
                index_truth.wrong_last_time(self.times, self.time_offsets, next_offset, largest)
            )

    def _offset_lie(self, lie: Lie | None) -> None:
        if lie is not None:
            self._add(lie.problem, store.index_path(self._log_path), lie.row * OFFSET_ENTRY.size)

    def _time_lie(self, lie: Lie | None) -> None:
        if lie is not None:
            self._add(lie.problem, store.time_index_path(self._log_path), lie.row * TIME_ENTRY.size)

    def _unreadable(self, error: LogError, path: str) -> None:
        self.problems.append(
            Problem(ProblemKind.DAMAGED, error.problem, error.path or path, error.at, _DELETE_IT)
        )

    def _add(self, problem: str, path: str, position: int) -> None:
        """One problem an index: what follows a lie mostly follows from it."""
        if not any(known.path == path for known in self.problems):
            self.problems.append(Problem(ProblemKind.DAMAGED, problem, path, position, _DELETE_IT))


class KafkaTransactionProof:
    """The transaction indexes of a log, held against its transactions; see ``index_truth.TransactionTruth``."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def problems(self, transactions: Int64Array, first_open: int | None) -> list[Problem]:
        """The first lie of each index; ``transactions`` and ``first_open`` as the log's own markers tell them."""
        truth = TransactionTruth(transactions, first_open, self._log.log_start)
        found = []
        for n, segment in enumerate(self._log.segments):
            if not segment.is_abort_indexed:
                continue
            path = store.transaction_index_path(segment.path)
            try:
                entries = store.read_aborted_of(segment.path)
            except LogError as error:
                found.append(
                    Problem(
                        ProblemKind.DAMAGED,
                        error.problem,
                        error.path or path,
                        error.at,
                        _DELETE_INDEXES,
                    )
                )
                continue
            end = self._log.segment_end(n) if n + 1 < len(self._log.segments) else _NO_END
            rows = [
                (e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
                for e in entries
            ]
            lie = truth.first_lie(rows, segment.base_offset, end)
            if lie is not None:
                at = lie.row * ABORTED_TRANSACTION.size
                found.append(Problem(ProblemKind.DAMAGED, lie.problem, path, at, _DELETE_INDEXES))
        return found


KAFKA_PROOF = KafkaProof()
