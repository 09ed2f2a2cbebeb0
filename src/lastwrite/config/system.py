"""The interface through which a system provides the settings of its partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from lastwrite.errors import InvalidConfig
from lastwrite.reports.settings import OverriddenSetting, Override, Setting

Config: TypeAlias = Mapping[str, object]  # settings by upstream name


class Unmanaged(NamedTuple):
    """The reason why a partition is never cleaned, and the setting that changes it."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSources:
    """Sources of topic settings in addition to ``config`` (docs/decisions/explicit-compact.md)."""

    overrides: tuple[Override, ...] = ()
    roots: tuple[str, ...] = ()  # log roots of one command
    metadata: str | None = None  # path of the cluster's metadata log
    are_archives: bool = False  # whether the roots are archives, even if they are still empty
    # partition folders that the user gave directly, rather than a root
    named: frozenset[str] = frozenset()


class SystemSettings(ABC):
    """The settings of a system: the values that apply to a partition, and their sources."""

    kind_of_path: str  # a noun for the contents of a log path of this system
    governs_keyless: str  # the setting of this system that decides on records without a key
    policy_remedy: str  # what to do if no cleanup policy is known

    @abstractmethod
    def check_config(self, config: Config, /) -> None: ...

    @abstractmethod
    def settings_of(self, folder: str, config: Config, /) -> tuple[Setting, ...]:
        """All settings that apply to the partition, with their sources."""

    def outvoted(self, folder: str, config: Config, /) -> tuple[OverriddenSetting, ...]:
        """The settings in ``config`` that the partition's cluster overrides."""
        return ()

    def why_unmanaged(self, folder: str, config: Config, /) -> Unmanaged | None:
        """The reason why the partition is never cleaned, and a remedy. None if it is cleaned."""
        return None

    def is_policy_known(self, folder: str, config: Config, /) -> bool:
        """Whether the cleanup policy of the partition's topic is known."""
        return True

    def with_sources(self, sources: SettingSources) -> Self:
        """A copy of this system that also reads topic settings from ``sources``.

        By default this is the system itself, which supports no such sources.

        Raises:
            InvalidConfig: the sources contain settings that this system does not have.
            NotALog: a source does not exist.
        """
        no_topics_of_kafka(self.kind_of_path, sources)
        return self

    def check_sources(self, folders: Sequence[str], /) -> None:
        """Check that the source of topic settings can be read for at least one partition.

        By default there is no such source.

        Raises:
            CorruptLog: the source can be read for no partition. Raised once, not per partition.
        """
        return None


def no_topics_of_kafka(system: str, sources: SettingSources) -> None:
    """Check that no option is given that applies only to Kafka's topics.

    Raises:
        InvalidConfig: an override, or a cluster's metadata, is given.
    """
    if sources.overrides:
        raise InvalidConfig(
            f"--topic-config is only for topics of Kafka, but the path is {system}",
            remedy="give --config NAME=VALUE, and --topic NAME if the setting is for one topic "
            "only",
        )
    if sources.metadata is not None:
        raise InvalidConfig(
            f"--metadata is only for log roots of Kafka, but the path is {system}",
            remedy="leave out --metadata",
        )
