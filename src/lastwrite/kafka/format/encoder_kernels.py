"""The kernel of ``encoder``: columns become records. ``tests/unit/test_encoder.py`` holds it
against ``kafka.format.batch``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.intrinsics import address, copy_bytes, store8
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format.kernels import _put_varint, _varint_size

RECORD_ROOM = 41  # bytes that a record may need beside its key, its value and its headers
HEADER_ROOM = 20  # and one of its headers beside name and value


@njit(cache=True, nogil=True, inline="always")
def _put_bytes(target, at, source, begin, length):
    """A length, -1 for null, and the bytes; returns the position behind."""
    at = _put_varint(target, at, np.int64(max(length, -1)))
    if length > 0:
        copy_bytes(target, at, source, begin, length)
        at += length
    return at


@njit(cache=True, nogil=True, inline="always")
def _bytes_size(length):
    return _varint_size(np.int64(max(length, -1))) + max(length, np.int64(0))


@njit(cache=True, nogil=True)
def put_records(data, offsets, times, parts, headers, header_ends, first, last, out):
    """Write rows ``first`` to ``last``, exclusive, as the records of one batch to ``out``: from the
    offset and the time of the first one on.

    ``parts``: where keys and values of ``data`` begin, and their lengths, -1 for null: a row of
    each; ``headers`` likewise of names and values of all headers, of which row n has those from
    ``header_ends[n]`` to ``header_ends[n + 1]``. ``out`` has room for RECORD_ROOM and HEADER_ROOM.

    Returns (bytes written, the largest time).
    """
    source = address(data)
    target = address(out)
    at = np.int64(0)
    base = offsets[first]
    begin = times[first]
    largest = begin
    for n in range(first, last):
        largest = max(largest, times[n])
        stamp = times[n] - begin
        delta = offsets[n] - base
        count = header_ends[n + 1] - header_ends[n]
        length = 1 + _varint_size(stamp) + _varint_size(delta)
        length += _bytes_size(parts[1, n]) + _bytes_size(parts[3, n]) + _varint_size(count)
        for h in range(header_ends[n], header_ends[n + 1]):
            length += _bytes_size(headers[1, h]) + _bytes_size(headers[3, h])
        at = _put_varint(target, at, length)
        store8(target, at, np.uint64(0))
        at = _put_varint(target, at + 1, stamp)
        at = _put_varint(target, at, delta)
        at = _put_bytes(target, at, source, parts[0, n], parts[1, n])
        at = _put_bytes(target, at, source, parts[2, n], parts[3, n])
        at = _put_varint(target, at, count)
        for h in range(header_ends[n], header_ends[n + 1]):
            at = _put_bytes(target, at, source, headers[0, h], headers[1, h])
            at = _put_bytes(target, at, source, headers[2, h], headers[3, h])
    return at, largest
