"""``inspect`` of a RocketMQ store: counts all data, and compares every index with its records.

The commit log is read once, and every body's checksum is verified. Each chunk of records is
compared with the units of its queues (``index_proof``), so that no records are kept in memory.
Compaction logs are read separately. No file is changed, and Spark is not started.

Source: RocketMQ 5.5.0; docs/formats/rocketmq.md; docs/formats/rocketmq-compaction.md, "Files and
their sizes" and "A store rewritten offline".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from lastwrite.errors import LogError
from lastwrite.model.columns import Int64Array
from lastwrite.model.log import Problem, ProblemKind, TopicPartition, any_damaged
from lastwrite.model.policy import LONG_MAX
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.rocketmq.format import kernels, names, record, sides, units
from lastwrite.rocketmq.format.index_file import IndexFile
from lastwrite.rocketmq.look.index_proof import (
    INDEX_ANEW,
    KeyProof,
    Note,
    PairProof,
    QueueProof,
    bad_slot,
    first_bad_entry,
)
from lastwrite.rocketmq.look.inspection import (
    CompactionInspection,
    FileOfLog,
    IndexOfQueue,
    LogInspection,
    Messages,
    QueueInspection,
    StoreReport,
)
from lastwrite.rocketmq.look.rows import POSITIONS_REMEDY, remedy_of, side_rows
from lastwrite.rocketmq.look.walk import Ending, LogWalk, RecordWindow
from lastwrite.rocketmq.store import archived, layouts, live_files, lock
from lastwrite.rocketmq.store.dispatched import MAKE_ANEW
from lastwrite.rocketmq.store.missing import missing_files
from lastwrite.rocketmq.store.place import StorePlace, find_place, locate
from lastwrite.rocketmq.store.reading import (
    INDEX_LIMIT_BYTES,
    PART_OF_KIND,
    MappedFile,
    MappedLog,
    RocketmqFileKind,
    StoreFolder,
    commit_log_folders,
    list_queues,
    log_folder,
    log_of_one,
    map_file,
    queue_folder,
    read_file,
    read_files,
    read_index_files,
    read_one_file,
    read_queue,
)
from lastwrite.rocketmq.store.topics import all_queues, topics_or_none
from lastwrite.rocketmq.system import ROCKETMQ
from lastwrite.storage.choice import Topics, choose, is_selected, topic_of
from lastwrite.storage.problems import damaged, problem_of, recovered
from lastwrite.storage.reading import TRIES, one_try, read_small

MOST_PROBLEMS = 20  # most problems listed per queue; further problems are only counted
MOST_KEYS = 4_000_000  # distinct keys counted in a compaction log; above this the number is unknown

_EMPTY_COMPRESSED_BYTES = 64  # a larger compressed body is not empty
_TITLES = {
    StoreFolder.COMMIT_LOG: "commit log",
    StoreFolder.CONSUME_QUEUE: "consume queues",
    StoreFolder.EXTENSION: "consume queue extensions",
    StoreFolder.BATCH_QUEUE: "batch consume queues",
    StoreFolder.COMPACTION_LOG: "compaction logs",
    StoreFolder.COMPACTION_INDEX: "compaction indexes",
    StoreFolder.COMPACTION: "compaction logs with their indexes",
    StoreFolder.INDEX: "index files",
    StoreFolder.CONFIG: "settings",
}
_QUEUE_INDEXES = {
    StoreFolder.CONSUME_QUEUE: "consume_queue",
    StoreFolder.BATCH_QUEUE: "batch_consume_queue",
    StoreFolder.EXTENSION: "extension",
}
_SIDE_PATHS = (
    names.CHECKPOINT,
    names.ABORT,
    names.LOCK,
    f"{names.CONFIG}/{names.TOPICS}",
    f"{names.CONFIG}/{names.CONSUMER_OFFSETS}",
    f"{names.CONFIG}/{names.LIGHT_OFFSETS}",
    f"{names.CONFIG}/{names.DELAY_OFFSETS}",
    f"{names.CONFIG}/{names.TIMER_CHECKPOINT}",
    f"{names.COMPACTION}/{names.POSITION_CHECKPOINT}",
)


def inspect_store(
    path: str,
    topic: Topics,
    queue: int | None,
    config: Mapping[str, object] | None,
    now_ms: int | None,
    include_active: bool = False,
    progress: Progress | None = None,
) -> StoreReport:
    """Read all RocketMQ files at ``path``, and report their content.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.

    Damage does not raise; it is in the report, with file and byte.
    """
    began = time.monotonic()
    place = find_place(path)
    ROCKETMQ.check_config(config or {})
    if place.root is not None:
        lock.reject_if_locked(place.root)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    asked = topic, queue, progress or NoProgress(), dict(config or {}), include_active
    report = _inspected(path, place, now, lambda report: _StoreInspection(place, report, *asked))
    report.seconds = round(time.monotonic() - began, 3)
    return report


def inspect_beside(
    path: str,
    topic: Topics,
    queue: int | None,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> StoreReport:
    """Inspect a store as ``inspect_store`` does, but without its compaction logs.

    Reads the commit log, consume queues, index files and small files.

    Raises:
        NotALog: nothing was read.
    """
    place = find_place(path)
    asked = topic, queue, progress or NoProgress(), dict(config or {})
    return _inspected(
        path, place, 0, lambda report: _StoreInspection(place, report, *asked, has_compaction=False)
    )


def _inspected(
    path: str, place: StorePlace, now_ms: int, job: Callable[[StoreReport], _StoreInspection]
) -> StoreReport:
    """Run the inspection that ``job`` creates, and return its report.

    If a broker has the store open, an inspection that finds damage is repeated a few times, because
    files may have been replaced or written during the read.

    Raises:
        CommitConflict: files were replaced or deleted during every attempt.
    """
    for tries in range(1, TRIES + 1):
        report = StoreReport(
            path=str(path), what=recognize_file(place), now_ms=now_ms, root=place.root
        )
        is_open = place.root is not None and live_files.is_open(place.root)
        with one_try(tries, is_open=is_open):
            job(report).run()
            is_damaged = any_damaged(report.problems) or any(
                queue.is_damaged for queue in report.partitions
            )
            if not (is_open and is_damaged) or tries == TRIES:
                return report
    raise AssertionError("unreachable")


def recognize_file(place: StorePlace) -> str:
    """Describe a path, for example as ``store`` or ``consume queues of orders-3``."""
    if place.file is not None:
        return f"{place.file}" + (f" of {place.name}" if place.name is not None else "")
    if place.part is None:
        return "store"
    title = _TITLES[place.part]
    if place.topic is None:
        return title
    return f"{title} of {'topic ' + place.topic if place.name is None else place.name}"


@dataclass(slots=True)
class _StoreInspection:
    """Inspects a store or a part of it, and fills a report."""

    place: StorePlace
    report: StoreReport
    topic: Topics
    queue: int | None
    progress: Progress
    config: Mapping[str, object] = field(default_factory=dict)
    include_active: bool = False
    has_compaction: bool = True  # whether compaction logs are read
    queues: dict[TopicPartition, QueueInspection] = field(default_factory=dict)
    # settings of the topics; None means that they were not read yet
    topics: Mapping[str, sides.TopicConfig] | None = None
    seen: set[tuple[str, int | None, str]] = field(default_factory=set)  # problems that were added

    def run(self) -> None:
        place, report = self.place, self.report
        self.topic = place.topic if self.topic is None else self.topic
        self.queue = place.queue if self.queue is None else self.queue
        if place.file is not None:
            self.progress.stage("inspect", os.path.getsize(place.path))
            self._file(place)
        elif place.part in (None, *_QUEUE_INDEXES):
            if place.root is not None and not (self.topic is None and self.queue is None):
                self._check_requested(place.root)
            self._store()
        elif place.part is StoreFolder.COMMIT_LOG:
            log = self._up_to_dispatched(lambda: read_files(place.path, is_copy=place.root is None))
            self.progress.stage("inspect", log.size_bytes)
            self._note_all(log)
            self._note_gaps(log)
            self._commit_log([place.path], log, {})
        elif place.part in (
            StoreFolder.COMPACTION,
            StoreFolder.COMPACTION_LOG,
            StoreFolder.COMPACTION_INDEX,
        ):
            self._compactions(place.root or place.path)
        elif place.part is StoreFolder.INDEX:
            self._index_files(place.root, place.path)
        else:
            for name in sorted(os.listdir(place.path)):
                inside = locate(os.path.join(place.path, name))
                if inside is not None and inside.file is not None:
                    self._file(inside)
        report.partitions = [self.queues[name] for name in sorted(self.queues)]

    def _store(self) -> None:
        """Inspect a store, or a folder of units inside or outside a store."""
        place, root = self.place, self.place.root
        if root is None:
            assert place.part is not None
            files = read_files(place.path)
            self._note_all(files)
            self._note_gaps(files)
            self.report.files += self._count_units(files, place.part, MappedLog(), self._note).files
            return
        folders = commit_log_folders(root, self.config)
        log = self._up_to_dispatched(lambda: read_files(*folders))
        self._note_all(log)
        for problem in (*missing_files(root, log, ", ".join(folders)), *layouts.unsupported(root)):
            self._note(problem)
        self.progress.stage("inspect", log.size_bytes)
        self._commit_log(folders, log, self._queue_indexes(root, log))
        if place.part is not None:
            return
        self._compactions(root)
        if self.topic is None:
            self._index_files(root, os.path.join(root, StoreFolder.INDEX), log)
        if not live_files.is_open(root):
            abort = os.path.join(root, names.ABORT)
            self.report.stopped_in_order = not os.path.lexists(abort)
            if not self.report.stopped_in_order:
                wrong = "the broker was killed, or is running and its lock is not visible from here"
                self._note(
                    recovered(
                        wrong,
                        abort,
                        None,
                        "nothing to do: the broker's next start checks the end of the commit log",
                    )
                )
        for side in _SIDE_PATHS:
            path = os.path.join(root, side)
            found = locate(path) if os.path.isfile(path) else None
            if found is not None:
                self._file(found)

    def _up_to_dispatched(self, read: Callable[[], MappedLog]) -> MappedLog:
        log = live_files.up_to_dispatched(self.place.root, read)
        if log.bound is not None and self.place.root is not None:
            self._note(live_files.open_store(self.place.root, log.bound))
        return log

    def _is_requested(self, name: TopicPartition) -> bool:
        return is_selected(self.topic, topic_of(name)) and self.queue in (None, name.partition)

    def _check_requested(self, root: str) -> None:
        """Check that the requested topic and queue exist, before a commit log is read.

        Raises:
            NotALog: they are neither in the store's queues nor in the broker's settings.
        """
        self.topics = topics_or_none(root, self._note)
        known = all_queues(root, self.topics)
        if known:
            there = [(name, "") for name in known]
            choose(there, self.topic, self.queue, self.place.path, unit="queue")

    def _of(self, name: TopicPartition) -> QueueInspection:
        if name not in self.queues:
            self.queues[name] = QueueInspection(topic=name.topic, partition=name.partition)
            if self.topics is None:
                self.topics = topics_or_none(self.place.root, self._note)
            topic = self.topics.get(name.topic)
            if topic is not None:
                policy = topic.attributes.get(sides.CLEANUP_POLICY)
                self.queues[name].cleanup_policy = policy or "DELETE"
        return self.queues[name]

    def _note(self, problem: Problem, name: TopicPartition | None = None) -> None:
        """Add a problem to the queue ``name``, unless it was added before. None means the store."""
        found = None if name is None else self._of(name)
        mark = (problem.path, problem.position, problem.message)
        if mark in self.seen:
            return
        self.seen.add(mark)
        if found is None:
            self.report.problems.append(problem)
            return
        found.problem_count += 1
        if len(found.problems) < MOST_PROBLEMS:
            found.problems.append(problem)
        elif problem.kind is ProblemKind.DAMAGED and not found.is_damaged:
            found.problems[-1] = problem

    def _note_all(self, log: MappedLog, name: TopicPartition | None = None) -> None:
        for problem in log.problems:
            self._note(problem, name)

    def _note_gaps(self, log: MappedLog, name: TopicPartition | None = None) -> None:
        for problem in log.gaps:
            self._note(problem, name)

    def _log_walk(self, log: MappedLog, note: Note, is_compaction: bool = False) -> LogWalk:
        return LogWalk(log, note, True, is_compaction, self.progress.advance)

    # ------------------------------------------------------------------ commit log

    def _commit_log(
        self, folders: list[str], log: MappedLog, proofs: dict[TopicPartition, QueueProof]
    ) -> None:
        keys = None
        if self.place.part is None and self.place.root is not None and self.topic is None:
            keys = KeyProof(
                read_index_files(self.place.root), self._note, is_open=log.bound is not None
            )
        found = LogInspection(
            folders=folders, file_size=log.file_size, start=log.start, bytes=log.size_bytes
        )
        files = {file.path: _counted(file, RocketmqFileKind.COMMIT_LOG) for file in log.files}
        found.files = list(files.values())
        known = len(self.report.problems)
        walk = self._log_walk(log, self._note)
        for chunk in walk.chunks():
            files[chunk.file.path].entries += len(chunk.table)  # type: ignore[operator]
            found.end = max(found.end or 0, chunk.end)
            if keys is not None:
                keys.compare(chunk)
            for name, rows in self._count_by_queue(chunk, found.contents):
                if name in proofs:
                    proofs[name].compare(chunk, rows)
                elif self.place.part is not StoreFolder.COMMIT_LOG:
                    self._note_missing_queue(name, chunk, rows)
            if self.place.part is not StoreFolder.COMMIT_LOG:
                self._compare_light_queues(chunk, proofs)
        for path, ending in walk.endings.items():
            _note_end(files[path], ending, {0: "never written", files[path].bytes: "full"})
        is_whole = len(self.report.problems) == known and bool(log.files)
        for proof in proofs.values():
            proof.end(is_whole)
        if keys is not None:
            keys.end()
        if log.files or self.place.part is StoreFolder.COMMIT_LOG:
            self.report.commit_log = found

    def _count_by_queue(
        self, chunk: RecordWindow, total: Messages
    ) -> list[tuple[TopicPartition, Int64Array]]:
        """Add the records of a chunk to ``total`` and to each requested queue.

        Returns the requested queues with their rows.
        """
        wanted = []
        for name, rows in chunk.by_queue():
            counted = count_messages(chunk, rows)
            total.add(counted)
            if self._is_requested(name):
                mine = self._of(name).contents
                mine.add(counted)
                # Rolled back messages are left out, because they have no queue offset.
                offsets = chunk.table["queue_offset"][rows[chunk.is_dispatched(rows)]]
                if len(offsets):
                    mine.widen(int(offsets.min()), int(offsets.max()))
                wanted.append((name, rows))
        return wanted

    def _note_missing_queue(
        self, name: TopicPartition, chunk: RecordWindow, rows: Int64Array
    ) -> None:
        """Add a problem for records whose queue has no consume queue."""
        if self.place.root is not None and layouts.rocksdb_folders(self.place.root):
            return  # RocksDB has the units; noted once for the store
        if chunk.is_dispatched(rows).any():
            folder = queue_folder(
                os.path.join(self.place.root or "", StoreFolder.CONSUME_QUEUE), name
            )
            wrong = f"{name} has no consume queue, but the commit log has messages of the queue"
            self._note(
                recovered(
                    wrong,
                    folder,
                    None,
                    "run lastwrite dispatch STORE --whole-log, which builds the consume queue",
                ),
                name,
            )

    def _compare_light_queues(
        self, chunk: RecordWindow, proofs: Mapping[TopicPartition, QueueProof]
    ) -> None:
        """Compare the records of a chunk with the units of their light queues."""
        if self.topics is None:
            self.topics = topics_or_none(self.place.root, self._note)
        batched = {name for name, topic in self.topics.items() if topic.has_batch_queues}
        for name, rows, offsets in chunk.by_light_queue(batched):
            if not self._is_requested(name):
                continue
            if name in proofs:
                table = chunk.table[rows]
                table["queue_offset"] = offsets
                proofs[name].compare_light(table)
                continue
            folder = queue_folder(
                os.path.join(self.place.root or "", StoreFolder.CONSUME_QUEUE), name
            )
            wrong = (
                f"the light queue {name} has no consume queue, but records of the commit log "
                "name it"
            )
            remedy = (
                "run lastwrite dispatch STORE --whole-log, which builds the consume queue; a "
                "broker does not build it if another queue has a later unit"
            )
            # For a lite topic this is no damage: its queue may expire before its messages do.
            judge = recovered if name.topic.startswith(names.LITE_TOPIC) else damaged
            self._note(judge(wrong, folder, None, remedy), name)

    # ------------------------------------------------------------------ queues

    def _queue_indexes(self, root: str, log: MappedLog) -> dict[TopicPartition, QueueProof]:
        proofs: dict[TopicPartition, QueueProof] = {}
        for part, attribute in _QUEUE_INDEXES.items():
            if self.place.part not in (None, part):
                continue
            for name in filter(self._is_requested, list_queues(root, part)):
                files = read_queue(root, part, name)
                note = partial(self._note, name=name)
                self._note_all(files, name)
                self._note_gaps(files, name)
                found = self._count_units(files, part, log, note)
                setattr(self._of(name), attribute, found)
                if part is not StoreFolder.EXTENSION and log.files:
                    folder = queue_folder(os.path.join(root, part), name)
                    proofs[name] = QueueProof(name, folder, files, found, note)
        return proofs

    def _count_units(
        self, files: MappedLog, part: StoreFolder, log: MappedLog, note: Note
    ) -> IndexOfQueue:
        """Count the units of a queue, file by file."""
        found = IndexOfQueue(kind=part, file_size=files.file_size)
        for file in files.files:
            one = _counted(file, part)
            found.files.append(one)
            try:
                _count_units_of(file, one, part, found, log)
            except LogError as error:
                note(problem_of(error, file.path))
                continue
            found.units += one.entries or 0
            if one.first_offset is not None and found.first_offset is None:
                found.first_offset = one.first_offset
            if one.last_offset is not None:
                found.end_offset = one.last_offset + 1
            if part is StoreFolder.CONSUME_QUEUE and not files.is_last(file):
                if one.end_position != file.size_bytes:
                    wrong = (
                        "units are missing before the end of this file, but later files of the "
                        "queue exist"
                    )
                    note(damaged(wrong, file.path, one.end_position, MAKE_ANEW))
        return found

    # ------------------------------------------------------------------ compaction logs

    def _compactions(self, root: str) -> None:
        if not self.has_compaction:
            return
        positions: dict[str, int] = {}
        path = os.path.join(root, names.COMPACTION, names.POSITION_CHECKPOINT)
        if os.path.isfile(path):
            try:
                positions = sides.decode_positions(read_small(path))
            except LogError as error:
                self._note(problem_of(error, path, remedy=POSITIONS_REMEDY))
        logs = list_queues(root, StoreFolder.COMPACTION_LOG)
        found = {*logs, *list_queues(root, StoreFolder.COMPACTION_INDEX)}
        for name in sorted(filter(self._is_requested, found)):
            position = positions.get(sides.position_name(name.topic, name.partition))
            self._of(name).compaction = self._compaction(root, name, position)

    def _compaction(
        self, root: str, name: TopicPartition, position: int | None
    ) -> CompactionInspection:
        note = partial(self._note, name=name)
        folder = log_folder(root, name)
        log, index, known, is_open = live_files.read_pairs(root, name)
        if archived.is_archived(folder):
            topic = archived.read_contents(folder).topic
            if topic is not None:
                policy = topic.attributes.get(sides.CLEANUP_POLICY)
                self._of(name).cleanup_policy = policy or "DELETE"
        if is_open or archived.is_archived(folder):
            position = known.of(name)
            position = None if position < 0 else position
        self._note_all(log, name)
        self._note_all(index, name)
        found = CompactionInspection(
            file_size=log.file_size,
            index_file_size=index.file_size,
            position=position,
            bytes=log.size_bytes + index.size_bytes,
            first_dirty_offset=0 if position is None else min(position + 1, LONG_MAX),
        )
        self.progress.stage(f"inspect {name}", log.size_bytes)
        logs, pairs = ({file.start: file for file in one.files} for one in (log, index))
        for start in sorted(pairs.keys() ^ logs.keys()):
            wrong = f"the file has no {'log' if start in pairs else 'index'} file of the same name"
            remedy = f"do not start a broker on the store, because it fails; {names.RESTORE_QUEUE}"
            note(damaged(wrong, {**logs, **pairs}[start].path, None, remedy))
        count = _CompactionCount(found, note)
        for file in log.files:
            if log.file_size and file.start % log.file_size:
                wrong = (
                    f"the file's name, {file.start}, is not a multiple of the file size, "
                    f"{log.file_size} bytes"
                )
                remedy = (
                    "do not start a broker on the store, because it destroys the queue; "
                    f"{names.RESTORE_QUEUE}"
                )
                note(damaged(wrong, file.path, None, remedy))
            count.add_file(
                file,
                pairs.get(file.start),
                partial(self._log_walk, note=note, is_compaction=True),
                is_last=log.is_last(file) and not archived.is_archived(folder),
            )
        if is_open:
            live_files.check_marks(live_files.marks(log, index))
            last = found.contents.last_offset
            note(live_files.open_queue(folder, 0 if last is None else last + 1))
        found.keys = None if count.keys is None else len(count.keys)
        self._judge(folder, found)
        return found

    def _judge(self, folder: str, found: CompactionInspection) -> None:
        """Set the fields that state whether compaction of the queue is due."""
        try:
            log = ROCKETMQ.read(folder)
            if not log.segments:
                return
            decision = ROCKETMQ.decide(log, self.config, self.report.now_ms, self.include_active)
        except LogError:
            return  # the error was reported before
        found.is_due, found.reason = decision.reason is None, decision.reason
        found.dirty_ratio, found.cleanable_bytes = decision.dirty_ratio, decision.cleanable_bytes
        found.settings = ROCKETMQ.settings_of(folder, self.config)

    # ------------------------------------------------------------------ index files

    def _index_files(self, root: str | None, folder: str, log: MappedLog | None = None) -> None:
        files = read_index_files(root) if root is not None else read_files(folder, is_index=True)
        self._note_all(files)
        self.report.index_files += [self._index_file(file, log) for file in files.files]

    def _index_file(self, file: MappedFile, log: MappedLog | None = None) -> FileOfLog:
        one = _counted(file, RocketmqFileKind.INDEX)
        one.entries = None
        try:
            index = IndexFile.of(map_file(file))
        except LogError as error:
            self._note(problem_of(error, file.path, remedy=INDEX_ANEW))
            return one
        header = index.header
        is_open = self.place.root is not None and live_files.is_open(self.place.root)
        if log is not None and is_open:  # the log has grown since
            log = read_files(*{os.path.dirname(each.path) for each in log.files})
        one.entries = header.count - 1
        one.details = {
            "first_timestamp": header.first_store_time_ms,
            "last_timestamp": header.last_store_time_ms,
            "first_physical_offset": header.first_physical_offset,
            "last_physical_offset": header.last_physical_offset,
            "used_slots": header.used_slots,
            "slots": index.slots,
            "capacity": index.capacity,
        }
        one.end_position = index.entry_at(header.count)
        one.ending = "full" if index.is_full else "open"
        bad = first_bad_entry(index, log)
        if bad is not None:
            number, wrong = bad
            at = index.entry_at(number)
            self._note(damaged(f"entry {number}: {wrong}", file.path, at, INDEX_ANEW))
        elif (slot := bad_slot(index, is_growing=is_open)) is not None:
            self._note(damaged(slot[1], file.path, slot[0], INDEX_ANEW))
        return one

    # ------------------------------------------------------------------ one file

    def _file(self, place: StorePlace) -> None:
        kind = place.file
        assert kind is not None
        log = read_one_file(place.path)
        file = log.files[0]
        if kind.has_records:
            if kind is RocketmqFileKind.COMMIT_LOG:
                log = self._up_to_dispatched(lambda: log_of_one(file))
            elif place.root is not None and place.name is not None:
                log = live_files.file_of_pair(place.root, place.name, file)
            self.report.files.append(self._record_file(log, kind))
            return
        if kind is RocketmqFileKind.INDEX:
            self.report.files.append(self._index_file(file))
            return
        one = FileOfLog(file=place.path, kind=kind, bytes=file.size_bytes)
        try:
            if kind.has_units:
                one.start = file.start
                found = IndexOfQueue(kind=kind)
                _count_units_of(file, one, PART_OF_KIND[kind], found, MappedLog())
            else:
                rows = live_files.settled(place.root, lambda: list(side_rows(place)))
                if kind in (
                    RocketmqFileKind.CHECKPOINT,
                    RocketmqFileKind.ABORT,
                    RocketmqFileKind.LOCK,
                ):
                    one.details = rows[0]
                else:
                    one.entries = len(rows)
        except LogError as error:
            self._note(problem_of(error, place.path, remedy=remedy_of(kind)))
        self.report.files.append(one)

    def _record_file(self, log: MappedLog, kind: RocketmqFileKind) -> FileOfLog:
        one = _counted(log.files[0], str(kind))
        total = Messages()
        walk = self._log_walk(log, self._note, kind is RocketmqFileKind.COMPACTION_LOG)
        for chunk in walk.chunks():
            one.entries += len(chunk.table)  # type: ignore[operator]
            self._count_by_queue(chunk, total)
        _note_end(one, walk.endings.get(one.file), {0: "never written"})
        counts = total.to_dict()
        del counts["first_offset"], counts["last_offset"]
        one.details = counts | {"log_bytes": counts.pop("bytes")}
        return one


def _counted(file: MappedFile, kind: str) -> FileOfLog:
    """A report of a file, with all counts set to 0."""
    return FileOfLog(file=file.path, kind=kind, bytes=file.size_bytes, start=file.start, entries=0)


def _note_end(one: FileOfLog, ending: Ending | None, words: Mapping[int, str]) -> None:
    """Store in the report how the file ends.

    A blank record and damage have fixed words. For another end, ``words`` has the word by position;
    the default is "open".
    """
    if ending is not None:
        one.end_position = ending.position
        one.ending = (
            "blank"
            if ending.blank
            else "damaged"
            if ending.damage
            else words.get(ending.position, "open")
        )


def _count_units_of(
    file: MappedFile, one: FileOfLog, part: StoreFolder, found: IndexOfQueue, log: MappedLog
) -> None:
    """Count the units of one file. Units of records before the start of ``log`` are expired."""
    data = read_file(file, INDEX_LIMIT_BYTES)
    if part is StoreFolder.EXTENSION:
        at = count = 0
        while (unit := units.decode_extension(data, at, len(data))) is not None:
            at, count = at + unit.size, count + 1
        one.entries, one.end_position = count, at
        return
    entries = units.queue_units(data, is_batch=part is not StoreFolder.CONSUME_QUEUE)
    count = units.valid_count(entries)
    if log.bound is not None:
        count = units.lower_bound(entries["physical_offset"], log.bound, count)
    some = entries[:count]
    real = some["size"] != units.FILLER_SIZE
    one.entries = int(real.sum())
    found.fillers += count - one.entries
    one.end_position = count * entries.dtype.itemsize
    one.ending = "full" if count == len(entries) else "never written" if not count else "open"
    if log.files:
        found.expired += int((real & (some["physical_offset"] < log.start)).sum())
    if one.entries:
        rows = np.flatnonzero(real)
        one.first_offset, _ = units.offsets_of(some, int(rows[0]), file.start)
        _, one.last_offset = units.offsets_of(some, int(rows[-1]), file.start)


# ---------------------------------------------------------------------- counting


class _CompactionCount:
    """Counts a compaction log, file by file."""

    def __init__(self, found: CompactionInspection, note: Note) -> None:
        self._found = found
        self._note = note
        self._last_offset = -1
        self.keys: set[bytes] | None = set()  # distinct keys; None means too many

    def add_file(
        self,
        file: MappedFile,
        pair: MappedFile | None,
        walk_of: Callable[[MappedLog], LogWalk],
        *,
        is_last: bool,
    ) -> None:
        found = self._found
        proof = PairProof(file, pair, self._note, is_last)
        walk = walk_of(replace(log_of_one(file), bound=proof.end_address))
        one = _counted(file, RocketmqFileKind.COMPACTION_LOG)
        found.files.append(one)
        for chunk in walk.chunks():
            rows = proof.compare(chunk)
            found.unindexed += len(chunk.table) - len(rows)
            if len(rows):
                self._add(chunk, rows, one, is_last)
        _note_end(one, walk.endings.get(file.path), {})
        proof.end()
        if pair is not None:
            found.files.append(proof.file)

    def _add(self, chunk: RecordWindow, rows: Int64Array, one: FileOfLog, is_last: bool) -> None:
        found = self._found
        one.entries += len(rows)  # type: ignore[operator]
        found.contents.add(count_messages(chunk, rows))
        table = chunk.table[rows]
        offsets = table["queue_offset"]
        first, last = int(offsets[0]), int(offsets[-1])
        if first <= self._last_offset or (np.diff(offsets) <= 0).any():
            self._note(
                damaged("the queue offsets are not in ascending order", chunk.file.path, chunk.base)
            )
        self._last_offset = max(self._last_offset, int(offsets.max()))
        found.contents.widen(first, last)
        one.first_offset = first if one.first_offset is None else one.first_offset
        one.last_offset = last
        if not is_last:
            found.dirty_bytes += int(table["size"][offsets >= found.first_dirty_offset].sum())
        if self.keys is not None:
            keyed = table[table["key_length"] >= 0]
            self.keys.update(
                chunk.bytes_at(at, length)
                for at, length in zip(
                    keyed["key_at"].tolist(), keyed["key_length"].tolist(), strict=True
                )
            )
            if len(self.keys) > MOST_KEYS:
                self.keys = None


def count_messages(chunk: RecordWindow, rows: Int64Array) -> Messages:
    """Count the records of ``rows`` by kind."""
    table = chunk.table[rows]
    flags = table["sys_flag"]
    inner = chunk.is_inner_batch(rows)
    stage = flags & record.TRANSACTION_MASK
    inner_batches = int(inner.sum())
    found = Messages(
        records=len(table),
        messages=len(table) - inner_batches + int(np.maximum(table["inner_num"][inner], 1).sum()),
        tombstones=int((table["body_length"] == 0).sum()),
        keyless=int((table["key_length"] < 0).sum()),
        inner_batches=inner_batches,
        delayed=int(((table["marks"] & kernels.HAS_DELAY) != 0).sum()),
        prepared=int((stage == record.TRANSACTION_PREPARED).sum()),
        rolled_back=int((stage == record.TRANSACTION_ROLLBACK).sum()),
        bytes=int(table["size"].sum()),
        first_timestamp=int(table["store_time"].min()),
        last_timestamp=int(table["store_time"].max()),
    )
    small = (flags & record.COMPRESSED != 0) & (table["body_length"] > 0)
    for row in table[small & (table["body_length"] <= _EMPTY_COMPRESSED_BYTES)]:
        body = chunk.bytes_at(int(row["body_at"]), int(row["body_length"]))
        try:
            found.tombstones += not record.decompress_body(body, int(row["sys_flag"]), 0, 1)
        except LogError:
            pass  # the body is not empty or is broken; dump reports broken bodies
    wide = int((table["magic"] == record.MAGIC_V2).sum())
    found.formats.update({name: n for name, n in (("v1", len(table) - wide), ("v2", wide)) if n})
    codecs = flags & (record.COMPRESSED | record.COMPRESSION_MASK)
    for kind, count in zip(
        *(column.tolist() for column in np.unique(codecs, return_counts=True)), strict=True
    ):
        try:
            found.codecs[str(record.compression_of(kind))] += count
        except LogError:
            found.codecs["unknown"] += count
    some = table[table["properties_length"] > 0]
    closed = int((chunk.buffer[some["properties_at"] + some["properties_length"] - 1] == 2).sum())
    endings = (("closed", closed), ("open", len(some) - closed))
    found.endings.update({name: n for name, n in endings if n})
    return found
