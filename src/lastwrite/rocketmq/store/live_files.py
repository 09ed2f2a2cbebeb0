"""Read a store consistently while a broker has it open.

A broker appends a record to the commit log and then adds its unit to the consume queue. Then it
appends a copy to the compaction log and adds its unit to the compaction index. So if a unit exists,
its record is complete, and so are all earlier records of that log. The broker's compaction replaces
all files of a queue except the last: first the log files, then the index files. Then it stores the
position (docs/decisions/beside-a-broker.md).

Source: RocketMQ 5.5.0 ``CommitLog``, ``ReputMessageService``, ``CompactionLog.replaceFiles``.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from lastwrite.errors import CommitConflict, LogError
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, TopicPartition
from lastwrite.rocketmq.format import names, units
from lastwrite.rocketmq.store import archived, dispatched, lock, reading
from lastwrite.rocketmq.store.positions import UNKNOWN, QueuePositions, key_of, read_positions
from lastwrite.rocketmq.store.publish import live_tree
from lastwrite.rocketmq.store.reading import MappedFile, MappedLog, StoreFolder
from lastwrite.storage.files import to_log_error
from lastwrite.storage.reading import TRIES, TRY_AGAIN, check_segments

T = TypeVar("T")

_RESTS_S = 30.0  # longest wait for a broker to replace files; normally that takes milliseconds
_PAUSE_S = 0.01
_HEAD_BYTES = 36  # bytes of a record up to the end of its address
_UNIT_PARTS = (StoreFolder.CONSUME_QUEUE, StoreFolder.BATCH_QUEUE)


def is_open(root: str) -> bool:
    """Whether a broker has the store open."""
    return lock.broker_of(root) is not None


def settled(root: str | None, read: Callable[[], T]) -> T:
    """Call ``read``, which parses a small file, and return its result.

    If a broker has the store open and may be writing the file, a failed call is repeated a few
    times.

    Raises:
        LogError: the last attempt failed.
    """
    for _ in range(TRIES - 1):
        try:
            return read()
        except LogError:
            if root is None or not is_open(root):
                raise
        time.sleep(_PAUSE_S)
    return read()


# ---------------------------------------------------------------------- compaction logs


class Pairs(NamedTuple):
    """The files of a queue's compaction log and of the log's index at one moment."""

    logs: MappedLog
    indexes: MappedLog
    positions: QueuePositions
    is_open: bool  # a broker appends to the last log and index file


def read_pairs(root: str, name: TopicPartition) -> Pairs:
    """List the files of a queue's compaction log.

    If a broker has the store open, the files are listed while its compaction is not replacing any.
    A log file without an index has no record yet, and is skipped.

    Raises:
        LogError: a file or folder cannot be read.
    """
    if archived.is_root(root):
        folder = archived.folder_of(root, name)
        queue = archived.read_contents(folder)
        position = UNKNOWN if queue.checkpoint is None else queue.checkpoint - 1
        known = QueuePositions({key_of(name): position})
        return Pairs(*reading.archived_pairs(queue, folder), known, False)
    if not is_open(root):
        logs = reading.read_queue(root, StoreFolder.COMPACTION_LOG, name)
        indexes = reading.read_queue(root, StoreFolder.COMPACTION_INDEX, name)
        logs = reading.without_stopped_roll(root, logs, indexes)
        return Pairs(logs, indexes, read_positions(live_tree(root)), False)
    deadline = time.monotonic() + _RESTS_S
    while True:
        before = _at_rest(root, name)
        indexes = reading.read_queue(root, StoreFolder.COMPACTION_INDEX, name)
        logs = reading.read_queue(root, StoreFolder.COMPACTION_LOG, name)
        known = read_positions(live_tree(root))
        is_at_rest = before is not None and before == _at_rest(root, name)
        # After the deadline the files are returned as listed; callers check them.
        if is_at_rest or time.monotonic() > deadline:
            return Pairs(_open(logs, indexes), _open(indexes, indexes), known, True)
        time.sleep(_PAUSE_S)


def _at_rest(root: str, name: TopicPartition) -> Hashable | None:
    """A value that changes when compaction replaces the queue's files. None while it replaces them.

    A broker writes new files to the folder ``compacting`` of the log and of the index. While it
    replaces no files, either both folders have files or neither exists. In any other state, files
    are being moved, or the position is not stored yet.
    """
    folders = [
        reading.queue_folder(os.path.join(root, part), name)
        for part in (StoreFolder.COMPACTION_INDEX, StoreFolder.COMPACTION_LOG)
    ]
    made = []
    for folder in folders:
        if any(entry.endswith(names.DELETED_SUFFIX) for entry in reading.entries_of(folder)):
            return None
        work = os.path.join(folder, names.COMPACTING)
        made.append(len(reading.entries_of(work)) if os.path.isdir(work) else -1)
    if 0 in made or (made[0] < 0) != (made[1] < 0):
        return None
    return read_positions(live_tree(root)).of(name)


def _open(log: MappedLog, indexes: MappedLog) -> MappedLog:
    """The files of ``log`` up to the last index file; the last file is marked as growing.

    Log files that the broker has created since are skipped. The work folders of its compaction are
    not reported as problems.
    """
    most = 1 if not indexes.files else len([s for s in log.starts if s <= indexes.starts[-1]])
    files = list(log.files[: most if indexes.files or len(log.files) > 1 else 0])
    if files:
        files[-1] = replace(files[-1], is_growing=True)
    left_out = {file.path for file in log.files[len(files) :]}
    problems = tuple(
        problem
        for problem in log.problems
        if problem.path not in left_out
        and os.path.basename(problem.path) not in reading.WORK_FOLDERS
    )
    return replace(
        log, files=tuple(files), problems=problems, starts=tuple(file.start for file in files)
    )


def file_of_pair(root: str, name: TopicPartition, file: MappedFile) -> MappedLog:
    """A compaction log with only one file.

    If the file is growing, the log ends after the record of the index's last unit.
    """
    pairs = read_pairs(root, name)
    log = reading.log_of_one(next((f for f in pairs.logs.files if f.path == file.path), file))
    index = next((pair for pair in pairs.indexes.files if pair.start == file.start), None)
    if not log.files[0].is_growing or index is None:
        return log
    found = units.batch_units(reading.read_file(index, reading.INDEX_LIMIT_BYTES))
    last = found[: units.valid_count(found)][-1:]
    end = int(last["physical_offset"][0] + last["size"][0]) if len(last) else file.start
    return replace(log, bound=end)


def marks(logs: MappedLog, indexes: MappedLog) -> Hashable:
    """A value that identifies the listed files of a queue."""
    return tuple((file.path, file.inode) for file in (*logs.files, *indexes.files))


def check_marks(known: Hashable) -> None:
    """Check that the files that ``marks`` identifies still exist.

    Raises:
        CommitConflict: a file was replaced or deleted.
    """
    assert isinstance(known, tuple)
    for path, inode in known:
        try:
            is_same = os.stat(path).st_ino == inode
        except FileNotFoundError:
            is_same = False
        except OSError as error:
            raise to_log_error(error, path, "check the file") from error
        if not is_same:
            raise CommitConflict(
                "another program replaced or deleted the file during the command",
                path=path,
                remedy=TRY_AGAIN,
            )


def check_unmoved(log: PartitionLog) -> None:
    """Compare the files of a queue that a broker has open with the listed files.

    Raises:
        CommitConflict: a file was replaced or deleted.
    """
    if log.open_as is not None:
        check_marks(log.open_as)
        check_segments(log)


def open_queue(folder: str, end_offset: int) -> Problem:
    """A note that a broker has the queue open."""
    wrong = f"a broker has the store open, so the queue is read up to queue offset {end_offset}"
    return Problem(ProblemKind.OPEN, wrong, folder)


# ---------------------------------------------------------------------- the commit log


def open_store(root: str, bound: int) -> Problem:
    """A note that a broker has the store open."""
    wrong = (
        f"a broker has the store open, so its commit log is read up to physical offset {bound}, "
        "where its consume queues end"
    )
    return Problem(ProblemKind.OPEN, wrong, root)


def up_to_dispatched(root: str | None, read: Callable[[], MappedLog]) -> MappedLog:
    """The commit log, or some of its files, up to the last dispatched record.

    ``read`` is the function that lists the files.

    If a broker has the store open, the log ends after the last record with a unit in a consume
    queue. The log is empty if no queue has a unit.

    Raises:
        LogError: a file cannot be read.
    """
    if root is None or not is_open(root):
        return read()
    lasts = _last_units(root)
    log = read()  # listed after the units were read, so that it has their records
    whole = reading.read_files(*{os.path.dirname(file.path) for file in log.files})
    bound = _dispatched_end(lasts, whole)
    files = tuple(replace(file, is_growing=file.end >= bound) for file in log.files)
    return replace(log, files=files, bound=bound)


def _last_units(root: str) -> set[tuple[int, int]]:
    """The last unit of each queue in the store: address and size of its record."""
    found: set[tuple[int, int]] = set()
    for part in _UNIT_PARTS:
        for name in reading.list_queues(root, part):
            last = last_unit(reading.read_queue(root, part, name), part)
            if last is not None:
                found.add(last)
    return found


def last_unit(log: MappedLog, part: StoreFolder) -> tuple[int, int] | None:
    """The last unit of a queue: address and size of its record. None for an empty queue."""
    for file in reversed(log.files):
        try:
            data = reading.map_file(file)
        except LogError:
            if os.path.lexists(file.path):
                raise
            continue  # a broker deleted the expired file
        table = units.queue_units(data, is_batch=part is StoreFolder.BATCH_QUEUE)
        slots = range(len(table))
        count = bisect_left(
            slots,
            True,
            key=lambda n, of=table: not dispatched.is_valid(of[n]),  # type: ignore[misc]
        )
        if count and int(table["size"][count - 1]) != units.FILLER_SIZE:
            return int(table["physical_offset"][count - 1]), int(table["size"][count - 1])
    return None


def _dispatched_end(lasts: set[tuple[int, int]], log: MappedLog) -> int:
    """The address after the last record of the log in ``lasts``, pairs of (address, size).

    A pair is ignored if the log has no such record.
    """
    with reading.LogReader(log) as reader:
        for address, size in sorted(lasts, reverse=True):
            head = reader.read(address, _HEAD_BYTES)
            if len(head) == _HEAD_BYTES:
                stated = int.from_bytes(head[:4], "big"), int.from_bytes(head[28:], "big")
                if stated == (size, address):
                    return address + size
    return log.start
