"""Kernels over arrays of record positions (segment, byte, order), sorted by key fingerprint.

A key's fingerprint is two numbers: ``lanes`` and ``other_lanes``. See module ``places``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, operator"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.fingerprint import fingerprint
from lastwrite.encoding.intrinsics import address
from lastwrite.encoding.kernel import njit


@njit(cache=True, nogil=True)
def put(
    data,
    key_at,
    key_lengths,
    value_lengths,
    shortest,
    record_positions,
    record_orders,
    record_times,
    secret,
    segment,
    lanes,
    other_lanes,
    segments,
    positions,
    orders,
    times,
    filled,
):
    """Write an index entry for each record that has a key, starting at row ``filled``.

    Returns the index after the last entry.
    """
    source = address(data)
    for n in range(len(key_at)):
        if key_lengths[n] < 0:
            continue
        one, two = fingerprint(source, key_at[n], key_lengths[n], secret)
        position = record_positions[n]
        lanes[filled] = one
        other_lanes[filled] = np.uint32(two >> np.uint64(32))
        segments[filled] = segment
        positions[filled] = ~position if value_lengths[n] < shortest else position
        orders[filled] = record_orders[n]
        times[filled] = record_times[n]
        filled += 1
    return filled


@njit(cache=True, nogil=True)
def reduce(lanes, other_lanes, segments, positions, orders, times, partitions, ranks, order):
    """Remove the rows of superseded writes from ``order``, which sorts the rows by fingerprint.

    Only the last write of each key in each partition is left. Returns the number of rows left.
    """
    filled = start = 0
    while start < len(order):
        lane, first, end = lanes[order[start]], filled, start
        while end < len(order) and lanes[order[end]] == lane:
            row = order[end]
            segment, at = segments[row], first
            while at < filled and (
                other_lanes[order[at]] != other_lanes[row]
                or partitions[segments[order[at]]] != partitions[segment]
            ):
                at += 1
            if at == filled:
                order[filled] = row
                filled += 1
            else:
                other = segments[order[at]]
                if ranks[segment] > ranks[other] or (
                    ranks[segment] == ranks[other] and orders[row] > orders[order[at]]
                ):
                    order[at] = row
            end += 1
        start = end
    return filled


@njit(cache=True, nogil=True)
def pick(orders, positions, start, end, has_deletes, found, filled):
    """Append the orders (numbers in the segment) of records in bytes ``[start, end)`` to ``found``.

    Returns the new number of entries in ``found``, which was ``filled`` before.
    """
    for n in range(len(orders)):
        position = positions[n]
        if position < 0:
            if not has_deletes:
                continue
            position = ~position
        if start <= position < end:
            found[filled] = orders[n]
            filled += 1
    return filled


@njit(cache=True, nogil=True)
def flush(lanes, other_lanes, segments, positions, times, partitions, wins):
    """Clear ``wins`` for rows that a later write in another partition supersedes.

    The rows must be the result of ``reduce``. Returns how many winners are not deletes.
    """
    live = 0
    for i in range(len(lanes)):
        j = i + 1
        while j < len(lanes) and lanes[j] == lanes[i]:
            if other_lanes[j] == other_lanes[i] and wins[i] and wins[j]:
                one = times[i] > times[j] or (
                    times[i] == times[j] and partitions[segments[i]] > partitions[segments[j]]
                )
                wins[j if one else i] = False
            j += 1
        live += wins[i] and positions[i] >= 0
    return live


@njit(cache=True, nogil=True)
def rows_of(lanes, other_lanes, asked, other_asked, out):
    """Write the index rows of all requested fingerprints to ``out``, each once, until it is full.

    Returns the number of such rows. The requested fingerprints must be sorted.
    """
    filled = 0
    for n in range(len(asked)):
        again = n - 1
        while again >= 0 and asked[again] == asked[n] and other_asked[again] != other_asked[n]:
            again -= 1
        if again >= 0 and asked[again] == asked[n]:
            continue
        row = find(lanes, other_lanes, asked[n], other_asked[n])
        while row >= 0 and row < len(lanes) and lanes[row] == asked[n]:
            if other_lanes[row] == other_asked[n]:
                if filled < len(out):
                    out[filled] = row
                filled += 1
            row += 1
    return filled


@njit(cache=True, nogil=True)
def find(lanes, other_lanes, lane, other_lane):
    """The first index row with a fingerprint, or -1 if there is none."""
    low, high = 0, len(lanes)
    # Interpolation search: fingerprints are evenly distributed.
    while high - low > 8:
        bottom, top = lanes[low], lanes[high - 1]
        if lane < bottom or lane > top:
            return np.int64(-1)
        share = np.float64(lane - bottom) / max(np.float64(top - bottom), 1.0)
        guess = low + np.int64(share * np.float64(high - 1 - low))
        span = max(8, np.int64(np.sqrt(np.float64(high - low))))
        left, right = max(low, guess - span), min(high, guess + span)
        if lanes[left] >= lane:
            high = left + 1  # an earlier row may have the same fingerprint
        elif lanes[right - 1] < lane:
            low = right
        else:
            low, high = left, right
            break
    # binary search in the remaining rows
    while low < high:
        middle = (low + high) >> 1
        if lanes[middle] < lane:
            low = middle + 1
        else:
            high = middle
    while low < len(lanes) and lanes[low] == lane:
        if other_lanes[low] == other_lane:
            return np.int64(low)
        low += 1
    return np.int64(-1)


@njit(cache=True, nogil=True)
def mark_known(
    lanes, other_lanes, segments, asked, other_asked, asked_segments, partitions, is_known
):
    """Set ``is_known`` for each requested fingerprint with a row in the request's partition."""
    for n in range(len(asked)):
        row = find(lanes, other_lanes, asked[n], other_asked[n])
        while row >= 0 and row < len(lanes) and lanes[row] == asked[n]:
            if (
                other_lanes[row] == other_asked[n]
                and partitions[segments[row]] == partitions[asked_segments[n]]
            ):
                is_known[n] = True
                break
            row += 1
