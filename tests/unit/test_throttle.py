"""Tests of the rate limit across threads and processes, and of its changes and stops."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lastwrite.config.cleaner import CleanerConfig
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.engine.context import Context, Options
from lastwrite.engine.round import run_round
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.kafka.system import KAFKA
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import Limits, Rates, Throttle
from lastwrite.spark.folder_exchange import FolderExchange
from lastwrite.spark.work import InlineRunner
from lastwrite.storage.scratch import ScratchFolders
from lastwrite.storage.throttle import Throttles, make_throttle, pacer_of, spender

_SPEND = """
import sys
from lastwrite.storage.throttle import pacer_of
from lastwrite.model.work import Throttle
pacer = pacer_of(Throttle(sys.argv[1], 0.0))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(50):
    pacer.throttle(10_000)
"""


class Clock:
    """A clock that only ``sleep`` advances, so that a throttle's delays are exact on a busy
    machine.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.at: dict[float, Callable[[], None]] = {}  # actions of other processes, by time

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [moment for moment in self.at if moment <= self.now]:
            self.at.pop(moment)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("lastwrite.storage.throttle.time", clock)
    return clock


def spend(path: str, bytes_: int, times: int, rate: float) -> None:
    pacer = pacer_of(Throttle(path, rate))
    for _ in range(times):
        pacer.throttle(bytes_)


def test_rate_holds_across_processes(tmp_path: Path) -> None:
    throttle = make_throttle(str(tmp_path), 2_000_000, 3)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _SPEND, throttle.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for run in runs:
        assert run.stdout is not None and run.stdout.readline() == b"ready\n"
    begin = time.monotonic()
    pacer_of(throttle).set_rate(1_000_000)
    for run in runs:
        assert run.stdin is not None
        run.stdin.write(b"\n")
        run.stdin.flush()
    assert [run.wait() for run in runs] == [0, 0, 0]
    # 1.5 MB at 1 MB/s. The initial burst covers at most 300 ms.
    assert 1.15 <= time.monotonic() - begin


def test_rate_holds_across_threads_and_small_pieces(tmp_path: Path) -> None:
    throttle = make_throttle(str(tmp_path), 100_000, 2)
    begin = time.monotonic()
    threads = [
        threading.Thread(target=spend, args=(throttle.path, 100, 400, 100_000.0)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.75 <= time.monotonic() - begin


def test_rate_is_not_slower_than_configured(tmp_path: Path, clock: Clock) -> None:
    throttle = make_throttle(str(tmp_path), 100_000, 2)
    begin = clock.now
    spend(throttle.path, 100, 800, 100_000.0)
    assert 0.75 <= clock.now - begin <= 0.8


def test_new_rate_applies_to_sleeping_callers(tmp_path: Path, clock: Clock) -> None:
    pacer = pacer_of(make_throttle(str(tmp_path), 10, 1))
    begin = clock.now
    clock.at[begin + 0.2] = lambda: pacer.set_rate(math.inf)
    pacer.throttle(10_000)
    assert 0.2 <= clock.now - begin < 0.5
    assert pacer.bytes_per_second == math.inf


def test_stop_ends_sleep_and_work(tmp_path: Path, clock: Clock) -> None:
    pacer = pacer_of(make_throttle(str(tmp_path), 10, 1))
    begin = clock.now
    clock.at[begin + 0.2] = pacer.stop
    with pytest.raises(LogError, match="stopped"):
        pacer.throttle(10_000)
    assert clock.now - begin < 0.5
    with pytest.raises(LogError, match="stopped"):
        pacer.throttle(0)


def test_each_worker_has_its_share_without_a_shared_file(clock: Clock) -> None:
    pacer_of.cache_clear()  # without a shared file one pacer serves all throttles of a rate
    throttle = make_throttle("", 200_000, 4)
    assert throttle.bytes_per_second == 50_000
    begin = clock.now
    spend(throttle.path, 1000, 25, throttle.bytes_per_second)
    pacer_of.cache_clear()
    assert 0.48 <= clock.now - begin <= 0.5


def test_idle_time_is_not_accumulated(tmp_path: Path, clock: Clock) -> None:
    pacer = pacer_of(make_throttle(str(tmp_path), 100_000, 1))
    clock.sleep(0.8)
    begin = clock.now
    pacer.throttle(60_000)
    # The bytes take 0.6 s, of which a burst may cover 0.3 s.
    assert 0.28 <= clock.now - begin <= 0.6


@pytest.mark.parametrize("has_file", [True, False])
def test_reads_and_writes_are_limited_separately_and_together(
    tmp_path: Path, has_file: bool, clock: Clock
) -> None:
    """Together only if there is a rate for both."""
    pacer_of.cache_clear()
    scratch = str(tmp_path) if has_file else ""
    throttles = Throttles(scratch, Rates(reading=100_000, writing=100_000), 1)
    limits = throttles.on(Limits())
    begin = clock.now
    read, written = spender(limits.reading), spender(limits.writing)
    read(50_000)
    written(50_000)
    # Each takes 0.5 s, and a burst covers 0.3 s of the second.
    assert 0.68 <= clock.now - begin <= 0.71
    if has_file:
        throttles.set_rates(Rates(both=100_000))
        begin = clock.now
        read(50_000)
        written(50_000)
        assert 0.68 <= clock.now - begin <= 1.0
        throttles.stop()
        for held in (limits.reading, limits.writing):
            with pytest.raises(LogError, match="stopped"):
                spender(held)(1)


@pytest.mark.parametrize("slow", ["reading", "writing"])
def test_engine_respects_both_rates(tmp_path: Path, slow: str, clock: Clock) -> None:
    with TopicWriter(str(tmp_path), TopicPartition("t", 0), segment_bytes=20_000) as writer:
        for n in range(2000):
            writer.append(b"key-%d" % (n % 1000), b"%060d" % n, 1_000_000 + n)
        writer.roll()
    exchange = FolderExchange(InlineRunner(), ScratchFolders())
    begin = clock.now
    try:
        rates = Rates(**{slow: 200_000.0})
        limits = Throttles(exchange.scratch, rates, 1).on(Limits())
        options = Options(config={"cleanup.policy": "compact"}, now_ms=2_000_000)
        [report] = run_round(
            Context(KAFKA, exchange, 1, limits, options, NoProgress()), [writer.folder]
        ).partitions
    finally:
        exchange.close()
    assert str(report.status) == "cleaned" and 4 * report.bytes_written < report.bytes_read
    counted = report.bytes_read if slow == "reading" else report.bytes_written
    assert counted / 200_000 - 0.31 <= clock.now - begin <= counted / 200_000 + 0.01


def test_unlimited_rate_never_waits(tmp_path: Path) -> None:
    spender(())(1 << 50)
    pacer_of(make_throttle(str(tmp_path), math.inf, 1)).throttle(1 << 50)


def test_throttle_settings_are_parsed_or_refused() -> None:
    assert CleanerConfig.from_names({}) == CleanerConfig()
    found = CleanerConfig.from_names(
        {
            "log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308",
            "log.cleaner.threads": "2",
            "log.cleaner.backoff.ms": 0,
            "log.cleaner.enable": "False",
            "delete.retention.ms": "x",
        }
    )
    assert (found.rates, found.threads, found.backoff_ms, found.enable) == (Rates(), 2, 0, False)
    for name, value in (
        ("log.cleaner.io.max.bytes.per.second", "0"),
        ("log.cleaner.io.max.bytes.per.second", "fast"),
        ("log.cleaner.io.max.bytes.per.second", "nan"),
        ("log.cleaner.threads", "0"),
        ("log.cleaner.threads", "1.5"),
        ("compactionReadMaxBytesPerSecond", "0"),
        ("compactionWriteMaxBytesPerSecond", "-1"),
        ("log.cleaner.backoff.ms", -1),
        ("log.cleaner.enable", "yes"),
        ("log.cleaner.threads", "inf"),
    ):
        with pytest.raises(InvalidConfig, match=name):
            CleanerConfig.from_names({name: value})
