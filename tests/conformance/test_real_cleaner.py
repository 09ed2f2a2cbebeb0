"""Tests against Kafka's own cleaner: 300 random logs of its append path, cleaned round by round.

``tests/support/kafka/judged.py`` compares each round. ``python -m tests.proof`` does the same with
any number of logs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from tests.support.engine import compact
from tests.support.kafka import reference
from tests.support.kafka.judged import batches_of, check_seed
from tests.support.kafka.logs import (
    NAME,
    SCRATCH,
    bases,
    read_checkpoint,
    read_files,
    read_segments,
    write_checkpoint,
)
from tests.support.kafka.model import ModelBatch
from tests.support.kafka.oracle import MAP_SLOTS, Oracle, shut_down
from tests.support.kafka.producers import first_unstable, snapshots
from tests.support.kafka.strategies import Life, append, lives
from tests.support.sample import some
from tests.unit.test_dropped_tombstones import batch, stamped, write

SEEDS = int(os.environ.get("LASTWRITE_ORACLE_SEEDS", "300"))

# Further seeds, each of which once found a difference.
KEPT = {
    56: "a retention of Long.MAX: a batch with a delete is rebuilt, and gets no horizon",
    523: "Kafka forgets a transaction below the log's start, and drops its marker before its data",
    572: "the same, with the last batch of an active producer",
    1114: "a transaction that began below the log's start, its marker not replicated",
    1151: "a last stable offset below the log's start",
}

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    asked = Oracle()
    yield asked
    asked.close()


@pytest.mark.parametrize("seed", [*some(range(1, SEEDS + 1), SEEDS // 3), *KEPT])
def test_round_leaves_the_same_log_as_kafka(seed: int, oracle: Oracle) -> None:
    check_seed(oracle, seed)


@settings(max_examples=100)
@given(life=lives())
def test_reference_of_the_property_tests_equals_kafka(life: Life, oracle: Oracle) -> None:
    with tempfile.TemporaryDirectory(prefix="lastwrite-life-", dir=SCRATCH) as folder:
        root, twin = Path(folder) / "kafka", Path(folder) / "reference"
        (root / NAME).mkdir(parents=True)
        for phase in life.phases:
            end = append(root / NAME, phase, life.interval_bytes)
            segments = read_segments(root / NAME)
            # No broker writes a marker without a timestamp. Kafka counts its producer as active
            # until the next check for expired producers (producer.id.expiration.check.interval.ms).
            # The model and the engine count it as expired.
            assume(all(b.max_timestamp_ms >= 0 for b in batches_of(segments) if b.control))
            high_watermark = int(end * phase.replicated)
            if first_unstable(segments, high_watermark) != first_unstable(segments, end):
                high_watermark = end  # Kafka has forgotten which markers are not replicated
            write_checkpoint(root, "replication-offset-checkpoint", {NAME: high_watermark})
            shutil.rmtree(twin, ignore_errors=True)
            shutil.copytree(root, twin)
            found = reference.compact(twin, life.config, phase.now_ms)
            said = oracle.attempt(
                "clean",
                dir=str(root / NAME),
                config=life.config,
                now_ms=phase.now_ms,
                map_slots=MAP_SLOTS,
                high_watermark=high_watermark,
            )
            if not said["ok"]:
                return  # Kafka fails because an old batch would become empty
            shut_down(root / NAME)
            assert found.eligible == said["picked_by_kafka"]
            assert read_segments(twin / NAME) == read_segments(root / NAME)
            assert [n for n in snapshots(twin / NAME) if n != end] == [
                n for n in snapshots(root / NAME) if n != end
            ]
            file = "cleaner-offset-checkpoint"
            assert read_checkpoint(twin, file) == read_checkpoint(root, file)
            plain = all(batch.codec == 0 for batch in batches_of(read_segments(root / NAME)))
            for base in bases(root / NAME):
                if plain and base < found.first_uncleanable:
                    assert read_files(twin / NAME, base) == read_files(root / NAME, base)


NOW_MS = 1_700_000_000_000
LAST = batch(4, "d=1", "e=1")
NEVER = {"cleanup.policy": "compact", "delete.retention.ms": str(2**63 - 1)}


def test_kafka_sets_no_horizon_beyond_64_bits(tmp_path: Path, oracle: Oracle) -> None:
    (_, batches), ours = _cleaned(oracle, tmp_path, None)
    assert [batch.horizon_ms for batch in batches] == [None] * 3
    assert batches == ours


def test_kafka_drops_a_tombstone_with_a_negative_horizon_and_we_keep_it(
    tmp_path: Path, oracle: Oracle
) -> None:
    (kept, _), ours = _cleaned(oracle, tmp_path, -2)
    assert kept == [0, 2, 3, 4, 5]
    assert [record.offset for batch in ours for record in batch.records] == list(range(6))
    assert [batch.horizon_ms for batch in ours] == [None] * 3


def _cleaned(
    oracle: Oracle, folder: Path, horizon_ms: int | None
) -> tuple[tuple[list[int], list[ModelBatch]], list[ModelBatch]]:
    """Clean a log with a delete at offset 1.

    Returns offsets and batches after Kafka's round, and the batches after Lastwrite's.
    """
    first = batch(0, "a=1", "b")
    if horizon_ms is not None:
        first = stamped(first, horizon_ms)
    sides = []
    for name in ("theirs", "ours"):
        root = write(folder / name, {0: [first], 2: [batch(2, "c=1", "d=2")], 4: [LAST]}, 2)
        sides.append(root)
    oracle.ask(
        "clean",
        dir=str(sides[0] / NAME),
        config=NEVER,
        now_ms=NOW_MS,
        checkpoint=2,
        map_slots=MAP_SLOTS,
    )
    compact(sides[1], NEVER, NOW_MS, like_broker=True)
    theirs, ours = (batches_of(read_segments(root / NAME)) for root in sides)
    return ([record.offset for batch in theirs for record in batch.records], theirs), ours
