"""Columns with the positions of the keys, bodies and properties of many messages.

Compressed bodies and inner batches, which are rare in a compaction log, are decoded one by one.
``tests/unit/test_other_rows.py`` compares this module with ``rocketmq.format.record``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from lastwrite.model.columns import ByteArray, Int64Array, RecordColumns, Slices
from lastwrite.rocketmq.format.kernels import MessageTable
from lastwrite.rocketmq.format.properties import KEYS, items
from lastwrite.rocketmq.format.property_columns import property_items
from lastwrite.rocketmq.format.record import (
    COMPRESSED,
    IS_INNER,
    decode_message,
    decompress_body,
    split_inner,
)

LOG_APPEND_TIME = 1
_OPEN_BYTES = 4 << 20  # bytes of decompressed bodies after which a run of messages ends


def gather(
    buffer: ByteArray, messages: MessageTable, span: tuple[int, int], shift: int, limit_bytes: int
) -> Iterator[RecordColumns]:
    """Yield the columns of the messages with queue offsets in ``span``, whose end is exclusive.

    Args:
        messages: the rows that ``kernels.split`` filled for ``buffer``.
        shift: position in the file of the buffer's first byte.
        limit_bytes: largest size of one decompressed body.

    Raises:
        CorruptLog, UnsupportedFormat, OutOfMemoryBudget: a body does not decompress.
    """
    is_wanted = (messages["queue_offset"] >= span[0]) & (messages["queue_offset"] < span[1])
    messages = messages[is_wanted]
    is_inner = messages["sys_flag"] & IS_INNER == IS_INNER
    packed = is_inner | ((messages["sys_flag"] & COMPRESSED != 0) & (messages["body_length"] > 0))
    if not packed.any():
        if len(messages):
            yield _columns(buffer, messages, shift)
        return
    first, opened = 0, _InflatedBodies(buffer)
    for row in np.flatnonzero(packed).tolist():
        if is_inner[row]:
            if row > first:
                yield opened.columns(messages[first:row], first, shift)
            yield _inner(buffer, messages[row], shift, limit_bytes)
            first, opened = row + 1, _InflatedBodies(buffer)
            continue
        opened.add(row, messages[row], limit_bytes)
        if opened.size > _OPEN_BYTES:
            yield opened.columns(messages[first : row + 1], first, shift)
            first, opened = row + 1, _InflatedBodies(buffer)
    if first < len(messages):
        yield opened.columns(messages[first:], first, shift)


def with_properties(records: RecordColumns) -> RecordColumns:
    """A copy of ``records`` with the messages' properties as headers.

    Each name occurs once, with its last value.
    """
    starts, lengths = records.headers
    found = property_items(records.data, starts, lengths)
    counts = np.diff(found.offsets).astype(np.int64)
    return records._replace(
        headers=(starts, counts),
        header_names=(found.name_at, found.name_length),
        header_values=(found.value_at, found.value_length),
    )


def _columns(data: ByteArray, messages: MessageTable, shift: int) -> RecordColumns:
    def column(name: str) -> Int64Array:
        return np.ascontiguousarray(messages[name])

    return RecordColumns(
        data=data,
        offsets=column("queue_offset"),
        times_ms=column("store_time"),
        time_types=np.full(len(messages), LOG_APPEND_TIME, np.int64),
        keys=(column("key_at"), column("key_length")),
        values=(column("body_at"), column("body_length")),
        headers=(column("properties_at"), column("properties_length")),
        positions=column("position") + shift,
        orders=column("queue_offset"),
    )


class _InflatedBodies:
    """Collects decompressed bodies and the rows that they belong to."""

    def __init__(self, buffer: ByteArray) -> None:
        self._buffer = buffer
        self._bodies: list[tuple[int, bytes]] = []
        self.size = 0

    def add(self, row: int, message: np.void, limit_bytes: int) -> None:
        at, length = int(message["body_at"]), int(message["body_length"])
        packed = self._buffer[at : at + length].tobytes()
        body = decompress_body(packed, int(message["sys_flag"]), at, limit_bytes)
        self._bodies.append((row, body))
        self.size += len(body)

    def columns(self, messages: MessageTable, first: int, shift: int) -> RecordColumns:
        """The columns of ``messages``, with decompressed bodies.

        ``first`` is the row of the first message.
        """
        found = _columns(self._buffer, messages, shift)
        bodies = {row - first: body for row, body in self._bodies}
        data, values = with_bodies(self._buffer, found.values, bodies)
        return found._replace(data=data, values=values)


def with_bodies(
    data: ByteArray, stored: Slices, bodies: Mapping[int, bytes]
) -> tuple[ByteArray, Slices]:
    """A copy of ``data`` with ``bodies`` appended, and the slices of the values in it.

    ``bodies`` has decompressed bodies by row number. They replace the stored values of these rows.
    """
    starts, lengths = np.array(stored[0]), np.array(stored[1])
    rows = list(bodies)
    lengths[rows] = [len(body) for body in bodies.values()]
    starts[rows] = len(data) + np.cumsum([0, *lengths[rows]])[:-1]
    joined = np.frombuffer(b"".join(bodies.values()), np.uint8)
    return np.concatenate((data, joined)), (starts, lengths)


class _Item(NamedTuple):
    offset: int
    key: bytes | None
    body: bytes
    properties: bytes


def _inner(buffer: ByteArray, record: np.void, shift: int, limit_bytes: int) -> RecordColumns:
    position, size = int(record["position"]), int(record["size"])
    message = decode_message(memoryview(buffer), position, position + size)
    found = [
        _Item(
            each.queue_offset,
            None if each.keys is None else dict(items(each.properties_bytes))[KEYS.encode()],
            each.body,
            each.properties_bytes,
        )
        for each in split_inner(message, limit_bytes)
    ]
    keys, bodies, properties = (
        [len(each.key) if each.key is not None else -1 for each in found],
        [len(each.body) for each in found],
        [len(each.properties) for each in found],
    )
    data = b"".join((each.key or b"") + each.body + each.properties for each in found)
    lengths = np.array([keys, bodies, properties], np.int64).reshape(3, len(found))
    ends = np.cumsum(np.maximum(lengths, 0).T.ravel()).reshape(len(found), 3).T
    starts = ends - np.maximum(lengths, 0)
    offsets = np.array([each.offset for each in found], np.int64)
    return RecordColumns(
        data=np.frombuffer(data, np.uint8),
        offsets=offsets,
        times_ms=np.full(len(found), int(record["store_time"]), np.int64),
        time_types=np.full(len(found), LOG_APPEND_TIME, np.int64),
        keys=(starts[0], lengths[0]),
        values=(starts[1], lengths[1]),
        headers=(starts[2], lengths[2]),
        positions=np.full(len(found), position + shift, np.int64),
        orders=offsets,
    )
