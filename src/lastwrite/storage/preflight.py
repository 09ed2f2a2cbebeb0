"""Find, before anything is written, the reasons that would stop a swap of files halfway.

A file may be immutable or append-only (``chattr +i``, ``+a``). Its folder may not be writable, may
be on a read-only file system, or may be sticky. A rename or a removal then fails, and a swap would
leave old files behind. The caller may also be unable to give new files to the old owner (see
``ownership``). The check takes a few system calls per log, and opens no file.

Source: Linux man-pages statx(2), ioctl_iflags(2), access(2), inode(7) for the sticky bit.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lastwrite.errors import LogError
from lastwrite.storage import ownership
from lastwrite.storage.files import to_log_error

_COPY = "or write a cleaned copy elsewhere with --to; nothing was changed"
_NO_FOLLOW, _TYPE_MODE_UID_GID = 0x100, 0x1 | 0x2 | 0x8 | 0x10
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20
# the fields of Linux's struct statx up to stx_attributes_mask
_STATX = struct.Struct("=IIQIIIHHQQQQ")
_STATX_BYTES = 256


class _FileAttributes(NamedTuple):
    mode: int
    uid: int
    gid: int
    flags: int  # bits _IMMUTABLE and _APPEND_ONLY; 0 if the system does not report them


def _statx_call() -> Callable[[str], _FileAttributes]:
    try:
        call = ctypes.CDLL(None, use_errno=True).statx
    except (AttributeError, OSError):  # the system is not Linux, or its C library lacks statx
        call = None
    if call is None or platform.system() != "Linux":
        return _stat
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)

    def look(path: str) -> _FileAttributes:
        if call(-100, os.fsencode(path), _NO_FOLLOW, _TYPE_MODE_UID_GID, buffer):
            return _stat(path)
        _, _, flags, _, uid, gid, mode, _, _, _, _, known = _STATX.unpack_from(buffer)
        return _FileAttributes(mode, uid, gid, flags & known)

    return look


def _stat(path: str) -> _FileAttributes:
    seen = os.stat(path, follow_symlinks=False)
    told = getattr(seen, "st_flags", 0)  # macOS
    flags = _IMMUTABLE * bool(told & (stat.UF_IMMUTABLE | stat.SF_IMMUTABLE))
    flags |= _APPEND_ONLY * bool(told & (stat.UF_APPEND | stat.SF_APPEND))
    return _FileAttributes(seen.st_mode, seen.st_uid, seen.st_gid, flags)


_look = _statx_call()


def reject_unwritable(folder: str, names: Iterable[str]) -> None:
    """Check that files can be created in the folder, and that its files ``names`` can be replaced.

    Names that do not exist are skipped. The caller must be able to give new files the owner of the
    old files.

    Raises:
        LogError: a file cannot be created or replaced. The error has the reason and the path.
    """
    try:
        above = os.stat(folder)
        here = _look(os.path.join(folder, "."))
        _reject_flags(folder, here.flags, "the folder")
        if not os.access(
            folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
        ):
            raise _not_writable(folder)
        caller, group = os.geteuid(), ownership.group_of_new(above)
        is_shared = bool(above.st_mode & stat.S_ISVTX) and caller not in (0, above.st_uid)
        for name in names:
            path = f"{folder}/{name}"
            try:
                seen = _look(path)
            except FileNotFoundError:
                continue
            _reject_flags(path, seen.flags, "the file")
            if is_shared and seen.uid != caller:
                raise LogError(
                    "the file belongs to another user, in a folder with the sticky bit, where "
                    "only owners can rename files",
                    path=path,
                    remedy=f"run Lastwrite as {ownership.user_name(seen.uid)}, {_COPY}",
                )
            if (seen.uid, seen.gid) != (caller, group):
                ownership.reject_owner(path, seen.uid, seen.gid, above)
    except OSError as error:
        raise to_log_error(error, folder, "read the state of the folder") from error


def _reject_flags(path: str, flags: int, what: str) -> None:
    if flags & _IMMUTABLE:
        raise LogError(
            f"{what} is immutable (file attribute i)",
            path=path,
            remedy=f"if the log may be changed, remove the attribute with chattr -i, {_COPY}",
        )
    if flags & _APPEND_ONLY:
        raise LogError(
            f"{what} is append-only (file attribute a), so no file can be replaced",
            path=path,
            remedy=f"if the log may be changed, remove the attribute with chattr -a, {_COPY}",
        )


def _not_writable(folder: str) -> LogError:
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return LogError(
            "the file system is mounted read-only",
            path=folder,
            remedy=f"mount the file system for writing, {_COPY}",
        )
    owner = ownership.user_name(os.stat(folder).st_uid)
    return LogError(
        "this user cannot write to the folder",
        path=folder,
        remedy=f"run Lastwrite as the folder's owner, {owner}, {_COPY}",
    )
