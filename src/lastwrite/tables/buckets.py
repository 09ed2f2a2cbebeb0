"""Assign rows to buckets, order them, and compute checksums, by the bytes of their keys.

Rows are divided by Iceberg's bucket transform: ``(murmur3_x86_32(key) & 0x7fffffff) % buckets``.
Engines that support the transform read one bucket to find a key.

The checksum of a table is the sum of its rows' hashes. An update adds the new rows and subtracts
the removed ones. A row's hash covers the key and the partition and offset of its record. These
determine the value, because a record of a log never changes. ``verify`` compares the values.

Source: Iceberg's table format, Appendix B, 32-bit hash requirements.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.model.columns import ByteArray, Int64Array, UInt64Array
from lastwrite.tables import kernels

BUCKET_BYTES = 128 << 20  # target size of a bucket, compressed
_MOST = 1 << 20
_WRAP = 1 << 128


def bucket_count(table_bytes: int, bucket_bytes: int = BUCKET_BYTES) -> int:
    """The number of buckets for a table of this size. It is a power of two."""
    wanted = -(-max(table_bytes, 1) // bucket_bytes)
    return int(min(_MOST, 1 << (wanted - 1).bit_length()))


def buckets_of(keys: pa.Array, buckets: int) -> npt.NDArray[np.int32]:
    """The bucket of each key. ``keys`` are binary without nulls; ``buckets`` is a power of two."""
    data, starts = _parts(keys)
    return buckets_at(data, starts[:-1].astype(np.int64), np.diff(starts).astype(np.int64), buckets)


def buckets_at(
    data: ByteArray, starts: Int64Array, lengths: Int64Array, buckets: int
) -> npt.NDArray[np.int32]:
    """The bucket of each key, where the keys are slices of ``data``."""
    found = np.empty(len(starts), np.int32)
    kernels.buckets_of(data, starts, lengths, np.int32(buckets - 1), found)
    return found


def by_bucket(found: npt.NDArray[np.int32], buckets: int) -> Int64Array | None:
    """The order of rows by bucket, stable within a bucket. None if they are in order."""
    if (found[1:] >= found[:-1]).all():
        return None
    # numpy uses a radix sort for 16-bit numbers
    return np.argsort(found.astype(np.uint16) if buckets <= 1 << 16 else found, kind="stable")


def order_of(keys: pa.Array) -> Int64Array | None:
    """The order of rows by key, compared byte by byte. None if they are in order.

    ``keys`` are binary without nulls.
    """
    data, starts = _parts(keys)
    words = np.empty(len(keys), np.uint64)
    if kernels.words_of(data, starts, words):
        return None
    order = np.argsort(words)
    if not kernels.settle_order(data, starts, words, order):  # too many equal words
        order = np.asarray(pc.sort_indices(keys)).astype(np.int64)
    return order


def checksum_of(keys: pa.Array, partitions: pa.Array, offsets: pa.Array) -> int:
    """The amount that these rows contribute to the table's checksum."""
    data, starts = _parts(keys)
    longest = int(np.diff(starts).max()) if len(keys) else 0
    room: ByteArray = np.empty(longest + 12, np.uint8)
    high, low = kernels.checksum_of(
        data, starts, np.asarray(partitions), np.asarray(offsets), _secret(), room
    )
    return int(high) << 64 | int(low)


def summed(checksum: str, plus: int, minus: int = 0) -> str:
    """The table's checksum after rows were added and removed.

    ``plus`` and ``minus`` are the checksums of the added and the removed rows.
    """
    return f"{(int(checksum or '0', 16) + plus - minus) % _WRAP:032x}"


def _secret() -> UInt64Array:
    """The hash secret, equal for all tables.

    The secret is public, so the checksum detects damage, but not an attacker, who can construct
    other rows with the same checksum.
    """
    return secret_from(hashlib.shake_256(b"lastwrite table").digest(8 * SECRET_WORDS))


def _parts(keys: pa.Array) -> tuple[ByteArray, npt.NDArray[np.int32]]:
    """All keys' bytes in one array, the start of each key in it, and the last key's end."""
    if not len(keys):
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    _, ends, data = keys.buffers()
    starts = np.frombuffer(ends, np.int32)[keys.offset :][: len(keys) + 1]
    return (np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)), starts
