"""Kernels that decode and compress common Zstandard frames with the library's functions.

A kernel can process all batches of a chunk in one call. A common frame is one that Kafka's clients
write: no content size, no checksum, no dictionary.

| byte | content |
|---|---|
| 0 | magic 28 b5 2f fd |
| 4 | descriptor, 0 |
| 5 | window: bits 7 to 3 are its exponent over 10, the others a mantissa |
| 6 | blocks, each: u24 little-endian, its bytes |

Bit 0 of the u24 marks the last block. Bits 1 and 2 have the value 1 if one byte is repeated. The
other bits are the size.

Data that is damaged, unusual or too large is *refused*, as in ``lz4_frame``. All data is refused if
the library does not export its functions.

Source: RFC 8878; zstd 1.5 ``zstd.h``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.codec_libraries import (
    ZSTD_BEGIN,
    ZSTD_END,
    ZSTD_OPEN,
    ZSTD_OPENER,
    ZSTD_PACK,
    ZSTD_PACKER,
)
from lastwrite.encoding.intrinsics import call2, call5, load8, load16, load32
from lastwrite.encoding.kernel import njit

REFUSED = -1
LEVEL = 3  # Kafka's default
_MAGIC = 0xFD2FB528
_BLOCK_BYTES = 128 << 10
_GREATEST_WINDOW = 13 << 3  # the window byte for 8 MiB, the largest accepted window
_WINDOW_BYTES = 2 << 20  # bytes of the window that compression level 3 uses


@njit(cache=True, nogil=True)
def decode_frame(library, source, at, end, target, to, room):
    """Decode the frame ``source[at:end]`` to ``target[to:room]``; return the end position, or
    REFUSED.

    ``source`` and ``target`` are addresses. ``library`` is ``codec_libraries.Contexts.words``.
    """
    if library[ZSTD_OPEN] == 0 or end - at < 9 or load32(source, at) != np.uint64(_MAGIC):
        return np.int64(REFUSED)
    if load8(source, at + 4) != 0 or load8(source, at + 5) > np.uint64(_GREATEST_WINDOW):
        return np.int64(REFUSED)
    # These checks are needed, because the library's function accepts further frames after this one,
    # and blocks larger than the window.
    window = np.int64(load8(source, at + 5))
    most = (8 + (window & 7)) << 7 + (window >> 3)
    block = at + 6
    head = np.int64(0)
    while head & 1 == 0:
        if block + 3 > end:
            return np.int64(REFUSED)
        head = np.int64(load16(source, block) | load8(source, block + 2) << np.uint64(16))
        if head >> 3 > most or head >> 3 > _BLOCK_BYTES:
            return np.int64(REFUSED)
        block += 4 if head & 6 == 2 else 3 + (head >> 3)
    if block != end:
        return np.int64(REFUSED)
    size = call5(
        library[ZSTD_OPEN], library[ZSTD_OPENER], target + to, room - to, source + at, end - at
    )
    return to + size if size >= 0 else np.int64(REFUSED)


@njit(cache=True, nogil=True)
def encode_frame(library, source, at, end, target, to, room):
    """Compress ``source[at:end]`` to a frame with Kafka's settings in ``target[to:room]``.

    Returns the end in ``target``, or REFUSED.
    """
    if library[ZSTD_PACK] == 0 or not 0 < end - at <= _WINDOW_BYTES:
        return np.int64(REFUSED)
    # The library's one-call function gets the size of the data. It would write the size into the
    # frame and choose other parameters, so the stream functions are used. The data is passed in
    # blocks of 128 KiB, because the library would divide a longer input into other blocks.
    size = call2(library[ZSTD_BEGIN], library[ZSTD_PACKER], LEVEL)
    while size >= 0 and end - at >= _BLOCK_BYTES:
        size = call5(
            library[ZSTD_PACK],
            library[ZSTD_PACKER],
            target + to,
            room - to,
            source + at,
            _BLOCK_BYTES,
        )
        to += size
        at += _BLOCK_BYTES
    if size < 0:
        return np.int64(REFUSED)
    size = call5(
        library[ZSTD_END], library[ZSTD_PACKER], target + to, room - to, source + at, end - at
    )
    return to + size if size >= 0 else np.int64(REFUSED)
