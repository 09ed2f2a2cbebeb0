"""The version of each keyed record, for topics that are compacted by timestamp or header.

A version is a signed 64-bit number: the record's timestamp, or the value of its last header with a
given name, if that has exactly 8 bytes, big-endian. A record without such a header has the least
possible version.

Versions need another pass over the records, so they are computed only for topics with
``compaction.strategy``.

Source: KIP-280 (accepted, never shipped); docs/decisions/compaction-strategy.md.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i64
from lastwrite.encoding.intrinsics import address, load8, load64, swap64
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format.kernels import _record, _varint
from lastwrite.model.columns import IS_ABORTED, IS_CONTROL

NO_VERSION = np.iinfo(np.int64).min
_APPEND_TIME = 8


@njit(cache=True, nogil=True)
def _header_version(data, at, end, name, name_at, name_length):
    """The version in the last header named ``name``, among the headers that begin at ``at``."""
    version = np.int64(NO_VERSION)
    count, at = _varint(data, at, end)
    for _ in range(count):
        length, at = _varint(data, at, end)
        same = length == name_length
        if same:
            for n in range(length):
                if load8(data, at + n) != load8(name, name_at + n):
                    same = False
                    break
        at += length
        length, at = _varint(data, at, end)
        if same:
            version = np.int64(swap64(load64(data, at))) if length == 8 else np.int64(NO_VERSION)
        if length > 0:
            at += length
    return version


@njit(cache=True, nogil=True)
def versions(buffer, plain, table, first, last, ordinal, by_header, name, entries):
    """Write each record's version to the third column of ``entries``.

    ``walk`` wrote the entries for the batches ``table[first:last]``. ``plain`` has the records of
    these batches and ``buffer`` their headers. ``ordinal`` is the ordinal that ``walk`` gave the
    first record. ``name`` is the header's name, UTF-8.
    """
    source = address(plain)
    names = address(name)
    entry = 0
    seen = ordinal
    for b in range(first, last):
        row = table[b]
        if row.flags & (IS_CONTROL | IS_ABORTED):
            seen += row.records
            continue
        append_time = (buffer[row.position + 22] & _APPEND_TIME) != 0
        base = i64(buffer, row.position + 27)
        at = row.plain_start
        end = row.plain_end
        for _ in range(row.records):
            stop, stamp, offset_at, delta, key_at, key_length, value_length = _record(
                source, at, end
            )
            if entry < len(entries) and np.int64(entries[entry, 1] & np.uint64(0xFFFFFFFF)) == seen:
                if by_header:
                    length, place = _varint(source, key_at + key_length, stop)
                    place += max(length, np.int64(0))
                    version = _header_version(source, place, stop, names, np.int64(0), len(name))
                else:
                    version = row.max_timestamp if append_time else base + stamp
                entries[entry, 2] = np.uint64(version)
                entry += 1
            seen += 1
            at = stop
