"""The throttle keeps its rate over threads and processes, and changes and stops at once."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lastwrite.config.cleaner import CleanerConfig
from lastwrite.engine.context import Context, Options
from lastwrite.engine.round import run_round
from lastwrite.engine.runner import InlineRunner
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.kafka.store.writer import TopicWriter
from lastwrite.kafka.system import KAFKA
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import Limits, Rates
from lastwrite.spark.folder_exchange import FolderExchange
from lastwrite.storage.throttle import Throttles, make_throttle, pacer_of, spender

_SPEND = """
import sys
from lastwrite.storage.throttle import pacer_of
from lastwrite.model.work import Throttle
pacer = pacer_of(Throttle(sys.argv[1], 0.0))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(50):
    pacer.spend(10_000)
"""


def spend(path: str, bytes_: int, times: int, rate: float) -> None:
    from lastwrite.model.work import Throttle

    pacer = pacer_of(Throttle(path, rate))
    for _ in range(times):
        pacer.spend(bytes_)


def test_the_rate_holds_over_processes(tmp_path: Path) -> None:
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
    # 1.5 MB at 1 MB/s. Before the first byte at most 300 ms are saved up.
    assert 1.15 <= time.monotonic() - begin < 2.0


def test_the_rate_holds_over_threads_and_small_pieces(tmp_path: Path) -> None:
    throttle = make_throttle(str(tmp_path), 100_000, 2)
    begin = time.monotonic()
    threads = [
        threading.Thread(target=spend, args=(throttle.path, 100, 400, 100_000.0)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.75 <= time.monotonic() - begin < 1.2


def test_a_new_rate_acts_on_those_who_sleep(tmp_path: Path) -> None:
    pacer = pacer_of(make_throttle(str(tmp_path), 10, 1))
    threading.Timer(0.2, pacer.set_rate, (math.inf,)).start()
    begin = time.monotonic()
    pacer.spend(10_000)
    assert 0.15 < time.monotonic() - begin < 1.0
    assert pacer.bytes_per_second == math.inf


def test_a_stop_ends_sleep_and_work(tmp_path: Path) -> None:
    pacer = pacer_of(make_throttle(str(tmp_path), 10, 1))
    threading.Timer(0.2, pacer.stop).start()
    begin = time.monotonic()
    with pytest.raises(LogError, match="stopped"):
        pacer.spend(10_000)
    assert time.monotonic() - begin < 1.0
    with pytest.raises(LogError, match="stopped"):
        pacer.spend(0)


def test_without_a_shared_file_each_worker_keeps_its_part() -> None:
    throttle = make_throttle("", 200_000, 4)
    assert throttle.bytes_per_second == 50_000
    begin = time.monotonic()
    spend(throttle.path, 1000, 25, throttle.bytes_per_second)
    assert 0.4 <= time.monotonic() - begin < 0.8


def test_idle_time_is_not_saved_up(tmp_path: Path) -> None:
    pacer = pacer_of(make_throttle(str(tmp_path), 100_000, 1))
    time.sleep(0.8)
    begin = time.monotonic()
    pacer.spend(60_000)
    assert time.monotonic() - begin >= 0.25  # of the 0.6 s that it takes, 0.3 s may have been saved


@pytest.mark.parametrize("has_file", [True, False])
def test_reading_and_writing_are_counted_apart(tmp_path: Path, has_file: bool) -> None:
    """And together, where that has a rate."""
    scratch = str(tmp_path) if has_file else ""
    throttles = Throttles(scratch, Rates(reading=100_000, writing=100_000), 1)
    limits = throttles.on(Limits())
    begin = time.monotonic()
    read, written = spender(limits.reading), spender(limits.writing)
    read(50_000)
    written(50_000)
    assert 0.45 <= time.monotonic() - begin < 0.8  # each of them by itself takes so long
    if has_file:
        throttles.set_rates(Rates(both=100_000))
        begin = time.monotonic()
        read(50_000)
        written(50_000)
        assert 0.65 <= time.monotonic() - begin < 1.4
        throttles.stop()
        for held in (limits.reading, limits.writing):
            with pytest.raises(LogError, match="stopped"):
                spender(held)(1)


@pytest.mark.parametrize("slow", ["reading", "writing"])
def test_the_engine_keeps_to_both_rates(tmp_path: Path, slow: str) -> None:
    with TopicWriter(str(tmp_path), TopicPartition("t", 0), segment_bytes=20_000) as writer:
        for n in range(2000):
            writer.append(b"key-%d" % (n % 1000), b"%060d" % n, 1_000_000 + n)
        writer.roll()
    exchange = FolderExchange(InlineRunner())
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
    assert report.seconds >= counted / 200_000 - 0.3  # that much may have been saved up
    if slow == "writing":
        assert report.seconds < report.bytes_read / 200_000 - 0.3


def test_without_a_throttle_nobody_waits(tmp_path: Path) -> None:
    spender(())(1 << 50)
    pacer_of(make_throttle(str(tmp_path), math.inf, 1)).spend(1 << 50)


def test_settings() -> None:
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
