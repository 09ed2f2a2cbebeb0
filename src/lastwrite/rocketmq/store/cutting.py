"""Truncate a commit log at an address, with all files that depend on it, and undo a truncation.

A broker that starts truncates its log at a partial record, and all later records are lost. ``cut``
truncates at an address that the user selects, reports the removed records first, and keeps the old
files. A *tree* is ``commitlog``, ``consumequeue``, ``batchconsumequeue``, ``index``, ``compaction``
or ``timerlog``. For each tree that changes::

    commitlog.cut           its successor: unchanged files as hard links, and a copy of the last
                            file that ends at the cut
    commitlog.before-cut    afterwards: the old tree

A queue's next offset is the end of its consume queue, so a broker assigns removed offsets again.
All other files that refer to them must be truncated too. Otherwise a broker would not add records
to a compaction log at offsets that it has, nor addresses to an index file below its last address,
and a consumer group would skip messages below its committed offset. The small files ``checkpoint``,
``config/consumerOffset.json``, ``lmqConsumerOffset.json`` and ``delayOffset.json`` are rewritten,
and the old files are kept beside them.

The timer's files also refer to the commit log. ``timerlog`` is truncated before the first unit of a
removed record. ``timerwheel`` and its snapshots are moved aside, because a broker rebuilds the
wheel from ``timerlog``. ``config/timercheck`` is set back to the new end of the timer's queue. The
delivered copies after the cut are removed, so delayed messages that were due after the last kept
record count as not delivered.

The steps::

    STORE/lastwrite-cut.json     the note: what changes
    *.cut                        the successors, synced; the commit log's successor has a guard file
                                 with the text "new"
    commitlog/lastwrite-cut      the guard file, text "old": brokers do not start while it exists
    tree -> tree.before-cut, tree.cut -> tree          one after the other
    commitlog <-> commitlog.cut, then to commitlog.before-cut
    (nothing)                    the guard is removed: the cut is complete

An undo also writes a guard and reverses the steps. The recovery of an interrupted cut does the
same. The guard's text shows whether the old or the new commit log is in place. The names of the
other trees show this for the other trees. The lock keeps brokers from starting during the cut, and
the guard after a crash.

Source: RocketMQ 5.5.0 ``CommitLog.recoverNormally``, ``MappedFileQueue.doLoad`` and
``truncateDirtyFiles``,
``ConsumeQueue.truncateDirtyLogicFiles``, ``CompactionLog.asyncPutMessage``,
``IndexService.buildIndex``, ``TimerMessageStore.recover``, ``ScheduleMessageService``.
"""

from __future__ import annotations

import json
import os
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lastwrite.errors import CorruptLog, InvalidConfig, LogError, LogHeld
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format import index_file, kernels, names, sides, timer, units
from lastwrite.rocketmq.format.kernels import MESSAGE
from lastwrite.rocketmq.reports import (
    CutReport,
    CutStatus,
    LoweredDelay,
    LoweredOffset,
    OffsetRange,
    QueueKind,
    TimerChange,
)
from lastwrite.rocketmq.store import beyond, lock, reading, trees, untouched, walking
from lastwrite.rocketmq.store.positions import key_of, read_positions
from lastwrite.rocketmq.store.reading import MappedFile, MappedLog, StoreFolder
from lastwrite.storage import files
from lastwrite.storage.lock import siblings
from lastwrite.storage.mapping import mapped

NOTE = "lastwrite-cut.json"

_NEXT, _ASIDE, _WORK = ".cut", names.BEFORE_CUT, ".cut-work"
_NEW = b"new: a cut was stopped, run lastwrite cut STORE --undo\n"
_OLD = b"old: a cut was stopped, run lastwrite cut STORE --undo\n"
_LARGEST_SIDE_BYTES = 1 << 30
_TREES = (*trees.ORDER, names.TIMER_LOG, names.COMMIT_LOG)
_NO_END = (1 << 63) - 1
_TIMER_QUEUE = TopicPartition(names.TIMER_TOPIC, 0)
_TIMER_CHECKPOINT = os.path.join(names.CONFIG, names.TIMER_CHECKPOINT)
_GROUP_SIDES = tuple(
    os.path.join(names.CONFIG, name + end)
    for name in (names.CONSUMER_OFFSETS, names.LIGHT_OFFSETS)
    for end in ("", names.BACKUP_SUFFIX)
)
_DELAY_SIDES = tuple(
    os.path.join(names.CONFIG, names.DELAY_OFFSETS + end) for end in ("", names.BACKUP_SUFFIX)
)


# ---------------------------------------------------------------------- the state of a store


def _is_done(root: str) -> bool:
    """Whether the store has a finished cut that was not undone."""
    aside = trees.live_tree(root, names.COMMIT_LOG) + _ASIDE
    return os.path.lexists(aside) and not lock.has_stopped_cut(root)


# ---------------------------------------------------------------------- planning a cut


@dataclass(slots=True)
class _Edit:
    """A file that a cut changes.

    It has the bytes ``content``, or the old file's first ``keep`` bytes and then zeros.
    """

    keep: int = 0
    content: bytes | None = None


@dataclass(slots=True)
class Cut:
    """A planned cut; ``report`` describes what is removed."""

    root: str
    at: int
    report: CutReport
    # changed files, by folder tree (such as ``consumequeue``) and path below it
    edits: dict[str, dict[str, _Edit]] = field(default_factory=dict)
    # paths of removed files, by folder tree
    removed: dict[str, set[str]] = field(default_factory=dict)
    # small files: new content by path below the store; None means that the file is moved aside
    side_files: dict[str, bytes | None] = field(default_factory=dict)
    last_time_ms: int = 0  # store time of the last kept record
    ends: dict[TopicPartition, int] = field(default_factory=dict)  # next offset of each queue

    def edit(self, tree: str, path: str, edit: _Edit) -> None:
        self.edits.setdefault(tree, {})[path] = edit

    def remove(self, tree: str, path: str) -> None:
        self.removed.setdefault(tree, set()).add(path)

    @property
    def trees(self) -> list[str]:
        """The folder trees that change, ``commitlog`` last."""
        changed = set(self.edits) | set(self.removed)
        return [tree for tree in _TREES if tree in changed]


def plan(root: str, at: int) -> Cut:
    """Plan a cut at the physical offset ``at``. Changes nothing.

    Raises:
        InvalidConfig: no record begins or ends at ``at``, or no record would be left.
        CorruptLog: a broker would not load files of the store.
        LogHeld: an earlier cut was interrupted, or its old files still exist.
        LogError: a file cannot be read.
    """
    lock.reject_stopped_cut(root)
    if _is_done(root):
        raise LogHeld(
            "the store still has the files of before an earlier cut",
            path=trees.live_tree(root, names.COMMIT_LOG) + _ASIDE,
            remedy=f"undo the earlier cut with --undo; or, to keep it, move {NOTE} and all files "
            f"and folders that end with {_ASIDE} out of the store",
        )
    cut = Cut(root, at, CutReport(path=root, at=at))
    log = reading.read_commit_log(root).check_loadable()
    found = list(log.files)
    while found and walking.is_empty(found[-1]):
        found.pop()
    place = _file_at(found, at)
    _plan_log(cut, log, found, place)
    _plan_queues(cut)
    _plan_compaction(cut)
    _plan_index(cut)
    _plan_sides(cut)
    _plan_delays(cut)
    _plan_timer(cut)
    changed = {path.split(os.sep)[0] for path in cut.trees} | set(cut.side_files)
    cut.report.untouched = untouched.list_untouched(root, changed, untouched.BY_CUT)
    live = [trees.live_tree(root, tree) for tree in cut.trees]
    cut.report.aside = [path + _ASIDE for path in live] + [
        os.path.join(root, path) + _ASIDE for path in cut.side_files
    ]
    return cut


def _file_at(found: list[MappedFile], at: int) -> MappedFile:
    """The commit log file that contains the address of the cut.

    Raises:
        InvalidConfig: see ``plan``.
    """
    if not found:
        raise InvalidConfig(
            "the commit log has no record, so there is nothing to cut",
            remedy="check the path of the store",
        )
    file = next((file for file in found if file.start <= at < file.end), None)
    if file is None:
        raise InvalidConfig(
            f"physical offset {at} is not in the commit log",
            remedy=f"give a physical offset from {found[0].start} to {found[-1].end - 1}",
        )
    places = sorted(_borders(file)[0])
    if at not in places and not (at == file.start and file.start > found[0].start):
        near = bisect_left(places, at)
        nearest = (
            " and ".join(map(str, places[max(near - 1, 0) : near + 1])) or "no border in this file"
        )
        raise InvalidConfig(
            f"no record begins or ends at physical offset {at}, so a cut there would leave part "
            "of a record",
            path=file.path,
            remedy=f"cut at the nearest record border: {nearest}",
        )
    if at <= found[0].start:
        raise InvalidConfig(
            "the cut would leave no record, and a broker would assign offsets from 0 again in "
            "every queue",
            remedy="keep this store unchanged, and start the broker on a new store",
        )
    return file


def _borders(file: MappedFile, at: int = 0) -> tuple[set[int], int]:
    """The positions where complete records of the file begin and end, and a store time.

    The store time is from the last record before ``at``, or 0 if there is no such record.
    """
    found: set[int] = set()
    last_time_ms = 0
    end = walking.written_end(file)
    with mapped(file.path, file.size_bytes) as data:
        for table in walking.whole_records(file, data, file.start, end, [], is_exact=True):
            starts = table["position"] + file.start
            found.update(starts.tolist())
            found.update((starts + table["size"]).tolist())
            before = int(np.searchsorted(starts, at))
            if before:
                last_time_ms = int(table["store_time"][before - 1])
    return found, last_time_ms


def _plan_log(cut: Cut, log: MappedLog, found: list[MappedFile], place: MappedFile) -> None:
    report, at = cut.report, cut.at
    rest = beyond.survey(found, at, is_exact=walking.has_record(place, at))
    report.file, report.position = place.path, at - place.start
    report.records = rest.records
    report.log_end = max(rest.end, at)
    last = place if at > place.start else found[found.index(place) - 1]
    cut.last_time_ms = _borders(last, at)[1]
    report.bytes = report.log_end - at
    cut.ends = {name: first for name, (first, _) in rest.queues.items()}
    removed = dict(rest.queues)
    for kind in (QueueKind.ORDINARY, QueueKind.BATCH):
        for name in reading.list_queues(cut.root, StoreFolder(kind)):
            queue = reading.read_queue(cut.root, StoreFolder(kind), name).check_loadable()
            offsets = beyond.listed(queue, kind, at)
            if offsets is not None:
                removed[name] = offsets
                cut.ends[name] = offsets[0]
    report.queues = beyond.ranges_of(removed, "consume queue")
    cut.edit(names.COMMIT_LOG, os.path.basename(place.path), _Edit(at - place.start))
    for file in log.files:
        if file.start > place.start:
            cut.remove(names.COMMIT_LOG, os.path.basename(file.path))
            report.files_removed.append(file.path)
    if rest.bad:
        places = ", ".join(map(str, rest.bad[:5]))
        report.notes.append(
            f"the removed part of the commit log is damaged at physical offset {places}"
        )
    if not rest.records:
        report.notes.append("the removed part of the commit log has no undamaged record")


def _plan_queues(cut: Cut) -> None:
    """Plan the removal of the units of removed records.

    A broker would also remove these units when it starts. But a dispatch before that start would
    compute next offsets from them that differ from the broker's.
    """
    for kind in (QueueKind.ORDINARY, QueueKind.BATCH):
        for name in reading.list_queues(cut.root, StoreFolder(kind)):
            log = reading.read_queue(cut.root, StoreFolder(kind), name)
            if beyond.listed(log, kind, cut.at) is None:
                continue
            is_left = False
            for file in log.files:
                with mapped(file.path) as data:
                    table = units.queue_units(data, is_batch=kind is QueueKind.BATCH)
                    count = units.valid_count(table)
                    keep = units.lower_bound(table["physical_offset"], cut.at, count)
                path = _below("", name, file)
                is_left = is_left or keep > 0
                if keep == 0:
                    cut.remove(kind, path)
                elif keep < len(table):
                    cut.edit(kind, path, _Edit(keep * table.dtype.itemsize))
            if not is_left:
                _note_empty(cut, name, log.files[0].start)


def _note_empty(cut: Cut, name: TopicPartition, first: int) -> None:
    """Add a note that a broker numbers a queue without units from 0 again."""
    if not first and not cut.ends[name]:
        return
    cut.report.notes.append(
        f"{name} has no unit after the cut, so a broker assigns its offsets from 0 again"
    )
    if _pairs(cut.root, name):
        raise InvalidConfig(
            f"{name} would have no unit after the cut, so a broker would assign its offsets "
            "from 0 again. The queue's compaction log has higher offsets and would accept no "
            "message",
            remedy=f"cut after the last message of {name}, or restore the commit log from a "
            "replica",
        )


# ---------------------------------------------------------------------- compaction logs


def _pairs(root: str, name: TopicPartition) -> list[tuple[MappedFile, MappedFile]]:
    """The pairs of log and index files of a compaction log."""
    logs = reading.read_queue(root, StoreFolder.COMPACTION_LOG, name).check_loadable()
    listed = reading.read_queue(root, StoreFolder.COMPACTION_INDEX, name).check_loadable()
    logs = reading.without_stopped_roll(root, logs, listed)
    indexes = {file.start: file for file in listed.files}
    for file in logs.files:
        if file.start not in indexes:
            raise CorruptLog(
                "the log file has no index file of the same name, and a broker does not start",
                path=file.path,
                remedy=names.RESTORE_QUEUE,
            )
    return [(file, indexes[file.start]) for file in logs.files]


def _plan_compaction(cut: Cut) -> None:
    """Plan to remove the compaction log records whose offsets a broker will assign again.

    Compaction positions at or above these offsets are lowered.
    """
    lowered: dict[str, int] = {}
    positions = read_positions(trees.live_tree(cut.root, names.COMPACTION))
    for name in reading.list_queues(cut.root, StoreFolder.COMPACTION_LOG):
        end = cut.ends.get(name)
        if end is None:
            continue
        _plan_compaction_log(cut, name, end)
        if positions.of(name) >= end:
            lowered[key_of(name)] = end - 1
    if lowered:
        offsets = {key: at for key, at in {**positions.offsets, **lowered}.items() if at >= 0}
        edit = _Edit(content=sides.encode_positions(offsets))
        cut.edit(names.COMPACTION, names.POSITION_CHECKPOINT, edit)


def _plan_compaction_log(cut: Cut, name: TopicPartition, end: int) -> None:
    going: list[int] = []  # first and last removed queue offset of each file, in order
    last_kept: tuple[MappedFile, MappedFile, int, int] | None = None
    removed: list[tuple[MappedFile, MappedFile]] = []
    for log, index in _pairs(cut.root, name):
        with mapped(index.path) as data:
            table = units.batch_units(data)
            count = units.valid_count(table)
            keep = units.lower_bound(table["base"], end, count)
            if keep < count:
                going += (
                    units.offsets_of(table, keep, 0)[:1] + units.offsets_of(table, count - 1, 0)[1:]
                )
            if keep:
                last = table[keep - 1]
                wrote = int(last["physical_offset"]) + int(last["size"]) - log.start
                last_kept = log, index, wrote, keep
        if keep == 0:
            removed.append((log, index))
    if not going:
        return
    folder = reading.queue_folder(names.COMPACTION_LOGS, name)
    for file_name in reading.stopped_roll(cut.root, name):
        cut.remove(names.COMPACTION, os.path.join(folder, file_name))
    for log, index in removed:
        cut.remove(names.COMPACTION, _below(names.COMPACTION_LOGS, name, log))
        cut.remove(names.COMPACTION, _below(names.COMPACTION_QUEUES, name, index))
    if last_kept is not None:
        # The log file and its index become active, so the blank record and end unit are removed.
        log, index, wrote, keep = last_kept
        cut.edit(names.COMPACTION, _below(names.COMPACTION_LOGS, name, log), _Edit(wrote))
        shorter = _Edit(keep * units.BATCH_UNIT.size)
        cut.edit(names.COMPACTION, _below(names.COMPACTION_QUEUES, name, index), shorter)
    cut.report.compaction.append(
        OffsetRange(name.topic, name.partition, going[0], going[-1], "compaction log")
    )


def _below(tree: str, name: TopicPartition, file: MappedFile) -> str:
    return os.path.join(reading.queue_folder(tree, name), os.path.basename(file.path))


# ---------------------------------------------------------------------- index and small files


def _plan_index(cut: Cut) -> None:
    """Plan the removal of the index entries of removed records.

    A broker adds no entry whose address is below the last address in the newest index file.
    """
    for file in reading.read_index_files(cut.root).files:
        with mapped(file.path) as data:
            try:
                found = index_file.IndexFile.of(data)
            except CorruptLog as error:
                raise error.located(file.path) from error
            header = found.header
            if header.last_physical_offset < cut.at:
                continue
            name = os.path.basename(file.path)
            cut.report.index_files.append(name)
            content = _shorter_index(cut, found)
            if content is None:
                cut.remove(names.INDEX, name)
            else:
                cut.edit(names.INDEX, name, _Edit(content=content))


def _shorter_index(cut: Cut, found: index_file.IndexFile) -> bytes | None:
    """An index file with only the entries of the kept records. None if no entry is left."""
    table = found.entries()
    count = int(np.searchsorted(table["physical_offset"], cut.at))
    if not count:
        return None
    table = table[:count]
    times = found.header.first_store_time_ms + 1000 * table["seconds"].astype(np.int64)
    last = int(table["physical_offset"][-1])
    # The header gets the last record's store time in milliseconds. An entry has only seconds, so
    # read the time from the record.
    times[table["physical_offset"] == last] = _store_time(cut, last) or times[-1]
    times[0] = found.header.first_store_time_ms
    out = index_file.new_index_file(found.slots, found.capacity)
    hashes, places = (table[column].astype(np.int64) for column in ("hash", "physical_offset"))
    index_file.build(out, found.slots, hashes, places, times)
    return out.tobytes()


def _store_time(cut: Cut, address: int) -> int | None:
    file = reading.read_commit_log(cut.root).find(address)
    if file is None:
        return None
    table = np.empty(1, MESSAGE)
    with mapped(file.path) as data:
        n, *_ = kernels.split(data, address - file.start, len(data), table, False)
    return int(table[0]["store_time"]) if n else None


def _plan_sides(cut: Cut) -> None:
    """Plan lower committed offsets of consumer groups and a lower checkpoint."""
    ends = {(name.topic, name.partition): end for name, end in cut.ends.items()}
    for path in _GROUP_SIDES:
        content = _content(cut.root, path)
        lowered, told = sides.lower_consumer_offsets(content, ends)
        if told:
            cut.side_files[path] = lowered
            if not path.endswith(names.BACKUP_SUFFIX):
                cut.report.consumers += [LoweredOffset(*one) for one in told]
    content = _content(cut.root, names.CHECKPOINT)
    with suppress(LogError):
        old = sides.decode_checkpoint(content)
        addresses = ("confirm_offset", "consume_queue_offset", "master_flushed_offset")
        new = old._replace(**{name: min(getattr(old, name), cut.at) for name in addresses})
        if new != old:
            head = sides.CHECKPOINT.pack(*new)
            cut.side_files[names.CHECKPOINT] = head + content[len(head) :]


def _plan_delays(cut: Cut) -> None:
    """Plan lower positions in the queues of delayed messages.

    A position is lowered to the first message that was due after the last kept record, because the
    cut removes the delivered copy of that message. The queue's end is used if it is lower.
    """
    ends: dict[int, int] = {}
    for name in reading.list_queues(cut.root, StoreFolder.CONSUME_QUEUE):
        if name.topic == names.SCHEDULE_TOPIC:
            ends[name.partition + 1] = _first_due(cut, name)
    for path in _DELAY_SIDES:
        lowered, told = sides.lower_delay_offsets(_content(cut.root, path), ends)
        if told:
            cut.side_files[path] = lowered
            if not path.endswith(names.BACKUP_SUFFIX):
                cut.report.delays = [LoweredDelay(*one) for one in told]


def _first_due(cut: Cut, name: TopicPartition) -> int:
    """The queue offset of the first message of a delay level due after the last kept record.

    Returns the queue's end if there is no such message.
    """
    end = cut.ends.get(name, _NO_END)
    for file in reading.read_queue(cut.root, StoreFolder.CONSUME_QUEUE, name).files:
        with mapped(file.path) as data:
            table = units.consume_queue_units(data)
            table = table[: units.valid_count(table)]
            late = np.flatnonzero(table["tags_code"] > cut.last_time_ms)
        if len(late):
            first = file.start // units.CONSUME_QUEUE_UNIT.size + int(late[0])
            return min(end, first)
    return end


# ---------------------------------------------------------------------- the timer


def _plan_timer(cut: Cut) -> None:
    """Plan the timer's changes: a shorter log, no wheel, and an earlier checkpoint.

    A broker rebuilds the wheel from the log.
    """
    content = _content(cut.root, _TIMER_CHECKPOINT)
    removed = _plan_timer_log(cut)
    if removed:
        wheels = sorted(filter(_is_wheel, os.listdir(cut.root)))
        cut.side_files.update(dict.fromkeys(wheels))
    try:
        old = timer.decode_timer_checkpoint(content)
    except CorruptLog:  # missing or too short: a broker uses zeros
        old = timer.TimerCheckpoint(0, 0, 0, 0, 0, 0, 0)
    end = cut.ends.get(_TIMER_QUEUE, _NO_END)
    slot = cut.last_time_ms // timer.PRECISION_MS * timer.PRECISION_MS
    new = old._replace(
        read_time_ms=min(old.read_time_ms, slot),
        log_flushed_at=0 if removed else old.log_flushed_at,
        queue_offset=min(old.queue_offset, end),
        master_queue_offset=min(old.master_queue_offset, end),
    )
    if new == old and not removed:
        return
    if new != old:
        head = timer.TIMER_CHECKPOINT.pack(*new)
        cut.side_files[_TIMER_CHECKPOINT] = head + content[len(head) :]
    cut.report.timer = TimerChange(
        units_removed=removed,
        queue_offset_before=old.queue_offset,
        queue_offset_after=new.queue_offset,
        read_time_before_ms=old.read_time_ms,
        read_time_after_ms=new.read_time_ms,
    )


def _plan_timer_log(cut: Cut) -> int:
    """Plan to truncate the timer log before its first unit of a removed record.

    Later units are removed too, because the timer service processes messages in order. Returns the
    number of removed units.
    """
    removed = 0
    for file in (
        reading.read_files(trees.live_tree(cut.root, names.TIMER_LOG)).check_loadable().files
    ):
        name = os.path.basename(file.path)
        with mapped(file.path) as data:
            table = timer.timer_units(data)
            going = np.flatnonzero(table["physical_offset"] >= cut.at)
            count = len(table)
        if removed:
            cut.remove(names.TIMER_LOG, name)
            removed += count
        elif len(going):
            keep = int(going[0])
            removed = count - keep
            if keep or not file.start:
                cut.edit(names.TIMER_LOG, name, _Edit(keep * timer.TIMER_UNIT.size))
            else:
                cut.remove(names.TIMER_LOG, name)
    return removed


def _is_wheel(name: str) -> bool:
    """Whether a file is the timer wheel or a snapshot of it."""
    stem, _, number = name.partition(".")
    return stem == names.TIMER_WHEEL and (not number or number.isdigit())


def _content(root: str, path: str) -> bytes:
    try:
        with open(os.path.join(root, path), "rb") as file:
            return file.read(_LARGEST_SIDE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise files.to_log_error(error, os.path.join(root, path), "read the file") from error


# ---------------------------------------------------------------------- carrying out a cut


def make(cut: Cut) -> CutReport:
    """Carry out the planned cut. The caller holds the store's lock.

    Raises:
        LogError: nothing was changed, or the message states what to do.
    """
    root = cut.root
    _clear(root)
    note = {
        "at": cut.at,
        "trees": cut.trees,
        "sides": {
            path: None if content is None else zlib.crc32(content)
            for path, content in cut.side_files.items()
        },
        "report": cut.report.to_dict(),
    }
    trees.reject_unwritable(root, cut.trees)
    with lock.exclusive(root):
        try:
            place = os.path.join(root, NOTE)
            like = files.owner_of(place, siblings(root, lock.PLACE)).as_far_as_may()
            files.write(place, json.dumps(note, indent=1).encode(), like=like)
            files.fsync_dir(root)
            for tree in cut.trees:
                _build(cut, tree)
        except BaseException:
            with suppress(LogError, OSError):
                _clear(root)
            raise
        with lock.unopened(root):
            try:
                _forward(cut)
            except (LogError, OSError):
                with suppress(LogError, OSError):
                    _back(root)
                    _clear(root)
                raise
    cut.report.status = CutStatus.CUT
    return cut.report


def _build(cut: Cut, tree: str) -> None:
    live = trees.live_tree(cut.root, tree)
    work = live + _WORK
    files.make_folder(work, files.owner_of(live))
    change = trees.TreeChange(removed=set(cut.removed.get(tree, ())))
    for number, (path, edit) in enumerate(sorted(cut.edits.get(tree, {}).items())):
        made = change.new[path] = os.path.join(work, str(number))
        old = os.path.join(live, path)
        if edit.content is not None:
            files.write(made, edit.content, like=files.owner_of(old))
        else:
            size = os.stat(old).st_size
            files.copy(old, made)
            files.truncate(made, edit.keep)
            files.truncate(made, size)
            files.fsync_file(made)
    if tree == names.COMMIT_LOG:
        guard = change.new[names.CUT_GUARD] = os.path.join(work, names.CUT_GUARD)
        files.write(guard, _NEW, like=trees.owner_of_guard(live, names.CUT_GUARD))
    trees.build_successor(cut.root, live, live + _NEXT, change)
    files.remove_tree(work)


def _forward(cut: Cut) -> None:
    root = cut.root
    log = trees.live_tree(root, names.COMMIT_LOG)
    _write_guard(log, _OLD)
    for tree in cut.trees:
        live = trees.live_tree(root, tree)
        if tree != names.COMMIT_LOG:
            files.rename(live, live + _ASIDE)
            _rename(live + _NEXT, live)
    for path, content in cut.side_files.items():
        live = os.path.realpath(os.path.join(root, path))
        if content is None:
            _rename(live, live + _ASIDE)
            continue
        files.copy(live, live + _ASIDE + ".tmp")
        _rename(live + _ASIDE + ".tmp", live + _ASIDE)
        files.write(live + _NEXT, content, like=files.owner_of(live))
        _rename(live + _NEXT, live)
    _exchange(log + _NEXT, log)
    _rename(log + _NEXT, log + _ASIDE)
    _remove_guard(log)


def _rename(old: str, new: str) -> None:
    """Rename a file or folder within its folder, and sync the folder."""
    files.rename(old, new)
    files.fsync_dir(os.path.dirname(new))


def _exchange(one: str, other: str) -> None:
    """Exchange the names of two folder trees in one folder, and sync that folder."""
    files.exchange(one, other)
    files.fsync_dir(os.path.dirname(other))


def _write_guard(log: str, text: bytes) -> None:
    guard = os.path.join(log, names.CUT_GUARD)
    files.write(guard, text, like=trees.owner_of_guard(log, names.CUT_GUARD))
    files.fsync_dir(log)


def _remove_guard(log: str) -> None:
    files.unlink(os.path.join(log, names.CUT_GUARD))
    files.fsync_dir(log)


# ---------------------------------------------------------------------- undoing a cut


def undo(root: str) -> CutReport:
    """Undo a finished or interrupted cut. The caller holds the store's lock.

    Raises:
        InvalidConfig: the store has no cut.
        LogHeld: the log has new records since the cut, which an undo would lose.
        LogError: a step failed; the next undo continues from there.
    """
    if not lock.has_stopped_cut(root) and not _is_done(root):
        _clear(root)
        raise InvalidConfig(
            "the store has no cut to undo", path=root, remedy="check the path of the store"
        )
    note = _read_note(root)
    report = CutReport(path=root, at=int(note["at"]), status=CutStatus.UNDONE)
    for name in ("file", "position", "records", "bytes", "log_end"):
        setattr(report, name, note["report"][name])
    for name in ("queues", "compaction"):
        setattr(report, name, [OffsetRange(**one) for one in note["report"][name]])
    with lock.exclusive(root), lock.unopened(root):
        if not lock.has_stopped_cut(root):
            _reject_gone_on(root, report.at)
        report.notes = _back(root)
        _clear(root)
    return report


def _read_note(root: str) -> dict[str, Any]:
    path = os.path.join(root, NOTE)
    try:
        with open(path, "rb") as file:
            return dict(json.load(file))
    except OSError as error:
        raise files.to_log_error(error, path, "read the description of the cut") from error
    except ValueError as error:
        raise CorruptLog(
            f"the description of the cut is not valid JSON: {error}",
            path=path,
            remedy="to undo the cut by hand, stop the broker. For each file and folder that ends "
            f"with {_ASIDE}, the commit log last, move the one without that ending out of the "
            "store, if there is one, and keep it; then remove the ending. Last, move "
            f"{names.COMMIT_LOG}/{names.CUT_GUARD} out of the store. To keep the cut, move all "
            f"that ends with {_ASIDE}, and {NOTE}, out of the store",
        ) from error


def _reject_gone_on(root: str, at: int) -> None:
    log = reading.read_commit_log(root)
    for file in log.files:
        if file.end <= at:
            continue
        start = max(at - file.start, 0)
        with mapped(file.path) as data:
            for low, high in reading.written_stretches(file):
                if data[max(low, start) : high].any():
                    raise LogHeld(
                        f"the commit log has new records since the cut at physical offset {at}, "
                        "and an undo would lose them",
                        path=file.path,
                        remedy="keep this commit log, and read the one from before the cut with "
                        f"lastwrite dump {trees.live_tree(root, names.COMMIT_LOG)}{_ASIDE}",
                    )


def _is_new(log: str) -> bool:
    """Whether ``commitlog`` is the truncated log and not the old one."""
    try:
        with open(os.path.join(log, names.CUT_GUARD), "rb") as file:
            text = file.read()
    except OSError as error:
        raise files.to_log_error(
            error, log, "determine which step of the cut was reached"
        ) from error
    if text in (_NEW, _OLD):
        return text == _NEW
    # A crash left an incomplete guard. If ``commitlog.before-cut`` exists, an undo wrote the guard,
    # and ``commitlog`` is still the truncated log. Otherwise a cut wrote the guard.
    return os.path.lexists(log + _ASIDE)


def _back(root: str) -> list[str]:
    """Restore the old folders after any step of a cut. Returns messages on files not restored."""
    note = _read_note(root)
    notes = []
    log = trees.live_tree(root, names.COMMIT_LOG)
    if not lock.has_stopped_cut(root):
        _write_guard(log, _NEW if os.path.lexists(log + _ASIDE) else _OLD)
    for path, crc in note["sides"].items():
        live = os.path.realpath(os.path.join(root, path))
        old = live + _ASIDE
        if not os.path.lexists(old):
            continue
        # The timer checkpoint is restored with the other timer files, even if a broker rewrote it.
        # The log has no new record, so the broker has delivered no message since the cut.
        is_ours = crc is None or path == _TIMER_CHECKPOINT or not os.path.lexists(live)
        is_ours = is_ours or zlib.crc32(_content(root, path)) == crc
        if is_ours or _is_same(live, old):
            files.rename(old, live)
        else:
            notes.append(
                f"a broker has changed {live} since the cut, so the file was left unchanged"
            )
            files.unlink(old)
        files.fsync_dir(os.path.dirname(live))
    for tree in note["trees"]:
        live = trees.live_tree(root, tree)
        if tree == names.COMMIT_LOG or not os.path.lexists(live + _ASIDE):
            continue
        if os.path.lexists(live):
            files.rename(live, live + _NEXT)
        _rename(live + _ASIDE, live)
    if _is_new(log):
        _exchange(log + (_ASIDE if os.path.lexists(log + _ASIDE) else _NEXT), log)
    if os.path.lexists(log + _ASIDE):
        _rename(log + _ASIDE, log + _NEXT)
    _remove_guard(log)
    return notes


def _is_same(one: str, other: str) -> bool:
    with open(one, "rb") as first, open(other, "rb") as second:
        return first.read() == second.read()


def _clear(root: str) -> None:
    """Remove the files that a cut left behind after it changed nothing or was undone."""
    if lock.has_stopped_cut(root) or _is_done(root):
        return
    for path in _leftover_paths(root):
        if os.path.isdir(path) and not os.path.islink(path):
            files.remove_tree(path)
        else:
            files.unlink(path)
    note = os.path.join(root, NOTE)
    if os.path.lexists(note):
        files.unlink(note)
        files.fsync_dir(root)


def _leftover_paths(root: str) -> Iterator[str]:
    ends = dict.fromkeys(_TREES, (_NEXT, _WORK))
    for side in (names.CHECKPOINT, *_GROUP_SIDES, *_DELAY_SIDES, _TIMER_CHECKPOINT):
        ends[side] = (_NEXT, _ASIDE + ".tmp")
    for path, suffixes in ends.items():
        live = os.path.realpath(os.path.join(root, path))
        yield from (live + end for end in suffixes if os.path.lexists(live + end))
