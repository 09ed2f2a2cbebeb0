"""Tests of ``serve`` beside a real broker on the same bytes: equal responses to every request.

A broker writes topics with several segments, all codecs, aborted transactions and an open one. It
is stopped, its logs are compacted, and it restarts on one copy while ``serve`` has another.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import lastwrite
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.kafka.format.batch_layout import BatchHeader, decode_attributes
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.server.errors import Code
from lastwrite.server.messages import decode_body, decode_request
from lastwrite.server.serve import RunningServer
from lastwrite.spark.inline import INLINE
from tests.support.jars import free_ports
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import CODECS, Sent, create_topic, produce
from tests.support.kafka.expiring_groups import expiring_groups
from tests.support.kafka.groups import PROTOCOLS, committed, transact
from tests.support.kafka.raw import Raw, part
from tests.support.kafka.readers.programs import READERS
from tests.support.kafka.recording import Recorder
from tests.support.kafka.wrong_requests import (
    GROUP,
    TOPIC,
    WrongRequest,
    difference_on_purpose,
    wrong_requests,
)

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SMALL = {
    "internal.segment.bytes": "1500",
    "segment.index.bytes": "1024",
    "index.interval.bytes": "200",
    "cleanup.policy": "compact",
}
TOPICS = (*CODECS, "transactions", "empty")
JAVA = Path(__file__).parents[1] / "support" / "kafka" / "Consume.java"
START_MS = 1_700_000_000_000


class Pair(NamedTuple):
    """A broker, and ``serve`` on a copy of its log directory."""

    broker: Broker
    ours: RunningServer
    root: Path

    @property
    def addresses(self) -> tuple[str, str]:
        return self.broker.address, self.ours.address


def _fill(broker: Broker) -> None:
    draw = random.Random(1)
    for topic in TOPICS:
        create_topic(broker, topic, SMALL)
    for codec in CODECS:
        sent = [
            Sent(
                b"key-%d" % draw.randrange(25),
                None if draw.random() < 0.1 else b"v" * draw.randrange(60),
                START_MS + draw.randrange(50_000),
                (("header", b"x"),) if draw.random() < 0.3 else (),
            )
            for _ in range(120)
        ]
        produce(broker, codec, sent, codec=codec)
    create_topic(broker, TOPIC, {})
    produce(broker, TOPIC, [Sent(b"key", b"value", START_MS + number) for number in range(20)])
    _commit(broker.address, GROUP, 7)
    for number in range(3):
        keys = [b"t-%d" % draw.randrange(9) for _ in range(7)]
        transact(
            broker,
            f"writer-{number}",
            "transactions",
            [(draw.random() < 0.5, keys[:4]), (False, keys[4:]), (True, keys)],
        )


def _commit(address: str, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    consumer.assign([])
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


def _leave_open(broker: Broker) -> Producer:
    """Begin a transaction that stays open as long as the returned producer is alive."""
    settings = {"bootstrap.servers": broker.address, "transactional.id": "open", "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(3):
        producer.produce("transactions", key=b"o-%d" % number, value=b"open", partition=0)
    producer.flush(60)
    return producer


@pytest.fixture(scope="module")
def broker_home() -> Path:
    try:
        return kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, broker_home: Path) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("serve")
    broker = Broker(broker_home, folder / "data")
    try:
        broker.start()
        _fill(broker)
        kept = _leave_open(broker)
        broker.stop()
        report = lastwrite.compact(
            str(broker.data),
            topic=list(TOPICS),
            config={"min.cleanable.dirty.ratio": 0},
            spark=INLINE,
        )
        gone = [
            (each.records_before or 0) - (each.records_after or 0) for each in report.partitions
        ]
        assert sum(gone) > 100
        copied = folder / "copy"
        shutil.copytree(broker.data, copied)
        broker.start()
        committed(broker, "all", TOPICS)  # the group's coordinator is available
        state = str(folder / "state")
        with lastwrite.serve(str(copied), listen="127.0.0.1:0", state=state) as ours:
            yield Pair(broker, ours, copied)
        del kept
    finally:
        broker.kill()


def fetched(
    raw: Raw, topic: str, offset: int, isolation: int, limits: tuple[int, int], version: int
) -> Any:
    """The response for one partition, as a tuple."""
    asked = part(
        "fetch",
        version,
        "FetchPartition",
        partition=0,
        fetch_offset=offset,
        partition_max_bytes=limits[1],
    )
    answer = raw.ask(
        "fetch",
        version,
        max_wait=part_time(0),
        min_bytes=1,
        max_bytes=limits[0],
        isolation_level=isolation,
        topics=(part("fetch", version, "FetchTopic", topic=topic, partitions=(asked,)),),
        forgotten_topics_data=(),
    )
    (found,) = answer.responses[0].partitions
    aborted = found.aborted_transactions
    return (
        found.error_code,
        found.high_watermark,
        found.last_stable_offset,
        getattr(found, "log_start_offset", None),
        None if aborted is None else {(each.producer_id, each.first_offset) for each in aborted},
        bytes(found.records or b""),
    )


def part_time(ms: int) -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=ms)


def test_fetch_at_each_offset_equals_the_brokers(pair: Pair) -> None:
    """All fields must be equal except the aborted transactions.

    The broker lists some that have no records in the response. Those with records must be listed by
    both.
    """
    sizes = ((1 << 20, 1 << 20), (0, 0), (1 << 20, 1), (300, 1 << 20), (1 << 20, 700))
    with Raw(pair.broker.address) as theirs, Raw(pair.ours.address) as ours:
        for topic in TOPICS:
            spans = read_partition(str(pair.root / f"{topic}-0")).aborted
            end = fetched(theirs, topic, 0, 0, (1 << 20, 1 << 20), 12)[1]
            for offset in range(-1, end + 2):
                for isolation in (0, 1):
                    limits = sizes[(offset + isolation) % len(sizes)]
                    version = 4 + (offset + 3 * isolation) % 9
                    place = topic, offset, isolation, limits, version
                    *said, aborted, data = fetched(theirs, *place)
                    *told, named, bytes_ = fetched(ours, *place)
                    assert (told, bytes_) == (said, data), place
                    assert (named is None) == (aborted is None), place
                    needed = {
                        (span.producer_id, span.first_offset)
                        for header in whole_headers(data)
                        for span in spans
                        if span.producer_id == header.producer_id
                        and span.first_offset <= header.base_offset <= span.last_offset
                    }
                    assert isolation == 0 or needed <= set(named or ()), place


def whole_headers(data: bytes) -> Iterator[BatchHeader]:
    """Headers of transactional data batches. A cut last batch is left out."""
    at = 0
    while at + 61 <= len(data):
        header = decode_batch_header(data, at)
        if decode_attributes(header.attributes)[2:4] == (True, False):
            yield header
        at += header.size_bytes


def test_offsets_by_time_equal_the_brokers(pair: Pair) -> None:
    def asked(raw: Raw, topic: str, timestamp: int, isolation: int, version: int) -> Any:
        one = part(
            "list_offsets",
            version,
            "ListOffsetsPartition",
            partition_index=0,
            timestamp=timestamp,
            current_leader_epoch=-1,
        )
        answer = raw.ask(
            "list_offsets",
            version,
            replica_id=-1,
            isolation_level=isolation,
            topics=(
                part("list_offsets", version, "ListOffsetsTopic", name=topic, partitions=(one,)),
            ),
            timeout_ms=0,
            timeout=part_time(0),
        )
        (found,) = answer.topics[0].partitions
        return (
            found.error_code,
            found.offset,
            found.timestamp,
            getattr(found, "leader_epoch", None),
        )

    times = [START_MS + n for n in range(0, 52_000, 800)]
    with Raw(pair.broker.address) as theirs, Raw(pair.ours.address) as ours:
        for topic in TOPICS:
            for n, timestamp in enumerate((-1, -2, -3, -4, -5, *times)):
                version = 11 if timestamp < -2 else 1 + n % 11
                place = topic, timestamp, n % 2, version
                said, told = asked(theirs, *place), asked(ours, *place)
                if topic == "empty":  # the broker's restart raised its leader epoch
                    said, told = said[:3], told[:3]
                assert told == said, place


def test_epoch_end_offsets_equal_the_brokers(pair: Pair) -> None:
    def asked(raw: Raw, topic: str, epoch: int, current: int) -> Any:
        name = "offset_for_leader_epoch"
        one = part(
            name,
            4,
            "OffsetForLeaderPartition",
            partition=0,
            current_leader_epoch=current,
            leader_epoch=epoch,
        )
        answer = raw.ask(
            name,
            4,
            replica_id=-1,
            topics=(part(name, 4, "OffsetForLeaderTopic", topic=topic, partitions=(one,)),),
        )
        return answer.topics[0].partitions[0]

    with Raw(pair.broker.address) as theirs, Raw(pair.ours.address) as ours:
        for topic in TOPICS:
            for epoch in (0, 7):  # the restart of the broker began the epochs between these
                for current in (-1, 9):
                    assert asked(ours, topic, epoch, current) == asked(
                        theirs, topic, epoch, current
                    ), (topic, epoch, current)


def test_topic_descriptions_equal_the_brokers(pair: Pair) -> None:
    """Only the leader epoch differs, because the broker's restart raised it."""

    def asked(raw: Raw) -> Any:
        name = "describe_topic_partitions"
        topics = tuple(part(name, 0, "TopicRequest", name=topic) for topic in (*TOPICS, "missing"))
        answer = raw.ask(name, 0, topics=topics, response_partition_limit=2000, cursor=None)
        return [
            replace(
                topic,
                partitions=tuple(replace(each, leader_epoch=0) for each in topic.partitions),
                topic_authorized_operations=0,
            )
            for topic in answer.topics
        ]

    with Raw(pair.broker.address) as theirs, Raw(pair.ours.address) as ours:
        assert asked(ours) == asked(theirs)


def test_admin_responses_equal_the_brokers(pair: Pair) -> None:
    """These fields may differ: the log directory's path and volume sizes, and the sequences and
    coordinator epochs of producers.
    """
    names = (*TOPICS, "missing")

    def sizes(raw: Raw, version: int, name: str | None) -> Any:
        asked = part(
            "describe_log_dirs", version, "DescribableLogDirTopic", topic=name, partitions=(0, 7)
        )
        answer = raw.ask("describe_log_dirs", version, topics=None if name is None else (asked,))
        return {
            (topic.name, each)
            for one in answer.results
            for topic in one.topics
            for each in topic.partitions
            if topic.name in names
        }

    def writers(raw: Raw, name: str) -> Any:
        asked = part("describe_producers", 0, "TopicRequest", name=name, partition_indexes=(0, 7))
        (topic,) = raw.ask("describe_producers", 0, topics=(asked,)).topics
        return [
            (
                each.partition_index,
                each.error_code,
                sorted(
                    (
                        one.producer_id,
                        one.producer_epoch,
                        one.last_timestamp,
                        one.current_txn_start_offset,
                    )
                    for one in each.active_producers
                ),
            )
            for each in topic.partitions
        ]

    with Raw(pair.broker.address) as theirs, Raw(pair.ours.address) as ours:
        for version in (1, 5):
            for name in (None, *names):
                assert sizes(ours, version, name) == sizes(theirs, version, name)
        assert sizes(ours, 5, None)
        for name in names:
            assert writers(ours, name) == writers(theirs, name)
        assert any(found for name in TOPICS for *_, found in writers(ours, name))
        moving = [raw.ask("list_partition_reassignments", 0, topics=None) for raw in (ours, theirs)]
        assert moving[0] == moving[1]


def test_responses_about_an_unknown_group_equal_the_brokers(pair: Pair) -> None:
    def asked(raw: Raw, name: str, version: int, **named: Any) -> Any:
        (found,) = raw.ask(name, version, include_authorized_operations=False, **named).groups
        return found.error_code, found.error_message

    with Raw(pair.broker.address) as theirs, Raw(pair.ours.address) as ours:
        for name, version, field in (
            ("consumer_group_describe", 1, "group_ids"),
            ("describe_groups", 6, "groups"),
        ):
            wanted = asked(theirs, name, version, **{field: ("nobody",)})
            assert asked(ours, name, version, **{field: ("nobody",)}) == wanted


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_deletions_of_groups_and_offsets_equal_the_brokers(pair: Pair, protocol: str) -> None:
    """Topics that a member reads or that no member reads, and groups with members, without members
    and unknown.
    """
    group, read, left = f"deleted-{protocol}", TOPICS[0], TOPICS[1]

    def delete(raw: Raw, *names: str) -> Any:
        found = [raw.ask("delete_groups", version, groups_names=names) for version in (0, 2)]
        return [{each.group_id: each.error_code for each in one.results} for one in found]

    def delete_positions(raw: Raw, group: str) -> Any:
        topics = tuple(
            part(
                "offset_delete",
                0,
                "OffsetDeleteRequestTopic",
                name=name,
                partitions=tuple(
                    part("offset_delete", 0, "OffsetDeleteRequestPartition", partition_index=n)
                    for n in (0, 9)
                ),
            )
            for name in (read, left, "missing")
        )
        found = raw.ask("offset_delete", 0, group_id=group, topics=topics)
        return found.error_code, {
            (topic.name, each.partition_index): each.error_code
            for topic in found.topics
            for each in topic.partitions
        }

    def life(address: str) -> list[Any]:
        settings = {
            "bootstrap.servers": address,
            "group.id": group,
            "enable.auto.commit": False,
        }
        alone = Consumer(settings)  # a group without members
        alone.assign([])
        alone.commit(offsets=[TopicPartition(left, 0, 5)], asynchronous=False)
        places = [TopicPartition(name, 0) for name in (read, left)]
        member = Consumer(settings | {"group.protocol": protocol})
        member.subscribe([read])
        while not member.assignment():
            member.poll(0.1)
        member.commit(offsets=[TopicPartition(read, 0, 7)], asynchronous=False)
        said: list[Any] = []
        with Raw(address) as raw:
            said += [delete(raw, group, "nobody"), delete_positions(raw, group)]
            said.append([each.offset for each in alone.committed(places, 60)])
            member.close()
            said += [delete_positions(raw, group), delete_positions(raw, "nobody")]
            said.append([each.offset for each in alone.committed(places, 60)])
            alone.commit(offsets=[TopicPartition(left, 0, 6)], asynchronous=False)
            said.append(delete(raw, group))
            said.append([each.offset for each in alone.committed(places, 60)])
        alone.close()
        return said

    assert life(pair.ours.address) == life(pair.broker.address)


def test_groups_continue_at_the_offsets_of_the_broker(pair: Pair) -> None:
    with Raw(pair.ours.address) as ours, Raw(pair.broker.address) as theirs:
        for raw in (ours, theirs):
            assert _positions(raw, GROUP, TOPIC) == {TOPIC: (7, Code.NONE)}
            assert GROUP in {each.group_id for each in raw.ask("list_groups", 0).groups}


def test_offsets_that_expire_on_a_broker_are_omitted(tmp_path: Path, broker_home: Path) -> None:
    """The broker restarts on the same files and at once removes expired offsets."""
    now_ms = time.time_ns() // 1_000_000
    cases = expiring_groups(now_ms, "t", "other")
    with Broker(broker_home, tmp_path / "data") as broker:
        for topic in ("t", "other"):
            create_topic(broker, topic, {})
        committed(broker, "first", ("t",))
        settings = {"bootstrap.servers": broker.address, "client.id": "__admin_client"}
        # with this client id a broker accepts records for its internal topics
        producer = Producer(settings)
        for record in (record for case in cases for record in case.records):
            producer.produce("__consumer_offsets", record.value, record.key, partition=0)
        producer.flush(60)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    checks_at_once = {"offsets.retention.check.interval.ms": "100"}
    expected = {
        (place.group, place.topic): -1 if is_expired else commit.offset
        for case in cases
        for place, commit, is_expired in case.positions
    }

    def found(address: str) -> dict[tuple[str, str], int]:
        with Raw(address) as raw:
            return {
                (group, topic): _positions(raw, group, topic)[topic][0] for group, topic in expected
            }

    with Broker(broker_home, tmp_path / "data", checks_at_once) as broker:
        committed(broker, "first", ("t",))
        until = time.monotonic() + 60
        while found(broker.address) != expected and time.monotonic() < until:
            time.sleep(0.2)
        state = str(tmp_path / "state")
        with lastwrite.serve(str(tmp_path / "copy"), listen="127.0.0.1:0", state=state) as serving:
            assert found(serving.address) == expected
        time.sleep(1.0)
        assert found(broker.address) == expected


def _positions(raw: Raw, group: str, topic: str) -> dict[str, tuple[int, int]]:
    asked = part("offset_fetch", 7, "OffsetFetchRequestTopic", name=topic, partition_indexes=(0,))
    answer = raw.ask("offset_fetch", 7, group_id=group, topics=(asked,), require_stable=False)
    return {
        each.name: (each.partitions[0].committed_offset, each.partitions[0].error_code)
        for each in answer.topics
    }


def test_wrong_requests_have_the_brokers_responses(pair: Pair) -> None:
    for address in pair.addresses:
        _commit(address, GROUP, 7)
    with Raw(pair.broker.address) as raw:
        named = part("metadata", 13, "MetadataRequestTopic", name=TOPIC, topic_id=None)
        values = {"allow_auto_topic_creation": False, "topics": (named,)}
        values["include_topic_authorized_operations"] = False
        topic_id = raw.ask("metadata", 13, **values).topics[0].topic_id
    conversations = [Conversation(address) for address in pair.addresses]
    wrong, on_purpose = [], set()
    for asked in wrong_requests(topic_id):
        answers = [each.ask(asked) for each in conversations]
        reason = difference_on_purpose(asked)
        if answers[0] == answers[1]:
            continue
        if reason:
            on_purpose.add(reason)
        else:
            wrong.append((asked.label, *answers))
    assert not wrong, "\n".join(map(str, wrong))
    assert len(on_purpose) == 7  # docs/guide/serve.md lists as many


class Conversation:
    """Sends requests on one connection, and opens a new one if the server has closed it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._raw: Raw | None = None

    def ask(self, asked: WrongRequest) -> Any:
        self._raw = self._raw or Raw(self._address)
        try:
            answer = _plain(self._raw.say(asked.api, asked.version, asked.message))
        except ConnectionError:
            self._raw, answer = None, "closed"
        if "log_dir" in str(answer):
            return [topic for each in answer["results"] for topic in each["topics"]]
        return answer


def test_consumers_get_the_same_records_in_order(pair: Pair) -> None:
    for topic in TOPICS:
        for isolation in ("read_committed", "read_uncommitted"):
            assert _all(pair.ours.address, topic, isolation) == _all(
                pair.broker.address, topic, isolation
            )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_consumer_group_continues_where_it_committed(pair: Pair, protocol: str) -> None:
    wanted = [f"0 {each[0]}" for each in _all(pair.ours.address, "zstd", "read_committed")]
    assert java_consumes(pair, protocol) == wanted
    assert java_consumes(pair, protocol) == []


def java_consumes(pair: Pair, protocol: str) -> list[str]:
    """Partition and offset of each record of a group, until no record arrives for a second."""
    if shutil.which("javac") is None:
        pytest.skip("no JDK")
    jars = str(pair.broker.home / "lib" / "*")
    command = ["java", "-cp", jars, str(JAVA), pair.ours.address, protocol, "zstd", protocol, "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return ended.stdout.splitlines()


def _all(address: str, topic: str, isolation: str) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "all",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    try:
        while (message := consumer.poll(60)) is not None and message.error() is None:
            found.append(
                (
                    message.offset(),
                    message.key(),
                    message.value(),
                    message.timestamp(),
                    message.headers(),
                )
            )
    finally:
        consumer.close()
    return found


# Fields that differ between servers: addresses, random ids, permissions, and what the broker's
# restart raised.
_OWN = {
    "host",
    "port",
    "cluster_id",
    "throttle_time",
    "session_id",
    "member_id",
    "leader",
    "leader_epoch",
    "topic_authorized_operations",
}
_EPOCHS = {"current_leader_epoch", "last_fetched_epoch"}
# The requests of other clients contain members and epochs of one server.
_OTHERS = [
    pytest.param(name, marks=pytest.mark.long)
    for name in (
        "java",
        "java, newer groups",
        "java 3.9",
        "kcat",
        "kafka-python",
        "aiokafka",
        "sarama",
        "kafkajs",
        "franz-go",
        "java 2.1",
        "platformatic",
        "segmentio",
    )
]


@pytest.mark.parametrize("name", ["confluent", *_OTHERS])
def test_recorded_client_requests_have_the_brokers_responses(
    pair: Pair, name: str, tmp_path: Path
) -> None:
    """A client's requests are recorded while it reads from ``serve`` as a group and commits.

    They are sent again to both servers. Neither of them has the group and its members.
    """
    recorder, port, group = Recorder(), free_ports(1)[0], f"of {name}"
    wanted = _all(pair.ours.address, "gzip", "read_committed")
    if name == "segmentio":  # this client stops at a batch whose last record was removed
        wanted = wanted[:4]
    try:
        command = READERS[name].command(recorder.address, "gzip", str(len(wanted)), group)
    except Unavailable as reason:
        pytest.skip(str(reason))
    where = f"127.0.0.1:{port}"
    state = str(tmp_path / "state")
    with (
        lastwrite.serve(str(pair.root), listen=where, advertise=recorder.address, state=state),
        recorder.before(where),
    ):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert [line.split()[0] for line in ended.stdout.splitlines()] == [
        str(each[0]) for each in wanted
    ], ended.stderr

    compared: set[str] = set()
    for said in recorder.said:
        with Raw(pair.broker.address) as theirs, Raw(pair.ours.address) as again:
            for frame in {each[:4] + each[8:]: each for each in said}.values():
                request = decode_request(frame)
                kind, version, _, _, _ = request
                if kind == "api_versions":
                    continue
                message = _of_any_epoch(decode_body(request))
                answers = [_said(raw, kind, version, message) for raw in (again, theirs)]
                assert answers[0] == answers[1], request
                compared.add(kind)
    assert {"metadata", "list_offsets", "fetch"} <= compared


def _said(raw: Raw, kind: str, version: int, message: Any) -> Any:
    """The response. Waits for the coordinator, because the broker creates its topic at the first
    request.
    """
    for _ in range(60):
        found = raw.say(kind, version, message)
        if kind != "find_coordinator" or "coordinator_not_available" not in repr(found):
            break
        time.sleep(0.5)
    return _plain(found)


def _of_any_epoch(asked: Any) -> Any:
    """The response without leader epochs, which the broker's restart raised."""
    if is_dataclass(asked) and not isinstance(asked, type):
        found = {each.name: _of_any_epoch(getattr(asked, each.name)) for each in fields(asked)}
        return replace(asked, **{**found, **dict.fromkeys(_EPOCHS & found.keys(), -1)})
    return tuple(map(_of_any_epoch, asked)) if isinstance(asked, tuple) else asked


def _plain(found: Any) -> Any:
    if is_dataclass(found):
        return {
            each.name: _plain(getattr(found, each.name))
            for each in fields(found)
            if each.name not in _OWN
        }
    if not isinstance(found, tuple):
        return found
    plain = [_plain(each) for each in found]
    for name in ("name", "group_id"):
        if plain and isinstance(plain[0], dict) and name in plain[0]:
            return sorted(plain, key=lambda each: str(each[name]))
    return plain
