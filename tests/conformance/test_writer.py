"""Tests that Kafka loads the writer's segments unchanged, and builds the same indexes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.encoding.compression import Codec
from lastwrite.model.log import TopicPartition
from tests.support.kafka.oracle import Oracle

pytestmark = pytest.mark.oracle

COUNT = 2000
SEGMENT_BYTES = 8000


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    asked = Oracle()
    yield asked
    asked.close()


def contents(folder: Path) -> dict[str, bytes]:
    """All files except for the indexes of the empty active segment, which Kafka preallocates."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.match(f"{COUNT:020}.*index")
    }


@pytest.mark.parametrize("codec", list(Codec))
def test_kafka_loads_written_segments_unchanged(
    tmp_path: Path, oracle: Oracle, codec: Codec
) -> None:
    with TopicWriter(
        str(tmp_path),
        TopicPartition("t", 0),
        segment_bytes=SEGMENT_BYTES,
        batch_bytes=900,
        codec=codec,
    ) as writer:
        for n in range(COUNT):
            key, value = b"key-%d" % (n % 300), None if n % 11 == 5 else b"value %d" % n
            writer.append(
                key, value, 1_700_000_000_000 + n * 7919 % 5000, [(b"commit", b"%040d" % n)]
            )
        writer.roll()
    folder = tmp_path / "t-0"
    written = contents(folder)
    config = {"cleanup.policy": "compact", "internal.segment.bytes": str(SEGMENT_BYTES)}

    loaded = oracle.ask("load", dir=str(folder), config=config)
    assert (loaded["log_start"], loaded["log_end"], loaded["producers"]) == (0, COUNT, {})
    assert contents(folder) == written

    for path in folder.glob("*index"):
        path.unlink()
    oracle.ask("load", dir=str(folder), config=config)
    assert contents(folder) == written

    state = oracle.ask("state", dir=str(folder))
    assert (
        sum(len(batch["records"]) for segment in state["segments"] for batch in segment["batches"])
        == COUNT
    )
