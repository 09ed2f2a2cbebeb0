"""Fetch, the request that reads records: one partition of one topic, without sessions.

The records of a response are a view of the bytes received. Versions 4 to 12 have the topic's name,
version 13 has its id. Versions 12 and 13 are flexible. Fields in brackets depend on the version::

    request   replica -1 · max wait ms · min bytes · max bytes · isolation 0 · [session 0, -1]
              topics: name or id · partitions: number · [leader epoch] · offset ·
              [last epoch -1] · [log start -1] · max bytes
              [forgotten topics: none] · [rack: ""]
    answer    throttle ms · [error · session] · topics: name or id · partitions:
              number · error · high watermark · last stable offset · [log start] ·
              aborted transactions: producer, first offset · [preferred replica] · records

Source: Kafka 4.4 ``FetchRequest.json``, ``FetchResponse.json``; KIP-74, KIP-227, KIP-320, KIP-516.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from lastwrite.encoding.layout import I16, I32, I64, Buffer, Integer
from lastwrite.errors import CorruptLog
from lastwrite.kafka.cluster.message import MessageReader
from lastwrite.kafka.network.messages import header, skip_tags

_FLEXIBLE, _BY_ID = 12, 13


class FetchPartition(NamedTuple):
    """The partition, offset and limits of a Fetch request."""

    topic: str
    topic_id: bytes  # 16 bytes; all zero if unknown
    partition: int
    leader_epoch: int  # expected leader epoch; with -1 the broker does not check it
    offset: int
    max_bytes: int
    max_wait_ms: int


class FetchedPartition(NamedTuple):
    """The one partition of a Fetch response. ``records`` is a view of the receive buffer."""

    throttle_ms: int
    error: int
    high_watermark: int
    log_start: int  # log start offset; -1 if the response lacks it
    records: memoryview
    is_cut: bool = False  # whether the connection broke within ``records``


def encode_fetch(
    version: int, correlation_id: int, client_id: str, request: FetchPartition
) -> bytes:
    """The bytes of a Fetch request."""
    flexible = version >= _FLEXIBLE
    one = b"\x02" if flexible else struct.pack(">i", 1)
    none = b"\x01" if flexible else struct.pack(">i", 0)
    parts = [
        header("fetch", version, correlation_id, client_id, flexible),
        struct.pack(">iiiib", -1, request.max_wait_ms, 1, request.max_bytes, 0),
    ]
    if version >= 7:
        parts.append(struct.pack(">ii", 0, -1))
    parts += [one, _topic(version, request), one, struct.pack(">i", request.partition)]
    if version >= 9:
        parts.append(struct.pack(">i", request.leader_epoch))
    parts.append(struct.pack(">q", request.offset))
    if version >= 12:
        parts.append(struct.pack(">i", -1))
    if version >= 5:
        parts.append(struct.pack(">q", -1))
    parts.append(struct.pack(">i", request.max_bytes))
    if flexible:
        parts.append(b"\0\0")  # the partition and the topic have no tagged fields
    if version >= 7:
        parts.append(none)
    if version >= 11:
        parts.append(b"\x01" if flexible else b"\0\0")
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)


def _topic(version: int, request: FetchPartition) -> bytes:
    if version >= _BY_ID:
        return request.topic_id
    name = request.topic.encode()
    if version >= _FLEXIBLE:
        size = len(name) + 1  # this is at most 250, so its varint has one or two bytes
        return bytes([size] if size < 0x80 else [size & 0x7F | 0x80, size >> 7]) + name
    return struct.pack(">h", len(name)) + name


def decode_fetch(version: int, data: Buffer, is_cut: bool = False) -> FetchedPartition:
    """Decode a Fetch response; ``data`` begins after the correlation id.

    ``is_cut`` means that the connection broke before the end.

    Raises:
        CorruptLog: the response does not match the request, or ends before the records.
    """
    flexible = version >= _FLEXIBLE
    reader = MessageReader(data, skip_tags(data, 0) if flexible else 0)
    throttle_ms = reader.integer(I32)
    error = reader.integer(I16) if version >= 7 else 0
    if version >= 7:
        reader.integer(I32)  # the session id, which is not used
    topics = _count(reader, flexible)
    if topics == 0 and (error or throttle_ms):  # a broker that throttles sends no topics
        return FetchedPartition(throttle_ms, error, -1, -1, memoryview(b""))
    if topics != 1:
        raise CorruptLog(f"the response has {topics} topics instead of one", 0)
    if version >= _BY_ID:
        reader.take(16)
    else:
        reader.take(_length(reader, flexible, I16))
    if _count(reader, flexible) != 1:
        raise CorruptLog("the response does not have exactly one partition", 0)
    reader.integer(I32)
    error = reader.integer(I16) or error
    high_watermark = reader.integer(I64)
    reader.integer(I64)
    log_start = reader.integer(I64) if version >= 5 else -1
    for _ in range(max(_count(reader, flexible), 0)):
        reader.take(16)
        if flexible:
            reader.position = skip_tags(data, reader.position)
    if version >= 11:
        reader.integer(I32)
    size = max(_length(reader, flexible, I32), 0)
    begin = reader.position
    left = len(memoryview(data)) - begin
    if is_cut:
        size = min(size, left)
    elif size > left:
        raise CorruptLog(
            f"the response's records have length {size}, but {left} bytes remain", begin
        )
    return FetchedPartition(
        throttle_ms,
        error,
        high_watermark,
        log_start,
        memoryview(data)[begin : begin + size],
        is_cut,
    )


def _count(reader: MessageReader, flexible: bool) -> int:
    return _length(reader, flexible, I32)


def _length(reader: MessageReader, flexible: bool, fixed: Integer) -> int:
    """Encode the length of a string, bytes or a list. -1 is null."""
    return reader.unsigned() - 1 if flexible else reader.integer(fixed)
