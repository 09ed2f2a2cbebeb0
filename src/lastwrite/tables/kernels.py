"""Kernels over columns of keys: bucket and checksum; see ``buckets``."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, operator"

from __future__ import annotations

import numpy as np
from numba import njit

from lastwrite.encoding.fingerprint import fingerprint
from lastwrite.encoding.intrinsics import address


@njit(cache=True, nogil=True)
def buckets_of(data, starts, mask, found):
    """Of each key ``data[starts[n]:starts[n + 1]]``: murmur3_x86_32 with seed 0, and ``mask``."""
    low = np.uint32(0xFFFFFFFF)
    for n in range(len(found)):
        at, end = np.int64(starts[n]), np.int64(starts[n + 1])
        length = end - at
        h = np.uint32(0)
        while at + 4 <= end:
            k = (
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            ) & low
            h ^= _mixed(k)
            h = ((h << np.uint32(13)) | (h >> np.uint32(19))) & low
            h = (h * np.uint32(5) + np.uint32(0xE6546B64)) & low
            at += 4
        k = np.uint32(0)
        shift = np.uint32(0)
        while at < end:
            k |= np.uint32(data[at]) << shift
            shift += np.uint32(8)
            at += 1
        h ^= _mixed(np.uint32(k & low))
        h ^= np.uint32(length)
        h = ((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)) & low
        h = ((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)) & low
        h ^= h >> np.uint32(16)
        found[n] = np.int32(h & np.uint32(0x7FFFFFFF)) & mask


@njit(cache=True, nogil=True)
def _mixed(k):
    low = np.uint32(0xFFFFFFFF)
    k = (k * np.uint32(0xCC9E2D51)) & low
    k = ((k << np.uint32(15)) | (k >> np.uint32(17))) & low
    return np.uint32((k * np.uint32(0x1B873593)) & low)


@njit(cache=True, nogil=True)
def checksum_of(data, starts, partitions, offsets, secret, room):
    """The sum, mod 2^128, of the rows' 128 bits: two words, the high one first.

    Of a row: the fingerprint of its key, the partition in 4 bytes and the offset in 8, both little
    endian. ``room``: for the longest key, and these 12 bytes.
    """
    high, low = np.uint64(0), np.uint64(0)
    source = address(room)
    for n in range(len(partitions)):
        length = np.int64(starts[n + 1]) - np.int64(starts[n])
        room[:length] = data[starts[n] : starts[n + 1]]
        partition, offset = np.int64(partitions[n]), np.int64(offsets[n])
        for i in range(4):
            room[length + i] = np.uint8((partition >> (8 * i)) & 0xFF)
        for i in range(8):
            room[length + 4 + i] = np.uint8((offset >> (8 * i)) & 0xFF)
        one, two = fingerprint(source, 0, length + 12, secret)
        before = low
        low += two
        high += one
        if low < before:
            high += np.uint64(1)
    return high, low
