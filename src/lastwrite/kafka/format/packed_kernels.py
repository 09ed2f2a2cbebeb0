"""Kernels over batches whose records are compressed: many batches a call, where the codec is not
Python's to call.

``open_many`` puts the records of neighbouring batches in the clear, ``thin_many`` writes those that
stay, ``pack_many`` compresses these, ``seal_many`` makes the headers.
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

# Columns of what ``thin_many`` says of a batch.
START = 0  # of its kept records, in ``out``
END = 1
KEPT = 2
REFERENCE = 3  # reference time
LARGEST = 4  # timestamp
FIRST = 5  # offset deltas of the first and the last kept record
LAST = 6
THINNED = 7  # columns


@njit(cache=True, nogil=True)
def open_many(data, table, first, last, plain, used, enough, library):
    """Decompress the batches of ``table[first:last]`` to ``plain`` from ``used`` on, until
    ``enough`` bytes are there. ``library``: the words of ``codec_libraries.Contexts``.

    Stops in front of what is neither lz4 nor zstd of the common kind, does not fit, or holds less
    than its record count: see ``encoding.lz4_frame`` and ``zstd_frame``. Sets ``plain_start`` and
    ``plain_end``; returns (batches done, bytes used).
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
    """Write what stays of the batches ``table[first:last]``, opened in ``plain``, one behind the
    other to ``out``.

    ``data`` has their headers, ``keep`` a byte a record from ``keep_at`` on, ``horizons`` a row a
    batch of ``table``; ``thinned`` takes a row a batch. ``out`` must hold what ``thin`` may need
    for all of them.

    Returns (batches done, keep_at, code).
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
    """Compress what ``thin_many`` left in ``thin`` of the batches ``table[b:last]``, each behind
    room for its header, one behind the other to ``out[at:]``; their bytes to ``sizes``.

    ``thinned`` and ``sizes`` have a row a batch from ``first`` on. Stops in front of a batch that
    is of another codec or larger than it was: those behind it are promised their room. Returns
    (batches done, position in ``out``).
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
    """Write the headers of rebuilt batches of ``sizes`` bytes that lie one behind the other in
    ``out[at:]``.

    A row each to ``rows`` from ``filled`` on, as ``kernels.rebuild`` does.
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
