"""Tests of Kafka's internal topics, compacted by us and loaded by their broker.

Groups of both protocols commit, and producers commit and abort transactions with group offsets.
Between the rounds the broker starts on the compacted files. Groups keep their offsets, deleted
groups stay deleted, and producer ids continue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import lastwrite
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from lastwrite.spark.inline import INLINE
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, consume, create_topic, produce, set_topic
from tests.support.kafka.groups import PROTOCOLS, committed, forget, join_and_commit, transact

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SETTINGS = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
CONFIG = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
OWN = (GROUPS_TOPIC, TRANSACTIONS_TOPIC)
TOPICS = ("orders", "payments")
GROUPS = {
    f"{protocol}-{n}": protocol for protocol in PROTOCOLS for n in range(3)
}  # each commits an offset in both topics' partitions
IDS = tuple(f"till-{n}" for n in range(3))
ROUNDS = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    try:
        made = Broker(kafka_home(), tmp_path / "data", SETTINGS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        yield made
    finally:
        made.kill()


def decoded(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """All records of the topic's partitions, decoded by ``dump``. Each of them must be
    decodable.
    """
    rows = list(lastwrite.dump(str(broker.data), topic=topic, decode=True))
    assert [
        row["decoded"]["problem"]
        for row in rows
        if row["control"] is None and row["decoded"]["problem"]
    ] == []
    return rows


def offsets_by_dump(broker: Broker) -> dict[str, dict[str, int]]:
    """The committed offsets by group and topic, from the records. Aborted transactions
    are skipped.
    """
    aborted: set[tuple[int, int]] = set()  # pairs of partition and offset
    begun: dict[
        tuple[int, int], list[int]
    ] = {}  # offsets of the open transaction, by partition and producer
    rows = decoded(broker, GROUPS_TOPIC)
    for row in rows:
        producer = (row["partition"], row["producer_id"])
        if row["control"] == "abort":
            aborted |= {(row["partition"], offset) for offset in begun.pop(producer, [])}
        elif row["control"] == "commit":
            begun.pop(producer, None)
        elif row["transactional"]:
            begun.setdefault(producer, []).append(row["offset"])
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        if row["control"] is None and row["decoded"]["name"] == "OffsetCommit":
            if (row["partition"], row["offset"]) in aborted:
                continue
            key, value = row["decoded"]["key"], row["decoded"]["value"]
            of_group = found.setdefault(key["group"], {})
            of_group.pop(key["topic"], None)
            if value is not None:
                of_group[key["topic"]] = value["offset"]
    return {group: offsets for group, offsets in found.items() if offsets}


def producers_by_dump(broker: Broker) -> dict[str, tuple[int, int, int]]:
    """The last producer id, epoch and state of each transactional id."""
    values = {
        row["decoded"]["key"]["transactionalId"]: row["decoded"]["value"]
        for row in decoded(broker, TRANSACTIONS_TOPIC)
    }
    return {
        name: (value["producerId"], value["producerEpoch"], value["transactionStatus"])
        for name, value in values.items()
        if value is not None
    }


def resumes_at(broker: Broker, group: str, protocol: str, topic: str) -> int:
    """The first offset of ``topic`` from which a new member of the group reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                return offset
        raise RuntimeError(f"{group} was given nothing in 60 s")
    finally:
        consumer.close()


def test_groups_and_transactional_producers_continue(broker: Broker) -> None:
    broker.start()
    for topic in TOPICS:
        create_topic(broker, topic, {})
        produce(
            broker,
            topic,
            [Sent(b"%d" % n, b"", 1_700_000_000_000) for n in range(200)],
            batch_records=50,
        )
    standing: dict[str, dict[str, int]] = {}
    before: dict[str, tuple[int, int, int]] = {}
    for number in range(ROUNDS):
        base = 10 * number
        for group, protocol in GROUPS.items():
            commits = [{"orders": base + n, "payments": base + n + 1} for n in range(8)]
            join_and_commit(broker, group, commits, protocol=protocol)
            standing[group] = dict(commits[-1])
            if number == 0:
                for topic in OWN[:1]:  # the first group's commit creates the topic
                    set_topic(broker, topic, {"internal.segment.bytes": "1500"})
        join_and_commit(broker, f"gone-{number}", [{"orders": 3}])
        for n, name in enumerate(IDS):
            # Two transactions commit, then one aborts: the group keeps the offset of the second.
            taken = [(True, [b"a", b"b"]), (True, [b"c"]), (False, [b"d", b"e"])]
            transact(broker, name, "payments", taken, group=f"exactly-{n}", offset=base + n)
            standing[f"exactly-{n}"] = {"payments": base + n + 1}
            if number == 0 and n == 0:
                set_topic(broker, TRANSACTIONS_TOPIC, {"internal.segment.bytes": "600"})
        forget(broker, f"gone-{number}")
        broker.stop()

        assert offsets_by_dump(broker) == standing
        producers = producers_by_dump(broker)
        assert set(producers) == set(IDS)
        assert all(state == 5 for _, _, state in producers.values())  # CompleteAbort
        for name, (producer_id, epoch, _) in before.items():
            assert (producers[name][0], producers[name][1] > epoch) == (producer_id, True), name
        before = producers
        counts = {topic: len(decoded(broker, topic)) for topic in OWN}
        for topic in OWN:
            report = lastwrite.compact(str(broker.data), topic=topic, config=CONFIG, spark=INLINE)
            assert {str(partition.status) for partition in report.partitions} == {"cleaned"}, (
                report.to_dict()
            )
            assert len(decoded(broker, topic)) < counts[topic] / 2
        assert lastwrite.verify(str(broker.data), spark=INLINE).ok
        assert offsets_by_dump(broker) == standing
        assert producers_by_dump(broker) == producers

        broker.start()
        for group, offsets in standing.items():
            assert committed(broker, group, TOPICS) == offsets, group
        for gone in range(number + 1):
            assert committed(broker, f"gone-{gone}", TOPICS) == {}
        complaints = [
            line
            for line in broker.said()
            if " ERROR " in line or any(topic in line for topic in OWN)
        ]
        assert complaints == []

    for group, protocol in list(GROUPS.items())[::2]:
        assert resumes_at(broker, group, protocol, "orders") == standing[group]["orders"], group
    assert (
        len(consume(broker, "payments", start=200)) == ROUNDS * len(IDS) * 3
    )  # without records of aborted transactions
