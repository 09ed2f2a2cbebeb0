"""File access for pyiceberg through lastwrite's object stores, settings and error classes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlparse

from pyiceberg.io import FileIO, InputFile, OutputFile

from lastwrite.errors import CommitConflict
from lastwrite.tables.conditional import was_put
from lastwrite.tables.files import locate


def path_of(location: str) -> str:
    """Convert a location to a path or address, without ``file:``, and with ``s3:`` for ``s3a:``."""
    if location.startswith("file:"):
        return unquote(urlparse(location).path)
    for other in ("s3a://", "s3n://"):
        if location.startswith(other):
            return "s3://" + location[len(other) :]
    return location


class StoreIO(FileIO):
    """pyiceberg's file access, which reads and writes objects of folders and buckets."""

    def new_input(self, location: str) -> InputFile:
        return _Object(location)

    def new_output(self, location: str) -> OutputFile:
        return _Object(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        store, key = locate(path_of(location if isinstance(location, str) else location.location))
        store.remove([key])


class _Object(InputFile, OutputFile):
    """A small object that is read and written as one block of bytes."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._store, self._key = locate(path_of(location))

    def __len__(self) -> int:
        found = self._store.head(self._key)
        if found is None:
            raise FileNotFoundError(self.location)
        return found.size_bytes

    def exists(self) -> bool:
        return self._store.head(self._key) is not None

    def to_input_file(self) -> InputFile:
        return self

    def open(self, seekable: bool = True) -> Any:
        found = self._store.get(self._key)
        if found is None:
            raise FileNotFoundError(self.location)
        return io.BytesIO(found[0])

    def create(self, overwrite: bool = False) -> Any:
        return _Created(self._written)

    def _written(self, content: bytes) -> None:
        if not was_put(self._store, self._key, content, None):
            raise CommitConflict(
                "another program created the object during the command",
                path=self.location,
                remedy="run the command again",
            )


class _Created(io.BytesIO):
    """A buffer for an object. ``close`` writes the object, unless an error occurred before."""

    def __init__(self, written: Callable[[bytes], None]) -> None:
        super().__init__()
        self._done = written

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._done(content)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            super().close()
        else:
            self.close()
