"""The settings of the cleaner itself: how many rounds at once, how fast, how often; Kafka's broker settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lastwrite.errors import InvalidConfig
from lastwrite.model.work import Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """What ``log.cleaner.*`` and ``log.retention.check.interval.ms`` say to a cleaner, Pulsar's monitor interval, and
    two rates of ours.

    Source: Kafka 4.4.0 CleanerConfig, ServerLogConfigs; cleanup spec, section 16. Buffers and the load factor are not
    ours: ``--memory`` sizes everything.
    """

    enable: bool = True
    threads: int = 1
    backoff_ms: int = 15_000  # the sleep when there was nothing to clean
    rates: Rates = Rates()
    retention_check_interval_ms: int = 300_000  # of partitions that are not compacted

    @classmethod
    def from_names(cls, names: Mapping[str, object], look_ms: int = 15_000) -> CleanerConfig:
        """The config that upstream's ``names`` make; names of other settings are passed over.

        ``look_ms``: the sleep where nobody says how long.

        Raises:
            InvalidConfig: a value is of another type or out of its range.
        """
        look_s = int(
            _whole(names, "brokerServiceCompactionMonitorIntervalInSeconds", look_ms // 1000, 1)
        )
        return cls(
            enable=_flag(names, "log.cleaner.enable", True),
            threads=int(_whole(names, "log.cleaner.threads", 1, 1)),
            backoff_ms=int(_whole(names, "log.cleaner.backoff.ms", 1000 * look_s, 0)),
            rates=Rates(
                _rate(names, "log.cleaner.io.max.bytes.per.second"),
                _rate(names, "compactionReadMaxBytesPerSecond"),
                _rate(names, "compactionWriteMaxBytesPerSecond"),
            ),
            retention_check_interval_ms=int(
                _whole(names, "log.retention.check.interval.ms", 300_000, 1)
            ),
        )


def _rate(names: Mapping[str, object], name: str) -> float:
    """Bytes a second; Kafka's default, the largest double, means no limit."""
    rate = _number(names, name, math.inf, 1.0)
    return rate if rate < 2.0**63 else math.inf


def _number(names: Mapping[str, object], name: str, default: float, least: float) -> float:
    if name not in names:
        return default
    try:
        value = float(str(names[name]).strip())
    except ValueError:
        value = math.nan
    if not value >= least:
        raise InvalidConfig(f"{name} is a number of at least {least:g}, not {names[name]!r}")
    return value


def _whole(names: Mapping[str, object], name: str, default: int, least: int) -> float:
    value = _number(names, name, default, least)
    if value > 2.0**63 or value != math.floor(value):
        raise InvalidConfig(f"{name} is a whole number, not {names[name]!r}")
    return value


def _flag(names: Mapping[str, object], name: str, default: bool) -> bool:
    text = str(names.get(name, default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidConfig(f"{name} is true or false, not {names[name]!r}")
    return text == "true"
