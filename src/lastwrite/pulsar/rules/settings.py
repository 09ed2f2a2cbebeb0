"""The settings that affect compaction of a Pulsar topic, under Pulsar's names.

A ``broker.conf`` or ``client.conf`` can be given unchanged: settings without effect here are
accepted and ignored. Sizes may be written as for ``pulsar-admin`` (``10M``). The two throttles are
Lastwrite's own settings, because Pulsar has none for them; see ``config.cleaner``.

Source: Pulsar 4.2.4 ServiceConfiguration; docs/formats/pulsar-compaction.md, "Event time" and
"Retention and thresholds".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lastwrite.config.cleaner import CLEANER_NAMES
from lastwrite.config.declaration import (
    INT_MAX,
    SettingsTable,
    parse_number,
    setting,
)
from lastwrite.config.stores import STORE_NAMES
from lastwrite.errors import InvalidConfig
from lastwrite.model.policy import LONG_MAX
from lastwrite.pulsar.rules.broker_names import BROKER_NAMES, BROKER_PREFIXES, CLIENT_NAMES

_PUBLISHING = "org.apache.pulsar.compaction.PulsarCompactionServiceFactory"
_EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"
# metadataStoreAuth is Lastwrite's own, for a live cluster: see ``live_settings``.
_WITHOUT_EFFECT = CLEANER_NAMES | STORE_NAMES | BROKER_NAMES | CLIENT_NAMES | {"metadataStoreAuth"}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _service(name: str, value: object) -> str:
    text = str(value).strip()
    if text not in (_PUBLISHING, _EVENT_TIME):
        raise InvalidConfig(
            f"the compaction service {text!r} is not supported",
            remedy=f"set {name} to {_PUBLISHING} or {_EVENT_TIME}",
        )
    return text


def _as_integer(name: str, value: object) -> int:
    return int(parse_number(name, _plain(value), whole=True))


def _plain(value: object) -> object:
    """Convert a size such as ``10M`` to bytes. Any other value is returned unchanged."""
    text = str(value).strip()
    if text[-1:].upper() in _UNITS and text[:-1].strip().isdigit():
        return int(text[:-1]) * _UNITS[text[-1].upper()]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarConfig(SettingsTable):
    """The settings of compaction.

    A broker removes its own metadata from entries before it sends them to consumers, including the
    compactor, unless ``keeps_broker_metadata`` is set. The daemon compacts a topic once its
    compaction backlog exceeds ``compaction_threshold_bytes``; 0 means never. A requested compaction
    ignores the threshold. Retention applies to raw ledgers below the compaction horizon and all
    subscriptions: 0 deletes them at once, -1 never.

    Raises:
        InvalidConfig: a value is out of its range.
    """

    # whether compaction keeps messages without a key
    retain_null_key: bool = setting(False, "topicCompactionRetainNullKey")
    # class that decides which message of a key is the last: by publishing order or by event time
    service_factory: str = setting(
        _PUBLISHING,
        "compactionServiceFactoryClassName",
        choices=(_PUBLISHING, _EVENT_TIME),
        parse=_service,
    )
    # whether the broker's metadata stays in entries that consumers receive
    keeps_broker_metadata: bool = setting(False, "exposingBrokerEntryMetadataToClientEnabled")
    # size of the backlog from which the daemon compacts a topic; 0 means never; suffixes K, M, G
    # and T are allowed
    compaction_threshold_bytes: int = setting(
        0, "compactionThreshold brokerServiceCompactionThresholdInBytes", 0, parse=_as_integer
    )
    # pause between two checks of the backlog
    monitor_interval_ms: int = setting(
        60_000, "brokerServiceCompactionMonitorIntervalInSeconds*1000", 1, parse=_as_integer
    )
    # minutes for which raw ledgers stay although no subscription needs them; -1 means for ever
    retention_time_minutes: int = setting(
        0, "retentionTimeInMinutes defaultRetentionTimeInMinutes", -1, INT_MAX, parse=_as_integer
    )
    # megabytes of raw ledgers that stay although no subscription needs them; -1 means any size
    retention_size_mb: int = setting(
        0, "retentionSizeInMB defaultRetentionSizeInMB", -1, LONG_MAX >> 20, parse=_as_integer
    )
    # live topics: number of bookies of a new ledger; default: as in the topic's ledgers
    ensemble_size: int = setting(
        2, "managedLedgerDefaultEnsembleSize", 1, INT_MAX, parse=_as_integer
    )
    # live topics: number of bookies that store an entry; default: as in the topic's ledgers
    write_quorum: int = setting(2, "managedLedgerDefaultWriteQuorum", 1, INT_MAX, parse=_as_integer)
    # live topics: number of bookies that must confirm an entry; default: as in the topic's ledgers
    ack_quorum: int = setting(2, "managedLedgerDefaultAckQuorum", 1, INT_MAX, parse=_as_integer)

    def __post_init__(self) -> None:
        SettingsTable.__post_init__(self)
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise InvalidConfig(
                f"the ensemble size {self.ensemble_size}, the write quorum "
                f"{self.write_quorum} and the ack quorum {self.ack_quorum} contradict each "
                "other",
                remedy="give an ensemble size that is at least the write quorum, and a write "
                "quorum that is at least the ack quorum",
            )

    @property
    def retention_ms(self) -> int:
        return self.retention_time_minutes * 60_000 if self.retention_time_minutes >= 0 else -1

    @property
    def retention_bytes(self) -> int:
        return self.retention_size_mb << 20 if self.retention_size_mb >= 0 else -1

    @property
    def by_event_time(self) -> bool:
        """Whether a key's newest record is the record with the latest event time (PIP-352).

        Otherwise it is the key's last record in the log.
        """
        return self.service_factory == _EVENT_TIME

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        return name in _WITHOUT_EFFECT or name.startswith(BROKER_PREFIXES)

    @classmethod
    def similar(cls) -> Iterable[str]:
        return [*cls.field_of(), *_WITHOUT_EFFECT]


_RETENTION = frozenset(
    name
    for field in ("retention_time_minutes", "retention_size_mb")
    for name, _ in PulsarConfig.table()[field].names
)


def states_retention(config: Iterable[str]) -> bool:
    """Whether any of these setting names sets a topic's retention."""
    return not _RETENTION.isdisjoint(config)


THRESHOLDS = frozenset(name for name, _ in PulsarConfig.table()["compaction_threshold_bytes"].names)
