"""Tests of ``lastwrite compact persistent://…`` on a real standalone.

Pulsar's Java and C++ clients read the results. Rounds run in this process without Spark; one runs
through the command and Spark.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import CorruptLog, InvalidConfig, LogHeld, NotALog, RemoteFailed
from lastwrite.model.progress import NoProgress
from lastwrite.pulsar.format.managed_ledger import ManagedLedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.live import backlog_bytes
from lastwrite.pulsar.network.cluster import ClusterAccess, Compaction, CursorHold, PulsarCluster
from lastwrite.pulsar.network.metadata import open_nodes
from lastwrite.pulsar.rules.live_settings import TlsFiles
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.broker import Broker
from tests.support.pulsar.driver import Driver

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


def line(*pairs: str, **other: object) -> dict[str, Any]:
    """A line of the driver's input: ``k=v`` each, ``k=`` to delete, ``=v`` without key."""
    messages = []
    for pair in pairs:
        key, _, value = pair.partition("=")
        message: dict[str, object] = {
            "value": base64.b64encode(value.encode()).decode() if value else None
        }
        messages.append(message | ({"key": key} if key else {}))
    return {"messages": messages, **other}


def settings(broker: Broker, **other: object) -> dict[str, object]:
    return {"metadataStoreUrl": f"zk:{broker.metadata_store}", **other}


def compact(broker: Broker, topic: str, **other: Any) -> Mapping[str, Any]:
    """Run one round. Returns the report of the only partition."""
    config = settings(broker) | other.pop("config", {})
    report = lastwrite.compact(topic, config=config, spark=INLINE, **other)
    (found,) = report.to_dict()["partitions"]
    return dict(found)


def view(driver: Driver, topic: str) -> list[tuple[str, object, object]]:
    """The messages that a Java reader of the compacted topic gets: id, key and value, each once."""
    return [
        (f"{m['ledger']}:{m['entry']}:{m['index']}", m["key"], m["value"])
        for m in driver.read(topic, compacted=True)
    ]


def compaction(broker: Broker, topic: str) -> Compaction | None:
    with PulsarCluster(ClusterAccess(metadata_store=broker.metadata_store)) as cluster:
        return cluster.compaction_of(TopicName.parse(topic))


def leftovers(broker: Broker, topic: str) -> tuple[list[int], list[int]]:
    """The topic's compacted ledgers, and the journals of unfinished ones."""
    name = TopicName.parse(topic)
    with PulsarCluster(ClusterAccess(metadata_store=broker.metadata_store)) as cluster:
        found = (cluster.store.ledger(number) for number in range(600))
        ours = [
            each.id
            for each in found
            if each is not None and each.metadata.compacted_topic == name.full
        ]
        return ours, cluster.store.noted(name)


def every_shape(round_: int) -> list[dict[str, Any]]:
    """Singles and batches of every codec, deletes, keyless messages, chunks, and committed and
    aborted transactions.
    """
    lines: list[dict[str, Any]] = []
    for n, codec in enumerate(CODECS):
        lines.append(
            line(*(f"s{m}={codec}{round_}{'x' * 200}" for m in range(n, n + 3)), codec=codec)
        )
        pairs = [f"b{(n + m) % 7}={codec}{m}{round_}{'y' * 100}" for m in range(6)]
        lines.append(line(*pairs, "=keyless", f"d{n}=", codec=codec, batch=True))
    lines.append(line("chunked=" + "z" * 3000 + str(round_), chunk=700))
    lines.append(line(f"t1=committed{round_}", txn="c"))
    lines.append(line(f"t2=aborted{round_}", txn="a"))
    lines.append({"commit": "c"})
    lines.append({"abort": "a"})
    lines.append(line(f"d{round_}=alive", f"s1={round_}", "s2="))
    return lines


def miscount(broker: Broker, topic: str, position: int) -> None:
    """Reduce the entry count of the ledger at ``position`` in the list of an unloaded topic."""
    url, name = f"zk:{broker.metadata_store}", TopicName.parse(topic)
    path = f"/managed-ledgers/{name.managed_ledger}"
    with contextlib.closing(open_nodes(url, "/ledgers", 10, "", TlsFiles())) as nodes:
        node = nodes.find(path, "testing")
        assert node is not None
        info = ManagedLedgerInfo.decode_node(node.data)
        ledgers = list(info.ledgers)
        entries = ledgers[position].entries
        assert entries is not None
        ledgers[position] = replace(ledgers[position], entries=entries - 1)
        lowered = replace(info, ledgers=tuple(ledgers)).encode()
        nodes.replace(path, lowered, node.version, "testing")


@pytest.mark.parametrize("position", [0, 1])
def test_ledger_is_read_to_its_end_despite_the_ledger_list(
    pulsar: Broker, driver: Driver, tmp_path: Path, position: int
) -> None:
    """A failed write makes the ledger list count one entry too few. Here that entry is a delete."""
    ours = driver.fresh()
    theirs = ours + "-theirs"
    driver.create(theirs)
    for topic in (ours, theirs):
        driver.send(topic, [line("a=1"), line("b=1"), line("c=1"), line("a=")])
        driver.unload(topic)
        driver.send(topic, [line("b=2"), line("c=")])
        driver.unload(topic)
        driver.send(topic, [line("d=1")])
        driver.unload(topic)
        miscount(pulsar, topic, position)
    whole = lastwrite.fetch([ours], str(tmp_path / "archive"), config=settings(pulsar))
    assert (whole.exit_status, [each.entries for each in whole.topics[0].ledgers]) == (0, [4, 2, 1])
    planned = backlog_bytes(ours, settings(pulsar))
    report = compact(pulsar, ours)
    assert report["status"] == Status.CLEANED, report
    assert driver.compact(theirs)["did"]
    found, expected = view(driver, ours), view(driver, theirs)
    assert [each[1:] for each in found] == [each[1:] for each in expected]
    assert [key for _, key, _ in found] == ["b", "d"]
    assert planned > backlog_bytes(ours, settings(pulsar)) == 0
    again = lastwrite.fetch([ours], str(tmp_path / "archive"), config=settings(pulsar))
    assert again.exit_status == 0
    [folder] = (tmp_path / "archive").glob("pulsar/**/manifest.json")
    assert lastwrite.verify(str(folder.parent)).exit_status == 0


@pytest.mark.long
def test_rounds_equal_the_brokers_own_rounds(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    """Two topics get the same messages. The broker compacts one of them and we the other."""
    ours = driver.fresh()
    theirs = ours + "-theirs"
    driver.create(theirs)
    for round_ in range(2):
        for topic in (ours, theirs):
            driver.send(topic, every_shape(round_))
        assert driver.compact(theirs)["did"]
        report = compact(pulsar, ours, archive=str(tmp_path), like_broker=True)
        assert report["status"] == Status.CLEANED, report
        found, expected = view(driver, ours), view(driver, theirs)
        assert [each[1:] for each in found] == [each[1:] for each in expected]
        state = compaction(pulsar, ours)
        assert state is not None and report["published"]["ledger"] == state.ledger
        if round_ == 0:
            driver.unload(ours)
            driver.unload(theirs)
    assert leftovers(pulsar, ours) == ([state.ledger], [])
    skipped = compact(pulsar, ours, archive=str(tmp_path))
    assert (skipped["status"], skipped["published"]) == (Status.SKIPPED, None)


def test_both_clients_read_the_result_before_and_after_a_restart(
    pulsar: Broker, driver: Driver
) -> None:
    import pulsar as cpp

    topic = driver.fresh()
    driver.send(
        topic,
        [line(*(f"k{n % 5}={n}" for n in range(40)), batch=True, codec="LZ4"), line("k1=", "k9=9")],
    )
    assert compact(pulsar, topic)["published"] is not None
    driver.send(topic, [line("k2=tail")])

    def both() -> list[tuple[object, bytes]]:
        java = [(key, base64.b64decode(str(value or ""))) for _, key, value in view(driver, topic)]
        client = cpp.Client(
            pulsar.service_url, logger=cpp.FileLogger(cpp.LoggerLevel.Error, os.devnull)
        )
        reader = client.create_reader(topic, cpp.MessageId.earliest, is_read_compacted=True)
        read = []
        while reader.has_message_available():
            message = reader.read_next(10_000)
            # The C++ client returns messages without key and data at the positions of removed ones.
            if message.partition_key() or message.data():
                read.append((message.partition_key(), message.data()))
        client.close()
        assert read == java
        return java

    expected = [
        ("k0", b"35"),
        ("k2", b"37"),
        ("k3", b"38"),
        ("k4", b"39"),
        ("k9", b"9"),
        ("k2", b"tail"),
    ]
    assert both() == expected
    # Two rounds without a pause, then a crash: a reported round must be on disk.
    for value in ("first", "second"):
        driver.send(topic, [line(f"k2={value}")])
        assert compact(pulsar, topic)["published"] is not None
    pulsar.kill()
    pulsar.start()
    assert both() == [*(pair for pair in expected if pair[0] != "k2"), ("k2", b"second")]


@pytest.mark.long
def test_rounds_lose_nothing_while_a_producer_writes(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    """Rounds over a growing ledger, also while the topic is reloaded. Readers end with the last
    value of every key.
    """
    import pulsar as cpp

    topic = driver.fresh()
    client = cpp.Client(
        pulsar.service_url, logger=cpp.FileLogger(cpp.LoggerLevel.Error, os.devnull)
    )
    sent: dict[str, str] = {}
    stop = threading.Event()

    def produce() -> None:
        batched = client.create_producer(topic, batching_max_publish_delay_ms=5)
        single = client.create_producer(topic, batching_enabled=False)
        for n in itertools.count():
            if stop.is_set():
                break
            key, value = f"k{n * 7 % 31}", "" if n % 11 == 0 else str(n)
            (batched if n // 50 % 2 else single).send(value.encode(), partition_key=key)
            sent[key] = value
        batched.close()
        single.close()

    thread = threading.Thread(target=produce)
    thread.start()
    rounds = []
    try:
        for n in range(6):
            time.sleep(0.5)
            rounds.append(compact(pulsar, topic, archive=str(tmp_path)))
            if n % 3 == 1:
                driver.unload(topic)
    finally:
        stop.set()
        thread.join(120)
        client.close()
    rounds.append(compact(pulsar, topic, archive=str(tmp_path)))
    assert all(each["status"] == Status.CLEANED and each["published"] for each in rounds[:-1]), (
        rounds
    )
    alive = {key: value for key, value in sent.items() if value}
    found = {
        str(key): base64.b64decode(str(value or "")).decode()
        for _, key, value in view(driver, topic)
    }
    assert {key: value for key, value in found.items() if value} == alive
    assert len(leftovers(pulsar, topic)[0]) == 1


def test_partitions_are_compacted_as_separate_topics(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    topic = driver.fresh(partitions=3)
    for n in (0, 2):  # nothing was ever sent to the second topic
        driver.send(f"{topic}-partition-{n}", [line(f"a={n}", f"b={n}", "a=2")])
    driver.send(f"{topic}-partition-1", [])
    report = lastwrite.compact(topic, config=settings(pulsar), spark=INLINE)
    found = {each.partition: each for each in report.partitions}
    assert {n: each.status for n, each in found.items() if n != 1} == {
        0: Status.CLEANED,
        2: Status.CLEANED,
    }
    assert found[0].published is not None and found[2].published is not None
    for n in (0, 2):
        assert [key for _, key, _ in view(driver, f"{topic}-partition-{n}")] == ["b", "a"]
    driver.send(f"{topic}-partition-2", [line("c=1")])
    one = compact(pulsar, topic, partition=2)
    assert (one["topic"], one["partition"]) == (topic, 2)
    assert [key for _, key, _ in view(driver, f"{topic}-partition-2")] == ["b", "a", "c"]
    with pytest.raises(InvalidConfig, match="has 3 partitions"):
        compact(pulsar, topic, partition=3)


def test_plan_and_copy_change_nothing(pulsar: Broker, driver: Driver, tmp_path: Path) -> None:
    topic = driver.fresh()
    driver.send(topic, [line("a=1", "a=2", "b=1")])
    with CursorHold(
        cluster := PulsarCluster(ClusterAccess(metadata_store=pulsar.metadata_store)),
        TopicName.parse(topic),
    ):
        pass
    cluster.close()
    before = compaction(pulsar, topic)
    planned = lastwrite.plan(topic, config=settings(pulsar), spark=INLINE)
    assert planned.dry_run
    (found,) = planned.partitions
    assert (found.records_before, found.records_after) == (3, 2)
    copied = compact(pulsar, topic, to=str(tmp_path / "copy"))
    assert (copied["status"], copied["published"]) == (Status.CLEANED, None)
    assert (
        tmp_path / "copy/public/default/persistent" / topic.rpartition("/")[2] / "compacted.json"
    ).exists()
    assert compaction(pulsar, topic) == before
    assert leftovers(pulsar, topic) == ([], [])


def test_plan_leaves_no_subscription(pulsar: Broker, driver: Driver) -> None:
    topic = driver.fresh()
    driver.send(topic, [line("a=1", "a=2")])
    lastwrite.plan(topic, config=settings(pulsar), spark=INLINE)
    assert compaction(pulsar, topic) is None


def test_topic_under_compaction_by_another_process_is_refused(
    pulsar: Broker, driver: Driver
) -> None:
    topic = driver.fresh()
    driver.send(topic, [line("a=1")])
    with PulsarCluster(ClusterAccess(metadata_store=pulsar.metadata_store)) as cluster:
        with (
            CursorHold(cluster, TopicName.parse(topic)),
            pytest.raises(LogHeld, match="the other compaction"),
        ):
            compact(pulsar, topic)
    assert compact(pulsar, topic)["published"] is not None


def test_wrong_arguments_are_refused_before_any_change(pulsar: Broker, tmp_path: Path) -> None:
    topic = "persistent://public/default/nowhere"
    with pytest.raises(InvalidConfig, match="metadata store"):
        lastwrite.compact(topic, spark=INLINE)
    with pytest.raises(NotALog, match="does not exist"):
        compact(pulsar, topic)
    with pytest.raises(InvalidConfig, match="there is no setting"):
        compact(pulsar, topic, config={"topicCompactionRetainNulKey": "true"})
    with pytest.raises(InvalidConfig, match="metadataStoreUrl"):
        compact(pulsar, topic, config={"metadataStoreUrl": "rocksdb:///var/lib"})
    with pytest.raises(InvalidConfig, match="http://h:6651"):
        compact(pulsar, topic, config={"brokerServiceUrl": "http://h:6651"})
    with pytest.raises(InvalidConfig, match="--archive"):
        lastwrite.compact(str(tmp_path), archive=str(tmp_path), spark=INLINE)
    with pytest.raises(InvalidConfig, match="names the system and the topic"):
        lastwrite.compact(topic, topic="x", config=settings(pulsar), spark=INLINE)
    with pytest.raises(RemoteFailed, match="connection refused"):
        compact(pulsar, topic, config={"brokerServiceUrl": "pulsar://127.0.0.1:1"})


@pytest.mark.long
def test_lost_compacted_ledger_is_reported_and_replaced_on_request(
    pulsar: Broker, driver: Driver
) -> None:
    topic = driver.fresh()
    driver.send(topic, [line("a=1", "b=1", "a=2")])
    first = compact(pulsar, topic)["published"]
    driver.send(topic, [line("b=2")])
    with PulsarCluster(ClusterAccess(metadata_store=pulsar.metadata_store)) as cluster:
        cluster.store.delete_ledger(first["ledger"])
    driver.unload(topic)
    with pytest.raises(CorruptLog, match="no longer has this ledger") as caught:
        compact(pulsar, topic)
    assert "--unclean" in str(caught.value.remedy)
    report = compact(pulsar, topic, config={"unclean": "true"})
    assert report["published"] is not None, report
    driver.unload(topic)
    assert [key for _, key, _ in view(driver, topic)] == ["a", "b"]
    assert leftovers(pulsar, topic) == ([report["published"]["ledger"]], [])


def test_topic_unloaded_during_a_round_is_published(pulsar: Broker, driver: Driver) -> None:
    """The broker unloads the topic, and so ends our subscription, just before the commit."""
    topic = driver.fresh()
    driver.send(topic, [line("a=1", "b=1", "a=2")])
    told: list[str] = []

    class Unloading(NoProgress):
        def note(self, text: str) -> None:
            told.append(text)
            if text.startswith("publishing"):
                driver.unload(topic)

    report = compact(pulsar, topic, progress=Unloading())
    assert [text.split()[0] for text in told] == ["fetching", "publishing"]
    assert report["published"] is not None, report
    assert [key for _, key, _ in view(driver, topic)] == ["b", "a"]
    assert leftovers(pulsar, topic) == ([report["published"]["ledger"]], [])


def test_archive_of_another_topic_of_the_same_name_is_refused(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    topic = driver.fresh()
    driver.send(topic, [line("a=1", "a=2")])
    lastwrite.plan(topic, config=settings(pulsar), spark=INLINE, archive=str(tmp_path))
    driver.ask("delete", topic=topic)
    driver.create(topic)
    driver.send(topic, [line("b=1")])
    with pytest.raises(InvalidConfig, match="but the topic's ledger list does not"):
        compact(pulsar, topic, archive=str(tmp_path))
    assert leftovers(pulsar, topic) == ([], [])


def test_reads_and_writes_are_rate_limited(pulsar: Broker, driver: Driver) -> None:
    topic = driver.fresh()
    driver.send(topic, [line(*(f"k{n}={'v' * 1000}" for n in range(10)))])
    begun = time.monotonic()
    compact(pulsar, topic, config={"compactionWriteMaxBytesPerSecond": "15000"})
    first = time.monotonic() - begun
    driver.send(topic, [line("k=1")])
    begun = time.monotonic()
    compact(pulsar, topic, config={"compactionReadMaxBytesPerSecond": "15000"})
    assert first > 0.5 and time.monotonic() - begun > 0.5


def test_backlog_is_estimated_from_metadata(pulsar: Broker, driver: Driver) -> None:
    topic = driver.fresh()
    driver.send(topic, [line(*(f"k{n}={'v' * 100}" for n in range(20)))])
    whole = backlog_bytes(topic, settings(pulsar))
    assert 20 * 100 < whole < 20 * 300
    compact(pulsar, topic)
    assert backlog_bytes(topic, settings(pulsar)) == 0
    driver.send(topic, [line("k=" + "v" * 100)])
    assert 100 < backlog_bytes(topic, settings(pulsar)) < 300


STEPS = ("write", "acknowledge", "look", "clear")


@pytest.mark.parametrize(
    "step", [pytest.param(s, marks=[pytest.mark.long] if s != "acknowledge" else []) for s in STEPS]
)
def test_killed_run_leaves_the_old_round_or_the_new(
    pulsar: Broker, driver: Driver, tmp_path: Path, step: str
) -> None:
    topic = driver.fresh()
    driver.send(topic, [line("a=1", "b=1", "a=2")])
    compact(pulsar, topic, archive=str(tmp_path / "archive"))
    driver.send(topic, [line("b=2", "c=1")])
    log = tmp_path / "points"
    script = (
        "import sys, lastwrite\nfrom lastwrite.storage.files import faults\n"
        "from lastwrite.spark.inline import INLINE\n"
        "reach = faults.reach\n"
        "def stop(step, path):\n"
        "    if step == sys.argv[3] and path == sys.argv[1]:\n"
        "        faults.point, faults.is_armed = 1, True\n"
        "    reach(step, path)\n"
        "type(faults).reach = staticmethod(stop)\n"
        "lastwrite.compact(sys.argv[1], config={'metadataStoreUrl': sys.argv[2]}, spark=INLINE, archive=sys.argv[4])\n"
    )
    arguments = [topic, f"zk:{pulsar.metadata_store}", step, str(tmp_path / "archive")]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], timeout=120, capture_output=True, text=True
    )
    assert done.returncode == -9, (done.stderr, log)
    deadline = time.monotonic() + 120
    # The metadata store and the broker end the killed process's session and subscription after
    # their timeouts.
    while True:
        try:
            report = compact(pulsar, topic, archive=str(tmp_path / "archive"))
            break
        except LogHeld:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert report["status"] in (Status.CLEANED, Status.SKIPPED)
    driver.send(topic, [line("d=1")])
    last = compact(pulsar, topic, archive=str(tmp_path / "archive"))
    assert [key for _, key, _ in view(driver, topic)] == ["a", "b", "c", "d"]
    assert leftovers(pulsar, topic) == ([last["published"]["ledger"]], [])


@pytest.mark.long
@pytest.mark.spark
def test_compact_command_uses_a_broker_conf(pulsar: Broker, driver: Driver, tmp_path: Path) -> None:
    """With a broker's own configuration file, as an operator uses it."""
    topic = driver.fresh()
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"metadataStoreUrl=zk:{pulsar.metadata_store}\nmanagedLedgerDefaultEnsembleSize=1\n"
        "managedLedgerDefaultWriteQuorum=1\nmanagedLedgerDefaultAckQuorum=1\nclusterName=standalone\n"
    )
    driver.send(
        topic, [line(*(f"k{n % 10}={n}" for n in range(100)), batch=True), line("=keyless", "k3=")]
    )
    command = [
        sys.executable,
        "-m",
        "lastwrite.cli",
        "compact",
        topic,
        "--config-file",
        str(conf),
        "--config",
        "topicCompactionRetainNullKey=true",
        "--master",
        "local[2]",
        "--json",
    ]
    done = subprocess.run(command, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["partitions"]
    assert (found["records_before"], found["records_after"]) == (102, 10)
    assert [key for _, key, _ in view(driver, topic)] == [
        f"k{n}" for n in (0, 1, 2, 4, 5, 6, 7, 8, 9)
    ] + [None]
