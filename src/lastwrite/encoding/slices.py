"""Slices of a buffer, laid one behind another as a column: bytes, and where each value of a column
ends.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from lastwrite.model.columns import ByteArray, Int64Array


def gathered(
    data: ByteArray, starts: Int64Array, lengths: Int64Array
) -> tuple[ByteArray, npt.NDArray[np.int32]]:
    """The slices ``data[start : start + length]`` joined, and int32 offsets: value i is
    ``[offsets[i], offsets[i + 1])``.

    A negative length counts as 0. Slices lie within ``data``, and all together are below 2 GiB.
    """
    sizes = np.maximum(lengths, 0)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    joined: ByteArray = np.empty(int(offsets[-1]), np.uint8)
    _gather(data, np.ascontiguousarray(starts), offsets, joined)
    return joined, offsets


@njit(cache=True, nogil=True)
def _gather(data, starts, offsets, out):
    for i in range(len(starts)):
        count = offsets[i + 1] - offsets[i]
        out[offsets[i] : offsets[i + 1]] = data[starts[i] : starts[i] + count]
