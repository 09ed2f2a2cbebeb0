"""Tests of two writers on one archive or table: the loser of the swap starts again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry

import lastwrite
from lastwrite import cli
from lastwrite.archive.following import FollowRequest
from lastwrite.archive.layout import partitions_at
from lastwrite.archive.partition_store import (
    ABANDONED_MS,
    DATA,
    ROUNDS,
    PartitionStore,
    partition_store_at,
)
from lastwrite.cleaner.events import Events, FollowerFetched
from lastwrite.cleaner.follow import ArchiveFollower
from lastwrite.cleaner.following_metrics import FollowingMetrics
from lastwrite.commands.following import limits_of, open_followed
from lastwrite.errors import CommitConflict
from lastwrite.model.attempts import ATTEMPTS
from lastwrite.model.progress import NoProgress
from lastwrite.pulsar.fetched import FetchReport
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.storage.objects.address import use
from lastwrite.tables.delta import DeltaTable
from lastwrite.tables.iceberg import IcebergFormat
from lastwrite.tables.parquet import ParquetTable
from tests.support.kafka.growing import GrowingLog
from tests.support.objects import BUCKET, S3
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.support.two_writers import run_both
from tests.unit.test_pulsar_cleaner import entries
from tests.unit.test_sweep import age

CORPUS = Path(__file__).parents[1] / "corpus"
SYSTEMS = ("kafka", "rocketmq", "pulsar")
NOW_MS = 1_700_000_000_000
TOPICS = {"kafka": "client-zstd", "rocketmq": "ctopic"}


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.broker)])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of an archive, and the settings that access it."""
    if request.param == "folder":
        yield str(tmp_path / "archive"), {}
        return
    s3: S3 = request.getfixturevalue("s3")
    use(s3.settings)
    yield f"s3://{BUCKET}/{tmp_path.name}", dict(s3.config)


def source_of(system: str, folder: Path) -> str:
    """A source of the system with the topic to fetch, which has one partition."""
    if system == "pulsar":
        put_ledger(topic_folder(folder), 10, entries(20))
        return str(folder)
    return str(CORPUS / ("kafka-4.4.0/stopped" if system == "kafka" else "rocketmq/5.5.0"))


def fetched(source: str, system: str, to: str, config: dict[str, str]) -> Any:
    """Fetch one partition. Returns the report, and the partition's part of it."""
    partition = None if system == "pulsar" else 0
    options: dict[str, Any] = {"topic": TOPICS.get(system), "partition": partition}
    report = lastwrite.fetch(source, to, config=config, **options)
    (one,) = report.topics if isinstance(report, FetchReport) else report.partitions
    return report, one


def no_journals(folder: str) -> bool:
    place = partition_store_at(folder)
    return not list(place.store.list(place.key(ROUNDS)))


@pytest.mark.parametrize("system", SYSTEMS)
def test_fetch_that_loses_to_a_fetch_starts_again(
    tmp_path: Path, system: str, archive: tuple[str, dict[str, str]]
) -> None:
    to, config = archive
    source = source_of(system, tmp_path / "source")
    found = run_both(PartitionStore, *[lambda: fetched(source, system, to, config)] * 2)
    assert [report.exit_status for report, _ in found] == [0, 0]
    assert sorted(one.attempts for _, one in found) == [1, 2]
    (folder,) = partitions_at(to)
    assert no_journals(folder)
    assert lastwrite.verify(to, config=config, spark=INLINE).exit_status == 0
    alone = str(tmp_path / "alone")
    fetched(source, system, alone, {})
    assert lastwrite.latest(to, config=config) == lastwrite.latest(alone)


@pytest.mark.parametrize("system", SYSTEMS)
def test_sweep_that_loses_to_a_sweep_starts_again(
    tmp_path: Path, system: str, archive: tuple[str, dict[str, str]]
) -> None:
    to, config = archive
    fetched(source_of(system, tmp_path / "source"), system, to, config)
    (folder,) = partitions_at(to)
    place = partition_store_at(folder)
    seen = place.read()
    assert seen is not None
    dead = place.begin(seen)
    place.put(f"{dead.prefix}0/dead", b"x")
    older_than_ms = 0
    if not config:
        age(Path(folder) / "rounds")
        older_than_ms = ABANDONED_MS  # a sweep must not remove what the other one is writing
    found = run_both(
        PartitionStore,
        *[lambda: lastwrite.sweep(to, older_than_ms=older_than_ms, config=config)] * 2,
    )
    assert sorted(each.attempts for report in found for each in report.partitions) == [1, 2]
    assert not any(each.reason for report in found for each in report.partitions)
    assert no_journals(folder) and not list(place.store.list(place.key(f"{DATA}{dead.id}")))
    with pytest.raises(CommitConflict):
        place.commit(dead, seen.manifest)
    assert lastwrite.verify(to, config=config, spark=INLINE).exit_status == 0


class Rival:
    """A writer that commits the unchanged log before others' first ``times`` commits."""

    def __init__(self, folder: str, times: int) -> None:
        self._folder, self._commit, self.commits = folder, PartitionStore.commit, 0
        self._times = times

    def before(self, *given: Any, **named: Any) -> Any:
        if self.commits == self._times:
            return self._commit(*given, **named)
        place = partition_store_at(self._folder)
        seen = place.read()
        assert seen is not None
        self._commit(place, place.begin(seen, grace_ms=ABANDONED_MS), seen.manifest)
        self.commits += 1
        return self._commit(*given, **named)


def losing(folder: str, times: int = 2 * ATTEMPTS) -> tuple[Any, Rival]:
    """A context in which another writer wins the first commits, and that writer."""
    rival = Rival(folder, times)
    return patch.object(
        PartitionStore, "commit", lambda *given, **named: rival.before(*given, **named)
    ), rival


def test_fetch_and_sweep_of_kafka_that_keep_losing_fail_after_their_last_attempt(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log, to = GrowingLog(tmp_path / "log"), str(tmp_path / "archive")
    fetch = ["fetch", str(log.root), "--to", to, "--include-active", "--json"]
    for n in range(2):
        log.append([(b"a", b"%d" % n, NOW_MS + n)] * 3)
        assert cli.run(fetch) == 0
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    cleaned = lastwrite.compact(to, config=config, now_ms=NOW_MS, spark=INLINE)
    assert cleaned.partitions[0].status is Status.CLEANED
    log.append([(b"a", b"3", NOW_MS + 3)])
    (folder,) = partitions_at(to)
    commits, rival = losing(folder)
    sweep = ["sweep", to, "--config", "storage.keepReplacedMs=0", "--json"]
    capfd.readouterr()
    with commits:
        for command in (fetch, sweep):
            assert cli.run(command) == 1, command
            (said,) = json.loads(capfd.readouterr().out)["partitions"]
            assert said["attempts"] == ATTEMPTS and "run the command again" in said["reason"]
    assert rival.commits == 2 * ATTEMPTS
    for command in (fetch, sweep):  # as the remedy says
        assert cli.run(command) == 0, command
        (said,) = json.loads(capfd.readouterr().out)["partitions"]
        assert said["attempts"] == 1
    assert lastwrite.latest(to) == {b"a": b"3"}


def test_second_attempt_is_reported_in_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log, to = GrowingLog(tmp_path / "log"), str(tmp_path / "archive")
    fetch = ["fetch", str(log.root), "--to", to, "--include-active"]
    log.append([(b"a", b"1", NOW_MS)])
    assert cli.run(fetch) == 0
    log.append([(b"a", b"2", NOW_MS)])
    (folder,) = partitions_at(to)
    words = "attempt 2 of 5, because another program changed it first"
    commits, _ = losing(folder, 1)
    assert words not in capfd.readouterr().out
    with commits:
        assert cli.run(fetch) == 0
    assert words in " ".join(capfd.readouterr().out.split())
    place = partition_store_at(folder)
    place.begin(place.read())
    age(Path(folder) / "rounds")
    commits, _ = losing(folder, 1)
    with commits:
        assert cli.run(["sweep", to]) == 0
    assert words in " ".join(capfd.readouterr().out.split())


def test_fetch_of_pulsar_that_keeps_losing_fails_after_its_last_attempt(tmp_path: Path) -> None:
    source, to = source_of("pulsar", tmp_path / "source"), str(tmp_path / "archive")
    fetched(source, "pulsar", to, {})
    put_ledger(topic_folder(tmp_path / "source"), 11, entries(20))
    (folder,) = partitions_at(to)
    commits, rival = losing(folder)
    with commits:
        report, one = fetched(source, "pulsar", to, {})
    assert (report.exit_status, one.attempts, rival.commits) == (1, ATTEMPTS, ATTEMPTS)
    assert "run the command again" in str(one.problems[0])
    report, one = fetched(source, "pulsar", to, {})
    assert (report.exit_status, one.attempts) == (0, 1)


def test_follower_that_loses_starts_again(tmp_path: Path) -> None:
    """For RocketMQ, each of two followers dispatches its own copy of the store."""
    to, told = str(tmp_path / "archive"), list[Any]()
    followers = []
    for name in ("a", "b"):
        copy = tmp_path / name
        shutil.copytree(CORPUS / "rocketmq" / "5.5.0", copy)
        wanted = FollowRequest(
            sources=[f"rocketmq://{copy}"],
            to=to,
            topic=TOPICS["rocketmq"],
            partition=0,
            config=dict,
            overrides=(),
            limits=limits_of(None, None),
            progress=NoProgress(),
            is_once=True,
        )
        events = Events(told.append, lambda: 0)
        metrics = FollowingMetrics(CollectorRegistry(), lambda: 0)
        followers.append(ArchiveFollower(open_followed(wanted), 1.0, metrics, events, lambda: 0))
    assert run_both(PartitionStore, *[each.once for each in followers]) == [0, 0]
    assert told and all(isinstance(each, FollowerFetched) for each in told)
    assert lastwrite.verify(to, spark=INLINE).exit_status == 0


@pytest.mark.parametrize("kind", [IcebergFormat, DeltaTable, ParquetTable])
def test_table_that_loses_to_a_table_starts_again(tmp_path: Path, kind: Any) -> None:
    log, to = GrowingLog(tmp_path / "log"), str(tmp_path / "table")
    format = {IcebergFormat: "iceberg", DeltaTable: "delta", ParquetTable: "parquet"}[kind]
    log.append([(b"a", b"1", 1_700_000_000_000)])

    def made() -> Any:
        return lastwrite.table_to(str(log.root), "t", to=to, format=format)

    made()
    log.append([(b"a", b"2", 1_700_000_000_001), (b"b", b"1", 1_700_000_000_001)])
    found = run_both(kind, made, made)
    assert sorted((each.attempts, each.how != "unchanged") for each in found) == [
        (1, True),
        (2, False),
    ]
    assert [each.rows for each in found] == [2, 2]
    assert lastwrite.verify_table(str(log.root), to).is_proven
