"""Kafka's message formats v0 and v1 (magic 0, 1): bytes to records, readable rather than fast.

The smallest entry is a *message*: one record, preceded by its offset. The CRC covers all bytes
after it::

    offset 7, size 20, crc, magic 0, attributes 0, key length 1, k, value length 5, value

v1 adds a timestamp after the attributes. A compressed message is a *wrapper*: its value is a
compressed sequence of entries, and its offset is the offset of the last entry. In v0 the entries
inside have absolute offsets. In v1 their offsets are relative, and the last one corresponds to the
wrapper's offset: 0, 1, 2 inside a wrapper at 12 are 10, 11, 12. So the first offset is known only
after the wrapper is decompressed.

An entry is decoded to a ``Batch`` like a batch of magic 2. The base offset is the offset of the
first record, and the last offset is the entry's. Leader epoch and producer are absent. Magic and
CRC are the entry's. ``max_timestamp_ms`` is the entry's timestamp, which indexes and retention use;
-1 in v0.

The compiled kernels (``old_format.kernels``) read the same formats. This module is the readable
reference, for callers that can afford a Python call per record.

Source: Kafka 4.4 ``LegacyRecord``, ``AbstractLegacyRecordBatch``; KIP-31, KIP-32; KAFKA-4298;
docs/formats/kafka.md, "Messages of magic 0 and 1" and "Compression".
"""

from __future__ import annotations

import zlib
from typing import Annotated, NamedTuple

from lastwrite.encoding.compression import Codec, decompress, with_lz4_header_checksum
from lastwrite.encoding.layout import I8, I32, I64, U8, U32, At, Buffer, layout
from lastwrite.errors import CorruptLog, LogError, TruncatedLog
from lastwrite.kafka.format.batch_layout import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    DEFAULT_LIMIT_BYTES,
    LENGTH_END,
    SHORTEST_ENTRY_BYTES,
    Batch,
    BatchHeader,
    Record,
    decode_attributes,
)

CRC_START = 16  # position of the first byte that the CRC covers, relative to the entry
NO_TIMESTAMP = -1

_MAX_I32 = (1 << 31) - 1
_MAX_I64 = (1 << 63) - 1


class MessageV0(NamedTuple):
    """The 22 bytes before an entry's key, magic 0. After the key: i32 value length, value."""

    # fmt: off                       offset  type
    offset: Annotated[int, At(0, I64)]  # offset of the message, or of a wrapper's last record
    size: Annotated[int, At(8, I32)]  # bytes after this field
    crc: Annotated[int, At(12, U32)]  # CRC-32 of byte 16 to the entry's end
    magic: Annotated[int, At(16, I8)]  # always 0
    attributes: Annotated[int, At(17, U8)]  # bits 0-2: codec
    key_length: Annotated[int, At(18, I32)]  # -1: the key is null, as in every wrapper
    # fmt: on


class MessageV1(NamedTuple):
    """The 30 bytes before an entry's key, magic 1."""

    # fmt: off                         offset  type
    offset: Annotated[int, At(0, I64)]
    size: Annotated[int, At(8, I32)]
    crc: Annotated[int, At(12, U32)]
    magic: Annotated[int, At(16, I8)]  # always 1
    attributes: Annotated[int, At(17, U8)]  # bits 0-2: codec; 3: the timestamp is the append time
    # The timestamp of a wrapper is the largest of its messages, or the append time. -1: there is no
    # timestamp.
    timestamp_ms: Annotated[int, At(18, I64)]
    key_length: Annotated[int, At(26, I32)]
    # fmt: on


MESSAGE_V0 = layout(MessageV0, byte_order=">", size=22)
MESSAGE_V1 = layout(MessageV1, byte_order=">", size=30)
_LENGTH_BYTES = 4  # size of the field for the value's length


class _Message(NamedTuple):
    """A message or wrapper with its fields as stored. ``value`` is a view of the bytes."""

    offset: int
    size: int  # bytes after the size field, as in MessageV0
    crc: int
    magic: int
    bits: int  # the attribute bits that the message's magic defines
    timestamp_ms: int
    key: bytes | None
    value: memoryview | None
    value_at: int


def decode_old_header(segment: Buffer, at: int) -> BatchHeader:
    """A batch header for the entry that starts ``at`` bytes into ``segment``.

    A wrapper is not decompressed. Its header therefore has the wrapper's last offset as the base
    offset, as if there were one record. Checks length, magic and codec, but not the CRC.

    Raises:
        TruncatedLog: the segment ends before the entry's key.
        CorruptLog: the magic or codec is invalid, or the fields are inconsistent.
    """
    fields = _decode_head(segment, at)
    bits = _bits(fields, at)
    timestamp_ms = fields.timestamp_ms if isinstance(fields, MessageV1) else NO_TIMESTAMP
    return _header(fields, bits, timestamp_ms)


def decode_old_batch(segment: Buffer, at: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Batch:
    """Decode and check the entry that starts ``at`` bytes into ``segment``, including a wrapper.

    Every count and size is checked against the available bytes before it is used. A wrapper
    decompresses to ``limit_bytes`` at most. The position in an error is a byte of ``segment``. For
    an error inside a wrapper it is the start of the wrapper's value, and the message states the
    position in the decompressed entries.

    A record of magic 0 has the timestamp -1, also inside a wrapper of magic 1 (KAFKA-4298: old
    brokers wrote such wrappers). With append time, every record has the wrapper's timestamp.

    Raises:
        TruncatedLog: the segment ends inside the entry.
        CorruptLog: the CRC is wrong, the codec does not exist in these formats, or messages are
            malformed.
        OutOfMemoryBudget: a wrapper decompresses to more than ``limit_bytes``.
    """
    message = _decode_message(memoryview(segment), at)
    codec = Codec(message.bits & CODEC_BITS)
    if codec is Codec.NONE:
        value = None if message.value is None else bytes(message.value)
        records = [Record(message.offset, message.timestamp_ms, message.key, value)]
    else:
        records = _open(message, codec, limit_bytes)
    first, last = records[0], max(message.offset, records[-1].offset)
    if last - first.offset > _MAX_I32:
        raise CorruptLog(f"the wrapper message has inner offsets from {first.offset} to {last}", at)
    header = _header(message, message.bits, message.timestamp_ms)._replace(
        base_offset=first.offset,
        last_offset_delta=last - first.offset,
        base_timestamp_ms=first.timestamp_ms,
        record_count=len(records),
    )
    return Batch(header, decode_attributes(message.bits), tuple(records))


def _header(entry: _Message | MessageV0 | MessageV1, bits: int, timestamp_ms: int) -> BatchHeader:
    """A batch header for one record, with the fields of ``entry``."""
    return BatchHeader(
        base_offset=entry.offset,
        batch_length=entry.size,
        partition_leader_epoch=-1,
        magic=entry.magic,
        crc=entry.crc,
        attributes=bits,
        last_offset_delta=0,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )


def _bits(fields: MessageV0 | MessageV1, at: int) -> int:
    """The used bits of an entry's attributes: the codec, and in v1 the timestamp type."""
    codec = fields.attributes & CODEC_BITS
    if codec > Codec.LZ4:
        raise CorruptLog(
            f"the message has codec {codec}; message format v{fields.magic} has no codec above "
            f"{Codec.LZ4}",
            at + 17,
        )
    return codec | (fields.attributes & APPEND_TIME_BIT if fields.magic else 0)


def _decode_head(data: Buffer, at: int) -> MessageV0 | MessageV1:
    left = len(data) - at
    if left < 17:
        raise TruncatedLog(f"the message is truncated to {left} bytes", at)
    length = int.from_bytes(bytes(data[at + 8 : at + 12]), "big", signed=True)
    if length < SHORTEST_ENTRY_BYTES:
        raise CorruptLog(f"the message has size {length}", at + 8)
    magic = int.from_bytes(bytes(data[at + 16 : at + 17]), "big", signed=True)
    if magic not in (0, 1):
        raise CorruptLog(f"the message has magic {magic}", at + 16)
    head = MESSAGE_V1 if magic else MESSAGE_V0
    if length + LENGTH_END < head.size + _LENGTH_BYTES:
        raise CorruptLog(f"the message has size {length}, less than its fields", at + 8)
    if left < head.size:
        raise TruncatedLog(f"the message is truncated to {left} of {length + LENGTH_END} bytes", at)
    values = head.unpack_from(data, at)
    fields = MessageV1._make(values) if magic else MessageV0._make(values)
    if not 0 <= fields.offset < _MAX_I64:
        raise CorruptLog(f"the message has the negative offset {fields.offset}", at)
    return fields


def _decode_message(data: memoryview, at: int) -> _Message:
    fields = _decode_head(data, at)
    size = fields.size + LENGTH_END
    end = at + size
    if len(data) < end:
        raise TruncatedLog(f"the message is truncated to {len(data) - at} of {size} bytes", at)
    crc = zlib.crc32(data[at + CRC_START : end])
    if crc != fields.crc:
        raise CorruptLog(
            f"the message has CRC {fields.crc:#010x}, but its bytes have CRC {crc:#010x}", at + 12
        )
    bits = _bits(fields, at)
    timestamp_ms = fields.timestamp_ms if isinstance(fields, MessageV1) else NO_TIMESTAMP
    length_at = at + (MESSAGE_V1 if fields.magic else MESSAGE_V0).size
    key_length = fields.key_length
    if not -1 <= key_length <= end - length_at - _LENGTH_BYTES:
        raise CorruptLog(
            f"the key has length {key_length}, but {end - length_at} bytes remain in the message",
            length_at - _LENGTH_BYTES,
        )
    key = None if key_length < 0 else bytes(data[length_at : length_at + key_length])
    length_at += max(key_length, 0)
    value_at = length_at + _LENGTH_BYTES
    value_length = int.from_bytes(data[length_at:value_at], "big", signed=True)
    if value_length < -1 or max(value_length, 0) != end - value_at:
        raise CorruptLog(
            f"the value has length {value_length}, but {end - value_at} bytes remain in the "
            "message",
            length_at,
        )
    value = None if value_length < 0 else data[value_at:end]
    return _Message(
        fields.offset, fields.size, crc, fields.magic, bits, timestamp_ms, key, value, value_at
    )


def _open(wrapper: _Message, codec: Codec, limit_bytes: int) -> list[Record]:
    """The records of a wrapper, with absolute offsets."""
    start = wrapper.value_at
    if wrapper.value is None:
        raise CorruptLog("the wrapper message's value is null", start - _LENGTH_BYTES)
    # The header checksum of v0's lz4 frames is ignored: the first clients computed it wrongly.
    wrong_checksum = codec is Codec.LZ4 and wrapper.magic == 0
    blob: Buffer = with_lz4_header_checksum(wrapper.value) if wrong_checksum else wrapper.value
    try:
        plain = decompress(codec, blob, limit_bytes)
    except LogError as error:
        raise type(error)(
            error.problem, start + (error.at or 0), error.path, error.remedy
        ) from error
    try:
        inside = _messages_inside(plain)
    except CorruptLog as error:
        raise CorruptLog(
            f"{error.problem}, at byte {error.at} of the decompressed messages", start
        ) from error
    last = inside[-1].offset
    if 0 < wrapper.offset < last:
        raise CorruptLog(
            f"the wrapper message has offset {wrapper.offset}, but its last inner message has "
            f"offset {last}",
            start,
        )
    # Some clients set a wrapper's offset to 0. The offsets of its messages then count from 0.
    shift = wrapper.offset - last if wrapper.magic and wrapper.offset else 0
    append_time_ms = wrapper.timestamp_ms if wrapper.bits & APPEND_TIME_BIT else None
    return [
        Record(
            message.offset + shift,
            message.timestamp_ms if append_time_ms is None else append_time_ms,
            message.key,
            None if message.value is None else bytes(message.value),
        )
        for message in inside
    ]


def _messages_inside(plain: memoryview) -> list[_Message]:
    """Decode the messages of a decompressed wrapper. Positions in errors are bytes of ``plain``."""
    found: list[_Message] = []
    at, last = 0, -1
    while at < len(plain):
        try:
            message = _decode_message(plain, at)
        except TruncatedLog as error:  # damage: all bytes of the wrapper are present
            raise CorruptLog(error.problem, error.at) from error
        if message.bits & CODEC_BITS:
            raise CorruptLog("a wrapper message contains a wrapper message", at)
        if message.offset <= last:
            raise CorruptLog(
                f"the inner message has offset {message.offset}, but the message before it has "
                f"offset {last}; the offsets must ascend",
                at,
            )
        last = message.offset
        found.append(message)
        at += message.size + LENGTH_END
    if not found:
        raise CorruptLog("the wrapper message contains no message", 0)
    return found
