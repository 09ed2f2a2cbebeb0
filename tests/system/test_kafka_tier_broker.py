"""Tests beside a running broker with tiered storage.

Fetched records equal those of its consumer, and the compacted archive equals its table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import lastwrite
from lastwrite.spark.inline import INLINE
from tests.conformance.test_kafka_archive import Archive
from tests.corpus.make import events
from tests.corpus.make_tiered import transactions
from tests.support.jars import Unavailable
from tests.support.kafka.broker import Broker
from tests.support.kafka.clients import Seen, bounds, consume, create_topic, produce
from tests.support.kafka.tiered import TIERED, tier_of, tiered_broker, wait_until_copied

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("tiered")
    try:
        found = tiered_broker(folder / "data", folder / "tier")
    except Unavailable as missing:
        pytest.skip(str(missing))
    with found as broker:
        yield broker


def table_of(records: list[Seen]) -> dict[bytes | None, bytes]:
    last = {each.key: each.value for each in records}
    return {key: value for key, value in last.items() if value is not None}


def test_fetch_and_compact_work_beside_the_broker(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "orders", TIERED)
    produce(broker, "orders", events(1, 150), codec="lz4")
    transactions(broker, "orders", "name", 2)
    produce(broker, "orders", events(9, 40))
    wait_until_copied(broker.data, "orders-0")
    tier = str(tier_of(broker.data.with_name("tier")))
    archive = str(tmp_path / "archive")
    wanted = consume(broker, "orders")
    report = lastwrite.fetch(
        [tier, str(broker.data)], archive, topic="orders", include_active=True
    ).partitions[0]
    assert report.reason is None and report.foreign_bytes > report.size_bytes
    rows = list(lastwrite.read(archive, topic="orders", isolation_level="read_committed"))
    assert [(row["offset"], row["timestamp"]) for row in rows] == [
        (each.offset, each.timestamp_ms) for each in wanted
    ]
    compacted = lastwrite.compact(
        archive, topic_config={"orders": {"cleanup.policy": "compact"}}, spark=INLINE
    )
    assert compacted.partitions[0].status == "cleaned"
    assert dict(lastwrite.latest(archive, "orders")) == table_of(wanted)
    # The broker appends more records, and the archive fetches them.
    produce(broker, "orders", events(3, 150))
    wait_until_copied(broker.data, "orders-0")
    report = lastwrite.fetch(
        [tier, str(broker.data)], archive, topic="orders", include_active=True
    ).partitions[0]
    assert report.reason is None
    assert dict(lastwrite.latest(archive, "orders")) == table_of(consume(broker, "orders"))


def test_records_of_the_tier_are_fetched_from_the_broker(broker: Broker, tmp_path: Path) -> None:
    """Only the tier has the log's first segments. The fetched bytes equal the tiered segments."""
    pytest.importorskip("kio")
    create_topic(broker, "asked", TIERED)
    produce(broker, "asked", events(2, 120))
    wait_until_copied(broker.data, "asked-0")
    to = tmp_path / "archive"
    report = lastwrite.fetch([f"kafka://{broker.address}"], str(to), topic="asked")
    assert report.exit_status == 0
    (folder,) = tier_of(broker.data.with_name("tier")).glob("asked-0-*")
    parts = [*sorted(folder.glob("*.log")), *sorted((broker.data / "asked-0").glob("*.log"))]
    assert len(parts) > 2
    stored = b"".join(part.read_bytes() for part in parts)
    assert b"".join(Archive(to, "asked-0").batches()) == stored


def test_segments_expired_in_the_tier_are_not_fetched(broker: Broker, tmp_path: Path) -> None:
    """Retention removes the first segments, and nothing more is copied to the tier."""
    create_topic(broker, "short", TIERED)
    produce(broker, "short", events(5, 300))
    wait_until_copied(broker.data, "short-0")
    (folder,) = tier_of(broker.data.with_name("tier")).glob("short-0-*")
    before = len(list(folder.glob("*.log")))
    admin = AdminClient({"bootstrap.servers": broker.address})
    entry = ConfigEntry("retention.bytes", "8000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "short", incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)
    tier, root = str(folder.parent), str(broker.data)
    deadline = time.monotonic() + 60
    seen: tuple[list[int], tuple[int, int]] = ([], (0, 0))
    while True:  # until retention ends: the broker removes one segment after another
        left = sorted(int(each.name[:20]) for each in folder.glob("*.log"))
        before_that, seen = seen, (left, bounds(broker, "short"))
        if len(left) < before and seen == before_that:
            break
        assert time.monotonic() < deadline
        time.sleep(1.5)
    wanted = consume(broker, "short", start=seen[1][0])
    for sources in ([tier], [tier, root]):
        (found,) = lastwrite.inspect(sources, topic="short", spark=INLINE).partitions
        assert found.status == "whole", found.problems
        assert found.log_start == left[0]
    archive = str(tmp_path / "archive")
    lastwrite.fetch([tier, root], archive, topic="short", include_active=True)
    rows = lastwrite.read(archive, topic="short")
    assert [row["offset"] for row in rows] == [each.offset for each in wanted]
