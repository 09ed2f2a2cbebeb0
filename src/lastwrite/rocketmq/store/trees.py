"""Installs dispatched files: one tree of the store after the other, each in one atomic step.

A *tree* is ``consumequeue``, ``batchconsumequeue``, ``index`` or ``compaction``. Its successor is
built beside it::

    consumequeue.dispatched     the complete new tree: unchanged files as hard links, new files
                                moved in from the staging folder; synced
    consumequeue <-> consumequeue.dispatched    the names are exchanged: the new state is in effect
    (nothing)                   the old tree, now ``consumequeue.dispatched``, is removed

Consume queues are exchanged last. A broker that starts dispatches from the end of its consume
queues, and skips records that the index and the compaction logs have. So after a crash between two
steps, a broker completes the other trees.

But the end is that of *all* consume queues. If only the ordinary queues were exchanged, a broker
would continue at their end, and the batch queues would have a gap. So if both change, a guard file
in the commit log's folder keeps brokers from starting between the two steps. The next dispatch
continues from there and removes the guard.

Source: RocketMQ 5.5.0 ``DefaultMessageStore.start`` and ``load``, ``MappedFileQueue.doLoad``;
docs/formats/rocketmq.md, "The store"; docs/formats/rocketmq-compaction.md, "Into the compaction
log" and "A store rewritten offline".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from lastwrite.errors import LogError
from lastwrite.rocketmq.format.names import (
    BATCH_CONSUME_QUEUES,
    COMPACTION,
    CONSUME_QUEUES,
    DISPATCH_GUARD,
    INDEX,
)
from lastwrite.rocketmq.store import lock
from lastwrite.storage import files, preflight
from lastwrite.storage.ownership import Ownership
from lastwrite.storage.parallel_sync import all_or_raise

ORDER = (COMPACTION, INDEX, BATCH_CONSUME_QUEUES, CONSUME_QUEUES)
GUARD = DISPATCH_GUARD

_NEXT = ".dispatched"
_ASIDE = "lastwrite-dispatch"
_GUARD_TEXT = b"lastwrite dispatch was stopped while it put queues in place: run it again\n"


@dataclass(slots=True)
class TreeChange:
    """The changes of one folder tree, such as ``consumequeue``. All paths are relative to it."""

    # staging path of each new file, by its path in the folder tree
    new: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)  # removed files
    # folders whose existing files are removed
    removed_folders: set[str] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        return not (self.new or self.removed or self.removed_folders)


def live_tree(root: str, tree: str) -> str:
    """The real path of the folder that a broker uses as ``tree``, which may be a symbolic link."""
    return os.path.realpath(os.path.join(root, tree))


def staging_folder(root: str) -> str:
    """The folder for new files; created if it is missing.

    Raises:
        LogError: the folder cannot be created.
    """
    real = os.path.realpath(root)
    folder = os.path.join(real, _ASIDE)
    files.make_folder(folder, files.owner_of(real).as_far_as_may(), is_synced=False)
    return folder


def owner_of_guard(commit_log: str, name: str) -> Ownership:
    """The owner for a guard file, which keeps brokers from starting.

    Brokers must be able to see the file, and a later command must be able to remove it.
    """
    return files.owner_of(os.path.join(commit_log, name), _log_files(commit_log)).as_far_as_may()


def reject_unwritable(root: str, wanted: Iterable[str] = ORDER) -> None:
    """Raise if this process has no permission to exchange a folder or set its owner.

    Raises:
        LogError: a file or folder cannot be changed; its path is in the error.
    """
    preflight.reject_unwritable(os.path.realpath(root), [])
    for tree in wanted:
        live = live_tree(root, tree)
        if os.path.isdir(live):
            preflight.reject_unwritable(os.path.dirname(live), [os.path.basename(live)])
            for folder, _, names in os.walk(live):
                preflight.reject_unwritable(folder, names)


def is_guarded(commit_log: str) -> bool:
    """Whether a dispatch was interrupted before it had installed both kinds of consume queues."""
    return os.path.lexists(os.path.join(commit_log, GUARD))


def clear(root: str) -> None:
    """Remove temporary files of this or a killed command. The caller holds the store's lock.

    Raises:
        LogError: a file could not be removed.
    """
    for tree in ORDER:
        live = live_tree(root, tree)
        if os.path.lexists(live + _NEXT):
            # A killed command may have exchanged the trees without a sync. If the exchange is not
            # synced here, a power failure may undo it, and the removed tree would be in use.
            files.fsync_dir(os.path.dirname(live))
            files.remove_tree(live + _NEXT)
    files.remove_tree(os.path.join(os.path.realpath(root), _ASIDE))


def install(
    root: str, changes: Mapping[str, TreeChange], commit_log: str, installed: list[str]
) -> None:
    """Install the changes of each folder tree. The caller holds the store's lock.

    ``commit_log`` is the folder for the guard file. The name of each exchanged tree is added to
    ``installed``.

    Raises:
        LogError: a step failed. Earlier trees are completely exchanged; a broker or the next
            dispatch completes the other trees.
    """
    wanted = [tree for tree in ORDER if tree in changes and not changes[tree].is_empty]
    with lock.exclusive(root):
        for tree in wanted:
            live = live_tree(root, tree)
            build_successor(root, live, live + _NEXT, changes[tree])
        guard = os.path.join(commit_log, GUARD)
        needs_guard = {BATCH_CONSUME_QUEUES, CONSUME_QUEUES} <= set(wanted)
        with lock.unopened(root):
            if needs_guard:
                files.write(guard, _GUARD_TEXT, like=owner_of_guard(commit_log, GUARD))
                files.fsync_dir(commit_log)
            for tree in wanted:
                live = live_tree(root, tree)
                if os.path.isdir(live):
                    files.exchange(live + _NEXT, live)
                else:
                    files.rename(live + _NEXT, live)
                installed.append(tree)
                files.fsync_dir(os.path.dirname(live))
            if os.path.lexists(guard):
                files.unlink(guard)
                files.fsync_dir(commit_log)
        clear(root)


def build_successor(root: str, live: str, new: str, change: TreeChange) -> None:
    """Build ``new``, the successor of the folder tree ``live``, with hard links, and sync it.

    Raises:
        LogError: a file could not be created. The caller removes ``new``.
    """
    files.remove_tree(new)
    _reject_links(live, change)
    is_there = os.path.isdir(live)
    model = files.owner_of(live if is_there else os.path.realpath(root))
    folders = [new]
    files.make_folder(new, model, is_synced=False)
    if is_there:
        _link(live, new, "", change, folders)
    for path, source in sorted(change.new.items()):
        target = os.path.join(new, path)
        for folder in _above(new, os.path.dirname(target)):
            if not os.path.isdir(folder):
                files.make_folder(folder, model, is_synced=False)
                folders.append(folder)
        neighbours = _log_files(os.path.join(live, os.path.dirname(path)))
        files.give(source, _file_owner(live, path, neighbours, model), is_synced=True)
        files.rename(source, target)
    all_or_raise([partial(files.fsync_dir, folder) for folder in reversed(folders)])
    files.fsync_dir(os.path.dirname(live))


def _reject_links(live: str, change: TreeChange) -> None:
    """Raise if a symbolic link leads to a changed folder of a folder tree.

    The new tree would have the same link, so a new file would also appear in the live tree.
    """
    changed = {os.path.dirname(path) for path in (*change.new, *change.removed)}
    for path in sorted(changed | change.removed_folders):
        folder = os.path.join(live, path) if path else live
        if os.path.realpath(folder) != folder:
            raise LogError(
                "the folder is behind a symbolic link that leads out of the changed tree",
                path=folder,
                remedy="replace the link by the folder itself",
            )


def _file_owner(live: str, path: str, neighbours: list[str], model: Ownership) -> Ownership:
    """The owner for a new file: of the old file, else of a file beside it or the folder."""
    replaced = os.path.join(live, path)
    if os.path.isdir(os.path.dirname(replaced)):
        return files.owner_of(replaced, neighbours)
    return replace(model, mode=model.mode & 0o666, attributes=None)


def _log_files(folder: str) -> list[str]:
    """The path of any one file of the folder, in a list. Empty if there is no file."""
    try:
        with os.scandir(folder) as found:
            return [entry.path for entry in found if entry.is_file(follow_symlinks=False)][:1]
    except OSError:
        return []


def _above(root: str, folder: str) -> list[str]:
    """The folders from below ``root`` down to ``folder``, the highest first."""
    found: list[str] = []
    while len(folder) > len(root):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found[::-1]


def _link(live: str, new: str, below: str, change: TreeChange, folders: list[str]) -> None:
    """Add the unchanged content of a folder to the new tree; files are hard-linked."""
    try:
        with os.scandir(os.path.join(live, below)) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise files.to_log_error(error, os.path.join(live, below), "list the folder") from error
    for entry in entries:
        path = os.path.join(below, entry.name)
        target = os.path.join(new, path)
        if entry.is_symlink():
            files.copy_symlink(entry.path, target)
        elif entry.is_dir():
            files.make_folder(target, files.owner_of(entry.path), is_synced=False)
            folders.append(target)
            _link(live, new, path, change, folders)
        elif (
            path not in change.new
            and path not in change.removed
            and below not in change.removed_folders
        ):
            files.link(entry.path, target)
