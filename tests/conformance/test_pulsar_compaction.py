"""A real Pulsar's compaction beside ours, seed by seed; hundreds: ``python -m tests.proof --system pulsar``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.pulsar_oracle import PulsarOracle
from tests.conformance.pulsar_rounds import BLOCK, check_seed

SEEDS = range(1, 6)  # with the settings of a plain broker
MORE = [*range(BLOCK, BLOCK + 5), *range(3 * BLOCK, 3 * BLOCK + 5)]  # with others: each starts a broker of its own

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def oracle() -> Iterator[PulsarOracle]:
    oracle = PulsarOracle()
    yield oracle
    oracle.close()


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in MORE)])
def test_the_compacted_ledger_is_the_brokers_and_readers_take_ours(oracle: PulsarOracle, seed: int) -> None:
    met = check_seed(oracle, seed)
    assert met["rounds"]
