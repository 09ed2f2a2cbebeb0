"""Tests of ``lastwrite clean`` as a process controlled by files and signals."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import lastwrite
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.kafka.format.names import CLEANER_OFFSETS
from lastwrite.kafka.store.checkpoints import read_offsets, write_offset
from lastwrite.kafka.store.watching import NOTES
from lastwrite.model.log import TopicPartition
from lastwrite.storage.quarantine import read_quarantine
from tests.support.files import contents
from tests.support.sample import some

pytestmark = pytest.mark.spark

_HOLD = """
import sys
from lastwrite.kafka.store import lock
from lastwrite.model.log import TopicPartition
with lock.hold(sys.argv[1], [TopicPartition(sys.argv[2], 0)]):
    print("held", flush=True)
    sys.stdin.read()
"""


def write(
    root: Path, topic: str, records: int = 400, clean_to: int = 0, value_bytes: int = 60
) -> Path:
    """Write a partition of closed segments in which five keys repeat.

    The checkpoint counts the records below offset ``clean_to`` as clean.
    """
    first_ms = time.time_ns() // 1_000_000 - 60_000
    name = TopicPartition(topic, 0)
    segment_bytes = max(4000, records * value_bytes // 8)
    with TopicWriter(
        str(root), name, segment_bytes=segment_bytes, batch_bytes=segment_bytes // 8
    ) as writer:
        for n in range(records):
            writer.append(b"key-%d" % (n % 5), b"%0*d" % (value_bytes, n), first_ms + n)
        writer.roll()
    if clean_to:
        write_offset(str(root), CLEANER_OFFSETS, name, clean_to)
    return Path(writer.folder)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def has_odd_suffix(folder: Path) -> bool:
    return any(
        path.suffix in (".cleaned", ".swap", ".deleted", ".tmp") or "lastwrite" in path.name
        for path in folder.iterdir()
    )


class Daemon:
    """A running ``lastwrite clean`` whose events are read one by one."""

    def __init__(self, *arguments: object) -> None:
        command = [
            sys.executable,
            "-m",
            "lastwrite.cli",
            "clean",
            *map(str, arguments),
            "--json",
            "--master",
            "local[2]",
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def expect(self, event: str, seconds: float = 120.0, **fields: object) -> dict[str, Any]:
        """Return the next event of ``kind`` with these fields. Other events are kept in
        ``events``.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = json.loads(self._lines.get(timeout=max(deadline - time.monotonic(), 0.01)))
            except queue.Empty:
                raise AssertionError(
                    f"no {event} {fields} within {seconds} s; there were {self.events}"
                ) from None
            self.events.append(found)
            if found["event"] == event and all(
                found[name] == value for name, value in fields.items()
            ):
                return found  # type: ignore[no-any-return]

    def stop(self, signal_number: int = signal.SIGTERM) -> float:
        """Send the signal and return the seconds until the daemon ends with exit status 0."""
        began = time.monotonic()
        self.process.send_signal(signal_number)
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return time.monotonic() - began


@contextmanager
def daemon(*arguments: object) -> Iterator[Daemon]:
    running = Daemon(*arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.communicate()


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def scrape(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """The metrics by name, and each metric's samples by the values of their labels."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert (
            answer.headers["Content-Type"]
            == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        )
        text = answer.read().decode()
    assert text.endswith("# EOF\n")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def total(found: dict[str, dict[tuple[str, ...], float]], name: str) -> float:
    return found[f"lastwrite_cleaner_{name}_total"][()]


def replace(file: Path, text: str) -> None:
    file.with_suffix(".new").write_text(text)
    os.rename(file.with_suffix(".new"), file)


def test_daemon_cleans_two_roots_from_start_to_stop(tmp_path: Path) -> None:
    """Covers the order of partitions, quarantine, locks, new settings, metrics and the end."""
    x, y = tmp_path / "x", tmp_path / "y"
    x.mkdir()
    y.mkdir()
    write(x, "most")
    write(y, "more", clean_to=100)
    held = write(y, "held")
    lazy = write(x, "lazy", clean_to=300)
    damaged = write(x, "torn")
    segment = sorted(damaged.glob("*.log"))[1]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:90] + bytes([whole[90] ^ 8]) + whole[91:])
    settings = tmp_path / "cleaner.properties"
    settings.write_text("cleanup.policy=compact\nlog.cleaner.backoff.ms=200\n")

    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(y), "held"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with daemon(
            x, y, "--config-file", settings, "--metrics-port", 0, "--threads", 1
        ) as running:
            port = int(running.expect("note")["text"].rpartition(":")[2].split("/")[0])
            assert str(scrape(port)["lastwrite_cleaner_time_since_last_run_seconds"][()]) == "nan"

            # The dirtiest partition comes first. The damaged one is quarantined with its reason.
            first = running.expect("round", topic="most")
            assert (
                first["root"] == str(x)
                and first["records_after"] == 5
                and first["saved_percent"] > 90
            )
            running.expect("round", topic="more")
            staged = running.expect("uncleanable", topic="torn")
            assert (
                "checksum" in staged["reason"]
                and str(segment) in staged["reason"]
                and staged["tries"] == 1
            )
            assert [e["topic"] for e in running.events if e["event"] == "round"] == ["most", "more"]
            shown = lastwrite.inspect(str(x), topic="torn").to_dict()["partitions"][0]
            assert shown["uncleanable"]["reason"] == staged["reason"]

            # A partition that another process has locked is skipped. It is compacted after that
            # process has died.
            assert len(list(held.glob("*.log"))) > 2
            other.kill()
            running.expect("round", topic="held")

            # New settings apply from the next scan of the roots.
            replace(
                settings,
                "cleanup.policy=compact\nlog.cleaner.backoff.ms=200\nmin.cleanable.dirty.ratio=0.05\n",
            )
            assert "min.cleanable.dirty.ratio=0.05" in running.expect("note")["text"]
            running.expect("round", topic="lazy")
            assert len(list(lazy.glob("*.log"))) == 2
            replace(settings, "cleanup.policy=compact\nlog.cleaner.backoff.ms=soon\n")
            assert "were not changed" in running.expect("note")["text"]

            # The daemon prints the note before the scan that counts the partitions of the last
            # round.
            wait_for(lambda: scrape(port)["lastwrite_cleaner_partitions"][(str(x), "clean")] == 2)
            found = scrape(port)
            assert found["lastwrite_cleaner_uncleanable_partitions"] == {(str(x),): 1, (str(y),): 0}
            assert found["lastwrite_cleaner_uncleanable_bytes"][(str(x),)] > 20_000
            assert found["lastwrite_cleaner_partitions"][(str(y), "clean")] == 2
            rounds = [e for e in running.events if e["event"] == "round"]
            assert total(found, "read_bytes") == sum(e["bytes_read"] for e in rounds)
            assert total(found, "written_bytes") == sum(e["bytes_written"] for e in rounds)
            assert total(found, "read_records") == sum(e["records_before"] for e in rounds)
            assert total(found, "written_records") == sum(e["records_after"] for e in rounds)
            assert found["lastwrite_cleaner_rounds_total"] == {
                ("cleaned",): 4,
                ("unchanged",): 0,
                ("failed",): 1,
            }
            assert 0 <= found["lastwrite_cleaner_time_since_last_run_seconds"][()] < 300
            assert found["lastwrite_cleaner_stage_seconds_total"][("compact",)] > 0

            # After repair and release the partition is selected again.
            segment.write_bytes(whole)
            assert [str(name) for name in lastwrite.release(str(damaged))] == ["torn-0"]
            running.expect("round", topic="torn")
            assert read_quarantine(str(x), NOTES) == {}
            assert running.stop() < 10
    assert not any(
        has_odd_suffix(folder) for root in (x, y) for folder in root.iterdir() if folder.is_dir()
    )


@pytest.mark.parametrize("whom", some(["SIGTERM to Spark's processes too", "SIGTERM", "SIGINT"], 1))
def test_signal_during_a_round_leaves_the_log_unchanged(tmp_path: Path, whom: str) -> None:
    folder = write(tmp_path, "big", records=6000, value_bytes=1000)  # 6 MB
    before = contents(folder)
    limit = [
        "--config",
        "log.cleaner.io.max.bytes.per.second=3000000",
        "--config",
        "cleanup.policy=compact",
    ]
    with daemon(tmp_path, *limit, "--config", "log.cleaner.min.cleanable.ratio=0") as running:
        wait_for(lambda: any(name.endswith(".cleaned") for name in names(folder)))
        if "Spark" in whom:  # systemd does this if the unit does not set KillMode=mixed
            os.killpg(running.process.pid, signal.SIGTERM)
            running.process.communicate(timeout=60)
            assert running.process.returncode == 0
        else:
            assert running.stop(signal.Signals[whom]) < 8
    assert contents(folder) == before
    assert (
        read_offsets(str(tmp_path), CLEANER_OFFSETS) == {}
        and read_quarantine(str(tmp_path), NOTES) == {}
    )
    report = lastwrite.verify(str(tmp_path))
    assert report.exit_status == 0


def test_death_of_spark_leaves_the_log_unchanged_and_is_reported(tmp_path: Path) -> None:
    folder = write(tmp_path, "big", records=6000, value_bytes=1000)
    before = contents(folder)
    with daemon(
        tmp_path,
        "--config",
        "cleanup.policy=compact",
        "--config",
        "log.cleaner.io.max.bytes.per.second=3000000",
    ) as running:
        wait_for(lambda: any(name.endswith(".cleaned") for name in names(folder)))
        (java,) = [
            child
            for child in psutil.Process(running.process.pid).children(recursive=True)
            if "java" in child.name()
        ]
        java.kill()
        _, errors = running.process.communicate(timeout=60)
        assert running.process.returncode == 1 and "the Spark session ended" in errors
    assert contents(folder) == before
    assert read_quarantine(str(tmp_path), NOTES) == {}, "the partition is not to blame"


def test_rate_limit_applies_to_all_workers_together(tmp_path: Path) -> None:
    write(tmp_path, "a", records=5000, value_bytes=1000)
    write(tmp_path, "b", records=5000, value_bytes=1000)
    rate = 4_000_000
    with daemon(
        tmp_path,
        "--once",
        "--config",
        "cleanup.policy=compact",
        "--config",
        f"log.cleaner.io.max.bytes.per.second={rate}",
    ) as running:
        rounds = [running.expect("round"), running.expect("round")]
    moved = sum(found["bytes_read"] + found["bytes_written"] for found in rounds)
    stages = rounds[0]["stage_seconds"]
    assert rounds[0]["wave_partitions"] == 2 and moved > 20_000_000
    assert 0.9 * moved / rate - 0.3 <= stages["compact"]
