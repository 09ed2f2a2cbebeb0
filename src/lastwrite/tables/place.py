"""The location of a table, and the names of its files."""

from __future__ import annotations

from lastwrite.storage.objects.address import join, store_at


class TablePlace:
    """The folder of a table, or its address in a bucket.

    A file's name is relative to it, with ``/`` between folders.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.store, self._prefix = store_at(self.address)

    def key(self, name: str) -> str:
        """The store's key for a file name."""
        return f"{self._prefix}/{name}" if self._prefix else name

    def name(self, key: str) -> str:
        """The file name for a key of the store."""
        return key.removeprefix(self._prefix).lstrip("/")

    def path(self, name: str) -> str:
        """The full path or address for a file name."""
        return join(self.address, *name.split("/"))

    def name_of_path(self, path: str) -> str:
        """The file name for a full path or address."""
        return path.removeprefix(self.address).lstrip("/")
