"""Tests of live topics of standalones with metadata in etcd and in RocksDB."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pulsar
import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.network.cluster import ClusterAccess, PulsarCluster
from lastwrite.pulsar.network.etcd import Etcd
from lastwrite.pulsar.network.nodes import NodeExists, VersionMismatch
from lastwrite.pulsar.rules.live_settings import TlsFiles
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.broker import Broker, Unavailable, pulsar_home
from tests.support.pulsar.etcd import etcd_server

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = "persistent://public/default/stored"
EXPECTED = {f"k{n % 5}": b"%d" % n for n in range(30)}


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with etcd_server(tmp_path_factory.mktemp("etcd")) as url:
            yield url
    except Unavailable as reason:
        pytest.skip(str(reason))


def running(folder: Path, metadata: str) -> Iterator[Broker]:
    try:
        made = Broker(pulsar_home(), folder / "data", metadata=metadata)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        send(made, 0, 30)
        yield made


def send(broker: Broker, first: int, count: int) -> None:
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for n in range(first, first + count):
        producer.send(b"%d" % n, partition_key=f"k{n % 5}")
    client.close()


def read_compacted(broker: Broker) -> dict[str, bytes]:
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    seen = {}
    while reader.has_message_available():
        message = reader.read_next(10_000)
        seen[message.partition_key()] = message.data()
    client.close()
    return seen


@pytest.fixture(scope="module")
def with_etcd(etcd: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from running(tmp_path_factory.mktemp("standalone"), f"etcd:{etcd}")


@pytest.fixture(scope="module")
def with_rocksdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    pytest.importorskip("rocksdict")
    yield from running(tmp_path_factory.mktemp("standalone"), "rocksdb")


def settings(broker: Broker) -> dict[str, object]:
    return {"metadataStoreUrl": broker.metadata_url}


def partition_of(report: lastwrite.CompactionReport) -> Mapping[str, object]:
    (found,) = report.to_dict()["partitions"]
    return dict(found)


def test_topic_with_metadata_in_etcd_is_compacted(with_etcd: Broker, tmp_path: Path) -> None:
    config = settings(with_etcd)
    assert lastwrite.fetch([TOPIC], str(tmp_path), config=config).exit_status == 0
    assert lastwrite.latest(str(tmp_path), TOPIC) == EXPECTED
    for _ in range(2):  # the second compacted ledger replaces the first
        found = partition_of(lastwrite.compact(TOPIC, config=config, spark=INLINE))
        assert found["status"] == Status.CLEANED, found
        assert read_compacted(with_etcd) == EXPECTED
        send(with_etcd, 25, 5)
    assert lastwrite.fetch([TOPIC], str(tmp_path), config=config).exit_status == 0
    assert lastwrite.latest(str(tmp_path), TOPIC) == EXPECTED
    with PulsarCluster(ClusterAccess(metadata_store=with_etcd.metadata_url)) as cluster:
        assert cluster.store.noted(TopicName.parse(TOPIC)) == []
        assert TOPIC in [each.full for each in cluster.store.topics("public", "default")]


def test_etcd_client_reads_and_writes(etcd: str) -> None:
    store = Etcd(f"etcd:{etcd}", 10, "", TlsFiles())
    assert store.find("/a/b", "looking") is None and store.children("/a", "looking") == []
    version = store.create("/a/b", b"1", "making")
    assert store.find("/a/b", "looking") == (b"1", version)
    with pytest.raises(NodeExists):
        store.create("/a/b", b"2", "making")
    store.replace("/a/b", b"2", version, "changing")
    with pytest.raises(VersionMismatch):
        store.replace("/a/b", b"3", version, "changing")
    store.create("/a/c/d", b"", "making")
    store.create("/a0", b"", "making")
    assert store.children("/a", "looking") == ["b", "c"]
    assert store.number("/n/ID-", "counting") != store.number("/n/ID-", "counting")
    store.delete("/a/b", "deleting")
    store.delete("/a/b", "deleting")
    assert store.children("/a", "looking") == ["c"]
    store.close()
    dead = Etcd("etcd:http://127.0.0.1:1", 0.5, "", TlsFiles())
    with pytest.raises(RemoteFailed, match="(?i)refused"):
        dead.find("/a", "looking")
    # One of several servers may be down.
    either = Etcd(f"etcd:http://127.0.0.1:1,{etcd}", 10, "", TlsFiles())
    assert either.children("/a", "looking") == ["c"]
    either.close()
    with pytest.raises(InvalidConfig, match="not an etcd address"):
        Etcd("etcd:127.0.0.1:2379", 10, "", TlsFiles())


def test_etcd_authentication_is_used(tmp_path: Path) -> None:
    try:
        with etcd_server(tmp_path) as url:
            for what, asked in (
                ("user/add", {"name": "root", "password": "pass:word"}),
                ("role/add", {"name": "root"}),
                ("user/grant", {"user": "root", "role": "root"}),
                ("enable", {}),
            ):
                request = urllib.request.Request(
                    f"{url}/v3/auth/{what}", json.dumps(asked).encode(), method="POST"
                )
                urllib.request.urlopen(request, timeout=10).close()
            store = Etcd(f"etcd:{url}", 10, "digest:root:pass:word", TlsFiles())
            store.create("/a/b", b"1", "making")
            assert store.children("/a", "looking") == ["b"]
            for auth in ("", "digest:root:wrong"):
                with pytest.raises(RemoteFailed, match="etcd refuses") as caught:
                    Etcd(f"etcd:{url}", 10, auth, TlsFiles()).find("/a/b", "looking")
                assert "wrong" not in str(caught.value)
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_topic_with_metadata_in_rocksdb_is_read_beside_the_standalone(
    with_rocksdb: Broker, tmp_path: Path
) -> None:
    config = settings(with_rocksdb)
    assert lastwrite.fetch([TOPIC], str(tmp_path), config=config).exit_status == 0
    assert lastwrite.latest(str(tmp_path), TOPIC) == EXPECTED
    send(with_rocksdb, 25, 5)
    assert lastwrite.fetch([TOPIC], str(tmp_path), config=config).exit_status == 0
    assert lastwrite.verify(str(tmp_path), spark=INLINE).exit_status == 0
    planned = partition_of(lastwrite.plan(TOPIC, config=config, spark=INLINE))
    assert planned["status"] == Status.CLEANED, planned
    with pytest.raises(InvalidConfig, match="can only read this metadata store"):
        lastwrite.compact(TOPIC, config=config, spark=INLINE)
    with pytest.raises(InvalidConfig, match="not a RocksDB store"):
        lastwrite.fetch([TOPIC], str(tmp_path), config={"metadataStoreUrl": "rocksdb:///nowhere"})
