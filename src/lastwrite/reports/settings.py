"""What a topic's settings are, and who says so; values that print as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar

from msgspec import field

from lastwrite.reports.document import UNPRINTED, As, Document, FrozenDocument, figure

_PATTERN_MARKS = "*?["


class Word(FrozenDocument, frozen=True):
    """Somebody says a setting, under a name and in a unit of their own."""

    name: str
    value: str
    source: str


class Setting(FrozenDocument, frozen=True):
    """One setting that holds; ``value`` in the unit of ``name``, None: nobody says it, and it is
    not guessed.
    """

    name: Annotated[str, UNPRINTED]
    value: str | None
    source: str
    # what holds first, then what it outvotes; the default last
    said: tuple[Word, ...] = field(default=(), name="synonyms")

    @property
    def is_said(self) -> bool:
        """Somebody says it, or somebody would have to."""
        return self.source != "default"


_BY = {
    "topic (metadata)": "by the cluster's metadata",
    "broker (metadata)": "by the broker's setting in the cluster's metadata",
    "broker default (metadata)": "by the brokers' default in the cluster's metadata",
    "config": "by the brokers' default",
    "default": "by Kafka's default, since the cluster's metadata knows the topic and sets nothing else",
}


class Outvoted(FrozenDocument, frozen=True):
    """A default that the caller stated, and that does not hold for a topic of which the cluster
    says otherwise.
    """

    topic: str
    name: str
    stated: str
    value: str  # that holds
    source: str
    message: ClassVar[str] = figure(lambda self: self.message_for(self.topic))
    remedy: ClassVar[str] = figure(
        lambda self: f"to override it: --topic-config {self.topic}:{self.name}={self.stated}"
    )

    def message_for(self, topics: str) -> str:
        by = _BY.get(self.source, f"by {self.source}")
        default = f"{self.name}={self.stated} is a default and does not hold for {topics}"
        return f"{default}: {self.name} is {self.value} there, {by}"


def by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    """All that is said of each setting."""
    return {setting.name: setting for setting in settings}


class EffectiveSetting(FrozenDocument, frozen=True):
    """What holds and who says it, without all else that was said."""

    value: str | None
    source: str


def effective(settings: Iterable[Setting]) -> dict[str, EffectiveSetting]:
    """What holds, by name."""
    return {setting.name: EffectiveSetting(setting.value, setting.source) for setting in settings}


class TopicSettings(Document):
    """All settings of a topic, of the partitions in ``folders``."""

    topic: str
    settings: Annotated[tuple[Setting, ...], As(by_name)]
    reason: str | None = None  # why nothing at all is done to it
    folders: list[str] = []


class SettingsReport(Document):
    """What ``lastwrite settings`` found."""

    system: str
    topics: list[TopicSettings]
    notes: list[Outvoted]

    @property
    def exit_status(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Override:
    """One setting of the topics that ``pattern`` names."""

    pattern: str
    name: str
    value: object

    @property
    def is_exact(self) -> bool:
        return not any(mark in self.pattern for mark in _PATTERN_MARKS)

    def covers(self, topic: str) -> bool:
        return self.pattern == topic or (not self.is_exact and fnmatchcase(topic, self.pattern))
