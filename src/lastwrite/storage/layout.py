"""Where the partitions of a system lie, and who works on them: each system's ``system.py`` says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from lastwrite.model.log import TopicPartition


class Glance(NamedTuple):
    """A partition's folder at one look. While ``state`` is the same, and not None, no file has come
    or gone.
    """

    name: TopicPartition
    folder: str
    state: Hashable | None
    rests: bool  # for some seconds no file has come or gone: nobody is writing it just now


class Layout(ABC):
    """Where a system's partitions lie, and who works on them."""

    @abstractmethod
    def find(self, path: str, topic: str | None, partition: int | None, /) -> list[str]:
        """The partition folders at ``path``, sorted."""

    @abstractmethod
    def name_of(self, folder: str, /) -> TopicPartition: ...

    @abstractmethod
    def root_of(self, folder: str, /) -> str:
        """The folder that a broker's lock and checkpoints of this partition lie in."""

    def glance(self, root: str, /) -> list[Glance]:
        """For the daemon: every partition folder at ``root``, and cheaply whether it has changed;
        by default nobody knows.

        Raises:
            LogError: the root cannot be listed.
        """
        return [
            Glance(self.name_of(folder), folder, None, True)
            for folder in self.find(root, None, None)
        ]

    @abstractmethod
    def hold(self, root: str, names: Collection[TopicPartition], /) -> AbstractContextManager[None]:
        """Keep everybody else away from these partitions of the root."""

    @abstractmethod
    def try_hold(
        self, root: str, names: Collection[TopicPartition], /
    ) -> AbstractContextManager[set[TopicPartition]]:
        """Keep everybody else away from those of the partitions that are free; the context gives
        which.
        """

    @abstractmethod
    def refuse_if_held(self, root: str, names: Collection[TopicPartition], /) -> None: ...

    def broker_of(self, root: str, /) -> str | None:
        """The broker that runs on the root, in words; by default no broker opens it."""
        return None

    def refuse_unclean(self, root: str, config: Mapping[str, object], /) -> None:
        """Say no to a root whose broker did not stop in order, where that matters and ``config``
        does not allow it; by default it never matters.
        """
        return None
