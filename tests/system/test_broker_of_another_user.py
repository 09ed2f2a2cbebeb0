"""Tests of a real broker that runs as another user, after a round by root on its log root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import LogHeld
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.foreign import GROUP, OWNER, needs_root, owners
from tests.support.foreign import place as place
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, bounds, consume, create_topic, produce

pytestmark = [pytest.mark.broker, pytest.mark.slow, needs_root]

SMALL = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "segment.index.bytes": "1024",
}


@pytest.fixture
def home(place: Path) -> Path:
    """Kafka's jars where every user can read them."""
    try:
        source = kafka_home()
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))
    (place / "kafka").mkdir(0o755)
    shutil.copytree(source / "lib", place / "kafka" / "lib")
    for path in (place / "kafka").rglob("*"):
        path.chmod(0o755)
    return place / "kafka"


def test_broker_of_another_user_starts_and_serves_after_a_round(place: Path, home: Path) -> None:
    data = place / "data"
    data.mkdir(0o750)
    os.chown(data, OWNER, GROUP)
    broker = Broker(home, data, user=(OWNER, GROUP))
    link = place / "links" / "t-0"
    link.parent.mkdir()
    link.symlink_to(data / "t-0")
    sent = [Sent(b"k%d" % (n % 7), b"v%05d" % n * 20, 1_700_000_000_000 + n) for n in range(400)]
    with broker:
        create_topic(broker, "t", SMALL)
        produce(broker, "t", sent)
        segments = {path.name: path.stat().st_ino for path in (data / "t-0").iterdir()}
        for path in (data, link):
            with pytest.raises(LogHeld, match="broker") as told:
                lastwrite.compact(
                    str(path), config={"min.cleanable.dirty.ratio": 0}, topic="t", spark=INLINE
                )
            assert told.value.exit_status == 4
        assert {path.name: path.stat().st_ino for path in (data / "t-0").iterdir()} == segments
        assert bounds(broker, "t") == (0, 400), "it lives"
    for path in (data / "t-0").glob("*.log"):
        path.chmod(0o600)
    assert not (data / ".lock").exists(), "a broker takes it away when it stops"
    before = owners(data)
    [report] = lastwrite.compact(
        str(link), config={"min.cleanable.dirty.ratio": 0}, spark=INLINE
    ).partitions
    assert report.status is Status.CLEANED and report.bytes_after < report.bytes_before
    after = owners(data)
    assert {name: after[name] for name in before if name in after} == {
        name: before[name] for name in before if name in after
    }
    assert {each[:2] for each in after.values()} == {(OWNER, GROUP)}
    with broker:
        assert {record.key for record in consume(broker, "t")} == {b"k%d" % n for n in range(7)}
        produce(broker, "t", sent[:5])
        assert bounds(broker, "t")[1] == 405
        assert not any("all log dirs" in line for line in broker.said())
