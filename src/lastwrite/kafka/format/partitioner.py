"""Kafka's default partitioner: the partition of a key.

Source: Kafka 4.4.0 ``BuiltInPartitioner.partitionForKey``, ``Utils.murmur2``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.kernel import njit

_SEED, _FACTOR = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as a signed 32-bit number.

    >>> murmur2(b"foobar")
    -790332482
    """
    found = int(_murmur2(np.frombuffer(data, np.uint8)))
    return found - (1 << 32) if found >> 31 else found


def partition_of(data: bytes, count: int) -> int:
    """The number of the partition to which a record with this key belongs, out of ``count``."""
    return (murmur2(data) & 0x7FFFFFFF) % count


@njit(cache=True, nogil=True)
def _murmur2(data):
    size = len(data)
    found = _SEED ^ np.uint32(size)
    for at in range(0, size - 3, 4):
        word = (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        word = np.uint32(word * _FACTOR)
        word = np.uint32((word ^ (word >> np.uint32(24))) * _FACTOR)
        found = np.uint32(np.uint32(found * _FACTOR) ^ word)
    rest = size & ~3
    for place in range(size - rest - 1, -1, -1):
        found ^= np.uint32(data[rest + place]) << np.uint32(8 * place)
    if size > rest:
        found = np.uint32(found * _FACTOR)
    found = np.uint32((found ^ (found >> np.uint32(13))) * _FACTOR)
    return np.uint32(found ^ (found >> np.uint32(15)))
