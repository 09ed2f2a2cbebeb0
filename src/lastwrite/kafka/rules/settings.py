"""The settings that decide what compaction does, under Kafka's names, defaults and units.

A setting has a topic name (``delete.retention.ms``) and often broker names that give its default
(``log.cleaner.delete.retention.ms``); a topic's value stands before a broker's, and of several broker
names the finer unit stands before the coarser (``log.retention.ms`` before ``log.retention.hours``).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lastwrite.compaction.named_settings import (
    INT_MAX,
    LONG_MAX,
    LONG_MIN,
    Setting,
    check,
    given,
    parse_list,
    parse_number,
    setting,
)
from lastwrite.compaction.properties import decode_properties
from lastwrite.errors import InvalidConfig

__all__ = ["INT_MAX", "LONG_MAX", "LONG_MIN", "KafkaTopicConfig", "decode_properties"]

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_POLICIES = ("compact", "delete")
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_STRATEGIES = ("offset", "timestamp", "header")
_COMPRESSIONS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopicConfig:
    """The topic settings that compaction obeys; dots become underscores.

    One default is not Kafka's: ``cleanup_policy`` is compact where nobody says otherwise, since who
    asks for the compaction of a log without settings means it.

    Raises:
        InvalidConfig: a value is out of its range, or does not go with another.

    Source: Kafka 4.4.0 TopicConfig, LogConfig, ServerTopicConfigSynonyms; cleanup spec, section 16.
    """

    cleanup_policy: tuple[str, ...] = setting(
        ("compact",), "cleanup.policy log.cleanup.policy", choices=_POLICIES
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "min.cleanable.dirty.ratio log.cleaner.min.cleanable.ratio", 0, 1
    )
    delete_retention_ms: int = setting(
        _DAY, "delete.retention.ms log.cleaner.delete.retention.ms", 0
    )
    min_compaction_lag_ms: int = setting(
        0, "min.compaction.lag.ms log.cleaner.min.compaction.lag.ms", 0
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX, "max.compaction.lag.ms log.cleaner.max.compaction.lag.ms", 1
    )
    segment_bytes: int = (
        setting(  # the public minimum is 1 MiB since 4.0; older topics may have less
            2**30, "internal.segment.bytes segment.bytes log.segment.bytes", 14, INT_MAX
        )
    )
    segment_ms: int = setting(7 * _DAY, f"segment.ms log.roll.ms log.roll.hours*{_HOUR}", 1)
    segment_jitter_ms: int = setting(
        0, f"segment.jitter.ms log.roll.jitter.ms log.roll.jitter.hours*{_HOUR}", 0
    )
    segment_index_bytes: int = setting(
        10 * 2**20, "segment.index.bytes log.index.size.max.bytes", 4, INT_MAX
    )
    index_interval_bytes: int = setting(
        4096, "index.interval.bytes log.index.interval.bytes", 0, INT_MAX
    )
    retention_ms: int = setting(  # -1: for ever
        7 * _DAY,
        f"retention.ms log.retention.ms log.retention.minutes*{_MINUTE} log.retention.hours*{_HOUR}",
        -1,
    )
    retention_bytes: int = setting(-1, "retention.bytes log.retention.bytes")  # -1: any size
    file_delete_delay_ms: int = setting(
        60 * _SECOND, "file.delete.delay.ms log.segment.delete.delay.ms", 0
    )
    max_message_bytes: int = setting(2**20 + 12, "max.message.bytes message.max.bytes", 0, INT_MAX)
    max_decompressed_message_bytes: int = setting(
        INT_MAX - 8, "max.decompressed.message.bytes", 0, INT_MAX
    )  # of one record, not of its batch
    message_timestamp_type: str = setting(
        "CreateTime", "message.timestamp.type log.message.timestamp.type", choices=_TIMESTAMP_TYPES
    )
    compression_type: str = setting("producer", "compression.type", choices=_COMPRESSIONS)
    compaction_strategy: str = setting(  # KIP-280: accepted, never shipped
        "offset", "compaction.strategy log.cleaner.compaction.strategy", choices=_STRATEGIES
    )
    compaction_strategy_header: str = setting(
        "", "compaction.strategy.header log.cleaner.compaction.strategy.header"
    )
    producer_id_expiration_ms: int = setting(_DAY, "producer.id.expiration.ms", 1, INT_MAX)

    def __post_init__(self) -> None:
        for name, known in _SETTINGS.items():
            check(known, getattr(self, name), _topic_name(name))
        if self.compaction_strategy == "header" and not self.compaction_strategy_header:
            raise InvalidConfig(
                "compaction.strategy is header, and no header is named",
                remedy="set compaction.strategy.header",
            )
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms is {self.min_compaction_lag_ms}, "
                f"more than max.compaction.lag.ms, {self.max_compaction_lag_ms}",
                remedy="lower the first or raise the second",
            )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @classmethod
    def from_names(cls, names: Mapping[str, object]) -> KafkaTopicConfig:
        """The config that upstream's ``names`` and values (text, or already of the right type) make.

        Settings of Kafka that do not concern a cleaner are accepted and have no effect.

        Raises:
            InvalidConfig: no setting has the name, or the value is of another type or out of range.
        """
        for name in names:
            if not is_setting(name):
                raise _unknown(name)
        values: dict[str, Any] = {}
        for field_name, name, value, factor in given(_SETTINGS, names):
            values[field_name] = _parse(field_name, name, value, factor)
        return cls(**values)

    def to_names(self) -> dict[str, str]:
        """Every setting by its topic name, as text that ``from_names`` takes."""
        out = {}
        for field_name in _SETTINGS:
            value = getattr(self, field_name)
            out[_topic_name(field_name)] = (
                ",".join(value) if isinstance(value, tuple) else str(value)
            )
        return out


def is_setting(name: str) -> bool:
    """Whether ``from_names`` takes ``name``."""
    return name in _FIELD_OF or _is_without_effect(name)


def _topic_name(field_name: str) -> str:
    return field_name.replace("_", ".")


_SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"] for f in fields(KafkaTopicConfig)}
_FIELD_OF = {
    name: field_name for field_name, setting in _SETTINGS.items() for name, _ in setting.names
}
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(KafkaTopicConfig)}

# Settings of Kafka that do not change what a round does; ``cleaner_settings`` reads some of them.
_OF_TOPICS = """
compression.gzip.level compression.lz4.level compression.zstd.level flush.messages flush.ms
follower.replication.throttled.replicas leader.replication.throttled.replicas local.retention.bytes
local.retention.ms message.downconversion.enable message.format.version message.timestamp.after.max.ms
message.timestamp.before.max.ms message.timestamp.difference.max.ms min.insync.replicas preallocate
remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable unclean.leader.election.enable
"""
_OF_BROKERS = """
advertised.listeners authorizer.class.name auto.create.topics.enable background.threads broker.id broker.rack
default.replication.factor delete.topic.enable inter.broker.listener.name inter.broker.protocol.version
listeners log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.enable
log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
log.cleaner.threads node.id num.io.threads num.network.threads num.partitions
num.recovery.threads.per.data.dir num.replica.fetchers process.roles
producer.id.expiration.check.interval.ms super.users
"""
_WITHOUT_EFFECT = frozenset(_OF_TOPICS.split() + _OF_BROKERS.split())
_WITHOUT_EFFECT_PREFIXES = (
    "log.dir",
    "log.flush.",
    "log.message.",
    "log.preallocate",
    "log.retention.check.",
    "log.initial.",
    "log.local.",
    "controller.",
    "group.",
    "listener.",
    "metadata.",
    "metric",
    "offsets.",
    "quota.",
    "queued.",
    "remote.log.",
    "replica.",
    "sasl.",
    "security.",
    "share.",
    "socket.",
    "ssl.",
    "transaction.",
    "zookeeper.",
    "confluent.",
    "initial.broker.",
)


def _is_without_effect(name: str) -> bool:
    return name in _WITHOUT_EFFECT or name.startswith(_WITHOUT_EFFECT_PREFIXES)


def _unknown(name: str) -> InvalidConfig:
    known = [*_FIELD_OF, *_WITHOUT_EFFECT]
    nearest = difflib.get_close_matches(name.replace("_", ".").lower(), known, 1, 0.6)
    remedy = (
        f"did you mean {nearest[0]}?" if nearest else "see Kafka's topic settings for the names"
    )
    return InvalidConfig(f"no setting is named {name!r}", remedy=remedy)


def _parse(field_name: str, name: str, value: object, factor: int) -> Any:
    """``value`` as the type of its field, checked against its range."""
    known = _SETTINGS[field_name]
    default = _DEFAULTS[field_name]
    parsed: Any
    if isinstance(default, tuple):
        parsed = parse_list(name, value)
    elif field_name == "compaction_strategy":
        parsed = str(value).strip().lower()
    elif isinstance(default, str):
        parsed = str(value).strip()
    else:
        parsed = parse_number(name, value, whole=isinstance(default, int))
        if factor > 1 and parsed > 0:
            parsed = min(parsed * factor, LONG_MAX)
        if field_name == "retention_ms":
            parsed = max(parsed, -1)  # every negative time means for ever
    check(known, parsed, name)
    return parsed
