"""The settings that control compaction, with Kafka's names, defaults and units.

A setting has a topic name (``delete.retention.ms``) and often broker names for its default
(``log.cleaner.delete.retention.ms``). A topic's value has precedence over a broker's. Among several
broker names the finer unit has precedence (``log.retention.ms`` before ``log.retention.hours``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from lastwrite.config.declaration import (
    INT_MAX,
    SettingsTable,
    lower_text,
    parse_list,
    parse_number,
    setting,
)
from lastwrite.config.stores import STORE_NAMES
from lastwrite.errors import InvalidConfig
from lastwrite.model.policy import LONG_MAX

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_POLICIES = ("compact", "delete")
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_STRATEGIES = ("offset", "timestamp", "header")
_COMPRESSIONS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")


def _time_or_for_ever(name: str, value: object) -> int:
    """Parse a duration. Every negative value means for ever."""
    return max(int(parse_number(name, value, whole=True)), -1)


def _groups(name: str, value: object) -> tuple[str, ...]:
    """Parse a comma-separated list of group names. Names are case-sensitive."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise InvalidConfig(f"{name} must be a list separated by commas, and is {value!r}")
    return tuple(dict.fromkeys(filter(None, (str(item).strip() for item in items))))


def _policies(name: str, value: object) -> tuple[str, ...]:
    """Parse ``compact,delete``. Also accepts ``delete + compact``, as in some documents."""
    return parse_list(name, value.replace("+", ",") if isinstance(value, str) else value)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopicConfig(SettingsTable):
    """The topic settings for compaction. In field names, dots become underscores.

    One default differs from Kafka's: ``cleanup_policy`` is compact, because this class describes a
    compaction. ``topic_settings`` does not use this default to decide whether to compact a topic.

    Raises:
        InvalidConfig: a value is out of range, or conflicts with another.

    Source: Kafka 4.4.0 TopicConfig, LogConfig, ServerTopicConfigSynonyms;
    docs/formats/kafka-cleaning.md.
    """

    # compact, delete, or both; a topic without a known policy is skipped
    cleanup_policy: tuple[str, ...] = setting(
        ("compact",), "cleanup.policy log.cleanup.policy", choices=_POLICIES, parse=_policies
    )
    # a log is cleaned if the dirty share of its bytes is above this ratio
    min_cleanable_dirty_ratio: float = setting(
        0.5, "min.cleanable.dirty.ratio log.cleaner.min.cleanable.ratio", 0, 1
    )
    # time from the compaction that sets a tombstone's delete horizon to the tombstone's removal;
    # also for transaction markers
    delete_retention_ms: int = setting(
        _DAY, "delete.retention.ms log.cleaner.delete.retention.ms", 0
    )
    # minimum age of a segment's youngest record; younger segments are not cleaned
    min_compaction_lag_ms: int = setting(
        0, "min.compaction.lag.ms log.cleaner.min.compaction.lag.ms", 0
    )
    # maximum age of a dirty record; a log with an older one is cleaned at any dirty ratio
    max_compaction_lag_ms: int = setting(
        LONG_MAX, "max.compaction.lag.ms log.cleaner.max.compaction.lag.ms", 1
    )
    # largest size of a segment, also of a merged one; the public minimum is 1 MiB
    # since 4.0, but older topics may have less
    segment_bytes: int = setting(
        2**30, "internal.segment.bytes segment.bytes log.segment.bytes", 14, INT_MAX
    )
    # age from which a broker rolls the active segment
    segment_ms: int = setting(7 * _DAY, f"segment.ms log.roll.ms log.roll.hours*{_HOUR}", 1)
    # largest random time by which a broker rolls the active segment earlier
    segment_jitter_ms: int = setting(
        0, f"segment.jitter.ms log.roll.jitter.ms log.roll.jitter.hours*{_HOUR}", 0
    )
    # largest size of an index
    segment_index_bytes: int = setting(
        10 * 2**20, "segment.index.bytes log.index.size.max.bytes", 4, INT_MAX
    )
    # bytes of the log between two index entries
    index_interval_bytes: int = setting(
        4096, "index.interval.bytes log.index.interval.bytes", 0, INT_MAX
    )
    # age from which closed segments are deleted, if the policy includes delete; -1 means never
    retention_ms: int = setting(
        7 * _DAY,
        "retention.ms log.retention.ms "
        f"log.retention.minutes*{_MINUTE} log.retention.hours*{_HOUR}",
        -1,
        parse=_time_or_for_ever,
    )
    # size of a log above which its oldest segments are deleted, if the policy includes delete; -1
    # means no limit
    retention_bytes: int = setting(-1, "retention.bytes log.retention.bytes")
    # no effect on compaction: time that a broker keeps replaced files
    file_delete_delay_ms: int = setting(
        60 * _SECOND, "file.delete.delay.ms log.segment.delete.delay.ms", 0
    )
    # no effect on compaction: largest batch that a broker accepts
    max_message_bytes: int = setting(2**20 + 12, "max.message.bytes message.max.bytes", 0, INT_MAX)
    # no effect on compaction: largest decompressed size of one record, not of its batch
    max_decompressed_message_bytes: int = setting(
        INT_MAX - 8, "max.decompressed.message.bytes", 0, INT_MAX
    )
    # no effect on compaction: whether records have the producer's time or the time of their append
    message_timestamp_type: str = setting(
        "CreateTime", "message.timestamp.type log.message.timestamp.type", choices=_TIMESTAMP_TYPES
    )
    # no effect on compaction, which keeps the codec of each batch
    compression_type: str = setting("producer", "compression.type", choices=_COMPRESSIONS)
    # which record of a key is the last: the one with the greatest offset, timestamp or header
    # value (KIP-280, which no broker implements)
    compaction_strategy: str = setting(
        "offset",
        "compaction.strategy log.cleaner.compaction.strategy",
        choices=_STRATEGIES,
        parse=lower_text,
    )
    # name of the header, for the strategy header
    compaction_strategy_header: str = setting(
        "", "compaction.strategy.header log.cleaner.compaction.strategy.header"
    )
    # time after which a producer without new records counts as expired
    producer_id_expiration_ms: int = setting(_DAY, "producer.id.expiration.ms", 1, INT_MAX)
    # Lastwrite's own: share of records that a compaction may drop because they have no key
    max_keyless_ratio: float = setting(0.0, "max.keyless.ratio", 0, 1)
    # Lastwrite's own: consumer groups that must have read a tombstone before it is removed
    hold_tombstones_for_groups: tuple[str, ...] = setting(
        (), "hold.tombstones.for.groups", parse=_groups
    )
    # Lastwrite's own: time after the delete horizon from which a tombstone is removed in any
    # case; -1 means never
    hold_tombstones_max_ms: int = setting(
        7 * _DAY, "hold.tombstones.max.ms", -1, parse=_time_or_for_ever
    )
    # Lastwrite's own: path with the positions of the groups, if they are not beside the log
    hold_tombstones_positions: str = setting("", "hold.tombstones.positions")

    def __post_init__(self) -> None:
        SettingsTable.__post_init__(self)
        if self.compaction_strategy == "header" and not self.compaction_strategy_header:
            raise InvalidConfig(
                "compaction.strategy is header, but compaction.strategy.header is not set",
                remedy="set compaction.strategy.header to the name of the record header with the "
                "version",
            )
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) exceeds "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})",
                remedy="lower min.compaction.lag.ms or raise max.compaction.lag.ms",
            )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether retention deletes segments by time and size."""
        return "delete" in self.cleanup_policy

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        is_known = name in _WITHOUT_EFFECT or name in STORE_NAMES
        return is_known or name.startswith(_WITHOUT_EFFECT_PREFIXES)

    @classmethod
    def unknown(cls, name: str) -> InvalidConfig:
        known = [*cls.field_of(), *STORE_NAMES, *_WITHOUT_EFFECT]
        nearest = get_close_matches(name.replace("_", ".").lower(), known, 1, 0.6)
        remedy = (
            f"did you mean {nearest[0]}?"
            if nearest
            else "see Kafka's documentation of topic settings for the names"
        )
        return InvalidConfig(f"there is no setting {name!r}", remedy=remedy)

    def to_names(self) -> dict[str, str]:
        """All settings as a dictionary from topic setting name to text."""
        out = {}
        for field_name in self.table():
            value = getattr(self, field_name)
            out[topic_name(field_name)] = (
                ",".join(value) if isinstance(value, tuple) else str(value)
            )
        return out


def is_setting(name: str) -> bool:
    """Whether ``name`` is a topic or broker setting that Lastwrite accepts."""
    return name in KafkaTopicConfig.field_of() or KafkaTopicConfig.has_no_effect(name)


def is_topic_setting(name: str) -> bool:
    """Whether ``name`` can be set for a topic, and not only for a broker."""
    field_name = KafkaTopicConfig.field_of().get(name)
    if field_name is None:
        return name in _OF_TOPICS.split()
    return name == topic_name(field_name) or name == "internal.segment.bytes"


def topic_name(field_name: str) -> str:
    """The topic setting that a field of ``KafkaTopicConfig`` stores, such as ``segment.bytes``."""
    return field_name.replace("_", ".")


def field_names() -> Sequence[str]:
    """The names of the fields of ``KafkaTopicConfig``."""
    return _FIELDS


def names_of(field_name: str) -> Sequence[str]:
    """All topic and broker names of the setting that a field stores, the strongest first."""
    return _NAMES[field_name]


def broker_names(field_name: str) -> Sequence[str]:
    """The names of the broker settings that are the default of a field's topic setting."""
    return [name for name in _NAMES[field_name] if not is_topic_setting(name)]


_NAMES = {
    field_name: tuple(name for name, _ in known.names)
    for field_name, known in KafkaTopicConfig.table().items()
}
_FIELDS = tuple(_NAMES)

# Settings of Kafka 4.4.0's KafkaConfig and of older brokers that do not affect the result of a
# compaction. ``config.cleaner`` reads some of them.
_OF_TOPICS = """
compression.gzip.level compression.lz4.level compression.zstd.level flush.messages flush.ms
follower.replication.throttled.replicas leader.replication.throttled.replicas local.retention.bytes
local.retention.ms message.downconversion.enable message.format.version
message.timestamp.after.max.ms message.timestamp.before.max.ms message.timestamp.difference.max.ms
min.insync.replicas preallocate remote.log.copy.disable remote.log.delete.on.disable
remote.storage.enable unclean.leader.election.enable
"""
_OF_BROKERS = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
advertised.host.name advertised.listeners advertised.port alter.config.policy.class.name
alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
authorizer.class.name auto.create.topics.enable auto.leader.rebalance.enable background.threads
broker.heartbeat.interval.ms broker.id broker.id.generation.enable broker.rack
broker.session.timeout.ms client.quota.callback.class config.providers
connection.failed.authentication.delay.ms connections.max.idle.ms connections.max.reauth.ms
control.plane.listener.name controlled.shutdown.enable cordoned.log.dirs
create.topic.policy.class.name default.replication.factor delegation.token.expiry.check.interval.ms
delegation.token.expiry.time.ms delegation.token.max.lifetime.ms delegation.token.secret.key
delete.records.purgatory.purge.interval.requests delete.topic.enable early.start.listeners
errors.deadletterqueue.auto.create.topics.enable errors.deadletterqueue.topic.name.prefix
fetch.max.bytes fetch.purgatory.purge.interval.requests follower.fetch.last.tiered.offset.enable
host.name inter.broker.listener.name inter.broker.protocol.version
internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
internal.metadata.max.batch.size.in.bytes kafka.metrics.polling.interval.secs
kafka.metrics.reporters leader.imbalance.check.interval.seconds listeners log.cleaner.backoff.ms
log.cleaner.dedupe.buffer.size log.cleaner.enable log.cleaner.io.buffer.load.factor
log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second log.cleaner.threads
log.remote.copy.lag.bytes log.remote.copy.lag.ms max.connection.creation.rate max.connections
max.connections.per.ip max.connections.per.ip.overrides max.incremental.fetch.session.cache.slots
max.request.partition.size.limit node.id num.io.threads num.network.threads num.partitions
num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads num.replica.fetchers
offset.metadata.max.bytes port principal.builder.class process.roles
producer.id.expiration.check.interval.ms producer.purgatory.purge.interval.requests
remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms replication.quota.window.num
replication.quota.window.size.seconds request.timeout.ms reserved.broker.max.id
server.max.startup.time.ms super.users telemetry.max.bytes transactional.id.expiration.ms
unclean.leader.election.interval.ms unstable.api.versions.enable unstable.feature.versions.enable
"""
_WITHOUT_EFFECT = frozenset(_OF_TOPICS.split() + _OF_BROKERS.split())
_WITHOUT_EFFECT_PREFIXES = tuple(
    """
log.dir log.flush. log.message. log.preallocate log.retention.check. log.initial. log.local.
config.providers. controller. group. listener. metadata. metric offsets. password.encoder. quota.
queued. remote.log. replica. sasl. security. share. socket. ssl. transaction. zookeeper. confluent.
initial.broker.
    """.split()
)
