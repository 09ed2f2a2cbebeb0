"""What several modules of system tests share: one standalone of Pulsar a session, started when
first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pulsar.broker import Broker, Unavailable, pulsar_home
from tests.support.pulsar.driver import Driver


@pytest.fixture(scope="session")
def pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real standalone with transactions; a test may kill it if it starts it again."""
    try:
        made = Broker(
            pulsar_home(),
            tmp_path_factory.mktemp("pulsar") / "data",
            {"transactionCoordinatorEnabled": "true"},
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


@pytest.fixture(scope="session")
def driver(pulsar: Broker) -> Iterator[Driver]:
    """Pulsar's own clients of it."""
    try:
        made = Driver(pulsar, transactions=True)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made
