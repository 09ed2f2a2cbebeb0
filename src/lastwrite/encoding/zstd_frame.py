"""Zstandard frames of the common kind, by the library's own functions: called from kernels, so that
a whole chunk of batches is one call.

The common kind is what Kafka's clients write: no content size, no checksum, no dictionary.

| byte | what |
|---|---|
| 0 | magic 28 b5 2f fd |
| 4 | descriptor, 0 |
| 5 | window: bits 7 to 3 are its exponent over 10, the others a mantissa |
| 6 | blocks, each: u24 little-endian, its bytes |

Of the u24 bit 0 says that it is the last, 1 in bits 1 and 2 that one byte stands for all; the rest
is its size.

What is broken, unusual or too large is *refused*, as in ``lz4_frame``, and so is everything where
the library does not show its functions.

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
_GREATEST_WINDOW = 13 << 3  # 8 MiB
_WINDOW_BYTES = 2 << 20  # level 3's


@njit(cache=True, nogil=True)
def decode_frame(library, source, at, end, target, to, room):
    """Decode the frame ``source[at:end]`` to ``target[to:room]``; returns the position behind, or
    REFUSED.

    ``source`` and ``target`` are addresses, ``library`` the words of
    ``codec_libraries.Contexts``.
    """
    if library[ZSTD_OPEN] == 0 or end - at < 9 or load32(source, at) != np.uint64(_MAGIC):
        return np.int64(REFUSED)
    if load8(source, at + 4) != 0 or load8(source, at + 5) > np.uint64(_GREATEST_WINDOW):
        return np.int64(REFUSED)
    # The function would take what follows for a further frame, and a block larger than the window.
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
    """Pack ``source[at:end]`` as one frame to ``target[to:room]``, as ``compression`` does; returns
    the position behind, or REFUSED.
    """
    if library[ZSTD_PACK] == 0 or not 0 < end - at <= _WINDOW_BYTES:
        return np.int64(REFUSED)
    # A begin of its own: told of the size the library would choose other parameters, and write it.
    # And block by block, as a stream takes them: what it has at once it would part elsewhere.
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
