"""Tests of the log of a killed broker that has lost records.

Every command reports the loss, and the broker does what the remedy states.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lastwrite
from lastwrite.kafka.store.checkpoints import read_offsets
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.model.log import ProblemKind, TopicPartition
from lastwrite.spark.inline import INLINE
from tests.support.files import contents
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, bounds, create_topic, produce
from tests.support.kafka.logs import bases, headers_of

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RECORDS = 300
MARKS = "replication-offset-checkpoint"


def records(count: int) -> list[Sent]:
    return [Sent(b"k%d" % (n % 50), b"%d " % n * 20, 1_700_000_000_000 + n) for n in range(count)]


def noted(broker: Broker, file: str) -> int:
    return read_offsets(str(broker.data), file).get(TopicPartition("t", 0), 0)


def killed_broker(place: Path) -> Broker:
    try:
        home = kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))
    broker = Broker(
        home, place / "data", {"replica.high.watermark.checkpoint.interval.ms": "200"}
    ).start()
    try:
        create_topic(broker, "t", {"internal.segment.bytes": "6000", "cleanup.policy": "compact"})
        produce(broker, "t", records(RECORDS))
        until = time.monotonic() + 120
        while noted(broker, MARKS) < RECORDS and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        broker.kill()
    return broker


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("lastwrite"))
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def test_lost_part_of_a_killed_brokers_log_is_reported(tmp_path: Path) -> None:
    broker = killed_broker(tmp_path)
    folder = broker.data / "t-0"
    assert not (broker.data / ".kafka_cleanshutdown").exists()
    assert noted(broker, "recovery-point-offset-checkpoint") == 0
    assert noted(broker, MARKS) == RECORDS
    assert lastwrite.verify(str(folder), spark=INLINE).exit_status == 0, "a kill alone is no damage"
    found = bases(folder)
    assert len(found) > 4

    emptied = tmp_path / "emptied"
    shutil.copytree(broker.data, emptied)
    os.truncate(emptied / "t-0" / f"{0:020d}.log", 0)
    (damage,) = [
        p for p in read_partition(str(emptied / "t-0")).problems if p.kind is ProblemKind.DAMAGED
    ]
    assert f"the segment is empty: offsets 0 to {found[1] - 1} are missing" in damage.message

    # A torn tail beyond the high watermark is not reported as damage.
    tail = tmp_path / "tail"
    shutil.copytree(broker.data, tail)
    with open(tail / "t-0" / f"{found[-1]:020d}.log", "ab") as log_file:
        log_file.write(b"half a batch")
    assert lastwrite.verify(str(tail / "t-0"), spark=INLINE).exit_status == 0
    os.truncate(tail / "t-0" / f"{found[-1]:020d}.log", 7)
    assert lastwrite.verify(str(tail / "t-0"), spark=INLINE).exit_status == 3

    cut = folder / f"{found[1]:020d}.log"
    position, header = headers_of(cut)[2]
    os.truncate(cut, position + 30)
    before = contents(folder)
    lost = f"offsets {header.base_offset} to {found[2] - 1} are missing"
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    for report in (
        lastwrite.inspect(str(folder)),
        lastwrite.verify(str(folder), spark=INLINE),
        lastwrite.compact(str(folder), config=config, spark=INLINE),
    ):
        assert report.exit_status == 3 and lost in json.dumps(report.to_dict())
    for done in (
        command("inspect", str(folder)),
        command("verify", str(folder), "--json"),
        command("compact", str(folder), "--config", "cleanup.policy=compact"),
    ):
        assert done.returncode == 3 and lost in done.stdout + done.stderr, done
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}
    assert after == before

    # If this is the only replica, the remedy is to start the broker. It truncates the log as the
    # remedy states.
    (damage,) = [p for p in read_partition(str(folder)).problems if p.kind is ProblemKind.DAMAGED]
    said = re.search(
        r"truncates the log at offset (\d+) and removes the (\d+) segments after this one, from ",
        damage.remedy or "",
    )
    assert said is not None, damage.remedy
    with broker:
        assert bounds(broker, "t") == (0, int(said[1])) == (0, header.base_offset)
        assert [base for base in bases(folder) if base in found] == found[
            : len(found) - int(said[2])
        ]
    assert lastwrite.verify(str(folder), spark=INLINE).exit_status == 0
