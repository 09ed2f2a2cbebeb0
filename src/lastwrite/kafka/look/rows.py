"""Kafka's records, batches and side files as rows for ``dump``. Field names are a contract."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import google_crc32c

from lastwrite.errors import CorruptLog, LogError
from lastwrite.kafka.automq.metadata_records import mask_node_settings
from lastwrite.kafka.cluster.internal_topics import decode_internal_record, is_decoded
from lastwrite.kafka.cluster.roots import read_identity
from lastwrite.kafka.format import index as indexes
from lastwrite.kafka.format import names, text
from lastwrite.kafka.format.batch import decode_batch, decode_control_record
from lastwrite.kafka.format.batch_layout import (
    CRC_START,
    MAGIC,
    Batch,
    BatchAttributes,
    BatchHeader,
    Record,
    decode_attributes,
)
from lastwrite.kafka.format.names import KafkaFileKind
from lastwrite.kafka.look.problems import whole_batches
from lastwrite.kafka.look.single import SingleFile
from lastwrite.kafka.producers import snapshot
from lastwrite.kafka.store import index_files
from lastwrite.model.log import Problem, Segment, TopicPartition
from lastwrite.reports.table import Row
from lastwrite.storage.problems import BATCH_LIMIT_BYTES
from lastwrite.storage.reading import read_small


def index_rows(
    data: bytes, kind: KafkaFileKind, base_offset: int, name: TopicPartition | None
) -> Iterator[Row]:
    """The rows of an index file's entries. Offsets are absolute."""
    common = {**_name(name), "segment": base_offset}
    if kind is KafkaFileKind.INDEX:
        by_offset = indexes.decode_offset_index(data, base_offset)
        for offset, position in zip(
            by_offset.offsets.tolist(), by_offset.positions.tolist(), strict=True
        ):
            yield {**common, "index": "offset", "offset": offset, "position": position}
    elif kind is KafkaFileKind.TIME_INDEX:
        by_time = indexes.decode_time_index(data, base_offset)
        for timestamp, offset in zip(
            by_time.timestamps_ms.tolist(), by_time.offsets.tolist(), strict=True
        ):
            yield {**common, "index": "time", "timestamp": timestamp, "offset": offset}
    else:
        for entry in indexes.decode_transaction_index(data, base_offset):
            yield {**common, "index": "transaction", **entry._asdict()}


def position_of(segment: Segment, offset: int) -> int:
    """The byte at which to start reading for ``offset``. 0 without a correct index entry."""
    if offset <= segment.base_offset or not segment.is_indexed:
        return 0
    path = index_files.index_path(segment.path)
    try:
        entries = indexes.decode_offset_index(read_small(path), segment.base_offset)
    except LogError:
        return 0
    start = entries.lookup(offset)[1]
    if not 0 < start < segment.size_bytes:
        return 0
    problems: list[Problem] = []
    first = next(whole_batches(segment, problems.append, start), None)
    return start if first is not None and first[1].base_offset <= offset else 0


def _name(name: TopicPartition | None) -> Row:
    return {"topic": name.topic if name else None, "partition": name.partition if name else None}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def record_row(
    name: TopicPartition | None, segment: int, position: int, batch: Batch, record: Record
) -> Row:
    """The row of one record.

    Numbers are as on disk, -1 for none; keys and values are base64, or null. ``segment`` is the
    base offset in the file's name, ``position`` the byte where the record's batch begins. Settings
    of AutoMQ's nodes in a metadata log are masked.
    """
    header, attributes, value = batch.header, batch.attributes, record.value
    if value is not None and (name is None or name.topic == names.METADATA_TOPIC):
        value = mask_node_settings(value)
    return {
        **_name(name),
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": _timestamp_type(header, attributes),
        "key": _base64(record.key),
        "value": _base64(value),
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
    """Kafka's name of the timestamp type; "none" for format v0, which has no timestamps."""
    if header.magic == 0:
        return "none"
    return "LogAppendTime" if attributes.append_time else "CreateTime"


def decoded_row(name: TopicPartition | None, record: Record) -> Row:
    """The decoded record of an internal topic. For other topics, key and value as UTF-8 text."""
    if name is None or not is_decoded(name.topic):
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
    """The row of one batch, after verifying its checksum.

    An entry of magic 0 or 1 is decompressed to count its records.

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
            raise CorruptLog(
                f"the batch header has CRC {header.crc:#010x}, but the batch's bytes have CRC "
                f"{crc:#010x}",
                17,
            )
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


def side_file_rows(file: SingleFile) -> Iterator[Row]:
    """The rows of the entries of a snapshot, a checkpoint or another small file."""
    data = read_small(file.path)
    common = _name(file.partition)
    if file.is_offset_checkpoint:
        for name, offset in text.decode_offset_checkpoint(data).items():
            yield {"topic": name.topic, "partition": name.partition, "offset": offset}
    elif file.root_file == names.CLEAN_SHUTDOWN:
        yield {"broker_epoch": text.decode_clean_shutdown(data)}
    elif file.root_file == names.META_PROPERTIES:
        found = read_identity(file.path)
        yield {
            "version": found.version,
            "cluster_id": found.cluster,
            "node_id": found.node,
            "directory_id": found.directory,
        }
    elif file.name.kind is KafkaFileKind.SNAPSHOT:
        for entry in snapshot.decode_snapshot(data):
            row = entry._asdict()
            row["timestamp"] = row.pop("timestamp_ms")
            yield {**common, "snapshot": file.base_offset, **row}
    elif file.name.kind is KafkaFileKind.LEADER_EPOCHS:
        for epoch in text.decode_leader_epochs(data):
            yield {**common, "leader_epoch": epoch.epoch, "start_offset": epoch.start_offset}
    else:
        yield {**common, "topic_id": text.decode_partition_metadata(data)}
