"""Produce, the request that writes records: one batch for one partition, with acks=all.

Versions 3 to 8 are not flexible, and have the topic's name. Fields in brackets depend on the
version::

    request   transactional id null · acks -1 · timeout ms · topics: name · partitions: number ·
              records
    answer    topics: name · partitions: number · error · base offset · append time · [log start] ·
              [errors of records: number, text] · [text] · throttle ms

Source: Kafka 4.4 ``ProduceRequest.json``, ``ProduceResponse.json``; KIP-98, KIP-467.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from lastwrite.encoding.layout import I16, I32, I64, Buffer
from lastwrite.errors import CorruptLog
from lastwrite.kafka.cluster.message import MessageReader
from lastwrite.kafka.network.messages import header


class ProduceBatch(NamedTuple):
    """A batch and the partition that it is written to."""

    topic: str
    partition: int
    batch: Buffer


class ProduceResult(NamedTuple):
    """The one partition of a Produce response."""

    throttle_ms: int
    error: int
    base_offset: int  # offset of the batch's first record; -1 if the batch was rejected
    message: str  # the broker's error messages; empty if it sent none


def encode_produce(
    version: int, correlation_id: int, client_id: str, append: ProduceBatch, timeout_ms: int
) -> bytes:
    """The bytes of a Produce request."""
    name = append.topic.encode()
    return b"".join(
        (
            header("produce", version, correlation_id, client_id, flexible=False),
            struct.pack(">hhiih", -1, -1, timeout_ms, 1, len(name)),
            name,
            struct.pack(">iii", 1, append.partition, len(memoryview(append.batch))),
            append.batch,
        )
    )


def decode_produce(version: int, data: Buffer) -> ProduceResult:
    """Decode a Produce response; ``data`` begins after the correlation id.

    Raises:
        CorruptLog: the bytes are not a response about one partition.
    """
    reader = MessageReader(data, 0)
    topics = reader.integer(I32)
    _text(reader)
    partitions = reader.integer(I32)
    if (topics, partitions) != (1, 1):
        raise CorruptLog(
            f"the response has {topics} topics and {partitions} partitions instead of one", 0
        )
    reader.integer(I32)
    error, base_offset = reader.integer(I16), reader.integer(I64)
    reader.integer(I64)
    words = []
    if version >= 5:
        reader.integer(I64)
    if version >= 8:
        for _ in range(max(reader.integer(I32), 0)):
            number, text = reader.integer(I32), _text(reader)
            words.append(f"record {number}: {text}")
        words.insert(0, _text(reader))
    throttle_ms = reader.integer(I32)
    return ProduceResult(throttle_ms, error, base_offset, "; ".join(filter(None, words[:3])))


def _text(reader: MessageReader) -> str:
    size = reader.integer(I16)
    return bytes(reader.take(size)).decode(errors="replace") if size > 0 else ""
