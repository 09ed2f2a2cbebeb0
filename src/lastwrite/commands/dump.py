"""``dump``: what lies in a log, row by row, as dictionaries ready for JSON.

Rows come while files are read, a batch at a time, so memory does not depend on the log. Damage does not end the
dump: it goes on to the end of what is whole, and then raises the first problem.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import google_crc32c

from lastwrite.audit.place import PULSAR, ROCKETMQ, system_of
from lastwrite.audit.window import BATCH_LIMIT_BYTES, limited, problem_of, whole_batches
from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.formats.kafka import index as indexes
from lastwrite.formats.kafka import names, snapshot, text
from lastwrite.formats.kafka.batch import (
    CRC_START,
    MAGIC,
    Batch,
    BatchAttributes,
    BatchHeader,
    Record,
    decode_attributes,
    decode_batch,
    decode_control_record,
)
from lastwrite.formats.kafka.internal_topics import RECORD_TYPES, decode_internal_record
from lastwrite.formats.kafka.names import FileKind
from lastwrite.logstore import kafka as store
from lastwrite.logstore import lock
from lastwrite.logstore.single import SingleFile, identify, read_small, segment_of
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment, TopicPartition

Row = dict[str, Any]


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
        path: a log root, a partition's folder, or one file of either (segment, index, snapshot, checkpoint …).
        batches: one row a batch instead: headers, checksums verified, records not decoded.
        index: one row an entry of the offset, time and transaction indexes instead.
        offset: nothing below this offset.
        limit: at most so many rows.
        key: only records with exactly this key.
        decode: say in a field ``decoded`` what the records of Kafka's own topics mean; of other topics, which keys
            and values are text.
        spark: taken as by the other commands, and not needed: rows come in order, from this process.

    Of a RocketMQ store ``partition`` is the queue, ``key`` one of a message's keys, ``batches`` leaves inner batches
    whole, and these are its own:

        commit_log_offset: the message at this address in the commit log.
        unique_key: the messages with this unique key. message_id: the message that this id names.
        time_ms: from the first message on that was stored at this time or later.
        compacted: what the compaction logs have, not the commit log.
        config: ``storePathCommitLog`` and ``readOnlyCommitLogStorePaths`` where the commit log lies elsewhere.
        say: is told what was not found as a broker would have found it; None: nobody is.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first row.
        CorruptLog: after the last row, the first problem that was met; nothing that is whole was left out.
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
        from lastwrite.audit.pulsar_dump import TopicsWanted, dump_topics  # not before it is needed

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
        raise InvalidConfig("start is for Pulsar", path=path, remedy="offset says where to begin")
    if found == ROCKETMQ:
        from lastwrite.audit.rocketmq_dump import (
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
    folders = store.find_partitions(path, topic, partition)
    for folder in folders:
        lock.refuse_if_held(store.root_of(folder), [store.partition_name(folder)])
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
        self._problems.append(problem)

    # ------------------------------------------------------------------ partitions

    def folders(self, folders: list[str]) -> Iterator[Row]:
        for folder in folders:
            try:
                log = store.read_partition(folder)
            except CorruptLog as error:
                self.note(problem_of(error, folder))
                continue
            for problem in log.problems:
                if problem.kind is ProblemKind.DAMAGED and not _is_met_again(problem):
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
        for position, header, data in whole_batches(segment, self.note, self._start(segment)):
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
                self.note(problem_of(error, segment.path, position))
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

    def _start(self, segment: Segment) -> int:
        """Where to begin for the first wanted offset: by the index where it can be believed, else at byte 0."""
        if self._offset <= segment.base_offset:
            return 0
        try:
            entries = _offset_index(segment)
        except LogError:
            return 0
        start = entries.lookup(self._offset)[1]
        if not 0 < start < segment.size_bytes:
            return 0
        silent: list[Problem] = []
        first = next(whole_batches(segment, silent.append, start), None)
        return start if first is not None and first[1].base_offset <= self._offset else 0

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
            self.note(problem_of(error, path))
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
                self.note(problem_of(error, file.path))
                return
            yield from rows


def _is_met_again(problem: Problem) -> bool:
    """Whether reading the batches will come upon the problem by itself."""
    return (
        names.classify(os.path.basename(problem.path)).kind is FileKind.LOG
        and problem.position is not None
    )


def _offset_index(segment: Segment) -> indexes.OffsetIndex:
    stem, _, tail = segment.path.rpartition(".log")
    return indexes.decode_offset_index(
        read_small(f"{stem}{FileKind.INDEX}{tail}"), segment.base_offset
    )


# ---------------------------------------------------------------------- rows; the names are a contract


def _name(name: TopicPartition | None) -> Row:
    return {"topic": name.topic if name else None, "partition": name.partition if name else None}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def record_row(
    name: TopicPartition | None, segment: int, position: int, batch: Batch, record: Record
) -> Row:
    """One record. Numbers are those on disk, -1 for none; keys and values are base64, null where they are null.

    ``segment`` is the base offset in the file's name, ``position`` the byte where the record's batch begins.
    """
    header, attributes = batch.header, batch.attributes
    return {
        **_name(name),
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": _timestamp_type(header, attributes),
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": [
            [title.decode("utf-8", "backslashreplace"), _base64(content)]
            for title, content in record.headers
        ],
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "sequence": header.sequence_of(record.offset),
        "transactional": attributes.transactional,
        "control": decode_control_record(record).label if attributes.control else None,
        "compression": attributes.codec.label,
        "leader_epoch": header.partition_leader_epoch,
        "segment": segment,
        "position": position,
    }


def _timestamp_type(header: BatchHeader, attributes: BatchAttributes) -> str:
    """As Kafka names it; "none" in message format v0, which has no timestamps."""
    if header.magic == 0:
        return "none"
    return "LogAppendTime" if attributes.append_time else "CreateTime"


def decoded_row(name: TopicPartition | None, record: Record) -> Row:
    """What the record means: of Kafka's own topics its type and fields, else key and value where they are UTF-8."""
    if name is None or name.topic not in RECORD_TYPES:
        return {"key": _utf8(record.key), "value": _utf8(record.value)}
    return decode_internal_record(name.topic, record.key, record.value)._asdict()


def _utf8(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def batch_row(
    name: TopicPartition | None, segment: int, position: int, header: BatchHeader, data: memoryview
) -> Row:
    """One batch, its checksum verified. An entry of magic 0 or 1 is opened, since nothing else tells its records.

    Raises:
        CorruptLog: the checksum does not match.
        UnsupportedFormat: an unknown codec.
    """
    attributes = decode_attributes(header.attributes, 21)
    if header.magic < MAGIC:
        header = decode_batch(data, 0, BATCH_LIMIT_BYTES).header
    else:
        crc = int(google_crc32c.value(bytes(data[CRC_START:])))
        if crc != header.crc:
            raise CorruptLog(f"batch with crc {header.crc:#010x} whose bytes give {crc:#010x}", 17)
    return {
        **_name(name),
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size_bytes,
        "magic": header.magic,
        "crc": header.crc,
        "base_timestamp": header.base_timestamp_ms,
        "max_timestamp": header.max_timestamp_ms,
        "timestamp_type": _timestamp_type(header, attributes),
        "delete_horizon": header.delete_horizon_ms,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": attributes.transactional,
        "control": attributes.control,
        "compression": attributes.codec.label,
        "leader_epoch": header.partition_leader_epoch,
        "segment": segment,
        "position": position,
    }


def index_rows(
    data: bytes, kind: FileKind, base_offset: int, name: TopicPartition | None
) -> Iterator[Row]:
    """The entries of an index file; offsets are absolute."""
    common = {**_name(name), "segment": base_offset}
    if kind is FileKind.INDEX:
        by_offset = indexes.decode_offset_index(data, base_offset)
        for offset, position in zip(
            by_offset.offsets.tolist(), by_offset.positions.tolist(), strict=True
        ):
            yield {**common, "index": "offset", "offset": offset, "position": position}
    elif kind is FileKind.TIME_INDEX:
        by_time = indexes.decode_time_index(data, base_offset)
        for timestamp, offset in zip(
            by_time.timestamps_ms.tolist(), by_time.offsets.tolist(), strict=True
        ):
            yield {**common, "index": "time", "timestamp": timestamp, "offset": offset}
    else:
        for entry in indexes.decode_transaction_index(data, base_offset):
            yield {**common, "index": "transaction", **entry._asdict()}


def side_file_rows(file: SingleFile) -> Iterator[Row]:
    """The entries of a snapshot, a checkpoint or another small file."""
    data = read_small(file.path)
    common = _name(file.partition)
    if file.is_offset_checkpoint:
        for name, offset in text.decode_offset_checkpoint(data).items():
            yield {"topic": name.topic, "partition": name.partition, "offset": offset}
    elif file.is_clean_shutdown:
        yield {"broker_epoch": text.decode_clean_shutdown(data)}
    elif file.name.kind is FileKind.SNAPSHOT:
        for entry in snapshot.decode_snapshot(data):
            row = entry._asdict()
            row["timestamp"] = row.pop("timestamp_ms")
            yield {**common, "snapshot": file.base_offset, **row}
    elif file.name.kind is FileKind.LEADER_EPOCHS:
        for epoch in text.decode_leader_epochs(data):
            yield {**common, "leader_epoch": epoch.epoch, "start_offset": epoch.start_offset}
    else:
        yield {**common, "topic_id": text.decode_partition_metadata(data)}
