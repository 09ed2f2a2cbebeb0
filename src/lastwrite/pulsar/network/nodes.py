"""The interface of every metadata store: nodes with a path, bytes and a version.

``zookeeper``, ``etcd`` and ``rocksdb`` implement it; ``metadata`` uses it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from lastwrite.errors import RemoteFailed


class Node(NamedTuple):
    """The content of a node: its bytes and its version."""

    data: bytes
    version: int  # version of the node: another number after each change


class NodeExists(Exception):
    """Raised if the node to create exists already."""


class VersionMismatch(Exception):
    """Raised if the node has another version, or was deleted."""


class MetadataTimeout(Exception):
    """Raised if a change was requested once, and its result is unknown."""

    def __init__(self, error: RemoteFailed) -> None:
        super().__init__(str(error))
        self.error = error


class Nodes(Protocol):
    """The interface of a metadata store.

    A read is repeated until the timeout; a change is requested once. ``doing`` names the purpose in
    errors. Every call raises ``RemoteFailed`` if there is no answer within the timeout, or access
    is refused.
    """

    address: str
    read_only: str  # for a read-only store, the remedy in errors about changes; otherwise empty

    def find(self, path: str, doing: str) -> Node | None:
        """The node at the path. None if there is none."""

    def children(self, path: str, doing: str) -> list[str]:
        """The names of the node's direct children. Empty if there is no node."""

    def create(self, path: str, data: bytes, doing: str) -> int:
        """Create a node, and missing parents. Returns its version.

        Raises:
            NodeExists, MetadataTimeout.
        """

    def replace(self, path: str, data: bytes, version: int, doing: str) -> None:
        """Replace the bytes of the node if it has this version.

        Raises:
            VersionMismatch, MetadataTimeout.
        """

    def delete(self, path: str, doing: str) -> None:
        """Delete a node. Does nothing if the node is missing or has children."""

    def number(self, prefix: str, doing: str) -> str:
        """A number, as text, that no other call with this ``prefix`` returns."""

    def close(self) -> None:
        """Close the connection."""
