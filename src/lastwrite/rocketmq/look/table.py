"""The writes of a RocketMQ topic for ``latest``: as values, and as columns of Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lastwrite.encoding.slices import gathered
from lastwrite.errors import CommitConflict, LogError
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import TopicPartition
from lastwrite.model.stores import StoreSettings
from lastwrite.reports.table import BODY_LIMIT_BYTES, READ_LATER, Write, column_names
from lastwrite.rocketmq.format.java_hash import decode
from lastwrite.rocketmq.format.kernels import MessageTable
from lastwrite.rocketmq.format.property_columns import property_items
from lastwrite.rocketmq.format.record import (
    COMPRESSED,
    IS_INNER,
    Message,
    decode_message,
    decompress_body,
    split_inner,
)
from lastwrite.rocketmq.store.compacted import CompactedQueue, FilesMoved, RecordBlock, first_damage
from lastwrite.rocketmq.store.reading import MappedFile
from lastwrite.storage.objects.address import use
from lastwrite.storage.reading import TRY_AGAIN

ROCKETMQ_SCHEMA = (
    "topic STRING, queue INT, offset BIGINT, key STRING, value BINARY, born_timestamp BIGINT, store_timestamp BIGINT, "
    "properties MAP<STRING, STRING>"
)


def rocketmq_batches(file: LogFile) -> Iterator[Any]:
    """The keyed messages of one file, as Arrow record batches of ``ROCKETMQ_SCHEMA``.

    Raises:
        CommitConflict: it is not the file that was listed.
        CorruptLog: a message cannot be read.
    """
    if file.file.etag:
        use(file.stores)
    queue = CompactedQueue(file.root, file.name)
    number = next((n for n, pair in enumerate(queue.pairs) if file.is_still(pair.log)), None)
    try:
        if number is None:
            raise FilesMoved
        if queue.range_of(number) is not None:
            for block in queue.blocks_of(number, 0):
                count = int(np.searchsorted(block.table["queue_offset"], file.end_offset))
                if count:
                    yield _message_batch(block._replace(table=block.table[:count]), file.name)
    except FilesMoved:
        raise CommitConflict(
            "the queue's files have changed", path=file.root, remedy=READ_LATER
        ) from None
    damage = first_damage([queue])
    if damage is not None:
        raise damage


def _message_batch(block: RecordBlock, name: TopicPartition) -> Any:
    table = block.table
    if (table["sys_flag"] & IS_INNER == IS_INNER).any():
        return _decoded_batch(block, name)
    import pyarrow as pa

    table = table[table["key_length"] >= 0]
    bodies = _decompressed(block, table)
    count = len(table)
    columns = [
        pa.array([name.topic] * count, pa.string()),
        pa.array(np.full(count, name.partition, np.int32)),
        pa.array(table["queue_offset"]),
        text_column(block.buffer, table["key_at"], table["key_length"]),
        body_column(block.buffer, table, bodies, is_delete_null=True),
        pa.array(table["born_time"]),
        pa.array(table["store_time"]),
        property_maps(block.buffer, table),
    ]
    return pa.RecordBatch.from_arrays(columns, column_names(ROCKETMQ_SCHEMA))


def text_column(data: ByteArray, starts: Int64Array, lengths: Int64Array) -> Any:
    """Slices as an Arrow column of text; broken UTF-8 becomes what it is to Java."""
    import pyarrow as pa

    joined, offsets = gathered(data, starts, lengths)
    column = pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(joined))
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        whole = joined.tobytes()
        texts = [decode(whole[begin:end]) for begin, end in pairwise(offsets.tolist())]
        column = pa.array(texts, pa.string())
    return column


def property_maps(data: ByteArray, table: MessageTable) -> Any:
    """The properties as an Arrow column of maps."""
    import pyarrow as pa

    items = property_items(data, table["properties_at"], table["properties_length"])
    return pa.MapArray.from_arrays(
        pa.array(items.offsets, pa.int32()),
        text_column(data, items.name_at, items.name_length),
        text_column(data, items.value_at, items.value_length),
    )


def body_column(
    data: ByteArray,
    table: MessageTable,
    plain: Mapping[int, bytes],
    *,
    is_delete_null: bool = False,
) -> Any:
    """The bodies as an Arrow column; ``plain`` has those that are compressed, by row.

    ``is_delete_null``: a body that is empty becomes null.
    """
    import pyarrow as pa

    joined, offsets = gathered(data, table["body_at"], table["body_length"])
    if not plain:
        present = None
        if is_delete_null:
            present = pa.py_buffer(np.packbits(table["body_length"] > 0, bitorder="little"))
        buffers = [present, pa.py_buffer(offsets), pa.py_buffer(joined)]
        return pa.Array.from_buffers(pa.binary(), len(table), buffers)
    whole, ends = joined.tobytes(), offsets.tolist()
    bodies = [plain[n] if n in plain else whole[ends[n] : ends[n + 1]] for n in range(len(table))]
    return pa.array([body or None for body in bodies] if is_delete_null else bodies, pa.binary())


def _decompressed(block: RecordBlock, table: MessageTable) -> dict[int, bytes]:
    """The bodies that are compressed, by their row of ``table``."""
    found = {}
    compressed = ((table["sys_flag"] & COMPRESSED) != 0) & (table["body_length"] > 0)
    for number in np.flatnonzero(compressed).tolist():
        row = table[number]
        at, length = int(row["body_at"]), int(row["body_length"])
        position = int(row["position"])
        body = block.buffer[at : at + length].tobytes()
        try:
            found[number] = decompress_body(
                body, int(row["sys_flag"]), at - position, BODY_LIMIT_BYTES
            )
        except LogError as error:
            raise error.located(block.file.path, position + block.shift) from error
    return found


def _decoded_batch(block: RecordBlock, name: TopicPartition) -> Any:
    """As ``_message_batch``, one by one: for inner batches, rare in compaction topics."""
    import pyarrow as pa

    rows: list[tuple[Message, bytes]] = []
    for position, size in zip(
        block.table["position"].tolist(), block.table["size"].tolist(), strict=True
    ):
        try:
            message = decode_message(memoryview(block.buffer), position, position + size)
            if message.is_inner_batch:
                rows += [(inner, inner.body) for inner in split_inner(message, BODY_LIMIT_BYTES)]
            else:
                body = decompress_body(
                    message.body, message.sys_flag, message.body_at, BODY_LIMIT_BYTES
                )
                rows.append((message, body))
        except LogError as error:
            raise error.located(block.file.path, position + block.shift) from error
    keyed = [(message, body) for message, body in rows if message.keys is not None]
    columns = [
        pa.array([name.topic] * len(keyed), pa.string()),
        pa.array([name.partition] * len(keyed), pa.int32()),
        pa.array([message.queue_offset for message, _ in keyed], pa.int64()),
        pa.array([message.keys for message, _ in keyed], pa.string()),
        pa.array([body or None for _, body in keyed], pa.binary()),
        pa.array([message.born_time_ms for message, _ in keyed], pa.int64()),
        pa.array([message.store_time_ms for message, _ in keyed], pa.int64()),
        pa.array(
            [list(message.properties.items()) for message, _ in keyed],
            pa.map_(pa.string(), pa.string()),
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, column_names(ROCKETMQ_SCHEMA))


def rocketmq_writes(queue: CompactedQueue) -> Iterator[Write]:
    """The writes of one queue, in order; of those of a key that are read together, only the last.

    Raises:
        CommitConflict: the files are not those that were listed: of a key that was deleted since
            only what came before may have been read.
        CorruptLog: after the last, that there were damaged ones.
    """
    try:
        for number in range(len(queue.pairs)):
            if queue.range_of(number) is not None:
                for block in queue.blocks_of(number, 0):
                    yield from block_writes(block)
    except FilesMoved:
        raise CommitConflict(
            "the queue's files have changed", path=queue.root, remedy=TRY_AGAIN
        ) from None
    damage = first_damage([queue])
    if damage is not None:
        raise damage


def block_writes(block: RecordBlock) -> list[Write]:
    """The last write of every key in a block, the latest first.

    Raises:
        CorruptLog, UnsupportedFormat, OutOfMemoryBudget: a body that does not decompress.
    """
    found: list[Write] = []
    seen: set[str] = set()
    data = memoryview(block.buffer)
    columns = (
        "position",
        "size",
        "queue_offset",
        "store_time",
        "sys_flag",
        "body_at",
        "body_length",
        "key_at",
        "key_length",
    )
    for row in zip(*(block.table[column][::-1].tolist() for column in columns), strict=True):
        position, size, offset, time_ms, sys_flag, body_at, body_length, key_at, key_length = row
        try:
            if sys_flag & IS_INNER == IS_INNER:
                inner = split_inner(
                    decode_message(data, position, position + size), BODY_LIMIT_BYTES
                )
                for message in reversed(inner):
                    if message.keys is not None and message.keys not in seen:
                        seen.add(message.keys)
                        found.append(
                            Write(message.keys, message.queue_offset, time_ms, message.body or None)
                        )
                continue
            if key_length < 0:
                continue
            key = decode(bytes(data[key_at : key_at + key_length]))
            if key in seen:
                continue
            seen.add(key)
            body = bytes(data[body_at : body_at + body_length])
            if sys_flag & COMPRESSED:
                body = decompress_body(body, sys_flag, body_at - position, BODY_LIMIT_BYTES)
        except LogError as error:
            raise error.located(block.file.path, position + block.shift) from error
        found.append(Write(key, offset, time_ms, body or None))
    return found


class LogFile(NamedTuple):
    """One file of a queue's compaction log, as it was when the DataFrame was made."""

    root: str
    name: TopicPartition
    file: MappedFile
    end_offset: int  # of the queue then: what was appended since does not count
    stores: StoreSettings = StoreSettings()  # by which an archive is reached

    def is_still(self, file: MappedFile) -> bool:
        """Whether it is ``file``, as that lies there now."""
        was = self.file
        if was.etag:
            return was.path == file.path
        is_same = (was.start, was.size_bytes, was.inode) == (
            file.start,
            file.size_bytes,
            file.inode,
        )
        return is_same and (was.is_growing or was.mtime_ns == file.mtime_ns)
