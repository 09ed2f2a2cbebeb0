"""The objects in an AutoMQ bucket: data blocks, then an index, then a footer.

A normal object contains stream records of one stream or of many. Integers are big-endian::

    data block    5a flags(02) record count i32, size i32, stream records
    …
    index         36 bytes an entry: a run of data blocks of one stream, side by side
    footer        position and size of the index, 28 zero bytes, magic

A composite object has links to normal objects instead of data blocks, and another magic. Its index
entries belong to one stream, and their positions are positions in the linked objects::

    52 count i32, then for each link: object id i64, number of its first entry i32, bucket id i16

Nothing has a checksum.

Source: AutoMQ f1ce98ec ``ObjectWriter``, ``ObjectReader``, ``DataBlockIndex``,
``CompositeObjectWriter``, ``CompositeObjectReader``, ``StreamRecordBatchCodec``.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.compression import Codec, decompress
from lastwrite.encoding.layout import I8, I16, I32, I64, U8, U64, At, Buffer, layout
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat

NORMAL_MAGIC, COMPOSITE_MAGIC = 0x88E241B785F4CFF7, 0x88E241B785F4CFF8
BLOCK_MAGIC, BLOCK_FLAGS, LINKS_MAGIC, RECORD_MAGIC = 0x5A, 0x02, 0x52, 0x22
_RANGES_MAGIC, _IS_ZSTD = 0x01, 0x02
_MOST_RANGES_BYTES = 256 << 20
_MOST_OFFSET = 1 << 62  # largest valid offset, so that sums of offsets do not overflow


class Footer(NamedTuple):
    """The last 48 bytes of an object."""

    # fmt: off
    #                                      offset  type
    index_position: Annotated[int, At(0,  I64)]
    index_bytes:    Annotated[int, At(8,  I32)]
    zeros_0:        Annotated[int, At(12, I64)]
    zeros_1:        Annotated[int, At(20, I64)]
    zeros_2:        Annotated[int, At(28, I64)]
    zeros_3:        Annotated[int, At(36, I32)]
    magic:          Annotated[int, At(40, U64)]
    # fmt: on


class IndexEntry(NamedTuple):
    """An index entry: a run of data blocks of one stream, stored without gaps."""

    # fmt: off
    #                                    offset  type
    stream_id:    Annotated[int, At(0,  I64)]
    start_offset: Annotated[int, At(8,  I64)]  # stream offset of the first record
    offset_count: Annotated[int, At(16, I32)]  # end offset minus start offset
    record_count: Annotated[int, At(20, I32)]  # stream records in all blocks
    position:     Annotated[int, At(24, I64)]  # position of the first block's header
    size_bytes:   Annotated[int, At(32, I32)]  # size of all blocks with their headers
    # fmt: on


class StreamBlockHeader(NamedTuple):
    """The 10 bytes before the stream records of a data block."""

    # fmt: off
    #                                    offset  type
    magic:        Annotated[int, At(0, U8)]   # 0x5A
    flags:        Annotated[int, At(1, I8)]   # 0x02
    record_count: Annotated[int, At(2, I32)]
    size_bytes:   Annotated[int, At(6, I32)]  # after this header
    # fmt: on


class StreamRecordHeader(NamedTuple):
    """The 33 bytes before the payload of a stream record."""

    # fmt: off
    #                                     offset  type
    magic:         Annotated[int, At(0,  U8)]   # 0x22
    stream_id:     Annotated[int, At(1,  I64)]
    epoch:         Annotated[int, At(9,  I64)]  # of the stream
    base_offset:   Annotated[int, At(17, I64)]  # stream offset
    offset_count:  Annotated[int, At(25, I32)]  # below 0 in a link record of a write-ahead log
    payload_bytes: Annotated[int, At(29, I32)]
    # fmt: on


class ObjectLink(NamedTuple):
    """A link from a composite object to another object.

    The composite object's index has entries for the linked object. The first one is entry number
    ``first_entry``; the last one is before the entries of the next link.
    """

    # fmt: off
    #                                   offset  type
    object_id:   Annotated[int, At(0,  I64)]
    first_entry: Annotated[int, At(8,  I32)]
    bucket_id:   Annotated[int, At(12, I16)]
    # fmt: on


class StreamRange(NamedTuple):
    """A range of a stream's offsets in an object, from the metadata log up to version V1."""

    # fmt: off
    #                                    offset  type
    stream_id:    Annotated[int, At(0,  I64)]
    start_offset: Annotated[int, At(8,  I64)]
    offset_count: Annotated[int, At(16, I32)]
    # fmt: on


FOOTER = layout(Footer, byte_order=">", size=48)
INDEX_ENTRY = layout(IndexEntry, byte_order=">", size=36)
BLOCK_HEADER = layout(StreamBlockHeader, byte_order=">", size=10)
RECORD_HEADER = layout(StreamRecordHeader, byte_order=">", size=33)
_LINK = layout(ObjectLink, byte_order=">", size=14)
_RANGE = layout(StreamRange, byte_order=">", size=20)
_LINKS_HEAD_BYTES = 5

_STORED_INDEX = np.dtype(INDEX_ENTRY.dtype_items())
INDEX = np.dtype([(field.name, np.int64) for field in INDEX_ENTRY.fields])
IndexTable = npt.NDArray[np.void]  # an array of INDEX


def decode_footer(tail: Buffer, size_bytes: int) -> Footer:
    """Decode the footer at the end of ``tail``, the last bytes of an object of ``size_bytes``.

    Raises:
        TruncatedLog: the tail is shorter than a footer.
        UnsupportedFormat: the magic is of an unknown kind of object.
        CorruptLog: there is no magic, or the index does not end where the footer begins.
    """
    if len(tail) < FOOTER.size:
        raise TruncatedLog(f"the object has only {size_bytes} bytes, less than a footer", 0)
    at = size_bytes - FOOTER.size
    footer = Footer._make(FOOTER.unpack_from(tail, len(tail) - FOOTER.size))
    if footer.magic not in (NORMAL_MAGIC, COMPOSITE_MAGIC):
        place = at + FOOTER.offset_of("magic")
        if footer.magic >> 8 == NORMAL_MAGIC >> 8:
            raise UnsupportedFormat(f"the object has the magic {footer.magic:#x}", place)
        raise CorruptLog("the object does not end with a footer", place)
    position, size = footer.index_position, footer.index_bytes
    if position < 0 or size < 0 or size % INDEX_ENTRY.size or position + size != at:
        raise CorruptLog(
            f"the footer states an index of {size} bytes at byte {position}, which does not end "
            "where the footer begins",
            at,
        )
    return footer


def decode_index(data: Buffer, data_end: int | None) -> IndexTable:
    """Decode the index of an object.

    Args:
        data: the index, without the footer.
        data_end: the position at which data blocks end. None for a composite object, whose
            positions belong to other objects.

    Raises:
        CorruptLog: an entry states a negative number, or bytes outside the data blocks.
    """
    if len(data) % INDEX_ENTRY.size:
        raise CorruptLog(f"the index has {len(data)} bytes, a part of an entry", data_end)
    table = np.frombuffer(memoryview(data), _STORED_INDEX).astype(INDEX)
    wrong = (
        (table["position"] < 0)
        | (table["size_bytes"] < BLOCK_HEADER.size)
        | (table["start_offset"] < 0)
        | (table["start_offset"] > _MOST_OFFSET)
        | (table["offset_count"] < 0)
        | (table["record_count"] < 0)
    )
    if data_end is not None:
        wrong |= table["position"] > data_end - table["size_bytes"]
    if wrong.any():
        number = int(np.argmax(wrong))
        entry = table[number]
        raise CorruptLog(
            f"index entry {number} of stream {entry['stream_id']} from stream offset "
            f"{entry['start_offset']} states {entry['size_bytes']} bytes at byte "
            f"{entry['position']}, outside the data blocks",
            None if data_end is None else data_end + number * INDEX_ENTRY.size,
        )
    return table


def decode_links(data: Buffer, entry_count: int) -> tuple[ObjectLink, ...]:
    """Decode the links of a composite object, which end where the index begins.

    Raises:
        UnsupportedFormat: the magic is unknown.
        CorruptLog: the links do not fill ``data``, or their first entries do not rise from 0.
    """
    if len(data) < _LINKS_HEAD_BYTES:
        raise TruncatedLog(f"the links of the composite object have only {len(data)} bytes", 0)
    if data[0] != LINKS_MAGIC:
        raise UnsupportedFormat(f"the links of the composite object have the magic {data[0]:#x}", 0)
    count = int.from_bytes(bytes(data[1:_LINKS_HEAD_BYTES]), "big", signed=True)
    if count < 0 or _LINKS_HEAD_BYTES + count * _LINK.size != len(data):
        raise CorruptLog(f"{count} links do not fill {len(data)} bytes", 1)
    body = memoryview(data)[_LINKS_HEAD_BYTES:]
    links = tuple(ObjectLink._make(each) for each in _LINK.iter_unpack(body))
    firsts = [link.first_entry for link in links]
    if firsts != sorted(set(firsts)) or firsts[:1] != [0][: entry_count or len(firsts)]:
        raise CorruptLog(f"the first entries of the links are {firsts}", _LINKS_HEAD_BYTES)
    if firsts and firsts[-1] >= max(entry_count, 1):
        raise CorruptLog(
            f"a link begins at entry {firsts[-1]}, but there are {entry_count} entries",
            _LINKS_HEAD_BYTES,
        )
    return links


def decode_stream_ranges(data: Buffer) -> tuple[StreamRange, ...]:
    """Decode the ranges of a stream set object in the metadata log.

    The metadata log has none from version V2 on. Then ``data`` is empty.

    Raises:
        UnsupportedFormat: the magic is unknown.
        TruncatedLog, CorruptLog: the bytes do not decode.
    """
    view = memoryview(data)
    if not len(view):
        return ()
    if view[0] != _RANGES_MAGIC:
        raise UnsupportedFormat(f"the ranges of the object have the magic {view[0]:#x}", 0)
    if len(view) < 6:
        raise TruncatedLog(f"the ranges of the object have only {len(view)} bytes", 0)
    size = int.from_bytes(bytes(view[2:6]), "big", signed=True)
    body = view[6:]
    if not 0 <= size <= _MOST_RANGES_BYTES or size % _RANGE.size:
        raise CorruptLog(f"the ranges of the object state {size} bytes", 2)
    if view[1] & _IS_ZSTD:
        body = decompress(Codec.ZSTD, body, max(size, 1))
    if len(body) != size:
        raise CorruptLog(f"the ranges of the object have {len(body)} bytes, but state {size}", 2)
    ranges = tuple(StreamRange._make(each) for each in _RANGE.iter_unpack(body))
    if any(each.start_offset < 0 or each.offset_count < 0 for each in ranges):
        raise CorruptLog("a range of the object has a negative offset", 6)
    return ranges
