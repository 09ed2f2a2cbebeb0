"""Kernels that frame entries as records of a compacted ledger, and that renumber records.

An entry of the object is ``i32 size | i64 entry id``, then the record: ``u32 id size |
MessageIdData | u32 body size | body``. ``compacted.py`` is the readable version of this code;
``offload.py`` describes the blocks around the entries.

Source: Pulsar 4.2.4; docs/formats/pulsar.md, "Compacted ledger" and "Offloaded ledger".
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i64, u32
from lastwrite.encoding.intrinsics import (
    address,
    copy_bytes,
    store8,
    store32,
    store64,
    swap32,
    swap64,
)
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import ROW_BASE_OFFSET, ROW_POSITION, ROW_SIZE, ByteArray
from lastwrite.pulsar.format.kernels import put_varint
from lastwrite.pulsar.format.protobuf import put

ENTRY_HEAD_BYTES = 12
_LEDGER_TAG, _ENTRY_TAG, _PARTITION = 0x08, 0x10, 3


def id_tail(partition: int) -> ByteArray:
    """The encoded partition number at the end of a topic's message ids.

    Partition -1 means that the topic has no partitions.
    """
    return np.frombuffer(put(_PARTITION, partition), dtype=np.uint8)


@njit(cache=True, nogil=True)
def _varint_bytes(value):
    size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@njit(cache=True, nogil=True)
def framed_sizes(rows, tail_bytes, sizes):
    """Store in ``sizes`` the bytes that each row's entry takes in the object, including its head.

    ``rows`` has the columns of ``rebuild``: position, size, next offset, timestamp, base offset
    (``ledger << 32 | entry``).
    """
    for i in range(len(rows)):
        ledger = rows[i, ROW_BASE_OFFSET] >> 32
        entry = rows[i, ROW_BASE_OFFSET] & 0xFFFFFFFF
        id_bytes = 2 + _varint_bytes(ledger) + _varint_bytes(entry) + tail_bytes
        sizes[i] = ENTRY_HEAD_BYTES + 8 + id_bytes + rows[i, ROW_SIZE]


@njit(cache=True, nogil=True)
def frame(data, rows, first, last, tail, entry_id, out, at):
    """Write ``rows[first:last]`` as framed entries to ``out[at:]``, with ids from ``entry_id`` on.

    Returns the end position.
    """
    source, target, end = address(data), address(out), address(tail)
    for i in range(first, last):
        ledger = rows[i, ROW_BASE_OFFSET] >> 32
        entry = rows[i, ROW_BASE_OFFSET] & 0xFFFFFFFF
        body = rows[i, ROW_SIZE]
        id_bytes = 2 + _varint_bytes(ledger) + _varint_bytes(entry) + len(tail)
        store32(target, at, swap32(np.uint64(8 + id_bytes + body)))
        store64(target, at + 4, swap64(np.uint64(entry_id + i - first)))
        store32(target, at + 12, swap32(np.uint64(id_bytes)))
        store8(target, at + 16, np.uint64(_LEDGER_TAG))
        at = put_varint(target, at + 17, ledger)
        store8(target, at, np.uint64(_ENTRY_TAG))
        at = put_varint(target, at + 1, entry)
        copy_bytes(target, at, end, 0, len(tail))
        store32(target, at + len(tail), swap32(np.uint64(body)))
        at += len(tail) + 4
        copy_bytes(target, at, source, rows[i, ROW_POSITION], body)
        at += body
    return at


@njit(cache=True, nogil=True)
def renumber(data, at, end, shift):
    """Add ``shift`` to the entry ids in ``data[at:end]``.

    Returns the number of entries, or -1 if one is incomplete.
    """
    target = address(data)
    count = 0
    while at < end:
        if end - at < ENTRY_HEAD_BYTES or u32(target, at) > end - at - ENTRY_HEAD_BYTES:
            return -1
        store64(target, at + 4, swap64(np.uint64(i64(target, at + 4) + shift)))
        at += ENTRY_HEAD_BYTES + u32(target, at)
        count += 1
    return count
