"""Tests of ``restore`` into running brokers of older releases, with their protocol versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_kafka_archive import Archive
from tests.support.kafka.broker import Broker, Unavailable
from tests.support.kafka.clients import Sent, create_topic, produce
from tests.support.kafka.groups import committed
from tests.support.kafka.versions import VERSIONS, broker_of
from tests.system.test_restore_live import NOW_MS, check_same, commit, fetched, given, settings_of

pytestmark = [pytest.mark.broker, pytest.mark.long]


# Kafka 2.1 has no request that changes single settings of a topic.
@pytest.fixture(params=[each for each in VERSIONS if each != "2.1.1"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    try:
        made = broker_of(request.param, tmp_path / "data")
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        yield made.start()
    finally:
        made.kill()


def test_records_and_groups_are_restored(broker: Broker, tmp_path: Path) -> None:
    table = {"cleanup.policy": "compact"}
    create_topic(broker, "table", table)
    records = [Sent(b"k%d" % (n % 9), b"v%d" % n, 5 + n if n % 2 else NOW_MS) for n in range(40)]
    produce(broker, "table", records, codec="lz4")
    commit(broker, "table", {"group": 17})
    archive = Archive(tmp_path / "archive", "table-0")
    fetched(broker, archive.to, "table")

    report = given(broker, archive.to, "again", replication_factor=1)

    assert report.exit_status == 0, report
    places = dict(check_same(broker, archive, "again"))
    assert committed(broker, "group", ["again"]) == {"again": places[17]}
    assert settings_of(broker, "again") == table
    assert given(broker, archive.to, "again").partitions[0].records == 0
