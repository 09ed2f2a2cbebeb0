"""Tests of the daemon on a Pulsar archive, of backlogs in ``plan``, and of rate limits, in this
process.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

import lastwrite
from lastwrite.cleaner.events import DaemonNote, Event, PartitionQuarantined, RoundEnded
from lastwrite.cleaner.loop import Cleaner
from lastwrite.cli.clean import event_line
from lastwrite.cli.output import format_size
from lastwrite.cli.plan import _backlog_lines
from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.pulsar.format.entry import PulsarMessage, encode_entry, encode_single
from lastwrite.pulsar.format.position import Position
from lastwrite.spark.inline import INLINE
from lastwrite.storage.quarantine import FILE
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder

TOPICS = ("persistent://public/default/a", "persistent://public/default/b-partition-3")
NOW = 1_700_000_000_000
OVER = {"compactionThreshold": "1K"}


def entries(count: int, size: int = 100, keys: int = 5) -> list[bytes]:
    return [
        encode_entry(
            *encode_single(
                PulsarMessage(
                    key=b"k%d" % (n % keys), value=b"%0*d" % (size, n), publish_time=NOW + n
                )
            )
        )
        for n in range(count)
    ]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for topic in TOPICS:
        put_ledger(topic_folder(tmp_path, topic), 10, entries(20))
    return tmp_path


def clean(root: Path, config: dict[str, object]) -> tuple[int, list[Event]]:
    """Run ``clean`` once. Returns its exit status and its events."""
    events: list[Event] = []
    status = lastwrite.clean([str(root)], config, once=True, spark=INLINE, tell=events.append)
    return status, events


def cleaned(events: list[Event]) -> list[str]:
    return sorted(str(event.report.name) for event in events if isinstance(event, RoundEnded))


def test_topic_above_the_threshold_is_compacted(archive: Path) -> None:
    status, events = clean(archive, OVER)
    assert (status, cleaned(events)) == (
        0,
        ["persistent://public/default/a", "persistent://public/default/b-3"],
    )
    assert "b-3: entries 10:0 to 10:19, read" in "".join(map(event_line, events))
    assert len(read_compacted(topic_folder(archive, TOPICS[0]))) == 5
    assert clean(archive, OVER) == (0, []), "nothing has come since"
    put_ledger(topic_folder(archive, TOPICS[0]), 12, entries(3))
    assert clean(archive, OVER) == (0, []), "not enough has"
    assert cleaned(clean(archive, {"compactionThreshold": 300})[1]) == [
        "persistent://public/default/a"
    ]
    last, _ = read_compacted(topic_folder(archive, TOPICS[0]))[-1]
    assert last == Position(12, 2)


@pytest.mark.parametrize("threshold", [0, "1M"])
def test_topic_at_or_below_the_threshold_is_unchanged(archive: Path, threshold: object) -> None:
    assert clean(archive, {"brokerServiceCompactionThresholdInBytes": threshold}) == (0, [])
    [report, _] = lastwrite.plan(
        str(archive), config={"brokerServiceCompactionThresholdInBytes": threshold}, spark=INLINE
    ).partitions
    assert str(report.status) == "cleaned", "who asks for a round need not wait"


def test_cleaner_settings_apply_to_archives(archive: Path) -> None:
    status, events = clean(archive, {**OVER, "log.cleaner.enable": "false"})
    assert (status, cleaned(events)) == (0, [])
    assert [event.text for event in events if isinstance(event, DaemonNote)] == [
        "log.cleaner.enable is false, so nothing is compacted"
    ]
    tuned = {"log.cleaner.threads": 2, "log.cleaner.backoff.ms": 7, "log.cleaner.enable": "true"}
    assert len(cleaned(clean(archive, {**OVER, **tuned})[1])) == 2


def test_daemon_of_live_topics_can_be_disabled() -> None:
    events: list[Event] = []
    # nothing listens at this address
    given = {"metadataStoreUrl": "zk:127.0.0.1:1", "log.cleaner.enable": False}
    topic = "persistent://public/default/a"
    status = lastwrite.clean([topic], given, once=True, spark=INLINE, tell=events.append)
    assert status == 0
    [said] = events
    assert isinstance(said, DaemonNote) and said.text.startswith("log.cleaner.enable is false")


def test_clean_without_a_threshold_is_refused(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="which of these topics are compacted"):
        clean(archive, {})
    with pytest.raises(NotALog, match="the path is not an existing folder"):
        clean(tmp_path / "nothing", OVER)


def test_single_topic_may_be_the_root(archive: Path) -> None:
    folder = topic_folder(archive, TOPICS[1])
    assert cleaned(clean(folder, OVER)[1]) == ["persistent://public/default/b-3"]
    assert not (topic_folder(archive, TOPICS[0]) / "compacted.json").exists()


def test_damaged_topic_is_quarantined_and_released(archive: Path) -> None:
    folder = topic_folder(archive, TOPICS[1])
    path = put_ledger(folder, 10, entries(20))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    status, events = clean(archive, OVER)
    assert (status, cleaned(events)) == (3, ["persistent://public/default/a"])
    [told] = [event for event in events if isinstance(event, PartitionQuarantined)]
    assert (
        told.name == TopicPartition("persistent://public/default/b", 3)
        and path.name in told.entry.reason
    )
    assert list(json.loads((folder / FILE).read_text())["partitions"]) == [TOPICS[1]]
    assert clean(archive, OVER) == (0, []), "until its next try is due"
    [_, report] = lastwrite.plan(str(archive), spark=INLINE).partitions
    assert report.uncleanable == told.entry
    assert lastwrite.inspect(str(folder)).partitions[0].uncleanable == told.entry
    assert list(lastwrite.release(str(archive))) == [told.name] and not (folder / FILE).exists()


def test_daemon_compacts_new_topics_and_stops_on_request(archive: Path) -> None:
    events: list[Event] = []
    cleaners: list[Cleaner] = []
    config = {**OVER, "brokerServiceCompactionMonitorIntervalInSeconds": 1}
    thread = threading.Thread(
        target=lastwrite.clean,
        args=([str(archive)], config),
        kwargs={"spark": INLINE, "tell": events.append, "started": cleaners.append},
    )
    thread.start()
    wait_for(lambda: len(cleaned(events)) == 2)
    put_ledger(topic_folder(archive, "persistent://t/n/late"), 7, entries(20))
    wait_for(lambda: "persistent://t/n/late" in cleaned(events))
    cleaners[0].request_stop()
    thread.join(120)
    assert not thread.is_alive() and not any(isinstance(event, DaemonNote) for event in events)


def wait_for(condition: object, seconds: float = 120) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


# ---------------------------------------------------------------------- the backlog


def managed_ledger(folder: Path, *ledgers: tuple[int, int, int, int]) -> None:
    """Write the topic's ledger list: id, entries, bytes and closing time, which is 0 for the open
    ledger.
    """
    known = [
        {"ledgerId": ledger, "entries": count, "size": size, "timestamp": closed}
        for ledger, count, size, closed in ledgers
    ]
    (folder / "managed-ledger.json").write_text(json.dumps({"ledgerInfo": known}))


def test_plan_reports_the_backlog_and_its_deletable_part(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    sizes = []
    for ledger in (10, 12):
        some = entries(20)
        put_ledger(folder, ledger, some)
        sizes.append(sum(map(len, some)))
    managed_ledger(
        folder, (10, 20, sizes[0], NOW - 120_000), (12, 20, sizes[1], NOW - 30_000), (15, 0, 0, 0)
    )
    config = {"defaultRetentionTimeInMinutes": 1, "defaultRetentionSizeInMB": -1}
    whole = lastwrite.plan(str(folder), config=config, now_ms=NOW, spark=INLINE)
    [report] = whole.partitions
    assert list(_backlog_lines(whole))[1].endswith(
        f"{format_size(sum(sizes))} in 2 segments entirely below the horizon; "
        f"{format_size(sizes[0])} in 1 segment "
        "could be deleted; held by retention: ledger 12: the ledger was closed 30000 ms ago, and "
        "the retention time is 60000 ms"
    )
    found = report.backlog
    assert found is not None and report.to_dict()["backlog"]["segments"] == 2
    assert (found.segments, found.bytes, found.segments_beyond, found.bytes_beyond) == (
        2,
        sum(sizes),
        1,
        0,
    )
    assert (found.segments_free, found.bytes_free) == (1, sizes[0])
    assert (
        found.reason
        == "ledger 12: the ledger was closed 30000 ms ago, and the retention time is 60000 ms"
    )
    gone = structs.replace(found, segments_free=2, bytes_free=sum(sizes), reason=None)
    config = {"retentionTimeInMinutes": 0}
    [report] = lastwrite.plan(str(folder), config=config, now_ms=NOW, spark=INLINE).partitions
    assert report.backlog == gone
    unsaid = lastwrite.plan(str(folder), now_ms=NOW, spark=INLINE)
    [report] = unsaid.partitions
    assert report.backlog == structs.replace(gone, segments_free=None, bytes_free=None)
    assert list(_backlog_lines(unsaid))[1].endswith(
        "entirely below the horizon; how much could be deleted is unknown without "
        "retentionTimeInMinutes or retentionSizeInMB"
    )


def test_open_transaction_keeps_the_backlog_beyond_the_horizon(tmp_path: Path) -> None:
    """An open transaction keeps the horizon before ledger 12."""
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, entries(20))
    meta, payload = encode_single(PulsarMessage(key=b"k", value=b"v", publish_time=NOW))
    pending = encode_entry(replace(meta, txnid_least_bits=1, txnid_most_bits=0), payload)
    put_ledger(folder, 12, [*entries(2), pending])
    config = {"retentionTimeInMinutes": 0}
    [report] = lastwrite.compact(str(folder), config=config, now_ms=NOW, spark=INLINE).partitions
    assert report.backlog is not None
    assert (
        report.backlog.segments,
        report.backlog.segments_beyond,
        report.backlog.segments_free,
    ) == (1, 1, 1)
    [again] = lastwrite.plan(str(folder), config=config, now_ms=NOW, spark=INLINE).partitions
    assert str(again.status) == "skipped" and again.backlog == report.backlog


# ---------------------------------------------------------------------- throttles


@pytest.mark.parametrize("slow", ["Read", "Write"])
def test_reads_and_writes_have_separate_rate_limits(tmp_path: Path, slow: str) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, entries(2000, keys=500))
    begin = time.monotonic()
    config = {f"compaction{slow}MaxBytesPerSecond": 300_000}
    [report] = lastwrite.compact(str(folder), config=config, now_ms=NOW, spark=INLINE).partitions
    seconds = time.monotonic() - begin
    counted = report.bytes_read if slow == "Read" else report.bytes_written
    assert seconds >= counted / 300_000 - 0.3  # the throttle allows this burst
    assert report.bytes_read > 4 * report.bytes_written
    if slow == "Write":
        assert seconds < report.bytes_read / 300_000 - 0.3
