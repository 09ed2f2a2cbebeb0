"""Tests against Kafka's own retention: the same segments expire, and Kafka loads the log.

The logs are random ones of Kafka's append path. Often they were cleaned once, and have merged and
empty segments, transactions, several leader epochs and future timestamps. For each log, limits are
drawn that just do or just do not expire a segment.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from lastwrite.kafka.producers.snapshot import encode_snapshot
from lastwrite.kafka.rules.retention import expired
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.store.log_dir import read_partition, recover
from lastwrite.model.log import PartitionLog
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.files import contents
from tests.support.kafka.crashing import run_until
from tests.support.kafka.expiring import EXPIRING, NOW_MS, Expiring, retain, write_expiring
from tests.support.kafka.logs import (
    NAME,
    SCRATCH,
    bases,
    headers_of,
    read_checkpoint,
    write_checkpoint,
)
from tests.support.kafka.oracle import MAP_SLOTS, Oracle, scenario, shut_down
from tests.support.kafka.single import retain as take_out
from tests.support.sample import some

SEEDS = int(os.environ.get("LASTWRITE_RETENTION_SEEDS", "30"))
CASES = 5  # cases for each log
YEAR_MS = 366 * 86_400_000
NO_PRODUCERS = encode_snapshot([])  # an empty snapshot, equivalent to no snapshot

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    asked = Oracle()
    yield asked
    asked.close()


@dataclass(frozen=True)
class Case:
    """Retention settings, the time and the bounds of a log."""

    config: dict[str, str]
    now_ms: int
    log_start: int
    high_watermark: int

    def opened(self, folder: Path) -> dict[str, Any]:
        return {
            "dir": str(folder),
            "config": self.config,
            "now_ms": self.now_ms,
            "log_start": self.log_start,
            "high_watermark": self.high_watermark,
        }


def write_log(
    oracle: Oracle, rng: random.Random, seed: int, folder: Path
) -> tuple[dict[str, str], int]:
    """Write a random log.

    Returns its topic's settings without retention, and the time of the last append.
    """
    plan = scenario(seed)
    config = {
        name: value for name, value in plan["config"].items() if not name.startswith("retention")
    }
    folder.mkdir(parents=True)
    now = 0
    phases = plan["phases"][: rng.randrange(1, 4)]
    if rng.random() < 0.5:  # otherwise the last segment is mostly empty
        phases[-1]["actions"] = [action for action in phases[-1]["actions"] if "roll" not in action]
    for phase in phases:
        oracle.ask(
            "write",
            dir=str(folder),
            now_ms=phase["actions"][0]["clock"],
            lenient=True,
            config={**config, "cleanup.policy": "delete"},
            actions=phase["actions"],
        )
        now = phase["now_ms"]
        if rng.random() < 0.5:
            before = folder.with_name("before-cleaning")
            shutil.copytree(folder, before)
            compacting = {**config, "cleanup.policy": "compact"}
            answer = oracle.attempt(
                "clean",
                dir=str(folder),
                config=compacting,
                now_ms=now,
                checkpoint=0,
                map_slots=MAP_SLOTS,
            )
            if not answer["ok"]:  # Kafka fails because an old batch would become empty
                shutil.rmtree(folder)
                shutil.copytree(before, folder)
            shutil.rmtree(before)
    shut_down(folder)
    return config, now


def draw_case(rng: random.Random, log: PartitionLog, config: dict[str, str], now_ms: int) -> Case:
    """Settings and bounds at or next to the limit that expires a segment of ``log``."""
    segment = rng.choice(log.segments)
    if rng.random() < 0.2:
        now_ms += rng.choice([1, 10 * YEAR_MS])
    age = now_ms - segment.largest_timestamp_ms
    times = [-1, -1, 0, max(age, 0), max(age - 1, 0), max(age + 1, 0), rng.randrange(200_000)]
    behind = [0, *accumulate(part.size_bytes for part in reversed(log.segments))]
    sizes = [
        -1,
        -1,
        0,
        *(max(size + rng.choice([-1, 0, 0, 1]), 0) for size in rng.choices(behind, k=4)),
    ]
    policy = rng.choice(["delete", "delete", "compact,delete", "compact", ""])
    start = log.log_start
    if rng.random() < 0.4:
        start = rng.choice(
            [segment.base_offset, segment.base_offset + 1, rng.randint(start, log.end_offset)]
        )
        start = min(max(start, log.log_start), log.end_offset)
    high_watermark = log.end_offset
    if rng.random() < 0.3:
        high_watermark = rng.choice(
            [segment.base_offset, segment.base_offset - 1, rng.randint(0, log.end_offset)]
        )
    return Case(
        {
            **config,
            "cleanup.policy": policy,
            "retention.ms": str(rng.choice(times)),
            "retention.bytes": str(rng.choice(sizes)),
        },
        now_ms,
        start,
        max(start, high_watermark),
    )


def logs_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.log")}


def check_case(oracle: Oracle, written: Path, case: Case) -> tuple[int, bool]:
    """Compare both retentions. Returns the number of expired segments, and whether all expired."""
    theirs, ours = written.with_name("theirs") / NAME, written.with_name("ours") / NAME
    for folder in (theirs, ours):
        shutil.copytree(written, folder)
    answer = oracle.ask("retention", **case.opened(theirs))
    # Kafka loads the log before retention, which may already change snapshots and leader epochs.
    oracle.ask("load", **case.opened(ours))
    shut_down(ours)
    write_checkpoint(ours.parent, "log-start-offset-checkpoint", {NAME: case.log_start})
    write_checkpoint(ours.parent, "replication-offset-checkpoint", {NAME: case.high_watermark})
    log = read_partition(str(ours))
    assert not log.problems, log.problems
    found = expired(log, KafkaTopicConfig.from_names(case.config), case.now_ms)
    take_out(log, found, checkpoint_root=str(ours.parent))

    assert len(found.segments) == answer["deleted_segments"]
    assert found.log_start == answer["log_start"]
    assert logs_of(ours) == logs_of(theirs)
    after = read_partition(str(ours))
    assert not after.problems, after.problems
    assert (after.log_start, after.end_offset) == (answer["log_start"], answer["log_end"])
    # A broker writes an entry only if the log start differs from the first segment's base offset.
    entry = {} if after.log_start == after.segments[0].base_offset else {NAME: after.log_start}
    assert read_checkpoint(ours.parent, "log-start-offset-checkpoint") == entry
    epochs = "leader-epoch-checkpoint"
    assert (ours / epochs).read_text() == (theirs / epochs).read_text()
    assert not [path for path in ours.iterdir() if path.name.endswith((".deleted", ".tmp"))]

    # Kafka loads both logs with the same result.
    told = []
    for folder in (ours, theirs):
        left = logs_of(folder)
        opened = {**case.opened(folder), "log_start": entry.get(NAME, 0)}
        loaded = oracle.ask("load", **opened)
        assert logs_of(folder) == left
        told.append(
            (
                [
                    (segment["base"], segment["size"], segment["next_offset"])
                    for segment in loaded["segments"]
                ],
                loaded["log_start"],
                loaded["log_end"],
                loaded["last_stable"],
                loaded["producers"],
                (folder / epochs).read_text(),
                {
                    name: data
                    for name, data in contents(folder).items()
                    if name.endswith((".snapshot", ".txnindex")) and data != NO_PRODUCERS
                },
            )
        )
    assert told[0] == told[1]
    for folder in (theirs, ours):
        shutil.rmtree(folder.parent)
    return len(found.segments), found.rolls


def test_same_segments_expire_as_in_kafka(oracle: Oracle) -> None:
    deleted, nothing, everything = 0, 0, 0
    for seed in range(1, SEEDS + 1):
        rng = random.Random(f"retention-{seed}")
        with tempfile.TemporaryDirectory(dir=SCRATCH) as place:
            written = Path(place) / "written" / NAME
            config, now_ms = write_log(oracle, rng, seed, written)
            log = read_partition(str(written))
            for number in range(CASES):
                case = draw_case(rng, log, config, now_ms)
                try:
                    gone, is_all = check_case(oracle, Path(place) / "written" / NAME, case)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}, case {number}: {case}: {error}") from error
                deleted, nothing, everything = (
                    deleted + gone,
                    nothing + (not gone),
                    everything + is_all,
                )
    assert deleted > SEEDS and nothing > SEEDS // 2 and everything > SEEDS // 10, (
        deleted,
        nothing,
        everything,
    )


@pytest.mark.parametrize("layout", some(EXPIRING, 3))
def test_kafka_loads_the_log_of_a_killed_process(
    tmp_path: Path, oracle: Oracle, layout: Expiring
) -> None:
    write_expiring(tmp_path / "old", layout)
    files.faults = FaultPoints(1 << 30)
    try:
        shutil.copytree(tmp_path / "old", tmp_path / "counted")
        retain(tmp_path / "counted" / NAME, layout)
        count = files.faults.passed
    finally:
        files.faults = FaultPoints()
    for point in range(1, count + 1):
        root = tmp_path / "killed"
        shutil.copytree(tmp_path / "old", root)
        folder = root / NAME
        assert run_until(point, lambda folder=folder: retain(folder, layout))
        started = read_checkpoint(root, "log-start-offset-checkpoint").get(NAME, 0)
        opened = {
            "dir": str(folder),
            "config": layout.config,
            "now_ms": NOW_MS,
            "log_start": started,
        }
        loaded = oracle.ask("load", **opened, clean_shutdown=bool(point % 2))
        assert loaded["log_end"] == layout.end, point
        assert loaded["log_start"] in (layout.old_start, layout.new_start), point
        left = [
            h.base_offset
            for base in bases(folder)
            for _, h in headers_of(folder / f"{base:020d}.log")
        ]
        readable = [offset for offset in left if offset >= loaded["log_start"]]
        assert readable == [offset for offset in layout.offsets if offset >= loaded["log_start"]], (
            point
        )
        assert not [path for path in folder.iterdir() if path.name.endswith(".deleted")], point
        # Then the broker stops. Lastwrite's next run and the broker's next retention agree.
        shut_down(folder)
        recover(str(folder))
        retain(folder, layout)
        answer = oracle.ask(
            "retention",
            **{
                **opened,
                "log_start": read_checkpoint(root, "log-start-offset-checkpoint").get(NAME, 0),
            },
        )
        assert answer["deleted_segments"] == 0, point
        assert (answer["log_start"], answer["log_end"], bases(folder)) == (
            layout.new_start,
            layout.end,
            layout.new_bases,
        ), point
        shutil.rmtree(root)
