"""Where a table lies, and what its files are called there."""

from __future__ import annotations

from lastwrite.storage.objects.address import join, store_at


class TablePlace:
    """A folder, or what is below an address in a bucket. A file's name is below it, with ``/``
    between folders, wherever it lies.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.store, self._prefix = store_at(self.address)

    def key(self, name: str) -> str:
        """What the store calls the file."""
        return f"{self._prefix}/{name}" if self._prefix else name

    def name(self, key: str) -> str:
        """The other way."""
        return key.removeprefix(self._prefix).lstrip("/")

    def path(self, name: str) -> str:
        """The file's full path, or its address."""
        return join(self.address, *name.split("/"))

    def name_of_path(self, path: str) -> str:
        """The other way."""
        return path.removeprefix(self.address).lstrip("/")
