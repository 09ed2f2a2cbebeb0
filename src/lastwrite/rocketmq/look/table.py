"""``latest`` as a Spark DataFrame: a task reads a file into Arrow columns, and Spark finds the last write of every key.

Columns, of RocketMQ: ``topic``, ``queue``, ``offset``, ``key`` (text), ``value``, ``born_timestamp``,
``store_timestamp`` (milliseconds), ``properties`` (a map). Of Kafka: ``topic``, ``partition``, ``offset``, ``key``,
``value`` (bytes), ``timestamp`` (milliseconds). Of Pulsar: ``topic``, ``partition``, ``ledger``, ``entry``,
``batch_index`` (-1: in no batch), ``key`` (text), ``value``, ``event_time``, ``publish_time``, ``properties``.

The session is the caller's; nothing of pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lastwrite.audit.pulsar_rows import key_text
from lastwrite.errors import CommitConflict, EnvironmentUnfit, LogError
from lastwrite.formats.rocketmq.java_hash import decode
from lastwrite.formats.rocketmq.property_columns import property_items
from lastwrite.formats.rocketmq.record import (
    COMPRESSED,
    INNER_BATCH,
    NEEDS_UNWRAP,
    Message,
    decode_message,
    decompress_body,
    split_inner,
)
from lastwrite.formats.slices import gathered
from lastwrite.logstore.rocketmq.compacted import Block, CompactedQueue, FilesMoved, first_damage
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.serving.latest import BODY_LIMIT_BYTES, kafka_writes
from lastwrite.serving.pulsar_table import LedgerUnit, ledger_units, unit_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROCKETMQ_SCHEMA = (
    "topic STRING, queue INT, offset BIGINT, key STRING, value BINARY, born_timestamp BIGINT, store_timestamp BIGINT, "
    "properties MAP<STRING, STRING>"
)
KAFKA_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp BIGINT"
)
PULSAR_SCHEMA = (
    "topic STRING, partition INT, ledger BIGINT, entry BIGINT, batch_index INT, key STRING, value BINARY, "
    "event_time BIGINT, publish_time BIGINT, properties MAP<STRING, STRING>"
)

# Within a queue the larger offset wins, between queues the later time; a delete wins like any write, then it goes.
_LAST_WRITES = """
SELECT last.* FROM (
  SELECT max_by(last, struct(last.{time}, last.{queue})) AS last FROM (
    SELECT key, max_by(struct(*), {offset}) AS last FROM {{rows}} GROUP BY key, {queue}
  ) GROUP BY key
) WHERE last.value IS NOT NULL
"""
_AGAIN = "the files are read when the DataFrame is evaluated: make it anew"
_ROWS_AT_ONCE = 1 << 14


class LogFile(NamedTuple):
    """One file of a queue's compaction log, as it was when the DataFrame was made."""

    root: str
    name: TopicPartition
    start: int
    size_bytes: int
    mtime_ns: int


def rocketmq_frame(spark: SparkSession, root: str, queues: Sequence[TopicPartition]) -> DataFrame:
    """The last writes over these queues of a store.

    Raises:
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    files = [
        LogFile(root, name, pair.log.start, pair.log.size_bytes, pair.log.mtime_ns)
        for name in queues
        for pair in CompactedQueue(root, name).pairs
    ]
    return _last_writes(spark, files, rocketmq_batches, ROCKETMQ_SCHEMA, "store_timestamp", "queue")


def kafka_frame(spark: SparkSession, logs: Sequence[PartitionLog]) -> DataFrame:
    """The last writes over these partitions of a topic; a task a segment.

    Raises:
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    segments = [(log, number) for log in logs for number in range(len(log.segments))]
    return _last_writes(spark, segments, kafka_batches, KAFKA_SCHEMA, "timestamp", "partition")


def pulsar_frame(spark: SparkSession, folders: Sequence[str]) -> DataFrame:
    """The last writes over these topic folders, the partitions of one topic; a task a ledger.

    Raises:
        EnvironmentUnfit: pyarrow or pandas is missing.
        CorruptLog: a compacted ledger cannot be read.
    """
    units = [unit for folder in folders for unit in ledger_units(folder)]
    return _last_writes(
        spark,
        units,
        pulsar_batches,
        PULSAR_SCHEMA,
        "publish_time",
        "partition",
        "struct(ledger, entry, batch_index)",
    )


def _last_writes(
    spark: SparkSession,
    units: Sequence[Any],
    batches_of: Callable[[Any], Iterator[Any]],
    schema: str,
    time: str,
    queue: str,
    offset: str = "offset",
) -> DataFrame:
    for package in ("pyarrow", "pandas"):
        if find_spec(package) is None:
            raise EnvironmentUnfit(
                f"a DataFrame needs {package}",
                remedy="pip install 'lastwrite[frames]', or take a dictionary: no spark=",
            )
    if not units:
        return spark.createDataFrame([], schema)

    def rows_of(places: Iterable[Any]) -> Iterator[Any]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                yield from batches_of(units[place])

    rows = spark.range(0, len(units), 1, len(units)).mapInArrow(rows_of, schema)
    return spark.sql(_LAST_WRITES.format(time=time, queue=queue, offset=offset), rows=rows)


# ---------------------------------------------------------------------- RocketMQ


def rocketmq_batches(file: LogFile) -> Iterator[Any]:
    """The keyed messages of one file, as Arrow record batches of ``ROCKETMQ_SCHEMA``.

    Raises:
        CommitConflict: it is not the file that was listed.
        CorruptLog: a message cannot be read.
    """
    queue = CompactedQueue(file.root, file.name)
    places = {
        (pair.log.start, pair.log.size_bytes, pair.log.mtime_ns): n
        for n, pair in enumerate(queue.pairs)
    }
    number = places.get(file[2:])
    try:
        if number is None:
            raise FilesMoved
        if queue.range_of(number) is not None:
            for block in queue.blocks_of(number, 0):
                yield _message_batch(block, file.name)
    except FilesMoved:
        raise CommitConflict(
            "the queue's files have changed", path=file.root, remedy=_AGAIN
        ) from None
    damage = first_damage([queue])
    if damage is not None:
        raise damage


def _message_batch(block: Block, name: TopicPartition) -> Any:
    table = block.table
    is_inner = (table["sys_flag"] & (NEEDS_UNWRAP | INNER_BATCH)) == NEEDS_UNWRAP | INNER_BATCH
    if is_inner.any():
        return _decoded_batch(block, name)
    import pyarrow as pa

    table = table[table["key_length"] >= 0]
    items = property_items(block.buffer, table["properties_at"], table["properties_length"])
    properties = pa.MapArray.from_arrays(
        pa.array(items.offsets, pa.int32()),
        text_column(block.buffer, items.name_at, items.name_length),
        text_column(block.buffer, items.value_at, items.value_length),
    )
    count = len(table)
    columns = [
        pa.array([name.topic] * count, pa.string()),
        pa.array(np.full(count, name.partition, np.int32)),
        pa.array(table["queue_offset"]),
        text_column(block.buffer, table["key_at"], table["key_length"]),
        _values(block, table),
        pa.array(table["born_time"]),
        pa.array(table["store_time"]),
        properties,
    ]
    return pa.RecordBatch.from_arrays(columns, _names(ROCKETMQ_SCHEMA))


def text_column(data: ByteArray, starts: Int64Array, lengths: Int64Array) -> Any:
    """Slices as an Arrow column of text; broken UTF-8 becomes what it is to Java."""
    import pyarrow as pa

    joined, offsets = gathered(data, starts, lengths)
    column = pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(joined))
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        whole = joined.tobytes()
        texts = [
            decode(whole[begin:end])
            for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        ]
        column = pa.array(texts, pa.string())
    return column


def _values(block: Block, table: Any) -> Any:
    """The bodies as an Arrow column, null where a body is empty: a delete."""
    import pyarrow as pa

    compressed = np.flatnonzero(
        ((table["sys_flag"] & COMPRESSED) != 0) & (table["body_length"] > 0)
    )
    joined, offsets = gathered(block.buffer, table["body_at"], table["body_length"])
    if not len(compressed):
        is_there = np.packbits(table["body_length"] > 0, bitorder="little")
        buffers = [pa.py_buffer(is_there), pa.py_buffer(offsets), pa.py_buffer(joined)]
        return pa.Array.from_buffers(pa.binary(), len(table), buffers)
    whole = joined.tobytes()
    bodies = [
        whole[begin:end]
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]
    for number in compressed.tolist():
        row = table[number]
        try:
            bodies[number] = decompress_body(
                bodies[number],
                int(row["sys_flag"]),
                int(row["body_at"] - row["position"]),
                BODY_LIMIT_BYTES,
            )
        except LogError as error:
            raise error.located(block.file.path, int(row["position"]) + block.shift) from error
    return pa.array([body or None for body in bodies], pa.binary())


def _decoded_batch(block: Block, name: TopicPartition) -> Any:
    """As ``_message_batch``, message by message: for inner batches, which brokers do not make in compaction topics."""
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
    return pa.RecordBatch.from_arrays(columns, _names(ROCKETMQ_SCHEMA))


# ---------------------------------------------------------------------- Pulsar


def pulsar_batches(unit: LedgerUnit) -> Iterator[Any]:
    """The keyed messages of one ledger, as Arrow record batches of ``PULSAR_SCHEMA``.

    Raises:
        CommitConflict: it is not the object that was listed.
        CorruptLog, UnsupportedFormat: a message cannot be read.
    """
    import pyarrow as pa

    name = unit.name
    found = unit_messages(unit)
    while some := [row for _, row in zip(range(_ROWS_AT_ONCE), found)]:  # noqa: B905 -- as many as there are
        columns = [
            pa.array([name.base] * len(some), pa.string()),
            pa.array([name.partition] * len(some), pa.int32()),
            pa.array([entry.ledger for entry, _ in some], pa.int64()),
            pa.array([entry.entry for entry, _ in some], pa.int64()),
            pa.array(
                [-1 if message.index is None else message.index for _, message in some], pa.int32()
            ),
            pa.array([key_text(message.key or b"") for _, message in some], pa.string()),
            pa.array([message.value or None for _, message in some], pa.binary()),
            pa.array([message.event_time for _, message in some], pa.int64()),
            pa.array([message.publish_time for _, message in some], pa.int64()),
            pa.array(
                [list(dict(message.properties).items()) for _, message in some],
                pa.map_(pa.string(), pa.string()),
            ),
        ]
        yield pa.RecordBatch.from_arrays(columns, _names(PULSAR_SCHEMA))


# ---------------------------------------------------------------------- Kafka


def kafka_batches(unit: tuple[PartitionLog, int]) -> Iterator[Any]:
    """The keyed records of one segment, as Arrow record batches of ``KAFKA_SCHEMA``.

    Raises:
        CommitConflict: it is not the file that was listed.
        CorruptLog: a batch cannot be read.
    """
    import pyarrow as pa

    log, number = unit
    writes = kafka_writes(log, [log.segments[number]])
    while some := [write for _, write in zip(range(_ROWS_AT_ONCE), writes)]:  # noqa: B905 -- as many as there are
        columns = [
            pa.array([log.name.topic] * len(some), pa.string()),
            pa.array([log.name.partition] * len(some), pa.int32()),
            pa.array([write.offset for write in some], pa.int64()),
            pa.array([write.key for write in some], pa.binary()),
            pa.array([write.value for write in some], pa.binary()),
            pa.array([write.time_ms for write in some], pa.int64()),
        ]
        yield pa.RecordBatch.from_arrays(columns, _names(KAFKA_SCHEMA))


def _names(schema: str) -> list[str]:
    return [
        column.split()[0] for column in schema.replace("MAP<STRING, STRING>", "MAP").split(", ")
    ]
