"""The write-ahead objects of a node: a header, then records with one stream record each.

    edcba987 header of 48 bytes (or 12345678, of 40 bytes, without the trim offset)
    87654321 size i32, offset i64, CRC of the body i32, CRC of these 20 bytes i32, body
    …

A CRC is CRC-32 without its highest bit. An offset is a position in the node's write-ahead log. An
offset counts the bytes of records, and each object begins at a multiple of 64 MiB.

Source: AutoMQ f1ce98ec ``WALObjectHeader``, ``RecordHeader``, ``RecoverIterator``.
"""

from __future__ import annotations

import zlib
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.layout import I32, I64, U32, At, Buffer, layout
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.kafka.automq.stored_objects import (
    RECORD_HEADER,
    RECORD_MAGIC,
    StreamRecordHeader,
)

_MAGIC_V0, _MAGIC_V1, _RECORD_MAGIC = 0x12345678, 0xEDCBA987, 0x87654321
_CRC_MASK = 0x7FFF_FFFF
TRIM_MARKER = -1  # the stream id of a record that only marks a trim


class WalHeader(NamedTuple):
    """The first 40 bytes of a write-ahead object. In V1, the trim offset (i64) follows."""

    # fmt: off
    #                                    offset  type
    magic:        Annotated[int, At(0,  U32)]
    start_offset: Annotated[int, At(4,  I64)]
    body_bytes:   Annotated[int, At(12, I64)]  # after the header
    zero:         Annotated[int, At(20, I64)]
    node:         Annotated[int, At(28, I32)]
    epoch:        Annotated[int, At(32, I64)]
    # fmt: on


class WalRecordHeader(NamedTuple):
    """The 24 bytes before a stream record in a write-ahead object."""

    # fmt: off
    #                                   offset  type
    magic:       Annotated[int, At(0,  U32)]
    body_bytes:  Annotated[int, At(4,  I32)]
    body_offset: Annotated[int, At(8,  I64)]  # offset of this header plus 24
    body_crc:    Annotated[int, At(16, U32)]
    header_crc:  Annotated[int, At(20, U32)]
    # fmt: on


_HEADER = layout(WalHeader, byte_order=">", size=40)
_RECORD = layout(WalRecordHeader, byte_order=">", size=24)
_TRIM_BYTES = 8
_CRC_START = 20  # bytes of the record header that its CRC covers

WAL_RECORD = np.dtype(
    [
        ("stream_id", np.int64),
        ("base_offset", np.int64),
        ("offset_count", np.int64),  # below 0: a link record
        ("offset", np.int64),  # position of the record's header in the write-ahead log
        ("position", np.int64),  # position of the stream record in the object
        ("size_bytes", np.int64),  # of the stream record
    ]
)


class WalObject(NamedTuple):
    """A decoded write-ahead object."""

    epoch: int
    start_offset: int
    end_offset: int  # offset at which the next object begins
    trim_offset: int  # records up to this offset are not needed; -1 if unknown
    records: npt.NDArray[np.void]  # an array of WAL_RECORD
    # position of the first byte that belongs to no complete record; None if all bytes do
    torn_at: int | None
    # stream and offset of the record at ``torn_at``; None if they cannot be read
    torn_stream: int | None = None
    torn_offset: int | None = None


def decode_wal_object(data: Buffer, end_offset: int | None) -> WalObject:
    """Decode a write-ahead object. Decoding stops at the first damaged or incomplete record.

    Args:
        end_offset: the end in the object's key. None means that the key has none.

    Raises:
        TruncatedLog: the object ends inside its header.
        UnsupportedFormat: the magic of the object, or of a stream record, is unknown.
        CorruptLog: the header states a negative number.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size + _TRIM_BYTES:
        raise TruncatedLog(f"the write-ahead object has only {len(view)} bytes", 0)
    header = WalHeader._make(_HEADER.unpack_from(view))
    at, trim = _HEADER.size, -1
    if header.magic == _MAGIC_V1:
        trim = int.from_bytes(view[at : at + _TRIM_BYTES], "big", signed=True)
        at += _TRIM_BYTES
    elif header.magic != _MAGIC_V0:
        raise UnsupportedFormat(f"the write-ahead object has the magic {header.magic:#x}", 0)
    if header.start_offset < 0 or header.body_bytes < 0 or header.epoch < 0:
        raise CorruptLog("the header of the write-ahead object states a negative number", 4)
    shift = header.start_offset - at
    rows: list[tuple[int, ...]] = []
    while at < len(view):
        row = _decode_record(view, at, shift)
        if row is None:
            break
        rows.append(row)
        at = row[4] + row[5]
    if end_offset is None:
        end_offset = header.start_offset + len(view) - _HEADER.size
    is_whole = at == len(view) and len(view) + shift == header.start_offset + header.body_bytes
    torn = None if is_whole else _torn_stream(view, at)
    return WalObject(
        header.epoch,
        header.start_offset,
        end_offset,
        trim,
        np.array(rows, WAL_RECORD),
        None if is_whole else at,
        *(torn or (None, None)),
    )


def _torn_stream(view: memoryview, at: int) -> tuple[int, int] | None:
    """The stream id and offset of the incomplete record at byte ``at``.

    None if the file ends before the record's header is complete, or if the header is invalid.
    """
    body = at + _RECORD.size
    if body + RECORD_HEADER.size > len(view):
        return None
    stream = StreamRecordHeader._make(RECORD_HEADER.unpack_from(view, body))
    is_record = view[body] == RECORD_MAGIC and _has_valid_header(view, at)
    return (stream.stream_id, stream.base_offset) if is_record else None


def _has_valid_header(view: memoryview, at: int) -> bool:
    record = WalRecordHeader._make(_RECORD.unpack_from(view, at))
    crc = zlib.crc32(view[at : at + _CRC_START]) & _CRC_MASK
    return record.magic == _RECORD_MAGIC and crc == record.header_crc


def _decode_record(view: memoryview, at: int, shift: int) -> tuple[int, ...] | None:
    """A row of WAL_RECORD for the record at byte ``at``. None if it is not a complete record."""
    body = at + _RECORD.size
    if body > len(view):
        return None
    record = WalRecordHeader._make(_RECORD.unpack_from(view, at))
    end = body + record.body_bytes
    if (
        not _has_valid_header(view, at)
        or record.body_offset != body + shift
        or record.body_bytes < RECORD_HEADER.size
        or end > len(view)
        or zlib.crc32(view[body:end]) & _CRC_MASK != record.body_crc
    ):
        return None
    stream = StreamRecordHeader._make(RECORD_HEADER.unpack_from(view, body))
    if stream.magic != RECORD_MAGIC:
        raise UnsupportedFormat(f"the stream record has the magic {stream.magic:#x}", body)
    if stream.payload_bytes != record.body_bytes - RECORD_HEADER.size:
        return None
    if stream.base_offset < 0:
        return None
    return (
        stream.stream_id,
        stream.base_offset,
        stream.offset_count,
        at + shift,
        body,
        record.body_bytes,
    )
