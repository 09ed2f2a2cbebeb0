"""Kafka's part of ``verify``: checks batches, indexes and side files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.errors import CorruptLog, LogError, RemoteFailed, UnsupportedFormat
from lastwrite.kafka.format.index import ABORTED_TRANSACTION, OFFSET_ENTRY, TIME_ENTRY
from lastwrite.kafka.format.names import LEADER_EPOCHS, PARTITION_METADATA
from lastwrite.kafka.format.remedy import REBUILD, RESTORE
from lastwrite.kafka.format.text import decode_leader_epochs, decode_partition_metadata
from lastwrite.kafka.look.content import KafkaContents, seed_from
from lastwrite.kafka.producers.snapshot import decode_snapshot
from lastwrite.kafka.recovery import index_check
from lastwrite.kafka.recovery.index_check import NO_TIME, BadIndexEntry, TransactionIndexCheck
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.store import index_files
from lastwrite.kafka.store.archived import contents_of, is_archived
from lastwrite.kafka.store.missing import judge_holes
from lastwrite.kafka.store.tiered import is_tier
from lastwrite.kafka.system import KAFKA
from lastwrite.model.columns import BAD_HORIZON, BatchTable, Int64Array
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment
from lastwrite.model.work import ScanRange
from lastwrite.reports.verification import PartitionVerification, Violation
from lastwrite.storage.reading import read_small
from lastwrite.verification.batch_invariants import KnownProducer, Snapshot
from lastwrite.verification.contents import BatchReader
from lastwrite.verification.logs import check_logs
from lastwrite.verification.proof import LogProof, Pair, ProofTools, ProvenRange, Question
from lastwrite.verification.rows import BY_HEADER, BY_OFFSET, BY_TIMESTAMP
from lastwrite.verification.units import ContentsUnit, PieceContents, RemovalRules

_NO_END = (1 << 63) - 1
_ORDERS = {"offset": BY_OFFSET, "timestamp": BY_TIMESTAMP, "header": BY_HEADER}
_POLICY = {"cleanup.policy", "log.cleanup.policy"}
# Brokers before 4.0 write at most one index entry for each append, however large. Therefore gaps in
# an index up to this size are not reported.
_SPARSE_BYTES = 1 << 20
_NOTHING: Int64Array = np.empty(0, dtype=np.int64)


class KafkaProof(LogProof):
    """Verifies Kafka's logs: batches, indexes and side files."""

    system = KAFKA
    damage_remedy = RESTORE

    def is_of_one(self, path: str, folder: str) -> bool:
        """Whether a path names a single log.

        Always True, because the path of a log root with one partition may stand for the partition.
        """
        return True

    def check(
        self, pairs: Sequence[Pair], question: Question, means: ProofTools
    ) -> Iterator[PartitionVerification]:
        return check_logs(self, pairs, question, means)

    def reader(self, unit: ContentsUnit) -> BatchReader:
        seed = None if unit.seed is None else seed_from(unit.seed)
        rules = unit.rules or RemovalRules()
        contents = KafkaContents(seed, unit.is_after, unit.now_ms, rules.order, rules.header)
        return BatchReader(unit, contents, KafkaPieceProof if unit.is_after else KafkaIndexProof)

    def bounds(self, before: PartitionLog, after: PartitionLog) -> ProvenRange:
        """The range of offsets that both compared logs have.

        The bounds of both logs are used, because a copy may lack its root's checkpoints.
        """
        return ProvenRange(
            max(before.log_start, after.log_start), min(before.high_watermark, after.high_watermark)
        )

    def rules(self, log: PartitionLog, config: Mapping[str, object]) -> RemovalRules:
        """The compaction rules by which a log is verified.

        Kafka expires tombstones of v0 and v1 by the modification time of the last clean segment.
        """
        settings = KAFKA.settings(log.folder, config).config
        checkpoint = log.checkpoint
        if checkpoint is None or not log.log_start <= checkpoint <= log.end_offset:
            checkpoint = log.log_start
        clean = [segment.mtime_ms for segment in log.segments if segment.base_offset < checkpoint]
        return RemovalRules(
            producer_expiration_ms=settings.producer_id_expiration_ms,
            old_tombstones_until_ms=clean[-1] - settings.delete_retention_ms if clean else 0,
            order=_ORDERS[settings.compaction_strategy],
            header=settings.compaction_strategy_header,
            max_keyless_ratio=settings.max_keyless_ratio,
            keeps_start=bool(_POLICY & config.keys()) and not settings.deletes,
        )

    def snapshot(self, log: PartitionLog) -> Snapshot | None:
        snapshots = log.snapshots
        if snapshots is None:
            snapshots = tuple(index_files.snapshots_of(log.folder))
        for offset, path in reversed(snapshots):
            if not log.log_start < offset <= log.end_offset:
                continue
            try:
                entries = decode_snapshot(read_small(path))
            except (CorruptLog, UnsupportedFormat):  # like a broker, try the next older snapshot
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
        config: Mapping[str, object],
    ) -> tuple[list[Problem], list[str]]:
        index_interval_bytes = KafkaTopicConfig.from_names(config).index_interval_bytes
        indexes = KafkaIndexProof(segment)
        next_offset, largest, advice = segment.base_offset, NO_TIME, []
        for part in parts:
            indexes.hides(next_offset, largest)
            next_offset = max(next_offset, part.next_offset)
            largest = max(largest, part.largest_timestamp)
        indexes.ends(segment.size_bytes, next_offset, largest if is_closed and parts else None)
        if is_closed and parts and segment.is_indexed:
            if largest >= 0 and not len(indexes.times):
                advice.append(
                    f"{segment.path}: the segment's time index is empty, so lookups by time use "
                    "the file's modification time"
                )
            scanned = index_check.widest_gap(indexes.positions, segment.size_bytes)
            batch = max(part.largest_batch_bytes for part in parts)
            if scanned > _SPARSE_BYTES + index_interval_bytes + 2 * batch:
                advice.append(
                    f"{segment.path}: the segment's offset index is sparse: a lookup may scan "
                    f"{scanned} bytes"
                )
        return indexes.problems, advice

    def judge_holes(
        self, log: PartitionLog, holes: Sequence[tuple[int, int]], config: Mapping[str, object]
    ) -> Sequence[Problem]:
        if is_tier(log.folder):  # a tier's holes are reported when it is listed
            return ()
        if is_archived(log.folder):
            gaps = contents_of(read_versioned_manifest(log.folder).manifest, log.folder).gaps
            holes = [each for each in holes if each not in gaps]  # the user has accepted the gaps
        return judge_holes(log, holes, KAFKA.settings(log.folder, config), config)

    def differences(self, before: PartitionLog, after: PartitionLog) -> list[Violation]:
        span = max(before.log_start, after.log_start), min(before.end_offset, after.end_offset)
        found = []
        for name, what in (
            (PARTITION_METADATA, "the topic's id"),
            (LEADER_EPOCHS, "the leader epochs"),
        ):
            was, now = (
                index_files.side_file(before.folder, name),
                index_files.side_file(after.folder, name),
            )
            path = os.path.join(after.folder, name)
            if was is None:
                continue
            if now is None:
                found.append(
                    Violation(
                        "side_file",
                        f"the file with {what} existed before and is missing now",
                        None,
                        path,
                    )
                )
            elif _meaning(name, was, *span) != _meaning(name, now, *span):
                found.append(
                    Violation("side_file", f"the file with {what} was changed", None, path)
                )
        return found


def _meaning(name: str, content: bytes, first: int, end: int) -> object:
    """A side file's decoded contents, for comparison.

    Leader epochs are limited to ``first`` to ``end``.
    """
    try:
        if name == PARTITION_METADATA:
            return decode_partition_metadata(content)
        epochs = decode_leader_epochs(content)
    except UnsupportedFormat:  # the version is unknown, so compare the bytes
        return content
    ends = [*(epoch.start_offset for epoch in epochs[1:]), end]
    spans = [
        (epoch.epoch, max(epoch.start_offset, first), min(after, end))
        for epoch, after in zip(epochs, ends, strict=False)
    ]
    return [span for span in spans if span[1] < span[2]]


class KafkaIndexProof:
    """Checks a segment's offset index and time index against its batches, which arrive in order."""

    def __init__(self, source: Segment | ScanRange) -> None:
        self._log_path = log_path = source.path
        self.problems: list[Problem] = []
        self.offsets, self.positions = _NOTHING, _NOTHING
        self.times, self.time_offsets = _NOTHING, _NOTHING
        try:
            self.offsets, self.positions = index_files.read_offset_index(source)
        except RemoteFailed:
            raise
        except LogError as error:
            self.problems.append(_unreadable(error, index_files.index_path(log_path)))
        try:
            self.times, self.time_offsets = index_files.read_time_index(source)
        except RemoteFailed:
            raise
        except LogError as error:
            self.problems.append(_unreadable(error, index_files.time_index_path(log_path)))
        self._reached = NO_TIME
        self._last = -1

    def check(self, table: BatchTable, shift: int) -> None:
        """Check the index entries for the next batches.

        A batch's position in ``table`` plus ``shift`` is its position in the file.
        """
        begins = table["origin"] + shift
        end = int(begins[-1]) + int(table["origin_size"][-1])
        self._report_offset_entry(
            index_check.false_offset_entry(
                self.offsets, self.positions, begins, end, table["base_offset"]
            )
        )
        last = table["next_offset"] - 1
        before = self._last if self._last >= 0 else int(last[0])
        self._report_time_entry(
            index_check.false_time_entry(
                self.times, self.time_offsets, last, table["max_timestamp"], self._reached, before
            )
        )
        self._reached = max(self._reached, int(table["max_timestamp"].max()))
        self._last = int(last[-1])

    def hides(self, next_offset: int, reached: int) -> None:
        """Check the time index against the batches below ``next_offset``.

        ``reached`` is the largest timestamp of these batches.
        """
        if reached != NO_TIME:
            self._report_time_entry(
                index_check.hidden_from_time_entry(
                    self.times, self.time_offsets, next_offset, reached
                )
            )

    def ends(self, size_bytes: int, next_offset: int, largest: int | None) -> None:
        """Check the last entries of both indexes against the segment's end.

        ``largest`` is the segment's largest timestamp. None means that the segment may still grow.

        An entry with an offset beyond the end is evidence of lost records. The remedy is therefore
        to restore the segment, not to rebuild the index.
        """
        self._report_offset_entry(
            index_check.entry_beyond(self.offsets, self.positions, size_bytes, next_offset),
            next_offset,
        )
        if largest is not None:
            contradiction = index_check.wrong_last_time(
                self.times, self.time_offsets, next_offset, largest
            )
            self._report_time_entry(contradiction, next_offset)

    def _report_offset_entry(
        self, contradiction: BadIndexEntry | None, end_offset: int = _NO_END
    ) -> None:
        path = index_files.index_path(self._log_path)
        self._add(contradiction, self.offsets, end_offset, path, OFFSET_ENTRY.size)

    def _report_time_entry(
        self, contradiction: BadIndexEntry | None, end_offset: int = _NO_END
    ) -> None:
        path = index_files.time_index_path(self._log_path)
        self._add(contradiction, self.time_offsets, end_offset, path, TIME_ENTRY.size)

    def _add(
        self,
        lie: BadIndexEntry | None,
        offsets: Int64Array,
        end_offset: int,
        path: str,
        entry_bytes: int,
    ) -> None:
        """Add at most one problem for each index: most later errors follow from the first."""
        if lie is not None and not any(known.path == path for known in self.problems):
            remedy = REBUILD if int(offsets[lie.row]) < end_offset else RESTORE
            at = lie.row * entry_bytes
            self.problems.append(Problem(ProblemKind.DAMAGED, lie.problem, path, at, remedy))


class KafkaPieceProof(KafkaIndexProof):
    """Checks the batches of a piece of a segment, including their delete horizons."""

    def __init__(self, source: ScanRange) -> None:
        super().__init__(source)
        self._has_bad_horizon = False

    def check(self, table: BatchTable, shift: int) -> None:
        super().check(table, shift)
        is_bad = ((table["flags"] & BAD_HORIZON) != 0) & (table["records"] > 0)
        if self._has_bad_horizon or not is_bad.any():
            return
        self._has_bad_horizon = True
        row = table[int(np.argmax(is_bad))]
        self.problems.append(
            Problem(
                ProblemKind.DAMAGED,
                f"the batch at offset {row['base_offset']} has a negative delete horizon: a "
                "broker's cleaner removes the batch's tombstones before consumers have read them",
                self._log_path,
                int(row["origin"]) + shift,
                "run lastwrite compact with --drop-expired-deletes, which replaces the horizon "
                "and keeps these tombstones",
            )
        )


def _unreadable(error: LogError, path: str) -> Problem:
    return Problem(ProblemKind.DAMAGED, error.problem, error.path or path, error.at, REBUILD)


class KafkaTransactionProof:
    """Checks a log's transaction indexes against the transactions in the log."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def problems(self, transactions: Int64Array, first_open: int | None) -> list[Problem]:
        """A problem for the first wrong entry of each transaction index."""
        truth = TransactionIndexCheck(transactions, first_open, self._log.log_start)
        found = []
        for n, segment in enumerate(self._log.segments):
            if not segment.is_abort_indexed:
                continue
            path = index_files.transaction_index_path(segment.path)
            try:
                entries = index_files.read_aborted_of(segment.path)
            except LogError as error:
                found.append(_unreadable(error, path))
                continue
            end = self._log.segment_end(n) if n + 1 < len(self._log.segments) else _NO_END
            rows = [
                (e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
                for e in entries
            ]
            contradiction = truth.first_bad_entry(rows, segment.base_offset, end)
            if contradiction is not None:
                at = contradiction.row * ABORTED_TRANSACTION.size
                found.append(Problem(ProblemKind.DAMAGED, contradiction.problem, path, at, REBUILD))
        return found


PROOF = KafkaProof()
