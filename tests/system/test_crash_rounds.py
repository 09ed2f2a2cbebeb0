"""Tests of rounds on random logs, killed: a short form of ``python -m tests.crash``.

Three logs are killed at every operation, a dozen others at random ones, a third of these twice. For
Kafka's own loader see ``tests/conformance/test_crash_rounds.py``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.rounds import Round, prepare
from tests.crash.trial import KILLS_A_LOG, drawn, run_trial
from tests.support.kafka.logs import SCRATCH
from tests.support.sample import some

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child that was forked")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory if there is one. Disk speed does not matter to these tests."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=SCRATCH) as folder:
        yield Path(folder)


def what_is_in(round_: Round) -> set[str]:
    """The features of the log and of its round, by name."""
    batches = [batch for name in round_.folders for batch in round_.before[name]]
    left = [batch for name in round_.folders for batch in round_.after[name]]
    indexes = list(round_.origin.glob("*/*.txnindex"))
    done = {name for name in round_.done if name.endswith(".log")}
    found = {
        "several transaction indexes": len(indexes) > 1,
        "committed transactions": any(batch.marker == "commit" for batch in batches),
        "aborted transactions": any(batch.marker == "abort" for batch in batches),
        "markers with a horizon": any(
            batch.control and batch.horizon_ms is not None for batch in left
        ),
        "shells of producers": any(batch.producer_id >= 0 and not batch.records for batch in left),
        "old formats": any(batch.magic < 2 for batch in batches),
        "retention": any(
            round_.settings.config.get(name) for name in ("retention.ms", "retention.bytes")
        ),
        "a broker that was killed": round_.settings.was_killed,
        "several partitions": len(round_.folders) > 1,
        "fewer segments": len(done) < len(list(round_.origin.glob("*/*.log"))),
        "the active segment too": round_.settings.include_active,
    }
    return {name for name, is_there in found.items() if is_there}


EVERYWHERE = [42, 47, 49]
DRAWN = range(60, 72)


@pytest.mark.parametrize("log", some(EVERYWHERE, 1))
def test_kill_at_every_operation_leaves_the_old_log_or_the_new(place: Path, log: int) -> None:
    round_ = prepare(log, place)
    for point in range(1, round_.operations + 1):
        run_trial(round_, place, point)


@pytest.mark.parametrize("log", some(DRAWN, 4))
def test_one_or_two_kills_at_random_operations_are_survived(place: Path, log: int) -> None:
    round_ = prepare(log, place)
    for seed in range(log * KILLS_A_LOG, (log + 1) * KILLS_A_LOG):
        run_trial(round_, place, *drawn(round_, seed))


def test_random_logs_cover_every_feature(tmp_path: Path) -> None:
    met: list[set[str]] = []
    for log in (*EVERYWHERE, *DRAWN):
        (tmp_path / str(log)).mkdir()
        met.append(what_is_in(prepare(log, tmp_path / str(log))))
    assert set().union(*met) == {
        "several transaction indexes",
        "committed transactions",
        "aborted transactions",
        "markers with a horizon",
        "shells of producers",
        "old formats",
        "retention",
        "a broker that was killed",
        "several partitions",
        "fewer segments",
        "the active segment too",
    }
    assert (
        sum(prepared >= {"several transaction indexes", "fewer segments"} for prepared in met) >= 3
    )
