"""Tests of the daemon's loop without Spark: selection, quarantine, locks and shutdown."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cleaner.events import DaemonNote, Event, PartitionQuarantined, RoundEnded
from lastwrite.cleaner.loop import Cleaner
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.kafka.format.names import CLEANER_OFFSETS
from lastwrite.kafka.store.checkpoints import read_offsets, write_offset
from lastwrite.kafka.store.watching import NOTES
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress
from lastwrite.spark.inline import INLINE
from lastwrite.storage.quarantine import FILE, read_quarantine, record_failures
from tests.support.files import contents

COMPACT = {"cleanup.policy": "compact", "log.cleaner.backoff.ms": 50}


def name(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


def write(
    root: Path, partition: TopicPartition, records: int = 200, clean_to: int = 0, age_ms: int = 5000
) -> Path:
    """Write segments of about 20 records with 5 keys. The last segment is closed.

    The checkpoint counts the records below offset ``clean_to`` as clean.
    """
    first_ms = time.time_ns() // 1_000_000 - age_ms - records
    with TopicWriter(str(root), partition, segment_bytes=2000, batch_bytes=200) as writer:
        for n in range(records):
            writer.append(b"key-%d" % (n % 5), b"%060d" % n, first_ms + n)
        writer.roll()
    if clean_to:
        write_offset(str(root), CLEANER_OFFSETS, partition, clean_to)
    return Path(writer.folder)


def break_closed_segment(folder: Path) -> bytes:
    """Flip a byte of a record in the first segment. Returns the file and its original bytes."""
    segment = min(folder.glob("*.log"))
    content = segment.read_bytes()
    segment.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    return content


def clean(*roots: Path, **options: object) -> tuple[int, list[Event]]:
    """Run ``clean`` once. Returns its exit status and its events."""
    events: list[Event] = []
    config = {**COMPACT, **options}
    status = lastwrite.clean(
        [str(root) for root in roots], config, once=True, spark=INLINE, tell=events.append
    )
    return status, events


def rounds(events: list[Event]) -> list[str]:
    return [f"{e.report.topic}-{e.report.partition}" for e in events if isinstance(e, RoundEnded)]


def test_pass_cleans_due_partitions_of_two_roots_dirtiest_first(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    write(tmp_path / "x", name("some"), clean_to=60)
    write(tmp_path / "x", name("little"), clean_to=150)
    write(tmp_path / "y", name("all"))
    write(tmp_path / "y", name("more"), clean_to=40)
    status, events = clean(tmp_path / "x", tmp_path / "y")
    assert (status, rounds(events)) == (0, ["all-0", "more-0", "some-0"])
    first = next(e for e in events if isinstance(e, RoundEnded))
    assert (first.root, first.report.records_after, first.keyless) == (str(tmp_path / "y"), 5, 0)
    assert first.report.bytes_read > first.report.bytes_before > first.report.bytes_written > 0
    assert first.saved_percent > 90 and set(first.stage_seconds) >= {"scan", "commit"}
    assert read_offsets(str(tmp_path / "y"), CLEANER_OFFSETS) == {
        name("all"): 200,
        name("more"): 200,
    }
    assert clean(tmp_path / "x", tmp_path / "y") == (0, [])


def test_setting_without_effect_is_reported_with_its_replacement(tmp_path: Path) -> None:
    class Heard(NoProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    write(tmp_path, name("all"))
    buffers = {"log.cleaner.dedupe.buffer.size": "5", "log.cleaner.io.buffer.size": "7"}
    said = "log.cleaner.io.buffer.size has no effect: use --memory, which determines the size of every buffer"
    for config, count in (({**COMPACT, **buffers}, 1), (COMPACT, 0)):
        notes: list[str] = []
        lastwrite.plan(str(tmp_path), config=config, spark=INLINE, progress=Heard())
        assert sum(said in note for note in notes) == count
    _, events = clean(tmp_path, **buffers)
    assert sum(isinstance(event, DaemonNote) and said in event.text for event in events) == 1


def test_overdue_partition_is_due_whatever_its_dirty_ratio(tmp_path: Path) -> None:
    write(tmp_path, name("old"), clean_to=150, age_ms=5000)
    assert clean(tmp_path) == (0, [])
    status, events = clean(tmp_path, **{"max.compaction.lag.ms": 1000})
    assert (status, rounds(events)) == (0, ["old-0"])


def test_damaged_partition_is_quarantined_and_the_others_are_cleaned(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path, name("a"))
    write(tmp_path, name("b"))
    before = break_closed_segment(folder)
    status, events = clean(tmp_path)
    assert (status, rounds(events)) == (3, ["b-0"])
    (told,) = [e for e in events if isinstance(e, PartitionQuarantined)]
    assert (
        told.name == name("a")
        and "the batch's checksum is wrong" in told.entry.reason
        and told.entry.tries == 1
    )
    assert read_quarantine(str(tmp_path), NOTES) == {name("a"): told.entry}
    assert clean(tmp_path) == (0, []), "not again before its time"
    min(folder.glob("*.log")).write_bytes(before)
    assert list(lastwrite.release(str(tmp_path))) == [name("a")]
    assert rounds(clean(tmp_path)[1]) == ["a-0"]


def test_successful_retry_ends_the_quarantine(tmp_path: Path) -> None:
    write(tmp_path, name("a"))
    record_failures(
        str(tmp_path), {name("a"): "it was torn"}, time.time_ns() // 1_000_000 - 60_001, NOTES
    )
    assert rounds(clean(tmp_path)[1]) == ["a-0"]
    assert not (tmp_path / FILE).exists()


def test_unreadable_partition_is_quarantined(tmp_path: Path) -> None:
    folder = write(tmp_path, name("a"))
    (folder / "leader-epoch-checkpoint").write_text("what?")
    assert clean(tmp_path) == (0, []), "somebody may be writing it just now"
    os.utime(folder, (time.time() - 5, time.time() - 5))
    status, events = clean(tmp_path)
    assert (
        status == 3
        and "leader-epoch-checkpoint" in read_quarantine(str(tmp_path), NOTES)[name("a")].reason
    )
    assert [type(e) for e in events] == [PartitionQuarantined]


_HOLD = """
import sys
from lastwrite.kafka.store import lock
from lastwrite.model.log import TopicPartition
with lock.hold(sys.argv[1], [TopicPartition("a", 0)]):
    print("held", flush=True)
    sys.stdin.read()
"""
_BROKER = """
import fcntl, sys
file = open(sys.argv[1] + "/.lock", "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("script", "cleaned"), [(_HOLD, ["b-0"]), (_BROKER, [])])
def test_partition_locked_by_another_process_is_skipped(
    tmp_path: Path, script: str, cleaned: list[str]
) -> None:
    write(tmp_path, name("a"))
    write(tmp_path, name("b"))
    arguments = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        status, events = clean(tmp_path)
        assert (status, rounds(events)) == (4, cleaned)
        if not cleaned:
            (note,) = events
            assert isinstance(note, DaemonNote) and f"process {other.pid}" in note.text
        other.kill()
        other.wait()
        assert rounds(clean(tmp_path)[1]) == sorted({"a-0", "b-0"} - set(cleaned)), (
            "a crash has freed it"
        )


def test_retention_runs_in_each_pass(tmp_path: Path) -> None:
    write(tmp_path, name("a"), age_ms=3_600_000)
    _, events = clean(tmp_path, **{"cleanup.policy": "delete", "retention.ms": 60_000})
    (told,) = [e for e in events if isinstance(e, RoundEnded)]
    assert told.report.segments_deleted > 5 and told.report.bytes_read == 0
    write(tmp_path, name("b"), age_ms=3_600_000)
    _, events = clean(tmp_path, **{"cleanup.policy": "compact,delete", "retention.ms": 60_000})
    assert rounds(events) == ["b-0"]


def test_clean_refuses_to_guess_the_cleanup_policy(tmp_path: Path) -> None:
    write(tmp_path, name("a"))
    with pytest.raises(InvalidConfig, match="which of these topics are compacted"):
        lastwrite.clean([str(tmp_path)], once=True, spark=INLINE)
    with pytest.raises(NotALog):
        lastwrite.clean([str(tmp_path / "missing")], COMPACT, once=True)
    with pytest.raises(NotALog, match="not a log root"):
        lastwrite.clean([str(tmp_path / "a-0")], COMPACT, once=True)


def test_daemon_cleans_new_data_and_stops_on_request(tmp_path: Path) -> None:
    write(tmp_path, name("a"))
    cleaners: list[Cleaner] = []
    events: list[Event] = []
    thread = threading.Thread(
        target=lastwrite.clean,
        args=([str(tmp_path)], COMPACT),
        kwargs={"spark": INLINE, "tell": events.append, "started": cleaners.append},
    )
    thread.start()
    wait_for(lambda: rounds(events) == ["a-0"])
    write(tmp_path, name("b"))
    wait_for(lambda: rounds(events) == ["a-0", "b-0"])
    cleaners[0].request_stop()
    thread.join(120)
    assert not thread.is_alive()


def test_stop_during_a_round_leaves_the_log_unchanged(tmp_path: Path) -> None:
    folder = write(tmp_path, name("a"), records=5000)
    before = contents(folder)
    cleaners: list[Cleaner] = []
    events: list[Event] = []
    config = {**COMPACT, "log.cleaner.io.max.bytes.per.second": 300_000}
    thread = threading.Thread(
        target=lastwrite.clean,
        args=([str(tmp_path)], config),
        kwargs={"spark": INLINE, "tell": events.append, "started": cleaners.append},
    )
    thread.start()
    wait_for(lambda: cleaners and cleaners[0]._running, 60)
    time.sleep(0.5)
    cleaners[0].request_stop()
    thread.join(120)
    assert not thread.is_alive()
    assert not rounds(events) and "during the compaction of a-0" in str(events[-1])
    assert contents(folder) == before
    assert not (tmp_path / FILE).exists(), "to be stopped is no failure"
    assert rounds(clean(tmp_path)[1]) == ["a-0"]


def wait_for(condition: object, seconds: float = 120) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
