"""Consumer groups and transactions of real clients, which write to the broker's internal topics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.kafka.broker import Broker

PROTOCOLS = ("classic", "consumer")
_LOADING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


def join_and_commit(
    broker: Broker,
    group: str,
    commits: Sequence[Mapping[str, int]],
    *,
    protocol: str = "classic",
    subscribe: str | None = None,
    instance: str | None = None,
    metadata: str | None = None,
) -> None:
    """Join ``group``, commit the offsets of ``commits`` (by topic, for partition 0), and leave.

    ``protocol`` "consumer" means KIP-848. ``subscribe`` is a pattern that replaces the topics'
    names.
    """
    settings: dict[str, str | bool] = {
        "bootstrap.servers": broker.address,
        "group.id": group,
        "enable.auto.commit": False,
        "group.protocol": protocol,
        "client.id": f"client-of-{group}",
    }
    if instance is not None:
        settings["group.instance.id"] = instance
    consumer = Consumer(settings)
    consumer.subscribe([subscribe or topic for topic in commits[0]][: 1 if subscribe else None])
    deadline = time.monotonic() + 120
    while not consumer.assignment():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{group} was assigned nothing in 60 s")
        consumer.poll(0.1)
    for offsets in commits:
        more = () if metadata is None else (metadata,)
        places = [TopicPartition(topic, 0, offset, *more) for topic, offset in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(broker: Broker, group: str, topics: Sequence[str]) -> dict[str, int]:
    """The group's committed offsets in partition 0 of each topic, from its coordinator.

    Topics without a committed offset are left out.
    """
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    deadline = time.monotonic() + 120
    try:
        while True:
            try:
                found = consumer.committed(
                    [TopicPartition(topic, 0) for topic in topics], timeout=60
                )
                return {place.topic: place.offset for place in found if place.offset >= 0}
            except KafkaException as error:  # the coordinator has just started
                if error.args[0].code() not in _LOADING or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)
    finally:
        consumer.close()


def forget(broker: Broker, *groups: str) -> None:
    """Delete the groups and their committed offsets."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    for done in admin.delete_consumer_groups(list(groups)).values():
        done.result(60)


def transact(
    broker: Broker,
    transactional_id: str,
    topic: str,
    transactions: Sequence[tuple[bool, Sequence[bytes]]],
    *,
    group: str | None = None,
    offset: int = 0,
) -> None:
    """Run a producer's transactions.

    Each has records, whose keys equal their values, and an outcome. With ``group``, each
    transaction also commits an offset of that group in the topic: ``offset``, ``offset + 1``, and
    so on.
    """
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": transactional_id})
    producer.init_transactions(60)
    member = Consumer({"bootstrap.servers": broker.address, "group.id": group or "none"})
    for number, (is_committed, keys) in enumerate(transactions):
        producer.begin_transaction()
        for key in keys:
            producer.produce(topic, key=key, value=key, partition=0)
        if group is not None:
            there = TopicPartition(topic, 0, offset + number)
            producer.send_offsets_to_transaction([there], member.consumer_group_metadata(), 60)
        if is_committed:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)
    member.close()
