"""The state of an AutoMQ cluster's streams and objects, by replaying the metadata log.

The rules are those of ``S3StreamsMetadataImage`` and ``S3ObjectsImage``. The end offset of a stream
is the greatest offset that any record states for it. The end offset never falls while the stream
exists.

Source: AutoMQ f1ce98ec ``S3StreamsMetadataDelta``, ``S3ObjectsDelta``, ``KVDelta``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.kafka.automq import metadata_records as records
from lastwrite.kafka.automq.metadata_records import PartitionKey, decode_cluster_record
from lastwrite.kafka.automq.stored_objects import StreamRange, decode_stream_ranges
from lastwrite.kafka.cluster.metadata_log import check_snapshot, records_of
from lastwrite.kafka.cluster.metadata_record import Transaction

NEWEST_VERSION = 7  # newest supported version of the feature ``automq.version``
COMMITTED = 2  # state of an object
NORMAL, COMPOSITE = 0, 1  # types of objects
_FEATURE = "automq.version"
_END_OFFSETS_MAGIC, _END_OFFSET_BYTES = 0x01, 16
_TYPE_BITS, _BUCKET_SHIFT, _BUCKET_BITS = 0x3, 2, 0xFFFF
_BEGIN, _END, _ABORT = (each.value for each in Transaction)


class StreamRangeRecord(NamedTuple):
    """A range of a stream's offsets that one node wrote in one epoch."""

    epoch: int
    start_offset: int
    end_offset: int  # below the real end while the stream is open
    node: int


class StreamObject(NamedTuple):
    """An object that contains one stream."""

    object_id: int
    start_offset: int
    end_offset: int


class SetObject(NamedTuple):
    """A stream set object, which contains many streams."""

    object_id: int
    order_id: int
    node: int
    # the streams' ranges; empty from version V2 on, in which only the object's index has them
    ranges: tuple[StreamRange, ...]


class ObjectState(NamedTuple):
    """The state of an object. ``bucket`` is None in records of old versions."""

    size_bytes: int  # for a composite object, the size of the linked data blocks
    state: int
    type: int
    bucket: int | None


@dataclass(slots=True)
class Stream:
    """A stream: its bounds, its ranges by number, and the objects that contain only this stream."""

    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 0
    is_open: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    ranges: dict[int, StreamRangeRecord] = field(default_factory=dict)
    objects: dict[int, StreamObject] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterImage:
    """The topics, streams and objects of a cluster after all records of its metadata log."""

    version: int = 0  # of the feature ``automq.version``; 0 if there is no such feature
    topics: dict[str, str] = field(default_factory=dict)  # topic ids by name
    partitions: dict[str, set[int]] = field(default_factory=dict)  # partitions by topic id
    meta_streams: dict[PartitionKey, int] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    set_objects: dict[int, SetObject] = field(default_factory=dict)
    objects: dict[int, ObjectState] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)  # all nodes that wrote, or have a write-ahead log
    # ranges that a node has not uploaded from its write-ahead log yet, by (node, stream id)
    owed: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    # end offsets that a snapshot states before the stream's own record, by stream id
    early_ends: dict[int, int] = field(default_factory=dict)

    def apply(self, number: int, fields: Mapping[str, Any]) -> None:
        """Apply a record of type ``number`` with these fields."""
        _ACTIONS[number](self, fields)

    @property
    def namespaces(self) -> set[str]:
        """The namespaces of the cluster's partitions.

        There is only one, or none without partitions.
        """
        return {key.namespace for key in self.meta_streams}

    def is_live(self, object_id: int) -> bool:
        """Whether an object is committed, and not marked as destroyed."""
        found = self.objects.get(object_id)
        return found is not None and found.state == COMMITTED

    def raise_end(self, stream_id: int, end_offset: int) -> None:
        """Raise a stream's end offset to this offset. A greater end offset stays."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.end_offset = max(stream.end_offset, end_offset)
        else:
            self.early_ends[stream_id] = max(end_offset, self.early_ends.get(stream_id, 0))


def read_cluster_image(folder: str) -> ClusterImage:
    """The state after all records of the metadata log in ``folder``.

    Raises:
        UnsupportedFormat: ``automq.version`` is above 7, or a record has an unknown version.
        CorruptLog: the metadata log is damaged.
        LogError: a file cannot be read.
    """
    check_snapshot(folder)
    image = ClusterImage()
    pending: list[tuple[int, Mapping[str, Any]]] | None = None  # records of an open transaction
    for number, fields in records_of(folder, decode_cluster_record):
        if number in (_BEGIN, _END, _ABORT):
            for each in (pending or ()) if number == _END else ():
                image.apply(*each)
            pending = [] if number == _BEGIN else None
        elif pending is not None:
            pending.append((number, fields))
        else:
            image.apply(number, fields)
    return image


def _add_topic(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    image.topics[fields["name"]] = fields["topicId"]
    image.partitions[fields["topicId"]] = set()


def _remove_topic(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    removed = fields["topicId"]
    image.partitions.pop(removed, None)
    image.topics = {name: id for name, id in image.topics.items() if id != removed}


def _add_partition(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    if fields["topicId"] in image.partitions:
        image.partitions[fields["topicId"]].add(fields["partitionId"])


def _set_feature(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    if fields["name"] == _FEATURE:
        image.version = fields["featureLevel"]
        if image.version > NEWEST_VERSION:
            raise UnsupportedFormat(
                f"the cluster has {_FEATURE} {image.version}, and Lastwrite supports 1 to "
                f"{NEWEST_VERSION}",
                remedy="nothing was read; use a newer release of Lastwrite",
            )


def _set_stream(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    stream = image.streams.setdefault(fields["streamId"], Stream())
    stream.epoch, stream.is_open = fields["epoch"], fields["state"] != 0
    stream.start_offset = fields["startOffset"]
    early = image.early_ends.pop(fields["streamId"], 0)
    stream.end_offset = max(stream.end_offset, stream.start_offset, early)
    # a record that closes or trims a stream has no tags; the earlier tags stay
    tags = {each["key"]: each["value"] for each in fields.get("tags") or ()}
    stream.tags = tags or stream.tags


def _remove_stream(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    image.streams.pop(fields["streamId"], None)


def _set_range(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    image.nodes.add(fields["nodeId"])
    stream = image.streams.get(fields["streamId"])
    if stream is not None:
        stream.ranges[fields["rangeIndex"]] = StreamRangeRecord(
            fields["epoch"], fields["startOffset"], fields["endOffset"], fields["nodeId"]
        )
        stream.end_offset = max(stream.end_offset, fields["endOffset"])


def _remove_range(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    stream = image.streams.get(fields["streamId"])
    if stream is not None:
        stream.ranges.pop(fields["rangeIndex"], None)


def _set_stream_object(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    found = StreamObject(fields["objectId"], fields["startOffset"], fields["endOffset"])
    if not 0 <= found.start_offset <= found.end_offset:
        raise CorruptLog(
            f"stream object {found.object_id} has the offsets {found.start_offset} to "
            f"{found.end_offset}",
            0,
        )
    stream = image.streams.get(fields["streamId"])
    if stream is not None:
        stream.objects[found.object_id] = found
        stream.end_offset = max(stream.end_offset, found.end_offset)


def _remove_stream_object(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    stream = image.streams.get(fields["streamId"])
    if stream is not None:
        stream.objects.pop(fields["objectId"], None)


def _set_set_object(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    image.nodes.add(fields["nodeId"])
    ranges = decode_stream_ranges(base64.b64decode(fields.get("ranges") or ""))
    image.set_objects[fields["objectId"]] = SetObject(
        fields["objectId"], fields["orderId"], fields["nodeId"], ranges
    )
    for each in ranges:
        image.raise_end(each.stream_id, each.start_offset + each.offset_count)


def _remove_set_object(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    image.set_objects.pop(fields["objectId"], None)


def _set_object(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    attributes = fields.get("attributes")
    kind = 0 if attributes is None else attributes & _TYPE_BITS
    if kind not in (NORMAL, COMPOSITE):
        raise UnsupportedFormat(
            f"object {fields['objectId']} has type {kind}, and Lastwrite supports {NORMAL} and "
            f"{COMPOSITE}",
            0,
        )
    image.objects[fields["objectId"]] = ObjectState(
        fields["objectSize"],
        fields["state"],
        kind,
        None if attributes is None else attributes >> _BUCKET_SHIFT & _BUCKET_BITS,
    )


def _remove_object(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    image.objects.pop(fields["objectId"], None)


def _set_node(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    image.nodes.add(fields["nodeId"])


def _set_end_offsets(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    for stream_id, end_offset in decode_end_offsets(base64.b64decode(fields["endOffsets"] or "")):
        image.raise_end(stream_id, end_offset)


def decode_end_offsets(data: bytes) -> list[tuple[int, int]]:
    """Decode the bytes of an ``S3StreamEndOffsetsRecord``: stream ids and end offsets.

    Raises:
        UnsupportedFormat: the magic is unknown.
        CorruptLog: the bytes end inside an entry.
    """
    if not data:
        return []
    if data[0] != _END_OFFSETS_MAGIC:
        raise UnsupportedFormat(f"the end offsets of streams have the magic {data[0]:#x}", 0)
    if (len(data) - 1) % _END_OFFSET_BYTES:
        raise CorruptLog(f"the end offsets of streams have {len(data)} bytes", 0)
    numbers = [
        int.from_bytes(data[at : at + 8], "big", signed=True) for at in range(1, len(data), 8)
    ]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _set_meta_streams(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    image.meta_streams.update(fields["metaStreams"])


def _remove_key_values(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    for key in fields["keys"] or ():
        found = records.decode_partition_key(key or "")
        if found is not None:
            image.meta_streams.pop(found, None)


def _set_owed(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    for each in fields["streams"] or ():
        key = fields["nodeId"], each["streamId"]
        if each["startOffset"] < each["endOffset"]:
            image.owed[key] = each["startOffset"], each["endOffset"]
        else:
            image.owed.pop(key, None)


def _ignore(image: ClusterImage, fields: Mapping[str, Any]) -> None:
    """Ignore the removal of a node's write-ahead log: the ranges that it wrote may still exist."""


_ACTIONS: dict[int, Callable[[ClusterImage, Mapping[str, Any]], None]] = {
    records.TOPIC: _add_topic,
    records.PARTITION: _add_partition,
    records.REMOVE_TOPIC: _remove_topic,
    records.FEATURE: _set_feature,
    records.STREAM: _set_stream,
    records.REMOVE_STREAM: _remove_stream,
    records.RANGE: _set_range,
    records.REMOVE_RANGE: _remove_range,
    records.STREAM_OBJECT: _set_stream_object,
    records.REMOVE_STREAM_OBJECT: _remove_stream_object,
    records.SET_OBJECT: _set_set_object,
    records.REMOVE_SET_OBJECT: _remove_set_object,
    records.OBJECT: _set_object,
    records.REMOVE_OBJECT: _remove_object,
    records.NODE_WAL: _set_node,
    records.REMOVE_NODE_WAL: _ignore,
    records.END_OFFSETS: _set_end_offsets,
    records.KEY_VALUE: _set_meta_streams,
    records.REMOVE_KEY_VALUE: _remove_key_values,
    records.OWED: _set_owed,
}
