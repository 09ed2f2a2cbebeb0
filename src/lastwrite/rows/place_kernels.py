"""Kernels over columns of places, sorted by fingerprint; see ``places``."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, operator"

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def reduce(lanes, other_lanes, segments, positions, offsets, times, partitions, is_last, stays):
    """Clear ``stays`` of what a later write of the same partition supersedes; ``is_last``: of any
    partition, and of deletes.
    """
    start = 0
    while start < len(lanes):
        end = start + 1
        while end < len(lanes) and lanes[end] == lanes[start]:
            end += 1
        for i in range(start, end):
            for j in range(i + 1, end):
                if not stays[i]:
                    break
                if not stays[j] or other_lanes[i] != other_lanes[j]:
                    continue
                if partitions[segments[i]] == partitions[segments[j]]:
                    stays[j if offsets[i] > offsets[j] else i] = False
        if is_last:
            for i in range(start, end):
                for j in range(i + 1, end):
                    if not stays[i]:
                        break
                    if not stays[j] or other_lanes[i] != other_lanes[j]:
                        continue
                    one = times[i] > times[j] or (
                        times[i] == times[j] and partitions[segments[i]] > partitions[segments[j]]
                    )
                    stays[j if one else i] = False
            for i in range(start, end):
                stays[i] &= positions[i] >= 0
        start = end


@njit(cache=True, nogil=True)
def find(lanes, other_lanes, lane, other_lane):
    """The row of a fingerprint, or -1."""
    low, high = 0, len(lanes)
    # Fingerprints are spread evenly, so the place is nearly known.
    while high - low > 8:
        bottom, top = lanes[low], lanes[high - 1]
        if lane < bottom or lane > top:
            return np.int64(-1)
        share = np.float64(lane - bottom) / max(np.float64(top - bottom), 1.0)
        guess = low + np.int64(share * np.float64(high - 1 - low))
        span = max(8, np.int64(np.sqrt(np.float64(high - low))))
        left, right = max(low, guess - span), min(high, guess + span)
        if lanes[left] > lane:
            high = left
        elif lanes[right - 1] < lane:
            low = right
        else:
            low, high = left, right
            break
    # and by halves from there on
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
