"""Tests of ``lastwrite clean`` on archives, in a folder and in a bucket of a real S3 server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.archive.manifest import Manifest
from lastwrite.archive.partition_store import VersionedManifest, partition_store_at
from lastwrite.cleaner.events import DaemonNote, Event, PartitionQuarantined, RoundEnded
from lastwrite.cleaner.loop import Cleaner
from lastwrite.cleaner.rounds import RoundRunner
from lastwrite.commands.metrics_page import page_of
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.model.log import TopicPartition
from lastwrite.spark.inline import INLINE
from lastwrite.storage.objects.address import sent_requests
from tests.support.objects import BUCKET, S3, FaultProxy

COMPACT = {"cleanup.policy": "compact", "log.cleaner.backoff.ms": 50}


@dataclass
class Archive:
    """An archive, and the folder that has its objects as files."""

    address: str
    files: Path
    config: dict[str, object]
    log: Path
    events: list[Event] = field(default_factory=list)

    def fetch(self, topic: str, records: int = 200, own_keys: bool = False) -> None:
        """Write a log and fetch it. Its closed segments have about 20 records each.

        The records have 5 keys. With ``own_keys``, every second record has a key of its own. A
        later call with more ``records`` appends to the archive.
        """
        first_ms = time.time_ns() // 1_000_000 - 3_600_000 - records
        shutil.rmtree(self.log, ignore_errors=True)
        with TopicWriter(
            str(self.log), TopicPartition(topic, 0), segment_bytes=2000, batch_bytes=200
        ) as writer:
            for n in range(records):
                writer.append(
                    b"key-%d" % (n if own_keys and n % 2 else n % 5), b"%060d" % n, first_ms + n
                )
            writer.roll()
        report = lastwrite.fetch([str(self.log)], self.address, config=self.config)
        assert report.exit_status == 0, report

    def clean(self, **options: Any) -> int:
        """Run one pass. Its events are in ``events``."""
        self.events.clear()
        config = {**COMPACT, **self.config, **options.pop("config", {})}
        options = {"once": True, "spark": INLINE, "tell": self.events.append, **options}
        return lastwrite.clean([self.address], config, **options)

    @property
    def rounds(self) -> list[str]:
        return [str(event.report.name) for event in self.events if isinstance(event, RoundEnded)]

    @property
    def notes(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, DaemonNote))

    def partition(self, topic: str) -> str:
        return f"{self.address}/kafka/{topic}/0"

    def seen(self, topic: str) -> VersionedManifest:
        found = partition_store_at(self.partition(topic)).read()
        assert found is not None
        return found

    def manifest(self, topic: str) -> Manifest:
        return self.seen(topic).manifest

    def keys(self, topic: str) -> list[object]:
        rows = lastwrite.dump(self.partition(topic), config=self.config)
        return [row["key"] for row in rows]

    def objects(self, topic: str, kind: str = "data") -> list[Path]:
        return sorted(p for p in (self.files / "kafka" / topic / "0" / kind).rglob("*.*"))


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.broker)])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    if request.param == "folder":
        return Archive(str(tmp_path / "archive"), tmp_path / "archive", {}, tmp_path / "log")
    return in_bucket(request.getfixturevalue("s3"), tmp_path)


@pytest.fixture
def bucket(s3: S3, tmp_path: Path) -> Archive:
    return in_bucket(s3, tmp_path)


def in_bucket(s3: S3, tmp_path: Path) -> Archive:
    name = f"clean/{uuid.uuid4().hex}"
    files = s3.data / BUCKET / name
    return Archive(f"s3://{BUCKET}/{name}", files, dict(s3.config), tmp_path / "log")


def test_pass_cleans_due_partitions_and_the_next_only_checks(archive: Archive) -> None:
    for topic in ("a", "b"):
        archive.fetch(topic)
    assert archive.clean() == 0
    assert archive.rounds == ["a-0", "b-0"]
    assert archive.keys("a") == archive.keys("b") and len(archive.keys("a")) == 5
    seen = [archive.manifest(topic).generation for topic in ("a", "b")]
    assert seen == [2, 2]
    assert not archive.objects("a", "rounds")
    before = sent_requests()
    assert (archive.clean(), archive.rounds, archive.notes) == (0, [], "")
    assert (
        sent_requests() - before
    ).puts <= 4  # a sweep of unused objects writes one to learn the store's time
    archive.fetch("a", records=300)
    assert archive.clean() == 0
    assert archive.rounds == ["a-0"]
    assert len(archive.keys("a")) == 5


def test_retention_is_part_of_a_pass(archive: Archive) -> None:
    archive.fetch("a")
    config = {"cleanup.policy": "delete", "retention.ms": 60_000}
    assert archive.clean(config=config) == 0
    (told,) = [event for event in archive.events if isinstance(event, RoundEnded)]
    assert told.report.segments_deleted > 5 and told.report.bytes_read == 0


def test_clean_needs_a_known_cleanup_policy(archive: Archive) -> None:
    archive.fetch("a")
    config = {name: value for name, value in COMPACT.items() if name != "cleanup.policy"}
    with pytest.raises(InvalidConfig, match="which of these topics are compacted"):
        lastwrite.clean([archive.address], {**config, **archive.config}, once=True, spark=INLINE)
    told = {"a": {"cleanup.policy": "compact"}}
    assert archive.clean(config={"cleanup.policy": "delete"}, topic_config=told) == 0
    assert archive.rounds == ["a-0"]


def test_damaged_partition_is_quarantined_in_the_archive(
    archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.fetch("a")
    archive.fetch("b")
    segment = min(p for p in archive.objects("a") if p.suffix == ".log")
    content = segment.read_bytes()
    overwrite(segment, content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert archive.clean() == 3
    assert archive.rounds == ["b-0"]
    (told,) = [event for event in archive.events if isinstance(event, PartitionQuarantined)]
    assert str(told.name) == "a-0" and "the batch's checksum is wrong" in told.entry.reason
    noted = json.loads((archive.files / "_lastwrite" / "uncleanable-kafka.json").read_bytes())
    assert list(noted["partitions"]) == ["a-0"]
    assert not list(archive.files.rglob("lastwrite-uncleanable.json"))
    assert (archive.clean(), archive.events) == (0, []), "not again before its time"
    found = lastwrite.inspect(archive.address, config=archive.config).to_dict()
    assert [bool(each["uncleanable"]) for each in found["partitions"]] == [True, False]
    overwrite(segment, content)
    settings = [word for each in archive.config.items() for word in ("--config", "=".join(each))]
    assert cli.run(["release", archive.address, "--topic", "a", *settings]) == 0
    assert "released a-0" in capsys.readouterr().out
    assert archive.clean() == 0
    assert archive.rounds == ["a-0"]


def overwrite(path: Path, content: bytes) -> None:
    """Overwrite an object's file on the store's disk. Its name, size and version stay the same."""
    with open(path, "r+b") as file:
        file.write(content)


def test_round_of_another_machine_is_waited_for(archive: Archive) -> None:
    archive.fetch("a")
    other = begun_elsewhere(archive, "a")
    grow_old(other, 60)
    assert (archive.clean(), archive.rounds) == (4, [])
    assert archive.objects("a", "rounds") == [other], "what was begun for nothing is removed"
    grow_old(other, 21 * 60)
    assert (archive.clean(), archive.rounds) == (0, ["a-0"])
    assert archive.objects("a", "rounds") == [other], "a sweep removes it when it is a day old"
    grow_old(other, 25 * 3600)
    assert archive.clean() == 0
    assert archive.objects("a", "rounds") == []


def test_round_of_a_dead_local_process_is_ignored(archive: Archive) -> None:
    archive.fetch("a")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    begun_elsewhere(archive, "a", f"{socket.gethostname()}:{process.pid}")
    assert (archive.clean(), archive.rounds) == (0, ["a-0"])


def begun_elsewhere(archive: Archive, topic: str, writer: str = "elsewhere:1") -> Path:
    """Write a journal of another writer's round. Returns its path."""
    folder = archive.partition(topic)
    with patch("lastwrite.archive.partition_store._writer", lambda: f"lastwrite 1 {writer}"):
        begun = partition_store_at(folder).begin(archive.seen(topic))
    return archive.files / "kafka" / topic / "0" / "rounds" / f"{begun.id}.json"


def grow_old(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_round_that_loses_to_another_is_repeated_without_a_failure(archive: Archive) -> None:
    archive.fetch("a")
    run = RoundRunner.run
    told: list[object] = []

    def late(rounds: RoundRunner, *rest: Any) -> Any:
        """Read the log, and let another round commit afterwards."""
        read = rounds._system.read  # type: ignore[attr-defined]

        def read_and_lose(folder: str, *more: Any) -> Any:
            log = read(folder, *more)
            if not told:
                told.append(True)
                config = {**COMPACT, **archive.config}
                report = lastwrite.compact(archive.address, config=config, spark=INLINE)
                told.append(report.exit_status)
            return log

        with patch.object(rounds._system, "read", read_and_lose):
            return run(rounds, *rest)

    with patch.object(RoundRunner, "run", late):
        assert archive.clean() == 0
    assert told == [True, 0]
    assert "was changed by another program" in archive.notes
    assert not list(archive.files.rglob("uncleanable-*")), "a conflict is no failure"
    assert len(archive.keys("a")) == 5 and archive.objects("a", "rounds") == []
    archive.fetch("a", records=300)
    assert archive.clean() == 0 and archive.rounds == ["a-0"]


@pytest.mark.broker
@pytest.mark.slow
def test_two_daemons_on_one_archive_equal_a_single_one(bucket: Archive) -> None:
    """Each daemon is a process of its own. Together they leave what a single one leaves."""
    for n in range(4):
        bucket.fetch(f"t{n}", records=300)
    daemons = [run_daemon(bucket) for _ in range(2)]
    try:
        wait_for(lambda: all(is_clean(bucket, f"t{n}") for n in range(4)), *daemons)
    finally:
        ends = [stop(daemon) for daemon in daemons]
    assert [status for status, _ in ends] == [0, 0], ends
    rounds = [json.loads(line) for _, said in ends for line in said.splitlines()]
    assert {each["topic"] for each in rounds if each["event"] == "round"} == {
        f"t{n}" for n in range(4)
    }
    assert not [each for each in rounds if each["event"] == "uncleanable"]
    report = lastwrite.sweep(bucket.address, older_than_ms=0, everything=True, config=bucket.config)
    assert all(not each.reason for each in report.partitions)
    for n in range(4):
        assert len(bucket.keys(f"t{n}")) == 5
        manifest = bucket.manifest(f"t{n}")
        kept = {each.key for each in (*manifest.objects, *manifest.unused)}
        root = bucket.files / "kafka" / f"t{n}" / "0"
        assert {str(path.relative_to(root)) for path in bucket.objects(f"t{n}")} == kept


@pytest.mark.broker
@pytest.mark.slow
def test_daemon_killed_at_any_point_continues_after_a_restart(bucket: Archive) -> None:
    bucket.fetch("a", records=1000, own_keys=True)
    left = len(set(bucket.keys("a")))
    for delay_s, written in ((0.0, 0), (0.1, 0), (0.0, 9)):
        begun, there = len(bucket.objects("a", "rounds")), len(bucket.objects("a"))
        daemon = run_daemon(bucket, **SLOW)
        while len(bucket.objects("a", "rounds")) == begun:
            assert daemon.poll() is None
            time.sleep(0.01)
        while len(bucket.objects("a")) < there + written:
            assert daemon.poll() is None
            time.sleep(0.01)
        time.sleep(delay_s)
        daemon.send_signal(signal.SIGKILL)
        daemon.communicate()
        assert len(bucket.keys("a")) == 1000
    daemon = run_daemon(bucket)
    try:
        wait_for(lambda: is_clean(bucket, "a"), daemon)
    finally:
        stop(daemon)
    assert len(bucket.keys("a")) == left
    unnamed = [path for path in bucket.objects("a") if path.suffix == ".aside"]
    for path in (*bucket.objects("a", "rounds"), *unnamed):
        grow_old(path, 25 * 3600)
    assert bucket.clean() == 0
    manifest = bucket.manifest("a")
    kept = {each.key for each in (*manifest.objects, *manifest.unused)}
    root = bucket.files / "kafka" / "a" / "0"
    assert {str(path.relative_to(root)) for path in bucket.objects("a")} == kept
    assert "the sweep deleted" in bucket.notes and not bucket.objects("a", "rounds")


def is_clean(archive: Archive, topic: str) -> bool:
    return b'"checkpoint":null' not in bytes(archive.manifest(topic).log)


DAEMON = """
import json, sys
import lastwrite
from lastwrite.spark.inline import INLINE
address, config = sys.argv[1], json.loads(sys.argv[2])
import signal
def started(cleaner):
    signal.signal(signal.SIGTERM, lambda *_: cleaner.request_stop())
def tell(event):
    print(json.dumps(event.to_dict()), flush=True)
sys.exit(lastwrite.clean([address], config, spark=INLINE, tell=tell, started=started))
"""


SLOW = {"log.cleaner.io.max.bytes.per.second": 100_000, "segment.bytes": 3000}


def run_daemon(archive: Archive, **options: object) -> subprocess.Popen[str]:
    config = {**COMPACT, **archive.config, **options}
    return subprocess.Popen(
        [sys.executable, "-c", DAEMON, archive.address, json.dumps(config)],
        stdout=subprocess.PIPE,
        text=True,
    )


def stop(daemon: subprocess.Popen[str]) -> tuple[int, str]:
    daemon.send_signal(signal.SIGTERM)
    said, _ = daemon.communicate()
    return daemon.returncode, said


def wait_for(condition: Callable[[], object], *daemons: subprocess.Popen[str]) -> None:
    while not condition():
        assert all(daemon.poll() is None for daemon in daemons)
        time.sleep(0.02)


# ---------------------------------------------------------------------- a store with faults


@pytest.mark.broker
def test_daemon_waits_for_a_store_that_does_not_answer(bucket: Archive, proxy: FaultProxy) -> None:
    bucket.fetch("a")
    through = {**COMPACT, **bucket.config, "storage.endpoint": proxy.endpoint}
    through["storage.retries"] = 0
    cleaners: list[Any] = []
    events: list[Event] = bucket.events
    proxy.spoil()
    thread = threading.Thread(
        target=lastwrite.clean,
        args=([bucket.address], through),
        kwargs={"spark": INLINE, "tell": events.append, "started": cleaners.append},
    )
    with ends(cleaners):
        thread.start()
        wait_for(lambda: bucket.rounds == ["a-0"])
        proxy.spoil({"do": "503"})
        wait_for(lambda: "was refused at every retry: 503" in bucket.notes)
        bucket.fetch("a", records=300)
        proxy.spoil()
        wait_for(lambda: bucket.rounds == ["a-0", "a-0"])
        proxy.spoil({"method": "GET", "path": r"\.log$", "do": "503"})  # in the middle of a round
        bucket.fetch("a", records=400)
        wait_for(lambda: "a-0: the compaction is tried again later: " in bucket.notes)
        proxy.spoil()
        wait_for(lambda: bucket.rounds == ["a-0"] * 3)
    thread.join()
    assert not [event for event in events if isinstance(event, PartitionQuarantined)]
    assert len(bucket.keys("a")) == 5


@pytest.mark.broker
def test_single_pass_reports_a_store_that_does_not_answer(
    bucket: Archive, proxy: FaultProxy
) -> None:
    bucket.fetch("a")
    through = {"storage.endpoint": proxy.endpoint, "storage.retries": 0}
    proxy.spoil({"do": "503"})
    with pytest.raises(RemoteFailed, match="503"):
        bucket.clean(config=through)
    looked: list[object] = []
    look = Cleaner._scan_root

    def unanswered(cleaner: Cleaner, *rest: Any) -> Any:
        proxy.spoil({"do": "503"})
        looked.append(True)
        return look(cleaner, *rest)

    proxy.spoil()
    with patch.object(Cleaner, "_scan_root", unanswered):
        assert (bucket.clean(config=through), bucket.rounds) == (1, [])
    assert looked and "503" in bucket.notes
    proxy.spoil({"method": "GET", "path": r"\.log$", "do": "503"})
    assert (bucket.clean(config=through), bucket.rounds) == (1, [])
    assert "a-0: the compaction is tried again later: " in bucket.notes
    proxy.spoil()
    assert bucket.objects("a", "rounds") == []
    assert (bucket.clean(config=through), bucket.rounds) == (0, ["a-0"])


@pytest.mark.broker
def test_requests_are_counted_in_the_metrics(bucket: Archive) -> None:
    bucket.fetch("a")
    cleaners: list[Any] = []
    assert bucket.clean(started=cleaners.append) == 0
    page = page_of(cleaners[0]._metrics.registry).decode()
    for kind in ("gets", "puts", "lists", "deletes"):
        [line] = [each for each in page.splitlines() if f'requests_total{{kind="{kind}"}}' in each]
        assert float(line.split()[-1]) > 0
    assert f'log_directory="{bucket.address}",status="clean"' in page


@pytest.fixture(autouse=True)
def _settings_of_stores() -> Iterator[None]:
    """Restore the process-wide store settings that a test changes."""
    from lastwrite.storage.objects import address

    before = address.used()
    yield
    address.use(before)


class ends:
    """Stop a daemon that runs in a thread when the block ends."""

    def __init__(self, cleaners: list[Any]) -> None:
        self._cleaners = cleaners

    def __enter__(self) -> None:
        """Do nothing: the daemon starts inside the block."""

    def __exit__(self, *_: object) -> None:
        wait_for(lambda: self._cleaners)
        self._cleaners[0].request_stop()
