"""Confluent's frame: the prefix with the schema id of a key or a value.

    00 | id, 4 bytes, big-endian        | message indexes, for Protobuf only
    01 | GUID, 16 bytes                 | message indexes, for Protobuf only

The frame precedes the value, or is in the header ``__key_schema_id`` or ``__value_schema_id``.
Message indexes are zig-zag numbers preceded by their count. A single 00 means the first message.

Source: Confluent Platform 8.1, "Wire format"; confluent-kafka-python 2.16 ``SchemaId``.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import uuid
from typing import Any, Final, NamedTuple

import numpy as np

from lastwrite.decoding.protobuf_kernels import read_varint
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import ByteArray, Int64Array

HEADERS: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}
_LARGEST = 17 + 2 * 32  # most bytes of a frame: room for deeply nested messages
_BY_ID, _BY_GUID = 5, 17


class Frame(NamedTuple):
    """A decoded frame.

    ``schema`` is an id or a GUID, as in a registry's paths. ``indexes`` are the message indexes,
    one for each level of nesting.
    """

    schema: str
    indexes: tuple[int, ...]


@njit(cache=True, nogil=True)
def frame_lengths(data, starts, ends, has_indexes, lengths):  # type: ignore[no-untyped-def]
    """Write the length in bytes of each value's frame to ``lengths``. 0 means no frame."""
    for i in range(len(starts)):
        at, end = starts[i], ends[i]
        lengths[i] = 0
        if at >= end or data[at] > 1:
            continue
        then = at + (_BY_ID if data[at] == 0 else _BY_GUID)
        if then > end:
            continue
        if has_indexes:
            place = data.ctypes.data
            many, then = read_varint(place, then, end)
            if then < 0 or many & np.uint64(1):
                continue
            many >>= np.uint64(1)
            while many > 0 and 0 < then <= at + _LARGEST:
                _, then = read_varint(place, then, end)
                many -= np.uint64(1)
        if 0 < then <= at + _LARGEST:
            lengths[i] = then - at


def frames_of(
    data: ByteArray, starts: Int64Array, ends: Int64Array, has_indexes: bool
) -> tuple[Int64Array, Int64Array, list[Frame]]:
    """Decode the frames of values.

    Returns three things: the length in bytes of each value's frame, 0 for a value without a frame;
    for each frame, its index in the list of distinct frames; and this list.
    """
    lengths = np.empty(len(starts), np.int64)
    frame_lengths(data, starts, ends, has_indexes, lengths)
    rows = np.flatnonzero(lengths)
    width = int(lengths.max(initial=0))
    places = starts[rows, None] + np.arange(width)
    heads = np.where(
        np.arange(width) < lengths[rows, None], data[np.minimum(places, len(data) - 1)], 0
    )
    if not len(rows) or (heads == heads[0]).all():
        which, first = np.zeros(len(rows), np.int64), np.arange(min(len(rows), 1))
    else:
        words: Any = np.zeros((len(rows), -(-width // 8) * 8), np.uint8)
        words[:, :width] = heads
        words = words.view(np.uint64)
        _, first, which = np.unique(
            words[:, 0] if words.shape[1] == 1 else words,
            axis=0,
            return_index=True,
            return_inverse=True,
        )
    found = [decode_frame(heads[n, : lengths[rows[n]]].astype(np.uint8).tobytes()) for n in first]
    return lengths, which.reshape(-1), found


def decode_frame(head: bytes) -> Frame:
    """Decode a frame whose length was determined by ``frame_lengths``."""
    if head[0] == 0:
        schema, rest = str(int.from_bytes(head[1:_BY_ID], "big")), head[_BY_ID:]
    else:
        schema, rest = str(uuid.UUID(bytes=head[1:_BY_GUID])), head[_BY_GUID:]
    numbers, at = [], 0
    while at < len(rest):
        folded = shift = 0
        while True:
            folded |= (rest[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if rest[at - 1] < 0x80:
                break
        numbers.append(folded >> 1 ^ -(folded & 1))
    return Frame(schema, tuple(numbers[1:]) or (0,))
