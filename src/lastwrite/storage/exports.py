"""Folders for what is written elsewhere than it was read: apart from that, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator

from lastwrite.errors import InvalidConfig
from lastwrite.model.progress import Progress
from lastwrite.storage import files
from lastwrite.storage.objects.address import real_path


def reject_inside(to: str, sources: Iterable[str]) -> None:
    """Refuse a target that is one of the folders that are read, or lies in one; symbolic links are
    followed.

    Raises:
        InvalidConfig: nothing was done.
    """
    target = real_path(to)
    for source in sources:
        real = real_path(source)
        if _lies_in(target, real):
            words = (
                "--to is what is read"
                if target == real
                else f"--to lies in {source}, which is read"
            )
            raise InvalidConfig(words, path=to, remedy="give a folder beside it")


def reject_around(to: str, sources: Iterable[str]) -> None:
    """Refuse a target that one of the folders that are read lies in: copies would come among them.

    Raises:
        InvalidConfig: nothing was done.
    """
    target = real_path(to)
    for source in sources:
        if _lies_in(real_path(source), target):
            raise InvalidConfig(
                f"{source}, which is read, lies in --to", path=to, remedy="give a folder beside it"
            )


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@contextlib.contextmanager
def naming_what_stays(to: str, progress: Progress, what: str) -> Iterator[Callable[[], None]]:
    """Note what stays in the folder ``to`` where the work inside is broken off: what is whole of it
    is of use, so nothing is deleted. ``what`` is a part of which there; the function that is given
    says so where the work failed without an error. A refusal would be repeated by the same command,
    so the note does not recommend that then.
    """
    was_empty = _is_empty(to)

    def tell(error: BaseException | None = None) -> None:
        if _is_empty(to):
            return
        if isinstance(error, InvalidConfig):
            progress.note(f"{to} holds a part of {what}, and not all of it")
            return
        or_delete = ", or delete it" if was_empty else ""
        progress.note(f"{to} holds a part of {what}: the same command completes it{or_delete}")

    try:
        yield tell
    except BaseException as error:
        # An error may be a refusal for what was there before.
        if was_empty or isinstance(error, KeyboardInterrupt):
            tell(error)
        raise


def _is_empty(folder: str) -> bool:
    return not os.path.isdir(folder) or not os.listdir(folder)


@contextlib.contextmanager
def new_folder(target: str) -> Iterator[str]:
    """A folder to write into, which becomes ``target`` when the context ends well, and else goes.

    Raises:
        InvalidConfig: ``target`` is there and not empty.
        LogError: it cannot be written.
    """
    target = os.path.abspath(target)
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise InvalidConfig(
            "there is something already", path=target, remedy="give a folder that is not there yet"
        )
    staged = f"{target}.lastwrite-{uuid.uuid4().hex[:12]}"
    files.make_folder(staged)
    try:
        yield staged
        files.fsync_dir(staged)
        files.rename(staged, target)
        files.fsync_dir(os.path.dirname(target))
    finally:
        shutil.rmtree(staged, ignore_errors=True)
