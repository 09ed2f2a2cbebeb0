"""Requests of real clients to a broker: create a topic, produce, consume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported there, though not by __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.kafka.broker import Broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Sent(NamedTuple):
    """A record to produce."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Seen(NamedTuple):
    """A record that a consumer received."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_create_time: bool = True


def create_topic(
    broker: Broker, topic: str, settings: Mapping[str, str], partitions: int = 1
) -> None:
    admin = _admin(broker)
    made = NewTopic(topic, partitions, 1, config=dict(settings))
    for done in admin.create_topics([made]).values():
        done.result(30)


def set_topic(broker: Broker, topic: str, settings: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = _admin(broker)  # must stay referenced until the answer has been read
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def produce(
    broker: Broker,
    topic: str,
    records: Iterable[Sent],
    *,
    codec: str = "none",
    batch_records: int = 5,
    partition: int = 0,
    settings: Mapping[str, str | bool] | None = None,
) -> list[Seen]:
    """Append the records in order, in batches of at most ``batch_records`` records.

    Returns the stored records by the offsets that the broker assigned. ``settings`` go to the
    client. If they contain a ``transactional.id``, all records are in one committed transaction.
    """
    stored: list[Seen] = []
    failures: list[KafkaError] = []

    def note(sent: Sent) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
                return
            offset = message.offset()
            assert offset is not None
            kind, timestamp_ms = message.timestamp()
            stored.append(
                Seen(
                    offset,
                    sent.key,
                    sent.value,
                    timestamp_ms,
                    sent.headers,
                    kind == TIMESTAMP_CREATE_TIME,
                )
            )

        return delivered

    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": False,
            "compression.type": codec,
            "acks": "all",
            "linger.ms": 20,
            "batch.num.messages": batch_records,
            "max.in.flight": 1,
            **(settings or {}),
        }
    )
    transactional = settings is not None and "transactional.id" in settings
    if transactional:
        producer.init_transactions(60)
        producer.begin_transaction()
    for sent in records:
        producer.produce(
            topic,
            key=sent.key,
            value=sent.value,
            partition=partition,
            timestamp=sent.timestamp_ms,
            headers=list(sent.headers),
            on_delivery=note(sent),
        )
    left = producer.flush(60)
    if transactional:
        producer.commit_transaction(60)
    if failures or left:
        raise RuntimeError(f"{topic}: {left} records not sent, {failures[:1]}")
    return sorted(stored)


def consume(
    broker: Broker,
    topic: str,
    *,
    start: int = 0,
    limit: int | None = None,
    partition: int = 0,
    isolation: str = "read_committed",
) -> list[Seen]:
    """Read the records from offset ``start`` to the end, or the first ``limit`` of them.

    Checks CRCs. With the isolation level ``read_committed``, the end is the first open transaction.
    """
    consumer = _consumer(broker, isolation)
    seen: list[Seen] = []
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        while limit is None or len(seen) < limit:
            message = consumer.poll(30)
            if message is None:
                raise RuntimeError(f"{topic}: nothing came for 30 s after {len(seen)} records")
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    break
                raise KafkaException(error)
            seen.append(_seen(message))
    finally:
        consumer.close()
    return seen


def bounds(broker: Broker, topic: str) -> tuple[int, int]:
    """The log start and the log end offset that the broker reports."""
    consumer = _consumer(broker)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        return low, high
    finally:
        consumer.close()


def first_offset_since(broker: Broker, topic: str, timestamp_ms: int) -> int:
    """The first offset with a timestamp of at least ``timestamp_ms``, by the broker's time index.

    Returns -1 if there is none.
    """
    consumer = _consumer(broker)
    try:
        found = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], timeout=30)[0]
        if found.error is not None:
            raise KafkaException(found.error)
        return int(found.offset)
    finally:
        consumer.close()


def _admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def _consumer(broker: Broker, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "lastwrite-tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
        }
    )


def _seen(message: Message) -> Seen:
    kind, timestamp_ms = message.timestamp()
    offset = message.offset()
    assert offset is not None
    headers = tuple(cast("list[tuple[str, bytes | None]]", message.headers() or []))
    return Seen(
        offset, message.key(), message.value(), timestamp_ms, headers, kind == TIMESTAMP_CREATE_TIME
    )
