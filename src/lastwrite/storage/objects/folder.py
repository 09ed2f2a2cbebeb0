"""A folder as a store, with the interface of a bucket.

An object is a file of the key's name. It is written under another name, synced, and renamed
atomically, which fails if the name exists::

    data/5e.log.91c2….aside     being written, or left by a crash; only a sweep lists it
    data/5e.log                 complete, and durable together with its folder's entries
    manifest.json.lock          locked (flock) by a process that replaces manifest.json

The version of a file is its inode, modification time and size. A file that replaces another gets a
later time, if necessary by a nanosecond, so that no version occurs twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence

from lastwrite.errors import CommitConflict, LogError
from lastwrite.model.columns import ByteArray
from lastwrite.storage import files, ownership
from lastwrite.storage.machine import mount_of
from lastwrite.storage.objects.store import ObjectInfo, Requests, Version, check_key
from lastwrite.storage.staging import changing

_ASIDE, _LOCK = ".aside", ".lock"
_NO_FLOCK = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
_NOT_THERE = (FileNotFoundError, NotADirectoryError)
_AGAIN = (
    "nothing was changed; stop the program that writes to this folder, then run the command again"
)


class FolderStore:
    """A store in the folder ``root``, which is created with its first object."""

    is_providers = True

    def __init__(self, root: str) -> None:
        self.address = os.path.abspath(root)
        self.requests = Requests()

    def head(self, key: str) -> ObjectInfo | None:
        self.requests.gets += 1
        path = self._path(key)
        try:
            return _found(key, os.stat(path))
        except _NOT_THERE:
            return None
        except OSError as error:
            raise files.to_log_error(error, path, "read the state of the object") from error

    def get(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        self.requests.gets += 1
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                found = _found(key, os.fstat(file.fileno()))
                content = file.read()
        except _NOT_THERE:
            return None
        except OSError as error:
            raise files.to_log_error(error, path, "read the object") from error
        self.requests.bytes_read += len(content)
        return content, found

    def read_into(self, key: str, target: ByteArray, position: int, etag: str = "") -> None:
        self.requests.gets += 1
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                if etag and _version(os.fstat(file.fileno())).etag != etag:
                    raise CommitConflict(
                        "another program replaced the object during the command",
                        path=path,
                        remedy=_AGAIN,
                    )
                view = memoryview(target)
                while len(view):
                    n = os.preadv(file.fileno(), [view], position)
                    if n == 0:
                        raise CommitConflict(
                            "another program shortened the object during the command",
                            position,
                            path,
                            _AGAIN,
                        )
                    view, position = view[n:], position + n
        except OSError as error:
            raise files.to_log_error(error, path, "read the object") from error
        self.requests.bytes_read += len(target)

    def create(self, key: str, content: bytes) -> Version | None:
        path = self._path(key)
        files.make_new_folder(os.path.dirname(path))
        aside = self._write_aside(path, content)
        return self._version_of(path) if _name(aside, path) else None

    def replace(self, key: str, content: bytes, version: Version) -> Version | None:
        path = self._path(key)
        if self._version_of(path) is None:
            return None
        with _locked(path):
            if self._version_of(path) != version:
                return None
            aside = self._write_aside(path, content, is_synced=False)
            _be_later(aside, os.stat(path).st_mtime_ns)
            files.fsync_file(aside)
            files.rename(aside, path)
            files.fsync_dir(os.path.dirname(path))
            return self._version_of(path)

    def writer(self, key: str, part_bytes: int = 8 << 20) -> FolderWriter:
        path = self._path(key)
        files.make_new_folder(os.path.dirname(path))
        return FolderWriter(self, key, path)

    def remove(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            path = self._path(key)
            self.requests.deletes += 1
            if os.path.lexists(path):
                _remove(path)
                folders.add(os.path.dirname(path))
        for folder in sorted(folders):
            files.fsync_dir(folder)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.requests.lists += 1
        above = prefix.rpartition("/")[0]
        if above:
            check_key(above, self.address)
        return self._below(above, prefix)

    def folders(self, prefix: str) -> Sequence[str]:
        self.requests.lists += 1
        above = prefix.rstrip("/")
        if above:
            check_key(above, self.address)
        found = [entry.name for entry in self._entries(above) if entry.is_dir()]
        # empty folders are omitted, because a bucket has none
        return sorted(
            name
            for name in found
            if next(self._below(f"{above}/{name}".lstrip("/"), ""), None) is not None
        )

    def remove_unfinished(self, prefix: str, older_than_ms: int) -> None:
        before_ns = time.time_ns() - older_than_ms * 1_000_000
        for folder, _, names in os.walk(os.path.join(self.address, prefix)):
            for path in (os.path.join(folder, name) for name in names if name.endswith(_ASIDE)):
                # another process has renamed or deleted the file
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(path).st_mtime_ns <= before_ns:
                        files.unlink(path)

    def _path(self, key: str) -> str:
        check_key(key, self.address)
        if key.endswith((_ASIDE, _LOCK)):
            raise LogError(
                f"the object name {key!r} is reserved for temporary files",
                path=self.address,
                remedy=f"use a name that does not end in {_ASIDE} or {_LOCK}",
            )
        return os.path.join(self.address, key)

    def _version_of(self, path: str) -> Version | None:
        try:
            return _version(os.stat(path))
        except _NOT_THERE:
            return None
        except OSError as error:
            raise files.to_log_error(error, path, "read the state of the object") from error

    def _write_aside(self, path: str, content: bytes, *, is_synced: bool = True) -> str:
        aside = _temporary_path(path)
        self.requests.puts += 1
        self.requests.bytes_written += len(content)
        try:
            files.write(aside, content, is_synced=is_synced, like=files.owner_of(path))
        except LogError:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise
        return aside

    def _entries(self, folder: str) -> Sequence[os.DirEntry[str]]:
        path = os.path.join(self.address, folder)
        try:
            with os.scandir(path) as found:
                return list(found)
        except _NOT_THERE:
            return []
        except OSError as error:
            raise files.to_log_error(error, path, "list the folder") from error

    def _below(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        """The objects in a folder and its subfolders, in the order of their keys."""
        keyed = []
        for entry in self._entries(folder):
            is_folder = entry.is_dir()
            keyed.append((f"{folder}/{entry.name}".lstrip("/") + "/" * is_folder, entry, is_folder))
        for key, entry, is_folder in sorted(keyed, key=lambda each: each[0]):
            if is_folder and (key.startswith(prefix) or prefix.startswith(key)):
                yield from self._below(key[:-1], prefix)
            elif not is_folder and key.startswith(prefix) and not key.endswith((_ASIDE, _LOCK)):
                # the file was deleted after it was listed
                with contextlib.suppress(FileNotFoundError):
                    yield _found(key, entry.stat())


class FolderWriter:
    """Writes an object under a temporary name. ``close`` renames it."""

    def __init__(self, store: FolderStore, key: str, path: str) -> None:
        self._store, self._key, self._path = store, key, path
        self._aside = _temporary_path(path)
        like = files.owner_of(path)
        with changing("create", self._aside):
            self._file = files.create(self._aside, like)

    def write(self, data: bytes | ByteArray) -> None:
        view = memoryview(data)
        self._store.requests.bytes_written += len(view)
        with changing("write", self._aside):
            while len(view):
                view = view[self._file.write(view) :]

    def close(self) -> ObjectInfo:
        self._store.requests.puts += 1
        self._file.close()
        files.fsync_file(self._aside)
        if not _name(self._aside, self._path):
            raise CommitConflict(
                "another program created the object during the command",
                path=self._path,
                remedy=_AGAIN,
            )
        found = self._store.head(self._key)
        if found is None:
            raise CommitConflict(
                "another program deleted the object during the command",
                path=self._path,
                remedy=_AGAIN,
            )
        return found

    def abandon(self) -> None:
        self._file.close()
        if os.path.lexists(self._aside):
            files.unlink(self._aside)


def _temporary_path(path: str) -> str:
    return f"{path}.{os.urandom(8).hex()}{_ASIDE}"


def _name(aside: str, path: str) -> bool:
    """Rename a temporary file durably, unless the new name exists."""
    try:
        is_new = files.name_new(aside, path)
    finally:
        files.unlink(aside)
    if is_new:
        files.fsync_dir(os.path.dirname(path))
    return is_new


def _remove(path: str) -> None:
    with contextlib.suppress(CommitConflict):  # another process has deleted it
        if os.path.lexists(path + _LOCK):
            with _locked(path):
                files.unlink(path)
                files.unlink(path + _LOCK)
        else:
            files.unlink(path)


def _be_later(path: str, than_ns: int) -> None:
    # Add a nanosecond. If the time has not changed, add two seconds, which is the time resolution
    # of some file systems.
    for step_ns in (1, 2_000_000_000):
        if os.stat(path).st_mtime_ns > than_ns:
            return
        files.set_mtime(path, than_ns + step_ns)


def _version(status: os.stat_result) -> Version:
    return Version(f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}")


def _found(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _version(status), status.st_mtime_ns // 1_000_000)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """A context that locks the lock file of the object at ``path``.

    The lock file is deleted together with the object.
    """
    lock = path + _LOCK
    handle = _lock(lock, path)
    try:
        # another process deleted the lock file while this process waited
        while not _is_still(lock, handle):
            os.close(handle)
            handle = _lock(lock, path)
        yield
    finally:
        os.close(handle)


def _lock(lock: str, path: str) -> int:
    like = files.owner_of(path)
    with changing("lock", lock):
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            try:
                handle = ownership.make(lock, like)
            except FileExistsError:
                handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        os.close(handle)
        if error.errno not in _NO_FLOCK:
            raise files.to_log_error(error, lock, "lock the object") from error
        raise LogError(
            f"the file system at {mount_of(path)} does not support locks (flock)",
            path=path,
            remedy="mount the file system with locks, or give a folder on another one, or a bucket",
        ) from error
    return handle


def _is_still(lock: str, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(lock), os.fstat(handle))
    except FileNotFoundError:
        return False
