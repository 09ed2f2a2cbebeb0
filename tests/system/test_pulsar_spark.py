"""Tests of topic folders on a real Spark session, in both orders, with exact keys and fingerprints.

By default Spark's shuffle is used; scratch files are tested in a longer run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.spark.session import spark_session
from tests.support.pulsar.model import Author
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder

EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"
NOW = 1_700_000_100_000
TOPICS = ("persistent://public/default/a", "persistent://public/default/b-partition-1")


@pytest.fixture(scope="module", params=["shuffle", pytest.param("folder", marks=pytest.mark.long)])
def spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    with spark_session("local[2]", {"spark.lastwrite.exchange": request.param}) as session:
        yield session


@pytest.mark.parametrize(("exact", "by_event_time"), [(False, True), (True, False)])
def test_spark_equals_the_inline_engine(
    tmp_path: Path, spark: Any, exact: bool, by_event_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastwrite.engine.pieces._PIECE_BYTES", 3000)
    # small, so that the new ledger is joined from several parts
    monkeypatch.setattr("lastwrite.engine.shares._LEAST_PART_BYTES", 2000)
    mine, twin = tmp_path / "spark", tmp_path / "inline"
    keys = [b"k%d" % n for n in range(40)]
    authors = [Author(seed, keys) for seed in (1, 2)]
    config = {"compactionServiceFactoryClassName": EVENT_TIME} if by_event_time else {}
    for ledger in (10, 20):  # the second round starts from the result of the first
        for topic, author in zip(TOPICS, authors, strict=True):
            entries = [*author.entries(60), *author.end_transactions()]
            path = put_ledger(
                topic_folder(mine, topic), ledger, entries, 2000 + max(map(len, entries))
            )
            for file in (path, path.with_name(f"{path.name}-index")):
                shutil.copy(file, topic_folder(twin, topic))
        arguments: dict[str, Any] = {"config": config, "now_ms": NOW, "exact": exact}
        planned = lastwrite.plan(str(mine), spark=spark, **arguments)
        report = lastwrite.compact(str(mine), spark=spark, **arguments)
        again = lastwrite.compact(str(twin), spark=INLINE, **arguments)
        for one, other, third in zip(
            report.partitions, again.partitions, planned.partitions, strict=True
        ):
            assert one.status is Status.CLEANED, one.reason
            assert (one.records_after, one.verdicts, one.keys) == (
                other.records_after,
                other.verdicts,
                other.keys,
            )
            assert (one.records_after, one.verdicts, one.keys) == (
                third.records_after,
                third.verdicts,
                third.keys,
            )
        for topic in TOPICS:
            assert read_compacted(topic_folder(mine, topic)) == read_compacted(
                topic_folder(twin, topic)
            )
    assert lastwrite.verify(str(mine)).exit_status == 0
