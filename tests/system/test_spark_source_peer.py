"""Tests of ``format("lastwrite")`` against Spark's own Kafka source.

Both return the same rows with the same options, and each reads what the other wrote.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

import lastwrite
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import CODECS, Sent, create_topic, produce
from tests.support.kafka.groups import transact
from tests.support.kafka.spark_source import differences, peer_home

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


def test_both_sources_give_the_same_rows(tmp_path: Path) -> None:
    try:
        home, peer = kafka_home(), peer_home()
    except Unavailable as error:
        pytest.skip(str(error))
    now_ms = int(time.time() * 1000)
    settings = {"replica.high.watermark.checkpoint.interval.ms": "300"}
    with Broker(home, tmp_path / "data", settings) as broker:
        for codec in CODECS:
            create_topic(broker, f"peer-{codec}", {})
            produce(broker, f"peer-{codec}", _drawn(now_ms), codec=codec, batch_records=20)
        create_topic(broker, "peer-gaps", {"cleanup.policy": "compact", "segment.bytes": "1048576"})
        keyed = [each for each in _drawn(now_ms) if each.key is not None]
        produce(broker, "peer-gaps", keyed, codec="zstd", batch_records=7)
        create_topic(broker, "peer-append", {"message.timestamp.type": "LogAppendTime"})
        produce(broker, "peer-append", _drawn(now_ms), codec="lz4")
        create_topic(broker, "peer-paid", {})
        sent = [(n % 2 == 0, [b"%d-%d" % (n, i) for i in range(9)]) for n in range(6)]
        transact(broker, "till", "peer-paid", sent)
    lastwrite.compact(
        str(tmp_path / "data"),
        topic="peer-gaps",
        include_active=True,
        config={"min.cleanable.dirty.ratio": 0},
    )
    with Broker(home, tmp_path / "data", settings) as broker:
        still = Producer({"bootstrap.servers": broker.address, "transactional.id": "open"})
        still.init_transactions(60)
        still.begin_transaction()
        still.produce("peer-paid", key=b"open", value=b"open", partition=0)
        still.flush(60)
        produce(broker, "peer-paid", [Sent(b"after", b"after", now_ms)])
        time.sleep(3)
        found = differences(peer, broker.address, tmp_path / "data")
    assert {level: rest for level, (_, *rest) in found.items()} == {
        "read_uncommitted": [0, 0],
        "read_committed": [0, 0],
    }
    assert found["read_uncommitted"][0] > found["read_committed"][0] > 600


def _drawn(now_ms: int) -> list[Sent]:
    return [
        Sent(
            None if n % 11 == 10 else b"k%d" % (n % 40),
            None if n % 13 == 12 else b"v%d" % n,
            now_ms - 1000 * n,
            (("h", b"x%d" % n), ("h", None), ("e", b"")) if n % 3 else (),
        )
        for n in range(150)
    ]
