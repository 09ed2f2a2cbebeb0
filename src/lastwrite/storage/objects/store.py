"""What an archive needs of the place that it lies in, be it a folder or a bucket.

An object is whole when it has a name, and is never changed: only a manifest is ever replaced, by
one who has seen what it replaces. A key is a path with ``/``, relative to the store; none is
another's folder, and none ends in ``.aside`` or ``.lock``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from operator import add, sub
from typing import NamedTuple, Protocol

from lastwrite.errors import LogError
from lastwrite.model.columns import ByteArray


class Version(NamedTuple):
    """What tells an object from any other that had, or will have, its key."""

    etag: str
    generation: str | None = None  # Google's stores compare this, others the etag


class ObjectInfo(NamedTuple):
    """An object as it was found."""

    key: str
    size_bytes: int
    version: Version
    modified_ms: int  # by the store's clock; 0: of one just written, which nobody has asked


@dataclass(slots=True)
class Requests:
    """What was asked of a store, by kind, as a bill counts it."""

    gets: int = 0  # heads are gets
    puts: int = 0  # a part of an upload is one
    lists: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Requests) -> Requests:
        return Requests(*map(sub, astuple(self), astuple(other)))


class Writer(Protocol):
    """An object on its way: it has no name before ``close``."""

    def write(self, data: bytes | ByteArray) -> None:
        """Take the next bytes; the caller may change them afterwards."""
        ...

    def close(self) -> ObjectInfo:
        """Give it its name; what it is then."""
        ...

    def abandon(self) -> None:
        """Let nothing of it stay."""
        ...


class ObjectStore(Protocol):
    """One bucket, or one folder.

    Every call raises ``RemoteFailed`` (or, of a folder, ``LogError``) where the store does not
    answer, refuses, or is not there: with the object's address, the action and a remedy.
    """

    address: str  # ``s3://bucket``; of a folder its absolute path
    is_providers: bool  # whose promises are known: Amazon's, Google's or Azure's own, or a folder
    requests: Requests

    def head(self, key: str) -> ObjectInfo | None:
        """What lies there; None: nothing does."""
        ...

    def get(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """A small object, whole; None: there is none."""
        ...

    def read_into(self, key: str, target: ByteArray, position: int, etag: str = "") -> None:
        """Fill ``target`` with the object's bytes from ``position`` on.

        Raises:
            CommitConflict: it is gone, shorter, or not the object that has this etag.
        """
        ...

    def create(self, key: str, content: bytes) -> Version | None:
        """Write an object that is not there yet; None: it is there, or may be.

        None is a question, not an answer: a store that was slow to say yes says this too. Whoever
        gets it reads the object and looks whether it is the one that was written.
        """
        ...

    def replace(self, key: str, content: bytes, seen: Version) -> Version | None:
        """Write in the place of the version that was seen; None, as of ``create``: another is
        there, or none.
        """
        ...

    def writer(self, key: str, part_bytes: int = 8 << 20) -> Writer:
        """A new object under a key that nobody else uses; it takes about two parts of memory."""
        ...

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there is no error."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose keys begin so, by key."""
        ...

    def remove_unfinished(self, prefix: str, older_than_ms: int) -> None:
        """Remove what writers who died left of objects whose keys begin so and that never got a
        name, if they wrote last that long ago. Of a bucket nothing: its own rule ends uploads.
        """
        ...

    def folders(self, prefix: str) -> Sequence[str]:
        """The names of what would be folders directly below ``prefix`` (which ends in ``/``, or is
        empty), sorted.
        """
        ...


def check_key(key: str, address: str) -> None:
    """Refuse what would lead out of the store, or would be another place in each kind of store.

    Raises:
        LogError: the key is absolute, empty, or has a part that is empty, ``.`` or ``..``.
    """
    if not key or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise LogError(
            f"{key!r} is no name of an object",
            path=address,
            remedy="somebody has changed the archive's manifest: do not trust it",
        )
