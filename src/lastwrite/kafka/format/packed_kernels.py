"""Kernels over compressed batches: many batches per call.

``open_many`` decompresses neighbouring batches, ``thin_many`` writes the kept records,
``pack_many`` compresses them, ``seal_many`` writes the headers.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding import lz4_frame, zstd_frame
from lastwrite.encoding.intrinsics import address
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format.kernels import HEADER_BYTES, OK, SMALLEST_RECORD, seal, thin
from lastwrite.model.columns import IS_OLD, KEEPS_LAST

LZ4 = 3
ZSTD = 4

# Columns of the row that ``thin_many`` writes for each batch.
START = 0  # start of the kept records in ``out``
END = 1  # end of the kept records in ``out``
KEPT = 2  # number of kept records
REFERENCE = 3  # new base timestamp
LARGEST = 4  # largest timestamp
FIRST = 5  # offset delta of the first kept record
LAST = 6  # offset delta of the last kept record
THINNED = 7  # number of columns


@njit(cache=True, nogil=True)
def open_many(data, table, first, last, plain, used, enough, library):
    """Decompress the batches of ``table[first:last]`` to ``plain[used:]``.

    Stops when ``enough`` bytes are used. Stops also before a batch that is neither lz4 nor zstd,
    has unusual frame features (see ``encoding.lz4_frame`` and ``zstd_frame``), is too large for
    ``plain``, or is too small for its record count. ``library`` is ``words`` of
    ``codec_libraries.Contexts``. Sets ``plain_start`` and ``plain_end``.

    Returns (index of the first batch not opened, bytes used).
    """
    source = address(data)
    target = address(plain)
    room = len(plain)
    b = first
    while b < last and used < enough:
        row = table[b]
        at = row.position + HEADER_BYTES
        stop = row.position + row.size
        end = np.int64(-1)
        if row.codec == LZ4:
            end = lz4_frame.decode_frame(source, at, stop, len(data), target, used, room)
        elif row.codec == ZSTD:
            end = zstd_frame.decode_frame(library, source, at, stop, target, used, room)
        if end < 0 or row.records * SMALLEST_RECORD > end - used:
            break
        row.plain_start = used
        row.plain_end = end
        used = end
        b += 1
    return b, used


@njit(cache=True, nogil=True)
def thin_many(plain, data, table, first, last, keep, keep_at, horizons, out, thinned):
    """Write the kept records of the batches ``table[first:last]`` to ``out``.

    ``plain`` has the decompressed records and ``data`` the headers. ``keep[keep_at:]`` has a byte
    per record, and ``horizons`` has an item per batch of ``table``. ``thinned`` receives a row per
    batch. ``out`` must be large enough for all batches; see ``thin``.

    Returns (index of the next batch, keep_at, code).
    """
    at = np.int64(0)
    for b in range(first, last):
        row = table[b]
        begin = at
        at, kept, reference, largest, code, place, first_delta, last_delta = thin(
            plain,
            data,
            row.position,
            row.plain_start,
            row.plain_end,
            row.records,
            keep,
            keep_at,
            horizons[b],
            (row.flags & IS_OLD) != 0,
            out,
            at,
        )
        if code != OK:
            return b, keep_at, code
        note = thinned[b - first]
        note[START] = begin
        note[END] = at
        note[KEPT] = kept
        note[REFERENCE] = reference
        note[LARGEST] = largest
        note[FIRST] = first_delta
        note[LAST] = last_delta
        keep_at += row.records
    return last, keep_at, OK


@njit(cache=True, nogil=True)
def pack_many(table, first, b, last, thin, thinned, out, at, sizes, library):
    """Compress the records that ``thin_many`` wrote to ``thin``, for the batches ``table[b:last]``.

    Writes the batches to ``out[at:]``, with space for a header before each, and their sizes to
    ``sizes``. Row 0 of ``thinned`` and ``sizes`` is for batch ``first``. Stops before a batch of
    another codec. Stops also before a batch that would become larger, because ``out`` has no space
    for it.

    Returns (index of the first batch not packed, position in ``out``).
    """
    source = address(thin)
    target = address(out)
    room = len(out)
    while b < last and at + HEADER_BYTES < room:
        row = table[b]
        start = thinned[b - first, START]
        stop = thinned[b - first, END]
        end = np.int64(-1)
        begin = at + HEADER_BYTES
        if row.codec == LZ4:
            end = lz4_frame.encode_frame(library, source, start, stop, target, begin, room)
        elif row.codec == ZSTD:
            end = zstd_frame.encode_frame(library, source, start, stop, target, begin, room)
        if end < 0 or end > at + row.size:
            break
        sizes[b - first] = end - at
        at = end
        b += 1
    return b, at


@njit(cache=True, nogil=True)
def seal_many(data, table, first, last, horizons, thinned, out, at, sizes, rows, filled):
    """Write the headers of the rebuilt batches, which are consecutive in ``out[at:]``.

    ``sizes`` has the batches' sizes in bytes. Writes one row per batch, beginning at
    ``rows[filled]``, as ``kernels.rebuild`` does.
    """
    for i in range(last - first):
        row = table[first + i]
        note = thinned[i]
        base = row.base_offset
        top = row.next_offset - 1 - base
        if row.flags & IS_OLD:
            base += note[FIRST]
            top = (top if row.flags & KEEPS_LAST else note[LAST]) - note[FIRST]
        seal(
            data,
            row.position,
            out,
            at,
            at + sizes[i],
            note[KEPT],
            note[REFERENCE],
            note[LARGEST],
            horizons[first + i],
            base,
            top,
        )
        rows[filled, 0] = at
        rows[filled, 1] = sizes[i]
        rows[filled, 2] = base + top + 1
        rows[filled, 3] = note[LARGEST]
        rows[filled, 4] = base
        at += sizes[i]
        filled += 1
