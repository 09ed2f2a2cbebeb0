"""Locate the keys, values and headers of many records, as columns of positions.

No Python code runs per record. ``tests/unit/test_gather.py`` compares the results with
``kafka.format.batch``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i64
from lastwrite.encoding.intrinsics import address
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format.chunk import record_error
from lastwrite.kafka.format.kernels import BAD_OFFSET, BAD_RECORD, OK, TRAILING, _record, _varint
from lastwrite.model.columns import (
    IS_ABORTED,
    IS_CONTROL,
    IS_OLD,
    BatchRun,
    BatchTable,
    ByteArray,
    RecordColumns,
)

_OFFSET, _TIME, _TIME_TYPE, _KEY_AT, _KEY, _VALUE_AT, _VALUE, _HEADERS_AT, _HEADERS, _AT = range(10)
_APPEND_TIME = 8
CREATE_TIME, LOG_APPEND_TIME, NO_TIME = 0, 1, -1


def gather(
    buffer: ByteArray,
    run: BatchRun,
    table: BatchTable,
    span: tuple[int, int],
    *,
    is_committed: bool,
    shift: int = 0,
) -> RecordColumns:
    """The records of ``run`` with offsets in ``span`` (end exclusive), without control records.

    Args:
        buffer: the buffer from ``split``; it has the batches' headers.
        is_committed: skip the batches that ``table`` flags as aborted.
        shift: position of the buffer in the file, added to the positions of batches.

    Raises:
        CorruptLog: a record is malformed.
    """
    count = int(table["records"][run.first : run.last].sum())
    rows = np.empty((10, count), dtype=np.int64)
    skipped = IS_CONTROL | (IS_ABORTED if is_committed else 0)
    filled, code, b, at = _locate(
        run.plain, buffer, table, run.first, run.last, *span, skipped, rows
    )
    if code != OK:
        raise record_error(code, table[b], at)
    rows = rows[:, :filled]
    return RecordColumns(
        data=run.plain,
        offsets=rows[_OFFSET],
        times_ms=rows[_TIME],
        time_types=rows[_TIME_TYPE],
        keys=(rows[_KEY_AT], rows[_KEY]),
        values=(rows[_VALUE_AT], rows[_VALUE]),
        headers=(rows[_HEADERS_AT], rows[_HEADERS]),
        positions=rows[_AT] + shift,
        orders=rows[_OFFSET],
    )


def with_headers(records: RecordColumns) -> RecordColumns:
    """A copy of ``records`` with the positions of the names and values of their record headers."""
    starts, counts = records.headers
    found = np.empty((4, int(counts.sum())), dtype=np.int64)
    _locate_headers(records.data, starts, counts, found)
    return records._replace(header_names=(found[0], found[1]), header_values=(found[2], found[3]))


@njit(cache=True, nogil=True)
def _locate(plain, buffer, table, first, last, low, high, skipped, rows):
    """Write the positions of each selected record's fields to one column of ``rows``.

    Returns (number of records, code, index of the faulty batch, position in ``plain``).
    """
    filled = 0
    source = address(plain)
    for b in range(first, last):
        row = table[b]
        if row.flags & skipped or row.next_offset <= low or row.base_offset >= high:
            continue
        base_time = i64(buffer, row.position + 27)
        max_time = i64(buffer, row.position + 35)
        is_append = (buffer[row.position + 22] & _APPEND_TIME) != 0
        time_type = np.int64(LOG_APPEND_TIME if is_append else CREATE_TIME)
        if row.flags & IS_OLD and not is_append and max_time == -1:
            time_type = np.int64(NO_TIME)
        before = np.int64(-1)
        top = row.next_offset - 1 - row.base_offset
        at = row.plain_start
        for _ in range(row.records):
            stop, stamp, offset_at, delta, key_at, key_length, value_length = _record(
                source, at, row.plain_end
            )
            if stop < 0:
                return filled, BAD_RECORD, b, at
            if delta <= before or delta > top:
                return filled, BAD_OFFSET, b, at
            before = delta
            offset = row.base_offset + delta
            if low <= offset < high:
                _, value_at = _varint(source, key_at + max(key_length, np.int64(0)), stop)
                headers_at = value_at + max(value_length, np.int64(0))
                count, headers_at = _varint(source, headers_at, stop)
                rows[_OFFSET, filled] = offset
                rows[_TIME, filled] = max_time if is_append else base_time + stamp
                rows[_TIME_TYPE, filled] = time_type
                rows[_KEY_AT, filled] = key_at
                rows[_KEY, filled] = key_length
                rows[_VALUE_AT, filled] = value_at
                rows[_VALUE, filled] = value_length
                rows[_HEADERS_AT, filled] = headers_at
                rows[_HEADERS, filled] = count
                rows[_AT, filled] = row.origin
                filled += 1
            at = stop
        if at != row.plain_end:
            return filled, TRAILING, b, at
    return filled, OK, last, np.int64(0)


@njit(cache=True, nogil=True)
def _locate_headers(plain, starts, counts, found):
    """Write positions and lengths of all record headers' names and values. Length -1 is null."""
    filled = 0
    end = np.int64(len(plain))
    source = address(plain)
    for n in range(len(starts)):
        at = starts[n]
        for _ in range(counts[n]):
            length, at = _varint(source, at, end)
            found[0, filled] = at
            found[1, filled] = length
            at += length
            length, at = _varint(source, at, end)
            found[2, filled] = at
            found[3, filled] = length
            at += max(length, np.int64(0))
            filled += 1
