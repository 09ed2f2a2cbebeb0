"""Join slices of a buffer to a column: the bytes of all values, and the end of each value."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.intrinsics import copy_bytes
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import ByteArray, Int64Array


def gathered(
    data: ByteArray, starts: Int64Array, lengths: Int64Array
) -> tuple[ByteArray, npt.NDArray[np.int32]]:
    """The joined bytes of slices ``data[start : start + length]``, and int32 offsets of the values.

    Value i is ``joined[offsets[i] : offsets[i + 1]]``. A negative length counts as 0. Slices are
    inside ``data``, and together smaller than 2 GiB.
    """
    offsets = np.empty(len(lengths) + 1, np.int32)
    joined: ByteArray = np.empty(_total(np.ascontiguousarray(lengths), offsets), np.uint8)
    _gather(data, np.ascontiguousarray(starts), offsets, joined)
    return joined, offsets


def bytes_of(data: ByteArray, starts: Int64Array, lengths: Int64Array) -> list[bytes]:
    """The slices ``data[start : start + length]`` as bytes objects. See ``gathered``."""
    joined, offsets = gathered(data, starts, lengths)
    whole = joined.tobytes()
    return [whole[start:end] for start, end in pairwise(offsets.tolist())]


@njit(cache=True, nogil=True)
def _total(lengths, offsets):
    """Fill ``offsets`` from ``lengths``, and return the last offset."""
    end = np.int64(0)
    offsets[0] = 0
    for i in range(len(lengths)):
        end += max(lengths[i], np.int64(0))
        offsets[i + 1] = end
    return end


@njit(cache=True, nogil=True)
def _gather(data, starts, offsets, out):
    for i in range(len(starts)):
        at = np.int64(offsets[i])
        copy_bytes(out, at, data, starts[i], offsets[i + 1] - at)
