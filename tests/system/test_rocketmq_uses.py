"""Tests of ``docs/guide/rocketmq-tables.md``: the stock producer writes, we compact, the stock
consumer reads.

Blocks of the page that are a single expression must be true.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lastwrite
from lastwrite.reports.compaction import Status
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.spark.inline import INLINE
from lastwrite.spark.session import spark_session
from tests.support.rocketmq.broker import COMPACTED, Broker, Unavailable, rocketmq_home
from tests.support.rocketmq.routes import await_route
from tests.support.rocketmq.stock import StockClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.spark]
pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("pandas", reason="pip install 'lastwrite[frames]'")

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "rocketmq-tables.md"
TOPICS = {
    "Consumer offsets": "consumer-offsets",
    "Connector positions": "connector-positions",
    "Checkpoints of a stream job": "checkpoints",
}
QUEUES = 2
FILES = {
    "compactionMappedFileSize": "25300",
    "compactionCqMappedFileSize": "4600",
}  # 99 messages a file
CONFIG = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}


def blocks() -> dict[str, list[str]]:
    """The Python blocks of the page by the section's title."""
    found: dict[str, list[str]] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        title = section.partition("\n")[0]
        found[title] = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return found


def is_expression(code: str) -> bool:
    body = ast.parse(code).body
    return len(body) == 1 and isinstance(body[0], ast.Expr)


def messages_of(code: str) -> list[dict[str, Any]]:
    names: dict[str, Any] = {"json": json}
    exec(code, names)
    return list(names["messages"]())


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    try:
        made = Broker(rocketmq_home(), tmp_path / "store", FILES)
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield made
    made.kill()


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    with spark_session("local[1]", {}) as session:
        yield session


def test_every_use_has_its_topic() -> None:
    assert list(blocks()) == list(TOPICS)


@pytest.mark.long
def test_uses_of_the_guide_run(broker: Broker, spark: SparkSession) -> None:
    sent: dict[str, int] = {}
    with broker, RocketmqClient(broker.name_server) as client:
        for topic in TOPICS.values():
            client.create_topic(topic, QUEUES, COMPACTED)
        with StockClient(broker) as stock:
            for title, (producing, *_) in blocks().items():
                ends = [0] * QUEUES
                for message in messages_of(producing):
                    if "body" in message:
                        body = message["body"].encode()
                        queue, offset = stock.send(
                            TOPICS[title], message["key"], body, message.get("tag")
                        )
                    else:  # messages that the stock producer cannot send
                        (stored,) = lastwrite.send(broker.name_server, TOPICS[title], [message])
                        queue, offset = stored.queue.queue, stored.offset
                    ends[queue] = offset + 1
                sent[TOPICS[title]] = sum(ends)
                route = client.route(TOPICS[title])
                for queue in route.readable:  # wait for the dispatch to the compaction log
                    deadline = time.monotonic() + 120
                    while client.pull(queue, ends[queue.queue]).max_offset < ends[queue.queue]:
                        assert time.monotonic() < deadline, "the broker does not dispatch"
                        time.sleep(0.05)

    store = str(broker.store)
    tables: dict[str, dict[str, bytes]] = {}
    for title, (_, *reading) in blocks().items():
        topic = TOPICS[title]
        before = lastwrite.latest(store, topic=topic)
        report = lastwrite.compact(store, topic=topic, config=CONFIG, spark=INLINE)
        # A queue with only an active file has nothing to compact.
        statuses = {partition.status for partition in report.partitions}
        assert Status.CLEANED in statuses and statuses <= {Status.CLEANED, Status.SKIPPED}, (
            report.to_dict()
        )
        left = sum(partition.records_after or 0 for partition in report.partitions)
        assert left < sent[topic], f"nothing of {topic} was compacted"
        tables[topic] = lastwrite.latest(store, topic=topic)
        assert tables[topic] == before
        names: dict[str, Any] = {
            "json": json,
            "lastwrite": lastwrite,
            "store": store,
            "spark": spark,
        }
        for code in reading:
            if is_expression(code):
                assert eval(code.strip(), names), code
            else:
                exec(code, names)

    with broker, StockClient(broker) as stock, RocketmqClient(broker.name_server) as client:
        for topic, table in tables.items():
            await_route(client, topic)
            consumed: dict[str, bytes] = {}
            count = 0
            for queue in range(QUEUES):
                for message in stock.pull(topic, queue).messages:
                    count += 1
                    assert message.key is not None
                    if message.body:
                        consumed[message.key] = message.body
                    else:
                        consumed.pop(message.key, None)
            assert consumed == table
            assert count < sent[topic]
