"""``verify`` before logs that it did not make: a real broker's, and what Kafka's own cleaner made of random ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.pipeline.inline import INLINE
from tests.conformance.oracle import Oracle, scenario
from tests.conformance.rounds import played

CORPUS = Path(__file__).parent.parent / "corpus" / "kafka-4.4.0"


@pytest.mark.parametrize("state", ["stopped", "crashed", "cleaned"])
def test_what_a_broker_left_is_whole(state: str) -> None:
    report = lastwrite.verify(str(CORPUS / state), before=str(CORPUS / state), spark=INLINE)
    assert report.exit_status == 0, [str(problem) for problem in report.problems]
    assert sum(partition.records for partition in report.partitions) > 200
    assert [partition.advice for partition in report.partitions if partition.advice] == []


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    asked = Oracle()
    yield asked
    asked.close()


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(1001, 1061))
def test_kafkas_own_cleaner_keeps_what_it_promises(seed: int, oracle: Oracle, tmp_path: Path) -> None:
    """Its promises are ours to hold; were they not, the promises would be wrong, not Kafka."""
    for round_ in played(oracle, scenario(seed), tmp_path):
        report = lastwrite.verify(str(round_.after), before=str(round_.before), now_ms=round_.now_ms, spark=INLINE)
        assert report.exit_status == 0, [str(problem) for problem in report.problems]
        if round_.cleaned:
            comparison = report.partitions[0].comparison
            assert comparison is not None
            missing = comparison.superseded + comparison.expired + comparison.keyless + comparison.below_start
            assert comparison.records_before - comparison.records_after == missing
