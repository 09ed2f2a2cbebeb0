"""``latest`` as a Spark DataFrame: a task reads a file into Arrow columns, and Spark finds the last
write of every key.

Columns, of RocketMQ: ``topic``, ``queue``, ``offset``, ``key`` (text), ``value``,
``born_timestamp``, ``store_timestamp`` (milliseconds), ``properties`` (a map). Of Kafka: ``topic``,
``partition``, ``offset``, ``key``, ``value`` (bytes), ``timestamp`` (milliseconds). Of Pulsar:
``topic``, ``partition``, ``ledger``, ``entry``, ``batch_index`` (-1: in no batch), ``key`` (text),
``value``, ``event_time``, ``publish_time``, ``properties``.

The session is the caller's; nothing of pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lastwrite.commands.rows import refuse_without_arrow
from lastwrite.kafka.look.columns import row_units
from lastwrite.kafka.look.table import COLUMNS, KAFKA_SCHEMA, kafka_batches
from lastwrite.model.log import PartitionLog
from lastwrite.pulsar.look.table import PULSAR_SCHEMA, ledger_units, pulsar_batches
from lastwrite.rocketmq.look.table import ROCKETMQ_SCHEMA, LogFile, rocketmq_batches
from lastwrite.rocketmq.store.compacted import CompactedQueue
from lastwrite.spark.use import refuse_workers_without_us
from lastwrite.storage.objects import address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Within a queue the larger offset wins, between queues the later time; a delete wins like any
# write, then it goes.
_LAST_WRITES = """
SELECT last.* FROM (
  SELECT max_by(last, struct(last.{time}, last.{queue})) AS last FROM (
    SELECT key, max_by(struct(*), {offset}) AS last FROM {{rows}} GROUP BY key, {queue}
  ) GROUP BY key
) WHERE last.value IS NOT NULL
"""


def rocketmq_frame(
    spark: SparkSession, queues: Sequence[CompactedQueue], ends: Mapping[int, int]
) -> DataFrame:
    """The last writes over these queues of a store, each up to its end.

    Raises:
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    files = [
        LogFile(queue.root, queue.name, pair.log, ends[queue.name.partition], address.used())
        for queue in queues
        for pair in queue.pairs
    ]
    return _last_writes(spark, files, rocketmq_batches, ROCKETMQ_SCHEMA, "store_timestamp", "queue")


def kafka_frame(spark: SparkSession, logs: Sequence[PartitionLog]) -> DataFrame:
    """The last writes over these partitions of a topic; a task a piece of a segment.

    Raises:
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    units = [unit for log in logs for unit in row_units(log, COLUMNS, is_committed=True)]
    return _last_writes(spark, units, kafka_batches, KAFKA_SCHEMA, "timestamp", "partition")


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
    refuse_without_arrow()
    if not units:
        return spark.createDataFrame([], schema)
    refuse_workers_without_us(spark)

    def rows_of(places: Iterable[Any]) -> Iterator[Any]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                yield from batches_of(units[place])

    rows = spark.range(0, len(units), 1, len(units)).mapInArrow(rows_of, schema)
    return spark.sql(_LAST_WRITES.format(time=time, queue=queue, offset=offset), rows=rows)
