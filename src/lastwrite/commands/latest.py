"""``latest``: the table that a topic's last writes make, as a consumer would have it who read all of it from offset 0.

``a=1@0 b=2@1 a=3@2``, and a delete of ``b`` at 3: the table is ``{a: 3}``. Whether the topic was compacted before, and
how often, makes no difference. Within a queue the larger offset wins. A key that has moved from one queue to another,
because their number was changed, has a last write in each: there the later one wins, by the broker's clock (RocketMQ's
store time; Kafka's record timestamp; Pulsar's publish time, by the producer's clock), and of equally late ones that of
the larger queue. Records without a key are in no table.

A dictionary holds the table in this process, up to a limit. A DataFrame holds nothing: its tasks read the files, one
task a file, and Spark finds the last writes (see ``frames``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lastwrite.audit.place import PULSAR, ROCKETMQ, system_of
from lastwrite.audit.window import BATCH_LIMIT_BYTES, whole_batches
from lastwrite.errors import (
    CorruptLog,
    InvalidConfig,
    LogError,
    OutOfMemoryBudget,
    UnsupportedFormat,
)
from lastwrite.formats.kafka.batch import decode_batch
from lastwrite.formats.rocketmq.java_hash import decode
from lastwrite.formats.rocketmq.record import (
    COMPRESSED,
    INNER_BATCH,
    NEEDS_UNWRAP,
    decode_message,
    decompress_body,
    split_inner,
)
from lastwrite.logstore import kafka as kafka_store
from lastwrite.logstore import lock as kafka_lock
from lastwrite.logstore.pulsar.topic import name_of
from lastwrite.logstore.rocketmq import lock as rocketmq_lock
from lastwrite.logstore.rocketmq.compacted import Block, CompactedQueue, first_damage
from lastwrite.logstore.rocketmq.topics import compacted_queues
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, Segment, TopicPartition
from lastwrite.serving.pulsar_table import pulsar_topics, pulsar_writes
from lastwrite.serving.read import check_compacted, store_at
from lastwrite.serving.write import Write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT_BYTES = 256 << 20
BODY_LIMIT_BYTES = 256 << 20  # of one body, decompressed
_ENTRY_BYTES = 200  # what Python takes for a key and a value beside their bytes

K = TypeVar("K", str, bytes)


@overload
def latest(
    path: str,
    topic: str | None = None,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    spark: None = None,
) -> dict[Any, bytes]: ...
@overload
def latest(
    path: str,
    topic: str | None = None,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    *,
    spark: SparkSession,
) -> DataFrame: ...
def latest(
    path: str,
    topic: str | None = None,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    spark: SparkSession | None = None,
) -> dict[Any, bytes] | DataFrame:
    """The last write of every key of a topic, over all its queues from their first message on, without deleted keys.

    Args:
        path: a RocketMQ store, or a topic's folder in it; or Kafka's log root; or an archive of Pulsar topics. What
            other brokers or other roots have of the topic is not in the table.
        topic: its name; not needed where ``path`` says it.
        limit_bytes: what the dictionary may take, keys, values and some 200 bytes an entry.
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        spark: a session: the table is a DataFrame of it then, of any size, with the columns of ``frames``. It reads the
            files when it is evaluated, and they must still be the same then. Needs pyarrow and pandas.

    Returns:
        ``{key: body}``; keys are text in RocketMQ (all of ``KEYS``) and in Pulsar, and bytes in Kafka. Or a DataFrame.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.
        CorruptLog: a record cannot be read, and it may have been a key's last.
        OutOfMemoryBudget: the table is larger than ``limit_bytes``.
        EnvironmentUnfit: pyarrow or pandas is missing.
    """
    path = str(path)
    whose = system_of(path, system)
    if whose == PULSAR:
        folders = pulsar_topics(path, topic)
        if spark is not None:
            from lastwrite.serving.frames import pulsar_frame

            return pulsar_frame(spark, folders)
        return _table(
            ((name_of(folder).partition, pulsar_writes(folder)) for folder in folders), limit_bytes
        )
    if whose == ROCKETMQ:
        root, queues = _rocketmq_queues(path, topic)
        if spark is not None:
            from lastwrite.serving.frames import rocketmq_frame

            return rocketmq_frame(spark, root, queues)
        return _table(
            ((name.partition, rocketmq_writes(root, name)) for name in queues), limit_bytes
        )
    logs = _kafka_logs(path, topic)
    if spark is not None:
        from lastwrite.serving.frames import kafka_frame

        return kafka_frame(spark, logs)
    return _table(
        ((log.name.partition, kafka_writes(log, log.segments)) for log in logs), limit_bytes
    )


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
                raise OutOfMemoryBudget(
                    f"the table takes more than {limit_bytes} bytes",
                    remedy="raise limit_bytes, or give a session as spark= and take it as a DataFrame",
                )
        for key, entry in own.items():
            other = table.get(key)
            if other is None or entry[:2] > other[:2]:
                held -= 0 if other is None else _bytes_of(key, other[2])
                table[key] = entry
            else:
                held -= _bytes_of(key, entry[2])
    return {key: value for key, (_, _, value) in table.items() if value is not None}


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


def rocketmq_writes(root: str, name: TopicPartition) -> Iterator[Write]:
    """The writes of one queue, in order; of those of a key that are read together, only the last.

    Raises:
        CorruptLog: after the last, that there were damaged ones.
    """
    queue = CompactedQueue(root, name)
    for block in queue.blocks():
        yield from block_writes(block)
    damage = first_damage([queue])
    if damage is not None:
        raise damage


def block_writes(block: Block) -> list[Write]:
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
            if sys_flag & (NEEDS_UNWRAP | INNER_BATCH) == NEEDS_UNWRAP | INNER_BATCH:
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


# ---------------------------------------------------------------------- Kafka


def _kafka_logs(path: str, topic: str | None) -> list[PartitionLog]:
    """The topic's partitions.

    Raises:
        NotALog, InvalidConfig, LogHeld: as ``latest``.
    """
    folders = kafka_store.find_partitions(path, topic, None)
    topics = {kafka_store.partition_name(folder).topic for folder in folders}
    if len(topics) != 1:
        raise InvalidConfig(
            f"{len(topics)} topics lie there",
            path=path,
            remedy=f"name one: {', '.join(sorted(topics)[:20])}",
        )
    if len(folders) < len(
        kafka_store.find_partitions(kafka_store.root_of(folders[0]), topics.pop())
    ):
        raise InvalidConfig(
            "a table is of a whole topic",
            path=path,
            remedy="give the log root, and the topic's name",
        )
    for folder in folders:
        kafka_lock.refuse_if_held(kafka_store.root_of(folder), [kafka_store.partition_name(folder)])
    return [kafka_store.read_partition(folder) for folder in folders]


def kafka_writes(log: PartitionLog, segments: Iterable[Segment]) -> Iterator[Write]:
    """The writes that a consumer of committed records gets from these segments, in order.

    Raises:
        CorruptLog: a batch cannot be read.
    """
    for segment in segments:
        problems: list[Problem] = []
        for position, header, data in whole_batches(segment, problems.append):
            try:
                batch = decode_batch(data, 0, BATCH_LIMIT_BYTES)
            except LogError as error:
                raise error.located(segment.path, position) from error
            if batch.attributes.control:
                continue
            if batch.attributes.transactional and (
                header.base_offset >= log.last_stable_offset
                or _is_aborted(log, header.producer_id, header.base_offset)
            ):
                continue
            for record in batch.records:
                if record.key is not None and log.log_start <= record.offset < log.high_watermark:
                    yield Write(record.key, record.offset, record.timestamp_ms, record.value)
        for problem in problems:
            kind = CorruptLog if problem.kind is ProblemKind.DAMAGED else UnsupportedFormat
            raise kind(problem.message, problem.position, problem.path, problem.remedy)


def _is_aborted(log: PartitionLog, producer_id: int, offset: int) -> bool:
    return any(
        entry.producer_id == producer_id and entry.first_offset <= offset <= entry.last_offset
        for entry in log.aborted
    )
