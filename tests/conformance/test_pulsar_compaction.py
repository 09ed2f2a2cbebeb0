"""Tests of compaction against a real Pulsar's, with keyless messages and by event time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pulsar.judged import BLOCK, check_seed, settings_of
from tests.support.pulsar.oracle import PulsarOracle

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.long,
]  # each setting starts a broker of its own


@pytest.fixture(scope="module")
def oracle() -> Iterator[PulsarOracle]:
    oracle = PulsarOracle()
    yield oracle
    oracle.close()


@pytest.mark.parametrize("seed", [*range(BLOCK, BLOCK + 5), *range(3 * BLOCK, 3 * BLOCK + 5)])
def test_compacted_ledger_equals_the_brokers(oracle: PulsarOracle, seed: int) -> None:
    met = check_seed(oracle.standalone(settings_of(seed)), seed)
    assert met["rounds"]
