"""The values in a partition's META stream: its segments, log start, leader epochs and producers.

The META stream is a log of key-value pairs, of which the last of each key counts. The payload of a
stream record is one pair: ``00``, the key's length (i32), the key, the value.

Source: AutoMQ f1ce98ec ``MetaKeyValue``, ``MetaStream``, ``ElasticLogMeta``,
``ElasticStreamSegmentMeta``, ``ElasticPartitionMeta``, ``ElasticLeaderEpochCheckpointMeta``,
``ElasticPartitionProducerSnapshotsMeta``.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from lastwrite.encoding.json_structs import decode_struct
from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.kafka.format.text import LeaderEpoch

LOG, PARTITION = "LOG", "PARTITION"
LEADER_EPOCHS, PRODUCERS = "LEADER_EPOCH_CHECKPOINT", "PRODUCER_SNAPSHOTS"

_PAIR_MAGIC, _SNAPSHOTS_MAGIC = 0x00, 0x18
_PAIR_HEAD_BYTES = 5
_EPOCH_VERSION, _EPOCH_BYTES, _EPOCHS_HEAD_BYTES = 0, 12, 8
_SNAPSHOT_HEAD_BYTES = 12

StructT = TypeVar("StructT")


class Slice(msgspec.Struct, frozen=True):
    """A range of a stream's offsets.

    ``e`` is exclusive; -1 means the stream's end. ``s`` -1 means that nothing was written.
    """

    s: int = -1
    e: int = -1


class LastTime(msgspec.Struct, frozen=True):
    """The last entry of a segment's time index: a timestamp, and an offset from the base offset."""

    t: int = -1
    o: int = -1


class SegmentMeta(msgspec.Struct, frozen=True):
    """A segment in the value of ``LOG``. The field names are AutoMQ's."""

    bo: int  # base offset
    s: str = ""  # suffix of the names of the segment's streams
    ls: Slice = Slice()  # range of the log stream
    txs: Slice = Slice()  # range of the stream of aborted transactions, in bytes
    lmt: int = 0  # time of the last modification in ms
    fbt: int = 0  # timestamp of the first batch; 0 if unknown
    tle: LastTime = LastTime()


class LogMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The value of ``LOG``: the stream ids by name, and all segments.

    The id of a stream is -1 before its first record.
    """

    stream_map: dict[str, int]
    segment_metas: list[SegmentMeta]


class PartitionMeta(msgspec.Struct, frozen=True):
    """The value of ``PARTITION``: log start offset, cleaner checkpoint and recovery point."""

    s: int = 0
    c: int = 0
    r: int = 0


def decode_pair(payload: Buffer) -> tuple[str, memoryview]:
    """Decode the payload of a stream record of a META stream to a key and its value.

    Raises:
        UnsupportedFormat: the magic is unknown.
        TruncatedLog, CorruptLog: the payload does not decode.
    """
    view = memoryview(payload)
    if len(view) < _PAIR_HEAD_BYTES:
        raise TruncatedLog(f"a record of the META stream has only {len(view)} bytes", 0)
    if view[0] != _PAIR_MAGIC:
        raise UnsupportedFormat(f"a record of the META stream has the magic {view[0]:#x}", 0)
    end = _PAIR_HEAD_BYTES + int.from_bytes(view[1:_PAIR_HEAD_BYTES], "big", signed=True)
    if not _PAIR_HEAD_BYTES <= end <= len(view):
        raise CorruptLog(f"a key of the META stream ends at byte {end} of {len(view)}", 1)
    try:
        return str(view[_PAIR_HEAD_BYTES:end], "utf-8"), view[end:]
    except UnicodeDecodeError:
        raise CorruptLog("a key of the META stream is not UTF-8", _PAIR_HEAD_BYTES) from None


def decode_log_meta(value: Buffer) -> LogMeta:
    """Decode the value of ``LOG``.

    Raises:
        CorruptLog: the value does not decode, or its segments are not ascending.
    """
    found = _decode_json(value, LogMeta, LOG)
    bases = [segment.bo for segment in found.segment_metas]
    if bases != sorted(set(bases)) or bases[:1] < [0][: len(bases)]:
        raise CorruptLog("the base offsets in LOG are not ascending", 0)
    for segment in found.segment_metas:
        if any(each.s < -1 or each.e < -1 for each in (segment.ls, segment.txs)):
            raise CorruptLog(f"segment {segment.bo} in LOG has a negative offset", 0)
        if segment.ls.e >= 0 and segment.ls.e < segment.ls.s:
            raise CorruptLog(f"the slice of segment {segment.bo} in LOG ends before it begins", 0)
    return found


def decode_partition_meta(value: Buffer) -> PartitionMeta:
    """Decode the value of ``PARTITION``.

    Raises:
        CorruptLog: the value does not decode.
    """
    return _decode_json(value, PartitionMeta, PARTITION)


def _decode_json(value: Buffer, kind: type[StructT], key: str) -> StructT:
    try:
        return decode_struct(memoryview(value), kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptLog(f"the value of {key} does not decode: {error}", 0) from error


def decode_stored_epochs(value: Buffer) -> tuple[LeaderEpoch, ...]:
    """Decode the value of ``LEADER_EPOCH_CHECKPOINT``: version i32, count i32, entries.

    Raises:
        UnsupportedFormat: the version is not 0.
        CorruptLog: the entries do not fill the value, or are not ascending.
    """
    view = memoryview(value)
    if len(view) < _EPOCHS_HEAD_BYTES:
        raise TruncatedLog(f"the leader epochs have only {len(view)} bytes", 0)
    version = int.from_bytes(view[:4], "big", signed=True)
    count = int.from_bytes(view[4:8], "big", signed=True)
    if version != _EPOCH_VERSION:
        raise UnsupportedFormat(f"the leader epochs have version {version}", 0)
    if count < 0 or _EPOCHS_HEAD_BYTES + count * _EPOCH_BYTES != len(view):
        raise CorruptLog(f"{count} leader epochs do not fill {len(view)} bytes", 4)
    found: list[LeaderEpoch] = []
    for at in range(_EPOCHS_HEAD_BYTES, len(view), _EPOCH_BYTES):
        epoch = int.from_bytes(view[at : at + 4], "big", signed=True)
        start = int.from_bytes(view[at + 4 : at + 12], "big", signed=True)
        if epoch < 0 or start < 0:
            raise CorruptLog(f"leader epoch {epoch} starts at offset {start}", at)
        if found and (epoch <= found[-1].epoch or start <= found[-1].start_offset):
            raise CorruptLog(f"leader epoch {epoch} is not above the entry before it", at)
        found.append(LeaderEpoch(epoch, start))
    return tuple(found)


def decode_producer_snapshots(value: Buffer) -> tuple[tuple[int, bytes], ...]:
    """Decode the value of ``PRODUCER_SNAPSHOTS``: entries of offset i64, length i32, content.

    The content is that of Kafka's ``.snapshot`` file at the offset.

    Raises:
        UnsupportedFormat: the magic is unknown.
        TruncatedLog, CorruptLog: the value does not decode.
    """
    view = memoryview(value)
    if not len(view):
        raise TruncatedLog("the producer snapshots have no bytes", 0)
    if view[0] != _SNAPSHOTS_MAGIC:
        raise UnsupportedFormat(f"the producer snapshots have the magic {view[0]:#x}", 0)
    found: list[tuple[int, bytes]] = []
    at = 1
    while at < len(view):
        body = at + _SNAPSHOT_HEAD_BYTES
        if body > len(view):
            raise TruncatedLog("the producer snapshots end inside an entry", at)
        offset = int.from_bytes(view[at : at + 8], "big", signed=True)
        size = int.from_bytes(view[at + 8 : body], "big", signed=True)
        if offset < 0 or not 0 <= size <= len(view) - body:
            raise CorruptLog(f"the producer snapshot at offset {offset} states {size} bytes", at)
        found.append((offset, bytes(view[body : body + size])))
        at = body + size
    return tuple(sorted(found))
