"""What every metadata store is to us: nodes with a path, bytes and a version.

``zookeeper``, ``etcd`` and ``rocksdb`` speak with one kind each; ``metadata`` knows what lies
there, and nothing of how.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from lastwrite.errors import RemoteFailed


class Node(NamedTuple):
    """What lies at a path."""

    data: bytes
    version: int  # another after each change


class Taken(Exception):
    """There is such a node already."""


class Changed(Exception):
    """The node has another version, or is gone."""


class Unanswered(Exception):
    """A change was asked for once, and nobody said what became of it."""

    def __init__(self, error: RemoteFailed) -> None:
        super().__init__(str(error))
        self.error = error


class Nodes(Protocol):
    """A store. What only reads is asked again until the time is up; a change is asked once.
    ``doing`` says in an error's words what for. Every call raises ``RemoteFailed``: no answer
    within the timeout, or none for us.
    """

    address: str
    read_only: str  # why nothing can be changed there, as a remedy; empty: it can

    def find(self, path: str, doing: str) -> Node | None:
        """What lies there; None: nothing."""

    def children(self, path: str, doing: str) -> list[str]:
        """The names of what lies below, one level; none also where nothing lies there."""

    def create(self, path: str, data: bytes, doing: str) -> int:
        """Make a node, and what is above it; its version.

        Raises:
            Taken, Unanswered.
        """

    def replace(self, path: str, data: bytes, version: int, doing: str) -> None:
        """Give the node of that version other bytes.

        Raises:
            Changed, Unanswered.
        """

    def delete(self, path: str, doing: str) -> None:
        """Remove a node that has none below it; whatever is not there, or has, stays so."""

    def number(self, prefix: str, doing: str) -> str:
        """A number that nobody else gets for the path ``prefix``, as text."""

    def close(self) -> None:
        """End the conversation."""
