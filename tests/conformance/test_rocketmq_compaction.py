"""Tests of compaction against RocketMQ's own, seed by seed.

``python -m tests.proof --system rocketmq`` runs more seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.rocketmq.judged import check_seed
from tests.support.rocketmq.oracle import RocketmqOracle
from tests.support.sample import some

SEEDS = int(os.environ.get("LASTWRITE_ROCKETMQ_SEEDS", "40"))

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def oracle() -> Iterator[RocketmqOracle]:
    oracle = RocketmqOracle()
    yield oracle
    oracle.close()


@pytest.mark.parametrize("seed", some(range(1, SEEDS + 1), SEEDS // 2))
def test_files_equal_the_brokers_and_a_broker_serves_them(
    oracle: RocketmqOracle, seed: int
) -> None:
    met = check_seed(oracle, seed)
    assert met["rounds"]
