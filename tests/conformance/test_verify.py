"""Tests of ``verify`` on a real broker's logs, and on Kafka's own compactions of random logs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.reports.verification import VerifyReport
from lastwrite.spark.inline import INLINE
from tests.support.kafka.faults import FAULTS, read_pair, strike
from tests.support.kafka.judged import Round, played
from tests.support.kafka.oracle import Oracle, scenario
from tests.support.kafka.reference import listed
from tests.support.sample import some

CORPUS = Path(__file__).parent.parent / "corpus" / "kafka-4.4.0"


@pytest.mark.parametrize("state", ["stopped", "crashed", "cleaned"])
def test_log_of_a_broker_is_verified(state: str) -> None:
    report = lastwrite.verify(str(CORPUS / state), before=str(CORPUS / state), spark=INLINE)
    assert report.exit_status == 0, [str(problem) for problem in report.problems]
    assert sum(partition.records for partition in report.partitions) > 200
    assert [partition.advice for partition in report.partitions if partition.advice] == []


@pytest.fixture(scope="module")
def met() -> Counter[str]:
    """How often each fault was tested."""
    return Counter()


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    asked = Oracle()
    yield asked
    asked.close()


@pytest.mark.oracle
@pytest.mark.parametrize("seed", some(range(1001, 1151), 30))
def test_kafkas_own_compaction_is_verified_and_each_fault_is_found(
    seed: int, oracle: Oracle, met: Counter[str], tmp_path: Path
) -> None:
    """Kafka's own compactions must keep the promises of ``verify``.

    With one fault in Kafka's result, ``verify`` reports a broken promise and its offset.
    """
    rng = random.Random(seed)
    for round_ in played(oracle, scenario(seed), tmp_path):
        if listed(round_.before).last_stable_offset < round_.last_stable:
            # Kafka forgot that a marker was not replicated, and cleaned more than a running broker
            # would
            break
        report = verified(round_, round_.after)
        assert report.exit_status == 0, [str(problem) for problem in report.problems]
        (partition,) = report.partitions
        comparison, transactions = partition.comparison, partition.transactions
        assert comparison is not None and transactions is not None
        missing = (
            comparison.superseded + comparison.expired + comparison.keyless + comparison.below_start
        )
        missing += comparison.aborted + comparison.markers
        assert comparison.records_before - comparison.records_after == missing
        pair = read_pair(
            round_.before,
            round_.after,
            last_stable=round_.last_stable,
            log_start=round_.bounds["log_start"],
            now_ms=round_.now_ms,
            last_batches=frozenset(
                last.last_offset for last in round_.producers.values() if last.last_offset >= 0
            ),
        )
        for kind in FAULTS:
            places = list(kind(pair))
            if not places:
                continue
            fault = rng.choice(places)
            strike(pair, fault, round_.after, tmp_path / "struck")
            report = verified(round_, tmp_path / "struck")
            found = {(violation.promise, violation.offset) for violation in report.violations}
            assert (fault.promise, fault.offset) in found, (
                kind.__name__,
                fault.offset,
                report.problems,
            )
            assert report.exit_status == 5
            met[kind.__name__] += 1


def verified(round_: Round, after: Path) -> VerifyReport:
    return lastwrite.verify(
        str(after),
        before=str(round_.before),
        config=round_.config,
        now_ms=round_.now_ms,
        spark=INLINE,
        drop_keyless=True,
    )


@pytest.mark.oracle
def test_every_kind_of_fault_was_tested(met: Counter[str]) -> None:
    """Checks all seeds together, because a single seed may lack a fault."""
    if sum(met.values()) > 1000:
        assert {kind.__name__ for kind in FAULTS} == set(met), met
