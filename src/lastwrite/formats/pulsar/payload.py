"""What a payload is compressed with: Pulsar's codecs in the framings of its clients.

None has a frame of Pulsar's own, and most do not say how much comes out: that stands in the metadata
(``uncompressed_size``), so it is a claim. A claim beyond what any data of that length can hold is a lie and refused
before a buffer is made.

- LZ4: one raw block. It needs the size; three bytes of 255 and the like stand for 255 bytes each at most.
- ZLIB: a zlib stream that ends with a sync flush (``00 00 ff ff``): no last block, no checksum.
- ZSTD: one frame, with or without its content size.
- SNAPPY: one raw block, which states its size.

Source: Pulsar 4.2.4 ``CompressionCodecLZ4``, ``…ZLib``, ``…ZstdJNI``, ``…Snappy``; spec/pulsar.md section 4.3.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import cramjam
import lz4.block
import zstandard

from lastwrite.errors import CorruptLog, OutOfMemoryBudget, UnsupportedFormat

DEFAULT_LIMIT_BYTES = 64 << 20

_ZSTD_LEVEL = 3
_ZLIB_LEVEL = 6
_STEP_BYTES = 64 << 10
# What one byte of compressed data can stand for, at most; ZSTD has no such bound and is decoded in steps.
_MOST = {1: 255, 2: 1032, 4: 22}


class Codec(IntEnum):
    """Field ``compression`` of a message's metadata."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4

    @classmethod
    def of(cls, number: int) -> Codec:
        """The codec of a number.

        Raises:
            UnsupportedFormat: none that we know.
        """
        try:
            return cls(number)
        except ValueError:
            raise UnsupportedFormat(f"unknown compression codec {number}") from None


def decompress(codec: Codec, data: bytes, size: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """The ``size`` bytes that ``data`` hold; of NONE the data, whatever the size says.

    Raises:
        OutOfMemoryBudget: more than ``limit_bytes``.
        CorruptLog: broken data, or another number of bytes; at byte 0.
    """
    if codec is Codec.NONE:
        return data
    if not 0 <= size <= _MOST.get(codec, size) * len(data) + 64:
        raise CorruptLog(f"{len(data)} bytes of {codec.name} data claim to hold {size}", 0)
    if size > limit_bytes:
        raise OutOfMemoryBudget(
            f"a payload decompresses to more than {limit_bytes} bytes", 0, remedy="allow more memory with --memory"
        )
    try:
        if codec is Codec.LZ4:
            # An output of no bytes has a block, too: a token that says nothing follows.
            out: bytes = b"" if data == b"\0" else lz4.block.decompress(data, uncompressed_size=size)
        elif codec is Codec.ZLIB:
            out = _inflate(data, size)
        elif codec is Codec.ZSTD:
            out = _zstd(data, size)
        else:
            if cramjam.snappy.decompress_raw_len(data) != size:
                raise CorruptLog(f"SNAPPY data hold another number of bytes than {size}", 0)
            out = bytes(cramjam.snappy.decompress_raw(data))
    except (lz4.block.LZ4BlockError, zlib.error, zstandard.ZstdError, cramjam.DecompressionError) as error:
        raise CorruptLog(f"broken {codec.name} data: {error}", 0) from None
    if len(out) != size:
        raise CorruptLog(f"{codec.name} data hold {len(out)} bytes, not {size}", 0)
    return out


def compress(codec: Codec, data: bytes) -> bytes:
    """``data`` as Pulsar's Java client compresses it: its framing and settings, blocks as the library makes them."""
    if codec is Codec.NONE:
        return data
    if codec is Codec.LZ4:
        packed: bytes = lz4.block.compress(data, store_size=False)
        return packed
    if codec is Codec.ZLIB:
        stream = zlib.compressobj(_ZLIB_LEVEL)
        return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)
    if codec is Codec.ZSTD:
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
    return bytes(cramjam.snappy.compress_raw(data))


def _inflate(data: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    return stream.decompress(data, size + 1)  # one more than is right, to see that there is no more; 0 is no limit


def _zstd(data: bytes, size: int) -> bytes:
    """All that comes out, up to a byte more than ``size``, in steps: the frame's own claim makes no buffer."""
    out = bytearray()
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as stream:
        while len(out) <= size:
            piece = stream.read(min(_STEP_BYTES, size + 1 - len(out)))
            if not piece:
                break
            out += piece
    return bytes(out)
