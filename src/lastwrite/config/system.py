"""By which settings the partitions of a system are cleaned: each system's ``system.py`` says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from lastwrite.errors import InvalidConfig
from lastwrite.reports.settings import Outvoted, Override, Setting

Config: TypeAlias = Mapping[str, object]  # settings under upstream's names


class LeftAlone(NamedTuple):
    """Why nothing at all is done to a partition, and what to state so that something is."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where topics' settings may be learned from, beside ``config``
    (docs/decisions/explicit-compact.md).
    """

    overrides: tuple[Override, ...] = ()
    roots: tuple[str, ...] = ()  # log roots that were named together
    metadata: str | None = None  # where the cluster's metadata lies
    are_archives: bool = False  # the roots, even where nothing is in them so far
    # the folders of partitions that the caller named, not their root alone
    named: frozenset[str] = frozenset()


class SystemSettings(ABC):
    """What holds for a partition, and who says it."""

    kind_of_path: str  # what lies at a path of it, in words
    governs_keyless: str  # the setting, in the system's words, of records without a key
    policy_remedy: str  # what to do where nobody has said which logs the daemon shall compact

    @abstractmethod
    def check_config(self, config: Config, /) -> None: ...

    @abstractmethod
    def settings_of(self, folder: str, config: Config, /) -> tuple[Setting, ...]:
        """All settings that hold for the partition, and who says them."""

    def outvoted(self, folder: str, config: Config, /) -> tuple[Outvoted, ...]:
        """What of ``config`` does not hold for the partition, since its cluster says otherwise."""
        return ()

    def leaves_alone(self, folder: str, config: Config, /) -> LeftAlone | None:
        """Why nothing at all is done to the partition, and what would have to be stated; None: it
        is worked on.
        """
        return None

    def is_policy_known(self, folder: str, config: Config, /) -> bool:
        """Whether anybody has said that the partition's topic is compacted, or that it is not."""
        return True

    def told(self, sources: Sources) -> Self:
        """The same system, which learns topics' settings from ``sources`` too; by default it needs
        none.

        Raises:
            InvalidConfig: they say what this system does not know.
            NotALog: nothing lies where they point.
        """
        no_topics_of_kafka(self.kind_of_path, sources)
        return self

    def check_told(self, folders: Sequence[str], /) -> None:
        """See that what speaks for the partitions can be read for one of them at least; by default
        nothing speaks for them.

        Raises:
            CorruptLog: for none: it is one error, not one a partition.
        """
        return None


def no_topics_of_kafka(system: str, sources: Sources) -> None:
    """Refuse what only Kafka's topics have.

    Raises:
        InvalidConfig: an override, or metadata of a cluster.
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
