"""The codecs of Kafka's record batches, in the framings that Kafka's own clients and brokers use.

Codec 0 leaves the bytes unchanged. Each other codec has one framing:

- gzip: RFC 1952. Lastwrite writes the header that Java 17 writes.
- snappy: a *xerial* stream, a header and chunks of raw snappy. librdkafka writes one raw block
  without a header, which Kafka reads too. Lastwrite reads both, and writes xerial.
- lz4: an LZ4 frame with independent blocks. Like Kafka, Lastwrite refuses dependent blocks.
  In message format v0 the header's checksum is wrong; see ``with_lz4_header_checksum``.
- zstd: frames without a content size.

The size in compressed data may be wrong, so no buffer is allocated by it. ``decompress_into`` fills
a given buffer. ``decompress`` enlarges a buffer in steps, up to a limit.

Source: Kafka 4.4 ``org.apache.kafka.common.compress``; snappy-java ``SnappyInputStream``; the LZ4
frame format 1.6.2; RFC 1952; RFC 8878.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from functools import cached_property

import cramjam
import lz4.frame
import numpy as np
import numpy.typing as npt
import zstandard

from lastwrite.encoding.codec_libraries import Contexts
from lastwrite.encoding.layout import Buffer
from lastwrite.encoding.zstd_frame import LEVEL
from lastwrite.errors import CorruptLog, OutOfMemoryBudget, TruncatedLog, UnsupportedFormat

XERIAL_MAGIC = b"\x82SNAPPY\x00"
# the xerial header: magic, version of the format, and lowest version that a reader must support
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_CHUNK_BYTES = 32 * 1024  # uncompressed bytes per xerial chunk
_XERIAL_HEAD_AS_LENGTH = int.from_bytes(XERIAL_MAGIC[:4], "big", signed=True)

# The gzip header that Java 17 writes: method deflate, no name, no time, unknown system.
GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")

LZ4_MAGIC = bytes.fromhex("04224d18")
# header of the LZ4 frames that Kafka writes
_LZ4_COMMON_HEADER = LZ4_MAGIC + bytes.fromhex("604082")

# The frame header that Kafka writes: no content size, no checksum, no dictionary.
_ZSTD_COMMON_HEADER = bytes.fromhex("28b52ffd00")
_ZSTD_WINDOW_BYTES = 8 << 20  # largest zstd window that is supported; level 3 uses 2 MiB

_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_WINDOW = 31  # zlib's value for a 32 KiB window with gzip header and trailer
_FIRST_GUESS_BYTES = 64 * 1024


class Codec(IntEnum):
    """A compression codec, numbered as in bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Kafka's name of the codec, as in ``compression.type``."""
        return self.name.lower()

    @classmethod
    def of(cls, number: int, at: int | None = None) -> Codec:
        """The codec with this number.

        Raises:
            UnsupportedFormat: 5, 6 and 7 are not assigned; the error has the position ``at``.
        """
        try:
            return cls(number)
        except ValueError:
            raise UnsupportedFormat(f"the compression codec {number} is unknown", at) from None


class OutputTooSmall(Exception):
    """Raised by ``decompress_into`` if the output buffer is too small.

    ``needed_bytes`` is the size given in the data, which may be wrong. None means that the data has
    no size.
    """

    def __init__(self, needed_bytes: int | None = None) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes


def decompress_into(codec: Codec, data: Buffer, out: npt.NDArray[np.uint8]) -> int:
    """Decompress all of ``data`` to the start of ``out``, and return the number of bytes written.

    ``out`` is contiguous and writable. Its content is undefined after an error.

    Raises:
        OutputTooSmall: the output does not fit ``out``.
        CorruptLog: the data violates its framing, or bytes follow its end; positions are in
            ``data``.
        UnsupportedFormat: the lz4 frame has dependent blocks or a dictionary, which Kafka does not
            support.
    """
    view = memoryview(data)
    if codec is Codec.NONE:
        if len(view) > len(out):
            raise OutputTooSmall(len(view))
        out[: len(view)] = np.frombuffer(view, np.uint8)
        return len(view)
    if not len(view):
        raise TruncatedLog(f"the {codec.label} data are empty", 0)
    if codec is Codec.SNAPPY:
        return _snappy_into(view, out)
    if codec is Codec.LZ4:
        _check_lz4_frame(view)
        return _decoded(codec, cramjam.lz4.decompress_into, view, out)
    if codec is Codec.ZSTD:
        return _decoded(codec, cramjam.zstd.decompress_into, view, out)
    return _decompress_gzip(view, out)


def decompress(codec: Codec, data: Buffer, limit_bytes: int) -> memoryview:
    """Decompress all of ``data``, to at most ``limit_bytes``.

    Allocates at most four times the output, or 64 KiB, even if the data contains a larger size.

    Raises:
        OutOfMemoryBudget: the output exceeds ``limit_bytes``.
        CorruptLog, UnsupportedFormat: as ``decompress_into``.
    """
    view = memoryview(data)
    if codec is Codec.NONE:
        if len(view) > limit_bytes:
            raise _past_limit(limit_bytes)
        return view
    size = min(limit_bytes, max(_FIRST_GUESS_BYTES, 4 * len(view)))
    while True:
        out = np.empty(size, np.uint8)
        try:
            return memoryview(out)[: decompress_into(codec, view, out)]
        except OutputTooSmall:
            if size >= limit_bytes:
                raise _past_limit(limit_bytes) from None
        size = min(limit_bytes, 4 * size)


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress ``data`` as Kafka does, at each codec's default level.

    For gzip the bytes are identical to Kafka's (on Java 17 with the stock zlib). The other codecs
    have Kafka's framing and settings, but their blocks depend on the library's version.
    """
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
        body = deflate.compress(data) + deflate.flush()
        return GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFF_FFFF)
    if codec is Codec.SNAPPY:
        view = memoryview(data)
        parts = [XERIAL_HEADER]
        for start in range(0, len(view), XERIAL_CHUNK_BYTES):
            chunk = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_CHUNK_BYTES]))
            parts += (len(chunk).to_bytes(4, "big"), chunk)
        return b"".join(parts)
    if codec is Codec.LZ4:
        framed: bytes = lz4.frame.compress(
            memoryview(data),
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return framed
    # A stream's length is unknown at its start, so the frame has no content size.
    stream = cramjam.zstd.Compressor(level=LEVEL)
    stream.compress(bytes(memoryview(data)))
    return bytes(stream.finish())


class Codecs:
    """Compresses and decompresses with contexts that are reused. Not thread-safe.

    Results and errors are as for this module's functions. zstd is a quarter faster than with these
    functions, which create a context for each batch.
    """

    def __init__(self) -> None:
        self._opener: zstandard.ZstdDecompressor | None = None
        self._packer: zstandard.ZstdCompressor | None = None

    @cached_property
    def contexts(self) -> Contexts:
        """New library contexts, for kernels that process many batches in one call."""
        return Contexts()

    def decompress_into(self, codec: Codec, data: Buffer, out: npt.NDArray[np.uint8]) -> int:
        """Decompress like the function ``decompress_into``, with a reused context."""
        view = memoryview(data)
        if codec is Codec.ZSTD and _is_common_zstd_frame(view):
            if self._opener is None:
                self._opener = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
            try:
                with self._opener.stream_reader(view) as stream:
                    size = int(stream.readinto(out))
            except zstandard.ZstdError:
                size = len(out)
            # If ``out`` is full, more output may follow. ``decompress_into`` detects this, and
            # reports damage with a message.
            if size < len(out):
                return size
        return decompress_into(codec, view, out)

    def compress(self, codec: Codec, data: Buffer) -> bytes:
        """Compress like the function ``compress``, with a reused context."""
        if codec is not Codec.ZSTD:
            return compress(codec, data)
        if self._packer is None:
            self._packer = zstandard.ZstdCompressor(level=LEVEL, write_content_size=False)
        # Compress as a stream, as the function does. With the size of the data, the library would
        # choose other parameters.
        stream = self._packer.compressobj()
        return stream.compress(memoryview(data)) + stream.flush()


def with_lz4_header_checksum(frame: Buffer, *, covers_magic: bool = False) -> bytes:
    """An LZ4 frame with a new header checksum (HC). Any other data is returned unchanged.

    HC is the second-lowest byte of xxHash32 over the header after the magic. The first Kafka
    clients hashed the magic too (``covers_magic``). Message format v0 still does, and its readers
    do not check HC.
    """
    data = bytearray(memoryview(frame))
    # position of HC, after the content size if present
    place = 14 if len(data) > 4 and data[4] & 0x08 else 6
    if len(data) <= place or data[:4] != LZ4_MAGIC:
        return bytes(data)
    data[place] = _short_xxhash32(data[0 if covers_magic else 4 : place]) >> 8 & 0xFF
    return bytes(data)


def _short_xxhash32(data: bytearray) -> int:
    """The xxHash32 with seed 0 of ``data``, which has fewer than 16 bytes."""
    first, second, third, fourth, fifth = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    whole = len(data) // 4 * 4
    value = fifth + len(data)
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        value = _rotated(value + word * third, 17) * fourth
    for byte in data[whole:]:
        value = _rotated(value + byte * fifth, 11) * first
    value &= 0xFFFF_FFFF
    value = (value ^ value >> 15) * second & 0xFFFF_FFFF
    value = (value ^ value >> 13) * third & 0xFFFF_FFFF
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= 0xFFFF_FFFF
    return value << bits | value >> 32 - bits


def _past_limit(limit_bytes: int) -> OutOfMemoryBudget:
    return OutOfMemoryBudget(
        f"the batch decompresses to more than the limit of {limit_bytes} bytes",
        0,
        remedy="raise --memory",
    )


def _decoded(codec: Codec, decode: object, data: memoryview, out: npt.NDArray[np.uint8]) -> int:
    try:
        return int(decode(data, out))  # type: ignore[operator]
    except cramjam.DecompressionError as error:
        problem = str(error)
    if "whole buffer" in problem:  # message of the Rust library for a full output buffer
        raise OutputTooSmall
    if (
        "incomplete frame" in problem
        or "unexpected end of file" in problem
        or "truncated" in problem
    ):
        raise TruncatedLog(f"the {codec.label} data end early: {problem}", 0)
    raise CorruptLog(f"broken {codec.label} data: {problem}", 0)


def _decompress_gzip(data: memoryview, out: npt.NDArray[np.uint8]) -> int:
    """Decompress gzip members as Java's GZIPInputStream does.

    Bytes after a member are ignored, unless they begin another member.
    """
    try:
        return _decoded(Codec.GZIP, cramjam.gzip.decompress_into, data, out)
    except CorruptLog:
        pass  # decode member by member, because cramjam fails if other bytes follow a member
    size = 0
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            plain = member.decompress(data, len(out) - size + 1)
        except zlib.error as error:
            raise CorruptLog(f"the gzip data cannot be decompressed: {error}", 0) from error
        if len(plain) > len(out) - size:
            raise OutputTooSmall
        out[size : size + len(plain)] = np.frombuffer(plain, np.uint8)
        size += len(plain)
        if not member.eof:
            raise TruncatedLog("the gzip data end early, inside the last member", 0)
        data = memoryview(member.unused_data)
        if data[:3] != _GZIP_MAGIC:
            return size


def _is_common_zstd_frame(data: memoryview) -> bool:
    """Whether ``data`` is exactly one frame with Kafka's header.

    The library's stream does not report truncated input or bytes after the frame, so this function
    follows the block headers. Most frames have one block. A block header is a little-endian u24.
    Bit 0 marks the last block; bits 1 and 2 have the value 1 if one byte is repeated; the other
    bits are the size.
    """
    if data[:5] != _ZSTD_COMMON_HEADER:
        return False
    at, head = 6, 0  # position and header of the first block, after the window size
    while not head & 1:
        if at + 3 > len(data):
            return False
        head = int.from_bytes(data[at : at + 3], "little")
        at += 4 if head & 6 == 2 else 3 + (head >> 3)
    return at == len(data)


def _snappy_into(data: memoryview, out: npt.NDArray[np.uint8]) -> int:
    """Decode xerial chunks, or one raw block if there is no magic, as snappy-java does."""
    if data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _snappy_block_into(data, 0, out)
    at = written = 0
    while at < len(data):
        if len(data) - at < 4:
            raise TruncatedLog("the snappy data end inside a chunk length", at)
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        # a header, at the start or between concatenated streams
        if length == _XERIAL_HEAD_AS_LENGTH:
            at = _after_xerial_header(data, at)
            continue
        at += 4
        if length <= 0:
            raise CorruptLog(f"snappy chunk of {length} bytes", at - 4)
        if length > len(data) - at:
            raise TruncatedLog(
                f"the snappy chunk length is {length} bytes, but only {len(data) - at} bytes "
                "follow",
                at - 4,
            )
        written += _snappy_block_into(data[at : at + length], at, out[written:])
        at += length
    return written


def _after_xerial_header(data: memoryview, at: int) -> int:
    if len(data) - at < len(XERIAL_HEADER):
        raise TruncatedLog("the snappy data end inside the stream header", at)
    if data[at : at + len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        raise CorruptLog("the snappy stream header is invalid", at)
    version = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    if version < 1:
        raise UnsupportedFormat(f"snappy stream version {version} is not supported", at + 8)
    return at + len(XERIAL_HEADER)


def _snappy_block_into(block: memoryview, at: int, out: npt.NDArray[np.uint8]) -> int:
    try:
        claim = cramjam.snappy.decompress_raw_len(block)
        # Three bytes of snappy expand to at most 64, so a larger size is rejected before
        # allocation.
        if claim > 22 * len(block) + 64:
            raise CorruptLog(
                f"the snappy block has {len(block)} bytes, but states that it decompresses to "
                f"{claim} bytes",
                at,
            )
        if claim > len(out):
            raise OutputTooSmall(claim)
        return int(cramjam.snappy.decompress_raw_into(block, out))
    except cramjam.DecompressionError as error:
        raise CorruptLog(f"the snappy data cannot be decompressed: {error}", at) from None


def _check_lz4_frame(data: memoryview) -> None:
    """Check that ``data`` is one LZ4 frame of independent blocks, as Kafka requires.

        byte 0  magic 04 22 4d 18
        byte 4  FLG: bits 7-6 version 01, 5 independent blocks, 4 block checksums, 3 content size,
                2 content checksum, 1 reserved, 0 dictionary id
        byte 5  BD: bits 6-4 block size 4 to 7 (64 KiB to 4 MiB), the others reserved
        byte 6  content size, u64, if flagged; then the header checksum, one byte
        then    blocks: u32 little-endian size (bit 31: not compressed), bytes, u32 checksum if
        flagged
        last    u32 0; then the content checksum, u32, if flagged

    The decoder verifies the checksums afterwards.
    """
    if len(data) < 7:
        raise TruncatedLog("the lz4 data end inside the frame header", 0)
    if data[:7] == _LZ4_COMMON_HEADER:
        block_limit, at, block_tail, frame_tail = 65536, 7, 0, 0
    else:
        if data[:4] != LZ4_MAGIC:
            raise CorruptLog("the data are not an lz4 frame", 0)
        flags, descriptor = data[4], data[5]
        if flags >> 6 != 1:
            raise UnsupportedFormat(f"lz4 frame version {flags >> 6} is not supported", 4)
        if not flags & 0x20:
            raise UnsupportedFormat(
                "the lz4 frame has dependent blocks, which Kafka does not support", 4
            )
        if flags & 0x03:
            raise UnsupportedFormat(
                "the lz4 frame has a dictionary or a reserved flag, which is not supported", 4
            )
        if descriptor & 0x8F or descriptor >> 4 < 4:
            raise CorruptLog(f"the lz4 block descriptor {descriptor:#04x} is invalid", 5)
        block_limit = 1 << (2 * (descriptor >> 4) + 8)
        at = 7 + (8 if flags & 0x08 else 0)
        block_tail = 4 if flags & 0x10 else 0
        frame_tail = 4 if flags & 0x04 else 0
    while True:
        if len(data) - at < 4:
            raise TruncatedLog("the lz4 data end inside a block size", at)
        size = int.from_bytes(data[at : at + 4], "little")
        if size == 0:
            break
        stored = size & 0x7FFF_FFFF
        if stored > block_limit:
            raise CorruptLog(
                f"the lz4 block has {stored} bytes, but the frame allows at most {block_limit}", at
            )
        if stored + block_tail > len(data) - at - 4:
            raise TruncatedLog(
                f"the lz4 block length is {stored} bytes, but only {len(data) - at - 4} bytes "
                "follow",
                at,
            )
        at += 4 + stored + block_tail
    at += 4
    if len(data) - at < frame_tail:
        raise TruncatedLog("the lz4 data end inside the content checksum", at)
    if len(data) - at > frame_tail:
        raise CorruptLog(
            f"{len(data) - at - frame_tail} extra bytes follow the lz4 frame", at + frame_tail
        )
