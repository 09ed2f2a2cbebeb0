"""Whose a new file is: it takes owner, group, rights, access list and attributes of what it
replaces.

A round that root runs beside a broker of user ``kafka`` would else leave files that the broker
cannot open, and let everybody read what was ``0600``. Take ``0.log`` of ``kafka:kafka 0640``::

    0.log.5e….cleaned      made with 0600, given to kafka:kafka, then 0640, and only then the first
                           byte is written

So at no moment does a file that a recovery may adopt belong to somebody else, nor can anybody read
aside what he could not read before. A file that replaces nothing takes owner and group of its
folder and the rights of a sibling.

Of extended attributes those are taken along that say who may do what, or are somebody's own: the
POSIX access list, SELinux's label and ``user.*``. Others (hashes that ``security.ima`` keeps,
capabilities) belong to the bytes.

Source: Linux man-pages chown(2), acl(5), xattr(7); the layout of ``system.posix_acl_access`` from
the kernel's
``include/uapi/linux/posix_acl_xattr.h``.
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
)  # version; tag, rights, who
_OF_GROUP = 0x04  # the tag of the file's own group


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a file has from the one that it replaces. ``is_required``: not as far as the caller may,
    but wholly.

    ``attributes`` None: those that its folder hands down.
    """

    uid: int
    gid: int
    mode: int  # rights, without the kind of file
    attributes: tuple[tuple[str, bytes], ...] | None = ()
    is_required: bool = True

    def as_far_as_may(self) -> Ownership:
        """The same for a copy elsewhere, which is the caller's own if he may not give it away."""
        return replace(self, is_required=False)


def of(path: str) -> Ownership:
    """What a successor of the file or folder has to have.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    seen = os.stat(path)
    return Ownership(seen.st_uid, seen.st_gid, stat.S_IMODE(seen.st_mode), _attributes(path))


def of_new(folder: str, siblings: Iterable[str] = ()) -> Ownership:
    """For a file in ``folder`` that replaces nothing: the folder's owner and group, the rights of
    the first of the files ``siblings`` that is there.

    A folder of root's says little, for a broker may be let in by its group: then the sibling's
    owner is taken too. Without a sibling the rights are those that the folder gives, as far as the
    umask allows.

    Raises:
        OSError: the folder cannot be looked at.
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
    """For the folder ``path``, which is not there yet: owner and group of the nearest one above
    that is, and the rights that the umask leaves. None: that one is everybody's, or the caller's.

    Raises:
        OSError: nothing above can be looked at.
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
    """``of`` the file ``path`` where it is there, else ``of_new`` in its folder.

    Raises:
        OSError: neither can be looked at.
    """
    try:
        return of(path)
    except FileNotFoundError:
        return of_new(os.path.dirname(path), siblings)


def private() -> Ownership:
    """The caller's own, for nobody else: for a part of what is put together later."""
    return Ownership(os.geteuid(), os.getegid(), _PRIVATE, None, is_required=False)


def make(path: str, ownership: Ownership | None, *, is_new: bool = True) -> int:
    """A handle of a new file for reading and writing, which has its ownership before its first
    byte.

    None: it is the caller's own, with the rights that the umask leaves. ``is_new``: a file that is
    there is an error;
    else it becomes empty, and a link in its place goes: nobody who has put one there gets what is
    written.

    Raises:
        OSError: it cannot be made, or not be given away where that is required; then there is none.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o666 if ownership is None else _PRIVATE
    if ownership is not None and ownership.uid == os.geteuid():
        # nothing is to be given away: one call less for each of many small files
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
    """A handle of the file that is there, without its bytes; a link is removed."""
    seen = os.lstat(path)
    if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.ftruncate(handle, 0)
        return handle
    os.unlink(path)
    return None


def give(file: int | str, ownership: Ownership) -> bool:
    """Let a file or folder have the ownership; returns whether anything had to be changed.

    Raises:
        OSError: what the system refuses of owner, group, rights or access list, where they are
            required.
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


def _give_owner(file: int | str, seen: os.stat_result, ownership: Ownership) -> bool:
    if (seen.st_uid, seen.st_gid) == (ownership.uid, ownership.gid):
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
        with contextlib.suppress(OSError):  # it went in between, or only the kernel may read it
            found.append((name, os.getxattr(path, name)))
    return tuple(found)


def _is_kept(name: str) -> bool:
    return name in (ACCESS_LIST, _LABEL) or name.startswith(_OWN)


def _give_attributes(
    file: int | str, attributes: tuple[tuple[str, bytes], ...], ownership: Ownership
) -> tuple[bool, int]:
    """Whether any was set or taken away, and the rights that are right then."""
    wanted = dict(attributes)
    try:
        there = os.listxattr(file)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:
            raise
        there = []
    changed = False
    mode = ownership.mode
    if ACCESS_LIST in there and ACCESS_LIST not in wanted:  # what the folder hands down
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
                # Without the list its mask would be the group's rights.
                mode &= ~0o070 | _rights_of_group(value) << 3
            elif error.errno not in (*_NOT_KNOWN, errno.ENOSPC, errno.E2BIG, errno.EDQUOT):
                raise
    return changed, mode


def _rights_of_group(access_list: bytes) -> int:
    """What the file's own group may by a POSIX access list."""
    body = access_list[_ACCESS_HEAD.size :]
    for tag, rights, _ in _ACCESS_ENTRY.iter_unpack(
        body[: len(body) // _ACCESS_ENTRY.size * _ACCESS_ENTRY.size]
    ):
        if tag == _OF_GROUP:
            return int(rights) & 7
    return 0


def _umask() -> int:
    """The caller's, without changing it where the system tells."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


# ---------------------------------------------------------------------- who may


def reject_foreign(paths: Iterable[str]) -> None:
    """Say no before anything is written where the caller could not give new files to whom the old
    ones belong.

    ``paths``: folders; what is not there is passed over, and so is what root has: others may be let
    in by its group, and whose the files are in there tells.

    Raises:
        LogError: one belongs to a user, or a group, that the caller may give nothing to.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            seen = os.stat(path)
            if seen.st_uid:
                reject_owner(path, seen.st_uid, seen.st_gid, seen)


def reject_owner(path: str, uid: int, gid: int, folder: os.stat_result | None = None) -> None:
    """``reject_foreign`` of a path that was looked at; ``folder``: where a new file would be made,
    if that is known.

    Raises:
        LogError: the caller may give nothing to that user and group.
    """
    caller, group = os.geteuid(), group_of_new(folder)
    if (uid, gid) == (caller, group) or may_give(
        -1 if uid == caller else uid, -1 if gid == group else gid
    ):
        return
    if uid == caller:
        raise LogError(
            f"belongs to group {gid}, to which {user_name(caller)} may give no file",
            path=path,
            remedy="run as a member of that group or as root, or write a cleaned copy elsewhere with --to",
        )
    owner = user_name(uid)
    raise LogError(
        f"belongs to {owner}, and {user_name(caller)} may not give files away: new ones could not be opened by a "
        "broker of that user",
        path=path,
        remedy=f"run as its owner (sudo -u {owner} lastwrite …) or as root, or write a cleaned copy elsewhere with "
        "--to; nothing was changed",
    )


def group_of_new(folder: os.stat_result | None) -> int:
    """The group that a file has which the caller makes in a folder; None: in one that hands nothing
    down.
    """
    if folder is not None and (folder.st_mode & stat.S_ISGID or sys.platform == "darwin"):
        return folder.st_gid
    return os.getegid()


def may_give(uid: int, gid: int) -> bool:
    """Whether the caller may give a file to them; -1: it stays as it is. Tried on a file without a
    name.
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
    """The user's name, or his number where he has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"  # as sudo -u takes it


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
