"""Tests that Kafka's loader opens what a killed round left, and the next run's result."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.rounds import prepare
from tests.crash.trial import KILLS_A_LOG, drawn, run_trial
from tests.support.kafka.logs import SCRATCH
from tests.support.kafka.oracle import Oracle
from tests.support.sample import some


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    judge = Oracle()
    yield judge
    judge.close()


@pytest.mark.parametrize("log", some(range(80, 88), 3))
def test_kafka_loads_the_log_of_a_killed_round(oracle: Oracle, log: int) -> None:
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=SCRATCH) as folder:
        round_ = prepare(log, Path(folder))
        for seed in range(log * KILLS_A_LOG, (log + 1) * KILLS_A_LOG, 2):
            run_trial(round_, Path(folder), *drawn(round_, seed), oracle)
