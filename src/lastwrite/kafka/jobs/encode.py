"""Encode another system's partition as a Kafka partition in an archive.

Each source record becomes one record, whose offset is its number in the other system::

    queue offset 7 "k" = ""        a RocketMQ message: offset 7, a tombstone for k
    entry 10:5, message 2          a Pulsar message: offset (10 << 24 | 5) << 12 | 2

Keys, timestamps and headers are kept. A value that deletes its key in the other system becomes a
tombstone. The log begins at 0, so that no consumer is out of range after a compaction removes the
first records. It ends at the source's end. If no record has the last offset, an empty batch has it,
as after compaction by Kafka's cleaner.

A later run appends newer records. After a change of its history, a source needs a new archive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from lastwrite.archive.partition_store import partition_store_at
from lastwrite.encoding.compression import Codec
from lastwrite.errors import CorruptLog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.encoder import BatchEncoder
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.store import archived
from lastwrite.kafka.store.archive_writer import KafkaArchiveWriter, LiveSource
from lastwrite.kafka.store.archived import ArchivedMetadata
from lastwrite.model.columns import BatchTable, ByteArray
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import Limits
from lastwrite.rows.reading import RowUnit, read_records, row_units
from lastwrite.rows.system import RowSystem

_LEADER_EPOCH = 0
_NO_END = 1 << 62
_COLUMNS = ("key", "value", "offset", "timestamp", "headers")
_KNOWN = ArchivedMetadata(topic={"cleanup.policy": "compact"})


def fetch_batches(rows: RowSystem, log: PartitionLog, folder: str, codec: Codec) -> int:
    """Append the records of ``log`` that the archived partition at ``folder`` lacks.

    Returns the partition's new end offset.

    Raises:
        CorruptLog, UnsupportedFormat: a record cannot be decoded, or has no number.
        CommitConflict: the log or the archive changed meanwhile.
        LogError: the archived records are not the start of this log, or the archive cannot be
            written.
    """
    current = partition_store_at(folder).read()
    before = None if current is None else archived.contents_of(current.manifest, folder)
    since = log.log_start
    if before is not None and before.segments:
        since = rows.offset_of(before.end_offset - 1) + 1
        if since >= rows.end_of(log, is_committed=True):
            return before.end_offset
    intake = KafkaArchiveWriter(_source(log), folder)
    at, end = intake.first, rows.number_of(rows.end_of(log, is_committed=True))
    try:
        limits = Limits()
        encoder, format = BatchEncoder(codec), KafkaFormat(limits.plain_bytes)
        for unit in row_units(rows, log, _COLUMNS, is_committed=True, first=since):
            for data in _encoded(rows, unit, encoder, limits):
                for table in _tables(format, data, at):
                    intake.append(data, table)
                    at = int(table["next_offset"][-1])
        if at < end:
            last = encode_batch(
                [], base_offset=end - 1, last_offset=end - 1, leader_epoch=_LEADER_EPOCH
            )
            data = np.frombuffer(bytearray(last), np.uint8)
            intake.append(data, next(_tables(format, data, at)))
        intake.finish(max(at, end))
    except BaseException:
        intake.abandon()
        raise
    return max(at, end)


def _source(log: PartitionLog) -> LiveSource:
    return LiveSource(
        path=log.folder,
        log_start=0,
        end=_NO_END,
        topic_id=None,
        lineage=lambda epoch: (),
        metadata=_KNOWN,
        groups=None,
        config=KafkaTopicConfig(),
        asked_ms=time.time_ns() // 1_000_000,
        written=(),
    )


def _encoded(
    rows: RowSystem, unit: RowUnit, encoder: BatchEncoder, limits: Limits
) -> Iterator[ByteArray]:
    """Encode the records of one unit of the source. Yields the batches of each block of records."""
    for records in read_records(unit, limits):
        numbers = rows.numbers(records)
        try:
            yield encoder.batches(rows.with_deletes(records), numbers, _LEADER_EPOCH)
        except ValueError as error:
            raise CorruptLog(
                f"the records are out of order: {error}", int(records.positions[0]), unit.piece.path
            ) from error


def _tables(format: KafkaFormat, data: ByteArray, end: int) -> Iterator[BatchTable]:
    """Yield tables of the verified batches in ``data``. Checks that no offset is below ``end``."""
    at = 0
    while at < len(data):
        table, at, _, _ = format.split(data, at, len(data), end)
        end = int(table["next_offset"][-1])
        yield table
