"""Checks of a target folder against the source folders, and atomic creation of a folder."""

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
    """Check that the target is not inside one of the ``sources``. Symbolic links are followed.

    Raises:
        InvalidConfig: the target is inside a source. Nothing was done.
    """
    target = real_path(to)
    for source in sources:
        real = real_path(source)
        if _is_inside(target, real):
            words = (
                "--to is the same path as the source"
                if target == real
                else f"--to is inside the source {source}"
            )
            raise InvalidConfig(words, path=to, remedy="give a --to folder outside the source")


def reject_around(to: str, sources: Iterable[str]) -> None:
    """Check that the target contains none of the ``sources``, so that copies do not mix with them.

    Raises:
        InvalidConfig: the target contains a source. Nothing was done.
    """
    target = real_path(to)
    for source in sources:
        if _is_inside(real_path(source), target):
            raise InvalidConfig(
                f"the source {source} is inside --to",
                path=to,
                remedy="give a --to folder outside the source",
            )


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@contextlib.contextmanager
def reporting_leftovers(to: str, progress: Progress, what: str) -> Iterator[Callable[[], None]]:
    """Report that the folder ``to`` is incomplete if the context fails.

    Complete files in the folder can be used, so nothing is deleted. ``what`` is the text in the
    message for the complete contents, such as "the copy". Call the yielded function to report a
    failure that raises no exception. After an ``InvalidConfig`` the same command would fail again,
    so the report does not recommend it.
    """
    was_empty = _is_empty(to)

    def report_incomplete(error: BaseException | None = None) -> None:
        if _is_empty(to):
            return
        if isinstance(error, InvalidConfig):
            progress.note(f"{to} contains only a part of {what}")
            return
        or_delete = ", or delete the folder" if was_empty else ""
        progress.note(
            f"{to} contains only a part of {what}; run the command again to complete it{or_delete}"
        )

    try:
        yield report_incomplete
    except BaseException as error:
        # Report only if the folder was empty before. Otherwise its contents may have caused the
        # error.
        if was_empty or isinstance(error, KeyboardInterrupt):
            report_incomplete(error)
        raise


def _is_empty(folder: str) -> bool:
    return not os.path.isdir(folder) or not os.listdir(folder)


@contextlib.contextmanager
def new_folder(target: str) -> Iterator[str]:
    """A folder to write into. At the end it becomes ``target``, or is deleted after an error.

    Raises:
        InvalidConfig: ``target`` exists and is not empty.
        LogError: the folder cannot be written.
    """
    target = os.path.abspath(target)
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise InvalidConfig(
            "the target already exists",
            path=target,
            remedy="give a folder that does not exist yet",
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
