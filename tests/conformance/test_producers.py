"""Tests of producers, the stable offset and aborted transactions against Kafka's loader.

The logs of random rounds are loaded before and after each round: with all snapshots, without some,
and without any snapshot and transaction index. In the last case the loader rebuilds them, as
``read_history`` does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lastwrite.kafka.producers.history import read_history
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.model.log import AbortedTransaction
from tests.support.kafka.judged import batches_of, played
from tests.support.kafka.logs import (
    NAME,
    SCRATCH,
    bases,
    read_aborted,
    read_checkpoint,
    read_segments,
)
from tests.support.kafka.model import ModelBatch
from tests.support.kafka.oracle import Oracle, scenario
from tests.support.kafka.producers import read_snapshot, snapshots
from tests.support.sample import some

pytestmark = pytest.mark.oracle

# The oracle expires producers after a day, by the given clock. Lastwrite keeps all that it has
# read.
BEFORE_ALL_EXPIRY_MS = 0

State = dict[int, tuple[int, int, int, int]]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    asked = Oracle()
    yield asked
    asked.close()


@pytest.mark.parametrize("seed", some(range(1, 101), 34))
def test_kafka_loads_the_same_state(seed: int, oracle: Oracle) -> None:
    with tempfile.TemporaryDirectory(prefix="lastwrite-producers-", dir=SCRATCH) as folder:
        for round_ in played(oracle, scenario(seed), Path(folder)):
            for root in (round_.before, round_.after):
                check_producers(oracle, root)
                check_history(oracle, root)


def check_producers(oracle: Oracle, root: Path) -> None:
    """Compare the producers with all snapshots, all but the newest, half of them, and none.

    Kafka ignores a snapshot inside a segment, which a restarted broker leaves.
    """
    begins = bases(root / NAME)
    present = [
        offset for offset in snapshots(root / NAME) if offset in begins or offset > begins[-1]
    ]
    every = len(present)
    for kept in {every, max(every - 1, 0), every // 2, 0}:
        copy = _copy(root)
        for offset in snapshots(copy / NAME):
            if offset not in present[:kept]:
                (copy / NAME / f"{offset:020d}.snapshot").unlink()
        log = read_partition(str(copy / NAME))
        # Without a snapshot, Kafka assumes after a clean shutdown that there are no producers. Only
        # after a crash does it read the log.
        loaded = oracle.ask(
            "load",
            dir=str(copy / NAME),
            now_ms=BEFORE_ALL_EXPIRY_MS,
            log_start=log.log_start,
            high_watermark=log.high_watermark,
            clean_shutdown=kept > 0,
        )
        assert loaded["log_end"] == log.end_offset
        # Kafka leaves its state at the log end, unless the log is empty.
        left = read_snapshot(copy / NAME, log.end_offset) if log.end_offset > log.log_start else {}
        theirs: State = {
            producer: (known.epoch, known.last_offset, known.timestamp_ms, known.open_from)
            for producer, known in left.items()
        }
        ours: State = {
            p.producer_id: (p.producer_epoch, p.last_offset, p.timestamp_ms, p.open_from)
            for p in log.producers
        }
        assert ours == theirs, f"with {kept} snapshots"
        # Kafka forgets that a marker is not replicated when it loads a snapshot taken after the
        # marker.
        assert log.last_stable_offset <= loaded["last_stable"]
        if log.high_watermark == log.end_offset:
            assert log.last_stable_offset == loaded["last_stable"]


def check_history(oracle: Oracle, root: Path) -> None:
    """An index built from the log alone equals Kafka's and hides what the old one hid."""
    copy = _copy(root)
    log = read_partition(str(copy / NAME))
    history = read_history(log)
    indexed = aborted_in(copy / NAME)
    assert log.aborted == indexed
    for file in (copy / NAME).iterdir():
        if file.suffix in (".snapshot", ".txnindex", ".index"):
            file.unlink()
    oracle.ask(
        "load", dir=str(copy / NAME), now_ms=BEFORE_ALL_EXPIRY_MS, log_start=0, clean_shutdown=False
    )
    assert history.aborted == aborted_in(copy / NAME)
    # Entries may be missing or begin later, because batches in between were removed.
    before = {entry.last_offset: entry for entry in indexed}
    for entry in history.aborted:
        assert before[entry.last_offset].first_offset <= entry.first_offset
        assert before[entry.last_offset].producer_id == entry.producer_id
    left = batches_of(read_segments(root / NAME))
    assert hidden(left, history.aborted) == hidden(left, indexed)
    assert history.open == tuple(
        sorted(
            ((p.producer_id, p.open_from) for p in log.producers if p.open_from >= 0),
            key=lambda one: one[1],
        )
    )


def aborted_in(folder: Path) -> tuple[AbortedTransaction, ...]:
    return tuple(
        AbortedTransaction(
            entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset
        )
        for segment in read_segments(folder)
        for entry in read_aborted(folder, segment.base_offset)
    )


def hidden(batches: Iterable[ModelBatch], aborted: tuple[AbortedTransaction, ...]) -> list[int]:
    """The base offsets of the data batches that a reader skips with these entries."""
    return [
        batch.base_offset
        for batch in batches
        if batch.transactional
        and not batch.control
        and any(
            entry.producer_id == batch.producer_id
            and entry.first_offset <= batch.last_offset < entry.last_offset
            for entry in aborted
        )
    ]


def _copy(root: Path) -> Path:
    """Copy the log root again. Returns the copy."""
    copy = root.with_name("loaded")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    assert read_checkpoint(copy, "replication-offset-checkpoint")
    return copy
