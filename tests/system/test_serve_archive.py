"""Tests of ``serve`` on archives that change while clients read.

New records appear, and a client that reads from the start gets at least the last write of every
key, also during rounds.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import lastwrite
from lastwrite.cli import main
from lastwrite.errors import InvalidConfig, LogHeld
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.server.serve import RunningServer
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import write_segment

pytestmark = pytest.mark.slow

TOPIC = "orders"
KEYS = 20


class Log:
    """A log directory that grows by segments, and an archive that is fetched from it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.archive = folder / "log", folder / "archive"
        self.end = 0
        self.table: dict[bytes, bytes] = {}
        self.table_at: list[dict[bytes, bytes]] = []

    def grow(self, records: int = 50) -> None:
        """Append one segment and fetch it."""
        base = self.end
        made = []
        for offset in range(base, base + records):
            key, value = b"k%d" % (offset * 7 % KEYS), b"v%d" % offset
            made.append(Record(offset, 1_700_000_000_000 + offset, key, value))
            self.table[key] = value
        batches = [encode_batch(made[n : n + 5], leader_epoch=0) for n in range(0, records, 5)]
        write_segment(self.root / f"{TOPIC}-0", base, batches, 200)
        self.end += records
        lastwrite.fetch(
            [str(self.root)],
            to=str(self.archive),
            config={"cleanup.policy": "compact"},
            include_active=True,
        )

    def compact(self) -> None:
        report = lastwrite.compact(
            str(self.archive),
            config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
            include_active=True,
            spark=INLINE,
        )
        assert report.exit_status == 0, report.to_dict()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    found = Log(tmp_path)
    found.grow()
    return found


@pytest.fixture
def serving(log: Log, tmp_path: Path) -> Iterator[RunningServer]:
    state = str(tmp_path / "state")
    with lastwrite.serve(str(log.archive), listen="127.0.0.1:0", state=state) as found:
        yield found


def consumer(serving: RunningServer, group: str = "g", **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": serving.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            **settings,
        }
    )


def polled(member: Consumer, until: int, seconds: float = 60.0) -> list[tuple[int, bytes, bytes]]:
    """The records below the offset ``until``."""
    found: list[tuple[int, bytes, bytes]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        message = member.poll(0.5)
        if message is None:
            continue
        assert message.error() is None, message.error()
        offset, key, value = message.offset(), message.key(), message.value()
        assert offset is not None and isinstance(key, bytes) and isinstance(value, bytes)
        found.append((offset, key, value))
        if offset + 1 >= until:
            return found
    raise AssertionError(f"{len(found)} records, the last at {found[-1:]}")


def test_waiting_consumer_gets_new_records_and_continues_over_a_round(
    log: Log, serving: RunningServer
) -> None:
    member = consumer(serving)
    member.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        assert [offset for offset, *_ in polled(member, 50)] == list(range(50))
        log.grow()
        assert [offset for offset, *_ in polled(member, 100)] == list(range(50, 100))
        log.compact()
        log.grow()
        assert [offset for offset, *_ in polled(member, 150)] == list(range(100, 150))
    finally:
        member.close()


def test_reader_that_starts_during_rounds_ends_with_the_table(
    log: Log, serving: RunningServer
) -> None:
    """Readers start repeatedly while the log grows and is compacted.

    Each stops at the end offset of its start. Its map then has each key's value at that offset or a
    later one.
    """
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            member = consumer(serving)
            _, end = member.get_watermark_offsets(TopicPartition(TOPIC, 0), 30)
            member.assign([TopicPartition(TOPIC, 0, 0)])
            seen: dict[bytes, int] = {}
            last = -1
            for offset, key, value in polled(member, end):
                if offset <= last or value != b"v%d" % offset:
                    wrong.append(f"{offset} after {last}: {value!r}")
                last = seen[key] = offset
            member.close()
            for n in range(KEYS):
                newest = max(o for o in range(end) if o * 7 % KEYS == n)
                if seen.get(b"k%d" % n, -1) < newest:
                    wrong.append(f"k{n} is of {seen.get(b'k%d' % n)}, not of {newest}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    for _ in range(4):
        log.grow()
        log.compact()
    stop.set()
    for each in readers:
        each.join()
    assert not wrong


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_shares_partitions_and_continues_after_a_restart(
    log: Log, tmp_path: Path, protocol: str
) -> None:
    """Acknowledged commits also survive a kill of the server."""
    settings: dict[str, Any] = {"group.protocol": protocol}
    if protocol == "consumer":
        settings["session.timeout.ms"] = None
    state = str(tmp_path / "state")
    settings = {name: value for name, value in settings.items() if value is not None}
    with lastwrite.serve(str(log.archive), listen="127.0.0.1:0", state=state) as serving:
        with pytest.raises(LogHeld):
            lastwrite.serve(str(log.archive), listen="127.0.0.1:0", state=state)
        member = _member(serving, settings)
        found = polled(member, 50)
        assert len(found) == 50
        member.commit(offsets=[TopicPartition(TOPIC, 0, 31)], asynchronous=False)
        member.close()
    with lastwrite.serve(str(log.archive), listen="127.0.0.1:0", state=state) as serving:
        member = _member(serving, settings)
        assert polled(member, 50)[0][0] == 31
        assert member.committed([TopicPartition(TOPIC, 0)], 30)[0].offset == 31
        member.close()


def _member(serving: RunningServer, settings: dict[str, Any]) -> Consumer:
    made = {
        "bootstrap.servers": serving.address,
        "group.id": "sharing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **settings,
    }
    member = Consumer(made)
    member.subscribe([TOPIC])
    return member


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_produce_is_refused_with_an_error_that_clients_show(
    serving: RunningServer, is_idempotent: bool
) -> None:
    failed: list[Any] = []
    settings = {"bootstrap.servers": serving.address, "message.timeout.ms": 30_000, "log_level": 0}
    producer = Producer({**settings, "enable.idempotence": is_idempotent})
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: failed.append(error))
    producer.flush(60)
    assert failed and failed[0].name() == "TOPIC_AUTHORIZATION_FAILED"


def test_transactions_are_refused_with_an_error_that_clients_show(serving: RunningServer) -> None:
    settings = {"bootstrap.servers": serving.address, "transactional.id": "t", "log_level": 0}
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        Producer(settings).init_transactions(60)


def test_address_for_other_machines_needs_an_option(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidConfig, match="--open"):
        lastwrite.serve(str(log.archive), listen="0.0.0.0:0", state=str(tmp_path / "state"))
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(log.archive), "--listen", "0.0.0.0:0"])
    assert ended.value.code == 2
    assert "--open" in capsys.readouterr().err


def test_frames_may_arrive_together_and_in_pieces(serving: RunningServer) -> None:
    frames = [struct.pack(">ihhih", 10, 18, 0, number, -1) for number in range(300)]
    host, _, port = serving.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # more requests than the server reads at once
        client.sendall(b"".join(frames[:-1]) + frames[-1][:9])
        client.sendall(frames[-1][9:])
        with client.makefile("rb") as answers:
            for number in range(len(frames)):
                (size,) = struct.unpack(">i", answers.read(4))
                assert answers.read(size)[:4] == struct.pack(">i", number)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 1 << 30),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        struct.pack(">ihhi", 20, 999, 0, 1) + bytes(12),
        struct.pack(">ihhih", 14, 3, 1, 1, -1) + b"\x7f\xff\xff\xff",
        struct.pack(">ihhih", 14, 1, 2, 1, -1) + bytes(4),
    ],
)
def test_malformed_frame_ends_only_its_connection(serving: RunningServer, frame: bytes) -> None:
    member = consumer(serving)
    host, _, port = serving.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as strange:
        strange.sendall(frame)
        with suppress(ConnectionResetError):
            assert strange.recv(1) == b""
    with suppress(KafkaException):
        assert TOPIC in member.list_topics(timeout=30).topics
    member.close()
