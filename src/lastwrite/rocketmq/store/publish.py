"""Replaces queues with their compacted versions, and sets their positions, in one atomic step.

A queue's log files and index files are in two folders, so no rename of files changes both at once.
But both folders are below ``STORE/compaction``, and two folders can exchange their names
atomically. For example, queue 0 of topic t has files 0, 5060 and 10120. Compaction removes some
records of the first file and all records of the second::

    compaction.lastwrite-aside/t/0/…     new files, written by workers
    compaction.lastwrite/                the complete new tree: unchanged files as hard links, the
                                         new file 0, no file 5060, new positions; all synced
    compaction <-> compaction.lastwrite  the names are exchanged: the new state is in effect
    (nothing)                            the old tree, now ``compaction.lastwrite``, is removed

A broker opens only ``compaction``. So it finds the old state before the exchange and the new state
after it, whatever remains of the other tree after a crash. ``recover`` removes the other tree,
whenever the crash happened.

Files with unknown names are kept. But the folder ``compacting`` of a changed queue is removed. It
has files of an unfinished compaction by a broker, and the broker's next compaction would use them.

Source: RocketMQ 5.5.0; docs/formats/rocketmq-compaction.md; docs/decisions/rocketmq-publication.md.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice

from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig, LogError
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.rocketmq.format.names import (
    COMPACTING,
    COMPACTION,
    COMPACTION_LOGS,
    COMPACTION_QUEUES,
    DELETED_SUFFIX,
    REPLICATING,
    UNFINISHED_REMEDY,
    parse_file_name,
)
from lastwrite.rocketmq.format.units import BATCH_UNIT, batch_units, valid_count
from lastwrite.rocketmq.store import lock, reading
from lastwrite.rocketmq.store.positions import (
    FILES,
    QueuePositions,
    read_positions,
    replace_positions,
    write_new_positions,
)
from lastwrite.storage import files, preflight
from lastwrite.storage.files import to_log_error
from lastwrite.storage.ownership import Ownership
from lastwrite.storage.parallel_sync import Outcome, all_or_raise, outcome
from lastwrite.storage.reading import AGAIN, check_segments

_NEXT = ".lastwrite"
_ASIDE = ".lastwrite-aside"
_KINDS = (COMPACTION_LOGS, COMPACTION_QUEUES)
_UNSURE = "the new files are in place, but a power failure may lose them now; check the disk"
_TIDY = (
    "the new files are in place; the next command removes the remaining old files, which a "
    "broker ignores"
)

# Trees that can be exchanged, by path. The value is device, inode and change time, because a later
# tree may have the same inode.
_proven: dict[str, tuple[int, int, int]] = {}


@dataclass(frozen=True, slots=True)
class Pair:
    """A new log file and its index in the staging folder.

    ``name`` is the final name of both files.
    """

    name: str  # 20 digits, a multiple of the log files' size
    log_path: str
    index_path: str

    @property
    def paths(self) -> tuple[str, str]:
        """The paths of the log file and its index, in the order of ``_KINDS``."""
        return self.log_path, self.index_path


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChange:
    """The change of one queue: pairs of a log file and its index to remove and to add.

    A pair whose name is in both lists is replaced; all other files are kept. ``log`` is the queue
    as it was read, and the change fails if the queue has changed since. None skips that check.
    """

    name: TopicPartition
    log: PartitionLog | None = None
    removed: Collection[str] = ()  # names of the log files to remove, with their index files
    pairs: Sequence[Pair] = ()
    position: int | None = None  # new position; None keeps the old one
    source: str | None = None  # for a copy: the store of the original queue

    @property
    def is_of_files(self) -> bool:
        return bool(self.removed or self.pairs or self.source is not None)

    def check_unchanged(self) -> None:
        if self.log is not None:
            check_segments(self.log)


def live_tree(root: str) -> str:
    """The folder that a broker uses as ``STORE/compaction``, which may be a symbolic link."""
    return os.path.realpath(os.path.join(root, COMPACTION))


def queue_folders(root: str, name: TopicPartition) -> tuple[str, str]:
    """The paths of the folders of a queue's log files and of its index files."""
    log, index = (reading.queue_folder(os.path.join(root, COMPACTION, one), name) for one in _KINDS)
    return log, index


def staging_folder(root: str, name: TopicPartition, source: str | None = None) -> str:
    """The folder for new files of a queue of the store ``root``; created if it is missing.

    The caller holds the queue's lock. A new store gets the owner and mode of the store ``source``.

    Raises:
        LogError: the folder cannot be created, or the file system cannot exchange folders.
    """
    folder = _staged_of(root, name)
    if not os.path.isdir(folder):
        _make_store(root, source)
        with lock.exclusive(root):  # prevents another command from removing the parents
            _prove_exchange(root)
            files.make_folder(folder, _owner_of_trees(root), is_synced=False)
    return folder


def _make_store(root: str, source: str | None) -> None:
    if source is None:
        files.make_new_folder(os.path.abspath(root))
    else:
        files.make_folder(os.path.abspath(root), files.owner_of(source).as_far_as_may())


def _owner_of_trees(root: str) -> Ownership:
    """The owner for new folders beside ``compaction``.

    It is the owner of ``compaction``, because that user may have to remove the folders.
    """
    live = live_tree(root)
    return files.owner_of(live if os.path.isdir(live) else os.path.dirname(live)).as_far_as_may()


def _staged_of(root: str, name: TopicPartition) -> str:
    return reading.queue_folder(live_tree(root) + _ASIDE, name)


def _prove_exchange(root: str) -> None:
    """Raise if the file system cannot exchange two folders. Tested once, before compaction."""
    live = live_tree(root)
    if not os.path.isdir(live) or not os.listdir(live):
        return
    _reject_other_device(live)
    seen = os.stat(live)
    tree = seen.st_dev, seen.st_ino, seen.st_ctime_ns
    if _proven.get(live) == tree:
        return
    _clear(root)
    trial = [os.path.join(live + _NEXT, name) for name in ("one", "other")]
    try:
        for path in trial:
            files.make_folder(path, _owner_of_trees(root), is_synced=False)
        files.exchange(*trial)
        _proven[live] = tree
    finally:
        with contextlib.suppress(LogError, OSError):
            files.remove_tree(live + _NEXT)


def _reject_other_device(live: str) -> None:
    if os.stat(live).st_dev != os.stat(os.path.dirname(live)).st_dev:
        raise LogError(
            "the folder is a mount point, so Lastwrite cannot replace it by another folder",
            path=live,
            remedy="mount the parent folder instead, or write a compacted copy with --to",
        )


# ---------------------------------------------------------------------- the steps


def publish(root: str, wave: Sequence[QueueChange]) -> list[Outcome]:
    """Make all changes in one step. After a crash before ``delete_replaced``, call ``recover``.

    The caller holds the queues' locks. Returns for each change None, or an error, which means that
    the queue is unchanged. A failed check affects only its change. If a file cannot be created,
    none of the queues is changed.
    """
    try:
        with lock.exclusive(root):
            return _Exchange(root, wave).run()
    except (LogError, OSError) as error:
        return [error] * len(wave)


def publish_copies(root: str, copies: Sequence[QueueChange]) -> list[Outcome]:
    """Add copies of other stores' queues to the store ``root``, in one step.

    Each change names its ``source``. A missing store is created. Returns the error of each copy.
    """
    try:
        _make_store(root, copies[0].source if copies else None)
        with contextlib.ExitStack() as held:
            for copy in copies:
                if not lock.holds(root, copy.name):
                    held.enter_context(lock.hold(root, [copy.name]))
            errors = publish(root, copies)
            delete_replaced(root, [copy.name for copy in copies])
            return errors
    except (LogError, OSError) as error:
        return [error] * len(copies)


def delete_replaced(root: str, names: Collection[TopicPartition]) -> None:
    """Remove what ``publish`` leaves: the old folder tree and the queues' staging folders.

    Raises:
        LogError: a file could not be removed. The next command removes it; brokers ignore it.
    """
    try:
        with lock.exclusive(root):
            _clear(root)
            for name in names:
                _remove_staged(root, name)
    except LogError as error:
        raise type(error)(error.problem, error.at, error.path, _TIDY) from error


def reject_unwritable(root: str) -> None:
    """Raise if this process has no permission to replace ``compaction`` and remove old files.

    Raises:
        LogError: a file or folder cannot be changed; its path is in the error.
    """
    live = live_tree(root)
    preflight.reject_unwritable(os.path.dirname(live), [os.path.basename(live)])
    seen = os.stat(live)
    _reject_unwritable_below(live, seen.st_ino, seen.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _reject_unwritable_below(live: str, inode: int, mtime_ns: int) -> None:
    """Check the permissions of the folder tree ``live``, once for all queues in it."""
    for folder, below, names in os.walk(live):
        preflight.reject_unwritable(folder, [*below, *names])


def recover(root: str, name: TopicPartition) -> None:
    """Remove the leftovers of a crash: the queue's staging folder, and the inactive folder tree.

    The caller holds the queue's lock.

    Raises:
        CommitConflict: ``compaction`` is missing, so the leftovers may be the only copy.
        LogError: a file could not be removed.
    """
    live = live_tree(root)
    if os.path.lexists(live + _NEXT) or os.path.lexists(live + _ASIDE):
        with lock.exclusive(root):
            _clear(root)
            _remove_staged(root, name)


def leftovers(root: str) -> list[str]:
    """The folders beside ``compaction`` that a running or killed command has left."""
    live = live_tree(root)
    return [path for path in (live + _NEXT, live + _ASIDE) if os.path.lexists(path)]


def _clear(root: str) -> None:
    """Remove the inactive one of the two folder trees that are exchanged.

    The removal is not synced. If a power failure restores the tree, it is still inactive, and the
    next command removes it again.
    """
    live = live_tree(root)
    if not os.path.lexists(live + _NEXT):
        return
    if not os.path.isdir(live):
        raise CommitConflict(
            "the folder is missing, but the folder beside it exists",
            path=live,
            remedy=f"if {os.path.basename(live)}{_NEXT} has your messages, rename it to "
            f"{os.path.basename(live)}; otherwise move it out of the store, and keep it",
        )
    # A killed command may have exchanged the trees without a sync. If the exchange is not synced
    # here, a power failure may undo it, and the removed tree would be the tree in use.
    files.fsync_dir(os.path.dirname(live))
    _remove_all(live + _NEXT)


def _remove_all(tree: str) -> None:
    """Remove a folder tree level by level, the deepest first.

    The folders of a level are removed concurrently.
    """
    levels: dict[int, list[str]] = {}
    for folder, _, _ in os.walk(tree):
        levels.setdefault(folder.count(os.sep), []).append(folder)
    for depth in sorted(levels, reverse=True):
        all_or_raise([partial(files.remove_tree, folder) for folder in levels[depth]])


def _remove_staged(root: str, name: TopicPartition) -> None:
    """Remove the queue's staging folder, and its parents if they are then empty."""
    folder = _staged_of(root, name)
    files.remove_tree(folder)
    for _ in range(2):
        folder = os.path.dirname(folder)
        if os.path.isdir(folder):
            if os.listdir(folder):
                return
            files.remove_tree(folder)


# ---------------------------------------------------------------------- one exchange


@dataclass(slots=True)
class _NewFolder:
    """The planned changes of a queue's folder of log files or index files."""

    removed: set[str]  # names of removed files
    new: dict[str, str]  # path of the new file by name
    source: str | None  # for a copy: the folder of the original files


@dataclass(slots=True)
class _Exchange:
    """Applies changes of queues to ``compaction`` in one step. The caller holds ``exclusive``."""

    root: str
    wave: Sequence[QueueChange]
    errors: list[Outcome] = field(default_factory=list)
    live: str = ""
    next: str = ""
    # changed folders, by path below ``compaction``
    folders: dict[str, _NewFolder] = field(default_factory=dict)
    new_folders: list[str] = field(default_factory=list)  # new folders, each before its subfolders
    unsynced: list[str] = field(default_factory=list)  # new files to sync

    def run(self) -> list[Outcome]:
        self.live = live_tree(self.root)
        self.next = self.live + _NEXT
        self.errors = [outcome(partial(self._check, change)) for change in self.wave]
        checked = zip(self.wave, self.errors, strict=True)
        sound = [change for change, error in checked if error is None]
        if not sound:
            return self.errors
        is_exchanged = False
        try:
            positions = self._positions(sound)
            if not any(change.is_of_files for change in sound):
                if positions is not None and os.path.isdir(self.live):
                    replace_positions(self.live, positions)
                return self.errors
            _clear(self.root)
            self._build(sound, positions)
            self._sync()
            for change in sound:
                change.check_unchanged()
            with lock.unopened(self.root):
                self._install()
                is_exchanged = True
            files.fsync_dir(os.path.dirname(self.live))
        except (LogError, OSError) as error:
            if not is_exchanged:
                with contextlib.suppress(LogError, OSError):
                    files.remove_tree(self.next)
            elif isinstance(error, LogError):
                error = type(error)(error.problem, error.at, error.path, _UNSURE)
            self.errors = [known or error for known in self.errors]
        return self.errors

    def _positions(self, sound: Sequence[QueueChange]) -> dict[str, int] | None:
        """All positions after the changes. Returns None if no position changes."""
        old: QueuePositions = read_positions(self.live)
        changed = old.changed(
            {change.name: change.position for change in sound if change.position is not None}
        )
        return None if changed == old.offsets else changed

    # ------------------------------------------------------------------ checks

    def _check(self, change: QueueChange) -> None:
        """Check a change against the files on disk, to detect errors in Lastwrite."""
        places = queue_folders(self.root, change.name)
        if change.source is not None:
            if any(os.path.lexists(place) for place in places):
                raise InvalidConfig(
                    "the destination already has this queue",
                    path=places[0],
                    remedy="give another --to, a folder without this queue",
                )
            places = queue_folders(change.source, change.name)
        sides = [_StoredFolder.read(place, number) for number, place in enumerate(places)]
        for side in sides:
            side.check(change, live_tree(change.source or self.root))
        names = [pair.name for pair in change.pairs]
        if len({*names}) < len(names):
            raise _mistake("two new files have the same name", places[0])
        logs, indexes = (side.after(change) for side in sides)
        logs -= reading.stopped_roll(change.source or self.root, change.name)
        if logs != indexes:
            raise _mistake(
                f"only the log file or only the index file {min(logs ^ indexes)} would exist",
                places[0],
            )
        if sides[0].sizes and not logs:
            raise _mistake("no file would be left, so offsets would begin at 0 again", places[0])
        log_bytes = sides[0].file_bytes(change)
        for pair in change.pairs:
            if log_bytes is None or int(pair.name) % log_bytes:
                wrong = f"the name is not a multiple of the file size, {log_bytes} bytes"
                raise _mistake(wrong, os.path.join(places[0], pair.name))
            if pair.name != max(logs):
                _check_filled(pair.index_path)
        change.check_unchanged()

    # ------------------------------------------------------------------ the new tree

    def _build(self, sound: Sequence[QueueChange], positions: Mapping[str, int] | None) -> None:
        """Build the complete successor of the folder ``compaction``, with the changes."""
        for change in (change for change in sound if change.is_of_files):
            stopped = reading.stopped_roll(change.source or self.root, change.name)
            sources: tuple[str | None, str | None] = (None, None)
            if change.source is not None:
                sources = queue_folders(change.source, change.name)
            for number, (kind, source) in enumerate(zip(_KINDS, sources, strict=True)):
                place = reading.queue_folder(kind, change.name)
                new = {pair.name: pair.paths[number] for pair in change.pairs}
                self.folders[place] = _NewFolder({*change.removed, *stopped}, new, source)
        if not os.path.isdir(self.live):
            trees = [live_tree(change.source) for change in sound if change.source is not None]
            models = [*filter(os.path.isdir, trees), os.path.dirname(self.live)]
            files.make_folder(self.live, files.owner_of(models[0]).as_far_as_may())
        self._add_folder("", positions is not None)
        for place in sorted(self.folders):  # folders of new queues
            self._add_new_folder(place)
        if positions is not None:
            write_new_positions(self.next, positions, self.live)

    def _add_folder(self, place: str, has_new_positions: bool = False) -> None:
        """Add a folder of ``compaction``, with everything below it, to its successor."""
        source = os.path.join(self.live, place) if place else self.live
        target = os.path.join(self.next, place) if place else self.next
        seen = os.stat(source)
        if seen.st_dev != os.stat(self.live).st_dev:
            _reject_other_device(source)
        self._make(target, files.owner_of(source))
        change = self.folders.pop(place, None)
        # Before the folder ``compaction`` is replaced, detect files that cannot be removed.
        entries = list(_entries(source))
        preflight.reject_unwritable(source, [entry.name for entry in entries])
        for entry in entries:
            below = os.path.join(place, entry.name)
            if entry.is_symlink():
                files.copy_symlink(entry.path, os.path.join(self.next, below))
            elif entry.is_dir():
                if change is None or entry.name != COMPACTING:
                    self._add_folder(below)
            elif change is not None and (entry.name in change.removed or entry.name in change.new):
                continue
            elif not (has_new_positions and entry.name in FILES):
                files.link(entry.path, os.path.join(self.next, below))
                if change is not None:
                    # Sync this unchanged file too, because it may have the records that supersede
                    # removed records.
                    self.unsynced.append(os.path.join(self.next, below))
        if change is not None:
            self._add_new_files(change, target, source)

    def _add_new_folder(self, place: str) -> None:
        change = self.folders[place]
        path = self.next
        steps = place.split(os.sep)
        for depth, step in enumerate(steps, 1):
            above, path = path, os.path.join(path, step)
            if not os.path.isdir(path):
                model = above
                if change.source is not None:
                    model = change.source + "/.." * (len(steps) - depth)
                self._make(path, files.owner_of(model).as_far_as_may())
        if change.source is not None:
            replaced = {*change.removed, *change.new}
            for entry in _entries(change.source):
                if parse_file_name(entry.name) is not None and entry.name not in replaced:
                    files.copy(entry.path, os.path.join(path, entry.name))
        self._add_new_files(change, path, change.source or path)

    def _add_new_files(self, change: _NewFolder, target: str, source: str) -> None:
        """Move the new files to ``target``.

        They get the owner of the replaced file in ``source``, or of another file there.
        """
        siblings = _example(source)
        for name, staged in sorted(change.new.items()):
            like = files.owner_of(os.path.join(source, name), siblings)
            files.give(staged, like if change.source is None else like.as_far_as_may())
            files.rename(staged, os.path.join(target, name))
            self.unsynced.append(os.path.join(target, name))

    def _make(self, folder: str, like: Ownership) -> None:
        files.make_folder(folder, like, is_synced=False)
        self.new_folders.append(folder)

    def _sync(self) -> None:
        all_or_raise(
            [
                *(partial(files.fsync_file, path) for path in self.unsynced),
                *(partial(files.fsync_dir, folder) for folder in reversed(self.new_folders)),
            ]
        )
        files.fsync_dir(os.path.dirname(self.live))

    def _install(self) -> None:
        if os.listdir(self.live):
            files.exchange(self.next, self.live)
        else:  # a rename onto an empty folder is atomic on any file system
            files.rename(self.next, self.live)


@dataclass(frozen=True, slots=True)
class _StoredFolder:
    """The stored files of a queue's folder, which has log files or index files."""

    folder: str
    number: int  # index in ``Pair.paths`` of the path in this folder: 0 log, 1 index
    sizes: Mapping[str, int]  # sizes of files whose names are addresses
    strange: Sequence[str]  # names of other entries

    @classmethod
    def read(cls, folder: str, number: int) -> _StoredFolder:
        sizes, strange = {}, []
        if os.path.lexists(folder):
            for entry in _entries(folder):
                if parse_file_name(entry.name) is not None and entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
                else:
                    strange.append(entry.name)
        return cls(folder, number, sizes, strange)

    def after(self, change: QueueChange) -> set[str]:
        """The names of the folder's files after the change."""
        return ({*self.sizes} - {*change.removed}) | {pair.name for pair in change.pairs}

    def file_bytes(self, change: QueueChange) -> int | None:
        """The size of the existing files, or else of the new files. None without files."""
        news = (os.stat(pair.paths[self.number]).st_size for pair in change.pairs)
        return next(chain(self.sizes.values(), news), None)

    def check(self, change: QueueChange, tree: str) -> None:
        reject_unfinished(self.folder, self.strange)
        if not os.path.realpath(self.folder).startswith(tree + os.sep):
            raise LogError(
                "the folder is behind a symbolic link that leads out of the tree, and "
                "Lastwrite replaces the tree as a whole",
                path=self.folder,
                remedy="replace the link by the folder itself, or write a compacted copy with --to",
            )
        missing = {*change.removed} - self.sizes.keys()
        if missing:
            path = os.path.join(self.folder, min(missing))
            raise CommitConflict(
                "another program deleted the file during the command", path=path, remedy=AGAIN
            )
        file_bytes = self.file_bytes(change)
        for pair in change.pairs:
            path = pair.paths[self.number]
            if parse_file_name(pair.name) is None:
                raise _mistake(f"{pair.name!r} is not a valid file name", path)
            if pair.name in self.sizes and pair.name not in change.removed:
                raise _mistake(f"the file {pair.name} already exists and is not replaced", path)
            try:
                size = os.stat(path).st_size
            except OSError as error:
                raise to_log_error(error, path, "check the new file") from error
            if size != file_bytes or not size:
                raise _mistake(
                    f"the new file has {size} bytes, but the other files have {file_bytes}", path
                )


def reject_unfinished(folder: str, names: Sequence[str]) -> None:
    """Raise if a queue's folder has leftovers of a broker's unfinished work.

    The leftovers may be the only copy of some records.

    Raises:
        CorruptLog: a broker was killed while it replaced files or rebuilt a replica.
    """
    marked = sorted(name for name in names if name.endswith(DELETED_SUFFIX))
    if marked:
        raise CorruptLog(
            "a broker was killed while it replaced files of this queue, and a broker does not "
            "start on the store",
            path=os.path.join(folder, marked[0]),
            remedy=UNFINISHED_REMEDY,
        )
    pulled = os.path.join(folder, REPLICATING)
    if REPLICATING in names and os.path.isdir(pulled) and os.listdir(pulled):
        raise CorruptLog(
            "a broker was stopped while it copied this queue from another broker",
            path=pulled,
            remedy="start the broker and let it finish; or, if the other broker still has the "
            "messages, move this folder out of the store, and keep it",
        )


def _check_filled(index_path: str) -> None:
    """Raise if a new file has no record.

    A broker serves nothing from a queue that begins with such a file.
    """
    try:
        with open(index_path, "rb") as file:
            first = file.read(BATCH_UNIT.size)
    except OSError as error:
        raise to_log_error(error, index_path, "check the new index") from error
    if not valid_count(batch_units(first)):
        raise _mistake("the new file has no record", index_path)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error


def _example(folder: str) -> list[str]:
    """The path of any one file of the folder, in a list. Empty if there is no file."""
    paths = (entry.path for entry in _entries(folder) if entry.is_file(follow_symlinks=False))
    return list(islice(paths, 1))


def _mistake(problem: str, path: str) -> LogError:
    return LogError(
        problem, path=path, remedy="nothing was changed; report this fault in Lastwrite"
    )
