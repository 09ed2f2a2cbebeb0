"""The messages in a topic's compaction logs as columns, for ``lastwrite.rows``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lastwrite.engine.chunks import BatchWindow
from lastwrite.errors import CommitConflict, CorruptLog, NotALog
from lastwrite.model.columns import ByteArray, RecordColumns
from lastwrite.model.log import PartitionLog, ProblemKind, Segment, TopicPartition
from lastwrite.rocketmq.format.chunk import RocketmqFormat
from lastwrite.rocketmq.format.gather import gather, with_properties
from lastwrite.rocketmq.look.read import check_compacted, store_at
from lastwrite.rocketmq.store import fetching, lock, queues
from lastwrite.rocketmq.store.compacted import CompactedQueue, FilesMoved, first_damage
from lastwrite.rocketmq.store.queues import folder_of, name_of, read_queue, root_of
from lastwrite.rocketmq.store.reading import StoreFolder, list_queues
from lastwrite.rocketmq.store.topics import compacted_queues
from lastwrite.rows.system import RowReader, RowSystem, Wants
from lastwrite.storage.choice import Topics
from lastwrite.storage.reading import TRY_AGAIN


class _RocketmqRowReader:
    def __init__(self, plain_bytes: int) -> None:
        self.format = RocketmqFormat(plain_bytes)
        self._limit = plain_bytes

    def records(
        self,
        chunk: BatchWindow,
        selected: ByteArray | None,
        span: tuple[int, int],
        *,
        is_committed: bool,
    ) -> Iterator[RecordColumns]:
        messages = self.format.messages[: len(chunk.table)]
        yield from gather(chunk.buffer, messages, span, chunk.shift, self._limit)

    def with_headers(self, records: RecordColumns) -> RecordColumns:
        return with_properties(records)


class _RocketmqRows(RowSystem):
    name = "rocketmq"
    is_empty_delete = True
    rounds_move_start = True
    before_anew = f"{fetching.REBUILD_QUEUE}; then "

    def logs_of(
        self,
        path: str,
        topic: Topics = None,
        partition: int | None = None,
        *,
        wants: Wants | None = None,
        is_compacted: bool = False,
        config: Mapping[str, object] | None = None,
    ) -> list[PartitionLog]:
        root, its_topic, its_queue = store_at(path)
        topics = [topic] if isinstance(topic, str) else topic
        for each in topics or ():
            check_compacted(root, each)
        names = [
            name
            for name in list_queues(root, StoreFolder.COMPACTION_LOG)
            if its_topic in (None, name.topic)
            and (topics is None or name.topic in topics)
            and (wants is None or wants(name))
            and all(wanted in (None, name.partition) for wanted in (partition, its_queue))
        ]
        if not names and topics is None and wants is None:
            raise NotALog(
                "this store has no compaction log",
                path=path,
                remedy="only topics with cleanup.policy=COMPACTION have a compaction log; "
                "lastwrite dispatch builds it from the commit log",
            )
        lock.reject_if_locked(root, names)
        logs = []
        for name in names:
            log = read_queue(folder_of(root, name))
            if log.is_damaged or (not log.generation and _has_undetected_damage(root, name)):
                log = _rebuilt(root, log)
            logs.append(log)
        return logs

    def count_partitions(self, log: PartitionLog) -> int:
        return len(compacted_queues(root_of(log.folder), name_of(log.folder).topic))

    def cuts(
        self, log: PartitionLog, segment: int, span: tuple[int, int], piece_bytes: int
    ) -> list[int]:
        found = log.segments[segment]
        if not found.is_indexed:
            return [0, found.size_bytes]
        return super().cuts(log, segment, span, piece_bytes)

    def identity(self, log: PartitionLog, offset: int) -> str | None:
        """Identify a queue by its last record below ``offset``.

        The result has that record's queue offset and digest, and the largest store time.

        If a topic is created again, its queue offsets begin at 0 again. The store times distinguish
        the topics, because the new topic has higher store times.
        """
        found = _last_record_before(log, offset)
        if found is None:
            return None
        stored_ms = max(
            each.largest_timestamp_ms
            for each in log.segments
            if each.base_offset < offset and each.size_bytes
        )
        last, last_stored_ms, record = found
        return f"{last}:{fetching.digest(record)}:{max(stored_ms, last_stored_ms)}"

    def difference(self, log: PartitionLog, offset: int, identity: str) -> str | None:
        """Why the queue does not match ``identity``, from an earlier read. None if it may match.

        Compaction may have removed the record of the identity. Then the store times are compared:
        in the same log, no record below ``offset`` was stored after the identity's time.
        """
        base, known, stored_ms = identity.split(":")
        original = fetching.find_recreation(log, int(base), known, int(stored_ms))
        found = _last_record_before(log, offset)
        if original is not None or found is None:
            return original
        last, last_stored_ms, record = found
        if last == int(base) and fetching.digest(record) != known:
            return f"the message at queue offset {base} differs"
        if last != int(base) and last_stored_ms > int(stored_ms):
            return (
                f"the message at queue offset {last} was stored at time {last_stored_ms}, but "
                f"all messages below offset {offset} were stored by time {stored_ms}"
            )
        return None

    def reader(self, plain_bytes: int, extra: Any, *, raw_keys: bool) -> RowReader:
        return _RocketmqRowReader(plain_bytes)


ROWS = _RocketmqRows()


def _last_record_before(log: PartitionLog, end: int) -> tuple[int, int, bytes] | None:
    """Queue offset, store time in ms and bytes of the last record below queue offset ``end``.

    Returns None if there is no such record. Files whose index is missing or wrong are walked.
    """
    if all(segment.is_indexed for segment in log.segments):
        found = queues.last_record_before(log, end)
        return None if found is None else (found[0].base, found[0].store_time_ms, found[1])
    bases = [each.base_offset for each in log.segments if each.base_offset < end]
    last = None
    for block in CompactedQueue(root_of(log.folder), log.name).blocks(max(bases, default=end)):
        below = block.table[block.table["queue_offset"] < end]
        if not len(below):
            break
        row = below[-1]
        start = int(row["position"])
        data = block.buffer[start : start + int(row["size"])].tobytes()
        last = int(row["queue_offset"]), int(row["store_time"]), data
    return last


def _has_undetected_damage(root: str, name: TopicPartition) -> bool:
    """Whether a queue has an index that is wrong in a way that a listing does not detect.

    Such an index is empty although its log is not, or its first or last unit has no record.

    Raises:
        CommitConflict: the files have changed since they were listed.
    """
    try:
        queue = CompactedQueue(root, name)
        for number in range(len(queue.pairs)):
            queue.range_of(number)
    except FilesMoved:
        raise CommitConflict(
            "another program changed the queue's files during the command",
            path=root,
            remedy=TRY_AGAIN,
        ) from None
    return any(note.kind is not ProblemKind.GAP for note in queue.notes)


def _rebuilt(root: str, log: PartitionLog) -> PartitionLog:
    """Read the queue from its log files alone, if an index is missing or wrong.

    Raises:
        CorruptLog: the log is also damaged in other ways.
        CommitConflict: the files have changed since they were listed.
    """
    queue = CompactedQueue(root, log.name)
    segments = []
    try:
        for number, pair in enumerate(queue.pairs):
            range_, places = queue.range_of(number), queue.entries(number)
            if range_ is None:
                continue
            ends = places.positions + places.sizes
            if places.positions[0] or (places.positions[1:] != ends[:-1]).any():
                break  # the bytes between two records do not belong to a record
            size, file = int(ends[-1]), pair.log
            segment = Segment(
                base_offset=range_.first,
                path=file.path,
                size_bytes=size,
                mtime_ns=file.mtime_ns,
                largest_timestamp_ms=file.mtime_ns // 1_000_000,
                unused_bytes=file.size_bytes - size,
                is_indexed=False,
                growing=file.inode if file.is_growing else 0,
                etag=file.etag,
            )
            segments.append(segment)
        else:
            damage = first_damage([queue])
            if damage is not None:
                raise damage
            ends_at = queue.end_offset
            return replace(
                log,
                segments=tuple(segments),
                log_start=segments[0].base_offset if segments else 0,
                end_offset=ends_at,
                high_watermark=ends_at,
            )
    except FilesMoved:
        raise CommitConflict(
            "another program changed the queue's files during the command",
            path=root,
            remedy=TRY_AGAIN,
        ) from None
    problem = next(each for each in log.problems if each.kind is ProblemKind.DAMAGED)
    raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)
