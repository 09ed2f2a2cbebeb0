"""Tests of Kafka on compacted transactions: real producers, over four rounds.

The broker is stopped for each round. Commits and aborts of several producers interleave on the same
keys. At each stop one transaction is open, which its producer later continues and ends. The model
has only records and their outcomes.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

import lastwrite
from lastwrite.spark.inline import INLINE
from tests.support.kafka import reference
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Seen, Sent, bounds, consume, create_topic, produce
from tests.support.kafka.logs import NAME, read_segments, write_checkpoint
from tests.support.kafka.model import records_of
from tests.support.kafka.oracle import Oracle, shut_down

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RETENTION_MS = 60_000
TOPIC = "accounts"
SMALL = {
    "internal.segment.bytes": "2000",
    "segment.index.bytes": "1024",
    "index.interval.bytes": "300",
}
CONFIG = {
    "delete.retention.ms": RETENTION_MS,
    "min.cleanable.dirty.ratio": 0,
    "internal.segment.bytes": 6000,
}
READ_UNCOMMITTED = "read_uncommitted"


@pytest.fixture(scope="module")
def home() -> Path:
    try:
        return kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def broker(home: Path, tmp_path: Path) -> Iterator[Broker]:
    made = Broker(home, tmp_path / "data")
    try:
        yield made
    finally:
        made.kill()


@dataclass
class Ledger:
    """The expected records of a topic, and the state of their transactions."""

    records: list[Seen] = field(default_factory=list)
    # offsets of the open transaction, by producer
    open: dict[str, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    # The removal horizon of each tombstone by offset, set when a round first kept it.
    horizons: dict[int, int] = field(default_factory=dict)

    @property
    def last_stable(self) -> float:
        return min(
            (min(offsets) for offsets in self.open.values() if offsets), default=float("inf")
        )

    def committed(self) -> list[Seen]:
        return [
            r for r in self.records if r.offset not in self.aborted and r.offset < self.last_stable
        ]

    def compact(self, end: int, now_ms: int) -> None:
        """Model a round up to offset ``end``, below which no transaction is open."""
        last = {
            r.key: r.offset for r in self.records if r.offset < end and r.offset not in self.aborted
        }
        self.records = [r for r in self.records if r.offset >= end or self._stays(r, last, now_ms)]

    def _stays(self, record: Seen, last: dict[bytes | None, int], now_ms: int) -> bool:
        if record.offset in self.aborted or last[record.key] > record.offset:
            return False
        if record.value is not None:
            return True
        return now_ms < self.horizons.setdefault(record.offset, now_ms + RETENTION_MS)


class Bank:
    """Transactional producers of one topic, and a ledger of what they wrote."""

    def __init__(self, broker: Broker, names: list[str]) -> None:
        self.broker = broker
        self.ledger = Ledger()
        self.decisions = 0
        self.producers = {
            name: Producer(
                {
                    "bootstrap.servers": broker.address,
                    "transactional.id": name,
                    "linger.ms": 0,
                    "transaction.timeout.ms": 600_000,
                    "compression.type": codec,
                    "log_level": 0,
                }
            )
            for name, codec in zip(names, ["none", "lz4", "zstd"], strict=False)
        }
        for producer in self.producers.values():
            producer.init_transactions(60)

    def write(self, name: str, records: list[tuple[bytes, bytes | None]]) -> None:
        """Write ``records`` in the transaction of ``name`` and wait until they are stored.

        Starts a transaction if none is open.
        """
        producer = self.producers[name]
        if name not in self.ledger.open:
            producer.begin_transaction()
            self.ledger.open[name] = []
        stored: list[Seen] = []
        failures: list[KafkaError] = []

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
                return
            offset = message.offset()
            assert offset is not None
            stored.append(Seen(offset, message.key(), message.value(), message.timestamp()[1]))

        for key, value in records:
            producer.produce(TOPIC, key=key, value=value, partition=0, on_delivery=note)
        assert producer.flush(60) == 0
        assert not failures, failures
        self.ledger.records += sorted(stored)
        self.ledger.open[name] += [record.offset for record in stored]

    def end(self, name: str, commits: bool) -> None:
        producer = self.producers[name]
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
            self.ledger.aborted.update(self.ledger.open[name])
        del self.ledger.open[name]
        self.decisions += 1

    def work(self, rng: random.Random, steps: int) -> None:
        """Write and end transactions at random. One transaction is open at the end."""
        for _ in range(steps):
            name = rng.choice(list(self.producers))
            if name in self.ledger.open and rng.random() < 0.4:
                self.end(name, rng.random() < 0.5)
            else:
                keys = [b"account-%d" % rng.randrange(12) for _ in range(rng.choice([1, 1, 3]))]
                self.write(
                    name, [(k, None if rng.random() < 0.2 else rng.randbytes(40)) for k in keys]
                )
        for name in list(self.ledger.open):
            self.end(name, rng.random() < 0.5)
        self.write(
            rng.choice(list(self.producers)), [(b"account-0", b"undecided"), (b"new", b"undecided")]
        )

    def judge(self) -> None:
        """A ``read_committed`` consumer gets the committed records, any other consumer gets all
        records.
        """
        assert consume(self.broker, TOPIC) == self.ledger.committed()
        assert consume(self.broker, TOPIC, isolation=READ_UNCOMMITTED) == self.ledger.records
        for start in range(0, bounds(self.broker, TOPIC)[1], 97):
            wanted = [record for record in self.ledger.committed() if record.offset >= start]
            assert consume(self.broker, TOPIC, start=start) == wanted, start
        assert [line for line in self.broker.said() if " ERROR " in line or TOPIC in line] == []


def test_committed_records_stay_and_aborted_ones_never_reappear(
    broker: Broker, tmp_path: Path
) -> None:
    broker.start()
    create_topic(broker, TOPIC, {**SMALL, "cleanup.policy": "compact"})
    bank = Bank(broker, ["alice", "bob", "carol"])
    folder = broker.data / f"{TOPIC}-0"
    rng = random.Random(4)
    began_ms = int(time.time() * 1000)
    for number, now_ms in enumerate(began_ms + n * RETENTION_MS for n in (1, 2, 3, 4)):
        # continue and end the transaction that was open during the last round
        for name in list(bank.ledger.open):
            bank.write(name, [(b"account-1", b"late")])
            bank.end(name, commits=bool(number % 2))
        bank.work(rng, 60)
        bank.judge()
        table = {record.key: record.value for record in bank.ledger.committed()}
        broker.stop()

        before = tmp_path / f"before-{number}"
        shutil.copytree(broker.data, before)
        segments = [segment.base_offset for segment in read_segments(folder)]
        end = max(base for base in segments if base <= bank.ledger.last_stable)
        bank.ledger.compact(end, now_ms)
        report = lastwrite.compact(str(broker.data), config=CONFIG, now_ms=now_ms, spark=INLINE)
        [told] = [partition for partition in report.partitions if partition.topic == TOPIC]
        assert (told.status, told.first_uncleanable_offset) == ("cleaned", end), told.reason
        verified = lastwrite.verify(
            str(folder), str(before / folder.name), now_ms=now_ms, spark=INLINE
        )
        assert [str(problem) for problem in verified.problems] == []
        assert verified.ok

        broker.start()
        bank.judge()
        left = {record.key: record.value for record in bank.ledger.committed()}
        assert left | {key: None for key in table if key not in left} == table
    assert len(bank.ledger.aborted) > 50
    # Markers are kept for a horizon longer than their records: some were removed, and those of the
    # last rounds are kept.
    markers = [
        batch.marker
        for segment in read_segments(folder)
        for batch in segment.batches
        if batch.marker
    ]
    assert 0 < len(markers) < bank.decisions
    assert {"abort", "commit"} == set(markers)


OLD = "ancient"
MIXED: list[dict[str, object]] = [
    {"magic": 0, "codec": "none", "records": [("a", "1")]},
    {"magic": 0, "codec": "gzip", "records": [("a", "2"), ("b", "1"), ("c", None)]},
    {"magic": 0, "codec": "lz4", "records": [("d", "1"), ("b", "2")]},
    {"magic": 1, "codec": "none", "records": [("c", "3")]},
    {"magic": 1, "codec": "snappy", "records": [("e", "1"), ("f", None), ("a", "3")]},
    {"magic": 1, "codec": "lz4", "records": [("g", "1"), ("e", "2")]},
    {"magic": 2, "codec": "zstd", "records": [("h", "1"), ("d", None)]},
    {"magic": 1, "codec": "gzip", "records": [("h", "2"), ("i", "1")]},
]


@pytest.mark.oracle
@pytest.mark.long
def test_broker_serves_old_formats_before_and_after_compaction(
    broker: Broker, tmp_path: Path
) -> None:
    """Kafka's own append path wrote the batches in magic 0, 1 and 2. A broker serves them."""
    oracle = Oracle()
    began_ms = int(time.time() * 1000)
    written = tmp_path / "written" / NAME
    actions: list[dict[str, object]] = []
    for n, batch in enumerate(MIXED):
        records = [
            {
                "k": key.encode().hex(),
                "v": None if value is None else value.encode().hex(),
                "t": began_ms + n,
            }
            for key, value in batch["records"]  # type: ignore[attr-defined]
        ]
        actions += [
            {"batch": {**batch, "records": records}},
            *([{"roll": True}] if n in (2, 5, 7) else []),
        ]
    try:
        oracle.ask(
            "write",
            dir=str(written),
            now_ms=began_ms,
            actions=actions,
            config={"cleanup.policy": "delete"},
        )
        shut_down(written)
    finally:
        oracle.close()

    broker.start()
    create_topic(broker, OLD, {**SMALL, "cleanup.policy": "compact"})
    broker.stop()
    folder = broker.data / f"{OLD}-0"
    for file in folder.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in written.iterdir():
        shutil.copy2(file, folder / file.name)

    broker.start()
    everything = [
        (key.encode(), value and value.encode())
        for batch in MIXED
        for key, value in batch["records"]
    ]  # type: ignore[attr-defined]
    assert [(r.offset, r.key, r.value) for r in consume(broker, OLD)] == [
        (n, key, value) for n, (key, value) in enumerate(everything)
    ]
    broker.stop()

    twin = tmp_path / "twin"
    (twin / NAME).parent.mkdir()
    shutil.copytree(folder, twin / NAME)
    end = reference.listed(twin).end_offset
    write_checkpoint(twin, "replication-offset-checkpoint", {NAME: end})
    before = tmp_path / "before"
    shutil.copytree(folder, before / folder.name)
    now_ms = began_ms + RETENTION_MS
    report = lastwrite.compact(
        str(folder), config={**CONFIG, "cleanup.policy": "compact"}, now_ms=now_ms, spark=INLINE
    )
    assert [str(p.status) for p in report.partitions] == ["cleaned"], report.partitions[0].reason
    reference.compact(twin, {**CONFIG, "cleanup.policy": "compact"}, now_ms)
    assert lastwrite.verify(str(folder), str(before / folder.name), now_ms=now_ms, spark=INLINE).ok

    broker.start()
    wanted = records_of(read_segments(twin / NAME))
    assert len(wanted) < len(everything)
    left = consume(broker, OLD)
    assert [(r.offset, r.key, r.value) for r in left] == [
        (r.offset, r.key, r.value) for r in wanted
    ]
    assert [r.timestamp_ms for r in left if r.timestamp_ms > 0] == [
        r.timestamp_ms for r in wanted if r.timestamp_ms > 0
    ]
    assert {batch.magic for s in read_segments(folder) for batch in s.batches} == {2}
    stored = produce(broker, OLD, [Sent(b"z", b"new", began_ms)])
    assert stored[0].offset == end
    assert consume(broker, OLD, start=end) == stored
    assert [line for line in broker.said() if " ERROR " in line or OLD in line] == []
