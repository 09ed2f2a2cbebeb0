"""``read`` of a Kafka partition: the records that a consumer gets from an offset or time on.

Example: ``x@0`` is in an open transaction, ``y@1`` in none. A ``read_uncommitted`` consumer gets
both. A ``read_committed`` consumer gets neither: it stops at the last stable offset, 0, until the
transaction ends. If a marker at 2 aborts the transaction, it gets only ``y@1``. No consumer gets a
marker, records below the log's start, or records that are not yet replicated.

Source: KIP-98 (isolation levels); Kafka 4.4.0 ``UnifiedLog.read``, ``CompletedFetch``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from lastwrite.errors import InvalidConfig, LogError, OutOfMemoryBudget
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.format.batch import decode_batch
from lastwrite.kafka.format.batch_layout import MAGIC, Batch, BatchHeader
from lastwrite.kafka.look.problems import kafka_problem_of, loses_records, whole_batches
from lastwrite.kafka.look.rows import position_of, record_row
from lastwrite.kafka.store import lock, log_dir, partitions
from lastwrite.kafka.system import KAFKA
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment
from lastwrite.reports.table import Row
from lastwrite.storage.problems import BATCH_LIMIT_BYTES, limited


class Isolation(StrEnum):
    """The isolation level of a consumer, as in Kafka's ``isolation.level``."""

    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


def isolation_of(level: str | None) -> Isolation:
    """Parse an isolation level. None means Kafka's default.

    Raises:
        InvalidConfig: there is no such level.
    """
    if level is not None and level not in list(Isolation):
        raise InvalidConfig(
            f"{level!r} is not an isolation level", remedy=f"give one of: {', '.join(Isolation)}"
        )
    return Isolation(level or Isolation.UNCOMMITTED)


class ReadStatus(StrEnum):
    """The reason why reading a partition ended."""

    END = "END_OF_PARTITION"  # reached the high watermark
    OPEN_TRANSACTION = (
        "OPEN_TRANSACTION"  # reached the last stable offset, below the high watermark
    )
    LIMIT = "LIMIT"
    OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"  # the log ends before the requested offset
    DAMAGED = "DAMAGED"  # the end was reached, but some records before it could not be read


class AbortedData:
    """Recognizes batches of aborted transactions by the log's transaction indexes."""

    def __init__(self, log: PartitionLog) -> None:
        self._of: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for entry in log.aborted:
            self._of[entry.producer_id].append((entry.first_offset, entry.last_offset))
        for spans in self._of.values():
            spans.sort()

    def has(self, batch: Batch) -> bool:
        """Whether ``batch`` belongs to an aborted transaction."""
        if not batch.attributes.transactional or batch.attributes.control:
            return False
        spans = self._of.get(batch.header.producer_id, [])
        at = bisect_right(spans, batch.header.base_offset, key=lambda span: span[0]) - 1
        return at >= 0 and batch.header.base_offset <= spans[at][1]


class KafkaReading(Iterator[Row]):
    """The records that a consumer would receive, as dictionaries; after the last one, a status.

    ``status``: how reading ended; None before the end. ``next_offset``: where a consumer continues.
    ``notes``: problems that lose no records.
    """

    def __init__(
        self,
        log: PartitionLog,
        isolation: Isolation,
        offset: int | None,
        time_ms: int | None,
        limit: int | None,
    ) -> None:
        self.status: ReadStatus | None = None
        self.notes: list[Problem] = [note for note in log.problems if not loses_records(note, log)]
        self._problems = [problem for problem in log.problems if loses_records(problem, log)]
        self._log = log
        self._isolation = isolation
        self._aborted = AbortedData(log)
        self._limit = limit
        self._found = 0
        self._end = log.high_watermark
        if isolation is Isolation.COMMITTED:
            self._end = log.last_stable_offset
        if time_ms is not None:
            offset = self._offset_of(time_ms)
        self.offset = log.log_start if offset is None else offset
        self.next_offset = max(self.offset, log.log_start)
        if self.offset < log.log_start:
            self.notes.append(
                Problem(
                    ProblemKind.RECOVERED,
                    f"offset {self.offset} is out of range: the log starts at offset "
                    f"{log.log_start}; reading starts there, as in a consumer with "
                    "auto.offset.reset=earliest",
                    log.folder,
                )
            )
        self._rows = limited(self._again(), None, self._problems)

    def __next__(self) -> Row:
        return next(self._rows)

    def summary(self) -> Row:
        """The status at the end of reading, as a dictionary that always has the same keys."""
        return {
            "status": None if self.status is None else str(self.status),
            "topic": self._log.name.topic,
            "partition": self._log.name.partition,
            "isolation_level": str(self._isolation),
            "offset": self.offset,
            "next_offset": self.next_offset,
            "log_start_offset": self._log.log_start,
            "last_stable_offset": self._log.last_stable_offset,
            "high_watermark": self._log.high_watermark,
            "messages": self._found,
            "notes": msgspec.to_builtins(self.notes),
        }

    # ------------------------------------------------------------------ by offset

    def _again(self) -> Iterator[Row]:
        """Yield the records.

        If a broker replaces or deletes segments meanwhile, reading continues with the current
        segments.

        Raises:
            CommitConflict: the log changed again and again, or a part of it was deleted.
        """
        tries, last = 0, -1
        while True:
            tries, since = tries + 1, last
            with beside_a_broker.one_try(tries, self._log):
                for row in self._read():
                    yield row
                    last = self.next_offset - 1
                status, self.status = self.status, None
                beside_a_broker.check_uncut(self._log)
                self.status = status
                return
            self._log = beside_a_broker.relist_after(self._log, log_dir.read_partition, last)
            tries = 0 if last > since else tries
            self._aborted = AbortedData(self._log)

    def _read(self) -> Iterator[Row]:
        if self.offset > self._log.end_offset:
            self.status = ReadStatus.OUT_OF_RANGE
            return
        for segment, position, batch in self._batches(self.next_offset):
            if batch.header.magic >= MAGIC and batch.header.base_offset >= self._end:
                break
            if not batch.attributes.control and not self._is_aborted(batch):
                for record in batch.records:
                    if not self.next_offset <= record.offset < self._end:
                        continue
                    if self._found == self._limit:
                        break
                    self.next_offset = record.offset + 1
                    self._found += 1
                    yield record_row(self._log.name, segment.base_offset, position, batch, record)
            if self._found == self._limit:
                self.status = ReadStatus.LIMIT
                return
        self.next_offset = max(self.next_offset, self._end)
        if self._problems:
            self.status = ReadStatus.DAMAGED
        else:
            is_open = self._end < self._log.high_watermark
            self.status = ReadStatus.OPEN_TRANSACTION if is_open else ReadStatus.END

    def _is_aborted(self, batch: Batch) -> bool:
        return self._isolation is Isolation.COMMITTED and self._aborted.has(batch)

    def _batches(
        self, offset: int, time_ms: int | None = None
    ) -> Iterator[tuple[Segment, int, Batch]]:
        """The batches from ``offset`` on. Damaged batches are noted and skipped.

        With ``time_ms``, only batches that may have a record of that time or later.

        Raises:
            OutOfMemoryBudget: a batch is too large.
        """
        for number, segment in enumerate(self._log.segments):
            if self._log.segment_end(number) <= offset:
                continue
            start = position_of(segment, offset)
            for position, header, data in whole_batches(
                segment, self._note, start, BATCH_LIMIT_BYTES, refuses_large=True
            ):
                if header.last_offset < offset or not may_reach(header, time_ms):
                    continue
                try:
                    batch = decode_batch(data, 0, BATCH_LIMIT_BYTES)
                except OutOfMemoryBudget as error:
                    raise error.located(segment.path, position) from error
                except LogError as error:
                    self._note(kafka_problem_of(error, segment.path, position))
                    continue
                yield segment, position, batch

    def _note(self, problem: Problem) -> None:
        """Note a problem, unless a problem at the same position was already noted."""
        known = {(other.path, other.position) for other in self._problems}
        if (problem.path, problem.position) not in known:
            self._problems.append(problem)

    # ------------------------------------------------------------------ by time

    def _offset_of(self, time_ms: int) -> int:
        """The first offset of a record of ``time_ms`` or later, like ``offsetsForTimes``.

        The log's end if there is no such record. A broker may return no offset if an empty segment
        precedes the record, because it uses the file's time for that segment. This is not
        reproduced.
        """
        for _, _, batch in self._batches(self._log.log_start, time_ms):
            for record in batch.records:
                if record.offset >= self._end:
                    return self._end
                if record.offset >= self._log.log_start and record.timestamp_ms >= time_ms:
                    return record.offset
        return self._end


def read_partition(
    path: str,
    topic: str | None,
    partition: int | None,
    offset: int | None,
    time_ms: int | None,
    isolation: str | None,
    limit: int | None,
    config: Mapping[str, object] | None,
) -> KafkaReading:
    """Read the only partition at ``path``, as a consumer would.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first record.
        OutOfMemoryBudget: a batch is larger than the limit.
    """
    level = isolation_of(isolation)
    if offset is not None and time_ms is not None:
        raise InvalidConfig("offset and time exclude each other", remedy="give one of them")
    if offset is not None and offset < 0:
        raise InvalidConfig(f"the offset is {offset}", remedy="give an offset of 0 or more")
    folders = partitions.find_partitions(path, topic, partition)
    if len(folders) != 1:
        names = ", ".join(str(partitions.partition_name(folder)) for folder in folders[:20])
        raise InvalidConfig(
            f"the path contains {len(folders)} partitions, and read needs one",
            path=path,
            remedy=f"select one by topic and partition: {names}",
        )
    (folder,) = folders
    lock.reject_if_locked(partitions.root_of(folder), [partitions.partition_name(folder)])
    log = KAFKA.read_judged(folder, config)
    return KafkaReading(log, level, offset, time_ms, limit)


def may_reach(header: BatchHeader, time_ms: int | None) -> bool:
    """Whether the batch may have a record of ``time_ms`` or later.

    Always True for v0 and v1, whose headers do not have the largest timestamp.
    """
    return time_ms is None or header.magic < MAGIC or header.max_timestamp_ms >= time_ms
