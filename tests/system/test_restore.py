"""Tests of restoring a lost Kafka cluster from an archive in a bucket.

The archive is restored into a new cluster and into the old one. Real brokers and two kinds of
clients judge the result.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

import lastwrite
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import METADATA_TOPIC
from lastwrite.kafka.restored import LogsRestored
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Seen, Sent, bounds, consume, create_topic, produce
from tests.support.kafka.groups import PROTOCOLS, committed, join_and_commit, transact
from tests.support.kafka.logs import headers_of
from tests.support.kafka.wire import Answer, Wire
from tests.support.objects import BUCKET, S3, s3_server
from tests.system.test_internal_topics import resumes_at

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SETTINGS = {"offsets.topic.num.partitions": "2"}
TOPICS = {
    "table": {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "2000",
        "segment.index.bytes": "1024",
    },
    "paid": {"internal.segment.bytes": "2000", "segment.index.bytes": "1024"},
    "once": {"cleanup.policy": "compact,delete", "retention.ms": "-1"},
    "lines": {},
}
GROUPS = {f"{protocol}-{n}": protocol for protocol in PROTOCOLS for n in range(2)}
STANDS = {"table": 90, "once": 31}
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "restore.md"
JAVA = Path(__file__).parents[1] / "support" / "kafka" / "Resume.java"
# Log levels at which a starting broker reports each log and whether it recovers it.
LOG_LINES = " ".join(
    f"-Dorg.slf4j.simpleLogger.log.{name}=info"
    for name in ("org.apache.kafka.storage.internals.log", "kafka.log")
)
RECOVERED = re.compile(r"partition=(\S+)-0,.*Recovering unflushed segment (\d+)")

State = dict[str, tuple[tuple[int, int], list[Seen]]]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3") / "data", BUCKET) as server:
        yield server


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Broker, Broker]]:
    """The broker that is lost and a new one, which is not started."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", LOG_LINES)
    try:
        home = kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))
    made = Broker(home, tmp_path / "lost", SETTINGS), Broker(home, tmp_path / "new", SETTINGS)
    try:
        yield made
    finally:
        for broker in made:
            broker.kill()


def fill(broker: Broker) -> State:
    """Write a table, transactions, idempotent batches and keyless records, and commit group
    offsets.

    The groups commit in a leader epoch that a new cluster does not reach.
    """
    broker.start()
    now_ms = int(time.time() * 1000)
    for topic, settings in TOPICS.items():
        create_topic(broker, topic, settings)
    table = [Sent(b"k%d" % (n % 9), b"v%d" % n, now_ms + n, (("h", b"x"),)) for n in range(120)]
    produce(broker, "table", table, codec="zstd")
    paid = [(n % 2 == 0, [b"%d-%d" % (n, i) for i in range(9)]) for n in range(6)]
    transact(broker, "till", "paid", paid)
    once = [Sent(b"%d" % n, b"v%d" % n, now_ms) for n in range(40)]
    produce(broker, "once", once, settings={"enable.idempotence": True})
    produce(broker, "lines", [Sent(None, b"line %d" % n, now_ms) for n in range(30)])
    for _ in range(2):
        broker.stop()
        broker.start()
    for group, protocol in GROUPS.items():
        commits = [{topic: offset - 1 + n for topic, offset in STANDS.items()} for n in range(2)]
        join_and_commit(broker, group, commits, protocol=protocol)
    return state(broker)


def state(broker: Broker) -> State:
    deadline = time.monotonic() + 120
    for topic in TOPICS:
        while True:  # a broker that has just started does not lead its partitions yet
            try:
                bounds(broker, topic)
                break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
    return {topic: (bounds(broker, topic), consume(broker, topic)) for topic in TOPICS}


def restore(address: str, broker: Broker, s3: S3) -> LogsRestored:
    report = lastwrite.restore(address, to=str(broker.data), config=s3.config)
    assert isinstance(report, LogsRestored)
    assert report.exit_status == 0, [each.reason for each in report.partitions]
    return report


def make_topics(broker: Broker, commands: str) -> None:
    """Create the topics as the commands would."""
    lines = commands.partition("run the command again: ")[2].split("; ")
    assert len(lines) == len(TOPICS)
    for line in lines:
        tool, *words = shlex.split(line)
        assert (tool, words[2:4], words[5:7]) == (
            "kafka-topics.sh",
            ["--create", "--topic"],
            ["--partitions", "1"],
        )
        settings = dict(word.split("=", 1) for word in words[8::2])
        assert settings == TOPICS[words[4]]
        create_topic(broker, words[4], settings)


def java_resumes(broker: Broker, protocol: str, topic: str, *groups: str) -> dict[str, int]:
    """The offset from which Kafka's own consumer continues, by group."""
    if shutil.which("javac") is None:
        pytest.skip("no JDK")
    done = subprocess.run(
        [
            "java",
            "-cp",
            f"{broker.home}/lib/*",
            str(JAVA),
            broker.address,
            protocol,
            topic,
            *groups,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return {name: int(offset) for name, offset in map(str.split, done.stdout.splitlines())}


def recovered(broker: Broker) -> dict[str, set[int]]:
    """The segments that the broker recovered at its last start, by topic."""
    found: dict[str, set[int]] = {}
    said = broker.said()
    assert any("LogLoader" in line or "LogManager" in line for line in said), "it speaks of logs"
    for line in said:
        match = RECOVERED.search(line)
        # a broker always recovers the metadata log
        if match is not None and match[1] != METADATA_TOPIC:
            found.setdefault(match[1], set()).add(int(match[2]))
    return found


def next_batch(log: Path) -> bytes:
    """The next batch of the idempotent producer that wrote the log's last batch."""
    _, last = headers_of(log)[-1]
    return encode_batch(
        [Record(0, int(time.time() * 1000), b"after", b"restore")],
        producer_id=last.producer_id,
        producer_epoch=last.producer_epoch,
        base_sequence=last.last_sequence + 1,
    )


def drill_lines() -> list[str]:
    """The commands of the guide's drill, which is the page's first block."""
    block = GUIDE.read_text().partition("```sh\n")[2].partition("```")[0]
    assert len(block.splitlines()) <= 10
    return [line for line in block.splitlines() if not line.startswith("#")]


def run(line: str, status: int) -> str:
    """Run a shell command. Returns its output."""
    program, *arguments = shlex.split(os.path.expandvars(line), comments=True)
    assert program == "lastwrite"
    command = [sys.executable, "-m", "lastwrite.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def check_clients_go_on(new: Broker, sent_next: bytes) -> None:
    """Groups continue at their offsets with both kinds of clients, and producers continue."""
    for group in GROUPS:
        assert committed(new, group, list(STANDS)) == STANDS
    assert resumes_at(new, "classic-0", "classic", "once") == STANDS["once"]
    assert resumes_at(new, "consumer-0", "consumer", "once") == STANDS["once"]
    for protocol in PROTOCOLS:
        assert java_resumes(new, protocol, "once", f"{protocol}-1") == {
            f"{protocol}-1": STANDS["once"]
        }

    with Wire(new.address) as wire:  # a producer of the lost cluster continues
        assert wire.produce("once", sent_next) == Answer(0, 40)
    # A new producer gets an id that the lost cluster had also assigned.
    more = [Sent(b"more", b"%d" % n, int(time.time() * 1000)) for n in range(5)]
    produce(new, "table", more, settings={"enable.idempotence": True})
    transact(new, "till", "paid", [(True, [b"again"])])
    assert consume(new, "paid")[-1].key == b"again"


@pytest.mark.long
def test_restore_into_a_new_cluster_is_complete(
    brokers: tuple[Broker, Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, new = brokers
    address = str(tmp_path / "archive")
    before = fill(lost)
    lost.stop()
    sent_next = next_batch(lost.data / "once-0" / f"{0:020d}.log")
    told = {
        "OLD": str(lost.data),
        "NEW": str(new.data),
        "ARCHIVE": address,
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    fetch, too_early, again, verify, groups = drill_lines()
    run(fetch, 0)
    table = lastwrite.latest(address, topic="table")
    shutil.rmtree(lost.data)

    new.start()
    assert "a broker (process" in run(too_early, 4)
    new.stop()
    commands = run(too_early, 2)
    new.start()
    make_topics(new, commands)
    new.stop()
    said = run(again, 0)
    assert "__transaction_state is left out" in said
    (command,) = (line.strip() for line in said.splitlines() if line.endswith("--groups"))
    assert command == os.path.expandvars(groups).replace("HOST:PORT", new.address)
    run(verify, 0)
    assert lastwrite.latest(str(new.data), topic="table") == table

    new.start()
    assert recovered(new) == {}
    after = state(new)
    for topic in TOPICS:
        assert after[topic] == before[topic], topic
    run(command, 0)

    check_clients_go_on(new, sent_next)

    new.kill()
    new.start()
    for topic, found in recovered(new).items():
        assert topic not in TOPICS or min(found) >= before[topic][0][1], "nothing that was restored"
    assert consume(new, "table")[-5:] == consume(new, "table", start=120)
    new.stop()


@pytest.mark.long
def test_restore_into_the_cluster_that_lost_its_folders_is_complete(
    brokers: tuple[Broker, Broker], s3: S3
) -> None:
    broker, _ = brokers
    address = f"s3://{BUCKET}/native"
    before = fill(broker)
    with_aborted = consume(broker, "paid", isolation="read_uncommitted")
    broker.stop()
    log = broker.data / "once-0" / f"{0:020d}.log"
    sent_next, (at, last) = next_batch(log), headers_of(log)[-1]
    sent_last = log.read_bytes()[at : at + last.size_bytes]
    whole = {path.name: path.read_bytes() for path in log.parent.glob("*.log")}
    report = lastwrite.fetch([str(broker.data)], address, include_active=True, config=s3.config)
    assert report.exit_status == 0
    for folder in broker.data.glob("*-[0-9]"):
        if folder.name != "__cluster_metadata-0":
            shutil.rmtree(folder)
    restore(address, broker, s3)
    assert {path.name: path.read_bytes() for path in log.parent.glob("*.log")} == {
        **whole,
        f"{40:020d}.log": b"",
    }
    broker.start()
    assert recovered(broker) == {}
    assert state(broker) == before
    assert consume(broker, "paid", isolation="read_uncommitted") == with_aborted
    for group, protocol in GROUPS.items():
        assert committed(broker, group, list(STANDS)) == STANDS
        if group.endswith("0"):
            assert resumes_at(broker, group, protocol, "once") == STANDS["once"]
    with Wire(broker.address) as wire:  # the broker recognises a retry, and the producer continues
        assert wire.produce("once", sent_last) == Answer(0, last.base_offset)
        assert wire.produce("once", sent_next) == Answer(0, 40)
    # A transactional producer continues with its own id.
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "till"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("paid", key=b"again", partition=0)
    producer.commit_transaction(60)
    assert consume(broker, "paid")[-1].key == b"again"
    broker.stop()
