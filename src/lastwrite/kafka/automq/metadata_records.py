"""AutoMQ's records in the controllers' metadata log, as tables.

These records describe the streams, their ranges, the objects in the bucket, and key-value pairs
that lead from a partition to its META stream. Records of Kafka that name topics are decoded too.

The value of a key-value pair ``__automq_node/N`` can contain the access keys of a node's
write-ahead log. ``decode_cluster_record`` drops all values except those of partitions.

Source: AutoMQ f1ce98ec ``metadata/src/main/resources/common/metadata/*.json``; Kafka's records as
in ``cluster.metadata_tables``.
"""

from __future__ import annotations

import base64
import re
from typing import Any, NamedTuple

from lastwrite.encoding.layout import I8, I32, I64
from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.kafka.automq.names import NAMESPACE_PREFIX
from lastwrite.kafka.cluster.message import (
    BOOL,
    BYTES,
    STRING,
    Array,
    MessageReader,
    MessageSchema,
    SchemaField,
    Struct,
)
from lastwrite.kafka.cluster.metadata_record import Transaction
from lastwrite.kafka.cluster.metadata_tables import FRAME_VERSION, METADATA_RECORDS

TOPIC, PARTITION, REMOVE_TOPIC, FEATURE = 2, 3, 9, 12
STREAM, REMOVE_STREAM, RANGE, REMOVE_RANGE = 501, 502, 503, 504
STREAM_OBJECT, REMOVE_STREAM_OBJECT, SET_OBJECT, REMOVE_SET_OBJECT = 505, 506, 507, 508
OBJECT, REMOVE_OBJECT, NODE_WAL, REMOVE_NODE_WAL = 509, 510, 513, 514
END_OFFSETS, KEY_VALUE, REMOVE_KEY_VALUE, OWED = 515, 516, 517, 518

# A partition's key: ``<namespace>/<topic id, or the name in very old clusters>/<partition>``.
_PARTITION_KEY = re.compile(rf"({re.escape(NAMESPACE_PREFIX)}[^/]+)/([^/]+)/([0-9]{{1,9}})")
_STREAM_ID_BYTES = 8
_NODE_KEY = re.compile(rb"__automq_node/[0-9]+")


def _record(name: str, *fields: SchemaField, last: int = 0) -> MessageSchema:
    return MessageSchema(name, fields, last, flexible=0)


# fmt: off
_TAG = Struct((
    SchemaField("key",   STRING),
    SchemaField("value", STRING),
))
_STREAM_OFFSETS = Struct((
    SchemaField("streamId",    I64),
    SchemaField("startOffset", I64),
    SchemaField("endOffset",   I64),
))
_KEY_VALUE = Struct((
    SchemaField("key",       STRING),
    SchemaField("value",     BYTES),
    SchemaField("namespace", STRING, since=1),
))

CLUSTER_RECORDS = {
    TOPIC: METADATA_RECORDS[TOPIC],
    PARTITION: METADATA_RECORDS[PARTITION],
    REMOVE_TOPIC: METADATA_RECORDS[REMOVE_TOPIC],
    FEATURE: METADATA_RECORDS[FEATURE],
    STREAM: _record("S3StreamRecord",
        SchemaField("streamId",    I64),
        SchemaField("epoch",       I64),
        SchemaField("rangeIndex",  I32),
        SchemaField("startOffset", I64),
        SchemaField("state",       I8),
        SchemaField("tags",        Array(_TAG), since=1), last=1),
    REMOVE_STREAM: _record("RemoveS3StreamRecord",
        SchemaField("streamId", I64)),
    RANGE: _record("RangeRecord",
        SchemaField("streamId",    I64),
        SchemaField("epoch",       I64),
        SchemaField("rangeIndex",  I32),
        SchemaField("startOffset", I64),
        SchemaField("endOffset",   I64),
        SchemaField("nodeId",      I32)),
    REMOVE_RANGE: _record("RemoveRangeRecord",
        SchemaField("streamId",   I64),
        SchemaField("rangeIndex", I32)),
    STREAM_OBJECT: _record("S3StreamObjectRecord",
        SchemaField("streamId",    I64),
        SchemaField("startOffset", I64),
        SchemaField("endOffset",   I64),
        SchemaField("objectId",    I64),
        SchemaField("dataTime",    I64, until=0), last=1),
    REMOVE_STREAM_OBJECT: _record("RemoveS3StreamObjectRecord",
        SchemaField("streamId", I64),
        SchemaField("objectId", I64)),
    SET_OBJECT: _record("S3StreamSetObjectRecord",
        SchemaField("nodeId",   I32),
        SchemaField("objectId", I64),
        SchemaField("orderId",  I64),
        SchemaField("dataTime", I64),
        SchemaField("ranges",   BYTES, until=0), last=1),
    REMOVE_SET_OBJECT: _record("RemoveStreamSetObjectRecord",
        SchemaField("nodeId",   I32),
        SchemaField("objectId", I64)),
    OBJECT: _record("S3ObjectRecord",
        SchemaField("objectId",          I64),
        SchemaField("objectSize",        I64),
        SchemaField("preparedTime",      I64, until=0),
        SchemaField("expiredTime",       I64, until=0),
        SchemaField("committedTime",     I64, until=0),
        SchemaField("markDestroyedTime", I64, until=0),
        SchemaField("state",             I8),
        SchemaField("attributes",        I32, since=1),
        SchemaField("timestamp",         I64, since=1), last=1),
    REMOVE_OBJECT: _record("RemoveS3ObjectRecord",
        SchemaField("objectId", I64)),
    NODE_WAL: _record("NodeWALMetadataRecord",
        SchemaField("nodeId",       I32),
        SchemaField("nodeEpoch",    I64),
        SchemaField("failoverMode", BOOL)),
    REMOVE_NODE_WAL: _record("RemoveNodeWALMetadataRecord",
        SchemaField("nodeId", I32)),
    END_OFFSETS: _record("S3StreamEndOffsetsRecord",
        SchemaField("endOffsets", BYTES)),
    KEY_VALUE: _record("KVRecord",
        SchemaField("keyValues", Array(_KEY_VALUE)), last=1),
    REMOVE_KEY_VALUE: _record("RemoveKVRecord",
        SchemaField("keys",       Array(STRING)),
        SchemaField("namespaces", Array(STRING), since=1), last=1),
    OWED: _record("NodeWALUncommittedOffsetsRecord",
        SchemaField("nodeId",  I32),
        SchemaField("streams", Array(_STREAM_OFFSETS))),
}
# fmt: on


class PartitionKey(NamedTuple):
    """The key of a key-value pair whose value is the id of a partition's META stream."""

    namespace: str
    topic: str  # topic id of 22 characters; in very old clusters the topic's name
    partition: int


def decode_partition_key(key: str) -> PartitionKey | None:
    """Decode a key of a key-value pair. None for keys that do not belong to a partition."""
    found = _PARTITION_KEY.fullmatch(key)
    return None if found is None else PartitionKey(found[1], found[2], int(found[3]))


def decode_cluster_record(value: bytes) -> tuple[int, dict[str, Any]] | None:
    """The type and fields of a record about topics, streams, objects or a transaction.

    None for all other types. A key-value record has the field ``metaStreams``, a dict of stream ids
    by ``PartitionKey``, instead of its keys and values. Other values of the record are dropped.

    Raises:
        UnsupportedFormat: the version of the frame, or of a record that is decoded, is unknown.
        TruncatedLog, CorruptLog: the value does not decode.
    """
    reader = MessageReader(value)
    frame = reader.unsigned()
    if frame != FRAME_VERSION:
        raise UnsupportedFormat(f"the metadata record has frame version {frame}", 0)
    number, version = reader.unsigned(), reader.unsigned()
    if number in (each.value for each in Transaction):
        return number, {}
    schema = CLUSTER_RECORDS.get(number)
    if schema is None:
        return None
    if version > schema.last:
        raise UnsupportedFormat(
            f"{schema.name} has version {version}, and Lastwrite supports 0 to {schema.last}",
            1,
            remedy="use a newer release of Lastwrite",
        )
    fields, _ = schema.decode(value, version, reader.position)
    if number == KEY_VALUE:
        return number, {"metaStreams": _meta_streams(fields["keyValues"] or ())}
    return number, fields


def _meta_streams(pairs: list[dict[str, Any]] | tuple[()]) -> dict[PartitionKey, int]:
    found: dict[PartitionKey, int] = {}
    for pair in pairs:
        key = decode_partition_key(pair["key"] or "")
        if key is None:
            continue
        value = base64.b64decode(pair["value"] or "")
        if len(value) != _STREAM_ID_BYTES:
            raise CorruptLog(f"the value of {pair['key']} is not the id of a stream", 0)
        found[key] = int.from_bytes(value, "big", signed=True)
    return found


def mask_node_settings(value: bytes) -> bytes:
    """A metadata record's value with ``*`` for the settings of a node and all bytes after them.

    The settings can contain access keys. Other records are returned unchanged.
    """
    found = _NODE_KEY.search(value)
    return value if found is None else value[: found.end()].ljust(len(value), b"*")
