"""Writes a cleaned copy of a partition to another log root; the original is only read.

The copy is built in a folder beside the target and then renamed in one step. The folder has the
name that Kafka gives to a replica being deleted, ``<topic>-<partition>.<32 hex>-delete``, so a
broker removes the leftovers of a crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lastwrite.engine.rules.retention import Retention
from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig, LogError, UnsupportedFormat
from lastwrite.kafka.format.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    SEGMENT_KINDS,
    FolderState,
    KafkaFileKind,
    Suffix,
    classify,
    segment_file_name,
)
from lastwrite.kafka.recovery import unclean_shutdown
from lastwrite.kafka.recovery.unfinished_swap import crash_state, orphans, orphans_being_deleted
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.checkpoints import read_offsets, recovery_point, write_offsets
from lastwrite.kafka.store.outputs import (
    NewSegment,
    check_outputs,
    check_unchanged,
    copy_attributes,
    in_order,
)
from lastwrite.kafka.store.retention import (
    cut_leader_epochs,
    doomed,
    end_leader_epochs,
    make_empty_segment,
)
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.storage import files
from lastwrite.storage.files import DELETED
from lastwrite.storage.parallel_sync import Outcome, overlapped
from lastwrite.storage.reading import AGAIN

_MOST_NAME_CHARACTERS = 255


def staging_folder(target_folder: str, source: str | None = None) -> str:
    """The folder beside ``target_folder`` in which the copy is built. Created if necessary.

    ``source`` is the folder of the copied partition. As far as the process's permissions allow, a
    new folder gets the owner and mode of ``source``, and a new root gets the owner and mode of the
    source's root.

    Raises:
        InvalidConfig: the target has a partition already.
        LogError: the folder cannot be created.
    """
    target_folder = os.path.abspath(target_folder)
    _reject_existing(target_folder)
    root, staging = os.path.dirname(target_folder), staging_path(target_folder)
    if source is None:
        files.make_folder(root)
        files.make_folder(staging, is_synced=False)  # nothing needs the folder before the rename
    elif not os.path.isdir(staging):
        files.make_folder(root, files.owner_of(os.path.dirname(source)).as_far_as_may())
        files.make_folder(staging, files.owner_of(source).as_far_as_may(), is_synced=False)
    return staging


def staging_path(target_folder: str) -> str:
    """The path of the folder beside the target in which the copy is built."""
    root, name = os.path.split(target_folder)
    topic, _, partition = name.rpartition("-")
    drawn = hashlib.blake2b(target_folder.encode(), digest_size=16).hexdigest()
    end = f"-{partition}.{drawn}-{FolderState.DELETED}"
    return os.path.join(root, topic[: _MOST_NAME_CHARACTERS - len(end)] + end)


def _reject_existing(target_folder: str) -> None:
    if os.path.isdir(target_folder) and not os.listdir(target_folder):
        return
    if os.path.lexists(target_folder):
        raise InvalidConfig(
            "the partition already exists in the target",
            path=target_folder,
            remedy="give --to a folder that does not contain this partition",
        )


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """A planned copy of ``log``: ``outputs`` replace their sources, other segments are copied.

    The outputs were written in ``staging_folder(target_folder)``. The target root's checkpoint gets
    ``first_dirty_offset``; None means the entry of the source root. High watermark, log start and
    modification times are kept. Segments that ``retention`` deletes are not copied.
    """

    log: PartitionLog
    outputs: Sequence[NewSegment]
    target_folder: str
    first_dirty_offset: int | None
    retention: Retention | None = None


def publish_copies(copies: Sequence[PartitionCopy], root: str) -> list[Outcome]:
    """Write copies to the log root ``root``, whose checkpoints are written once.

    Target folders are absolute paths. Returns an error or None per copy. InvalidConfig means that
    the target exists already, CommitConflict that the log changed since it was read, and LogHeld
    that another process has locked the target. Other errors are failed reads and writes.
    """
    with contextlib.ExitStack() as held:
        publishing = _Publishing(copies, root, held)
        publishing.run()
    return publishing.errors


class _Publishing:
    """Writes several copies step by step. After an error, a copy takes no further step."""

    def __init__(
        self, copies: Sequence[PartitionCopy], root: str, stack: contextlib.ExitStack
    ) -> None:
        self._copies = copies
        self._root = root
        self._stack = stack
        self.errors: list[Outcome] = [None] * len(copies)
        self._locked_copies: set[int] = (
            set()
        )  # numbers of the copies whose targets this run has locked

    def run(self) -> None:
        for place, copy in enumerate(self._copies):
            self._try(self._hold, place, copy)
        self._locked_copies = {place for place, error in enumerate(self.errors) if error is None}
        self._each(_fill_checked)
        sound = [
            copy for copy, error in zip(self._copies, self.errors, strict=True) if error is None
        ]
        try:
            _write_checkpoints(sound, self._root)
        except (LogError, OSError) as error:
            self.errors = [known or error for known in self.errors]
        self._each(self._place)
        for place in self._locked_copies:
            if self.errors[place] is not None:
                # Remove the copy: the disk may be full. If that fails, the next run does it.
                with contextlib.suppress(LogError, OSError):
                    files.remove_tree(staging_path(self._copies[place].target_folder))

    def _each(self, step: Callable[[PartitionCopy], None]) -> None:
        places = [place for place, error in enumerate(self.errors) if error is None]
        for _ in overlapped(lambda place: self._try(step, place, self._copies[place]), places):
            pass

    def _try(self, step: Callable[[PartitionCopy], None], place: int, copy: PartitionCopy) -> None:
        try:
            step(copy)
        except (LogError, OSError) as error:
            self.errors[place] = error

    def _hold(self, copy: PartitionCopy) -> None:
        # Raises an error for an existing target, before it is locked.
        staging_folder(copy.target_folder, copy.log.folder)
        if not lock.holds(self._root, copy.log.name):
            self._stack.enter_context(lock.hold(self._root, [copy.log.name]))

    def _place(self, copy: PartitionCopy) -> None:
        _reject_existing(copy.target_folder)
        files.rename(staging_folder(copy.target_folder), copy.target_folder)
        files.fsync_dir(self._root)


def _fill_checked(copy: PartitionCopy) -> None:
    check_unchanged(copy.log)
    check_outputs(copy.log, copy.outputs)
    _fill(copy.log, copy.outputs, staging_folder(copy.target_folder), copy.retention)
    check_unchanged(copy.log)


def _fill(
    log: PartitionLog, outputs: Sequence[NewSegment], staging: str, retention: Retention | None
) -> None:
    """Write and sync all files under their final names, and remove other files of ``staging``."""
    removed = (
        set() if retention is None else {segment.base_offset for segment in retention.segments}
    )
    written = {os.path.basename(path) for output in outputs for path in output.paths}
    for name in sorted(os.listdir(staging)):
        if name not in written:
            files.unlink(os.path.join(staging, name))
    for output, sources in in_order(outputs):
        for kind, path in output.files:
            if output.base_offset in removed:
                files.unlink(path)
                continue
            copy_attributes(path, sources[0], kind, sources[-1].mtime_ns, is_copy=True)
            files.rename(path, os.path.join(staging, segment_file_name(output.base_offset, kind)))
    names = os.listdir(log.folder)
    live = crash_state(log.folder, names).live(names)
    # The indexes of a lost segment are evidence of the loss, so a damaged log keeps them.
    lost = orphans_being_deleted(names) if log.is_damaged else orphans(live)
    expired = set() if retention is None else set(doomed(list(live), retention))
    copied = [name for name in _copied(log, outputs, live, lost) if name not in expired]
    for name in copied:
        files.copy(os.path.join(log.folder, live[name]), os.path.join(staging, name))
    if not log.is_damaged:  # a damaged log is copied with its damage
        _recover_copy(log, copied, staging)
    if retention is not None and retention.segments:
        if retention.rolls:
            make_empty_segment(staging, retention.first_base)
        cut_leader_epochs(staging, retention.log_start)
    if log.open_as is not None:
        end_leader_epochs(staging, log.end_offset)
    files.fsync_dir(staging)


def _recover_copy(log: PartitionLog, copied: Sequence[str], staging: str) -> None:
    """Repair a copy of a log whose broker was killed, as Kafka's recovery would.

    The target root does not show that the broker was killed, so no broker would repair the copy.
    """
    for n, segment in enumerate(log.segments):
        name = segment_file_name(segment.base_offset, KafkaFileKind.LOG)
        if name not in copied:
            continue
        path = os.path.join(staging, name)
        if segment.torn_bytes or segment.unused_bytes or segment.growing:
            files.truncate(path, segment.size_bytes)
            files.set_mtime(path, segment.mtime_ns)
            files.fsync_file(path)
        unclean_shutdown.repair_indexes(replace(segment, path=path), log.aborted_in(n))
    if log.unseen and not log.segments:
        make_empty_segment(staging, log.log_start)


def _copied(
    log: PartitionLog, outputs: Sequence[NewSegment], live: dict[str, str], lost: Sequence[str]
) -> list[str]:
    """The files of the log to copy unchanged. Indexes of lost segments, ``lost``, are left out."""
    replaced = {segment.base_offset for output in outputs for segment in output.sources}
    vanished = replaced - {output.base_offset for output in outputs}
    behind = {classify(name).offset for name in log.unseen}
    chosen = []
    for name in sorted(live):
        file = classify(name)
        if file.kind in SEGMENT_KINDS:
            is_copied = file.offset not in replaced | behind and name not in lost
        elif file.kind is KafkaFileKind.SNAPSHOT:
            is_copied = file.offset not in vanished | behind
        else:
            is_copied = name in (LEADER_EPOCHS, PARTITION_METADATA)
        if log.open_as is not None and (file.offset or 0) > log.end_offset:
            continue  # the file is newer than the copied log, such as a snapshot
        if is_copied and file.suffix is Suffix.LIVE:
            chosen.append(name)
    missing = {
        segment_file_name(segment.base_offset, KafkaFileKind.LOG) for segment in log.segments
    } - live.keys()
    if missing:
        path = os.path.join(log.folder, min(missing))
        raise CommitConflict(f"{DELETED} the segment during the command", path=path, remedy=AGAIN)
    return chosen


def _write_checkpoints(copies: Sequence[PartitionCopy], root: str) -> None:
    """Write the target root's checkpoint entries before the copies appear."""
    dirty: dict[TopicPartition, int | None] = {}
    for copy in copies:
        first_dirty = (
            copy.log.checkpoint if copy.first_dirty_offset is None else copy.first_dirty_offset
        )
        if first_dirty is not None:
            dirty[copy.log.name] = first_dirty
    if dirty:
        write_offsets(root, CLEANER_OFFSETS, dirty)
    for file in (HIGH_WATERMARKS, LOG_STARTS):
        # An earlier partition with the same name may have left an entry.
        known = read_offsets(root, file)
        wanted = dict(entry for copy in copies for entry in _entry(copy, file))
        changes = {name: offset for name, offset in wanted.items() if known.get(name) != offset}
        if changes:
            write_offsets(root, file, changes)


def _entry(copy: PartitionCopy, file: str) -> Iterator[tuple[TopicPartition, int | None]]:
    """Yield the copy's entry for a checkpoint. No entry if the source root's file is damaged."""
    try:
        offset = read_offsets(os.path.dirname(copy.log.folder), file).get(copy.log.name)
    except (CorruptLog, UnsupportedFormat):
        # ``log.problems`` reports the damaged file. No entry is better than a wrong entry.
        return
    retention = copy.retention
    if copy.log.open_as is not None:
        # The broker that has the log open may have written offsets beyond the copy's end.
        if file == HIGH_WATERMARKS:
            offset = copy.log.end_offset
        elif offset is not None:
            offset = copy.log.log_start
    if file == HIGH_WATERMARKS and copy.log.is_damaged:
        # The recovery point may be the only evidence of missing records. The copy has no recovery
        # point, so its high watermark is at least the source's recovery point.
        known = recovery_point(os.path.dirname(copy.log.folder), copy.log.name)
        offset = max(offset or 0, known) or None
    if file == LOG_STARTS and retention is not None and retention.segments:
        # A log needs an entry only if its start is not the base of its first segment.
        offset = retention.log_start if retention.log_start > retention.first_base else None
    yield copy.log.name, offset
