"""The settings that control how a system's partitions are cleaned; each ``system.py`` defines them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from lastwrite.errors import InvalidConfig
from lastwrite.reports.settings import OverriddenSetting, Override, Setting

Config: TypeAlias = Mapping[str, object]  # settings by upstream name


class Unmanaged(NamedTuple):
    """Why a partition is skipped entirely, and what to configure to change that."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSources:
    """Sources of topic settings in addition to ``config`` (docs/decisions/explicit-compact.md)."""

    overrides: tuple[Override, ...] = ()
    roots: tuple[str, ...] = ()  # log roots that were given together
    metadata: str | None = None  # the path of the cluster's metadata
    are_archives: bool = False  # the roots are archives, even if they are still empty
    # folders of partitions that the caller named, rather than only their root
    named: frozenset[str] = frozenset()


class SystemSettings(ABC):
    """The settings that apply to a partition, and where each comes from."""

    kind_of_path: str  # a description of what a path of this system contains
    governs_keyless: str  # the system's own setting for records without a key
    policy_remedy: str  # what to do if it is unknown which logs the daemon should compact

    @abstractmethod
    def check_config(self, config: Config, /) -> None: ...

    @abstractmethod
    def settings_of(self, folder: str, config: Config, /) -> tuple[Setting, ...]:
        """All settings that apply to the partition, and where each comes from."""

    def outvoted(self, folder: str, config: Config, /) -> tuple[OverriddenSetting, ...]:
        """The settings in ``config`` that do not apply, because the partition's cluster overrides
        them.
        """
        return ()

    def why_unmanaged(self, folder: str, config: Config, /) -> Unmanaged | None:
        """Why the partition is skipped entirely, and what to configure. None means that it is not
        skipped.
        """
        return None

    def is_policy_known(self, folder: str, config: Config, /) -> bool:
        """Whether the cleanup policy of the partition's topic is known."""
        return True

    def told(self, sources: SettingSources) -> Self:
        """The same system, which also reads topic settings from ``sources``; by default it needs
        none.

        Raises:
            InvalidConfig: the sources contain settings that this system does not have.
            NotALog: a source does not exist.
        """
        no_topics_of_kafka(self.kind_of_path, sources)
        return self

    def check_sources(self, folders: Sequence[str], /) -> None:
        """Check that the source of settings is readable for at least one of the partitions.

        By default there is no such source.

        Raises:
            CorruptLog: it is readable for none; raised once, not for each partition.
        """
        return None


def no_topics_of_kafka(system: str, sources: SettingSources) -> None:
    """Refuse options that only Kafka's topics have.

    Raises:
        InvalidConfig: an override, or a cluster's metadata, is given.
    """
    if sources.overrides:
        raise InvalidConfig(
            f"--topic-config is for topics of Kafka, and this is {system}",
            remedy="give --config NAME=VALUE, with --topic NAME if it is for one topic alone",
        )
    if sources.metadata is not None:
        raise InvalidConfig(
            f"--metadata is for log roots of Kafka, and this is {system}",
            remedy="leave it out: it needs none",
        )
