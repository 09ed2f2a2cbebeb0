"""The settings of the cleaner itself: the number of parallel rounds, rates, intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from lastwrite.config.declaration import SettingsTable, setting
from lastwrite.errors import InvalidConfig
from lastwrite.model.work import Rates


def _rate(name: str, value: object) -> float:
    """Parse a rate in bytes per second. Kafka's default, the largest double, means no limit."""
    try:
        rate = float(str(value).strip())
    except ValueError:
        rate = math.nan
    if not rate >= 1:
        raise InvalidConfig(f"{name} must be a number of at least 1, not {value!r}")
    return rate if rate < 2.0**63 else math.inf


@dataclass(frozen=True, kw_only=True)
class CleanerConfig(SettingsTable):
    """The daemon's settings: numbers of threads, rates and intervals.

    They are Kafka's ``log.cleaner.*`` and ``log.retention.check.interval.ms``, Pulsar's monitor
    interval, and two rates of Lastwrite.

    Source: Kafka 4.4.0 CleanerConfig, ServerLogConfigs. Kafka's buffer sizes and load factor have
    no effect, because ``--memory`` determines all buffers.
    """

    # whether the daemon runs rounds
    enable: bool = setting(True, "log.cleaner.enable")
    # number of rounds that run at once
    threads: int = setting(1, "log.cleaner.threads", 1)
    # pause if there was nothing to clean
    backoff_ms: int = setting(
        15_000, "log.cleaner.backoff.ms brokerServiceCompactionMonitorIntervalInSeconds*1000", 0
    )
    # bytes per second that all rounds together read and write; default: no limit
    rate: float = setting(math.inf, "log.cleaner.io.max.bytes.per.second", 1, math.inf, parse=_rate)
    # bytes per second that all rounds together read; default: no limit
    reading_rate: float = setting(
        math.inf, "compactionReadMaxBytesPerSecond", 1, math.inf, parse=_rate
    )
    # bytes per second that all rounds together write; default: no limit
    writing_rate: float = setting(
        math.inf, "compactionWriteMaxBytesPerSecond", 1, math.inf, parse=_rate
    )
    # pause between two retention checks of partitions that are not compacted
    retention_check_interval_ms: int = setting(300_000, "log.retention.check.interval.ms", 1)

    @property
    def rates(self) -> Rates:
        return Rates(self.rate, self.reading_rate, self.writing_rate)

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        """Always True: any name outside this table is a setting of a topic or broker."""
        return True

    @classmethod
    def from_names(cls, names: Mapping[str, object], look_ms: int | None = None) -> Self:
        """Create the table from names and values; see ``SettingsTable.from_names``.

        ``look_ms`` replaces the default of ``backoff_ms``.
        """
        given = (
            {}
            if look_ms is None
            else {"brokerServiceCompactionMonitorIntervalInSeconds": look_ms // 1000}
        )
        return super().from_names({**given, **names})


# the cleaner's settings, which are allowed together with the settings of any system
CLEANER_NAMES = frozenset(CleanerConfig.field_of())

_IN_PLACE_OF = dict.fromkeys(
    (
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.buffer.load.factor",
    ),
    "--memory, which determines the size of every buffer",
)


def replaced_settings(names: Mapping[str, object]) -> str | None:
    """A message about settings without effect and their replacements. None if there are none."""
    said = [
        f"{name} has no effect: use {_IN_PLACE_OF[name]}" for name in names if name in _IN_PLACE_OF
    ]
    return "; ".join(said) or None
