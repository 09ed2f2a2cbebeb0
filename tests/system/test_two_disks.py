"""Tests of a real broker with two ``log.dirs``.

Topics on the disk without metadata are not treated as compacted.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.spark.inline import INLINE
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Seen, Sent, consume, create_topic, produce
from tests.support.kafka.crashing import contents

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

NOW_MS = 1_700_000_000_000
SMALL = {
    "internal.segment.bytes": "3000",
    "segment.index.bytes": "1024",
    "index.interval.bytes": "300",
}
CLICKS, ORDERS = ("clicks0", "clicks1"), ("orders0", "orders1")


class TwoDisks:
    """The broker's two disks, what it stored in each topic, and which topics are on the second."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.a, self.b = folder / "a", folder / "b"
        self.broker = Broker(home, self.a, {"log.dirs": f"{self.a},{self.b}"})
        self.stored: dict[str, list[Seen]] = {}

    def fill(self) -> None:
        with self.broker:
            for topic in (*CLICKS, *ORDERS):
                policy = "delete" if topic in CLICKS else "compact"
                create_topic(
                    self.broker, topic, {**SMALL, "cleanup.policy": policy, "retention.ms": "-1"}
                )
                # Clicks have keys, too. Only the policy keeps each of them.
                sent = [
                    Sent(b"user-%d" % (n % 9), b"%d of %s" % (n, topic.encode()), NOW_MS + n)
                    for n in range(300)
                ]
                self.stored[topic] = produce(self.broker, topic, sent)

    def folder_of(self, topic: str) -> Path:
        [found] = [
            root / f"{topic}-0" for root in (self.a, self.b) if (root / f"{topic}-0").is_dir()
        ]
        return found

    def on(self, root: Path) -> list[str]:
        return [topic for topic in self.stored if self.folder_of(topic).parent == root]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[TwoDisks]:
    try:
        found = TwoDisks(kafka_home(), tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    found.fill()
    yield found


def command(*words: object) -> tuple[int, dict[str, Any]]:
    line = [
        sys.executable,
        "-m",
        "lastwrite.cli",
        *map(str, words),
        "--json",
        "--now",
        str(NOW_MS + 10_000),
    ]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.long
def test_second_disk_alone_is_left_unchanged_and_both_are_compacted(
    disks: TwoDisks, tmp_path: Path
) -> None:
    """The second disk has a topic of each policy, because the broker distributes them."""
    clicks, orders = sorted(disks.on(disks.b))
    assert (clicks in CLICKS, orders in ORDERS) == (True, True)
    before = {topic: contents(disks.folder_of(topic)) for topic in disks.stored}

    status, report = command("compact", disks.b)
    found = {partition["topic"]: partition for partition in report["partitions"]}
    assert status == 0 and {each["status"] for each in found.values()} == {"skipped"}
    assert f"--topic-config {clicks}:cleanup.policy=compact" in found[clicks]["reason"]
    assert {topic: contents(disks.folder_of(topic)) for topic in disks.stored} == before

    shutil.copytree(disks.b, tmp_path / "restored")
    restored = lastwrite.compact(
        str(tmp_path / "restored"), metadata=str(disks.a), now_ms=NOW_MS, spark=INLINE
    )
    assert {p.topic: str(p.status) for p in restored.partitions} == {
        clicks: "unchanged",
        orders: "cleaned",
    }
    assert contents(tmp_path / "restored" / f"{clicks}-0") == before[clicks]

    status, report = command("compact", disks.a, disks.b, "--master", "local[2]")
    found = {partition["topic"]: partition for partition in report["partitions"]}
    assert status == 0 and {topic: found[topic]["status"] for topic in found} == {
        topic: "unchanged" if topic in CLICKS else "cleaned" for topic in (*CLICKS, *ORDERS)
    }
    for topic in CLICKS:
        assert contents(disks.folder_of(topic)) == before[topic]
    with disks.broker:
        for topic, stored in disks.stored.items():
            left = consume(disks.broker, topic)
            if topic in CLICKS:
                assert left == stored
            else:
                assert len(left) < len(stored) // 2
                assert {seen.key: seen.value for seen in left} == {
                    seen.key: seen.value for seen in stored
                }
