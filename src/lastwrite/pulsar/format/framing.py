"""Kernels over the bytes of a compacted ledger's data object: entries framed as records, and
records renumbered.

An entry of the object is ``i32 size | i64 entry id``, then the record: ``u32 id size |
MessageIdData | u32 body size | body`` (``compacted.py`` is the slow twin, ``offload.py`` has the
blocks around the entries).

Source: Pulsar 4.2.4; docs/formats/pulsar.md, "Compacted ledger" and "Offloaded ledger".
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from lastwrite.model.columns import ROW_BASE_OFFSET, ROW_POSITION, ROW_SIZE, ByteArray
from lastwrite.pulsar.format.protobuf import put

ENTRY_HEAD_BYTES = 12
_LEDGER_TAG, _ENTRY_TAG, _PARTITION = 0x08, 0x10, 3


def id_tail(partition: int) -> ByteArray:
    """What all ids of a topic end with: the partition, -1 of a topic without partitions, as a
    broker writes it.
    """
    return np.frombuffer(put(_PARTITION, partition), dtype=np.uint8)


@njit(cache=True, nogil=True, inline="always")
def _put32(out, at, value):
    out[at] = (value >> 24) & 0xFF
    out[at + 1] = (value >> 16) & 0xFF
    out[at + 2] = (value >> 8) & 0xFF
    out[at + 3] = value & 0xFF


@njit(cache=True, nogil=True, inline="always")
def _put64(out, at, value):
    _put32(out, at, (value >> 32) & 0xFFFFFFFF)
    _put32(out, at + 4, value & 0xFFFFFFFF)


@njit(cache=True, nogil=True)
def _varint_bytes(value):
    size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


@njit(cache=True, nogil=True)
def _put_varint(out, at, value):
    while value >= 0x80:
        out[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@njit(cache=True, nogil=True)
def framed_sizes(rows, tail_bytes, sizes):
    """The bytes that each row's entry will take in the object, its head included, to ``sizes``.

    ``rows`` are those of ``rebuild``: position, size, next offset, timestamp, base offset (``ledger
    << 32 | entry``).
    """
    for i in range(len(rows)):
        ledger = rows[i, ROW_BASE_OFFSET] >> 32
        entry = rows[i, ROW_BASE_OFFSET] & 0xFFFFFFFF
        id_bytes = 2 + _varint_bytes(ledger) + _varint_bytes(entry) + tail_bytes
        sizes[i] = ENTRY_HEAD_BYTES + 8 + id_bytes + rows[i, ROW_SIZE]


@njit(cache=True, nogil=True)
def frame(data, rows, first, last, tail, entry_id, out, at):
    """Write the entries of ``rows[first:last]`` to ``out`` from ``at`` on, numbered from
    ``entry_id``; their end.
    """
    for i in range(first, last):
        ledger = rows[i, ROW_BASE_OFFSET] >> 32
        entry = rows[i, ROW_BASE_OFFSET] & 0xFFFFFFFF
        body = rows[i, ROW_SIZE]
        id_bytes = 2 + _varint_bytes(ledger) + _varint_bytes(entry) + len(tail)
        _put32(out, at, 8 + id_bytes + body)
        _put64(out, at + 4, entry_id + i - first)
        _put32(out, at + 12, id_bytes)
        out[at + 16] = _LEDGER_TAG
        to = _put_varint(out, at + 17, ledger)
        out[to] = _ENTRY_TAG
        to = _put_varint(out, to + 1, entry)
        for n in range(len(tail)):
            out[to + n] = tail[n]
        to += len(tail)
        _put32(out, to, body)
        to += 4
        source = rows[i, ROW_POSITION]
        out[to : to + body] = data[source : source + body]
        at = to + body
    return at


@njit(cache=True, nogil=True)
def renumber(data, at, end, shift):
    """Add ``shift`` to the ids of the whole entries in ``data[at:end]``; how many there are, -1:
    they are not whole.
    """
    count = 0
    while at < end:
        if end - at < ENTRY_HEAD_BYTES:
            return -1
        size = (
            np.int64(data[at]) << 24
            | np.int64(data[at + 1]) << 16
            | np.int64(data[at + 2]) << 8
            | data[at + 3]
        )
        if size > end - at - ENTRY_HEAD_BYTES:
            return -1
        number = np.int64(0)
        for n in range(8):
            number = number << 8 | np.int64(data[at + 4 + n])
        _put64(data, at + 4, number + shift)
        at += ENTRY_HEAD_BYTES + size
        count += 1
    return count
