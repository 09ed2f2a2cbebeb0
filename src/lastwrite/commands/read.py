"""``read``: the messages that a consumer of a partition, queue or Pulsar topic receives.

This module selects the system; its ``look/read.py`` does the work.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, overload

from lastwrite.commands.systems import KAFKA, PULSAR, ROCKETMQ, system_to_read
from lastwrite.config.stores import store_settings
from lastwrite.decoding.options import DecodingConfig, DecodingOptions
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.look.read import KafkaReading, read_partition
from lastwrite.pulsar.look.read import LIMIT, TopicReading, read_topic
from lastwrite.pulsar.look.reader import EARLIEST_NAME
from lastwrite.pulsar.look.rows import has_key as is_key
from lastwrite.reports.table import Row
from lastwrite.rocketmq.look.find import is_one_of
from lastwrite.rocketmq.look.read import QueueReading, read_queue
from lastwrite.rows.requirements import require_arrow
from lastwrite.rows.system import rows_of
from lastwrite.storage.objects import address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reading = QueueReading | TopicReading | KafkaReading


@overload
def read(
    path: str,
    topic: str | None = None,
    *,
    queue: int | None = None,
    offset: int | None = None,
    limit: int | None = None,
    one_pull: bool = False,
    system: str | None = None,
    metadata: str | None = None,
    start: str | None = None,
    read_compacted: bool = False,
    time_ms: int | None = None,
    key: bytes | None = None,
    isolation_level: str | None = None,
    config: Mapping[str, object] | None = None,
    spark: None = None,
    **decoding: Unpack[DecodingOptions],
) -> Reading: ...
@overload
def read(
    path: str,
    topic: str | None = None,
    *,
    queue: int | None = None,
    offset: int | None = None,
    system: str | None = None,
    metadata: str | None = None,
    isolation_level: str | None = None,
    config: Mapping[str, object] | None = None,
    spark: SparkSession,
    columns: Sequence[str] | None = None,
    view: str = "log",
    **decoding: Unpack[DecodingOptions],
) -> DataFrame: ...
def read(
    path: str,
    topic: str | None = None,
    *,
    queue: int | None = None,
    offset: int | None = None,
    limit: int | None = None,
    one_pull: bool = False,
    system: str | None = None,
    metadata: str | None = None,
    start: str | None = None,
    read_compacted: bool = False,
    time_ms: int | None = None,
    key: bytes | None = None,
    isolation_level: str | None = None,
    config: Mapping[str, object] | None = None,
    spark: SparkSession | None = None,
    columns: Sequence[str] | None = None,
    view: str = "log",
    **decoding: Unpack[DecodingOptions],
) -> Reading | DataFrame:
    """The messages that a consumer receives, in order, and the state at the end.

    With ``spark``, a DataFrame of the records of all partitions.

    Args:
        path: a RocketMQ store, or a queue's folder in its ``compaction/compactionLog``. Or a Pulsar
            topic folder, or a folder above several. Or a Kafka log root, a partition's folder, or
            an archive of Kafka or RocketMQ topics, in a folder or a bucket.
        topic, queue: the queue or partition; not needed if ``path`` determines it, or if there is
            only one.
        system: ``kafka``, ``rocketmq``, ``pulsar`` or ``automq``. None means: detect it from the
            files.
        metadata: AutoMQ: the path of the cluster's metadata log, ``__cluster_metadata-0``.
        offset: RocketMQ, Kafka: the offset of the first pull. If it is below the minimum, reading
            starts at the minimum, as with a broker. None means 0, or Kafka's log start.
        limit: at most this many messages.
        one_pull: RocketMQ: one response only, with as many messages as a broker sends whose memory
            contains the log.
        start: Pulsar: ``earliest``, ``latest`` or a message id, ``LEDGER:ENTRY``; with
            ``:PARTITION:INDEX``, a message of a batch. If the message no longer exists, reading
            starts at the next one. None means ``earliest``.
        read_compacted: Pulsar: read the compacted ledger up to the horizon, then the backlog.
            Otherwise, the backlog only.
        time_ms: Kafka: start at the first record of this time or later, in ms since 1970.
        key: only messages with this key; RocketMQ: one of their keys. ``limit`` counts these.
        isolation_level: Kafka: ``read_uncommitted`` or ``read_committed``, which skips aborted
            records and stops at the last stable offset. None means ``read_uncommitted``.
        config: settings ``storage.*`` of a bucket. Kafka: ``cleanup.policy=compact`` states that
            the topic was compacted earlier, so that offsets between two segments may be missing.
        spark: with a session, the result is a DataFrame of all partitions, or of ``queue``, from
            ``offset`` on, in the schema of Spark's Kafka source. Its tasks read the files when it
            is evaluated, so they must not have changed by then. Needs pyarrow and pandas.
        columns: the columns of the DataFrame, out of ``key, value, topic, partition, offset,
            timestamp, timestampType, headers``. Other columns are not read. None means all but
            ``headers``.
        view: with ``compacted``, the DataFrame contains the last committed write of every key and
            no deletes, whether or not the topic was compacted.
        decoding: formats and schemas of keys and values, see ``DecodingConfig``. They are decoded
            into the columns of a DataFrame, where ``columns`` can name fields such as
            ``value.name``, or into a field ``decoded`` of each message.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first message.
        OutOfMemoryBudget: Kafka: a batch is larger than the memory limit.
        CorruptLog: damage, raised after the last message. A damaged message whose frame is intact
            is returned with ``problem``, because RocketMQ's brokers serve it; Pulsar's consumers
            reject it. In Kafka, a damaged batch is skipped.
    """
    address.use(store_settings(config))
    found, path = system_to_read(str(path), system, metadata), str(path)
    wanted = DecodingConfig.of(decoding)
    if spark is not None:
        others = limit, time_ms, start, key
        if any(each is not None for each in others) or one_pull or read_compacted:
            raise InvalidConfig(
                "a DataFrame does not support limit, time_ms, start, key, one_pull and "
                "read_compacted",
                remedy="leave out these arguments, and filter the DataFrame",
            )
        from lastwrite.commands.rows import rows_frame

        return rows_frame(
            spark,
            rows_of(found),
            (path, topic, queue, offset),
            isolation_level=isolation_level,
            columns=columns,
            view=view,
            decoding=wanted,
            config=config,
        )
    most = limit if key is None else None
    if found == KAFKA:
        if one_pull or start is not None or read_compacted:
            raise InvalidConfig(
                "one_pull is only for RocketMQ; start and read_compacted are only for Pulsar",
                remedy="leave them out, and give the start as offset or time_ms",
            )
        of_kafka = read_partition(
            path, topic, queue, offset, time_ms, isolation_level, most, config
        )
        return _decoded(_with_key(of_kafka, found, key, limit), wanted)
    if time_ms is not None or isolation_level is not None:
        raise InvalidConfig("time_ms and isolation_level are only for Kafka", path=path)
    if found == PULSAR:
        if offset is not None or one_pull:
            raise InvalidConfig("offset and one_pull are only for RocketMQ", remedy="give start")
        of_pulsar = read_topic(path, topic, queue, start or EARLIEST_NAME, most, read_compacted)
        return _decoded(_with_key(of_pulsar, found, key, limit), wanted)
    if start is not None or read_compacted:
        raise InvalidConfig("start and read_compacted are only for Pulsar", remedy="give offset")
    of_queue = read_queue(path, topic, queue, offset or 0, most, one_pull)
    return _decoded(_with_key(of_queue, found, key, limit), wanted)


class KeyReading(Iterator[Row]):
    """A ``Reading`` that returns only messages with one key.

    Its other attributes are those of the ``Reading`` that it filters.
    """

    def __init__(self, reading: Reading, has_key: Callable[[Row], bool], limit: int | None) -> None:
        self._reading = reading
        self._has_key = has_key
        self._limit = limit
        self._found = 0

    def __next__(self) -> Row:
        if not self._is_limited:
            for row in self._reading:
                if self._has_key(row):
                    self._found += 1
                    return row
        raise StopIteration

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reading, name)

    @property
    def _is_limited(self) -> bool:
        return self._limit is not None and self._found >= self._limit

    @property
    def status(self) -> str | None:
        """The reason why the reading ended. None before its end."""
        return LIMIT if self._is_limited else self._reading.status

    def summary(self) -> Row:
        """The summary of the reading. Its number of messages counts only messages with the key."""
        return {**self._reading.summary(), "status": self.status, "messages": self._found}


def _with_key(reading: Reading, system: str, key: bytes | None, limit: int | None) -> Reading:
    if key is None:
        return reading
    has_key = partial(_HAS_KEY[system], key=key)
    return KeyReading(reading, has_key, limit)  # type: ignore[return-value]


def _has_key_of_kafka(row: Row, key: bytes) -> bool:
    return row["key"] is not None and base64.b64decode(row["key"]) == key


def _has_key_of_rocketmq(row: Row, key: bytes) -> bool:
    return is_one_of(row["properties"].get("KEYS", ""), key.decode("utf-8", "surrogateescape"))


def _has_key_of_pulsar(row: Row, key: bytes) -> bool:
    text = row["key"]
    return text is not None and is_key(text.encode(), bool(row["key_b64_encoded"]), key)


_HAS_KEY: Mapping[str, Callable[..., bool]] = {
    KAFKA: _has_key_of_kafka,
    ROCKETMQ: _has_key_of_rocketmq,
    PULSAR: _has_key_of_pulsar,
}


def _decoded(reading: Reading, decoding: DecodingConfig) -> Reading:
    if decoding.is_raw:
        return reading
    require_arrow()
    from lastwrite.rows.messages import DecodedReading

    return DecodedReading(reading, decoding)  # type: ignore[return-value]
