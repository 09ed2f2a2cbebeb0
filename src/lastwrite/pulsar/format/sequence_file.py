"""The ``data`` file of a Hadoop MapFile: a SequenceFile, as written by the file-system offloader.

Header: ``SEQ``, version 6, two class names, whether values are compressed and whether in blocks,
the codec's name, pairs of text, 16 random bytes (*sync*). Then records: ``i32`` size of key and
value together, ``i32`` size of the key, key, value. Every few thousand bytes ``ffffffff`` and the
sync follow. The key is an entry id in 8 bytes; the value of key -1 is the ledger's metadata. A
value is ``i32`` length and bytes. By Hadoop's default each value is compressed by itself, with
zlib.

In a file compressed by blocks, keys and values are separate. After each sync follow a count, the
lengths of the keys, the keys, the lengths of the values and the values, each of the four compressed
as a whole.

Lengths of class names and counts are Hadoop's variable-length numbers: one byte from -112 to 127,
or a byte that encodes sign and length, and that many bytes.

Source: Hadoop 3.4 ``SequenceFile``, ``WritableUtils.readVLong``; Pulsar's offloaders 4.0.8
``FileSystemManagedLedgerOffloader``; docs/formats/pulsar.md, "MapFile".
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, OutOfMemoryBudget, TruncatedLog, UnsupportedFormat

MAGIC = b"SEQ"
VERSION = 6
METADATA_KEY = -1
LONG_WRITABLE = "org.apache.hadoop.io.LongWritable"
BYTES_WRITABLE = "org.apache.hadoop.io.BytesWritable"
DEFAULT_CODEC = "org.apache.hadoop.io.compress.DefaultCodec"
GZIP_CODEC = "org.apache.hadoop.io.compress.GzipCodec"
DEFLATE_CODEC = "org.apache.hadoop.io.compress.DeflateCodec"
DEFAULT_LIMIT_BYTES = 256 << 20  # maximum bytes of a value, or of all values in one block

WINDOW_BITS = {DEFAULT_CODEC: 15, DEFLATE_CODEC: 15, GZIP_CODEC: 31}
_SYNC_BYTES = 16
_SYNC_ESCAPE = -1
_KEY_BYTES = 8
_SYNC_ESCAPE_BYTES = b"\xff" * 4
_LONGEST_NAME = 1 << 16


class MapPair(NamedTuple):
    """One entry of a MapFile: its id, its bytes, and its position.

    Id -1 belongs to the ledger's metadata. ``at`` is the first byte of the entry's record or block.
    """

    key: int
    value: bytes
    at: int


@dataclass(frozen=True, slots=True)
class SequenceHeader:
    """The header of a SequenceFile. Records begin at byte ``size_bytes``."""

    version: int
    key_class: str
    value_class: str
    codec: str | None  # codec of the values; None if they are not compressed
    has_blocks: bool
    metadata: tuple[tuple[str, str], ...]
    sync: bytes
    size_bytes: int


class _BufferReader:
    """Reads a buffer from a position on. Reading beyond the end raises TruncatedLog."""

    def __init__(self, data: Buffer, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def take(self, size: int, what: str) -> bytes:
        if not 0 <= size <= self.end - self.at:
            raise TruncatedLog(
                f"the {what} needs {size} bytes, but only {self.end - self.at} bytes follow",
                self.at,
            )
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def int32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "big", signed=True)

    def vlong(self, what: str) -> int:
        first = int.from_bytes(self.take(1, what), "big", signed=True)
        if first >= -112:
            return first
        size = -112 - first if first >= -120 else -120 - first
        value = int.from_bytes(self.take(size, what), "big")
        return value if first >= -120 else ~value

    def text(self, what: str) -> str:
        size = self.vlong(what)
        if size > _LONGEST_NAME:
            raise CorruptLog(f"{what} of {size} bytes", self.at)
        return self.take(size, what).decode(errors="replace")


def decode_header(data: Buffer) -> SequenceHeader:
    """Decode the header of a SequenceFile.

    Raises:
        TruncatedLog: the bytes end inside the header.
        CorruptLog: another magic.
        UnsupportedFormat: a version below 5 or above 6.
    """
    reader = _BufferReader(data, 0, len(data))
    if reader.take(3, "magic") != MAGIC:
        raise CorruptLog("the file is not a SequenceFile", 0)
    version = reader.take(1, "version")[0]
    if version not in (5, VERSION):
        raise UnsupportedFormat(f"SequenceFile version {version} is not supported", 3)
    key_class, value_class = reader.text("class name"), reader.text("class name")
    is_compressed, has_blocks = reader.take(2, "compression")
    codec = reader.text("codec name") if is_compressed else None
    metadata: list[tuple[str, str]] = []
    if version == VERSION:
        for _ in range(max(0, reader.int32("metadata"))):
            metadata.append((reader.text("metadata"), reader.text("metadata")))
    sync = reader.take(_SYNC_BYTES, "sync")
    return SequenceHeader(
        version, key_class, value_class, codec, bool(has_blocks), tuple(metadata), sync, reader.at
    )


def walk_sequence_file(
    data: Buffer,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    skip: Callable[[CorruptLog], None] | None = None,
) -> Iterator[MapPair]:
    """The entries of a file that maps LongWritable to BytesWritable, in the file's order.

    With ``skip``, the damage of a record or block is passed to ``skip`` and is not raised. As in
    Hadoop's readers, reading continues with the next record, or at the next sync if that record
    cannot be located. The ids are then not reliable.

    Raises:
        TruncatedLog, CorruptLog: as ``decode_header``; also lengths of a record or a block that do
            not add up, a wrong sync, or data that do not decompress.
        UnsupportedFormat: other classes, or a codec other than Hadoop's zlib and gzip.
        OutOfMemoryBudget: a value, or the values of a block, exceed ``limit_bytes``.
    """
    header = decode_header(data)
    if (header.key_class, header.value_class) != (LONG_WRITABLE, BYTES_WRITABLE):
        raise UnsupportedFormat(
            f"a SequenceFile of {header.key_class} and {header.value_class} is not supported", 4
        )
    if header.codec is not None and header.codec not in WINDOW_BITS:
        raise UnsupportedFormat(
            f"the SequenceFile is compressed with {header.codec}, which is not supported",
            4,
            remedy="rewrite the SequenceFile with Hadoop's default codec",
        )
    reader = _BufferReader(data, header.size_bytes, len(data))
    while reader.at < reader.end:
        at = reader.at
        try:
            yield from _next(reader, header, limit_bytes)
        except CorruptLog as error:
            if skip is None:
                raise
            skip(error)
            is_lost = header.has_blocks or isinstance(error, TruncatedLog)
            if is_lost or reader.at - at < 2 * 4 + _KEY_BYTES:
                found = bytes(data[at + 1 :]).find(_SYNC_ESCAPE_BYTES + header.sync)
                reader.at = reader.end if found < 0 else at + 1 + found


def _next(reader: _BufferReader, header: SequenceHeader, limit_bytes: int) -> Iterator[MapPair]:
    """The next record, or the next block's records. Yields nothing for a sync without a block."""
    at = reader.at
    size = reader.int32("record")
    if size == _SYNC_ESCAPE:
        if reader.take(_SYNC_BYTES, "sync") != header.sync:
            raise CorruptLog("the sync marker differs from the header's", at + 4)
        if header.has_blocks:
            yield from _block(reader, header, at, limit_bytes)
        return
    if header.has_blocks:
        raise CorruptLog("the block does not begin with a sync marker", at)
    key_bytes = reader.int32("key")
    if key_bytes != _KEY_BYTES or size < key_bytes:
        raise CorruptLog(
            f"the record of {size} bytes has a key of {key_bytes} bytes, not {_KEY_BYTES}", at
        )
    key = int.from_bytes(reader.take(_KEY_BYTES, "key"), "big", signed=True)
    stored = reader.take(size - _KEY_BYTES, "value")
    yield MapPair(key, _value(_opened(header.codec, stored, at, limit_bytes), at), at)


def _block(
    reader: _BufferReader, header: SequenceHeader, at: int, limit_bytes: int
) -> Iterator[MapPair]:
    count = reader.vlong("count")
    parts = []
    for what in ("list of key lengths", "keys", "list of value lengths", "values"):
        stored = reader.take(reader.vlong(what), what)
        parts.append(_opened(header.codec, stored, at, limit_bytes))
    key_sizes, keys, value_sizes, values = (_BufferReader(part, 0, len(part)) for part in parts)
    if not 0 <= count <= len(parts[1]) // _KEY_BYTES:
        raise CorruptLog(
            f"the block states {count} records, but has only {len(parts[1])} bytes of keys", at
        )
    try:
        for _ in range(count):
            if key_sizes.vlong("key length") != _KEY_BYTES:
                raise CorruptLog("a key of the block is not an entry id", at)
            key = int.from_bytes(keys.take(_KEY_BYTES, "key"), "big", signed=True)
            yield MapPair(
                key, _value(values.take(value_sizes.vlong("value length"), "value"), at), at
            )
    except TruncatedLog as error:
        raise CorruptLog(
            f"the block of {count} records cannot be decoded: {error.problem}", at
        ) from None


def _opened(codec: str | None, stored: bytes, at: int, limit_bytes: int) -> bytes:
    if codec is None:
        return stored
    stream = zlib.decompressobj(WINDOW_BITS[codec])
    try:
        out = stream.decompress(stored, limit_bytes + 1)
    except zlib.error as error:
        raise CorruptLog(f"the zlib data cannot be decompressed: {error}", at) from None
    if len(out) > limit_bytes:
        words = f"the record decompresses to more than the limit of {limit_bytes} bytes"
        raise OutOfMemoryBudget(words, at, remedy="raise --memory")
    if not stream.eof:
        raise CorruptLog(f"the zlib data end early, after {len(out)} bytes", at)
    return out


def _value(plain: bytes, at: int) -> bytes:
    size = int.from_bytes(plain[:4], "big", signed=True)
    if len(plain) < 4 or size != len(plain) - 4:
        raise CorruptLog(
            f"the value's length is {size} bytes, but its record has {len(plain)} bytes", at
        )
    return plain[4:]
