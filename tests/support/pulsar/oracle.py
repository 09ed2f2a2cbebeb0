"""A real Pulsar for comparison: one standalone for each compaction setting, started on first use.

Tests that need it are skipped with the reason if it cannot run. ``tests/support/pulsar/broker.py``
says what it needs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.kafka.logs import SCRATCH
from tests.support.pulsar.broker import Broker, Unavailable, pulsar_home
from tests.support.pulsar.driver import Driver
from tests.support.pulsar.judged_topics import Sender

_INTERCEPTORS = ",".join(
    f"org.apache.pulsar.common.intercept.{name}"
    for name in ("AppendBrokerTimestampMetadataInterceptor", "AppendIndexMetadataInterceptor")
)

# The broker settings that change a compacted ledger, by name. Lastwrite gets the same settings.
SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "keyless stay, prefixes shown": {
        "topicCompactionRetainNullKey": "true",
        "brokerEntryMetadataInterceptors": _INTERCEPTORS,
        "exposingBrokerEntryMetadataToClientEnabled": "true",
    },
    "by event time, prefixes hidden": {
        "compactionServiceFactoryClassName": "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory",
        "brokerEntryMetadataInterceptors": _INTERCEPTORS,
    },
}


class Standalone(NamedTuple):
    """A broker and its clients."""

    broker: Broker
    driver: Driver
    sender: Sender


class PulsarOracle:
    """Runs at most one standalone at a time.

    Starting another deletes the topics of the former one.
    """

    def __init__(self) -> None:
        try:
            self._home = pulsar_home()
        except Unavailable as reason:
            pytest.skip(str(reason))
        self._running: tuple[str, Standalone, Path] | None = None

    def standalone(self, settings: str) -> Standalone:
        """The standalone with the settings of this name."""
        if self._running is None or self._running[0] != settings:
            self.close()
            self._running = (settings, *self._start(SETTINGS[settings]))
        return self._running[1]

    def _start(self, settings: Mapping[str, str]) -> tuple[Standalone, Path]:
        folder = Path(tempfile.mkdtemp(prefix="lastwrite-pulsar-", dir=SCRATCH))
        broker = Broker(
            self._home, folder / "data", {"transactionCoordinatorEnabled": "true", **settings}
        )
        try:
            broker.start()
            driver = Driver(broker, transactions=True)
            return Standalone(broker, driver, Sender(broker, driver)), folder
        except BaseException:
            broker.kill()
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def close(self) -> None:
        if self._running is None:
            return
        _, standalone, folder = self._running
        self._running = None
        standalone.sender.close()
        standalone.driver.close()
        standalone.broker.kill()
        shutil.rmtree(folder, ignore_errors=True)
