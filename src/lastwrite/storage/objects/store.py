"""The interface of stores for archives: a folder or a bucket.

An object is complete when it has a name, and never changes. Only a manifest is replaced, by a
writer that has read the current version. A key is a path with ``/``, relative to the store. No key
is a folder of another, and none ends in ``.aside`` or ``.lock``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from operator import add, sub
from typing import NamedTuple, Protocol

from lastwrite.errors import LogError
from lastwrite.model.columns import ByteArray


class Version(NamedTuple):
    """Identifies one version of the object under a key."""

    etag: str
    # compared in Google's stores; None in other stores, which compare the etag
    generation: str | None = None


class ObjectInfo(NamedTuple):
    """An object's key, size, version and modification time."""

    key: str
    size_bytes: int
    version: Version
    modified_ms: int  # time of the last write by the store's clock; 0 if unknown


@dataclass(slots=True)
class Requests:
    """The number of requests to a store, by the kinds that are billed."""

    gets: int = 0  # number of reads, including HEAD requests
    puts: int = 0  # number of writes, including parts of uploads
    lists: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Requests) -> Requests:
        return Requests(*map(sub, astuple(self), astuple(other)))


class Writer(Protocol):
    """A new object, written in pieces. It does not exist before ``close``."""

    def write(self, data: bytes | ByteArray) -> None:
        """Append bytes. The caller may change them afterwards."""
        ...

    def close(self) -> ObjectInfo:
        """Complete the object, and return its metadata."""
        ...

    def abandon(self) -> None:
        """Discard everything written."""
        ...


class ObjectStore(Protocol):
    """A store of objects: one bucket or one folder.

    Every call raises ``RemoteFailed`` (for a folder ``LogError``) if the store does not respond,
    rejects the request, or does not exist. The error has the object's address, the action and a
    remedy.
    """

    address: str  # ``s3://bucket``, or a folder's absolute path
    # Whether the store's guarantees are known, because it is a folder, or a store of Amazon, Google
    # or Azure.
    is_providers: bool
    requests: Requests

    def head(self, key: str) -> ObjectInfo | None:
        """The object's metadata. None if it does not exist."""
        ...

    def get(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """The content and version of a small object. None if it does not exist."""
        ...

    def read_into(self, key: str, target: ByteArray, position: int, etag: str = "") -> None:
        """Fill ``target`` with the object's bytes from ``position`` on.

        Raises:
            CommitConflict: the object is gone, too short, or has another etag.
        """
        ...

    def create(self, key: str, content: bytes) -> Version | None:
        """Write an object that does not exist yet. None if it exists, or may exist.

        None is ambiguous, because it is also the result of a write whose response was lost. The
        caller has to read the object, and compare it with ``content``.
        """
        ...

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        """Replace an object if its current version is ``version``.

        Returns None if another version is current. None may also mean that the response to the
        write was lost, so that the current version is unknown.
        """
        ...

    def writer(self, key: str, part_bytes: int = 8 << 20) -> Writer:
        """A writer of a new object under a unique key. It needs memory for about two parts."""
        ...

    def remove(self, keys: Iterable[str]) -> None:
        """Delete objects. Missing objects are ignored."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose keys begin with ``prefix``, by key."""
        ...

    def remove_unfinished(self, prefix: str, older_than_ms: int) -> None:
        """Delete unfinished objects below ``prefix`` that were not written for ``older_than_ms``.

        In a bucket this does nothing: a rule of the bucket aborts uploads.
        """
        ...

    def folders(self, prefix: str) -> Sequence[str]:
        """The names of the folders directly in ``prefix`` (empty, or ending in ``/``), sorted."""
        ...


def check_key(key: str, address: str) -> None:
    """Check that a key does not lead out of the store, and is the same in each kind of store.

    Raises:
        LogError: the key is absolute, empty, or has a part that is empty, ``.`` or ``..``.
    """
    if not key or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise LogError(
            f"{key!r} is not a valid object key",
            path=address,
            remedy="do not use this archive: another program may have changed its manifest",
        )
