"""Tests of ``fetch`` from live brokers of older releases: the archive has the bytes of their
files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

import lastwrite
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot
from lastwrite.spark.inline import INLINE
from tests.conformance.test_kafka_archive import Archive
from tests.support.kafka.broker import Broker, Unavailable
from tests.support.kafka.clients import Sent, consume, create_topic, produce
from tests.support.kafka.logs import headers_of
from tests.support.kafka.trio import wait_for
from tests.support.kafka.versions import VERSIONS, broker_of, number_of
from tests.system.test_kafka_live import (
    SMALL,
    START_MS,
    check_same,
    one,
    refused,
    stored,
    write_plain,
    write_random,
)

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture(params=VERSIONS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    try:
        made = broker_of(request.param, tmp_path / "data")
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        yield made.start()
    finally:
        made.kill()


def _producers(snapshot: bytes, version: tuple[int, ...]) -> list[ProducerEntry]:
    """The producers in a snapshot.

    Before Kafka 2.4, transaction markers do not update timestamps, so these are compared as 0.
    """
    found = sorted(decode_snapshot(snapshot))
    return found if version >= (2, 4) else [each._replace(timestamp_ms=0) for each in found]


def version_of(broker: Broker) -> str:
    return broker.home.name.partition("-")[2]


def test_fetched_bytes_equal_the_brokers_files(broker: Broker, tmp_path: Path) -> None:
    version = number_of(version_of(broker))
    settings = {name.replace("internal.", ""): value for name, value in SMALL.items()}
    create_topic(broker, "bytes", settings)
    write_random(broker, "bytes", 1, 12)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    at = TopicPartition("bytes", 0, 7, metadata="here", leader_epoch=0)
    consumer.commit(offsets=[at], asynchronous=False)
    consumer.close()
    archive = Archive(tmp_path / "archive", "bytes-0")

    assert one(broker, archive.to, "bytes").reason is None

    check_same(broker, archive)
    assert archive.log()["known"]["topic"] == settings
    assert archive.log()["groups"] == [["g", 7, 0, "here\0"]]
    assert (archive.log()["topic_id"] is None) == (version < (2, 8))

    broker.stop()
    end = archive.log()["end_offset"]
    theirs = (broker.data / "bytes-0" / f"{end:020d}.snapshot").read_bytes()
    ours = (archive.folder / archive.log()["snapshot"]).read_bytes()
    assert _producers(ours, version) == _producers(theirs, version)
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    wait_for(lambda: "bytes" in admin.list_topics(timeout=5).topics)
    write_random(broker, "bytes", 2, 3)
    more = one(broker, archive.to, "bytes")
    assert more.reason is None and more.first_offset == end < more.end_offset
    check_same(broker, archive)
    # Without ZooKeeper a single broker starts a new epoch.
    assert len(archive.log()["epochs"]) == (1 if version < (3, 3) else 2)

    lastwrite.compact(str(archive.to), topic="bytes", spark=INLINE)
    table = {seen.key: seen.value for seen in consume(broker, "bytes")}
    left = {key: value for key, value in table.items() if value is not None}
    assert dict(lastwrite.latest(str(archive.to), "bytes")) == left
    assert left


@pytest.mark.parametrize("broker", [v for v in VERSIONS if number_of(v) < (3, 0)], indirect=True)
def test_records_in_older_formats_are_fetched(broker: Broker, tmp_path: Path) -> None:
    """Since 3.0 a broker writes only the newest format."""
    for topic, format in (("magic0", "0.9.0"), ("magic1", "0.10.2")):
        create_topic(broker, topic, {"message.format.version": format})
        for codec in ("none", "gzip", "snappy", "lz4"):
            records = [Sent(f"k{n}".encode(), f"{codec}{n}".encode(), START_MS) for n in range(9)]
            produce(broker, topic, records, codec=codec, batch_records=3)
        archive = Archive(tmp_path / "archive", f"{topic}-0")
        assert one(broker, archive.to, topic).end_offset == 36
        assert b"".join(archive.batches()) == stored(broker, f"{topic}-0")


def test_log_that_lost_its_end_in_the_same_epoch_is_refused(broker: Broker, tmp_path: Path) -> None:
    """A single broker with ZooKeeper continues in the epoch in which it crashed."""
    create_topic(broker, "lost", {})
    write_plain(broker, "lost", 100)
    archive = Archive(tmp_path / "archive", "lost-0")
    one(broker, archive.to, "lost")
    before = (archive.folder / "manifest.json").read_bytes()
    broker.stop()
    log = broker.data / "lost-0" / f"{0:020d}.log"
    at = next(at for at, header in headers_of(log) if header.base_offset == 60)
    with log.open("r+b") as file:
        file.truncate(at)
    (broker.data / ".kafka_cleanshutdown").unlink()
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    wait_for(lambda: "lost" in admin.list_topics(timeout=5).topics)
    for more in (0, 20, 100):  # the new end is below, at and beyond the archive's end
        write_plain(broker, "lost", more, "w")
        refused(one(broker, archive.to, "lost"), archive, before)


def test_recreated_topic_is_refused(broker: Broker, tmp_path: Path) -> None:
    """Also if topics have no ids, and if both topics are compacted."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    settings = {"cleanup.policy": "compact"}
    for topic, count in (("shorter", 5), ("longer", 30)):
        create_topic(broker, topic, settings)
        write_plain(broker, topic, 10)
        archive = Archive(tmp_path / "archive", f"{topic}-0")
        one(broker, archive.to, topic)
        before = (archive.folder / "manifest.json").read_bytes()
        for done in admin.delete_topics([topic]).values():
            done.result(30)
        wait_for(lambda topic=topic: create_topic(broker, topic, settings) is None)
        write_plain(broker, topic, count, "w")
        assert "the topic was deleted and created again" in refused(
            one(broker, archive.to, topic), archive, before
        )
