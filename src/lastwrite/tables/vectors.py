"""Deletion vectors: bitmaps with the positions of a file's deleted rows.

Delta's vector files and Iceberg's Puffin blobs contain these bytes:

    ======  ============  =========================================================
    at      type
    ======  ============  =========================================================
    0       u32, big      bytes of magic and bitmap together
    4       u32, little   magic, 1681511377
    8       u64, little   count of bitmaps; then for each, by ascending key:
              u32, little   key: the upper half of its positions
              Roaring       the lower halves, Roaring's portable form
    end-4   u32, big      CRC-32 of magic and bitmap
    ======  ============  =========================================================

The count and the bitmaps are Roaring's portable form of 64 bits, which pyroaring reads and writes.

Source: Delta's protocol, Deletion Vector Format; Iceberg's Puffin, ``deletion-vector-v1``;
Roaring's format specification.
"""

from __future__ import annotations

import zlib
from array import array
from typing import Final

import numpy as np
from pyroaring import BitMap64

from lastwrite.errors import CommitConflict, CorruptLog
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.tables.files import locate

MAGIC: Final = (1681511377).to_bytes(4, "little")
AROUND: Final = 8  # bytes of the length and the CRC, which the stored length does not include
_REMEDY = "restore the file from a copy, or rebuild the table with --anew"


def encode(positions: Int64Array) -> bytes:
    """Encode positions as a deletion vector. At least one position is required."""
    bitmap = BitMap64(array("Q", positions.astype("<u8").tobytes()))
    counted = MAGIC + bitmap.serialize()
    return b"".join(
        (len(counted).to_bytes(4, "big"), counted, zlib.crc32(counted).to_bytes(4, "big"))
    )


def decode(vector: bytes, where: str, at: int = 0) -> Int64Array:
    """Decode the positions in a deletion vector, ascending.

    ``where`` and ``at`` are the vector's file and byte, for errors.

    Raises:
        CorruptLog: the bytes are no vector, or are damaged.
    """
    counted = vector[4:-4]
    if int.from_bytes(vector[:4], "big") != len(counted) or counted[:4] != MAGIC:
        raise CorruptLog("no deletion vector begins at this position", at, where, _REMEDY)
    if int.from_bytes(vector[-4:], "big") != zlib.crc32(counted):
        raise CorruptLog("the deletion vector has a wrong CRC", at, where, _REMEDY)
    try:
        bitmap = BitMap64.deserialize(counted[4:])
    except (ValueError, IndexError) as error:
        raise CorruptLog(
            f"the bitmap of the deletion vector is damaged: {error}", at, where, _REMEDY
        ) from error
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)


def read(path: str, at: int, size_bytes: int, count: int) -> Int64Array:
    """Read the positions in the deletion vector at byte ``at`` of a file, ascending.

    Raises:
        CorruptLog: the vector is missing or damaged, or does not have ``count`` positions.
    """
    store, key = locate(path)
    target: ByteArray = np.empty(size_bytes, np.uint8)
    try:
        store.read_into(key, target, at)
    except CommitConflict as error:
        raise CorruptLog("the file of the deletion vector is missing", at, path, _REMEDY) from error
    positions = decode(target.tobytes(), path, at)
    if len(positions) != count:
        raise CorruptLog(
            f"the deletion vector has {len(positions)} rows, but the table's metadata has {count}",
            at,
            path,
            _REMEDY,
        )
    return positions
