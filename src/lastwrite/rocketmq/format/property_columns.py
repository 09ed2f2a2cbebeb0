"""The properties of many messages as a column of maps. The slow version is ``properties.parse``."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import ByteArray, Int64Array

_SMALLEST_ITEM_BYTES = 3  # a name, byte 1, a value


class PropertyItems(NamedTuple):
    """Names and values of the properties of many messages, as slices of one buffer.

    Message i has the items from ``offsets[i]`` to before ``offsets[i + 1]``.
    """

    offsets: npt.NDArray[np.int32]
    name_at: Int64Array
    name_length: Int64Array
    value_at: Int64Array
    value_length: Int64Array


def property_items(data: ByteArray, starts: Int64Array, lengths: Int64Array) -> PropertyItems:
    """Locate the properties of each message.

    A message's properties are in ``data[start : start + length]``. If it repeats a name, only the
    last value is returned.
    """
    # A byte 2 follows each item, except perhaps the last.
    most = int(((lengths + 1) // (_SMALLEST_ITEM_BYTES + 1)).sum())
    offsets = np.zeros(len(starts) + 1, np.int32)
    columns = np.empty((4, most), np.int64)
    count = _items(
        data, np.ascontiguousarray(starts), np.ascontiguousarray(lengths), offsets, columns
    )
    return PropertyItems(offsets, *(np.ascontiguousarray(column[:count]) for column in columns))


@njit(cache=True, nogil=True)
def _items(data, starts, lengths, offsets, columns):
    count = 0
    for i in range(len(starts)):
        first = count
        at = starts[i]
        end = at + lengths[i]
        while at < end:
            stop = at
            middle = np.int64(-1)
            while stop < end and data[stop] != 2:
                if middle < 0 and data[stop] == 1:
                    middle = stop
                stop += 1
            if middle > at and middle + 1 < stop:
                place = _place_of(data, columns, first, count, at, middle - at)
                columns[0, place] = at
                columns[1, place] = middle - at
                columns[2, place] = middle + 1
                columns[3, place] = stop - middle - 1
                if place == count:
                    count += 1
            at = stop + 1
        offsets[i + 1] = count
    return count


@njit(cache=True, nogil=True)
def _place_of(data, columns, first, count, at, length):
    """The index of the message's earlier property with this name. ``count`` if there is none."""
    for place in range(first, count):
        if columns[1, place] == length:
            same = True
            other = columns[0, place]
            for j in range(length):
                if data[other + j] != data[at + j]:
                    same = False
                    break
            if same:
                return place
    return count
