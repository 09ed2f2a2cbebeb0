"""Tests of the daemon on RocketMQ stores, in this process. For Kafka see ``test_cleaner``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cleaner.events import DaemonNote, Event, PartitionQuarantined, RoundEnded
from lastwrite.errors import InvalidConfig
from lastwrite.model.log import TopicPartition
from lastwrite.spark.inline import INLINE
from lastwrite.storage.quarantine import FILE

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "rocketmq" / "5.5.0"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CORPUS, tmp_path / "store"))


def clean(*roots: Path, **options: object) -> tuple[int, list[Event]]:
    """Run ``clean`` once. Returns its exit status and its events."""
    events: list[Event] = []
    status = lastwrite.clean(
        [str(root) for root in roots], options, once=True, spark=INLINE, tell=events.append
    )
    return status, events


def cleaned(events: list[Event]) -> set[int]:
    return {event.report.partition for event in events if isinstance(event, RoundEnded)}


def test_pass_cleans_each_queue_and_the_next_finds_nothing(store: Path) -> None:
    status, events = clean(store)
    assert (status, cleaned(events)) == (0, {0, 1})
    assert clean(store) == (0, [])


def test_cleaner_settings_apply_to_stores(store: Path) -> None:
    status, events = clean(store, **{"log.cleaner.enable": "false"})
    assert (status, cleaned(events)) == (0, set())
    assert [event.text for event in events if isinstance(event, DaemonNote)] == [
        "log.cleaner.enable is false, so nothing is compacted"
    ]
    tuned = {"log.cleaner.threads": 2, "log.cleaner.backoff.ms": 7, "log.cleaner.enable": "true"}
    assert cleaned(clean(store, **tuned)[1]) == {0, 1}


def test_store_of_a_killed_broker_is_skipped(store: Path) -> None:
    (store / "abort").touch()
    status, events = clean(store)
    assert (
        isinstance(events[0], DaemonNote) and "was killed" in events[0].text and not cleaned(events)
    )
    assert cleaned(clean(store, unclean="true")[1]) == {0, 1}


def test_damaged_queue_is_quarantined_and_released(store: Path) -> None:
    first = min((store / "compaction" / "compactionLog" / "ctopic" / "0").iterdir())
    content = bytearray(first.read_bytes())
    content[4] ^= 1  # the record's magic
    first.write_bytes(content)
    status, events = clean(store)
    assert (status, cleaned(events)) == (3, {1})
    [told] = [event for event in events if isinstance(event, PartitionQuarantined)]
    assert told.name == TopicPartition("ctopic", 0) and first.name in told.entry.reason
    assert clean(store) == (0, []), "until its next try is due"
    [report, _] = lastwrite.plan(str(store), spark=INLINE).partitions
    assert report.uncleanable == told.entry
    assert list(lastwrite.release(str(store))) == [told.name] and not (store / FILE).exists()


def test_roots_of_two_systems_are_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with pytest.raises(InvalidConfig, match="paths belong to several systems"):
        clean(store, tmp_path / "kafka")
    with pytest.raises(InvalidConfig, match="allow no other files"):
        lastwrite.clean([str(store)], once=True, spark=INLINE, keep_scans=True)
