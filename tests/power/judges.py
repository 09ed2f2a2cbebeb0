"""The systems' own code as judges, each in one JVM that starts at its first use."""

from __future__ import annotations

from typing import Any

from tests.support.kafka.oracle import Oracle
from tests.support.rocketmq.oracle import RocketmqOracle


class Judges:
    """Kafka's loader and RocketMQ's compaction log."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] = {}

    def of(self, system: str) -> Any:
        """The judge of a system. None if the system cannot open files without a broker."""
        makers = {"kafka": Oracle, "rocketmq": RocketmqOracle}
        if system not in self._begun and system in makers:
            self._begun[system] = makers[system]()
        return self._begun.get(system)

    def none(self, system: str) -> None:
        """No judge: only our own code checks the files."""

    def close(self) -> None:
        for judge in self._begun.values():
            judge.close()
