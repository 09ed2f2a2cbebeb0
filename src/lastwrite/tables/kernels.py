"""Kernels that compute the order, buckets and checksum of keys; see ``buckets``."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, operator"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.fingerprint import fingerprint
from lastwrite.encoding.intrinsics import address, load64, swap64
from lastwrite.encoding.kernel import njit


@njit(cache=True, nogil=True)
def buckets_of(data, starts, lengths, mask, found):
    """Write the bucket of each key ``data[starts[n]:][:lengths[n]]`` to ``found``.

    The bucket is ``murmur3_x86_32(key) & mask``, with seed 0.
    """
    low = np.uint32(0xFFFFFFFF)
    for n in range(len(found)):
        at, length = np.int64(starts[n]), np.int64(lengths[n])
        end = at + length
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
def words_of(data, starts, words):
    """Write a sort number for each key: the eight bytes after the common prefix of all keys.

    Only keys with equal numbers need a further comparison.

    Returns True, without writing numbers, if the keys are already ascending.
    """
    rows = len(words)
    if not rows:
        return True
    first = data[starts[0] : starts[1]]
    shared, rises = len(first), True
    for n in range(1, rows):
        at, end = np.int64(starts[n]), np.int64(starts[n + 1])
        k = 0
        while k < shared and at + k < end and data[at + k] == first[k]:
            k += 1
        shared = k
        rises = rises and _compared(data, starts, n - 1, n) <= 0
    if rises:
        return True
    source = address(data)
    for n in range(rows):
        at, end = np.int64(starts[n]) + shared, np.int64(starts[n + 1])
        if at + 8 <= end:
            words[n] = swap64(load64(source, at))
        else:
            word = np.uint64(0)
            for k in range(8):
                word = word << np.uint64(8) | np.uint64(data[at + k] if at + k < end else 0)
            words[n] = word
    return False


@njit(cache=True, nogil=True)
def settle_order(data, starts, words, order):
    """Sort the keys with equal ``words``. In ``order``, keys are already sorted by these words.

    Returns False if more than 64 keys have the same word.
    """
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and words[order[end]] == words[order[start]]:
            row, at = order[end], end
            if end - start > 64:
                return False
            while at > start and _compared(data, starts, order[at - 1], row) > 0:
                order[at] = order[at - 1]
                at -= 1
            order[at] = row
            end += 1
        start = end
    return True


@njit(cache=True, nogil=True)
def _compared(data, starts, one, other):
    """Compare two keys. The result is below 0 if key ``one`` is less, and 0 if they are equal."""
    a, b = np.int64(starts[one]), np.int64(starts[other])
    a_end, b_end = np.int64(starts[one + 1]), np.int64(starts[other + 1])
    while a < a_end and b < b_end:
        if data[a] != data[b]:
            return np.int64(data[a]) - np.int64(data[b])
        a += 1
        b += 1
    return (a_end - a) - (b_end - b)


@njit(cache=True, nogil=True)
def checksum_of(data, starts, partitions, offsets, secret, room):
    """The sum of the rows' 128-bit hashes, mod 2^128, as two words, the high word first.

    A row's hash is the fingerprint of its key, followed by the partition (4 bytes) and the offset
    (8 bytes), both little endian. ``room`` is a buffer for the longest key and these 12 bytes.
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
