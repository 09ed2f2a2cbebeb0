"""The codecs of Pulsar's payloads, in the framings that its clients use.

- NONE: the bytes unchanged.
- LZ4: one raw block, without frame and without size.
- ZLIB: a zlib stream that ends with a sync flush, ``00 00 FF FF``: no last block, no checksum.
- ZSTD: a frame, with or without its content size.
- SNAPPY: one raw block.

A payload must decompress to exactly the number of bytes in its metadata; otherwise it is broken.
That number may be false. A buffer of that size is allocated only if the size is possible with the
codec's greatest ratio and within the caller's limit.

Source: docs/formats/pulsar-compaction.md, "Codecs"; Pulsar 4.2.4
``org.apache.pulsar.common.compression``.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import cramjam
import lz4.block
import numpy as np
import numpy.typing as npt
import zstandard

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, OutOfMemoryBudget, UnsupportedFormat

_ZSTD_LEVEL = 3
_ZSTD_WINDOW_BYTES = 8 << 20  # largest zstd window that is accepted; level 3 uses 2 MiB
_FIRST_GUESS_BYTES = 64 * 1024
_SLACK = 64
_LIKELY_RATIO = 64


class PulsarCodec(IntEnum):
    """A compression codec, as numbered in field 8 of MessageMetadata."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4

    @property
    def label(self) -> str:
        """Pulsar's name of the codec, in lower case."""
        return self.name.lower()

    @classmethod
    def of(cls, number: int, at: int | None = None) -> PulsarCodec:
        """The codec with this number.

        Raises:
            UnsupportedFormat: the number is not 0 to 4. The error contains ``at``.
        """
        try:
            return cls(number)
        except ValueError:
            raise UnsupportedFormat(f"the compression codec {number} is unknown", at) from None


# The maximum number of decompressed bytes for each compressed byte. For ZSTD there is no maximum.
GREATEST_RATIO = {
    PulsarCodec.NONE: 1,
    PulsarCodec.LZ4: 255,
    PulsarCodec.ZLIB: 1032,
    PulsarCodec.SNAPPY: 22,
}


class PulsarCodecs:
    """Compresses and decompresses payloads with reusable contexts. Use one instance per thread."""

    def __init__(self) -> None:
        self._zstd_opener = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._zstd_packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)

    def open_into(
        self, codec: PulsarCodec, data: Buffer, size: int, out: npt.NDArray[np.uint8] | memoryview
    ) -> bool:
        """Decompress ``data`` to the start of ``out``; the result must have ``size`` bytes.

        Returns False if ``out`` is too small to check ``size``. The content of ``out`` is undefined
        after False and after an error.

        Raises:
            CorruptLog: the data are broken, or decompress to another size. Positions are bytes of
                ``data``.
        """
        view = memoryview(data)
        most = GREATEST_RATIO.get(codec)
        if size < 0 or (most is not None and size > most * len(view) + _SLACK):
            raise CorruptLog(
                f"{len(view)} bytes of {codec.label} data cannot decompress to {size} bytes",
                0,
            )
        if codec is PulsarCodec.ZSTD:
            return self._open_zstd(view, size, out)
        if size > len(out):
            return False
        opened = _opened(codec, view, size)
        if len(opened) != size:
            raise CorruptLog(
                f"the {codec.label} data decompress to {len(opened)} bytes, but the metadata "
                f"state {size}",
                0,
            )
        memoryview(out)[:size] = opened
        return True

    def decompress(self, codec: PulsarCodec, data: Buffer, size: int, limit_bytes: int) -> bytes:
        """Decompress ``data`` to ``size`` bytes.

        Raises:
            CorruptLog: the data are broken, or decompress to another size.
            OutOfMemoryBudget: the result has, or may have, more than ``limit_bytes``.
        """
        room = min(limit_bytes, max(_FIRST_GUESS_BYTES, 4 * len(memoryview(data))))
        while True:
            out = np.empty(room, np.uint8)
            if self.open_into(codec, data, size, out):
                return out[:size].tobytes()
            if room >= min(size, limit_bytes):
                raise OutOfMemoryBudget(
                    f"the uncompressed size of the payload is {size} bytes, more than the "
                    f"limit of {limit_bytes}",
                    0,
                    remedy="raise --memory",
                )
            room = min(limit_bytes, size, 4 * room)

    def compress(self, codec: PulsarCodec, data: Buffer) -> bytes:
        """Compress ``data`` as Pulsar's Java client does, at each codec's default level."""
        view = memoryview(data)
        if codec is PulsarCodec.LZ4:
            packed: bytes = lz4.block.compress(view, store_size=False)
            return packed
        if codec is PulsarCodec.ZLIB:
            deflate = zlib.compressobj()
            return deflate.compress(view) + deflate.flush(zlib.Z_SYNC_FLUSH)
        if codec is PulsarCodec.ZSTD:
            return self._zstd_packer.compress(view)
        if codec is PulsarCodec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(view))
        return bytes(view)

    def _open_zstd(
        self, data: memoryview, size: int, out: npt.NDArray[np.uint8] | memoryview
    ) -> bool:
        try:
            said = zstandard.frame_content_size(data)
        except zstandard.ZstdError:
            said = -1  # no valid frame; the decompression below raises the error
        # checked here, because decompressing a part would not detect a wrong size
        if said not in (-1, size):
            raise CorruptLog(
                f"the zstd frame states a size of {said} bytes, but the metadata state {size}", 0
            )
        if said > 0 and size <= min(len(out), max(_FIRST_GUESS_BYTES, _LIKELY_RATIO * len(data))):
            try:
                memoryview(out)[:size] = self._zstd_opener.decompress(data, allow_extra_data=False)
                return True
            except zstandard.ZstdError as error:
                raise CorruptLog(f"broken zstd data: {error}", 0) from None
        # A stream fills at most the given buffer, even if the frame states a larger size.
        try:
            with self._zstd_opener.stream_reader(data) as stream:
                room = memoryview(out)[: min(size, len(out))]
                held = 0
                while held < len(room):
                    count = stream.readinto(room[held:])
                    if not count:
                        break
                    held += count
                more = stream.read(1)
        except zstandard.ZstdError as error:
            raise CorruptLog(f"broken zstd data: {error}", 0) from None
        if held == len(room) < size and more:
            return False
        if held != size or more:
            raise CorruptLog(
                "the zstd data decompress to "
                f"{'more bytes than' if more else f'{held} bytes, not'} the {size} of the "
                "metadata",
                0,
            )
        # Clients reject a frame without an end. The stream above does not detect this, so check it
        # here.
        whole = self._zstd_opener.decompressobj()
        if size and not (whole.decompress(data) and whole.eof):
            raise CorruptLog("the zstd data end inside a frame", len(data))
        return True


def _opened(codec: PulsarCodec, data: memoryview, size: int) -> bytes | memoryview:
    """Decompress ``data``, of any codec but ZSTD, to about ``size`` bytes.

    The caller checks the size of the result.
    """
    try:
        if codec is PulsarCodec.LZ4:
            return bytes(lz4.block.decompress(data, uncompressed_size=size))
        if codec is PulsarCodec.ZLIB:
            # Stop at ``size`` bytes, as Java's inflater does. At least 1, because 0 means no limit
            # in zlib.
            return zlib.decompressobj().decompress(data, size) if size else b""
        if codec is PulsarCodec.SNAPPY:
            claim = int(cramjam.snappy.decompress_raw_len(data))
            if claim != size:
                raise CorruptLog(
                    f"the snappy data state a size of {claim} bytes, but the metadata state {size}",
                    0,
                )
            return bytes(cramjam.snappy.decompress_raw(data))
        return data
    except (lz4.block.LZ4BlockError, zlib.error, cramjam.DecompressionError) as error:
        raise CorruptLog(f"the {codec.label} data cannot be decompressed: {error}", 0) from None
