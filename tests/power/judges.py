"""The systems' own code, each in one JVM, begun when first asked for."""

from __future__ import annotations

from typing import Any

from tests.support.kafka.oracle import Oracle
from tests.support.rocketmq.oracle import RocketmqOracle


class Judges:
    """Kafka's loader and RocketMQ's compaction log."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] = {}

    def of(self, system: str) -> Any:
        """The judge for a system; None: it has none that opens files without a broker."""
        makers = {"kafka": Oracle, "rocketmq": RocketmqOracle}
        if system not in self._begun and system in makers:
            self._begun[system] = makers[system]()
        return self._begun.get(system)

    def none(self, system: str) -> None:
        """Nobody but us."""

    def close(self) -> None:
        for judge in self._begun.values():
            judge.close()
