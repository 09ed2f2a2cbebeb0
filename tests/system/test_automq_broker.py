"""Test of a topic copied from AutoMQ's bucket, in a real Kafka: the way to leave AutoMQ."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from tests.support.kafka.automq_stages import LEVELS, Stage, unpack_stage
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Seen, consume, create_topic
from tests.support.kafka.tools.console import ConsoleTools

pytestmark = [pytest.mark.broker, pytest.mark.slow]

# partitions and settings of the topics; nothing is cleaned meanwhile
TOPICS = {
    "orders": (3, {"cleanup.policy": "compact", "min.compaction.lag.ms": str(2**62)}),
    "plain": (2, {"retention.ms": "-1"}),
    "stamped": (1, {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}),
    "idle": (2, {"cleanup.policy": "compact"}),
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    try:
        home = kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))
    made = Broker(home, tmp_path / "kafka", {"log.cleaner.backoff.ms": "3600000"})
    try:
        yield made
    finally:
        made.kill()


def dumped(home: Path, paths: list[Path]) -> str:
    """What Kafka's DumpLogSegments prints of segments."""
    files = ",".join(map(str, paths))
    with ConsoleTools(home) as tools:
        printed = tools.run_offline("kafka-dump-log", "--deep-iteration", "--files", files)
    assert printed.status == 0, printed.lines[-5:]
    return "\n".join(printed.lines)


def expected(stage: Stage, topic: str, number: int, level: str) -> list[Seen]:
    def decoded(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    return [
        Seen(
            row["offset"],
            decoded(row["key"]),
            decoded(row["value"]),
            row["timestamp"],
            tuple((name, decoded(value)) for name, value in row["headers"]),
            row["timestamp_type"] == "create",
        )
        for row in stage.expected(topic, number, level)
    ]


def put_segments(archive: Path, broker: Broker) -> list[Path]:
    """Put the archive's segments into the log root of a stopped broker. Returns their paths."""
    segments = sorted((archive / "kafka").rglob("*.log"))
    for path in segments:
        topic, number = path.relative_to(archive / "kafka").parts[:2]
        folder = broker.data / f"{topic}-{number}"
        for old in folder.iterdir():
            if old.name != "partition.metadata" and old.stat().st_mtime < path.stat().st_mtime:
                old.unlink()
        shutil.copyfile(path, folder / path.name)
    # without this file, the broker checks all records and rebuilds the indexes
    (broker.data / ".kafka_cleanshutdown").unlink()
    return segments


def test_real_kafka_accepts_and_serves_what_automq_served(tmp_path: Path, broker: Broker) -> None:
    stage, archive = unpack_stage("stage4", tmp_path), tmp_path / "archive"
    broker.start()
    for topic, (partitions, settings) in TOPICS.items():
        create_topic(broker, topic, settings, partitions)
    broker.stop()
    report = lastwrite.fetch(
        str(stage.bucket), str(archive), topic=[*TOPICS], include_active=True, **stage.source
    )
    assert report.exit_status == 0
    segments = put_segments(archive, broker)
    text = dumped(broker.home, segments)
    assert text.count("isvalid: true") == text.count("baseOffset: ") > len(segments)
    broker.start()
    for topic, number in stage.names():
        if topic in TOPICS:
            for level in LEVELS:
                start = stage.partitions[f"{topic}-{number}"]["beginning"]
                found = consume(broker, topic, partition=number, isolation=level, start=start)
                assert found == expected(stage, topic, number, level)
