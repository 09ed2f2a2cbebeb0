"""Kafka's own cleaner as judge: 300 random logs by its own append path, cleaned round by round
(``rounds.py``).

``python -m tests.proof`` does the same to as many logs as one likes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

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
from tests.support.kafka.oracle import MAP_SLOTS, Oracle, shut_down
from tests.support.kafka.producers import first_unstable, snapshots
from tests.support.kafka.strategies import Life, append, lives
from tests.support.sample import some

SEEDS = int(os.environ.get("LASTWRITE_ORACLE_SEEDS", "300"))

# Seeds beyond those, each of which once told something.
KEPT = {
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
def test_the_same_log_is_left(seed: int, oracle: Oracle) -> None:
    check_seed(oracle, seed)


@settings(max_examples=100)
@given(life=lives())
def test_the_reference_of_the_property_tests_is_right(life: Life, oracle: Oracle) -> None:
    """What those tests hold the engine against, on the logs that they draw."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-life-", dir=SCRATCH) as folder:
        root, twin = Path(folder) / "kafka", Path(folder) / "reference"
        (root / NAME).mkdir(parents=True)
        for phase in life.phases:
            end = append(root / NAME, phase, life.interval_bytes)
            segments = read_segments(root / NAME)
            # A marker without a timestamp, which no broker writes: the oracle holds its producer
            # for active, as a broker does until it looks for producers that have expired (every
            # producer.id.expiration.check.interval.ms); the model and the engine for expired.
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
                return  # an old batch that would have to stay empty
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
