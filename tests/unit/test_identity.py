"""Tests of a recreated topic with more messages than a checkpoint counts.

``follow``, tables and streams of RocketMQ and Pulsar report it as data loss. In these tests a life
is the time from a topic's creation to its deletion.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with PySpark 4.2")

from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: E402

import lastwrite  # noqa: E402
from lastwrite.decoding.options import DecodingConfig  # noqa: E402
from lastwrite.errors import CommitConflict  # noqa: E402
from lastwrite.model.log import PartitionLog  # noqa: E402
from lastwrite.pulsar.fetched import FetchReport  # noqa: E402
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo  # noqa: E402
from lastwrite.pulsar.format.names import MANAGED_LEDGER  # noqa: E402
from lastwrite.reports.table_round import TableRound  # noqa: E402
from lastwrite.rocketmq.format.sides import CLEANUP_POLICY, COMPACTION_POLICY  # noqa: E402
from lastwrite.rows.decoded import DecodedRows  # noqa: E402
from lastwrite.rows.system import rows_of  # noqa: E402
from lastwrite.source import stream  # noqa: E402
from lastwrite.source.options import parse  # noqa: E402
from lastwrite.spark.inline import Inline  # noqa: E402
from tests.support.pulsar.folders import single, write_ledger  # noqa: E402
from tests.support.pulsar.topics import topic_folder  # noqa: E402
from tests.support.rocketmq.queues import TIME_MS, Sent, write_queue  # noqa: E402
from tests.support.rocketmq.stores import StoreWriter  # noqa: E402

ALL = ReadAllAvailable()
LIFE_MS = 3_600_000
# arguments: the store's path, the number of the life, the number of messages
Create = Callable[[Path, int, int], None]


def create_queue(store: Path, life: int, messages: int) -> None:
    """Create a queue. Queue offsets restart at 0 in each life, but store times increase."""
    shutil.rmtree(store, ignore_errors=True)
    sent = [
        Sent(n, f"k{n % 7}", b"%d of life %d" % (n, life), time_ms=TIME_MS + life * LIFE_MS + n)
        for n in range(messages)
    ]
    write_queue(store, "t", 0, [sent[n : n + 20] for n in range(0, messages, 20)])


def write_lives(store: Path, log: list[tuple[str, str]], compaction: list[tuple[str, str]]) -> None:
    """Write a store whose commit log and compaction log contain these messages from offset 0."""
    store.mkdir()
    for messages, is_compaction in ((log, False), (compaction, True)):
        writer = StoreWriter(store)
        writer.topics["t"] = {CLEANUP_POLICY: COMPACTION_POLICY}
        for key, value in messages:
            writer.send("t", value.encode(), {"KEYS": key})
        if is_compaction:
            writer.write_compaction("t")
        else:
            writer.write()


def create_topic(store: Path, life: int, messages: int) -> None:
    """Create a topic in a reinstalled cluster, whose ledger ids restart at 10 in each life."""
    shutil.rmtree(store, ignore_errors=True)
    folder = topic_folder(store, "persistent://public/default/t")
    values = [(f"k{n % 7}", f"{n} of life {life}", life * LIFE_MS + n) for n in range(messages)]
    for n in range(0, messages, 30):
        write_ledger(folder, 10 + n, [single(*each) for each in values[n : n + 30]])


def in_an_archive(create: Create) -> Create:
    def archive(path: Path, life: int, messages: int) -> None:
        source = path.parent / f"source-{life}"
        create(source, life, messages)
        shutil.rmtree(path, ignore_errors=True)
        lastwrite.fetch([str(source)], str(path), topic="t", include_active=True)

    return archive


@pytest.fixture(params=["rocketmq", "rocketmq in an archive", "pulsar", "pulsar in an archive"])
def create(request: pytest.FixtureRequest) -> Create:
    system, _, is_archived = request.param.partition(" ")
    of_system = create_queue if system == "rocketmq" else create_topic
    return in_an_archive(of_system) if is_archived else of_system


def opened(path: Path, **options: str) -> stream.StreamReader:
    given = {"path": str(path), "subscribe": "t", "startingOffsets": "earliest", **options}
    rows = DecodedRows(DecodingConfig(), ("offset", "key", "value"), None)
    return stream.StreamReader(parse(given, is_stream=True), rows)


def values(reader: stream.StreamReader, start: Any, end: Any) -> list[bytes]:
    return [
        value
        for piece in reader.partitions(start, end)
        for batch in reader.read(piece)
        for value in batch.column("value").to_pylist()
    ]


def log_at(path: Path, system: str) -> PartitionLog:
    (log,) = rows_of(system).logs_of(str(path), "t", is_compacted=True)
    return log


def compact(path: Path) -> None:
    lastwrite.compact(str(path), topic="t", spark=Inline())


def test_follow_reports_a_recreated_topic(tmp_path: Path, create: Create) -> None:
    path = tmp_path / "store"
    create(path, 1, 40)
    with lastwrite.table(path, "t") as table:
        assert list(table.follow(poll_s=None)) == []
        create(path, 2, 55)
        for _ in range(2):
            with pytest.raises(CommitConflict, match="created again.*create the table again"):
                list(table.follow(poll_s=None))


def test_table_reports_a_recreated_topic_and_can_be_rebuilt(tmp_path: Path, create: Create) -> None:
    path, to = tmp_path / "store", tmp_path / "table"

    def update(**options: Any) -> TableRound:
        return lastwrite.table_to(str(path), "t", to=str(to), format="parquet", **options)

    create(path, 1, 40)
    assert update().rows == 7
    create(path, 2, 55)
    with pytest.raises(CommitConflict, match="created again.*--anew"):
        update()
    assert update(anew=True).rows == 7
    assert update().how == "unchanged"


def test_stream_reports_a_recreated_topic(tmp_path: Path, create: Create) -> None:
    path = tmp_path / "store"
    create(path, 1, 40)
    reader = opened(path)
    start = reader.initialOffset()
    checkpoint = reader.latestOffset(start, ALL)
    assert len(values(reader, start, checkpoint)) == 40
    assert opened(path).latestOffset(checkpoint, ALL) == checkpoint
    create(path, 2, 55)
    reader = opened(path)
    end = reader.latestOffset(checkpoint, ALL)
    with pytest.raises(CommitConflict, match="deleted and created again.*new checkpoint"):
        reader.partitions(checkpoint, end)
    lenient = opened(path, failOnDataLoss="false")
    with pytest.warns(UserWarning, match="deleted and created again"):
        found = values(lenient, checkpoint, lenient.latestOffset(checkpoint, ALL))
    assert found == [b"%d of life 2" % n for n in range(55)]


def test_recreated_queue_is_detected_after_compaction_removed_the_record(tmp_path: Path) -> None:
    """Compaction removed it in both lives. The store times of the remaining records differ."""
    create_queue(tmp_path, 1, 20)
    rows = rows_of("rocketmq")
    log = log_at(tmp_path, "rocketmq")
    known = {at: rows.identity(log, at) for at in range(log.end_offset + 1)}
    assert known.pop(0) is None
    for life in (1, 2):
        create_queue(tmp_path, life, 24)
        for _ in range(2):
            log = log_at(tmp_path, "rocketmq")
            found = {at: rows.difference(log, at, str(known[at])) for at in known}
            has_record = {at for at in known if at > log.log_start}
            assert {at for at, other in found.items() if other} == (
                has_record if life == 2 else set()
            )
            compact(tmp_path)


def test_ledger_deleted_by_retention_is_not_a_recreated_topic(tmp_path: Path) -> None:
    create_topic(tmp_path, 1, 100)
    rows, folder = rows_of("pulsar"), topic_folder(tmp_path, "persistent://public/default/t")
    log = log_at(tmp_path, "pulsar")
    ends = [log.segment_end(n) for n in range(len(log.segments))]
    known = [(end, str(rows.identity(log, end))) for end in ends]
    assert [each.split(":")[0] for _, each in known] == ["10", "40", "70", "100"]
    compact(tmp_path)
    for ledger in (0, 10, 40, 70, 100):
        for path in folder.glob(f"*-ledger-{ledger}[!0-9]*"):
            path.unlink()
        for path in folder.glob(f"*-ledger-{ledger}"):
            path.unlink()
        log = log_at(tmp_path, "pulsar")
        assert [rows.difference(log, *each) for each in known] == [None] * 4
    create_topic(tmp_path, 2, 30)
    log = log_at(tmp_path, "pulsar")
    assert (
        rows.difference(log, *known[0])
        == "ledger 10 has other contents than the ledger that was read"
    )
    assert (
        rows.difference(log, *known[3])
        == "ledger 100, which was read, no longer exists, but the older ledger 10 does"
    )


def test_stream_continues_after_a_round_moved_the_log_start(tmp_path: Path) -> None:
    create_queue(tmp_path, 1, 40)
    start = opened(tmp_path, startingOffsets='{"t":{"0":5}}').initialOffset()
    compact(tmp_path)
    assert log_at(tmp_path, "rocketmq").log_start == 13
    reader = opened(tmp_path)
    found = values(reader, start, reader.latestOffset(start, ALL))
    assert found == [b"%d of life 1" % n for n in range(13, 40)]


def test_compaction_log_of_a_recreated_topic_is_refused(tmp_path: Path) -> None:
    """The broker appends the new topic's messages from offset 30 on. The commit log has all of
    them.
    """
    first, store = tmp_path / "first", tmp_path / "store"
    lives = [[(f"k{n % 9}", f"{n} of {life}") for n in range(45)] for life in (1, 2)]
    write_lives(first, lives[0][:30], lives[0][:30])
    rows = rows_of("rocketmq")
    known = str(rows.identity(log_at(first, "rocketmq"), 30))
    write_lives(store, lives[1], lives[0][:30] + lives[1][30:])
    found = rows.difference(log_at(store, "rocketmq"), 30, known)
    assert found is not None and "the commit log has another message at queue offset 29" in found
    lastwrite.fetch([str(first)], str(tmp_path / "archive"), include_active=True)
    report = lastwrite.fetch([str(store)], str(tmp_path / "archive"), include_active=True)
    assert report.exit_status == 1
    assert "has another message at queue offset 29" in str(report.partitions[0].reason)


def test_recreated_topic_with_fewer_messages_is_refused_and_its_remedy_works(
    tmp_path: Path,
) -> None:
    """The broker appends nothing to the compaction log below queue offset 30."""
    first, store = tmp_path / "first", tmp_path / "store"
    lives = [[(f"k{n % 9}", f"{n} of {life}") for n in range(30)] for life in (1, 2)]
    write_lives(first, lives[0], lives[0])
    rows, to = rows_of("rocketmq"), tmp_path / "table"
    known = str(rows.identity(log_at(first, "rocketmq"), 30))
    assert rows.difference(log_at(first, "rocketmq"), 30, known) is None
    write_lives(store, lives[1][:12], lives[0])
    found = rows.difference(log_at(store, "rocketmq"), 30, known)
    assert found is not None and "another message of queue offset 11" in found
    lastwrite.table_to(str(first), "t", to=str(to), format="parquet")
    with pytest.raises(
        CommitConflict, match=r"run lastwrite dispatch; then .*rebuild the table with --anew"
    ):
        lastwrite.table_to(str(store), "t", to=str(to), format="parquet")
    for folder in ("compactionLog", "compactionCq"):
        shutil.move(store / "compaction" / folder / "t", tmp_path / folder)
    assert lastwrite.dispatch(str(store)).exit_status == 0
    lastwrite.table_to(str(store), "t", to=str(to), format="parquet", anew=True)
    values = [value for _, value in lastwrite.table(str(store), "t").items()]
    assert len(values) == 9 and all(value.endswith(b"of 2") for value in values)


def test_archive_refuses_ledgers_of_a_reinstalled_cluster(tmp_path: Path) -> None:
    """The cluster's new ledger ids begin below those of the archive."""

    def fetch(life: int, *ids: int) -> FetchReport:
        source = tmp_path / f"source-{life}"
        folder = topic_folder(source, "persistent://public/default/t")
        for ledger in ids:
            write_ledger(folder, ledger, [single(f"k{ledger}", "value")])
        ledgers = tuple(LedgerInfo(ledger=ledger, entries=1, size_bytes=9) for ledger in ids)
        (folder / MANAGED_LEDGER).write_bytes(ManagedLedgerInfo(ledgers=ledgers).encode())
        report = lastwrite.fetch([str(source)], f"{tmp_path}/archive")
        assert isinstance(report, FetchReport)
        return report

    fetch(1, 50, 60)
    assert fetch(2, 50, 60, 70).exit_status == 0
    report = fetch(3, 10, 20)
    assert report.exit_status == 1
    words = str(report.topics[0].problems[0])
    assert "ends with ledger 20, before the archive's ledger 70, but contains ledger 10" in words
    assert b"k10" not in lastwrite.table(f"{tmp_path}/archive")
