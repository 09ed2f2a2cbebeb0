"""Where the partitions of a system lie, and who works on them: each system's ``system.py`` says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from lastwrite.errors import LogHeld
from lastwrite.model.log import TopicPartition
from lastwrite.storage.choice import Topics, choose, topic_of


class PartitionSnapshot(NamedTuple):
    """A partition's folder at one look. While ``state`` is the same, and not None, no file has come
    or gone.
    """

    name: TopicPartition
    folder: str
    state: Hashable | None
    rests: bool  # for some seconds no file has come or gone: nobody is writing it just now


class PartitionLocator(ABC):
    """Where a system's partitions lie, and who works on them."""

    names_of_parts = ("topic", "partition")  # for errors: what is asked for by name, and by number

    @abstractmethod
    def find(self, path: str, topic: Topics, partition: int | None, /) -> list[str]:
        """The partition folders at ``path`` that are asked for (see ``choice``), sorted."""

    @abstractmethod
    def name_of(self, folder: str, /) -> TopicPartition: ...

    def topic_names(self, name: TopicPartition, /) -> Sequence[str]:
        """What a person may call the partition's topic."""
        return topic_of(name)

    def choose(
        self, folders: Sequence[str], topic: Topics, partition: int | None, path: str, /
    ) -> list[str]:
        """Of partition folders that ``find`` found, at ``path`` in words, those that are asked for.

        Raises:
            NotALog, InvalidConfig: as ``choice.choose``.
        """
        named = [(self.name_of(folder), folder) for folder in folders]
        return choose(named, topic, partition, path, self.topic_names, *self.names_of_parts)

    @abstractmethod
    def root_of(self, folder: str, /) -> str:
        """The folder that a broker's lock and checkpoints of this partition lie in."""

    def scan_root(self, root: str, /) -> list[PartitionSnapshot]:
        """For the daemon: every partition folder at ``root``, and cheaply whether it has changed;
        by default nobody knows.

        Raises:
            LogError: the root cannot be listed.
        """
        return [
            PartitionSnapshot(self.name_of(folder), folder, None, True)
            for folder in self.find(root, None, None)
        ]

    @abstractmethod
    def hold(self, root: str, names: Collection[TopicPartition], /) -> AbstractContextManager[None]:
        """Keep everybody else away from these partitions of the root."""

    @abstractmethod
    def try_lock(
        self, root: str, names: Collection[TopicPartition], /
    ) -> AbstractContextManager[set[TopicPartition]]:
        """Keep everybody else away from those of the partitions that are free; the context gives
        which.
        """

    @abstractmethod
    def refuse_if_held(self, root: str, names: Collection[TopicPartition], /) -> None: ...

    def broker_of(self, root: str, /) -> LogHeld | None:
        """What to tell of the broker that runs on the root; by default no broker opens it."""
        return None

    def merge_tiers(self, folders: Sequence[str], /) -> list[str]:
        """Of the folders of partitions that were named together, those that are read; by default
        each is, by itself.
        """
        return list(folders)

    def refuse_read_only(self, root: str, /) -> None:
        """Say no before a round in place where logs are only read; by default none are.

        Raises:
            InvalidConfig: it says what to do instead.
        """
        return None

    def refuse_unclean(self, root: str, config: Mapping[str, object], /) -> None:
        """Say no to a root whose broker did not stop in order, where that matters and ``config``
        does not allow it; by default it never matters.
        """
        return None
