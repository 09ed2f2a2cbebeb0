"""The settings that decide what compaction of a Pulsar topic does, under Pulsar's names.

A ``broker.conf`` can be given as it is: what changes nothing here is accepted and passed over. Sizes may be written as
``pulsar-admin`` takes them (``10M``). Ours are the two throttles, for which Pulsar has no setting; see
``cleaner_settings``.

Source: Pulsar 4.2.4 ServiceConfiguration; spec/pulsar.md sections 12, 17, 18, 20.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lastwrite.compaction.named_settings import (
    INT_MAX,
    LONG_MAX,
    Setting,
    check,
    given,
    parse_flag,
    parse_number,
    setting,
)
from lastwrite.compaction.pulsar_broker_names import BROKER_NAMES, BROKER_PREFIXES
from lastwrite.errors import InvalidConfig

READ_RATE, WRITE_RATE = (
    "compactionReadMaxBytesPerSecond",
    "compactionWriteMaxBytesPerSecond",
)  # ours

_PUBLISHING = "org.apache.pulsar.compaction.PulsarCompactionServiceFactory"
_EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarConfig:
    """What compaction obeys.

    A broker takes its own metadata off an entry before a consumer, the compactor among them, gets it, unless
    ``keeps_broker_metadata``.
    ``compaction_threshold_bytes`` is what the daemon waits for: more backlog of compaction than that; 0: it never
    compacts by itself. A round that somebody asks for does not wait. Retention is of raw ledgers that compaction and
    all subscriptions have passed; 0: they may go at once, -1: never.

    Raises:
        InvalidConfig: a value is out of its range.
    """

    retain_null_key: bool = setting(False, "topicCompactionRetainNullKey")
    service_factory: str = setting(
        _PUBLISHING, "compactionServiceFactoryClassName", choices=(_PUBLISHING, _EVENT_TIME)
    )
    keeps_broker_metadata: bool = setting(False, "exposingBrokerEntryMetadataToClientEnabled")
    compaction_threshold_bytes: int = setting(
        0, "compactionThreshold brokerServiceCompactionThresholdInBytes", 0
    )
    monitor_interval_ms: int = setting(
        60_000, "brokerServiceCompactionMonitorIntervalInSeconds*1000", 1
    )
    retention_time_minutes: int = setting(
        0, "retentionTimeInMinutes defaultRetentionTimeInMinutes", -1, INT_MAX
    )
    retention_size_mb: int = setting(
        0, "retentionSizeInMB defaultRetentionSizeInMB", -1, LONG_MAX >> 20
    )
    ensemble_size: int = setting(2, "managedLedgerDefaultEnsembleSize", 1, INT_MAX)
    write_quorum: int = setting(2, "managedLedgerDefaultWriteQuorum", 1, INT_MAX)
    ack_quorum: int = setting(2, "managedLedgerDefaultAckQuorum", 1, INT_MAX)

    def __post_init__(self) -> None:
        for name, known in _SETTINGS.items():
            check(known, getattr(self, name), known.names[0][0])
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise InvalidConfig(
                f"an ensemble of {self.ensemble_size}, a write quorum of {self.write_quorum} and an ack quorum of "
                f"{self.ack_quorum} do not go together",
                remedy="each may be at most the one before",
            )

    @property
    def retention_ms(self) -> int:
        return self.retention_time_minutes * 60_000 if self.retention_time_minutes >= 0 else -1

    @property
    def retention_bytes(self) -> int:
        return self.retention_size_mb << 20 if self.retention_size_mb >= 0 else -1

    @property
    def by_event_time(self) -> bool:
        """The newest of a key is the one with the latest event time, not the last in the log (PIP-352)."""
        return self.service_factory == _EVENT_TIME

    @classmethod
    def from_names(cls, names: Mapping[str, object]) -> PulsarConfig:
        """The config that ``names`` and values (text, or already of the right type) make.

        Raises:
            InvalidConfig: no setting has the name, or the value is of another type or out of range.
        """
        for name in names:
            if name not in _FIELD_OF and not _has_no_effect(name):
                raise _unknown(name)
        return cls(
            **{
                field: _parse(field, name, value, unit)
                for field, name, value, unit in given(_SETTINGS, names)
            }
        )


_SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"] for f in fields(PulsarConfig)}
THRESHOLDS = frozenset(name for name, _ in _SETTINGS["compaction_threshold_bytes"].names)
_FIELD_OF = {name: field_name for field_name, known in _SETTINGS.items() for name, _ in known.names}
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(PulsarConfig)}
_ELSEWHERE = frozenset(
    (READ_RATE, WRITE_RATE, "log.cleaner.io.max.bytes.per.second")
)  # how fast, not what


def _has_no_effect(name: str) -> bool:
    return name in BROKER_NAMES or name in _ELSEWHERE or name.startswith(BROKER_PREFIXES)


def _unknown(name: str) -> InvalidConfig:
    nearest = difflib.get_close_matches(name, [*_FIELD_OF, *_ELSEWHERE, *BROKER_NAMES], 1, 0.6)
    remedy = (
        f"did you mean {nearest[0]}?"
        if nearest
        else f"those that have an effect: {', '.join(_FIELD_OF)}"
    )
    return InvalidConfig(f"no setting is named {name!r}", remedy=remedy)


def _parse(field_name: str, name: str, value: object, unit: int) -> Any:
    default = _DEFAULTS[field_name]
    if isinstance(default, bool):
        return parse_flag(name, value)
    if isinstance(default, str):
        text = str(value).strip()
        if text not in _SETTINGS[field_name].choices:
            raise InvalidConfig(
                f"nobody but its broker knows what {text!r} keeps",
                remedy=f"{name}: {_PUBLISHING} or {_EVENT_TIME}",
            )
        return text
    number = parse_number(name, _plain(value), whole=True)
    return int(number) * unit


def _plain(value: object) -> object:
    """``10M`` as a number of bytes; anything else as it is."""
    text = str(value).strip()
    if text[-1:].upper() in _UNITS and text[:-1].strip().isdigit():
        return int(text[:-1]) * _UNITS[text[-1].upper()]
    return value
