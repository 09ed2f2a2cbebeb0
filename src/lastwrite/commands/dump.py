"""``dump``: what lies in a log, row by row, as dictionaries ready for JSON.

Rows come while files are read, a batch at a time, so memory does not depend on the log. Damage does
not end the dump: it goes on to the end of what is whole, and then raises the first problem.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from lastwrite.commands.systems import PULSAR, ROCKETMQ, system_of
from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.kafka.format.batch import decode_batch
from lastwrite.kafka.format.batch_layout import Batch, Record
from lastwrite.kafka.format.names import FileKind
from lastwrite.kafka.look.problems import kafka_problem_of, whole_batches
from lastwrite.kafka.look.rows import (
    batch_row,
    decoded_row,
    index_rows,
    position_of,
    record_row,
    side_file_rows,
)
from lastwrite.kafka.look.single import SingleFile, identify, segment_of
from lastwrite.kafka.store import lock, partitions
from lastwrite.kafka.store import log_dir as store
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment, TopicPartition
from lastwrite.reports.table import Row
from lastwrite.storage.problems import BATCH_LIMIT_BYTES, limited
from lastwrite.storage.reading import read_small


def dump(
    path: str,
    system: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    batches: bool = False,
    index: bool = False,
    offset: int | None = None,
    limit: int | None = None,
    key: bytes | None = None,
    decode: bool = False,
    spark: object = None,
    commit_log_offset: int | None = None,
    unique_key: str | None = None,
    message_id: str | None = None,
    time_ms: int | None = None,
    compacted: bool = False,
    config: Mapping[str, object] | None = None,
    say: Callable[[str], None] | None = None,
    start: str | None = None,
) -> Iterator[Row]:
    """The records at ``path``, in the order of partition and offset, one dictionary each.

    Args:
        path: a log root, a partition's folder, or one file of either (segment, index, snapshot,
            checkpoint …).
        batches: one row a batch instead: headers, checksums verified, records not decoded.
        index: one row an entry of the offset, time and transaction indexes instead.
        offset: nothing below this offset.
        limit: at most so many rows.
        key: only records with exactly this key.
        decode: say in a field ``decoded`` what the records of Kafka's own topics mean; of other
            topics, which keys and values are text.
        spark: taken as by the other commands, and not needed: rows come in order, from this
            process.

    Of a RocketMQ store ``partition`` is the queue, ``key`` one of a message's keys, ``batches``
    leaves inner batches whole, and these are its own:

        commit_log_offset: the message at this address in the commit log.
        unique_key: the messages with this unique key. message_id: the message that this id names.
        time_ms: from the first message on that was stored at this time or later.
        compacted: what the compaction logs have, not the commit log.
        config: ``storePathCommitLog`` and ``readOnlyCommitLogStorePaths`` where the commit log lies
        elsewhere.
        say: is told what was not found as a broker would have found it; None: nobody is.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first row.
        CorruptLog: after the last row, the first problem that was met; nothing that is whole was
            left out.
    """
    found = system_of(str(path), system)
    if found == PULSAR:
        for name, value in (
            ("offset", offset),
            ("commit_log_offset", commit_log_offset),
            ("unique_key", unique_key),
            ("decode", decode or None),
            ("config", config or None),
        ):
            if value is not None:
                raise InvalidConfig(
                    f"{name} is not for Pulsar", path=path, remedy="start takes a message id"
                )
        from lastwrite.pulsar.look.dump import TopicsWanted, dump_topics  # not before it is needed

        asked = TopicsWanted.parse(
            topic=topic,
            partition=partition,
            start=start,
            message_id=message_id,
            key=None if key is None else key.decode("utf-8", "surrogateescape"),
            time_ms=time_ms,
            whole_batches=batches,
            blocks=index,
            compacted=compacted,
        )
        return dump_topics(str(path), asked, limit, say or _nobody)
    if start is not None:
        raise InvalidConfig("start is for Pulsar", path=path, remedy="give offset")
    if found == ROCKETMQ:
        from lastwrite.rocketmq.look.dump import (
            Wanted,
            dump_store,
        )  # not before it is needed: numba

        wanted = Wanted(
            topic=topic,
            queue=partition,
            offset=offset,
            commit_log_offset=commit_log_offset,
            unique_key=unique_key,
            key=None if key is None else key.decode("utf-8", "surrogateescape"),
            message_id=message_id,
            time_ms=time_ms,
            whole_batches=batches,
            index=index,
            compacted=compacted,
            decode=decode,
            config=config or {},
        )
        return dump_store(path, wanted, limit, say or _nobody)
    for name, value in (
        ("commit_log_offset", commit_log_offset),
        ("unique_key", unique_key),
        ("message_id", message_id),
        ("time_ms", time_ms),
        ("compacted", compacted or None),
        ("config", config or None),
    ):
        if value is not None:
            raise InvalidConfig(f"{name} is not for Kafka", path=path)
    if batches and index:
        raise InvalidConfig("batches and index exclude each other")
    if key is not None and (batches or index):
        raise InvalidConfig("a key picks records, neither batches nor index entries")
    if decode and (batches or index):
        raise InvalidConfig("records are decoded, neither batches nor index entries")
    job = _Dump(batches, index, offset or 0, key, decode)
    if os.path.isfile(path):
        file = identify(path)
        lock.refuse_if_held(file.root)
        return job.limited(job.file(file), limit)
    folders = partitions.find_partitions(path, topic, partition)
    for folder in folders:
        lock.refuse_if_held(partitions.root_of(folder), [partitions.partition_name(folder)])
    return job.limited(job.folders(folders), limit)


def _nobody(text: str) -> None:
    """Where nobody listens."""


class _Dump:
    """What one call asks for, and the problems it met."""

    def __init__(
        self, batches: bool, index: bool, offset: int, key: bytes | None, decode: bool
    ) -> None:
        self._batches = batches
        self._index = index
        self._offset = offset
        self._key = key
        self._decode = decode
        self._problems: list[Problem] = []

    def limited(self, rows: Iterator[Row], limit: int | None) -> Iterator[Row]:
        return limited(rows, limit, self._problems)

    def note(self, problem: Problem) -> None:
        """Take a problem, but for one that the listing has told of the same place, with what it
        means.
        """
        if all(
            (known.path, known.position) != (problem.path, problem.position)
            for known in self._problems
        ):
            self._problems.append(problem)

    # ------------------------------------------------------------------ partitions

    def folders(self, folders: list[str]) -> Iterator[Row]:
        for folder in folders:
            try:
                log = store.read_partition(folder)
            except CorruptLog as error:
                self.note(kafka_problem_of(error, folder))
                continue
            for problem in log.problems:
                if problem.kind is ProblemKind.DAMAGED:
                    self.note(problem)
            yield from self._partition(log)

    def _partition(self, log: PartitionLog) -> Iterator[Row]:
        for number, segment in enumerate(log.segments):
            if log.segment_end(number) <= self._offset and number + 1 < len(log.segments):
                continue
            if self._index:
                yield from self._index_files(segment, log.name)
            else:
                yield from self._segment(segment, log.name)

    def _segment(self, segment: Segment, name: TopicPartition | None) -> Iterator[Row]:
        for position, header, data in whole_batches(
            segment, self.note, position_of(segment, self._offset)
        ):
            if header.last_offset < self._offset:
                continue
            try:
                if self._batches:
                    yield batch_row(name, segment.base_offset, position, header, data)
                    continue
                batch = decode_batch(data, 0, BATCH_LIMIT_BYTES)
                rows = [
                    self._row(name, segment.base_offset, position, batch, record)
                    for record in batch.records
                    if record.offset >= self._offset and self._is_wanted(batch, record)
                ]
            except LogError as error:
                self.note(kafka_problem_of(error, segment.path, position))
                continue
            yield from rows

    def _row(
        self, name: TopicPartition | None, segment: int, position: int, batch: Batch, record: Record
    ) -> Row:
        row = record_row(name, segment, position, batch, record)
        if self._decode:
            row["decoded"] = None if batch.attributes.control else decoded_row(name, record)
        return row

    def _is_wanted(self, batch: Batch, record: Record) -> bool:
        return self._key is None or (record.key == self._key and not batch.attributes.control)

    # ------------------------------------------------------------------ index entries

    def _index_files(self, segment: Segment, name: TopicPartition | None) -> Iterator[Row]:
        stem = segment.path.rpartition(".log")[0]
        tail = segment.path.rpartition(".log")[2]  # ".swap" where a crash left it so
        for kind in (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX):
            path = f"{stem}{kind}{tail}"
            if os.path.exists(path):
                yield from self._index_file(path, kind, segment.base_offset, name)

    def _index_file(
        self, path: str, kind: FileKind, base_offset: int, name: TopicPartition | None
    ) -> Iterator[Row]:
        try:
            rows = list(index_rows(read_small(path), kind, base_offset, name))
        except LogError as error:
            self.note(kafka_problem_of(error, path))
            return
        at = "last_offset" if kind is FileKind.TRANSACTION_INDEX else "offset"
        yield from (row for row in rows if row[at] >= self._offset)

    # ------------------------------------------------------------------ single files

    def file(self, file: SingleFile) -> Iterator[Row]:
        kind = file.name.kind
        if kind is FileKind.LOG:
            segment = segment_of(file)
            if self._index:
                yield from self._index_files(segment, file.partition)
            else:
                yield from self._segment(segment, file.partition)
        elif kind in (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX):
            yield from self._index_file(file.path, kind, file.base_offset, file.partition)
        else:
            try:
                rows = list(side_file_rows(file))
            except LogError as error:
                self.note(kafka_problem_of(error, file.path))
                return
            yield from rows


# ---------------------------------------------------------------------- rows; the names are a
# contract
