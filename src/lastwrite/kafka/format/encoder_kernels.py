"""The kernel of ``encoder``: writes columns as the records of a batch.

``tests/unit/test_encoder.py`` compares it with ``kafka.format.batch``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.intrinsics import address, copy_bytes, store8
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format.kernels import _put_varint, _varint_size

RECORD_ROOM = 41  # largest size of a record without its key, value and headers
HEADER_ROOM = 20  # largest size of a record header without its name and value


@njit(cache=True, nogil=True, inline="always")
def _put_bytes(target, at, source, begin, length):
    """Write a length (-1 for null) and the bytes; return the position after them."""
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
    """Encode rows ``first`` to ``last``, exclusive, as the records of one batch in ``out``.

    Offsets and timestamps are written relative to row ``first``.

    ``parts`` has four rows: positions of keys in ``data``, lengths of keys, positions of values,
    lengths of values. Length -1 is null. ``headers`` has the same four rows for the names and
    values of all record headers. Record n has the headers from ``header_ends[n]`` to
    ``header_ends[n + 1]``. ``out`` must hold the keys, values and headers, plus RECORD_ROOM bytes
    per record and HEADER_ROOM bytes per header.

    Returns (bytes written, largest timestamp).
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
