"""A real broker with tiers, while it runs: what is fetched of tier and log root is what its
consumer reads, and the compacted archive is its table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.spark.inline import INLINE
from tests.corpus.make import events
from tests.corpus.make_tiered import transactions
from tests.support.jars import Unavailable
from tests.support.kafka.broker import Broker
from tests.support.kafka.clients import Seen, consume, create_topic, produce
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


def test_fetch_and_compact_beside_the_broker(broker: Broker, tmp_path: Path) -> None:
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
    # The broker goes on, and so does the archive.
    produce(broker, "orders", events(3, 150))
    wait_until_copied(broker.data, "orders-0")
    report = lastwrite.fetch(
        [tier, str(broker.data)], archive, topic="orders", include_active=True
    ).partitions[0]
    assert report.reason is None
    assert dict(lastwrite.latest(archive, "orders")) == table_of(consume(broker, "orders"))
