"""Tests of ``serve`` on data of RocketMQ and Pulsar brokers, read by Kafka's clients from one
server.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

import lastwrite
from lastwrite.errors import InvalidConfig
from lastwrite.model.work import Limits
from lastwrite.rows.reading import read_rows, row_units
from lastwrite.rows.system import rows_of
from lastwrite.server.serve import RunningServer
from tests.support.kafka.broker import Unavailable, kafka_home
from tests.support.pulsar.folders import batch, single, write_ledger

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parents[1] / "corpus"
JAVA = Path(__file__).parents[1] / "support" / "kafka" / "Consume.java"
COLUMNS = ("key", "value", "offset", "timestamp", "headers")
FILES = "persistent://public/fs/files"


class Place(NamedTuple):
    serving: RunningServer
    store: Path
    archive: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("serve")
    store, archive = folder / "store", folder / "archive"
    shutil.copytree(CORPUS / "rocketmq" / "5.5.0", store)
    lastwrite.fetch([str(CORPUS / "pulsar" / "filesystem")], to=str(archive))
    state = str(folder / "state")
    with lastwrite.serve(
        [str(store), str(archive)], listen="127.0.0.1:0", state=state, compression="lz4"
    ) as serving:
        yield Place(serving, store, archive)


class Seen(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: list[tuple[str, bytes]]


def read(address: str, topic: str, partitions: int = 1) -> list[Seen]:
    """All records that a consumer gets from the beginning to the end."""
    member = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "all",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "socket.timeout.ms": 120_000,
        }
    )
    found: list[Seen] = []
    for number in range(partitions):
        member.assign([TopicPartition(topic, number, 0)])
        until = time.monotonic() + 240
        while time.monotonic() < until:
            message = member.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                break
            offset, key, value = message.offset(), message.key(), message.value()
            assert offset is not None and not isinstance(key, str) and not isinstance(value, str)
            headers: Any = message.headers() or []
            found.append(Seen(number, offset, key, value, message.timestamp()[1], headers))
    member.close()
    return found


def expected(system: str, path: Path, topic: str) -> list[Seen]:
    """The same records from our own reader of that system."""
    rows = rows_of(system)
    return [
        Seen(
            max(log.name.partition, 0),
            row["offset"],
            row["key"],
            row["value"] if row["value"] or row["key"] is None else None,
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            [(each["key"], each["value"]) for each in row["headers"] or ()],
        )
        for log in rows.logs_of(str(path), topic, is_compacted=True)
        for unit in row_units(rows, log, COLUMNS, is_committed=True)
        for found in read_rows(unit, Limits())
        for row in found.to_pylist()
    ]


def test_store_of_a_rocketmq_broker_is_served(place: Place) -> None:
    found = read(place.serving.address, "ctopic", 2)
    assert found == expected("rocketmq", place.store, "ctopic") and len(found) == 118
    table: dict[bytes, tuple[int, bytes]] = {}
    for each in sorted(found, key=lambda each: each.time_ms):
        if each.key is not None and each.value is None:
            table.pop(each.key, None)
        elif each.key is not None and each.value is not None:
            table[each.key] = each.time_ms, each.value
    latest = lastwrite.latest(str(place.store), "ctopic")
    assert {key.decode(): value for key, (_, value) in table.items()} == dict(latest)


def test_pulsar_topic_and_its_new_entries_are_served(place: Place) -> None:
    found = read(place.serving.address, "files")
    wanted = expected("pulsar", place.archive, FILES)
    assert len(found) == 95
    assert [each[2:] for each in found] == [each[2:] for each in wanted]
    entries = [(each.offset >> 36, each.offset >> 12 & 0xFFFFFF) for each in found]
    assert entries == [(each.offset >> 32, each.offset & 0xFFFFFFFF) for each in wanted]
    offsets = [each.offset for each in found]
    assert offsets == sorted(set(offsets))
    ledger = entries[-1][0] + 5
    more = [single("late", "one", 1), batch([("late", "two"), ("other", None)], 2)]
    write_ledger(place.archive / "public/fs/persistent/files", ledger, more)
    until = time.monotonic() + 120
    while len(found) < 98 and time.monotonic() < until:
        found = read(place.serving.address, "files")
    assert [(each.offset, each.key, each.value) for each in found[95:]] == [
        (ledger << 36, b"late", b"one"),
        (ledger << 36 | 1 << 12, b"late", b"two"),
        (ledger << 36 | 1 << 12 | 1, b"other", None),
    ]


@pytest.mark.broker
@pytest.mark.long
def test_java_consumer_reads_both(place: Place) -> None:
    try:
        home = kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))
    if shutil.which("javac") is None:
        pytest.skip("no JDK")
    for topic, partitions in (("ctopic", 2), ("files", 1)):
        command = [
            "java",
            "-cp",
            str(home / "lib" / "*"),
            str(JAVA),
            place.serving.address,
            "classic",
        ]
        ended = subprocess.run(
            [*command, topic, f"java-{topic}", "3"],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        by_us = [
            f"{each.partition} {each.offset}"
            for each in read(place.serving.address, topic, partitions)
        ]
        assert sorted(ended.stdout.splitlines()) == sorted(by_us) and by_us


def test_topics_with_the_same_name_are_refused(place: Place, tmp_path: Path) -> None:
    shutil.copytree(place.store, tmp_path / "again")
    with pytest.raises(InvalidConfig, match="ctopic-0 exists in"):
        lastwrite.serve(
            [str(place.store), str(tmp_path / "again")],
            listen="127.0.0.1:0",
            state=str(tmp_path / "state"),
        )
    folder = tmp_path / "pulsar" / "public" / "default" / "persistent" / "ctopic"
    folder.mkdir(parents=True)
    write_ledger(folder, 7, [single("a", "b")])
    with pytest.raises(InvalidConfig, match="two topics are named ctopic: in .* and in"):
        lastwrite.serve(
            [str(place.store), str(tmp_path / "pulsar")],
            listen="127.0.0.1:0",
            state=str(tmp_path / "state"),
        )
