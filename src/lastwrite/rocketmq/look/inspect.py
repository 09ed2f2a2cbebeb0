"""``inspect`` of a RocketMQ store: what lies there, counted, and every index held against the
records it speaks of.

The commit log is read once, every body held against its checksum. As its records go by, each
queue's units are compared with them, a stretch of the queue at a time: so nothing is kept of what
was read. Compaction logs are read by themselves. Nothing is changed, and no Spark is started.

Source: RocketMQ 5.5.0; docs/formats/rocketmq.md; docs/formats/rocketmq-compaction.md, "Files and
their sizes" and "A store rewritten offline".
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from lastwrite.errors import LogError
from lastwrite.model.columns import Int64Array
from lastwrite.model.log import Problem, ProblemKind, TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.rocketmq.format import kernels, names, record, sides, units
from lastwrite.rocketmq.format.index_file import ENTRY_DTYPE, INDEX_HEADER, IndexFile
from lastwrite.rocketmq.look.dump import side_rows
from lastwrite.rocketmq.look.find import by_queue
from lastwrite.rocketmq.look.inspection import (
    CompactionInspection,
    FileOfLog,
    IndexOfQueue,
    LogInspection,
    Messages,
    QueueInspection,
    StoreReport,
)
from lastwrite.rocketmq.look.walk import Chunk, LogWalk
from lastwrite.rocketmq.store import lock
from lastwrite.rocketmq.store.dispatched import MAKE_ANEW
from lastwrite.rocketmq.store.reading import (
    FileKind,
    LogReader,
    MappedFile,
    MappedLog,
    Part,
    StorePlace,
    commit_log_folders,
    find_place,
    list_queues,
    locate,
    map_whole,
    read_files,
    read_index_files,
    read_one_file,
    read_queue,
    read_whole,
    without_stopped_roll,
)
from lastwrite.rocketmq.system import ROCKETMQ
from lastwrite.storage.problems import DAMAGE_REMEDY, problem_of
from lastwrite.storage.reading import read_small

MOST_PROBLEMS = 20  # of a queue that are named; the rest are counted
INDEX_LIMIT_BYTES = 1 << 30
MOST_KEYS = (
    4_000_000  # of a compaction log that are told apart; where there are more, how many is not said
)

_EMPTY_COMPRESSED_BYTES = 64  # what is larger does not decompress to nothing
_ENTRIES_AT_ONCE = 1 << 18
_HASHES = 1 << 31  # of keys
_QUEUE_INDEXES = {
    Part.CONSUME_QUEUE: "consume_queue",
    Part.BATCH_QUEUE: "batch_consume_queue",
    Part.EXTENSION: "extension",
}
_INDEX_ANEW = "move the folder index out of the store: lastwrite dispatch rebuilds it; keys are found without it"
_SIDE_PATHS = (
    names.CHECKPOINT,
    names.ABORT,
    names.LOCK,
    f"{names.CONFIG}/{names.TOPICS}",
    f"{names.CONFIG}/{names.CONSUMER_OFFSETS}",
    f"{names.COMPACTION}/{names.POSITION_CHECKPOINT}",
)
_NO_UNIT = (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)
_TRANSACTION_SYSTEM = "RMQ_SYS_TRANS_"
_LIGHT = "%LMQ%"

Note = Callable[[Problem], None]


def inspect_store(
    path: str,
    topic: str | None,
    queue: int | None,
    config: Mapping[str, object] | None,
    now_ms: int | None,
    include_active: bool = False,
    progress: Progress | None = None,
) -> StoreReport:
    """Read everything of RocketMQ's at ``path`` and say what it is.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.

    Damage does not raise: it stands in the report, with file and byte.
    """
    began = time.monotonic()
    place = find_place(path)
    ROCKETMQ.check_config(config or {})
    if place.root is not None:
        lock.refuse_if_held(place.root)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    report = StoreReport(path=str(path), what=what_is(place), now_ms=now, root=place.root)
    _Inspection(
        place, report, topic, queue, dict(config or {}), include_active, progress or NoProgress()
    ).run()
    report.seconds = round(time.monotonic() - began, 3)
    return report


def inspect_beside(
    path: str, topic: str | None, queue: int | None, progress: Progress | None = None
) -> StoreReport:
    """As ``inspect_store``, of all but compaction logs: commit log, consume queues, index files and
    small files.

    Raises:
        NotALog: nothing was read.
    """
    place = find_place(path)
    report = StoreReport(path=str(path), what=what_is(place), now_ms=0, root=place.root)
    _Beside(place, report, topic, queue, {}, False, progress or NoProgress()).run()
    return report


def what_is(place: StorePlace) -> str:
    """The place in words: ``store``, ``consume queue orders-3``, ``topic orders of the compaction
    log`` …
    """
    if place.file is not None:
        return f"{place.file}" + (f" of {place.name}" if place.name is not None else "")
    if place.part is None:
        return "store"
    title = {
        Part.COMMIT_LOG: "commit log",
        Part.CONSUME_QUEUE: "consume queues",
        Part.EXTENSION: "consume queue extensions",
        Part.BATCH_QUEUE: "batch consume queues",
        Part.COMPACTION_LOG: "compaction logs",
        Part.COMPACTION_INDEX: "compaction indexes",
        Part.COMPACTION: "compaction logs with their indexes",
        Part.INDEX: "index files",
        Part.CONFIG: "settings",
    }[place.part]
    if place.topic is None:
        return title
    return f"{title} of {'topic ' + place.topic if place.name is None else place.name}"


class _Inspection:
    def __init__(
        self,
        place: StorePlace,
        report: StoreReport,
        topic: str | None,
        queue: int | None,
        config: Mapping[str, object],
        include_active: bool,
        progress: Progress,
    ) -> None:
        self._place = place
        self._report = report
        self._topic = topic if topic is not None else place.topic
        self._queue = queue if queue is not None else place.queue
        self._config = config
        self._include_active = include_active
        self._progress = progress
        self._queues: dict[TopicPartition, QueueInspection] = {}
        self._seen: set[tuple[str, int | None, str]] = set()

    # ------------------------------------------------------------------ what is looked at

    def run(self) -> None:
        place, report = self._place, self._report
        if place.file is not None:
            self._progress.stage("inspect", os.path.getsize(place.path))
            self._file(place)
        elif place.part in (None, *_QUEUE_INDEXES):
            self._store()
        elif place.part is Part.COMMIT_LOG:
            log = read_files(place.path)
            self._progress.stage("inspect", log.size_bytes)
            self._commit_log([place.path], log, {})
        elif place.part in (Part.COMPACTION, Part.COMPACTION_LOG, Part.COMPACTION_INDEX):
            self._compactions(place.root or place.path)
        elif place.part is Part.INDEX:
            self._index_files(place.root, place.path)
        else:
            for name in sorted(os.listdir(place.path)):
                inside = locate(os.path.join(place.path, name))
                if inside is not None and inside.file is not None:
                    self._file(inside)
        report.partitions = [self._queues[name] for name in sorted(self._queues)]

    def _store(self) -> None:
        place = self._place
        root = place.root
        if root is None:  # a folder of units that lies alone
            self._lone_units(place)
            return
        log = self._read_commit_log(root)
        self._progress.stage("inspect", log.size_bytes)
        only = None if place.part is None else [place.part]
        proofs = self._queue_indexes(root, only, log)
        self._commit_log(commit_log_folders(root, self._config), log, proofs)
        if place.part is not None:
            return
        self._compactions(root)
        if self._topic is None:
            self._index_files(root, os.path.join(root, Part.INDEX), log)
        self._report.stopped_in_order = not os.path.lexists(os.path.join(root, names.ABORT))
        if not self._report.stopped_in_order:
            self._note_store(
                Problem(
                    ProblemKind.RECOVERED,
                    "the broker was killed, or runs where its lock cannot be seen",
                    os.path.join(root, names.ABORT),
                    None,
                    "its next start goes over the log's end again",
                )
            )
        for side in _SIDE_PATHS:
            path = os.path.join(root, side)
            found = locate(path) if os.path.isfile(path) else None
            if found is not None:
                self._file(found)

    def _read_commit_log(self, root: str) -> MappedLog:
        log = read_files(*commit_log_folders(root, self._config))
        self._note_all(log)
        return log

    def _is_wanted(self, name: TopicPartition) -> bool:
        return self._topic in (None, name.topic) and self._queue in (None, name.partition)

    def _of(self, name: TopicPartition) -> QueueInspection:
        if name not in self._queues:
            self._queues[name] = QueueInspection(topic=name.topic, partition=name.partition)
            topic = self._topics().get(name.topic)
            if topic is not None:
                policy = topic.attributes.get(sides.CLEANUP_POLICY)
                self._queues[name].cleanup_policy = policy or "DELETE"
        return self._queues[name]

    def _topics(self) -> dict[str, sides.Topic]:
        if not hasattr(self, "_known_topics"):
            self._known_topics: dict[str, sides.Topic] = {}
            root = self._place.root
            path = "" if root is None else os.path.join(root, names.CONFIG, names.TOPICS)
            if os.path.isfile(path):
                try:
                    self._known_topics = sides.decode_topics(read_small(path))
                except LogError as error:
                    self._note_store(problem_of(error, path))
        return self._known_topics

    # ------------------------------------------------------------------ problems

    def _note_store(self, problem: Problem) -> None:
        mark = (problem.path, problem.position, problem.message)
        if mark not in self._seen:
            self._seen.add(mark)
            self._report.problems.append(problem)

    def _note_all(self, log: MappedLog, note: Note | None = None) -> None:
        for problem in log.problems:
            (note or self._note_store)(problem)

    def _note_queue(self, name: TopicPartition, problem: Problem) -> None:
        found = self._of(name)
        mark = (problem.path, problem.position, problem.message)
        if mark in self._seen:
            return
        self._seen.add(mark)
        found.problem_count += 1
        if len(found.problems) < MOST_PROBLEMS:
            found.problems.append(problem)
        elif problem.kind is ProblemKind.DAMAGED and not found.is_damaged:
            found.problems[-1] = problem

    # ------------------------------------------------------------------ commit log

    def _commit_log(
        self, folders: list[str], log: MappedLog, proofs: dict[TopicPartition, _QueueProof]
    ) -> None:
        keys: _KeyProof | None = None
        if self._place.part is None and self._place.root is not None and self._topic is None:
            keys = _KeyProof(read_index_files(self._place.root), self._note_store)
        if self._place.part is Part.COMMIT_LOG:
            self._note_all(log)
        found = LogInspection(
            folders=folders, file_size=log.file_size, start=log.start, bytes=log.size_bytes
        )
        files = {
            file.path: FileOfLog(
                file=file.path,
                kind=FileKind.COMMIT_LOG,
                bytes=file.size_bytes,
                start=file.start,
                entries=0,
            )
            for file in log.files
        }
        found.files = list(files.values())
        damaged = len(self._report.problems)
        walk = LogWalk(log, self._note_store, checks_crc=True, advance=self._progress.advance)
        for chunk in walk.chunks():
            seen = files[chunk.file.path]
            seen.entries = (seen.entries or 0) + len(chunk.table)
            end = (
                chunk.file.start
                + chunk.position(len(chunk.table) - 1)
                + int(chunk.table["size"][-1])
            )
            found.end = max(found.end or 0, end)
            if keys is not None:
                keys.compare(chunk)
            for name, rows in by_queue(chunk):
                counted = count_messages(chunk, rows)
                found.contents.add(counted)
                if self._is_wanted(name):
                    mine = self._of(name).contents
                    mine.add(counted)
                    _widen_by(mine, chunk, rows)
                    if name in proofs:
                        proofs[name].compare(chunk, rows)
                    elif self._place.root is not None and self._place.part in (
                        None,
                        *_QUEUE_INDEXES,
                    ):
                        self._without_queue(name, chunk, rows)
        for path, ending in walk.endings.items():
            files[path].end_position = ending.position
            files[path].ending = (
                "blank"
                if ending.blank
                else "damaged"
                if ending.damage
                else "full"
                if ending.position == files[path].bytes
                else "never written"
                if ending.position == 0
                else "open"
            )
        is_whole = len(self._report.problems) == damaged and bool(log.files)
        for proof in proofs.values():
            proof.end(is_whole)
        if keys is not None:
            keys.end()
        if log.files or self._place.part is Part.COMMIT_LOG:
            self._report.commit_log = found

    def _without_queue(self, name: TopicPartition, chunk: Chunk, rows: Int64Array) -> None:
        """Records of a queue that has no consume queue at all."""
        if _dispatched_rows(chunk, rows).any():
            what = Problem(
                ProblemKind.RECOVERED,
                f"no consume queue of {name}, and the commit log has its messages",
                os.path.join(
                    self._place.root or "", Part.CONSUME_QUEUE, name.topic, str(name.partition)
                ),
                None,
                "lastwrite dispatch builds it",
            )
            self._note_queue(name, what)

    # ------------------------------------------------------------------ queues

    def _queue_indexes(
        self, root: str, only: list[Part] | None, log: MappedLog
    ) -> dict[TopicPartition, _QueueProof]:
        proofs: dict[TopicPartition, _QueueProof] = {}
        for part, attribute in _QUEUE_INDEXES.items():
            if only is not None and part not in only:
                continue
            for name in list_queues(root, part):
                if not self._is_wanted(name):
                    continue
                files = read_queue(root, part, name)
                note = partial(self._note_queue, name)
                self._note_all(files, note)
                found = self._survey_units(files, part, log, note)
                setattr(self._of(name), attribute, found)
                if part is not Part.EXTENSION and log.files:
                    proofs[name] = _QueueProof(
                        name,
                        files,
                        found,
                        part,
                        log.start,
                        lambda problem, n=name: self._note_queue(n, problem),  # type: ignore[misc]
                    )
        return proofs

    def _survey_units(
        self, files: MappedLog, part: Part, log: MappedLog, note: Note
    ) -> IndexOfQueue:
        """Count the units of a queue's index, file by file."""
        found = IndexOfQueue(kind=part, file_size=files.file_size)
        for file in files.files:
            one = FileOfLog(
                file=file.path, kind=part, bytes=file.size_bytes, start=file.start, entries=0
            )
            found.files.append(one)
            try:
                if part is Part.EXTENSION:
                    self._survey_extension(file, one)
                else:
                    self._survey_file(file, one, part, found, log)
            except LogError as error:
                note(problem_of(error, file.path))
                continue
            found.units += one.entries or 0
            if one.first_offset is not None and found.first_offset is None:
                found.first_offset = one.first_offset
            if one.last_offset is not None:
                found.end_offset = one.last_offset + 1
            if (
                part is Part.CONSUME_QUEUE
                and not files.is_last(file)
                and one.end_position != file.size_bytes
            ):
                note(
                    Problem(
                        ProblemKind.DAMAGED,
                        "units are missing, and files of the queue follow",
                        file.path,
                        one.end_position,
                        MAKE_ANEW,
                    )
                )
        return found

    def _survey_file(
        self, file: MappedFile, one: FileOfLog, part: Part, found: IndexOfQueue, log: MappedLog
    ) -> None:
        data = read_whole(file, INDEX_LIMIT_BYTES)
        entries = (
            units.consume_queue_units(data)
            if part is Part.CONSUME_QUEUE
            else units.batch_units(data)
        )
        count = units.valid_count(entries)
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
            first, last = int(rows[0]), int(rows[-1])
            if part is Part.CONSUME_QUEUE:
                number = file.start // units.CONSUME_QUEUE_UNIT.size
                one.first_offset, one.last_offset = number + first, number + last
            else:
                one.first_offset = int(some["base"][first])
                one.last_offset = int(some["base"][last]) + int(some["number"][last]) - 1

    @staticmethod
    def _survey_extension(file: MappedFile, one: FileOfLog) -> None:
        data = read_whole(file, INDEX_LIMIT_BYTES)
        at = count = 0
        while (unit := units.decode_extension(data, at, len(data))) is not None:
            at, count = at + unit.size, count + 1
        one.entries, one.end_position = count, at

    def _lone_units(self, place: StorePlace) -> None:
        assert place.part is not None
        files = read_files(place.path)
        self._note_all(files)
        found = self._survey_units(files, place.part, MappedLog(), self._note_store)
        self._report.files += found.files

    # ------------------------------------------------------------------ compaction logs

    def _compactions(self, root: str) -> None:
        positions: dict[str, int] = {}
        path = os.path.join(root, names.COMPACTION, names.POSITION_CHECKPOINT)
        if os.path.isfile(path):
            try:
                positions = sides.decode_positions(read_small(path))
            except LogError as error:
                self._note_store(problem_of(error, path))
        found = set(list_queues(root, Part.COMPACTION_LOG)) | set(
            list_queues(root, Part.COMPACTION_INDEX)
        )
        for name in sorted(filter(self._is_wanted, found)):
            position = positions.get(sides.position_name(name.topic, name.partition))
            self._of(name).compaction = self._compaction(root, name, position)

    def _compaction(
        self, root: str, name: TopicPartition, position: int | None
    ) -> CompactionInspection:
        def note(problem: Problem) -> None:
            self._note_queue(name, problem)

        log = read_queue(root, Part.COMPACTION_LOG, name)
        index = read_queue(root, Part.COMPACTION_INDEX, name)
        log = without_stopped_roll(root, log, index)
        self._note_all(log, note)
        self._note_all(index, note)
        found = CompactionInspection(
            file_size=log.file_size,
            index_file_size=index.file_size,
            position=position,
            bytes=log.size_bytes + index.size_bytes,
            first_dirty_offset=0 if position is None else position + 1,
        )
        self._progress.stage(f"inspect {name}", log.size_bytes)
        pairs = {file.start: file for file in index.files}
        for lonely in sorted(pairs.keys() ^ {file.start for file in log.files}):
            file = pairs.get(lonely) or next(file for file in log.files if file.start == lonely)
            other = "log" if lonely in pairs else "index"
            note(
                Problem(
                    ProblemKind.DAMAGED,
                    f"it has no {other} file of the same name",
                    file.path,
                    None,
                    "a broker does not start on such a queue: restore the other one",
                )
            )
        keys: set[bytes] | None = set()
        last_offset = -1
        for file in log.files:
            if log.file_size and file.start % log.file_size:
                note(
                    Problem(
                        ProblemKind.DAMAGED,
                        f"named {file.start}, no multiple of its {log.file_size} bytes",
                        file.path,
                        None,
                        f"start no broker on it, it would destroy the queue; {DAMAGE_REMEDY}",
                    )
                )
            alone = MappedLog((file,), (), file.size_bytes, (file.start,))
            pair = pairs.get(file.start)
            check = _IndexPair(file, pair, note, is_last=log.is_last(file))
            one = FileOfLog(
                file=file.path,
                kind=FileKind.COMPACTION_LOG,
                bytes=file.size_bytes,
                start=file.start,
                entries=0,
            )
            found.files.append(one)
            walk = LogWalk(
                alone, note, checks_crc=True, is_compaction=True, advance=self._progress.advance
            )
            for chunk in walk.chunks():
                rows = check.compare(chunk)
                found.unindexed += len(chunk.table) - len(rows)
                if not len(rows):
                    continue
                one.entries = (one.entries or 0) + len(rows)
                found.contents.add(count_messages(chunk, rows))
                table = chunk.table[rows]
                offsets = table["queue_offset"]
                if int(offsets[0]) <= last_offset or (np.diff(offsets) <= 0).any():
                    note(
                        Problem(
                            ProblemKind.DAMAGED,
                            "queue offsets do not rise",
                            file.path,
                            chunk.base,
                            DAMAGE_REMEDY,
                        )
                    )
                last_offset = max(last_offset, int(offsets.max()))
                _widen(found.contents, int(offsets[0]), int(offsets[-1]))
                if one.first_offset is None:
                    one.first_offset = int(offsets[0])
                one.last_offset = int(offsets[-1])
                if not log.is_last(file):
                    found.dirty_bytes += int(
                        table["size"][offsets > (-1 if position is None else position)].sum()
                    )
                keys = _with_keys(keys, chunk, rows)
            ending = walk.endings.get(file.path)
            if ending is not None:
                one.end_position = ending.position
                one.ending = "blank" if ending.blank else "damaged" if ending.damage else "open"
            check.end(log.is_last(file))
            if pair is not None:
                found.files.append(check.file)
        found.keys = None if keys is None else len(keys)
        self._judge(os.path.join(root, Part.COMPACTION_LOG, name.topic, str(name.partition)), found)
        return found

    def _judge(self, folder: str, found: CompactionInspection) -> None:
        """Whether a round would clean the queue now, by the engine's own rules."""
        try:
            log = ROCKETMQ.read(folder)
            if not log.segments:
                return
            decision = ROCKETMQ.decide(log, self._config, self._report.now_ms, self._include_active)
        except LogError:
            return  # what is wrong with it has been said
        found.is_due, found.reason = decision.reason is None, decision.reason
        found.dirty_ratio, found.cleanable_bytes = decision.dirty_ratio, decision.cleanable_bytes
        found.settings = ROCKETMQ.settings_of(folder, self._config)

    # ------------------------------------------------------------------ index files

    def _index_files(self, root: str | None, folder: str, log: MappedLog | None = None) -> None:
        files = read_index_files(root) if root is not None else read_files(folder, is_index=True)
        self._note_all(files)
        for file in files.files:
            self._report.index_files.append(self._index_file(file, log))

    def _index_file(self, file: MappedFile, log: MappedLog | None = None) -> FileOfLog:
        one = FileOfLog(
            file=file.path, kind=FileKind.INDEX, bytes=file.size_bytes, start=file.start
        )
        try:
            index = IndexFile.of(map_whole(file))
        except LogError as error:
            self._note_store(problem_of(error, file.path))
            return one
        header = index.header
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
        one.end_position = INDEX_HEADER.size + 4 * index.slots + ENTRY_DTYPE.itemsize * header.count
        one.ending = "full" if index.is_full else "open"
        place = _first_bad_entry(index, log)
        if place is not None:
            number, wrong = place
            at = INDEX_HEADER.size + 4 * index.slots + ENTRY_DTYPE.itemsize * number
            remedy = "lastwrite dispatch rebuilds it; without it keys are found in the commit log"
            self._note_store(
                Problem(ProblemKind.DAMAGED, f"entry {number}: {wrong}", file.path, at, remedy)
            )
        return one

    # ------------------------------------------------------------------ one file

    def _file(self, place: StorePlace) -> None:
        kind = place.file
        assert kind is not None
        if kind.has_records:
            self._record_file(place)
            return
        log = read_one_file(place.path)
        file = log.files[0]
        if kind is FileKind.INDEX:
            self._report.files.append(self._index_file(file))
            return
        one = FileOfLog(file=place.path, kind=kind, bytes=file.size_bytes)
        try:
            if kind in (FileKind.CONSUME_QUEUE, FileKind.BATCH_QUEUE, FileKind.COMPACTION_INDEX):
                part = Part.CONSUME_QUEUE if kind is FileKind.CONSUME_QUEUE else Part.BATCH_QUEUE
                one.start = file.start
                self._survey_file(file, one, part, IndexOfQueue(kind=kind), MappedLog())
            elif kind is FileKind.EXTENSION:
                one.start = file.start
                self._survey_extension(file, one)
            else:
                rows = list(side_rows(place))
                if kind in (FileKind.CHECKPOINT, FileKind.ABORT, FileKind.LOCK):
                    one.details = rows[0]
                else:
                    one.entries = len(rows)
        except LogError as error:
            self._note_store(problem_of(error, place.path))
        self._report.files.append(one)

    def _record_file(self, place: StorePlace) -> None:
        log = read_one_file(place.path)
        file = log.files[0]
        is_compaction = place.file is FileKind.COMPACTION_LOG
        one = FileOfLog(
            file=place.path,
            kind=str(place.file),
            bytes=file.size_bytes,
            start=file.start,
            entries=0,
        )
        total = Messages()
        walk = LogWalk(
            log,
            self._note_store,
            checks_crc=True,
            is_compaction=is_compaction,
            advance=self._progress.advance,
        )
        for chunk in walk.chunks():
            one.entries = (one.entries or 0) + len(chunk.table)
            for name, rows in by_queue(chunk):
                counted = count_messages(chunk, rows)
                total.add(counted)
                if self._is_wanted(name):
                    mine = self._of(name).contents
                    mine.add(counted)
                    _widen_by(mine, chunk, rows)
        ending = walk.endings.get(file.path)
        if ending is not None:
            one.end_position = ending.position
            one.ending = (
                "blank"
                if ending.blank
                else "damaged"
                if ending.damage
                else "never written"
                if ending.position == 0
                else "open"
            )
        counts = total.to_dict()
        del counts["first_offset"], counts["last_offset"]
        one.details = counts | {"log_bytes": counts.pop("bytes")}
        self._report.files.append(one)


class _Beside(_Inspection):
    """Passes over compaction logs."""

    def _compactions(self, root: str) -> None:
        pass


# ---------------------------------------------------------------------- counting


def count_messages(chunk: Chunk, rows: Int64Array) -> Messages:
    """What the records in ``rows`` are."""
    table = chunk.table[rows]
    flags = table["sys_flag"]
    found = Messages(records=len(table), bytes=int(table["size"].sum()))
    inner = (
        flags & (record.INNER_BATCH | record.NEEDS_UNWRAP)
    ) == record.INNER_BATCH | record.NEEDS_UNWRAP
    found.inner_batches = int(inner.sum())
    found.messages = (
        len(table) - found.inner_batches + int(np.maximum(table["inner_num"][inner], 1).sum())
    )
    found.keyless = int((table["key_length"] < 0).sum())
    found.delayed = int(((table["marks"] & kernels.HAS_DELAY) != 0).sum())
    transaction = flags & record.TRANSACTION_MASK
    found.prepared = int((transaction == record.TRANSACTION_PREPARED).sum())
    found.rolled_back = int((transaction == record.TRANSACTION_ROLLBACK).sum())
    found.tombstones = int((table["body_length"] == 0).sum())
    small = (flags & record.COMPRESSED != 0) & (table["body_length"] > 0)
    for row in table[small & (table["body_length"] <= _EMPTY_COMPRESSED_BYTES)]:
        body = chunk.bytes_at(int(row["body_at"]), int(row["body_length"]))
        try:
            found.tombstones += not record.decompress_body(body, int(row["sys_flag"]), 0, 1)
        except LogError:
            pass  # there is something in it, or it is broken: dump says so
    found.first_timestamp, found.last_timestamp = (
        int(table["store_time"].min()),
        int(table["store_time"].max()),
    )
    wide = int((table["magic"] == record.MAGIC_V2).sum())
    found.formats.update({name: n for name, n in (("v1", len(table) - wide), ("v2", wide)) if n})
    for kind in np.unique(flags & (record.COMPRESSED | record.COMPRESSION_MASK)).tolist():
        count = int(((flags & (record.COMPRESSED | record.COMPRESSION_MASK)) == kind).sum())
        try:
            found.codecs[str(record.compression_of(kind))] += count
        except LogError:
            found.codecs["unknown"] += count
    some = table[table["properties_length"] > 0]
    closed = int((chunk.buffer[some["properties_at"] + some["properties_length"] - 1] == 2).sum())
    found.endings.update(
        {name: n for name, n in (("closed", closed), ("open", len(some) - closed)) if n}
    )
    return found


def _widen(found: Messages, first: int, last: int) -> None:
    found.first_offset = first if found.first_offset is None else min(found.first_offset, first)
    found.last_offset = last if found.last_offset is None else max(found.last_offset, last)


def _widen_by(found: Messages, chunk: Chunk, rows: Int64Array) -> None:
    """By the queue offsets of ``rows``; what was rolled back has none."""
    offsets = chunk.table["queue_offset"][rows[_dispatched_rows(chunk, rows)]]
    if len(offsets):
        _widen(found, int(offsets.min()), int(offsets.max()))


def _with_keys(keys: set[bytes] | None, chunk: Chunk, rows: Int64Array) -> set[bytes] | None:
    """The keys with those of more records; None: there are too many to be told apart."""
    if keys is None:
        return None
    table = chunk.table[rows]
    table = table[table["key_length"] >= 0]
    data = chunk.buffer
    for at, length in zip(table["key_at"].tolist(), table["key_length"].tolist(), strict=True):
        keys.add(data[at : at + length].tobytes())
    return keys if len(keys) <= MOST_KEYS else None


def _dispatched_rows(chunk: Chunk, rows: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Of ``rows`` those that a broker dispatches to a queue."""
    return ~np.isin(chunk.table["sys_flag"][rows] & record.TRANSACTION_MASK, _NO_UNIT)


class _QueueProof:
    """Holds a queue's units against the records of the commit log, which come in its order."""

    def __init__(
        self,
        name: TopicPartition,
        files: MappedLog,
        found: IndexOfQueue,
        part: Part,
        log_start: int,
        note: Note,
    ) -> None:
        self._name = name
        self._found = found
        self._note = note
        self._is_batch = part is Part.BATCH_QUEUE
        self._units = self._read_batches(files) if self._is_batch else None
        self._files = files
        self._reader = LogReader(files)
        self._matched = 0
        found.lacking, found.wrong = 0, 0

    @staticmethod
    def _read_batches(files: MappedLog) -> units.Units:
        parts = [units.batch_units(read_whole(file, INDEX_LIMIT_BYTES)) for file in files.files]
        valid = [part[: units.valid_count(part)] for part in parts]
        return np.concatenate(valid) if valid else np.empty(0, units.BATCH_DTYPE)

    def compare(self, chunk: Chunk, rows: Int64Array) -> None:
        table = chunk.table[rows[_dispatched_rows(chunk, rows)]]
        if not len(table):
            return
        if self._is_batch:
            self._compare_batches(table)
            return
        size = units.CONSUME_QUEUE_UNIT.size
        offsets = table["queue_offset"]
        cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
        for stretch in np.split(table, cuts):
            first = int(stretch["queue_offset"][0])
            got = self._read(first * size, len(stretch) * size) if 0 <= first < 1 << 56 else b""
            entries = np.zeros(len(stretch), units.CONSUME_QUEUE_DTYPE)
            read = units.consume_queue_units(got)
            entries[: len(read)] = read
            self._judge(stretch, entries["physical_offset"], entries["size"], entries["size"] <= 0)

    def _read(self, address: int, size: int) -> bytes:
        """Over the borders of files."""
        out = b""
        while len(out) < size:
            part = self._reader.read(address + len(out), size - len(out))
            if not part:
                break
            out += part
        return out

    def _compare_batches(self, table: kernels.MessageTable) -> None:
        assert self._units is not None
        # A record that is no inner batch gets a unit of number 1 (seen in 5.5.0).
        bases = np.where(table["inner_base"] >= 0, table["inner_base"], table["queue_offset"])
        places = np.searchsorted(self._units["base"], bases)
        inside = places < len(self._units)
        there = np.zeros(len(table), units.BATCH_DTYPE)
        there[inside] = self._units[places[inside]]
        absent = ~inside | (there["base"] != bases)
        self._judge(table, there["physical_offset"], there["size"], absent)

    def _judge(
        self,
        table: kernels.MessageTable,
        addresses: np.ndarray,
        sizes: np.ndarray,
        absent: np.ndarray,
    ) -> None:
        found = self._found
        good = (addresses == table["physical_offset"]) & (sizes == table["size"])
        wrong = ~good & ~absent
        self._matched += int(good.sum())
        found.lacking = (found.lacking or 0) + int((absent & ~good).sum())
        found.wrong = (found.wrong or 0) + int(wrong.sum())
        if wrong.any():
            row = int(np.argmax(wrong))
            offset = int(table["queue_offset"][row])
            at = offset * units.CONSUME_QUEUE_UNIT.size
            file = None if self._is_batch else self._files.find(at)
            self._note(
                Problem(
                    ProblemKind.DAMAGED,
                    f"the unit of offset {offset} leads to {int(addresses[row])}, its record lies at "
                    f"{int(table['physical_offset'][row])}",
                    self._files.files[0].path if file is None else file.path,
                    None if file is None else at - file.start,
                    MAKE_ANEW,
                )
            )

    def end(self, is_whole: bool) -> None:
        """All records have gone by; ``is_whole``: none of them was lost."""
        self._reader.close()
        found = self._found
        if not self._files.files:
            if found.lacking:
                self._note(
                    Problem(
                        ProblemKind.RECOVERED,
                        f"no file of the consume queue of {self._name}, and the "
                        f"commit log has {found.lacking} of its messages",
                        "consumequeue",
                        None,
                        "lastwrite dispatch builds it",
                    )
                )
            return
        path = self._files.files[-1].path
        if found.lacking:
            self._note(
                Problem(
                    ProblemKind.RECOVERED,
                    f"{found.lacking} messages of the commit log have no unit",
                    path,
                    None,
                    "a broker's start dispatches them where it was killed; lastwrite dispatch does in any case",
                )
            )
        dangling = found.units - found.expired - self._matched - (found.wrong or 0)
        if dangling > 0 and is_whole and not self._name.topic.startswith(_LIGHT):
            self._note(
                Problem(
                    ProblemKind.DAMAGED,
                    f"{dangling} units lead to no record",
                    path,
                    None,
                    "lastwrite dispatch --whole-log shows what is lost; a broker's start cuts them off",
                )
            )


class _KeyProof:
    """Holds the entries of all index files against the keys of the records, which come in the order
    of the entries.
    """

    def __init__(self, files: MappedLog, note: Note) -> None:
        self._note = note
        self._files: list[tuple[MappedFile, IndexFile, units.Units]] = []
        for file in files.files:
            try:
                index = IndexFile.of(map_whole(file))
            except LogError:
                continue  # said where the file is counted
            base = INDEX_HEADER.size + 4 * index.slots + ENTRY_DTYPE.itemsize
            if index.header.count > 1:
                entries = np.frombuffer(index.data, ENTRY_DTYPE, index.header.count - 1, base)
                self._files.append((file, index, entries))
        self._first = self._files[0][1].header.first_physical_offset if self._files else 0
        self._last = self._files[-1][1].header.last_physical_offset if self._files else -1
        self._lacking = self._late = self._wrong = 0
        self._place: tuple[str, int, int] | None = (
            None  # of the first wrong entry: file, byte, address
        )

    def compare(self, chunk: Chunk) -> None:
        if not self._files:
            return
        table = chunk.table
        first, last = int(table["physical_offset"][0]), int(table["physical_offset"][-1])
        must, may = self._keys(chunk, first, False), self._keys(chunk, first, True)
        got: list[Int64Array] = []
        for file, index, entries in self._files:
            low = bisect_left(
                range(len(entries)), first, key=lambda n: int(entries["physical_offset"][n])
            )
            high = bisect_right(
                range(len(entries)), last, key=lambda n: int(entries["physical_offset"][n])
            )
            some = entries[low:high]
            pairs = (some["physical_offset"].astype(np.int64) - first) * _HASHES + some["hash"]
            strange = ~np.isin(pairs, may)
            self._wrong += int(strange.sum())
            if strange.any() and self._place is None:
                n = low + int(np.argmax(strange))
                at = INDEX_HEADER.size + 4 * index.slots + ENTRY_DTYPE.itemsize * (n + 1)
                self._place = file.path, at, int(entries["physical_offset"][n])
            got.append(pairs)
        lost = must[~np.isin(must, np.concatenate(got))] // _HASHES + first
        self._late += int((lost > self._last).sum())
        self._lacking += int(((lost >= self._first) & (lost <= self._last)).sum())

    @staticmethod
    def _keys(chunk: Chunk, first: int, tags: bool) -> Int64Array:
        """Address and hash of each key of the records, as one number."""
        table = chunk.table
        lengths = np.maximum(table["key_length"], table["marks"] >> kernels.KEY_LENGTH_SHIFT)
        room = int((np.maximum(lengths, 0) // 2 + 4).sum())
        hashes, places, times = (np.empty(room, np.int64) for _ in range(3))
        filled, _ = kernels.index_keys(
            chunk.buffer, table, 0, len(table), hashes, places, times, tags
        )
        pairs: Int64Array = (places[:filled] - first) * _HASHES + hashes[:filled]
        return pairs

    def end(self) -> None:
        """All records have gone by."""
        remedy = _INDEX_ANEW
        if not self._files:
            return
        path = self._files[-1][0].path
        if self._late:
            self._note(
                Problem(
                    ProblemKind.RECOVERED,
                    f"it ends at {self._last}: {self._late} keys of later messages lack",
                    path,
                    None,
                    "a broker's start dispatches them where it was killed",
                )
            )
        if self._lacking:
            self._note(
                Problem(
                    ProblemKind.DAMAGED,
                    f"{self._lacking} keys of messages are not in the index files",
                    path,
                    None,
                    remedy,
                )
            )
        if self._place is not None:
            file, at, address = self._place
            self._note(
                Problem(
                    ProblemKind.DAMAGED,
                    f"{self._wrong} entries lead to messages without such a key, the first to "
                    f"{address}",
                    file,
                    at,
                    remedy,
                )
            )


class _IndexPair:
    """A compaction log's file beside its index file."""

    def __init__(
        self, file: MappedFile, pair: MappedFile | None, note: Note, is_last: bool
    ) -> None:
        self._log = file
        self._note = note
        self._next = 0
        self._is_told = False
        self.file = FileOfLog(file="", kind=FileKind.COMPACTION_INDEX, bytes=0)
        self._units: units.Units | None = None
        if pair is not None:
            entries = units.batch_units(read_whole(pair, INDEX_LIMIT_BYTES))
            count = units.valid_count(entries)
            self._units = entries[:count]
            self.file = FileOfLog(
                file=pair.path,
                kind=FileKind.COMPACTION_INDEX,
                bytes=pair.size_bytes,
                start=pair.start,
                entries=count,
                end_position=count * units.BATCH_UNIT.size,
                ending="full" if count == len(entries) else "open",
                first_offset=int(entries["base"][0]) if count else None,
                last_offset=int(entries["base"][count - 1]) if count else None,
            )
            if not count and not is_last:
                note(
                    Problem(
                        ProblemKind.DAMAGED,
                        "a pair of files without a unit",
                        pair.path,
                        None,
                        "a broker answers nothing from such a queue; compact sees to the pair if it is empty",
                    )
                )

    def compare(self, chunk: Chunk) -> Int64Array:
        """Which records of the chunk a unit leads to: those that are served."""
        table = chunk.table
        if self._units is None:
            return np.arange(len(table), dtype=np.int64)
        addresses = self._log.start + chunk.base + table["position"]
        mine = self._units[self._next : self._next + len(table)]
        rows = len(mine)
        self._next += rows
        wrong = (
            (mine["physical_offset"] != addresses[:rows])
            | (mine["size"] != table["size"][:rows])
            | (mine["base"] != table["queue_offset"][:rows])
        )
        if wrong.any() and not self._is_told:
            self._is_told = True
            n = int(np.argmax(wrong))
            self._note(
                Problem(
                    ProblemKind.DAMAGED,
                    f"the unit of offset {int(mine['base'][n])} leads to {int(mine['physical_offset'][n])}; offset "
                    f"{int(table['queue_offset'][n])} lies at {int(addresses[n])}",
                    self.file.file,
                    (self._next - rows + n) * units.BATCH_UNIT.size,
                    DAMAGE_REMEDY,
                )
            )
        elsewhere = table["physical_offset"][:rows] != addresses[:rows]
        if elsewhere.any():
            row = int(np.argmax(elsewhere))
            self._note(
                Problem(
                    ProblemKind.RECOVERED,
                    "records that have another address",
                    self._log.path,
                    chunk.position(row),
                    "they are served all the same; a broker's next run puts it right",
                )
            )
        return np.arange(rows, dtype=np.int64)

    def end(self, is_last: bool) -> None:
        if self._units is not None and self._next < len(self._units):
            self._note(
                Problem(
                    ProblemKind.DAMAGED,
                    f"{len(self._units) - self._next} units lead to no record",
                    self.file.file,
                    self._next * units.BATCH_UNIT.size,
                    DAMAGE_REMEDY,
                )
            )


def _first_bad_entry(index: IndexFile, log: MappedLog | None) -> tuple[int, str] | None:
    """The first entry that contradicts the others, and how."""
    count = index.header.count
    base = INDEX_HEADER.size + 4 * index.slots
    entries = (
        np.frombuffer(index.data, ENTRY_DTYPE, count, base)
        if count > 1
        else np.empty(0, ENTRY_DTYPE)
    )
    for first in range(1, count, _ENTRIES_AT_ONCE):
        some = entries[first : first + _ENTRIES_AT_ONCE]
        numbers = np.arange(first, first + len(some))
        hashes, previous = some["hash"].astype(np.int64), some["previous"].astype(np.int64)
        known = (previous > 0) & (previous < numbers)
        ahead = entries["hash"][np.where(known, previous, first)].astype(np.int64)
        checks = {
            "its hash is below 0": hashes < 0,
            "the entry before it has a later place": (previous < 0) | (previous >= numbers),
            "the entry before it is of another slot": known
            & (ahead % index.slots != hashes % index.slots),
        }
        if log is not None and log.files:
            checks["its address is after the end of the commit log"] = (
                some["physical_offset"] >= log.end
            )
        for wrong, where in checks.items():
            if where.any():
                return first + int(np.argmax(where)), wrong
    return None
