"""A slow decoder of Pulsar entries, to check the package independently.

Source: docs/formats/pulsar.md, "Entry" and "Compacted ledger".
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import cramjam
import google_crc32c
import lz4.block
import zstandard

Fields = list[tuple[int, int | bytes]]

PLACEHOLDER = bytes.fromhex("0000000418002001")


class Entry(NamedTuple):
    """A decoded entry. The payload is as stored."""

    prefix: bytes  # the whole broker prefix, mostly empty
    crc_holds: bool | None  # None means that it has no checksum
    metadata: bytes
    payload: bytes

    @property
    def fields(self) -> Fields:
        return fields(self.metadata)

    def first(self, number: int) -> int | bytes | None:
        return next((value for found, value in self.fields if found == number), None)

    @property
    def is_marker(self) -> bool:
        return self.first(20) is not None

    @property
    def is_chunk(self) -> bool:
        return self.first(29) is not None

    @property
    def is_readable_batch(self) -> bool:
        return self.first(11) is not None and self.first(13) is None

    def plain(self) -> bytes | None:
        """The decompressed payload. None if it is encrypted or cannot be decompressed."""
        if self.first(13) is not None:
            return None
        size = self.first(9) or 0
        assert isinstance(size, int)
        try:
            match self.first(8) or 0:
                case 0:
                    return self.payload
                case 1:
                    return lz4.block.decompress(self.payload, uncompressed_size=size)
                case 2:
                    return zlib.decompressobj().decompress(self.payload)
                case 3:
                    return zstandard.ZstdDecompressor().decompress(
                        self.payload, max_output_size=size
                    )
                case 4:
                    return bytes(cramjam.snappy.decompress_raw(self.payload))
                case _:
                    return None
        except Exception:  # libraries raise exceptions of their own
            return None


class Single(NamedTuple):
    """A message of a batch."""

    metadata: bytes
    value: bytes

    def first(self, number: int) -> int | bytes | None:
        return next((value for found, value in fields(self.metadata) if found == number), None)


def entry(data: bytes) -> Entry:
    prefix, crc_holds, at = b"", None, 0
    if data[:2] == b"\x0e\x02":
        at = 6 + struct.unpack_from(">I", data, 2)[0]
        prefix = data[:at]
    if data[at : at + 2] == b"\x0e\x01":
        crc_holds = struct.unpack_from(">I", data, at + 2)[0] == google_crc32c.value(data[at + 6 :])
        at += 6
    (size,) = struct.unpack_from(">I", data, at)
    at += 4
    assert at + size <= len(data)
    return Entry(prefix, crc_holds, data[at : at + size], data[at + size :])


def singles(plain: bytes) -> list[Single]:
    """The messages of a batch's decompressed payload."""
    found, at = [], 0
    while at < len(plain):
        (size,) = struct.unpack_from(">I", plain, at)
        metadata = plain[at + 4 : at + 4 + size]
        at += 4 + size
        length = dict(fields(metadata))[3]
        assert isinstance(length, int)
        found.append(Single(metadata, plain[at : at + length]))
        at += length
    return found


def record(data: bytes) -> tuple[tuple[int, int], bytes, bytes]:
    """The position, the encoded id and the framed entry in a compacted ledger's record."""
    (size,) = struct.unpack_from(">I", data, 0)
    ident = data[4 : 4 + size]
    (length,) = struct.unpack_from(">I", data, 4 + size)
    assert len(data) == 8 + size + length
    numbers = dict(fields(ident))
    ledger, number = numbers[1], numbers[2]
    assert isinstance(ledger, int) and isinstance(number, int)
    return (ledger, number), ident, data[8 + size :]


def fields(data: bytes) -> Fields:
    """The fields of a protobuf message in their order: varints as ints, all others as bytes."""
    found: Fields = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            assert at + size <= len(data)
            value, at = data[at : at + size], at + size
        found.append((tag >> 3, value))
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
