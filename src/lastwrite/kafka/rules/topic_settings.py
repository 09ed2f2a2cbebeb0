"""Precedence of topic settings: override, cluster metadata, ``config``, Kafka's default.

    orders-*:cleanup.policy=compact        an override, from --topic-config
    cleanup.policy=compact                 a default, from --config: for unknown topics

The sources of a setting, the strongest first:

1. the override: the caller's value for this topic;
2. the cluster's metadata. It has the value set for the topic, the dynamic default of this broker,
   the cluster-wide dynamic default (KIP-226), and the properties file of a live broker;
3. ``config``: the caller's defaults;
4. Kafka's default.

``cleanup.policy`` and the retention limits decide which data is deleted, so they are never guessed.
An *unknown* topic is one that is not in the metadata:

- ``cleanup.policy`` in ``config`` applies only to unknown topics. A topic that is in the metadata
  without this setting has the brokers' default: ``log.cleanup.policy``, from the metadata or
  ``config``, or else ``delete``.
- For an unknown topic, broker settings (``log.cleanup.policy``, ``log.retention.hours`` …) have no
  effect, because the setting may be set for the topic.
- Retention by size or age requires that a source sets the policy. Retention by age also requires
  that a source sets the age. A broker's complete properties file (recognised by ``log.dirs``)
  implies Kafka's default for each setting that it omits.

Source: Kafka 4.4.0 ``LogConfig``, ``ServerTopicConfigSynonyms``, ``DynamicBrokerConfig``; KIP-226.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from lastwrite.errors import InvalidConfig
from lastwrite.kafka.rules.settings import (
    KafkaTopicConfig,
    broker_names,
    field_names,
    is_setting,
    is_topic_setting,
    names_of,
    topic_name,
)
from lastwrite.reports.settings import OverriddenSetting, Override, Setting, SettingValue

POLICY, AGE, SIZE = "cleanup_policy", "retention_ms", "retention_bytes"
_LETS_GO = (POLICY, AGE, SIZE)
_BROKERS_FILE = ("log.dirs", "log.dir")


class SettingOrigin(StrEnum):
    """The sources of a setting's value, the strongest first."""

    OVERRIDE = "topic-config"
    TOPIC = "topic (metadata)"
    BROKER = "broker (metadata)"
    BROKERS = "broker default (metadata)"
    FILE = "broker's file (metadata)"
    CONFIG = "config"
    NAMED = "named"  # naming a single topic for compaction implies the policy compact
    DEFAULT = "default"
    UNKNOWN = "unknown"  # no source has the setting, and Kafka's default is not assumed


def decode_overrides(lines: Sequence[str], said_by: str = "--topic-config") -> tuple[Override, ...]:
    """Parse texts of the form ``TOPIC:NAME=VALUE``.

    ``said_by`` is the name of their source in error messages.

    Raises:
        InvalidConfig: a text has another form.
    """
    found = []
    for text in lines:
        pattern, colon, rest = text.partition(":")
        name, equals, value = rest.partition("=")
        if not (colon and equals and pattern.strip() and name.strip()):
            raise InvalidConfig(
                f"{said_by} {text!r} does not have the form TOPIC:NAME=VALUE",
                remedy="write it like orders:cleanup.policy=compact",
            )
        found.append(Override(pattern.strip(), name.strip(), value.strip()))
    return tuple(found)


def decode_overrides_file(text: str) -> tuple[Override, ...]:
    """Parse a file of overrides, one per line. Skips blank lines and lines that start with ``#``.

    Raises:
        InvalidConfig: a line has another form.
    """
    found: list[Override] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found += decode_overrides([line.strip()], f"line {number},")
    return tuple(found)


def check_overrides(overrides: Sequence[Override]) -> None:
    """Check that each override names a topic setting of Kafka and has a valid value.

    Raises:
        InvalidConfig: the setting does not exist, only brokers have it, or the value is invalid.
    """
    for each in overrides:
        if is_setting(each.name) and not is_topic_setting(each.name):
            field_name = next((name for name in field_names() if each.name in names_of(name)), None)
            remedy = (
                f"use the topic's setting {topic_name(field_name)}"
                if field_name
                else "give the broker's setting with --config"
            )
            raise InvalidConfig(
                f"{each.name} is a setting of brokers, so it cannot be set for topic "
                f"{each.pattern}",
                remedy=remedy,
            )
        KafkaTopicConfig.parse(each.name, each.value)


def overrides_of(topic: str, overrides: Sequence[Override]) -> dict[str, object]:
    """The settings that ``overrides`` set for ``topic``.

    An override with the exact topic name has precedence over a pattern, and a later override over
    an earlier override.
    """
    found: dict[str, object] = {}
    for is_exact in (False, True):
        for each in overrides:
            if each.is_exact is is_exact and each.covers(topic):
                found[each.name] = each.value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """The settings in the cluster's metadata for one topic."""

    topic: Mapping[str, object]
    # dynamic defaults of the broker that has the log
    broker: Mapping[str, object] = field(default_factory=dict)
    brokers: Mapping[str, object] = field(default_factory=dict)  # cluster-wide dynamic defaults
    # the broker's properties file, if the settings come from a live broker
    file: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class KafkaTopicSettings:
    """A topic's settings and their sources."""

    config: KafkaTopicConfig
    # all values with their sources by field name; the effective value first, the default last
    candidates: Mapping[str, tuple[SettingValue, ...]]
    # every setting under its topic name, with its value as text and all its sources
    listed: tuple[Setting, ...]
    outvoted: tuple[OverriddenSetting, ...] = ()
    is_policy_known: bool  # whether the topic is in the metadata, or a source has its policy
    is_policy_stated: bool  # whether a source sets or implies the policy
    is_age_stated: bool

    def source_of(self, field_name: str) -> str:
        return self.candidates[field_name][0].source

    @cached_property
    def of_retention(self) -> KafkaTopicConfig:
        """The settings for retention.

        Without a source for the policy, no limit applies. Without a source for the age, only the
        limit by size applies.
        """
        if not self.is_policy_stated:
            return replace(self.config, retention_ms=-1, retention_bytes=-1)
        return self.config if self.is_age_stated else replace(self.config, retention_ms=-1)


def resolve(
    topic: str,
    overrides: Sequence[Override],
    metadata: TopicMetadata | None,
    config: Mapping[str, object],
    is_named: bool = False,
) -> KafkaTopicSettings:
    """Determine the effective settings of ``topic``.

    ``metadata`` are the topic's settings in the cluster's metadata. None means that the metadata
    does not contain the topic. ``config`` has defaults for settings without another source.
    ``is_named`` means that the caller named this single topic for compaction.

    Raises:
        InvalidConfig: a value is invalid.
    """
    said = overrides_of(topic, overrides)
    layers = ((SettingOrigin.OVERRIDE, said), *_layers(metadata), (SettingOrigin.CONFIG, config))
    defaults = KafkaTopicConfig().to_names()
    words: dict[str, tuple[SettingValue, ...]] = {}
    chosen: set[str] = set()
    values: dict[str, object] = {}
    for field_name in field_names():
        counted = [
            (source, name, layer[name])
            for source, layer in layers
            for name in names_of(field_name)
            if name in layer and _counts(field_name, source, name, metadata)
        ]
        if field_name == POLICY and not counted and metadata is None and is_named:
            counted.append((SettingOrigin.NAMED, "cleanup.policy", "compact"))
        if counted:
            _, strongest, value = counted[0]
            chosen.add(field_name)
            values[strongest] = value
        default = "delete" if field_name == POLICY else defaults[topic_name(field_name)]
        default_name = (broker_names(field_name) or (topic_name(field_name),))[0]
        words[field_name] = (
            *(SettingValue(name, _text(value), str(source)) for source, name, value in counted),
            SettingValue(default_name, default, str(SettingOrigin.DEFAULT)),
        )
    is_known = metadata is not None or POLICY in chosen
    if metadata is not None and POLICY not in chosen:
        values["cleanup.policy"] = "delete"
    made = KafkaTopicConfig.from_names(values)
    states_all = metadata is not None and any(name in config for name in _BROKERS_FILE)
    is_policy_stated, is_age_stated = POLICY in chosen or states_all, AGE in chosen or states_all
    unknown: tuple[str, ...] = ()
    if not is_known:
        unknown = (POLICY,)
    elif made.deletes and not is_age_stated:
        unknown = (AGE,)
    return KafkaTopicSettings(
        config=made,
        candidates=words,
        listed=_listed(made, words, unknown),
        outvoted=() if metadata is None else tuple(_outvoted(topic, config, words, made)),
        is_policy_known=is_known,
        is_policy_stated=is_policy_stated,
        is_age_stated=is_age_stated,
    )


def _layers(metadata: TopicMetadata | None) -> Iterator[tuple[SettingOrigin, Mapping[str, object]]]:
    """The layers of settings in the cluster's metadata, the strongest first."""
    if metadata is not None:
        yield SettingOrigin.TOPIC, metadata.topic
        yield SettingOrigin.BROKER, metadata.broker
        yield SettingOrigin.BROKERS, metadata.brokers
        yield SettingOrigin.FILE, metadata.file


def _listed(
    config: KafkaTopicConfig,
    words: Mapping[str, tuple[SettingValue, ...]],
    unknown: Collection[str],
) -> tuple[Setting, ...]:
    """Every setting with its value and sources. The value of fields in ``unknown`` is None."""
    values = config.to_names()
    found = []
    for field_name, said in words.items():
        name = topic_name(field_name)
        if field_name in unknown:
            found.append(Setting(name, None, str(SettingOrigin.UNKNOWN)))
        else:
            found.append(Setting(name, values[name], said[0].source, said))
    return tuple(found)


def _counts(
    field_name: str, source: SettingOrigin, name: str, metadata: TopicMetadata | None
) -> bool:
    """Whether a source's value applies to the topic.

    Always true, except for some values in ``config``: the cleanup policy and retention limits.
    """
    if source is not SettingOrigin.CONFIG or field_name not in _LETS_GO:
        return True
    if metadata is None:
        return is_topic_setting(name)
    return field_name != POLICY or not is_topic_setting(name)


def _outvoted(
    topic: str,
    config: Mapping[str, object],
    words: Mapping[str, tuple[SettingValue, ...]],
    made: KafkaTopicConfig,
) -> Iterator[OverriddenSetting]:
    """The topic settings in ``config`` that the metadata overrides with other values."""
    for field_name in field_names():
        stated = next(
            (name for name in names_of(field_name) if name in config and is_topic_setting(name)),
            None,
        )
        holds = words[field_name][0]
        if stated is None or holds.source == SettingOrigin.OVERRIDE:
            continue
        if KafkaTopicConfig.parse(stated, config[stated]) == getattr(made, field_name):
            continue
        yield OverriddenSetting(
            topic, topic_name(field_name), _text(config[stated]), holds.value, holds.source
        )


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return (
        ",".join(map(str, value))
        if isinstance(value, (list, tuple, set, frozenset))
        else str(value)
    )
