"""Ownership of new files: owner, group, mode, access list and attributes of the replaced file.

Otherwise a compaction that root runs on logs of user ``kafka`` would leave files that the broker
cannot open, and would make files of mode ``0600`` readable. For ``0.log`` of ``kafka:kafka 0640``::

    0.log.5e….cleaned      created with 0600, chowned to kafka:kafka, then 0640; only then the first
                           byte is written

A file that a recovery may adopt therefore never has another owner, and never more readers than
before. A file that replaces nothing gets the owner and group of its folder and the mode of a
sibling.

Extended attributes are copied if they control access or belong to users: the POSIX access list,
SELinux's label and ``user.*``. Other attributes (hashes of ``security.ima``, capabilities) describe
the old bytes.

Source: Linux man-pages chown(2), acl(5), xattr(7); the layout of ``system.posix_acl_access`` from
the kernel's ``include/uapi/linux/posix_acl_xattr.h``.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pwd
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lastwrite.errors import LogError

ACCESS_LIST = "system.posix_acl_access"

_LABEL = "security.selinux"
_OWN = "user."
_PRIVATE = 0o600
_KEEPS_ATTRIBUTES = hasattr(os, "listxattr")
_NOT_KNOWN = {
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EPERM,
    errno.EACCES,
    errno.EINVAL,
}
_ACCESS_HEAD, _ACCESS_ENTRY = (
    struct.Struct("<I"),
    struct.Struct("<HHI"),
)  # the head of an access list (version), and one of its entries (tag, rights, id)
_OF_GROUP = 0x04  # the tag of the owning group in an access list


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner, group, mode and attributes that a new file gets from the file that it replaces.

    If ``is_required`` is false, values that the caller may not set are skipped. If ``attributes``
    is None, the file keeps the attributes that it inherits from its folder.
    """

    uid: int
    gid: int
    mode: int  # permission bits, without the file type
    attributes: tuple[tuple[str, bytes], ...] | None = ()
    is_required: bool = True

    def as_far_as_may(self) -> Ownership:
        """A copy of the ownership that skips the values which the calling user may not set."""
        return replace(self, is_required=False)


def of(path: str) -> Ownership:
    """The ownership of a file or folder.

    Raises:
        OSError: the file does not exist or is not accessible.
    """
    seen = os.stat(path)
    return Ownership(seen.st_uid, seen.st_gid, stat.S_IMODE(seen.st_mode), _attributes(path))


def of_new(folder: str, siblings: Iterable[str] = ()) -> Ownership:
    """The ownership for a new file in ``folder``.

    The file gets the folder's owner and group, and the mode of the first existing file of
    ``siblings``. If root owns the folder, a broker may have access through the group, so that
    sibling's owner and group are used instead. Without a sibling, the mode is the folder's, limited
    by the umask.

    Raises:
        OSError: the folder is not accessible.
    """
    above = os.stat(folder)
    for sibling in siblings:
        try:
            seen = os.stat(sibling)
        except OSError:
            continue
        owner = seen if above.st_uid == 0 else above
        rights = tuple(pair for pair in _attributes(sibling) if pair[0] == ACCESS_LIST)
        return Ownership(
            owner.st_uid, owner.st_gid, stat.S_IMODE(seen.st_mode) & 0o666 | _PRIVATE, rights
        )
    return Ownership(
        above.st_uid, above.st_gid, stat.S_IMODE(above.st_mode) & 0o666 & ~_umask() | _PRIVATE, None
    )


def of_new_folder(path: str) -> Ownership | None:
    """The ownership for a new folder: the nearest existing parent's owner, and a mode by the umask.

    None if that parent belongs to the caller, or has the sticky bit, which means that all users
    share it.

    Raises:
        OSError: no parent is accessible.
    """
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    seen = os.stat(above)
    if seen.st_mode & stat.S_ISVTX or seen.st_uid == os.geteuid():
        return None
    return Ownership(
        seen.st_uid,
        seen.st_gid,
        0o777 & ~_umask() | seen.st_mode & stat.S_ISGID,
        None,
        is_required=False,
    )


def of_replaced(path: str, siblings: Iterable[str] = ()) -> Ownership:
    """The ownership of ``path`` if it exists, otherwise of a new file in its folder.

    Raises:
        OSError: the file or the folder is not accessible.
    """
    try:
        return of(path)
    except FileNotFoundError:
        return of_new(os.path.dirname(path), siblings)


def private() -> Ownership:
    """The calling user's ownership and mode 0600, for part files that are combined later."""
    return Ownership(os.geteuid(), os.getegid(), _PRIVATE, None, is_required=False)


def make(path: str, ownership: Ownership | None, *, is_new: bool = True) -> int:
    """Create a file for reading and writing, with its ownership set before its first byte.

    With ``ownership`` None the file belongs to the caller, with the umask's mode. If ``is_new`` is
    false, an existing file is truncated. A link is deleted, so that no data is written to a file
    that another user linked there.

    Raises:
        OSError: the file cannot be created, or cannot get a required owner. No file is left.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o666 if ownership is None else _PRIVATE
    if ownership is not None and ownership.uid == os.geteuid():
        # the file is created with its final mode, because it needs no chown
        mode = ownership.mode & 0o777
    try:
        handle = os.open(path, flags, mode)
    except FileExistsError:
        if is_new:
            raise
        there = _emptied(path)
        handle = os.open(path, flags, mode) if there is None else there
    if ownership is not None:
        try:
            give(handle, ownership)
        except BaseException:
            os.close(handle)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
    return handle


def _emptied(path: str) -> int | None:
    """Truncate an existing file and return its handle.

    If it is a link, delete it and return None.
    """
    seen = os.lstat(path)
    if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.ftruncate(handle, 0)
        return handle
    os.unlink(path)
    return None


def give(file: int | str, ownership: Ownership) -> bool:
    """Set the ownership of a file or folder. Returns whether it changed anything.

    Raises:
        OSError: a required owner, group, mode or access list cannot be set.
    """
    seen = os.stat(file)
    changed = _give_owner(file, seen, ownership)
    mode = ownership.mode
    if _KEEPS_ATTRIBUTES and ownership.attributes is not None:
        given, mode = _give_attributes(file, ownership.attributes, ownership)
        changed |= given
    if changed or stat.S_IMODE(seen.st_mode) != mode:
        os.chmod(file, mode)
        return True
    return False


def _give_owner(file: int | str, status: os.stat_result, ownership: Ownership) -> bool:
    if (status.st_uid, status.st_gid) == (ownership.uid, ownership.gid):
        return False
    try:
        os.chown(file, ownership.uid, ownership.gid)
    except OSError as error:
        if ownership.is_required:
            raise
        if error.errno not in _NOT_KNOWN:
            raise
        with contextlib.suppress(OSError):
            os.chown(file, -1, ownership.gid)
    return True


def _attributes(path: str) -> tuple[tuple[str, bytes], ...]:
    if not _KEEPS_ATTRIBUTES:
        return ()
    try:
        names = os.listxattr(path)
    except OSError as error:
        if error.errno in _NOT_KNOWN:
            return ()
        raise
    found = []
    for name in sorted(filter(_is_kept, names)):
        with contextlib.suppress(OSError):  # the attribute was deleted, or users cannot read it
            found.append((name, os.getxattr(path, name)))
    return tuple(found)


def _is_kept(name: str) -> bool:
    return name in (ACCESS_LIST, _LABEL) or name.startswith(_OWN)


def _give_attributes(
    file: int | str, attributes: tuple[tuple[str, bytes], ...], ownership: Ownership
) -> tuple[bool, int]:
    """Set the attributes. Returns whether any changed, and the resulting mode."""
    wanted = dict(attributes)
    try:
        there = os.listxattr(file)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:
            raise
        there = []
    changed = False
    mode = ownership.mode
    # the new file has inherited this list from its folder
    if ACCESS_LIST in there and ACCESS_LIST not in wanted:
        os.removexattr(file, ACCESS_LIST)
        changed = True
    for name, value in wanted.items():
        try:
            if name in there and os.getxattr(file, name) == value:
                continue
            os.setxattr(file, name, value)
            changed = True
        except OSError as error:
            if name == ACCESS_LIST:
                if ownership.is_required or error.errno not in _NOT_KNOWN:
                    raise
                # The group bits of the mode contain the mask of the access list. Without the list,
                # the group could get more rights than the list gives it, so the bits are limited to
                # these rights.
                mode &= ~0o070 | _rights_of_group(value) << 3
            elif error.errno not in (*_NOT_KNOWN, errno.ENOSPC, errno.E2BIG, errno.EDQUOT):
                raise
    return changed, mode


def _rights_of_group(access_list: bytes) -> int:
    """The permission bits of the owning group in a POSIX access list."""
    body = access_list[_ACCESS_HEAD.size :]
    for tag, rights, _ in _ACCESS_ENTRY.iter_unpack(
        body[: len(body) // _ACCESS_ENTRY.size * _ACCESS_ENTRY.size]
    ):
        if tag == _OF_GROUP:
            return int(rights) & 7
    return 0


def _umask() -> int:
    """The caller's umask, read without changing it if the system supports that."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


# ---------------------------------------------------------------------- permission


def reject_foreign(paths: Iterable[str]) -> None:
    """Check, before anything is written, that the caller can give new files to the old owner.

    ``paths`` are folders. Missing folders are skipped. Folders of root are skipped, too: brokers
    may use them through the group, and the owner of their files is checked later.

    Raises:
        LogError: a folder belongs to a user or group that the caller cannot give files to.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            seen = os.stat(path)
            if seen.st_uid:
                reject_owner(path, seen.st_uid, seen.st_gid, seen)


def reject_owner(path: str, uid: int, gid: int, folder: os.stat_result | None = None) -> None:
    """Check that the calling user can give a file in ``folder`` to this user and group.

    Raises:
        LogError: the caller cannot give files to that user and group.
    """
    caller, group = os.geteuid(), group_of_new(folder)
    if (uid, gid) == (caller, group) or may_give(
        -1 if uid == caller else uid, -1 if gid == group else gid
    ):
        return
    if uid == caller:
        raise LogError(
            f"the file belongs to group {gid}, and {user_name(caller)} cannot give new files "
            "to this group",
            path=path,
            remedy="run Lastwrite as a member of this group or as root, or write a cleaned copy "
            "elsewhere with --to",
        )
    owner = user_name(uid)
    raise LogError(
        f"the file belongs to {owner}, and {user_name(caller)} cannot give files to another "
        f"user: a broker of {owner} could not open the new files",
        path=path,
        remedy=f"nothing was changed; run Lastwrite as its owner (sudo -u {owner} lastwrite …) or "
        "as root, or write a cleaned copy elsewhere with --to",
    )


def group_of_new(folder: os.stat_result | None) -> int:
    """The group that new files in ``folder`` get. ``folder`` None means a folder without setgid."""
    if folder is not None and (folder.st_mode & stat.S_ISGID or sys.platform == "darwin"):
        return folder.st_gid
    return os.getegid()


def may_give(uid: int, gid: int) -> bool:
    """Whether the calling user may chown a file to this user and group. -1 means unchanged.

    The test changes the owner of a temporary, unnamed file.
    """
    return _may_give(uid, gid, os.geteuid())


@functools.lru_cache(maxsize=256)
def _may_give(uid: int, gid: int, caller: int) -> bool:
    try:
        with _nameless() as handle:
            os.fchown(handle, uid, gid)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _nameless() -> Iterator[int]:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("lastwrite")
        try:
            yield handle
        finally:
            os.close(handle)
    else:
        with tempfile.TemporaryFile() as file:
            yield file.fileno()


def user_name(uid: int) -> str:
    """The name of the user with this number, or ``#1000`` for a number without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"  # a user number in the form that sudo -u accepts


__all__ = [
    "ACCESS_LIST",
    "Ownership",
    "give",
    "group_of_new",
    "make",
    "may_give",
    "of",
    "of_new",
    "of_new_folder",
    "of_replaced",
    "private",
    "reject_foreign",
    "reject_owner",
    "user_name",
]
