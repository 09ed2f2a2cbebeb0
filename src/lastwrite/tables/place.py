"""The place of a table, and the names of its files there."""

from __future__ import annotations

from lastwrite.storage.objects.address import join, store_at


class TablePlace:
    """A folder, or the objects below an address in a bucket.

    A file's name is relative to the place, with ``/`` between folders in both cases.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.store, self._prefix = store_at(self.address)

    def key(self, name: str) -> str:
        """The store's key of the file with this name."""
        return f"{self._prefix}/{name}" if self._prefix else name

    def name(self, key: str) -> str:
        """The name of the file with this key."""
        return key.removeprefix(self._prefix).lstrip("/")

    def path(self, name: str) -> str:
        """The file's full path or address."""
        return join(self.address, *name.split("/"))

    def name_of_path(self, path: str) -> str:
        """The name of the file with this full path or address."""
        return path.removeprefix(self.address).lstrip("/")
