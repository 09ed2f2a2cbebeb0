"""Encodes messages of the formats v0 and v1 for tests. The package only decodes them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise

from lastwrite.encoding.compression import Codec, compress, with_lz4_header_checksum
from lastwrite.kafka.format.batch_layout import APPEND_TIME_BIT, CODEC_BITS, LENGTH_END, Record
from lastwrite.kafka.old_format.entries import CRC_START, MESSAGE_V0, MESSAGE_V1


def encode_message(record: Record, magic: int, *, append_time: bool = False) -> bytes:
    """One uncompressed message.

    Raises:
        ValueError: There are headers, which these formats lack, or a number does not fit.
    """
    if record.headers:
        raise ValueError(f"a message of magic {magic} has no headers")
    return _encode(
        record.offset,
        magic,
        APPEND_TIME_BIT * append_time,
        record.timestamp_ms,
        record.key,
        record.value,
    )


def encode_wrapper(
    records: Sequence[Record],
    magic: int,
    codec: Codec,
    *,
    append_time_ms: int | None = None,
    offset: int | None = None,
    inner_magic: int | None = None,
    inner_offsets: Sequence[int] | None = None,
) -> bytes:
    """A compressed message with ``records``, whose offsets are ascending.

    Args:
        append_time_ms: The broker's timestamp for every record. None means the records' timestamps.
        offset: By default the offset of the last record.
        inner_offsets: By default the records' offsets in v0, and in v1 relative to the first
            record.

    Raises:
        ValueError: The formats lack the codec, there are no records, there are headers, or offsets
            are
            not ascending.
    """
    if (
        not Codec.NONE < codec <= Codec.LZ4
        or not records
        or any(a.offset >= b.offset for a, b in pairwise(records))
    ):
        raise ValueError(f"no wrapper of {codec!r} around {len(records)} records")
    if inner_offsets is None:
        inner_offsets = [record.offset - (records[0].offset if magic else 0) for record in records]
    inner_magic = magic if inner_magic is None else inner_magic
    append_time = append_time_ms is not None
    plain = b"".join(
        encode_message(
            Record(place, record.timestamp_ms, record.key, record.value, record.headers),
            inner_magic,
            append_time=append_time,
        )
        for place, record in zip(inner_offsets, records, strict=True)
    )
    blob = compress(codec, plain)
    if codec is Codec.LZ4 and magic == 0:
        blob = with_lz4_header_checksum(blob, covers_magic=True)
    latest_ms = (
        max(record.timestamp_ms for record in records) if append_time_ms is None else append_time_ms
    )
    last = records[-1].offset if offset is None else offset
    return _encode(last, magic, codec | APPEND_TIME_BIT * append_time, latest_ms, None, blob)


def _encode(
    offset: int, magic: int, bits: int, timestamp_ms: int, key: bytes | None, value: bytes | None
) -> bytes:
    key_length, value_length = -1 if key is None else len(key), -1 if value is None else len(value)
    tail = (key or b"") + value_length.to_bytes(4, "big", signed=True) + (value or b"")
    if magic:
        size = MESSAGE_V1.size - LENGTH_END + len(tail)
        head = MESSAGE_V1.pack(offset, size, 0, magic, bits, timestamp_ms, key_length)
    else:
        size = MESSAGE_V0.size - LENGTH_END + len(tail)
        head = MESSAGE_V0.pack(offset, size, 0, magic, bits & CODEC_BITS, key_length)
    covered = head[CRC_START:] + tail
    return head[: CRC_START - 4] + zlib.crc32(covered).to_bytes(4, "big") + covered
