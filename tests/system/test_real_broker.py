"""Tests of Kafka on compacted logs: produce, stop, compact, start, consume; twice.

The model has only records: those produced, and the rules of docs/formats/kafka-cleaning.md.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import LogHeld
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.files import contents
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import (
    CODECS,
    Seen,
    Sent,
    bounds,
    consume,
    create_topic,
    first_offset_since,
    produce,
    set_topic,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

NOW_MS = 1_800_000_000_000
RETENTION_MS = 60_000
# Larger segments than the broker's: a round merges several into one, as if the topic's segments had
# shrunk.
CONFIG = {
    "delete.retention.ms": RETENTION_MS,
    "min.cleanable.dirty.ratio": 0,
    "internal.segment.bytes": 20_000,
}
SMALL = {  # several segments, an index entry every few batches
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "segment.index.bytes": "1024",
    "index.interval.bytes": "300",
}


class TopicModel:
    """One topic as a consumer sees it. ``compact`` models a round."""

    def __init__(self) -> None:
        self.records: list[Seen] = []
        self.end = 0
        # The removal horizon of each tombstone by offset, set when a round first kept it.
        self.horizons: dict[int, int] = {}

    def append(self, stored: list[Seen]) -> None:
        assert [record.offset for record in stored] == list(range(self.end, self.end + len(stored)))
        self.records += stored
        self.end += len(stored)

    def compact(self, end: int, now_ms: int) -> None:
        """Model a round up to ``end``, the base offset of the active segment."""
        last = {record.key: record.offset for record in self.records if record.offset < end}
        self.records = [
            record
            for record in self.records
            if record.offset >= end or self._stays(record, last, now_ms)
        ]

    def _stays(self, record: Seen, last: dict[bytes | None, int], now_ms: int) -> bool:
        if record.key is None or last[record.key] > record.offset:
            return False
        if record.value is not None:
            return True
        return now_ms < self.horizons.setdefault(record.offset, now_ms + RETENTION_MS)


class Trial:
    """A broker, its topics, and a model of each topic."""

    def __init__(self, home: Path, data: Path) -> None:
        self.broker = Broker(home, data)
        self.codecs: dict[str, str] = {}  # the producer's codec, by topic
        self.models: dict[str, TopicModel] = {}

    def create(self, topic: str, codec: str = "none", **settings: str) -> None:
        create_topic(
            self.broker,
            topic,
            SMALL | {name.replace("_", "."): value for name, value in settings.items()},
        )
        self.codecs[topic] = codec
        self.models[topic] = TopicModel()

    def produce(self, seed: int, count: int) -> None:
        for topic, model in self.models.items():
            model.append(
                produce(
                    self.broker,
                    topic,
                    events(seed, count),
                    codec=self.codecs[topic],
                    batch_records=7,
                )
            )

    def expect_compacted(self, now_ms: int) -> None:
        for topic, model in self.models.items():
            segments = sorted(
                int(path.stem) for path in (self.broker.data / f"{topic}-0").glob("*.log")
            )
            assert len(segments) > 1, topic
            model.compact(segments[-1], now_ms)

    def judge(self) -> None:
        """For each topic the broker logs no complaint, serves the model's records and finds
        offsets.
        """
        for topic, model in self.models.items():
            assert consume(self.broker, topic) == model.records, topic
            assert bounds(self.broker, topic) == (0, model.end), topic
        for topic in ("client-none", "broker-zstd"):
            records = self.models[topic].records
            for offset in range(0, self.models[topic].end, 17):
                found = consume(self.broker, topic, start=offset, limit=1)
                assert found == [record for record in records if record.offset >= offset][:1], (
                    topic,
                    offset,
                )
            for timestamp_ms in sorted({record.timestamp_ms for record in records})[::9]:
                first = next(
                    record.offset for record in records if record.timestamp_ms >= timestamp_ms
                )
                # An empty segment has its file's time, which is later than these timestamps. It
                # ends the broker's search.
                expected = (
                    -1 if any(base <= first for base in self._empty_segments(topic)) else first
                )
                assert first_offset_since(self.broker, topic, timestamp_ms) == expected, (
                    topic,
                    timestamp_ms,
                )
        complaints = [
            line
            for line in self.broker.said()
            if " ERROR " in line or any(t in line for t in self.models)
        ]
        assert complaints == []

    def _empty_segments(self, topic: str) -> list[int]:
        logs = (self.broker.data / f"{topic}-0").glob("*.log")
        return [int(log.stem) for log in logs if log.stat().st_size == 0]


def events(seed: int, count: int) -> list[Sent]:
    """Updates and deletes of sixty keys with headers and with empty keys and values.

    Timestamps mostly rise.
    """
    rng = random.Random(seed)
    keys = [f"key-{n}".encode() for n in range(58)] + [b"", b"\x00\xff"]
    sent = []
    for n in range(count):
        key = rng.choice(keys)
        value = (
            None
            if rng.random() < 0.2
            else rng.randbytes(rng.choice([0, 3, 40])) + b"." * rng.choice([0, 60])
        )
        names = [rng.choice(["h", "é", ""]) for _ in range(rng.choice([0, 0, 2]))]
        headers = tuple((name, rng.choice([None, b"", b"\xca\xfe"])) for name in names)
        stamp = 1_700_000_000_000 + seed * 10_000_000 + n * 1000 + rng.choice([0, 0, 0, -7000])
        sent.append(Sent(key, value, stamp, headers))
    return sent


@pytest.fixture(scope="module")
def home() -> Path:
    try:
        return kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def trial(home: Path, tmp_path: Path) -> Iterator[Trial]:
    made = Trial(home, tmp_path / "data")
    try:
        yield made
    finally:
        made.broker.kill()


def test_broker_serves_the_compacted_log(trial: Trial, tmp_path: Path) -> None:
    broker = trial.broker.start()
    for codec in CODECS:
        trial.create(f"client-{codec}", codec)  # compressed by librdkafka
    for codec in CODECS[1:]:
        trial.create(
            f"broker-{codec}", compression_type=codec
        )  # compressed again by the broker, in Java
    trial.create("append-time", message_timestamp_type="LogAppendTime")
    trial.produce(1, 400)
    trial.create("keyless", cleanup_policy="delete", retention_ms="-1")
    mixed = [
        sent._replace(key=None) if n % 5 == 0 else sent for n, sent in enumerate(events(1, 400))
    ]
    trial.models["keyless"].append(produce(broker, "keyless", mixed))
    set_topic(
        broker, "keyless", {"cleanup.policy": "compact"}
    )  # with ``compact`` a broker rejects records without a key

    create_topic(
        broker, "policy-delete", {"internal.segment.bytes": "4000"}
    )  # Kafka's default policy
    produce(broker, "policy-delete", events(1, 200))

    with pytest.raises(LogHeld):
        lastwrite.compact(str(broker.data), config=CONFIG)
    broker.stop()

    trial.expect_compacted(NOW_MS)
    shutil.copytree(broker.data, tmp_path / "before")
    check_that_keyless_records_stay(tmp_path / "before", tmp_path / "kept")
    report = lastwrite.compact(str(broker.data), config=CONFIG, now_ms=NOW_MS, drop_keyless=True)
    statuses = {partition.topic: str(partition.status) for partition in report.partitions}
    assert {topic: statuses[topic] for topic in trial.models} == dict.fromkeys(
        trial.models, "cleaned"
    )
    assert statuses["policy-delete"] == "unchanged"
    verified = lastwrite.verify(
        str(broker.data), str(tmp_path / "before"), now_ms=NOW_MS, spark=INLINE, drop_keyless=True
    )
    assert [str(problem) for problem in verified.problems] == []
    assert verified.ok
    broker.start()
    trial.judge()

    trial.produce(2, 200)
    broker.stop()
    shutil.copytree(broker.data, tmp_path / "early")
    early = Trial(broker.home, tmp_path / "early")
    for topic, model in trial.models.items():
        early.models[topic] = copy = TopicModel()
        copy.records, copy.end, copy.horizons = list(model.records), model.end, dict(model.horizons)

    # One millisecond before their horizon, the first round's tombstones are kept.
    early.expect_compacted(NOW_MS + RETENTION_MS - 1)
    compact_by_command(early, NOW_MS + RETENTION_MS - 1)
    with early.broker:
        early.judge()

    # At their horizon they are removed. Those of the second round are kept.
    trial.expect_compacted(NOW_MS + RETENTION_MS)
    assert len(trial.models["client-none"].records) < len(early.models["client-none"].records)
    compact_by_command(trial, NOW_MS + RETENTION_MS)
    broker.start()
    trial.judge()
    trial.produce(3, 20)
    trial.judge()


KILLED = """
import sys, lastwrite
from lastwrite.spark.inline import INLINE
lastwrite.compact(sys.argv[1], config={"min.cleanable.dirty.ratio": 0}, now_ms=int(sys.argv[2]), spark=INLINE)
"""


@pytest.mark.long
def test_broker_recovers_from_a_killed_compaction(trial: Trial, tmp_path: Path) -> None:
    """Killed at points throughout the run. The result is the old log or the new one."""
    broker = trial.broker.start()
    trial.create("client-none")
    trial.create("client-zstd", "zstd")
    trial.produce(1, 150)
    broker.stop()
    before = {topic: list(model.records) for topic, model in trial.models.items()}
    trial.expect_compacted(NOW_MS)

    whole = tmp_path / "whole" / "data"
    shutil.copytree(broker.data, whole)
    log = tmp_path / "operations"
    run_until(whole, {"LASTWRITE_FAULT_LOG": str(log)}, 0)
    operations = len(log.read_text().splitlines())
    assert operations > 50
    outcomes = set()
    for n in range(8):
        data = tmp_path / f"killed-{n}" / "data"
        shutil.copytree(broker.data, data)
        run_until(
            data, {"LASTWRITE_FAULT_POINT": str(operations * (2 * n + 1) // 16)}, -signal.SIGKILL
        )
        if (
            n % 2
        ):  # the broker checks every segment above the recovery point, as after a machine crash
            (data / ".kafka_cleanshutdown").unlink()
            (data / "recovery-point-offset-checkpoint").unlink()
        with Broker(broker.home, data) as again:
            for topic, model in trial.models.items():
                found = consume(again, topic)
                assert found in (before[topic], model.records), (n, topic)
                assert bounds(again, topic) == (0, model.end), (n, topic)
                outcomes.add(found == model.records)
            assert [line for line in again.said() if " ERROR " in line] == []
    assert outcomes == {False, True}


def run_until(data: Path, environment: dict[str, str], status: int) -> None:
    """Run one round over ``data`` in its own process and check its exit ``status``."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(data), str(NOW_MS)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr


def check_that_keyless_records_stay(root: Path, copy: Path) -> None:
    """A topic with keyless records is left unchanged until an option allows their removal."""
    shutil.copytree(root, copy)
    before = contents(copy / "keyless-0")
    report = lastwrite.compact(
        str(copy), config=CONFIG, now_ms=NOW_MS, topic="keyless", spark=INLINE
    )
    (one,) = report.partitions
    assert one.status is Status.SKIPPED and one.is_keyless and one.keyless_records > 10, one.reason
    assert (
        one.first_keyless_offset == 0
        and "of " in str(one.reason)
        and "--drop-keyless" in str(one.reason)
    )
    assert contents(copy / "keyless-0") == before
    lastwrite.compact(
        str(copy), config=CONFIG, now_ms=NOW_MS, topic="keyless", spark=INLINE, drop_keyless=True
    )
    told = lastwrite.verify(str(copy), str(root), topic="keyless", now_ms=NOW_MS, spark=INLINE)
    assert told.exit_status == 5 and {violation.promise for violation in told.violations} == {
        "keyless"
    }


def compact_by_command(trial: Trial, now_ms: int) -> None:
    program = str(Path(sys.executable).with_name("lastwrite"))
    command = [
        program,
        "compact",
        str(trial.broker.data),
        "--json",
        "--drop-keyless",
        "--now",
        str(now_ms),
    ]
    settings = [
        argument for name, value in CONFIG.items() for argument in ("--config", f"{name}={value}")
    ]
    done = subprocess.run(
        [*command, *settings],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    statuses = {
        partition["topic"]: partition["status"]
        for partition in json.loads(done.stdout)["partitions"]
    }
    assert {topic: statuses[topic] for topic in trial.models} == dict.fromkeys(
        trial.models, "cleaned"
    )


def test_read_equals_a_consumer(trial: Trial) -> None:
    """Reads by timestamp from the broker's files, and by offset also from compacted files."""
    broker = trial.broker.start()
    trial.create("client-lz4", "lz4")
    trial.create("broker-zstd", compression_type="zstd")
    trial.produce(1, 300)
    broker.stop()

    def read(topic: str, **start: int) -> list[Seen]:
        rows = lastwrite.read(
            str(broker.data), topic=topic, isolation_level="read_committed", **start
        )
        return [seen_of(row) for row in rows]

    def by_offset() -> dict[tuple[str, int], list[Seen]]:
        offsets = (0, 1, 150, 299, 300)
        return {(topic, at): read(topic, offset=at) for topic in trial.models for at in offsets}

    times = range(1_700_010_000_000, 1_700_010_260_000, 37_000)
    by_time = {
        (topic, time_ms): read(topic, time_ms=time_ms)[0].offset
        for topic in trial.models
        for time_ms in times
    }
    for is_compacted in (False, True):
        if is_compacted:
            broker.stop()
            lastwrite.compact(str(broker.data), config=CONFIG, now_ms=NOW_MS, spark=INLINE)
        ours = by_offset()
        broker.start()
        assert ours == {(topic, at): consume(broker, topic, start=at) for topic, at in ours}
        # An empty segment, which compaction may leave, ends a broker's search by timestamp too
        # early.
        if not is_compacted:
            assert by_time == {
                (topic, at): first_offset_since(broker, topic, at) for topic, at in by_time
            }


def seen_of(row: dict[str, Any]) -> Seen:
    """A row of ``read`` as the consumer's record."""
    key, value = (
        None if row[name] is None else base64.b64decode(row[name]) for name in ("key", "value")
    )
    headers = tuple(
        (name, None if content is None else base64.b64decode(content))
        for name, content in row["headers"]
    )
    is_create_time = row["timestamp_type"] == "CreateTime"
    return Seen(row["offset"], key, value, row["timestamp"], headers, is_create_time)
