"""The settings of topics and their sources, as values that print as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar

from msgspec import field

from lastwrite.reports.document import UNPRINTED, Document, FrozenDocument, JsonName, figure

_PATTERN_MARKS = "*?["


class SettingValue(FrozenDocument, frozen=True):
    """The value of a setting in one source, with the name and unit that the source uses."""

    name: str
    value: str
    source: str


class Setting(FrozenDocument, frozen=True):
    """One setting that applies to a topic. ``value`` is in the unit of ``name``.

    None means that no source has a value, and that the default may be wrong.
    """

    name: Annotated[str, UNPRINTED]
    value: str | None
    source: str
    # the value that applies, the values that it overrides, and last the default
    said: tuple[SettingValue, ...] = field(default=(), name="synonyms")

    @property
    def is_said(self) -> bool:
        """Whether the value is not the default, but from a source or unknown."""
        return self.source != "default"


_BY = {
    "topic (metadata)": "by the cluster's metadata",
    "broker (metadata)": "by the broker's setting in the cluster's metadata",
    "broker default (metadata)": "by the brokers' default in the cluster's metadata",
    "config": "by the brokers' default",
    "default": "by Kafka's default, since the cluster's metadata has the topic but no other value",
}


class OverriddenSetting(FrozenDocument, frozen=True):
    """A default given by the user that does not apply to a topic, and the value that does."""

    topic: str
    name: str
    stated: str
    value: str  # value that applies instead of the default
    source: str
    message: ClassVar[str] = figure(lambda self: self.message_for(self.topic))
    remedy: ClassVar[str] = figure(
        lambda self: f"to override it, give --topic-config {self.topic}:{self.name}={self.stated}"
    )

    def message_for(self, topics: str) -> str:
        by = _BY.get(self.source, f"by {self.source}")
        default = f"{self.name}={self.stated} is a default and does not apply to {topics}"
        return f"{default}, because {self.name} is set to {self.value} {by}"


def by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    """The settings by name, each with the values of all sources."""
    return {setting.name: setting for setting in settings}


class EffectiveSetting(FrozenDocument, frozen=True):
    """The value of a setting that applies, and its source."""

    value: str | None
    source: str


def effective(settings: Iterable[Setting]) -> dict[str, EffectiveSetting]:
    """The effective values and their sources, by setting."""
    return {setting.name: EffectiveSetting(setting.value, setting.source) for setting in settings}


class TopicSettings(Document):
    """The settings of a topic. They apply to the partitions in ``folders``."""

    topic: str
    settings: Annotated[tuple[Setting, ...], JsonName(by_name)]
    reason: str | None = None  # why the topic is never compacted; null if it may be compacted
    folders: list[str] = []


class SettingsReport(Document):
    """The result of ``lastwrite settings``."""

    system: str
    topics: list[TopicSettings]
    notes: list[OverriddenSetting]

    @property
    def exit_status(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Override:
    """One setting for the topics that match ``pattern``."""

    pattern: str
    name: str
    value: object

    @property
    def is_exact(self) -> bool:
        return not any(mark in self.pattern for mark in _PATTERN_MARKS)

    def covers(self, topic: str) -> bool:
        return self.pattern == topic or (not self.is_exact and fnmatchcase(topic, self.pattern))
