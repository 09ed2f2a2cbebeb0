"""All operations that change a log's files, one function each.

Each function passes a *fault point* before it acts, so that a test can stop the process between any
two operations::

    LASTWRITE_FAULT_POINT=7      before the seventh operation the process kills itself
    LASTWRITE_FAULT_ERROR=28     instead, this and all later operations fail with this errno
                                 (28: disk full)
    LASTWRITE_FAULT_LOG=FILE     the operations are appended to FILE, one per line

File contents are written in two halves with a fault point in between, so that torn writes are
tested, too.

An error of the operating system becomes a ``LogError`` with the file and a remedy. Examples are a
full disk, a read-only folder and a file that vanished meanwhile (``CommitConflict``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO

from lastwrite.errors import CommitConflict, LogError
from lastwrite.storage import deferred_unlink, ownership
from lastwrite.storage.ownership import Ownership

DELETED = "another program deleted"  # text for the error if a listed file is missing
# maximum number of bytes that one system call copies
_COPY_BYTES = 64 << 20
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS}
_NO_FAST_COPY = {
    errno.EXDEV,
    errno.ENOSYS,
    errno.EINVAL,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EBADF,
    errno.EPERM,
}
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class FaultPoints:
    """Counts this process's changes to files, and makes one of them fail, to test crash recovery.

    Before operation number ``point``, the process kills itself if ``error`` is 0. Otherwise the
    operation fails with errno ``error``, and so do all later operations unless ``once``. With
    ``point`` 0 all operations are performed.
    """

    def __init__(
        self, point: int = 0, error: int = 0, log: str | None = None, once: bool = False
    ) -> None:
        self.point, self.error, self.log, self.once = point, error, log, once
        self.passed = 0
        self.is_armed = bool(point or log)

    @classmethod
    def from_environment(cls, names: Mapping[str, str]) -> FaultPoints:
        return cls(
            int(names.get("LASTWRITE_FAULT_POINT", "0")),
            int(names.get("LASTWRITE_FAULT_ERROR", "0")),
            names.get("LASTWRITE_FAULT_LOG"),
        )

    def reach(self, operation: str, path: str) -> None:
        """Count ``operation``, which the caller is about to perform.

        Kill the process or fail if it is the chosen one.
        """
        if not self.is_armed:
            return
        self.passed += 1
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{operation} {os.path.basename(path)}\n")
        if self.point and self.passed >= self.point:
            if self.error:
                if self.once and self.passed > self.point:
                    return
                raise OSError(self.error, os.strerror(self.error), path)
            os.kill(os.getpid(), signal.SIGKILL)

    def synced(self, handle: int) -> None:
        """Do nothing.

        Called after each sync of ``handle``; tests override it to simulate power loss.
        """


faults = FaultPoints.from_environment(os.environ)


def to_log_error(error: OSError, path: str, doing: str) -> LogError:
    """Convert an ``OSError`` to a ``LogError`` with a remedy.

    The message is "could not ``doing``".
    """
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LogError(
            f"could not {doing}: the disk is full",
            path=path,
            remedy="free some space on the disk, then run the command again",
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return LogError(
            f"could not {doing}: too many files are open",
            path=path,
            remedy="raise the limit with ulimit -n, or process fewer logs at once",
        )
    if error.errno in (errno.EFBIG,):
        return LogError(
            f"could not {doing}: the file would exceed the file size limit",
            path=path,
            remedy="raise the limit with ulimit -f",
        )
    if error.errno == errno.EROFS:
        return LogError(
            f"could not {doing}: the file system is read-only",
            path=path,
            remedy="mount the file system for writing, or write a cleaned copy elsewhere with --to",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return LogError(
            f"could not {doing}: {reason.lower()}",
            path=path,
            remedy="run Lastwrite as the user that owns the log, or write a cleaned copy "
            "elsewhere with --to",
        )
    if error.errno == errno.ENOENT:
        return CommitConflict(
            f"could not {doing}: {DELETED} the file during the command",
            path=path,
            remedy="stop the program that changes the log, then run the command again",
        )
    return LogError(
        f"could not {doing}: {reason}",
        path=path,
        remedy="check the disk, then run the command again",
    )


class changing:
    """A context for one change of a file: counts a fault point, and raises LogError on failure."""

    __slots__ = ("_doing", "_operation", "_path")

    def __init__(self, operation: str, path: str, doing: str) -> None:
        self._operation, self._path, self._doing = operation, path, doing

    def __enter__(self) -> None:
        try:
            faults.reach(self._operation, self._path)
        except OSError as error:
            self.__exit__(None, error, None)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError):
            raise to_log_error(error, self._path, self._doing) from error


def list_names(folder: str) -> list[str]:
    """The sorted names of the entries of ``folder``. Empty if it does not exist.

    Raises:
        LogError: the folder cannot be listed.
    """
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error


def create(path: str, like: Ownership | None) -> FileIO:
    """Create a file for reading and writing. Its owner and mode are set before the first byte.

    This is not a fault point. The caller calls ``FaultPoints.reach`` first.

    Raises:
        OSError: the file exists, or cannot be created.
    """
    return open(ownership.make(path, like), "r+b", buffering=0)


def write(
    path: str, content: bytes, *, is_synced: bool = True, like: Ownership | None = None
) -> None:
    """Write ``content`` to a new file, or overwrite the existing one.

    The file is synced unless ``is_synced`` is false. The file's owner is set to ``like`` before the
    first byte is written. None means the calling user.
    """
    with (
        changing("write", path, "write the file"),
        open(ownership.make(path, like, is_new=False), "wb", buffering=0) as file,
    ):
        half = len(content) // 2 if faults.is_armed else 0
        _write_all(file.fileno(), content[:half])
        if half:
            faults.reach("write the rest", path)
        _write_all(file.fileno(), content[half:])
        if is_synced:
            _sync(file.fileno())


def append(path: str, content: bytes, at: int) -> None:
    """Append ``content`` to a file of ``at`` bytes, or create the file.

    There must be no other writer. If the write fails, the file is truncated to ``at`` bytes. The
    file is not synced: the bytes survive a crash of the process, but not of the machine.
    """
    with (
        changing("append", path, "append to the file"),
        open(path, "ab", buffering=0) as file,
    ):
        half = len(content) // 2 if faults.is_armed else 0
        try:
            _write_all(file.fileno(), content[:half])
            if half:
                faults.reach("append the rest", path)
            _write_all(file.fileno(), content[half:])
        except OSError:
            os.ftruncate(file.fileno(), at)
            raise


def replace(
    path: str,
    content: bytes,
    *,
    suffix: str = ".tmp",
    is_synced: bool = True,
    like: Ownership | None = None,
) -> None:
    """Replace a file atomically: write ``path + suffix``, then rename it.

    After a failure the previous file is unchanged. The caller syncs the folder.
    """
    staged = path + suffix
    with removed_on_failure(staged):
        write(staged, content, is_synced=is_synced, like=like)
        rename(staged, path)


@contextlib.contextmanager
def removed_on_failure(path: str) -> Iterator[None]:
    """Delete the file if the context ends with an error or Ctrl-C."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(LogError, OSError):
            unlink(path)
        raise


def _write_all(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while len(view):
        view = view[os.write(handle, view) :]


def _sync(handle: int) -> None:
    # use F_FULLFSYNC on macOS, where fsync returns before the bytes are on disk
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(handle, full)
            faults.synced(handle)
            return
        except OSError:
            pass
    os.fsync(handle)
    faults.synced(handle)


def _early_writeback() -> Callable[[int, int, int], None]:
    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (AttributeError, OSError, TypeError):  # not Linux
        return lambda handle, position, size: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    begin_to_write = 2  # the flag SYNC_FILE_RANGE_WRITE
    return lambda handle, position, size: call(handle, position, size, begin_to_write)


start_writeback = _early_writeback()
"""Start writing bytes of a file to disk, without waiting for the disk.

The arguments are the file handle, the position and the size.

A hint that makes nothing durable; on systems without the call it does nothing. It leaves less work
to a later sync."""


def fsync_file(path: str) -> None:
    """Sync the file's content to disk."""
    with changing("fsync", path, "sync the file"):
        handle = os.open(path, os.O_RDONLY)
        try:
            _sync(handle)
        finally:
            os.close(handle)


def fsync_dir(folder: str) -> None:
    """Sync the folder's entries to disk."""
    with changing("fsync folder", folder, "sync the folder"):
        handle = os.open(folder, os.O_RDONLY)
        try:
            _sync(handle)
        except OSError as error:
            # some network file systems cannot sync a folder; their renames are durable at once
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)


def rename(source: str, target: str) -> None:
    """Rename a file, replacing an existing target."""
    with changing("rename", target, f"rename {source.rpartition('/')[2]} to this"):
        os.rename(source, target)


def unlink(path: str) -> None:
    """Delete a file. Its space is freed in the background."""
    with changing("unlink", path, "remove the file"):
        handle = deferred_unlink.hold(path)
        try:
            os.unlink(path)
        finally:
            deferred_unlink.release(handle)


def truncate(path: str, size_bytes: int) -> None:
    """Truncate a file to its first ``size_bytes``."""
    with changing("truncate", path, "cut the file"):
        os.truncate(path, size_bytes)


def set_mtime(path: str, mtime_ns: int) -> None:
    """Set a file's modification time."""
    with changing("utime", path, "set the file's time"):
        os.utime(path, ns=(mtime_ns, mtime_ns))


def make_folder(path: str, like: Ownership | None = None, *, is_synced: bool = True) -> None:
    """Create a folder and its missing parents. Syncs their parents unless ``is_synced`` is false.

    ``like`` is the owner of the new folders; None means the calling user. Existing folders are
    unchanged.
    """
    missing, path = [], os.path.abspath(path)
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with changing("mkdir", folder, "make the folder"):
            try:
                os.mkdir(folder, 0o777 if like is None else 0o700)
            except FileExistsError:
                # no error if another process has created the folder
                if not os.path.isdir(folder):
                    raise
            else:
                if like is not None:
                    _give(folder, like)
        if is_synced:
            fsync_dir(os.path.dirname(folder))


def _exchange_call() -> Callable[[bytes, bytes], int]:
    here, swap = -100, 2  # values of AT_FDCWD, and of RENAME_EXCHANGE or (on macOS) RENAME_SWAP
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            call = library.renamex_np
            call.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint)
            return lambda one, other: call(one, other, swap)
        if hasattr(library, "renameat2"):
            call = library.renameat2
            call.argtypes = (
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_uint,
            )
            return lambda one, other: call(here, one, here, other, swap)
        # The C library lacks the function, so the system call is made by its number, which depends
        # on the machine.
        number = {"x86_64": 316, "aarch64": 276, "riscv64": 276}[platform.machine()]
        library.syscall.argtypes = (
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_uint,
        )
        return lambda one, other: library.syscall(number, here, one, here, other, swap)
    except (AttributeError, KeyError, OSError, TypeError):
        return lambda one, other: -1


_swap_names = _exchange_call()


def exchange(one: str, other: str) -> None:
    """Exchange the names of two folders or files atomically.

    Raises:
        LogError: the system or the file system does not support this, or ``one`` and ``other`` are
            on different file systems.
    """
    with changing("exchange", other, f"exchange {os.path.basename(one)} with this"):
        ctypes.set_errno(errno.ENOSYS)
        if _swap_names(os.fsencode(one), os.fsencode(other)):
            number = ctypes.get_errno()
            if number in _NO_EXCHANGE:
                raise LogError(
                    "the file system cannot exchange two folders in one step",
                    path=other,
                    remedy="write a cleaned copy elsewhere with --to",
                )
            if number in (errno.EXDEV, errno.EBUSY):
                raise LogError(
                    "the folder is a mount point, so it cannot be exchanged",
                    path=other,
                    remedy="mount the parent folder instead, or write a cleaned copy elsewhere "
                    "with --to",
                )
            raise OSError(number, os.strerror(number), other)


def give(path: str, like: Ownership, *, is_synced: bool = False) -> None:
    """Set the owner and mode of a file or folder. With ``is_synced``, sync a changed file."""
    with changing("give", path, "give it to the log's owner"):
        _give(path, like, is_synced=is_synced)


def _give(path: str, like: Ownership, *, is_synced: bool = False) -> None:
    # A handle is used, because a user with write access to the folder could replace the file by a
    # link.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if ownership.give(handle, like) and is_synced:
            _sync(handle)
    finally:
        os.close(handle)


def owner_of(path: str, siblings: Iterable[str] = ()) -> Ownership:
    """The ownership of ``path`` if it exists, otherwise of a new file in its folder.

    Raises:
        LogError: the file is not accessible.
    """
    try:
        return ownership.of_replaced(path, siblings)
    except OSError as error:
        raise to_log_error(error, path, "read the owner of the file") from error


def make_new_folder(path: str) -> None:
    """Create a folder with the owner of its nearest existing parent folder."""
    if not os.path.isdir(path):
        make_folder(path, ownership.of_new_folder(path))


def copy_symlink(source: str, target: str) -> None:
    """Create a symbolic link with the same target."""
    with changing("symlink", target, "make the symbolic link"):
        os.symlink(os.readlink(source), target)


def remove_tree(path: str) -> None:
    """Delete a folder with its contents, if it exists. Symbolic links are not followed."""
    try:
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise to_log_error(error, path, "list the folder") from error
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        else:
            unlink(entry.path)
    with changing("rmdir", path, "remove the folder"):
        os.rmdir(path)


def link(source: str, target: str) -> None:
    """Create a hard link to a file, or a copy if the file system does not support links."""
    with changing("link", target, f"link {os.path.basename(source)} to this"):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(source, target, ownership.of(source))


def name_new(source: str, target: str) -> bool:
    """Link a file to a new name atomically. Returns False if that name exists.

    The caller deletes the old name.

    Raises:
        LogError: the file system does not support hard links.
    """
    with changing("name", target, f"give {os.path.basename(source)} this name"):
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise LogError(
                "the file system has no hard links, so a file cannot be created atomically",
                path=target,
                remedy="give a folder on another file system, or a bucket",
            ) from error
    return True


def copy(source: str, target: str) -> None:
    """Copy and sync a file, with its times and, as far as permitted, its owner and mode."""
    with changing("copy", target, f"copy {os.path.basename(source)} to this"):
        _copy(source, target, ownership.of(source).as_far_as_may())


def append_file(source: str, writer: int) -> int:
    """Append the file's bytes to the open file ``writer``, without a sync.

    Returns the number of appended bytes.

    Raises:
        OSError: a file cannot be read or written.
    """
    with open(source, "rb", buffering=0) as reader:
        size = os.fstat(reader.fileno()).st_size
        try:
            _copy_in_kernel(reader.fileno(), writer, size)
        except OSError as error:
            if error.errno not in _NO_FAST_COPY:
                raise
            while block := os.read(reader.fileno(), 1 << 20):
                _write_all(writer, block)
        return size


def _copy(source: str, target: str, like: Ownership) -> None:
    with (
        open(source, "rb", buffering=0) as reader,
        open(ownership.make(target, like, is_new=False), "r+b", buffering=0) as writer,
    ):
        seen = os.fstat(reader.fileno())
        try:
            _copy_in_kernel(reader.fileno(), writer.fileno(), seen.st_size)
        except OSError as error:
            if error.errno not in _NO_FAST_COPY:
                raise
            reader.seek(0)
            writer.seek(0)
            writer.truncate(0)
            shutil.copyfileobj(reader, writer, 1 << 20)
        os.utime(writer.fileno(), ns=(seen.st_atime_ns, seen.st_mtime_ns))
        _sync(writer.fileno())


def _copy_in_kernel(reader: int, writer: int, size_bytes: int) -> None:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    left = size_bytes
    while left:
        copied = os.copy_file_range(reader, writer, min(left, _COPY_BYTES))
        if copied == 0:  # the source was truncated, which the check of its identity reports
            return
        left -= copied
