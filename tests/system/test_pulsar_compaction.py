"""Tests of compaction beside a real Pulsar, topic by topic. Its readers read our result.

For more seeds: ``python -m tests.proof --system pulsar``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pulsar.broker import Broker
from tests.support.pulsar.driver import Driver
from tests.support.pulsar.judged import check_seed
from tests.support.pulsar.judged_topics import Sender
from tests.support.pulsar.oracle import Standalone

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def standalone(pulsar: Broker, driver: Driver) -> Iterator[Standalone]:
    sender = Sender(pulsar, driver)
    yield Standalone(pulsar, driver, sender)
    sender.close()


@pytest.mark.parametrize("seed", range(1, 6))
def test_compacted_ledger_equals_the_brokers_and_readers_accept_it(
    standalone: Standalone, seed: int
) -> None:
    met = check_seed(standalone, seed)
    assert met["rounds"]
