"""Encodes and decodes batches of magic 0 and 1 for tests, without the package's decoder.

A plain message is a batch of one record. A compressed message is a wrapper, whose value has the
records as messages. Their offsets are absolute in magic 0, and count from 0 in magic 1.

Source: docs/formats/kafka.md, "Messages of magic 0 and 1" and "Compression".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from lastwrite.encoding.compression import Codec, compress, decompress
from tests.support.kafka.model import ModelBatch, ModelRecord

APPEND_TIME = 8
LZ4 = 3
# Byte 6 of an lz4 frame, the header checksum: the wrong one that old clients wrote, and the right
# one.
LZ4_OLD, LZ4_RIGHT = b"\x1a", b"\x82"


def encode_old(batch: ModelBatch) -> bytes:
    """The bytes of a model batch with magic 0 or 1."""
    attributes = APPEND_TIME * batch.append_time
    if batch.codec == 0:
        [record] = batch.records
        assert batch.base_offset == batch.last_offset == record.offset
        return _entry(
            record.offset, batch.magic, attributes, record.timestamp_ms, record.key, record.value
        )
    first, last = batch.records[0].offset, batch.records[-1].offset
    assert (batch.base_offset, batch.last_offset) == (first, last)
    inner = b"".join(
        _entry(
            r.offset - (first if batch.magic else 0), batch.magic, 0, r.timestamp_ms, r.key, r.value
        )
        for r in batch.records
    )
    blob = compress(Codec(batch.codec), inner)
    if batch.codec == LZ4 and batch.magic == 0:
        assert blob[6:7] == LZ4_RIGHT
        blob = blob[:6] + LZ4_OLD + blob[7:]
    return _entry(last, batch.magic, attributes | batch.codec, batch.max_timestamp_ms, None, blob)


def decode_old(data: bytes, at: int) -> tuple[ModelBatch, int]:
    """The batch of magic 0 or 1 at ``at``, and its size in bytes. Checks the CRC."""
    [(offset, magic, attributes, timestamp_ms, key, value)] = _entries(
        data[at : at + _size(data, at)]
    )
    codec, append_time = attributes & 7, bool(attributes & APPEND_TIME)
    if codec == 0:
        records = [ModelRecord(offset, timestamp_ms, key, value)]
    else:
        assert key is None and value is not None
        if codec == LZ4 and magic == 0:
            value = value[:6] + LZ4_RIGHT + value[7:]
        inner = list(_entries(bytes(decompress(Codec(codec), value, 1 << 30))))
        shift = offset - inner[-1][0] if magic else 0
        records = [
            ModelRecord(o + shift, timestamp_ms if append_time else t, k, v)
            for o, _, _, t, k, v in inner
        ]
    return (
        ModelBatch(
            records[0].offset,
            offset,
            tuple(records),
            codec,
            append_time,
            0,
            timestamp_ms,
            magic=magic,
        ),
        _size(data, at),
    )


def _size(data: bytes, at: int) -> int:
    return 12 + int.from_bytes(data[at + 8 : at + 12], "big")


def _entry(
    offset: int,
    magic: int,
    attributes: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
) -> bytes:
    message = struct.pack(">bb", magic, attributes) + (
        struct.pack(">q", timestamp_ms) if magic else b""
    )
    for content in (key, value):
        message += (
            struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
        )
    return struct.pack(">qiI", offset, len(message) + 4, zlib.crc32(message)) + message


def _entries(data: bytes) -> Iterator[tuple[int, int, int, int, bytes | None, bytes | None]]:
    """Offset, magic, attributes, timestamp, key and value of each message in ``data``."""
    at = 0
    while at < len(data):
        end = at + _size(data, at)
        offset, _, crc, magic, attributes = struct.unpack_from(">qiIbb", data, at)
        assert zlib.crc32(data[at + 16 : end]) == crc, f"crc of the message at {offset}"
        at += 18
        timestamp_ms = -1
        if magic:
            [timestamp_ms] = struct.unpack_from(">q", data, at)
            at += 8
        contents: list[bytes | None] = []
        for _ in range(2):
            [length] = struct.unpack_from(">i", data, at)
            at += 4
            contents.append(None if length < 0 else data[at : at + length])
            at += max(length, 0)
        assert at == end
        yield offset, magic, attributes, timestamp_ms, contents[0], contents[1]
