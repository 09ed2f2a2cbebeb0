"""``latest``: the table that a topic's last writes make, as a consumer would have it who read all
of it from offset 0.

``a=1@0 b=2@1 a=3@2``, and a delete of ``b`` at 3: the table is ``{a: 3}``. Whether the topic was
compacted before, and how often, makes no difference. Within a queue the larger offset wins. A key
that has moved from one queue to another, because their number was changed, has a last write in
each: there the later one wins, by the broker's clock (RocketMQ's store time; Kafka's record
timestamp; Pulsar's publish time, by the producer's clock), and of equally late ones that of
the larger queue. Records without a key are in no table.

The table is true up to an offset in each partition, which ``end_offsets`` names: the first one that
is not in it. What lies there or beyond was not written, not replicated or not decided when the
files were listed.

A dictionary holds the table in this process, up to a limit; of Kafka it is ``table``, read once. A
DataFrame holds nothing: its tasks read the files, and Spark finds the last writes (see ``frames``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from lastwrite.commands.systems import KAFKA, PULSAR, ROCKETMQ, system_of
from lastwrite.commands.table import table, whole_topic
from lastwrite.config.stores import store_settings
from lastwrite.errors import CommitConflict, InvalidConfig, OutOfMemoryBudget
from lastwrite.kafka import beside_a_broker
from lastwrite.model.log import TopicPartition
from lastwrite.pulsar.look.table import pulsar_topics, pulsar_writes, topic_end
from lastwrite.pulsar.store.place import name_of
from lastwrite.reports.table import Write
from lastwrite.rocketmq.look.read import check_compacted, store_at
from lastwrite.rocketmq.look.table import rocketmq_writes
from lastwrite.rocketmq.store import lock as rocketmq_lock
from lastwrite.rocketmq.store.compacted import CompactedQueue, FilesMoved
from lastwrite.rocketmq.store.topics import compacted_queues
from lastwrite.storage.objects import address
from lastwrite.storage.reading import TRIES, TRY_AGAIN, one_try

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT_BYTES = 256 << 20
_ENTRY_BYTES = 200  # what Python takes for a key and a value beside their bytes

End = int | str


class Table(dict[Any, bytes]):
    """The last writes, and up to where they are: ``end_offsets``, partition (RocketMQ: queue, Pulsar:
    -1 where the topic has none) to the first offset that is not in the table; in Pulsar a message
    id, ``LEDGER:ENTRY``, as ``read`` takes it for ``start``.
    """

    def __init__(self, writes: Mapping[Any, bytes], end_offsets: Mapping[int, End]) -> None:
        super().__init__(writes)
        self.end_offsets = dict(end_offsets)


@overload
def latest(
    path: str,
    topic: str | None = None,
    *,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    spark: None = None,
    config: Mapping[str, object] | None = None,
) -> Table: ...
@overload
def latest(
    path: str,
    topic: str | None = None,
    *,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    spark: SparkSession,
    config: Mapping[str, object] | None = None,
) -> DataFrame: ...
def latest(
    path: str,
    topic: str | None = None,
    *,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    spark: SparkSession | None = None,
    config: Mapping[str, object] | None = None,
) -> Table | DataFrame:
    """The last write of every key of a topic, over all its queues from their first message on,
    without deleted keys.

    Args:
        path: a RocketMQ store, or a topic's folder in it; or Kafka's log root; or an archive, of
            Kafka and RocketMQ in a bucket too. What other brokers or other roots have of the topic
            is not in the table.
        topic: its name; not needed where ``path`` says it.
        limit_bytes: what the dictionary may take, keys, values and some 200 bytes an entry.
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        spark: a session: the table is a DataFrame of it then, of any size, with the columns of
            ``frames``. It reads the files when it is evaluated, and they must still be the same
            then. Needs pyarrow and pandas.
        config: how a bucket is reached, ``storage.*``.

    Returns:
        ``{key: body}``; keys are text in RocketMQ (all of ``KEYS``) and in Pulsar, and bytes in
        Kafka. Or a DataFrame. Both have an attribute ``end_offsets`` (see ``Table``): up to where
        the table is true in each partition. What is derived from a DataFrame does not have it.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.
        CorruptLog: a record cannot be read, and it may have been a key's last.
        OutOfMemoryBudget: the table is larger than ``limit_bytes``.
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    path = str(path)
    address.use(store_settings(config))
    whose = system_of(path, system)
    if whose == PULSAR:
        folders = pulsar_topics(path, topic)
        ends: dict[int, End] = {name_of(folder).partition: topic_end(folder) for folder in folders}
        if spark is not None:
            from lastwrite.commands.frames import pulsar_frame

            return _true_up_to(ends, pulsar_frame(spark, folders))
        written = ((name_of(folder).partition, pulsar_writes(folder)) for folder in folders)
        return Table(_table(written, limit_bytes), ends)
    if whose == ROCKETMQ:
        return _of_rocketmq(*_rocketmq_queues(path, topic), limit_bytes, spark)
    if spark is not None:
        from lastwrite.commands.frames import kafka_frame

        logs = whole_topic(path, topic)
        ends = {log.name.partition: log.last_stable_offset for log in logs}
        return _true_up_to(ends, kafka_frame(spark, logs))
    return _kafka_table(path, topic, limit_bytes, config)


def _true_up_to(ends: Mapping[int, Any], frame: DataFrame) -> DataFrame:
    """The frame, with its ``end_offsets``; Spark has no place of its own for them."""
    frame.end_offsets = dict(ends)  # type: ignore[attr-defined]
    return frame


# ---------------------------------------------------------------------- the rule


def _table(queues: Iterable[tuple[int, Iterable[Write]]], limit_bytes: int) -> dict[Any, bytes]:
    """The table that the writes of all queues make. Holds it, and what was deleted."""
    table: dict[Any, tuple[int, int, bytes | None]] = {}  # time, queue, value
    held = 0
    for queue, writes in queues:
        own: dict[Any, tuple[int, int, bytes | None]] = {}
        for write in writes:
            if write.key in own:
                held -= _bytes_of(write.key, own[write.key][2])
            held += _bytes_of(write.key, write.value)
            own[write.key] = (write.time_ms, queue, write.value)
            if held > limit_bytes:
                raise _too_large(limit_bytes, "give a session as spark= and take it as a DataFrame")
        for key, entry in own.items():
            other = table.get(key)
            if other is None or entry[:2] > other[:2]:
                held -= 0 if other is None else _bytes_of(key, other[2])
                table[key] = entry
            else:
                held -= _bytes_of(key, entry[2])
    return {key: value for key, (_, _, value) in table.items() if value is not None}


def _too_large(limit_bytes: int, remedy: str) -> OutOfMemoryBudget:
    words = f"the table takes more than {limit_bytes} bytes"
    return OutOfMemoryBudget(words, remedy=f"raise limit_bytes, or {remedy}")


def _bytes_of(key: str | bytes, value: bytes | None) -> int:
    return len(key) + (0 if value is None else len(value)) + _ENTRY_BYTES


# ---------------------------------------------------------------------- RocketMQ


def _rocketmq_queues(path: str, topic: str | None) -> tuple[str, list[TopicPartition]]:
    """The store and the topic's queues.

    Raises:
        NotALog, InvalidConfig, LogHeld: as ``latest``.
    """
    root, its_topic, its_queue = store_at(path)
    if its_queue is not None or (its_topic is not None and topic not in (None, its_topic)):
        raise InvalidConfig(
            "a table is of a whole topic", path=path, remedy="give the store, and the topic's name"
        )
    topic = its_topic or topic
    if topic is None:
        raise InvalidConfig("no topic", path=path, remedy="give its name")
    check_compacted(root, topic)
    queues = [TopicPartition(topic, number) for number in compacted_queues(root, topic)]
    rocketmq_lock.refuse_if_held(root, queues)
    return root, queues


def _of_rocketmq(
    root: str, names: Sequence[TopicPartition], limit_bytes: int, spark: SparkSession | None
) -> Table | DataFrame:
    """The table of a topic; from anew where a broker exchanged a queue's files meanwhile, a few
    times.

    Raises:
        CommitConflict: it did so every time.
    """
    for tries in range(1, TRIES + 1):
        with one_try(tries, is_open=True):
            queues = [CompactedQueue(root, name) for name in names]
            ends = _rocketmq_ends(queues)
            if spark is not None:
                from lastwrite.commands.frames import rocketmq_frame

                return _true_up_to(ends, rocketmq_frame(spark, queues, ends))
            written = ((queue.name.partition, rocketmq_writes(queue)) for queue in queues)
            return Table(_table(written, limit_bytes), ends)
    raise AssertionError("unreachable")


def _rocketmq_ends(queues: Sequence[CompactedQueue]) -> dict[int, int]:
    """
    Raises:
        CommitConflict: files are not those that were listed.
    """
    try:
        return {queue.name.partition: queue.end_offset for queue in queues}
    except FilesMoved:
        raise CommitConflict(
            "the queue's files have changed", path=queues[0].root, remedy=TRY_AGAIN
        ) from None


# ---------------------------------------------------------------------- Kafka


def _kafka_table(
    path: str, topic: str | None, limit_bytes: int, config: Mapping[str, object] | None
) -> Table:
    """The table of a topic, all of which is held; from anew where what it is made of was replaced
    meanwhile, a few times.

    Raises:
        CommitConflict: it was, every time.
    """
    for tries in range(1, TRIES + 1):
        with table(path, topic, system=KAFKA, config=config) as found:
            with beside_a_broker.one_try(tries, *found.logs):
                return Table(_held(found.items(), limit_bytes), found.end_offsets)
    raise AssertionError("unreachable")


def _held(items: Iterable[tuple[bytes, bytes]], limit_bytes: int) -> dict[bytes, bytes]:
    """
    Raises:
        OutOfMemoryBudget: they take more than ``limit_bytes``.
    """
    held, last = 0, {}
    for key, value in items:
        held += _bytes_of(key, value)
        if held > limit_bytes:
            raise _too_large(limit_bytes, "take table(), which holds only an index")
        last[key] = value
    return last
