"""Settings as a broker describes them: values, sources and synonyms.

If a setting is not set for a topic or group, the broker's value applies. A broker's value comes
from the first layer that has a value: dynamic settings of this broker, dynamic defaults of all
brokers, the broker's properties file, Kafka's default.

Source: Kafka 4.4 ``ConfigHelper``, ``DynamicBrokerConfig.brokerConfigSynonyms``,
``AbstractKafkaConfig``; KIP-226, KIP-1142.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import dropwhile
from typing import NamedTuple

from lastwrite.kafka.rules.setting_tables import (
    BROKER_SETTINGS,
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    Definition,
    SettingType,
)

_MINUTE, _HOUR = 60_000, 3_600_000
# Settings that have a name for each of several units, the strongest name first. A value times the
# name's factor is in the first name's unit.
_UNITS = (
    (("log.roll.ms", 1), ("log.roll.hours", _HOUR)),
    (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR)),
    (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE),
        ("log.retention.hours", _HOUR),
    ),
)
_FLUSH = (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1))
_BY_UNIT = {name: names for names in _UNITS for name, _ in names} | {_FLUSH[0][0]: _FLUSH}
_AGE = "log.retention.ms"
_OF_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)")
_OF_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
_UNKNOWN = Definition(SettingType.UNKNOWN, is_dynamic=False)
# settings that a broker lists only for topics that set them
_INTERNAL = {"internal.segment.bytes": Definition(SettingType.INT)}


class ConfigSource(IntEnum):
    """The source of a value, as numbered in DescribeConfigs."""

    TOPIC = 1
    BROKER = 2
    BROKERS = 3
    FILE = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(NamedTuple):
    """A possible source of a setting's value: a setting name and a layer.

    ``value`` is the value there. None if it is secret.
    """

    name: str
    value: str | None
    source: ConfigSource


class DescribedSetting(NamedTuple):
    """One setting as a broker describes it. ``value`` is None if secret or unset.

    ``synonyms`` has the strongest synonym first.
    """

    name: str
    value: str | None
    type: SettingType
    is_dynamic: bool
    synonyms: tuple[Synonym, ...]

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT

    @property
    def is_sensitive(self) -> bool:
        return _is_secret(self.type)


class BrokerSettings:
    """The settings of a broker, in layers by source. All values are strings."""

    def __init__(
        self,
        broker: Mapping[str, str] | None = None,
        brokers: Mapping[str, str] | None = None,
        file: Mapping[str, str] | None = None,
    ) -> None:
        self._brokers = brokers or {}
        self._layers: tuple[tuple[ConfigSource, Mapping[str, str]], ...] = (
            (ConfigSource.BROKER, broker or {}),
            (ConfigSource.BROKERS, self._brokers),
            (ConfigSource.FILE, file or {}),
            (ConfigSource.DEFAULT, _DEFAULTS),
        )

    def describe(self) -> list[DescribedSetting]:
        """All settings of the broker, including settings for single listeners."""
        names = dict.fromkeys(name for _, layer in self._layers for name in layer)
        return [self._described(name) for name in {**BROKER_SETTINGS, **names}]

    def describe_defaults(self) -> list[DescribedSetting]:
        """The dynamic default settings of all brokers."""
        found = []
        for name, value in self._brokers.items():
            described = self._described(name)
            synonyms = tuple(
                each for each in described.synonyms if each.source == ConfigSource.BROKERS
            )
            value_shown = None if described.is_sensitive else value
            found.append(described._replace(value=value_shown, synonyms=synonyms))
        return found

    def describe_topic(self, settings: Mapping[str, str]) -> list[DescribedSetting]:
        """All settings of a topic. ``settings`` are the values set for the topic."""
        definitions = {**TOPIC_SETTINGS, **_set_in(settings)}
        return self._resource(settings, definitions, ConfigSource.TOPIC)

    def describe_group(self, settings: Mapping[str, str]) -> list[DescribedSetting]:
        """All settings of a group. ``settings`` are the values set for the group."""
        found = self._resource(settings, GROUP_SETTINGS, ConfigSource.GROUP)
        return [
            # If no broker setting is the default, the group setting's own default is a synonym.
            each._replace(synonyms=(*each.synonyms, _own_default(each.name)))
            if GROUP_SETTINGS[each.name].broker_name is None
            else each
            for each in found
        ]

    def describe_client_metrics(self, settings: Mapping[str, str]) -> list[DescribedSetting]:
        """All settings of a client metrics subscription. ``settings`` are the values set for it."""
        return self._resource(settings, CLIENT_METRICS_SETTINGS, ConfigSource.CLIENT_METRICS)

    def _described(self, name: str) -> DescribedSetting:
        definition = _definition(name)
        synonyms = self._synonyms(name, definition.type)
        value = next(iter(self._values(name)), None)
        return DescribedSetting(
            name,
            _shown(value, definition.type),
            definition.type,
            name in BROKER_SETTINGS and definition.is_dynamic,
            synonyms,
        )

    def _resource(
        self,
        settings: Mapping[str, str],
        definitions: Mapping[str, Definition],
        source: ConfigSource,
    ) -> list[DescribedSetting]:
        found = []
        for name, (type, default, broker_name, _) in definitions.items():
            synonyms: tuple[Synonym, ...] = ()
            if broker_name is not None:
                synonyms = self._synonyms(broker_name, type)
                default = self._effective(broker_name)
            value = _shown(settings.get(name, default), type)
            if name in settings:
                synonyms = (Synonym(name, value, source), *synonyms)
            found.append(DescribedSetting(name, value, type, True, synonyms))
        return found

    def _values(self, name: str) -> Iterable[str]:
        """The values that the layers have for one setting name, the strongest layer first."""
        return (layer[name] for _, layer in self._layers if name in layer)

    def _effective(self, name: str) -> str | None:
        """The value of the broker setting ``name``, the default of a topic or group setting.

        None if no layer has a value.
        """
        for each, factor in _BY_UNIT.get(name, ((name, 1),)):
            value = next(iter(self._values(each)), None)
            if value is None:
                continue
            if name == _AGE:
                return _scaled(value, factor, every_negative=-1)
            return value if factor == 1 else _scaled(value, factor)
        return None

    def _synonyms(self, name: str, type: SettingType) -> tuple[Synonym, ...]:
        names = _names(name)
        found = [
            Synonym(each, None if _is_secret(type) else layer[each], source)
            for source, layer in self._layers
            for each in names
            if each in layer
        ]
        # A broker drops all synonyms before the first one named ``name``.
        return tuple(dropwhile(lambda each: each.name != name, found))


_DEFAULTS: Mapping[str, str] = {
    name: each.default for name, each in BROKER_SETTINGS.items() if each.default is not None
}


def is_broker_setting(name: str) -> bool:
    """Whether a broker of Kafka 4.4.0 has a setting with this name."""
    return name in BROKER_SETTINGS or _OF_LISTENER.fullmatch(name) is not None


def _set_in(settings: Mapping[str, str]) -> dict[str, Definition]:
    """The definitions of the settings that a broker omits for topics that do not set them."""
    return {name: _INTERNAL.get(name, _UNKNOWN) for name in settings if name not in TOPIC_SETTINGS}


def _own_default(name: str) -> Synonym:
    return Synonym(name, GROUP_SETTINGS[name].default, ConfigSource.DEFAULT)


def _names(name: str) -> Sequence[str]:
    """The names that can set a broker's setting, the strongest first."""
    if name in _BY_UNIT:
        return [each for each, _ in _BY_UNIT[name]]
    of_listener = _OF_LISTENER.fullmatch(name)
    if of_listener is None:
        return (name,)
    base = of_listener[1]
    return name, next((each for each in _OF_MECHANISM if base.endswith(each)), base)


def _definition(name: str) -> Definition:
    known = BROKER_SETTINGS.get(name)
    return BROKER_SETTINGS.get(_names(name)[-1], _UNKNOWN) if known is None else known


def _is_secret(type: SettingType) -> bool:
    return type in (SettingType.PASSWORD, SettingType.UNKNOWN)


def _scaled(value: str, factor: int, every_negative: int | None = None) -> str:
    try:
        number = int(value)
    except ValueError:
        return value
    return str(every_negative if every_negative is not None and number < 0 else number * factor)


def _shown(value: str | None, type: SettingType) -> str | None:
    """A setting's value as a broker prints it. None if it is secret."""
    if value is None or _is_secret(type):
        return None
    value = value.strip()
    try:
        match type:
            case SettingType.BOOLEAN:
                return value.lower()
            case SettingType.INT | SettingType.SHORT | SettingType.LONG:
                return str(int(value))
            case SettingType.LIST:
                return ",".join(re.split(r"\s*,\s*", value))
            case SettingType.DOUBLE:
                text = str(float(value))
                return value if "e" in text else text
            case _:
                return value
    except ValueError:
        return value
