"""Kernels that decode common LZ4 frames, and compress them with the library's function.

A kernel can process all batches of a chunk in one call. A common frame is one that Kafka itself
writes: independent blocks of at most 64 KiB, no checksums, no content size. A block is a list of
sequences. This is a short one:

    0x35  a b c  0x03 0x00  …     token: 3 literals, a match of 5 + 4 bytes; the literals; the
                                  distance back to the match

If a length is 15, the following bytes are added to it, up to and including the first that is not
255. A match may overlap its own output: after "abc", a match of distance 3 and length 9 appends
"abcabcabc". The last sequence ends after its literals.

The kernel *refuses* data that is damaged, unusual or too large. The library then decodes it, or
reports the error with its position. The kernel therefore accepts nothing that the library rejects.
At the end of a block it follows the library's decoder: the last 5 bytes are literals, and no match
starts in the last 12 bytes of output.

Source: LZ4 block format and frame format 1.6.2; ``LZ4_decompress_safe``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.codec_libraries import LZ4_PACK, LZ4_SETTINGS
from lastwrite.encoding.intrinsics import (
    call5,
    copy16,
    copy_bytes,
    load8,
    load16,
    load32,
    load64,
    store8,
    store64,
)
from lastwrite.encoding.kernel import njit

REFUSED = -1
_MAGIC = 0x184D2204
_FLAGS = 0x824060  # flags and block size of Kafka's frames, and their header checksum
_BLOCK_BYTES = 65536
_SLACK = 32  # bytes that a copy may read or write beyond its end


@njit(cache=True, nogil=True, forceinline=True)
def _copy(target, to, source, at, count):
    """Copy ``count`` bytes in steps of 32. Up to 31 more bytes are read and written.

    Source and target are at least 16 bytes apart.
    """
    copy16(target, to, source, at)
    copy16(target, to + 16, source, at + 16)
    done = np.int64(32)
    while done < count:
        copy16(target, to + done, source, at + done)
        copy16(target, to + done + 16, source, at + done + 16)
        done += 32


@njit(cache=True, nogil=True)
def _repeat(target, to, offset, count):
    """Repeat the last ``offset`` bytes, fewer than 16, for ``count`` bytes. Up to 7 more are
    written.
    """
    done = np.int64(0)
    if offset < 8:
        while done < 8:
            store8(target, to + done, load8(target, to + done - offset))
            done += 1
        distance = offset
        while distance < 8:
            distance += offset
        offset = distance
    while done < count:
        store64(target, to + done, load64(target, to + done - offset))
        done += 8


@njit(cache=True, nogil=True, forceinline=True)
def _length(source, at, end):
    """Decode the bytes that continue a length of 15: (value to add, position after them).

    The position is -1 if the length does not end before ``end``.
    """
    total = np.int64(0)
    while at < end:
        byte = np.int64(load8(source, at))
        at += 1
        total += byte
        if byte != 255:
            return total, at
    return total, np.int64(-1)


@njit(cache=True, nogil=True)
def decode_block(source, at, end, readable, target, to, room, limit):
    """Decode the block ``source[at:end]`` to ``target[to:]``. Returns the end in ``target``, or
    REFUSED.

    ``source`` and ``target`` are addresses. Bytes of ``source`` below ``readable`` may be read, and
    bytes of ``target`` below ``room`` written. The decoded block has at most ``limit`` bytes.
    """
    begin = to
    most = min(room, begin + limit)
    roomy = room - _SLACK
    safe = readable - _SLACK
    while at < end:
        token = np.int64(load8(source, at))
        at += 1
        literals = token >> 4
        if literals == 15:
            more, at = _length(source, at, end)
            if at < 0:
                return np.int64(REFUSED)
            literals += more
        stop = at + literals
        if stop > end - 8:
            if stop != end or to + literals > most:
                return np.int64(REFUSED)
            copy_bytes(target, to, source, at, literals)
            return to + literals
        if to + literals > most - 12:
            return np.int64(REFUSED)
        if to + literals <= roomy and stop <= safe:
            if literals <= 16:
                copy16(target, to, source, at)
            else:
                _copy(target, to, source, at, literals)
        else:
            copy_bytes(target, to, source, at, literals)
        to += literals
        offset = np.int64(load16(source, stop))
        at = stop + 2
        count = (token & 15) + 4
        if count == 19:
            more, at = _length(source, at, end)
            if at < 0:
                return np.int64(REFUSED)
            count += more
        if offset == 0 or offset > to - begin or at > end - 6 or to + count > most - 5:
            return np.int64(REFUSED)
        if to + count <= roomy:
            if offset >= 16:
                _copy(target, to, target, to - offset, count)
            else:
                _repeat(target, to, offset, count)
        else:
            for i in range(count):
                store8(target, to + i, load8(target, to + i - offset))
        to += count
    return np.int64(REFUSED)


@njit(cache=True, nogil=True)
def decode_frame(source, at, end, readable, target, to, room):
    """Decode the frame ``source[at:end]`` to ``target[to:]``. Returns the end in ``target``, or
    REFUSED.

    ``source`` and ``target`` are addresses. Bytes of ``source`` below ``readable`` may be read, and
    bytes of ``target`` below ``room`` written.
    """
    if end - at < 11 or load32(source, at) != np.uint64(_MAGIC):
        return np.int64(REFUSED)
    if load32(source, at + 3) >> np.uint64(8) != np.uint64(_FLAGS):
        return np.int64(REFUSED)
    at += 7
    while end - at >= 4:
        word = np.int64(load32(source, at))
        at += 4
        if word == 0:
            return to if at == end else np.int64(REFUSED)
        size = word & 0x7FFFFFFF
        if size > _BLOCK_BYTES or size > end - at:
            return np.int64(REFUSED)
        if word != size:
            if size > room - to:
                return np.int64(REFUSED)
            copy_bytes(target, to, source, at, size)
            to += size
        else:
            to = decode_block(source, at, at + size, readable, target, to, room, _BLOCK_BYTES)
            if to < 0:
                return np.int64(REFUSED)
        at += size
    return np.int64(REFUSED)


@njit(cache=True, nogil=True)
def encode_frame(library, source, at, end, target, to, room):
    """Compress ``source[at:end]`` to a frame with Kafka's settings in ``target[to:room]``.

    ``library`` is ``codec_libraries.Contexts.words``. Returns the end in ``target``, or REFUSED.
    """
    if library[LZ4_PACK] == 0:
        return np.int64(REFUSED)
    size = call5(
        library[LZ4_PACK], target + to, room - to, source + at, end - at, library[LZ4_SETTINGS]
    )
    return to + size if size >= 0 else np.int64(REFUSED)
