"""The interface to the partitions of a system; each system's ``system.py`` implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from lastwrite.errors import LogHeld
from lastwrite.model.log import TopicPartition
from lastwrite.storage.choice import Topics, choose, topic_of


class PartitionSnapshot(NamedTuple):
    """The state of a partition's folder at one moment, for detecting changes.

    If two snapshots have equal states other than None, no file was added or deleted in between.
    """

    name: TopicPartition
    folder: str
    state: Hashable | None
    rests: bool  # whether no file was added or deleted during the last seconds


class PartitionLocator(ABC):
    """Finds, selects and locks the partitions of one system."""

    names_of_parts = ("topic", "partition")  # words for error messages

    @abstractmethod
    def find(self, path: str, topic: Topics, partition: int | None, /) -> list[str]:
        """The folders of the selected partitions at ``path``, sorted."""

    @abstractmethod
    def name_of(self, folder: str, /) -> TopicPartition: ...

    def topic_names(self, name: TopicPartition, /) -> Sequence[str]:
        """The names by which users may select the partition's topic."""
        return topic_of(name)

    def choose(
        self, folders: Sequence[str], topic: Topics, partition: int | None, path: str, /
    ) -> list[str]:
        """Select partitions by topic and number from ``folders``. ``path`` is for error messages.

        Raises:
            NotALog, InvalidConfig: the selection matches no partition, or is empty.
        """
        named = [(self.name_of(folder), folder) for folder in folders]
        return choose(named, topic, partition, path, self.topic_names, *self.names_of_parts)

    @abstractmethod
    def root_of(self, folder: str, /) -> str:
        """The root of a partition's folder, which has the broker's lock and checkpoints."""

    def scan_root(self, root: str, /) -> list[PartitionSnapshot]:
        """Every partition folder at ``root``, with a state by which the daemon detects changes.

        The default does not detect changes.

        Raises:
            LogError: the root cannot be listed.
        """
        return [
            PartitionSnapshot(self.name_of(folder), folder, None, True)
            for folder in self.find(root, None, None)
        ]

    @abstractmethod
    def hold(self, root: str, names: Collection[TopicPartition], /) -> AbstractContextManager[None]:
        """A context that locks the partitions ``names`` of the root."""

    @abstractmethod
    def try_lock(
        self, root: str, names: Collection[TopicPartition], /
    ) -> AbstractContextManager[set[TopicPartition]]:
        """A context that locks the partitions in ``names`` that are free. Yields their names."""

    @abstractmethod
    def reject_if_locked(self, root: str, names: Collection[TopicPartition], /) -> None: ...

    def broker_of(self, root: str, /) -> LogHeld | None:
        """The error that names the broker running on the root. None if there is no broker."""
        return None

    def merge_tiers(self, folders: Sequence[str], /) -> list[str]:
        """The folders that are read if the user gives all of ``folders``. By default these are all.

        A system may omit a folder that it reads together with another one.
        """
        return list(folders)

    def reject_read_only(self, root: str, /) -> None:
        """Raise an error if the logs are read-only, and cannot be compacted in place.

        By default, raises no error.

        Raises:
            InvalidConfig: the logs are read-only. The remedy names the alternative.
        """
        return None

    def reject_unclean(self, root: str, config: Mapping[str, object], /) -> None:
        """Raise an error if the root's broker was not shut down cleanly.

        An error is not raised if ``config`` allows this.

        By default, raises no error.
        """
        return None
