"""Tests of ``fetch`` from a live broker whose partitions are random logs.

The logs have transactions, producers, all codecs and formats, gaps and raised log starts. With
LASTWRITE_LONG=1 there are 300 of them.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import lastwrite
from lastwrite.kafka.network.live_log import LiveLog, LogBounds
from lastwrite.reports.fetching import LogsFetched
from tests.conformance.test_kafka_archive import LOG_STARTS, Archive
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.logs import bases, headers_of, read_aborted, write_checkpoint
from tests.support.kafka.oracle import Oracle
from tests.support.sample import LONG

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker, pytest.mark.oracle, pytest.mark.slow]

SEEDS = range(1, 301 if LONG else 9)


@pytest.fixture
def oracle() -> Iterator[Oracle]:
    made = Oracle()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def home() -> Path:
    try:
        return kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))


def batches_of(folder: Path, log_start: int) -> list[tuple[int, bytes]]:
    """The next offset and the bytes of each batch that does not end below the log start."""
    found = []
    for base in bases(folder):
        file = folder / f"{base:020d}.log"
        data = file.read_bytes()
        for at, header in headers_of(file):
            if header.next_offset > log_start:
                found.append((header.next_offset, data[at : at + header.size_bytes]))
    return found


def test_fetched_bytes_equal_the_brokers_files(
    home: Path, oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(home, tmp_path / "data")
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        settings = {"cleanup.policy": "compact", "internal.segment.bytes": "4000"}
        topics = [NewTopic(f"seed-{seed}", 1, 1, config=settings) for seed in SEEDS]
        for done in admin.create_topics(topics).values():
            done.result(120)
    starts = {}
    for seed in SEEDS:
        made = oracle.play(seed, tmp_path / "played")
        state = [step for step in made["steps"] if "state" in step][-1 - seed % 2]
        partition = broker.data / f"seed-{seed}-0"
        for file in partition.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        for file in (tmp_path / "played" / state["state"] / "t-0").glob("*.log"):
            shutil.copy2(file, partition)
        starts[f"seed-{seed}-0"] = state["log_start"]
    (broker.data / ".kafka_cleanshutdown").unlink()  # makes the broker recover the copied segments
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (broker.data / name).unlink()
    write_checkpoint(broker.data, LOG_STARTS, {n: start for n, start in starts.items() if start})
    with broker:
        stored = {name: batches_of(broker.data / name, start) for name, start in starts.items()}
        real, rng = LiveLog.bounds, random.Random(1)

        def some(log: LiveLog) -> LogBounds:
            ends = [end for end, _ in stored[str(log.name)]]
            begin = starts[str(log.name)]
            return real(log)._replace(high_watermark=rng.choice([begin, *ends]))

        for bounds in (some, real):  # two fetches: the first ends at a random offset
            monkeypatch.setattr(LiveLog, "bounds", bounds)
            found = lastwrite.fetch([f"kafka://{broker.address}"], str(tmp_path / "archive"))
            assert isinstance(found, LogsFetched)
            assert [each.reason for each in found.partitions] == [None] * len(SEEDS)
        for name, expected in stored.items():
            archive, folder = Archive(tmp_path / "archive", name), broker.data / name
            assert archive.batches() == [batch for _, batch in expected], name
            theirs = [
                astuple(each) for base in bases(folder) for each in read_aborted(folder, base)
            ]
            assert [tuple(each) for each in archive.log()["aborted"]] == theirs, name
            if archive.log()["segments"]:
                # the laid-out log has the indexes of a broker
                archive.submit(tmp_path / "laid-out")
    assert sum(len(each) for each in stored.values()) > 20 * len(SEEDS)
    assert sum(1 for start in starts.values() if start) or len(SEEDS) < 50
