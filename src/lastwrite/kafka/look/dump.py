"""``dump`` of Kafka's logs, row by row, as dictionaries ready for JSON.

Rows are yielded while files are read, a batch at a time, so memory does not depend on the log.
After damage the dump continues with the next readable rows. At the end it raises the first problem.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig, LogError
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.cluster.metadata_log import FOLDER
from lastwrite.kafka.format.batch import decode_batch
from lastwrite.kafka.format.batch_layout import Batch, Record
from lastwrite.kafka.format.index import ABORTED_TRANSACTION
from lastwrite.kafka.format.names import METADATA_TOPIC, KafkaFileKind, Suffix, classify
from lastwrite.kafka.look.problems import kafka_problem_of, whole_batches
from lastwrite.kafka.look.read import may_reach
from lastwrite.kafka.look.rows import (
    batch_row,
    decoded_row,
    index_rows,
    position_of,
    record_row,
    side_file_rows,
)
from lastwrite.kafka.look.single import (
    SingleFile,
    identify,
    reject_beyond,
    reject_metadata,
    segment_of,
)
from lastwrite.kafka.store import links, lock, partitions
from lastwrite.kafka.store import log_dir as store
from lastwrite.kafka.system import KAFKA
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment, TopicPartition
from lastwrite.reports.table import Row, last_of
from lastwrite.storage.problems import BATCH_LIMIT_BYTES, limited
from lastwrite.storage.reading import exists, read_small


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDumpRequest:
    """The options of a dump of Kafka files."""

    batches: bool
    index: bool
    offset: int
    key: bytes | None
    decode: bool
    time_ms: int | None = None
    last: int | None = None
    config: Mapping[str, object] | None = None

    def check(self) -> None:
        """Check that the options can be combined.

        Raises:
            InvalidConfig: two of them exclude each other.
        """
        if self.batches and self.index:
            raise InvalidConfig("batches and index exclude each other")
        if self.key is not None and (self.batches or self.index):
            raise InvalidConfig(
                "a key selects records, and cannot be combined with batches or index"
            )
        if self.index and (self.time_ms is not None or self.last is not None):
            raise InvalidConfig(
                "time and last select records or batches, and cannot be combined with index"
            )
        if self.offset and self.time_ms is not None:
            raise InvalidConfig("offset and time exclude each other; give one of them")
        if self.decode and (self.batches or self.index):
            raise InvalidConfig(
                "only records can be decoded: decode cannot be combined with batches or index"
            )


def dump_logs(
    path: str,
    topic: str | None,
    partition: int | None,
    request: LogDumpRequest,
    limit: int | None,
    note: Callable[[str], None],
) -> Iterator[Row]:
    """Yield the rows of the files at ``path``. Raises the errors of ``commands.dump``."""
    request.check()
    job = _Dump(request, note)
    if os.path.isfile(path):
        file = identify(path)
        lock.reject_if_locked(file.root)
        reject_beyond(file)
        return job.limited(job.file(file), limit)
    metadata = _metadata_folder(path, topic, partition)
    if metadata is not None:
        lock.reject_if_locked(partitions.root_of(metadata))
        reject_metadata(partitions.root_of(metadata))
        return job.limited(job.metadata(metadata), limit)
    folders = partitions.find_partitions(path, topic, partition)
    for folder in folders:
        lock.reject_if_locked(partitions.root_of(folder), [partitions.partition_name(folder)])
    return job.limited(job.folders(folders), limit)


def _metadata_folder(path: str, topic: str | None, partition: int | None) -> str | None:
    """The folder of the metadata log.

    None unless ``path`` is that folder, or ``topic`` is the metadata log's topic.
    """
    if topic not in (None, METADATA_TOPIC) or partition not in (None, 0) or not os.path.isdir(path):
        return None
    folder = links.home_of(os.path.abspath(path))
    if os.path.basename(folder) == FOLDER:
        return folder
    below = os.path.join(path, FOLDER)
    return below if topic is not None and os.path.isdir(below) else None


class _Dump:
    """One dump: its options, and the problems found so far."""

    def __init__(self, request: LogDumpRequest, note: Callable[[str], None]) -> None:
        self._request = request
        self._note = note
        self._problems: list[Problem] = []
        self._generation = 0  # generation of the archive's manifest; 0 for a log directory

    def limited(self, rows: Iterator[Row], limit: int | None) -> Iterator[Row]:
        return limited(rows, limit, self._problems)

    def note(self, problem: Problem) -> None:
        """Note a problem, unless a problem at the same position was noted."""
        if all(
            (known.path, known.position) != (problem.path, problem.position)
            for known in self._problems
        ):
            self._problems.append(problem)

    # ------------------------------------------------------------------ partitions

    def folders(self, folders: list[str]) -> Iterator[Row]:
        for folder in folders:
            try:
                log = KAFKA.read_judged(folder, self._request.config)
            except CorruptLog as error:
                self.note(kafka_problem_of(error, folder))
                continue
            yield from self._dump_again(log)

    def _dump_again(self, log: PartitionLog) -> Iterator[Row]:
        """Yield the rows of a log.

        If a broker replaces or deletes segments meanwhile, the dump continues with the current
        segments.

        Raises:
            CommitConflict: the log changed again and again, or a part of it was deleted.
        """
        for problem in log.problems:
            if problem.kind is ProblemKind.DAMAGED:
                self.note(problem)
            elif problem.kind in (ProblemKind.OPEN, ProblemKind.GAP):
                self._note(str(problem))
        asked, last = self._request, -1
        at = "last_offset" if asked.batches else "offset"
        tries = 0
        while True:
            tries, since = tries + 1, last
            self._generation = log.generation
            # Index rows are not continued after a change: a broker writes indexes while it appends.
            with beside_a_broker.one_try(tries, log, is_last=asked.index):
                try:
                    for row in self._partition(log):
                        yield row
                        last = row.get(at, last)
                finally:
                    self._request = asked
                beside_a_broker.check_uncut(log)
                return
            log = beside_a_broker.relist_after(log, store.read_partition, last)
            tries = 0 if last > since else tries
            if last >= 0:
                self._request = replace(asked, offset=last + 1, time_ms=None)

    def metadata(self, folder: str) -> Iterator[Row]:
        """The rows of the metadata log's segments.

        No high watermark limits them, because a log root has no checkpoints for the metadata log.
        """
        found = []
        for entry in sorted(partitions.scan(folder), key=lambda entry: entry.name):
            name = classify(entry.name)
            if name.kind is KafkaFileKind.LOG and name.suffix is Suffix.LIVE:
                found.append(segment_of(identify(entry.path)))
        yield from self._segments(found, TopicPartition(METADATA_TOPIC, 0))

    def _partition(self, log: PartitionLog) -> Iterator[Row]:
        last = len(log.segments) - 1
        yield from self._segments(
            [
                segment
                for number, segment in enumerate(log.segments)
                if number == last or log.segment_end(number) > self._request.offset
            ],
            log.name,
        )

    def _segments(self, segments: list[Segment], name: TopicPartition | None) -> Iterator[Row]:
        """The rows of a partition's segments, or of a single segment."""
        wanted, first = self._request, self._request.offset
        if wanted.time_ms is not None:
            at = self._offset_at(segments, wanted.time_ms)
            if at is None:
                return
            first = at
        if wanted.index:
            for segment in segments:
                # Skip a growing or preallocated segment: a broker may be writing its indexes.
                if not segment.growing and not segment.unused_bytes:
                    yield from self._index_files(segment, name)
        elif wanted.last is None:
            for segment in segments:
                yield from self._segment(segment, name, first)
        else:
            newest_first = (self._segment(each, name, first) for each in reversed(segments))
            yield from last_of(newest_first, wanted.last)

    def _offset_at(self, segments: list[Segment], time_ms: int) -> int | None:
        """The first offset of a record of ``time_ms`` or later. None if there is none."""
        for segment in segments:
            for position, header, data in whole_batches(segment, self.note):
                if not may_reach(header, time_ms):
                    continue
                try:
                    batch = decode_batch(data, 0, BATCH_LIMIT_BYTES)
                except LogError as error:
                    self.note(kafka_problem_of(error, segment.path, position))
                    continue
                for record in batch.records:
                    if record.timestamp_ms >= time_ms:
                        return record.offset
        return None

    def _segment(self, segment: Segment, name: TopicPartition | None, first: int) -> Iterator[Row]:
        for position, header, data in whole_batches(
            segment, self.note, position_of(segment, first)
        ):
            if header.last_offset < first:
                continue
            try:
                if self._request.batches:
                    yield batch_row(name, segment.base_offset, position, header, data)
                    continue
                batch = decode_batch(data, 0, BATCH_LIMIT_BYTES)
                rows = [
                    self._row(name, segment.base_offset, position, batch, record)
                    for record in batch.records
                    if record.offset >= first and self._is_requested(batch, record)
                ]
            except LogError as error:
                self.note(kafka_problem_of(error, segment.path, position))
                continue
            yield from rows

    def _row(
        self, name: TopicPartition | None, segment: int, position: int, batch: Batch, record: Record
    ) -> Row:
        row = record_row(name, segment, position, batch, record)
        if self._request.decode:
            row["decoded"] = None if batch.attributes.control else decoded_row(name, record)
        return row

    def _is_requested(self, batch: Batch, record: Record) -> bool:
        return self._request.key is None or (
            record.key == self._request.key and not batch.attributes.control
        )

    # ------------------------------------------------------------------ index entries

    def _index_files(self, segment: Segment, name: TopicPartition | None) -> Iterator[Row]:
        stem = segment.path.rpartition(".log")[0]
        tail = segment.path.rpartition(".log")[2]  # ".swap" after a crash
        for kind in (
            KafkaFileKind.INDEX,
            KafkaFileKind.TIME_INDEX,
            KafkaFileKind.TRANSACTION_INDEX,
        ):
            path = f"{stem}{kind}{tail}"
            is_known = self._generation and kind is not KafkaFileKind.TRANSACTION_INDEX
            if segment.is_indexed if is_known else exists(path):
                yield from self._index_file(path, kind, segment.base_offset, name)

    def _index_file(
        self, path: str, kind: KafkaFileKind, base_offset: int, name: TopicPartition | None
    ) -> Iterator[Row]:
        try:
            data = read_small(path)
            rows = list(index_rows(data, kind, base_offset, name))
        except CommitConflict:
            raise
        except LogError as error:
            self.note(kafka_problem_of(error, path))
            return
        at = "offset"
        if kind is KafkaFileKind.TRANSACTION_INDEX:
            at, end = "last_offset", len(rows) * ABORTED_TRANSACTION.size
            if end < len(data):
                words = f"{len(data) - end} bytes follow the index's last complete entry"
                self.note(kafka_problem_of(CorruptLog(words, end), path))
        yield from (row for row in rows if row[at] >= self._request.offset)

    # ------------------------------------------------------------------ single files

    def file(self, file: SingleFile) -> Iterator[Row]:
        kind = file.name.kind
        if kind in (KafkaFileKind.LOG, KafkaFileKind.METADATA_SNAPSHOT):
            yield from self._segments([segment_of(file)], file.partition)
        elif kind in (
            KafkaFileKind.INDEX,
            KafkaFileKind.TIME_INDEX,
            KafkaFileKind.TRANSACTION_INDEX,
        ):
            yield from self._index_file(file.path, kind, file.base_offset, file.partition)
        else:
            try:
                rows = list(side_file_rows(file))
            except LogError as error:
                self.note(kafka_problem_of(error, file.path))
                return
            yield from rows if self._request.last is None else rows[-self._request.last :]
