"""Kafka's record batch, magic 2: bytes to records and back, readable rather than fast.

Entries of the older formats, magic 0 and 1, are decoded to such batches too; their layout is in
``old_format.entries``.

The smallest batch has one record::

    header, 61 bytes    base_offset 7, batch_length 57, ..., record_count 1
    record              length, attributes, timestamp delta, offset delta 0, key, value, header
                        count

A second record gets offset delta 1. Compaction removes records: the base offset and the last offset
stay, the count falls, and the deltas get gaps. A batch that loses every record may stay as a bare
header, so that readers find the log's end. A batch that contains tombstones gets a *delete
horizon*: attribute bit 6 is set, the base timestamp is the horizon, and all timestamp deltas are
relative to it. With compression, all bytes after the header are one compressed block.

The compiled kernels read the same format about a hundred times faster. This module is the readable
reference, for callers that can afford a Python call per record: ``dump``, the demo's writer, tests.

Source: Kafka 4.4 ``DefaultRecordBatch``, ``DefaultRecord``, ``MemoryRecordsBuilder``,
``ControlRecordType``; KIP-98; KIP-534 for attribute bit 6; docs/formats/kafka.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import google_crc32c

from lastwrite.encoding.compression import Codec, compress, decompress
from lastwrite.encoding.layout import Buffer
from lastwrite.encoding.varint import decode_varint, decode_varlong, encode_varint, encode_varlong
from lastwrite.errors import CorruptLog, LogError, TruncatedLog, UnsupportedFormat
from lastwrite.kafka.format.batch_layout import (
    BATCH_HEADER,
    CRC_START,
    DEFAULT_LIMIT_BYTES,
    LENGTH_END,
    MAGIC,
    SHORTEST_ENTRY_BYTES,
    SHORTEST_RECORD_BYTES,
    UNKNOWN_MAGIC,
    Batch,
    BatchAttributes,
    BatchHeader,
    Record,
    decode_attributes,
)
from lastwrite.kafka.format.remedy import UPGRADE
from lastwrite.kafka.old_format.entries import decode_old_batch, decode_old_header

_MAX_I32 = (1 << 31) - 1
_MAX_I64 = (1 << 63) - 1


class ControlType(IntEnum):
    """The type of a control record. All but the first two occur only in KRaft's metadata log."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(NamedTuple):
    """A control record's key and, for a transaction marker, its value.

    ``type`` is a plain number if this release does not support it: such a record has no effect.
    ``coordinator_epoch`` is None except for ABORT and COMMIT.
    """

    version: int
    type: ControlType | int
    coordinator_epoch: int | None = None

    @property
    def label(self) -> str:
        """The name that ``dump`` prints: "abort", "commit", another name, or "unknown-9"."""
        if isinstance(self.type, ControlType):
            return self.type.name.lower().replace("_", "-")
        return f"unknown-{self.type}"


def decode_batch_header(segment: Buffer, at: int) -> BatchHeader:
    """Decode the header of the batch that starts ``at`` bytes into ``segment``.

    Checks only the header: magic, length, offsets, count. The records may be incomplete, and the
    CRC is not checked, because that costs a pass over the records. For an entry of magic 0 or 1 the
    header is derived from the entry's fields. A compressed entry counts as one record, with its
    last offset as base offset; ``decode_batch`` returns the true count and base offset.

    Raises:
        TruncatedLog: the segment ends inside the header.
        UnsupportedFormat: the magic is none of 0, 1, 2.
        CorruptLog: the fields are inconsistent.
    """
    left = len(segment) - at
    if left < 17:  # the first 17 bytes have the same layout in all formats
        raise TruncatedLog(
            f"the batch header is truncated to {left} of {BATCH_HEADER.size} bytes", at
        )
    length = int.from_bytes(bytes(segment[at + 8 : at + 12]), "big", signed=True)
    magic = int.from_bytes(bytes(segment[at + 16 : at + 17]), "big", signed=True)
    if length < SHORTEST_ENTRY_BYTES:
        raise CorruptLog(f"the batch has length {length}", at + 8)
    if magic in (0, 1):
        return decode_old_header(segment, at)
    if magic != MAGIC:
        raise UnsupportedFormat(f"{UNKNOWN_MAGIC} (magic {magic})", at + 16, remedy=UPGRADE)
    if length < BATCH_HEADER.size - LENGTH_END:
        raise CorruptLog(f"the batch has length {length}, less than a batch header", at + 8)
    if left < BATCH_HEADER.size:
        raise TruncatedLog(
            f"the batch header is truncated to {left} of {BATCH_HEADER.size} bytes", at
        )
    header = BatchHeader._make(BATCH_HEADER.unpack_from(segment, at))
    if header.base_offset < 0:
        raise CorruptLog(f"the batch has the negative base offset {header.base_offset}", at)
    if header.last_offset_delta < 0 or header.last_offset >= _MAX_I64:
        raise CorruptLog(
            f"the batch has last offset delta {header.last_offset_delta} at base offset "
            f"{header.base_offset}",
            at + 23,
        )
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptLog(
            f"the batch has {header.record_count} records, but only "
            f"{header.last_offset_delta + 1} offsets",
            at + 57,
        )
    return header


def decode_batch(segment: Buffer, at: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Batch:
    """Decode and check the batch that starts ``at`` bytes into ``segment``, with its records.

    Every count and size is checked against the available bytes before it is used. A compressed
    batch decompresses to ``limit_bytes`` at most. The position in an error is a byte of
    ``segment``. For an error inside compressed data it is the first compressed byte, and the
    message states the position in the decompressed data.

    An entry of magic 0 or 1 (a message, or a wrapper of messages) becomes a batch; see
    ``old_format.entries``.

    Raises:
        TruncatedLog: the segment ends inside the batch.
        UnsupportedFormat: an unknown codec.
        CorruptLog: the CRC is wrong, or the records do not match the header or each other.
        OutOfMemoryBudget: the records decompress to more than ``limit_bytes``.
    """
    header = decode_batch_header(segment, at)
    if header.magic < MAGIC:
        return decode_old_batch(segment, at, limit_bytes)
    left = len(segment) - at
    if header.size_bytes > left:
        raise TruncatedLog(f"the batch is truncated to {left} of {header.size_bytes} bytes", at)
    body = memoryview(segment)[at : at + header.size_bytes]
    crc = google_crc32c.value(bytes(body[CRC_START:]))
    if crc != header.crc:
        raise CorruptLog(
            f"the batch header has CRC {header.crc:#010x}, but the batch's bytes have CRC "
            f"{crc:#010x}",
            at,
        )
    attributes = decode_attributes(header.attributes, at + 21)
    payload = body[BATCH_HEADER.size :]
    start = at + BATCH_HEADER.size
    if attributes.codec is Codec.NONE or (header.record_count == 0 and not len(payload)):
        plain = payload
    else:
        try:
            plain = decompress(attributes.codec, payload, limit_bytes)
        except LogError as error:
            raise type(error)(
                error.problem, start + (error.at or 0), error.path, error.remedy
            ) from error
    try:
        return Batch(header, attributes, _decode_records(plain, header, attributes))
    except CorruptLog as error:
        # All bytes of the batch are present, so records that end early are damage.
        if attributes.codec is Codec.NONE:
            raise CorruptLog(error.problem, start + (error.at or 0)) from error
        raise CorruptLog(
            f"{error.problem}, at byte {error.at} of the decompressed records", start
        ) from error


def iter_batches(
    segment: Buffer, at: int = 0, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Iterator[tuple[int, Batch]]:
    """The batches of ``segment`` from byte ``at`` to its end, each with its position.

    Raises as ``decode_batch`` does. A torn tail raises ``TruncatedLog`` after all complete batches.
    """
    while at < len(segment):
        batch = decode_batch(segment, at, limit_bytes)
        yield at, batch
        at += batch.header.size_bytes


def decode_control_record(record: Record, at: int | None = None) -> ControlRecord:
    """Decode a record of a control batch; ``at`` is the batch's position, for the errors.

    The key starts with ``i16 version, i16 type``; later bytes are ignored. The value of ABORT and
    COMMIT starts with ``i16 version, i32 coordinator epoch``.

    Raises:
        CorruptLog: the key or the value is too short, or a version is below 0.
    """
    if record.key is None or len(record.key) < 4:
        raise CorruptLog(
            f"the control record at offset {record.offset} has no version and type", at
        )
    version = int.from_bytes(record.key[:2], "big", signed=True)
    number = int.from_bytes(record.key[2:4], "big", signed=True)
    if version < 0:
        raise CorruptLog(f"the control record at offset {record.offset} has version {version}", at)
    kind = ControlType(number) if 0 <= number < len(ControlType) else number
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(version, kind)
    if record.value is None or len(record.value) < 6:
        raise CorruptLog(
            f"the transaction marker at offset {record.offset} has no coordinator epoch", at
        )
    if int.from_bytes(record.value[:2], "big", signed=True) < 0:
        raise CorruptLog(
            f"the transaction marker at offset {record.offset} has a negative version", at
        )
    return ControlRecord(version, kind, int.from_bytes(record.value[2:6], "big", signed=True))


# encode_batch has more than eight parameters, because each header field has an optional one.
def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    codec: Codec = Codec.NONE,
    append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    last_offset: int | None = None,
    max_timestamp_ms: int | None = None,
) -> bytes:
    """Encode a batch as Kafka's builder does; length, count and crc are derived.

    ``records`` ascend by offset. ``base_offset`` and ``last_offset`` default to the offsets of the
    first and the last record. The base timestamp is the delete horizon, or else the first record's
    timestamp. ``max_timestamp_ms`` defaults to the largest timestamp of the records; with
    ``append_time`` readers use it for every record.

    Without records the batch is a bare header. Both offsets are then required, and codec and delete
    horizon are not set, as in Kafka's cleaner.

    Raises:
        ValueError: the records are out of order or outside the offsets, or a number is too large
            for its field.
    """
    if not records:
        if base_offset is None or last_offset is None:
            raise ValueError("a batch without records needs its base offset and its last offset")
        attributes = BatchAttributes(Codec.NONE, append_time, transactional, control)
        base_timestamp_ms, payload = -1, b""
    else:
        base_offset = records[0].offset if base_offset is None else base_offset
        last_offset = records[-1].offset if last_offset is None else last_offset
        attributes = BatchAttributes(
            codec, append_time, transactional, control, delete_horizon_ms is not None
        )
        base_timestamp_ms = (
            records[0].timestamp_ms if delete_horizon_ms is None else delete_horizon_ms
        )
        payload = compress(codec, encode_records(records, base_offset, base_timestamp_ms))
    if max_timestamp_ms is None:
        max_timestamp_ms = max((record.timestamp_ms for record in records), default=-1)
    offsets = [base_offset - 1, *(record.offset for record in records), last_offset + 1]
    if base_offset < 0 or last_offset < base_offset or any(a >= b for a, b in pairwise(offsets)):
        raise ValueError(f"record offsets do not increase within {base_offset} to {last_offset}")
    return seal_batch(
        BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            partition_leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=attributes.bits,
            last_offset_delta=last_offset - base_offset,
            base_timestamp_ms=base_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(records),
        ),
        payload,
    )


def rebuild_batch(
    header: BatchHeader, kept: Sequence[Record], *, delete_horizon_ms: int | None = None
) -> bytes:
    """The batch of ``header`` with only the records ``kept``, as Kafka's cleaner writes it.

    Offsets, codec, producer, epoch and control bits stay. The largest timestamp comes from the kept
    records, or is the append time. If no record is kept, the result is a bare header with the old
    largest timestamp. A batch of magic 0 or 1 shrinks to the offsets of the kept records.
    """
    attributes = decode_attributes(header.attributes)
    stays = attributes.append_time or not kept
    shrinks = header.magic < MAGIC and bool(kept)
    return encode_batch(
        kept,
        base_offset=None if shrinks else header.base_offset,
        last_offset=None if shrinks else header.last_offset,
        codec=attributes.codec,
        append_time=attributes.append_time,
        transactional=attributes.transactional,
        control=attributes.control,
        delete_horizon_ms=delete_horizon_ms,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        max_timestamp_ms=header.max_timestamp_ms if stays else None,
    )


def seal_batch(header: BatchHeader, payload: bytes) -> bytes:
    """The bytes of a batch, from its header and payload. Sets the header's length and CRC.

    Raises:
        ValueError: a number is too large for its field, or the batch would exceed 2 GiB.
    """
    length = BATCH_HEADER.size - LENGTH_END + len(payload)
    if length + LENGTH_END > _MAX_I32:
        raise ValueError(f"the batch has {length + LENGTH_END} bytes")
    try:
        head = BATCH_HEADER.pack(*header._replace(batch_length=length, crc=0))
    except struct.error as error:
        raise ValueError(f"the batch header {header} cannot be encoded: {error}") from error
    crc = int(google_crc32c.value(head[CRC_START:] + payload))
    return head[: CRC_START - 4] + crc.to_bytes(4, "big") + head[CRC_START:] + payload


def encode_records(records: Sequence[Record], base_offset: int, base_timestamp_ms: int) -> bytes:
    """Encode the records in the form that follows the header of an uncompressed batch."""
    out = bytearray()
    for record in records:
        body = bytearray(b"\x00")
        body += encode_varlong(_wrapped(record.timestamp_ms - base_timestamp_ms))
        body += encode_varint(record.offset - base_offset)
        body += _encode_nullable(record.key)
        body += _encode_nullable(record.value)
        body += encode_varint(len(record.headers))
        for name, value in record.headers:
            body += encode_varint(len(name)) + name + _encode_nullable(value)
        out += encode_varint(len(body)) + body
    return bytes(out)


def _encode_nullable(content: bytes | None) -> bytes:
    return b"\x01" if content is None else encode_varint(len(content)) + content


def _wrapped(number: int) -> int:
    """``number`` wrapped to 64 bits, as in Java's arithmetic."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _decode_records(
    plain: memoryview, header: BatchHeader, attributes: BatchAttributes
) -> tuple[Record, ...]:
    """Decode all records of a batch. The position in an error is a byte of ``plain``."""
    if header.record_count * SHORTEST_RECORD_BYTES > len(plain):
        raise CorruptLog(
            f"the batch header counts {header.record_count} records, more than fit into "
            f"{len(plain)} bytes",
            0,
        )
    append_time_ms = header.max_timestamp_ms if attributes.append_time else None
    records: list[Record] = []
    at = 0
    last_delta = -1
    for ordinal in range(header.record_count):
        try:
            record, end = _decode_record(plain, at, header, append_time_ms)
        except CorruptLog as error:
            raise CorruptLog(
                f"record {ordinal} of {header.record_count}: {error.problem}", error.at
            ) from error
        delta = record.offset - header.base_offset
        if not last_delta < delta <= header.last_offset_delta:
            raise CorruptLog(
                f"record {ordinal} of {header.record_count} has offset delta {delta}; the record "
                f"before has {last_delta}, and the batch's last offset delta is "
                f"{header.last_offset_delta}",
                at,
            )
        last_delta = delta
        records.append(record)
        at = end
    if at != len(plain):
        raise CorruptLog(f"{len(plain) - at} bytes follow the batch's last record", at)
    return tuple(records)


def _decode_record(
    plain: memoryview, at: int, header: BatchHeader, append_time_ms: int | None
) -> tuple[Record, int]:
    length, start = decode_varint(plain, at)
    if not SHORTEST_RECORD_BYTES - 1 <= length <= len(plain) - start:
        raise CorruptLog(
            f"the record has length {length}, but {len(plain) - start} bytes remain in the batch",
            at,
        )
    end = start + length
    # Skip the record's attributes, one unused byte.
    timestamp_delta, cursor = decode_varlong(plain, start + 1, end)
    offset_delta, cursor = decode_varint(plain, cursor, end)
    key, cursor = _decode_nullable(plain, cursor, end, "key")
    value, cursor = _decode_nullable(plain, cursor, end, "value")
    header_at = cursor
    header_count, cursor = decode_varint(plain, cursor, end)
    if not 0 <= header_count <= (end - cursor) // 2:  # an empty name and a null value take 2 bytes
        raise CorruptLog(
            f"the record has {header_count} headers, but {end - cursor} bytes remain for them",
            header_at,
        )
    headers = []
    for _ in range(header_count):
        name_at = cursor
        name, cursor = _decode_nullable(plain, cursor, end, "header name")
        if name is None:
            raise CorruptLog("a header name has length -1", name_at)
        content, cursor = _decode_nullable(plain, cursor, end, "header value")
        headers.append((name, content))
    if cursor != end:
        raise CorruptLog(f"{end - cursor} bytes follow the record's last header", cursor)
    if append_time_ms is None:
        timestamp_ms = _wrapped(header.base_timestamp_ms + timestamp_delta)
    else:
        timestamp_ms = append_time_ms
    return Record(header.base_offset + offset_delta, timestamp_ms, key, value, tuple(headers)), end


def _decode_nullable(plain: memoryview, at: int, end: int, what: str) -> tuple[bytes | None, int]:
    length, start = decode_varint(plain, at, end)
    if length == -1:
        return None, start
    if not 0 <= length <= end - start:
        raise CorruptLog(
            f"the record's {what} has length {length}, but {end - start} bytes remain in the "
            "record",
            at,
        )
    return bytes(plain[start : start + length]), start + length
