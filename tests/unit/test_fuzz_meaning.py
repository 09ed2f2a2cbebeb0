"""Tests of the semantic fuzzer: a short run, and inputs that it found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.pulsar.format.position import MAX_LEDGER
from lastwrite.spark.inline import INLINE
from tests.fuzz import meaning
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, write_segment
from tests.support.pulsar.folders import single, write_ledger
from tests.support.pulsar.topics import topic_folder
from tests.support.rocketmq.model import TOPIC, ModelPair, ModelQueue, message, write_store

LONG_MAX, LONG_MIN = 2**63 - 1, -(2**63)
EVENT_TIME = {
    "compactionServiceFactoryClassName": "org.apache.pulsar.compaction."
    "EventTimeCompactionServiceFactory"
}


@pytest.mark.parametrize(
    "draw", [meaning.kafka_input, meaning.rocketmq_input, meaning.pulsar_input]
)
def test_short_run_with_extreme_values_finds_nothing(draw: meaning.Draw) -> None:
    rng = random.Random(20_261_128)
    for _ in range(10):
        meaning.check(rng.randbytes(8), draw, most=3)


def test_batches_at_the_least_timestamp_are_scanned(tmp_path: Path) -> None:
    for base in (0, 1, 2):
        record = Record(base, LONG_MIN, b"k", b"v")
        write_segment(tmp_path / NAME, base, [encode_batch([record], max_timestamp_ms=LONG_MIN)])
    [found] = lastwrite.inspect(str(tmp_path)).partitions
    assert not found.problems
    [done] = compact(tmp_path, {}, 1_700_000_000_000).partitions
    assert done.records_after == 2


def test_compaction_position_may_be_the_largest_offset(tmp_path: Path) -> None:
    made = ModelPair(0, (message(0, "k", b"v", 1_700_000_000_000),), is_closed=True)
    queue = ModelQueue(4000, 920, position=LONG_MAX, pairs=[made, ModelPair(4000)])
    write_store(tmp_path, [queue])
    [found] = lastwrite.inspect(str(tmp_path), topic=TOPIC).partitions
    assert found.compaction.first_dirty_offset == LONG_MAX


@pytest.mark.parametrize("ledger", [MAX_LEDGER, MAX_LEDGER + 1])
def test_last_pulsar_ledgers_are_read_or_refused(tmp_path: Path, ledger: int) -> None:
    folder = topic_folder(tmp_path)
    write_ledger(folder, ledger, [single("k", "v"), single("k", "w")])
    assert lastwrite.inspect(str(tmp_path)).partitions
    report = lastwrite.compact(str(tmp_path), spark=INLINE)
    assert report.exit_status in (0, 1)  # no ledger id is left, or it does not fit into an offset


@pytest.mark.parametrize("event_time", [2**61 - 1, LONG_MAX])
def test_incomparable_event_time_leaves_the_topic_unchanged(
    tmp_path: Path, event_time: int
) -> None:
    folder = topic_folder(tmp_path)
    early = single("k", "v", event_time=event_time)
    write_ledger(folder, 1, [early, single("k", "w", event_time=event_time - 1)])
    report = lastwrite.compact(str(tmp_path), config=EVENT_TIME, spark=INLINE)
    assert "event time" in str(report.partitions[0].reason)
    assert not (folder / "compacted.json").exists()


def test_verify_treats_a_negative_event_time_as_0(tmp_path: Path) -> None:
    archive, copy = tmp_path / "archive", tmp_path / "copy"
    folder = topic_folder(archive)
    write_ledger(
        folder, 1, [single("k", "v", event_time=2**64 - 1), single("k", "w", event_time=1)]
    )
    lastwrite.compact(str(archive), to=str(copy), config=EVENT_TIME, spark=INLINE)
    assert lastwrite.verify(str(copy), before=str(archive), spark=INLINE).exit_status == 0


@pytest.mark.parametrize("now_ms", [2**63, -(2**63) - 1])
def test_clock_beyond_64_bits_is_refused(tmp_path: Path, now_ms: int) -> None:
    write_segment(tmp_path / NAME, 0, [encode_batch([Record(0, 0, b"k", None)])])
    with pytest.raises(InvalidConfig, match="now_ms"):
        compact(tmp_path, {}, now_ms)
