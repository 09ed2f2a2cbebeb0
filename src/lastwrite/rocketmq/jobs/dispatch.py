"""``dispatch``: from a RocketMQ commit log to consume queues, the index and compaction logs.

    lastwrite.dispatch("/root/store")

    look ──► walk ──► build ──► install
    driver   a task   a task    driver: one tree of the
             pieces   a queue,  store after the other,
             of a log an index  each in one step
                      file

``look`` finds where each thing ends: what a broker has dispatched is not read again. ``walk`` reads
the commit log from the least of these ends, and ``build`` writes what changes aside. Only small
values travel; rows lie in scratch files.

A log that is damaged, or leaves queue offsets out, is dispatched up to that place and no further,
in all queues alike: so a broker can go on from there. But where a queue lists records from that
place on, its units lead to what else is not found: then nothing is changed. Nor is it where the log
ends before its queues do, unless its broker was killed.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from lastwrite.errors import CorruptLog, InvalidConfig, LogError, NotALog
from lastwrite.model.log import Problem, ProblemKind, TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Failed
from lastwrite.rocketmq.dispatch_work import (
    NO_END,
    BuildUnit,
    Built,
    DispatchReport,
    DispatchStatus,
    IndexState,
    IndexUnit,
    LogDamage,
    LogFile,
    LogState,
    LogUnit,
    QueueKind,
    QueueReport,
    QueueState,
    QueueUnit,
    Stretch,
    Walked,
    WalkUnit,
)
from lastwrite.rocketmq.format import index_file, kernels, names
from lastwrite.rocketmq.format.sides import Topic
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.rocketmq.store import beyond, dispatched, links, lock, reading, trees, walking
from lastwrite.rocketmq.store.building import build
from lastwrite.rocketmq.store.reading import Part
from lastwrite.spark.inline import Inline
from lastwrite.spark.memory import MemoryPlan
from lastwrite.spark.use import runner_for, shared_folder
from lastwrite.spark.work import Runner, each
from lastwrite.storage.scratch import ScratchFolders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_PIECE_BYTES = 32 << 20
_ALL = TopicPartition("lastwrite-dispatch", 0)  # held beside the compacted queues: no two runs meet

T = TypeVar("T")
U = TypeVar("U")


def dispatch(
    path: str,
    config: Mapping[str, object] | None = None,
    whole_log: bool = False,
    unclean: bool = False,
    now_ms: int | None = None,
    memory: str | int | None = None,
    spark: SparkSession | Inline | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> DispatchReport:
    """Build what the store at ``path`` lacks of consume queues, index and compaction logs, as its
    broker would.

    Args:
        path: the store, a broker's ``storePathRootDir``.
        config: settings under the broker's names; file sizes are those of the files where there are
            any.
        whole_log: read the commit log from its begin, so that the queue that is missing among
            others is made too. Else it is read from where the consume queues end, as a broker does.
        unclean: go on where the broker was not stopped in order; units of records that its end lost
            are cut off then.
        now_ms: the time that names new index files; None: now.
        memory: of all processes together, in bytes or as ``"2g"``; None: a quarter of the
            machine's.
        spark: a session to use; None: one is started on ``master`` with the settings ``conf``.

    Raises:
        NotALog, InvalidConfig: nothing was begun.
        LogHeld: a broker or another run holds the store, or its broker was killed.
        CorruptLog: a queue that is there cannot be gone on with; nothing was changed.
        EnvironmentUnfit: Java or Spark is missing.

    Damage of the commit log does not raise: it stands in the report.
    """
    begin = time.perf_counter()
    settings = DispatchConfig.from_names(config or {})
    root = links.home_of(str(path))
    if not reading.is_store(root):
        raise NotALog("no RocketMQ store", path=root, remedy="give a broker's storePathRootDir")
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    progress = progress or NoProgress()
    trees.refuse_unwritable(root)
    with contextlib.ExitStack() as stack:
        held = {*reading.list_queues(root, Part.COMPACTION_LOG), _ALL}
        stack.enter_context(lock.hold(root, held))
        lock.refuse_unclean(root, goes_on=unclean)
        trees.clear(root)
        runner, memory_plan = stack.enter_context(
            runner_for(spark, master, memory, conf or {}, progress)
        )
        scratch = stack.enter_context(contextlib.closing(_scratch(runner, memory_plan)))
        job = _Dispatch(
            root,
            settings,
            now,
            whole_log,
            lock.was_killed(root),
            unclean,
            runner,
            memory_plan,
            scratch,
            progress,
        )
        try:
            report = job.run()
        except BaseException:
            with contextlib.suppress(LogError, OSError):
                trees.clear(root)  # what was written aside; else the next dispatch does it
            raise
        report.stage_seconds = {name: stage.seconds for name, stage in runner.profile.items()}
    report.seconds = time.perf_counter() - begin
    return report


def _scratch(runner: Runner, plan: MemoryPlan) -> ScratchFolders:
    """Where rows lie between the stages."""
    parent = shared_folder(runner)
    if parent is None:
        raise InvalidConfig(
            "the workers of a cluster share no folder for scratch files",
            remedy="name one by --conf spark.lastwrite.scratch=DIR, or run with --master local[*]",
        )
    return ScratchFolders(parent or None, 0 if parent else plan.scratch_bytes)


@dataclass(slots=True)
class _Sizes:
    """Bytes of files: of those that are there, else as the settings say."""

    queue: int
    batch: int
    log: int
    log_index: int


@dataclass(slots=True)
class _Dispatch:
    """One dispatch on its way."""

    root: str
    settings: DispatchConfig
    now_ms: int
    whole_log: bool
    is_unclean: bool
    goes_on: bool  # records that a killed broker lost are given up
    runner: Runner
    memory: MemoryPlan
    scratch: ScratchFolders
    progress: Progress
    topics: dict[str, Topic] = field(default_factory=dict)
    log: tuple[LogFile, ...] = ()
    queues: dict[tuple[QueueKind, TopicPartition], QueueState] = field(default_factory=dict)
    logs: dict[TopicPartition, LogState] = field(default_factory=dict)
    index: IndexState = field(default_factory=IndexState)
    stale_indexes: list[str] = field(default_factory=list)
    sizes: _Sizes = field(default_factory=lambda: _Sizes(0, 0, 0, 0))
    queued_from: int = 0
    indexed_from: int = 0
    read_from: int = 0
    until: int = NO_END  # the commit log ends here, or may be dispatched no further
    rows: dict[tuple[bytes, int], list[Stretch]] = field(default_factory=dict)
    entries: list[tuple[Stretch, int]] = field(
        default_factory=list
    )  # with the address at which the piece ends
    last_record: int = -1
    bad: tuple[LogFile, int, str] | None = (
        None  # where the log is damaged: the address of a record, and why
    )
    report: DispatchReport = field(default_factory=lambda: DispatchReport(path="", now_ms=0))

    def run(self) -> DispatchReport:
        self.report = DispatchReport(path=self.root, now_ms=self.now_ms)
        self._look()
        self._walk()
        found = dict(self.queues)
        built = self._build()
        if self._settle(built, found):
            self._install(built)
        else:
            self._leave(built, found)
        return self.report

    # ------------------------------------------------------------------ look

    def _look(self) -> None:
        """What is there, and from where on the commit log must be read."""
        self.topics = dispatched.topics(self.root)
        found = reading.read_commit_log(self.root, self._folders())
        for problem in found.problems:
            if (
                problem.kind == ProblemKind.DAMAGED
                and os.path.basename(problem.path) != trees.GUARD
            ):
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)
        files = [LogFile(file.path, file.start, file.size_bytes) for file in found.files]
        while files and walking.is_empty(files[-1]):
            files.pop()
        self.log = tuple(files)
        start = self.log[0].start if self.log else 0
        self.report.log_start = start
        self._look_at_queues()
        self._look_at_logs()
        is_whole = (
            self.whole_log or trees.is_guarded(self._commit_log) or not self._has_last_record()
        )
        ends = {
            kind: [s.end for (k, _), s in self.queues.items() if k is kind] for kind in QueueKind
        }
        kinds = [QueueKind.ORDINARY]
        if ends[QueueKind.BATCH] or any(topic.has_batch_queues for topic in self.topics.values()):
            kinds.append(QueueKind.BATCH)
        self.queued_from = (
            start if is_whole else max(start, min(max(ends[kind], default=-1) for kind in kinds))
        )
        self.indexed_from = NO_END
        if self.settings.has_index:
            self._look_at_index()
            self.indexed_from = max(start, self.index.last_address + 1)
        starts = [self.queued_from, *self._log_starts()]
        if self.settings.has_index:
            # The record at the last address is in the index; the one behind it begins nobody knows
            # where.
            starts.append(max(start, self.index.last_address))
        self.read_from = start if is_whole else max(start, min(starts))

    def _has_last_record(self) -> bool:
        """Whether the record is in the log that the consume queues say is their last."""
        ends = [
            (state.end, name)
            for (kind, name), state in self.queues.items()
            if kind is QueueKind.ORDINARY
        ]
        end, name = max(ends, default=(-1, None))
        if name is None or end < 0:
            return True
        number = self.queues[QueueKind.ORDINARY, name].next_number - 1
        address = dispatched.address_of(
            reading.read_queue(self.root, Part.CONSUME_QUEUE, name), number
        )
        place = (
            bisect_right([file.start for file in self.log], -1 if address is None else address) - 1
        )
        return place >= 0 and address is not None and walking.has_record(self.log[place], address)

    def _folders(self) -> dict[str, object]:
        given = {
            "storePathCommitLog": self.settings.commit_log_folders,
            "readOnlyCommitLogStorePaths": self.settings.read_only_folders,
        }
        return {name: text for name, text in given.items() if text}

    @property
    def _commit_log(self) -> str:
        return reading.commit_log_folders(self.root, self._folders())[0]

    def _look_at_queues(self) -> None:
        sizes: dict[QueueKind, int] = {}
        for kind, part in (
            (QueueKind.ORDINARY, Part.CONSUME_QUEUE),
            (QueueKind.BATCH, Part.BATCH_QUEUE),
        ):
            for name in reading.list_queues(self.root, part):
                log = reading.read_queue(self.root, part, name)
                self.queues[kind, name] = dispatched.read_queue_state(log, kind)
                if (
                    log.file_size is not None
                    and sizes.setdefault(kind, log.file_size) != log.file_size
                ):
                    raise CorruptLog(
                        f"files of {log.file_size} bytes, those of other queues have {sizes[kind]}",
                        None,
                        log.files[0].path,
                        dispatched.MAKE_ANEW,
                    )
        settings = self.settings
        ordinary = (
            sizes.get(QueueKind.ORDINARY)
            or settings.consume_queue_bytes
            or names.DEFAULT_CONSUME_QUEUE_BYTES
        )
        batch = (
            sizes.get(QueueKind.BATCH)
            or settings.batch_queue_bytes
            or names.DEFAULT_BATCH_QUEUE_BYTES
        )
        self.sizes.queue = -(-ordinary // 20) * 20  # as the broker rounds it
        if batch % 46:
            raise InvalidConfig(f"mapperFileSizeBatchConsumeQueue of {batch} is no multiple of 46")
        self.sizes.batch = batch

    def _look_at_logs(self) -> None:
        settings = self.settings
        if not settings.has_compaction:
            return
        sizes: tuple[int, int] | None = None
        compacted = {name for name, topic in self.topics.items() if topic.is_compacted}
        for name in reading.list_queues(self.root, Part.COMPACTION_LOG):
            state, log_bytes, index_bytes = dispatched.read_log_state(self.root, name)
            if log_bytes is not None and index_bytes is not None:
                if sizes not in (None, (log_bytes, index_bytes)):
                    raise CorruptLog(
                        f"files of {log_bytes} and {index_bytes} bytes, those of other queues have {sizes}",
                        None,
                        state.log_path,
                        dispatched.MAKE_LOG_ANEW,
                    )
                sizes = log_bytes, index_bytes
            if name.topic in compacted:
                self.logs[name] = state
        if sizes is None:
            sizes = names.log_sizes(
                settings.compaction_bytes or names.DEFAULT_COMPACTION_LOG_BYTES,
                settings.compaction_cq_bytes or names.DEFAULT_COMPACTION_QUEUE_BYTES,
            )
        self.sizes.log, self.sizes.log_index = sizes
        if self.sizes.log_index < 2 * 46:
            raise InvalidConfig(
                f"a compaction index of {self.sizes.log_index} bytes holds no message"
            )
        for (kind, name), _ in self.queues.items():
            if kind is QueueKind.ORDINARY and name.topic in compacted:
                self.logs.setdefault(name, LogState())

    def _log_starts(self) -> Iterator[int]:
        """Where the first record lies that each compaction log may lack."""
        for name, state in self.logs.items():
            queue = self.queues.get((QueueKind.ORDINARY, name))
            if queue is None:
                # what it has lies behind the ends of all others, or the whole log is to be read
                yield self.queued_from
                continue
            if state.highest + 1 >= queue.next_number:
                continue
            if state.highest < queue.first_number:
                # what the queue has no unit of, as a prepared message, may lie before its first
                yield 0
                continue
            # From the last one held on: the next may be one that the queue has no unit of.
            log = reading.read_queue(self.root, Part.CONSUME_QUEUE, name)
            yield dispatched.address_of(log, state.highest) or 0

    def _look_at_index(self) -> None:
        settings = self.settings
        newest = dispatched.index_time_of_checkpoint(self.root) if self.is_unclean else None
        self.index, self.stale_indexes = dispatched.read_index_state(
            self.root, settings.index_slots, settings.index_entries, newest
        )

    # ------------------------------------------------------------------ walk

    def _walk(self) -> None:
        """Read the commit log; a piece that began in a wrong place is walked again."""
        self.until = self.read_from
        self.bad = None
        if not self.log:
            return
        first = max(bisect_right([file.start for file in self.log], self.read_from) - 1, 0)
        at = min(max(self.read_from, self.log[first].start), self.log[first].end)
        if at < self.log[first].end and not walking.begins_a_record(self.log[first], at):
            at = self.log[first].start  # whoever said so was wrong; a file's begin never is
        self.report.log_end = self.until = self.report.read_from = at
        pieces = list(self._pieces(first, at))
        if not pieces:
            return  # nothing was written from there on
        results = self._run_walks(pieces)
        last = Walked(end=at)
        expected = at
        for n, (unit, walked) in enumerate(zip(pieces, results, strict=True)):
            if n and unit.file != pieces[n - 1].file:
                if not self._goes_on(pieces[n - 1].file, last, unit.file):
                    break
                last, expected = Walked(end=unit.start), unit.start
            if last.stop or expected >= unit.end:
                continue  # behind the file's end, or all of it is one record
            if walked.begin != expected:
                walked = self._run_walks([replace(unit, start=expected, is_exact=True)])[0]
            self._accept(walked)
            last, expected = walked, walked.end
        else:
            self._look_behind(pieces[-1].file, last)
        self.report.log_end = self.until
        self.report.read_from = at
        self.report.bytes_read = max(self.until - at, 0)

    def _goes_on(self, file: LogFile, last: Walked, following: LogFile) -> bool:
        """Whether the log goes on in the next file; after damage, or a file that is missing, it
        does not.
        """
        if last.stop not in (0, kernels.BLANK):
            self.bad = (
                file,
                last.end,
                f"{walking.WORDS[last.stop]}, and the log goes on in {following.path}",
            )
        elif following.start != file.end:
            is_there = any(other.start == file.end for other in self.log)
            what = "holds no record" if is_there else "is missing"
            self.bad = (
                file,
                last.end,
                f"the file that begins at {file.end} {what}, and the log goes on after it",
            )
        else:
            return True
        return False

    def _look_behind(self, file: LogFile, last: Walked) -> None:
        """Say how the newest file ends: where nothing more was written, in a record cut short, or
        in damage.
        """
        if last.stop in (0, kernels.BLANK):
            return
        words = walking.WORDS[last.stop]
        if beyond.survey([file], last.end + 1).records:
            self.bad = file, last.end, words
        elif last.stop != kernels.END:
            self.report.problems.append(
                Problem(
                    ProblemKind.RECOVERED,
                    f"{words}: the log ends at physical offset {last.end}",
                    file.path,
                    last.end - file.start,
                    "nothing to do: a crash cut the last record short, and a broker's start removes it",
                )
            )

    def _accept(self, walked: Walked) -> None:
        self.until = max(self.until, walked.end)
        self.report.records += walked.records
        self.last_record = max(self.last_record, walked.last_record)
        for topic, queue, stretch in walked.queues:
            self.rows.setdefault((topic, queue), []).append(stretch)
        if walked.entries is not None:
            self.entries.append((walked.entries, walked.end))

    def _pieces(self, first: int, at: int) -> Iterator[WalkUnit]:
        size = min(_MOST_PIECE_BYTES, self.memory.limits().piece_bytes)
        compacted = frozenset(
            name
            for name, topic in self.topics.items()
            if topic.is_compacted and self.settings.has_compaction
        )
        for file in self.log[first:]:
            start = max(at, file.start)
            is_exact = True
            written = walking.written_end(file)
            while start < written:
                end = min(start + size, written)
                yield WalkUnit(
                    file,
                    start,
                    end,
                    is_exact,
                    self.queued_from,
                    self.indexed_from,
                    compacted,
                    self.settings.index_tags,
                    self.scratch.folder,
                    self.scratch.memory,
                )
                start, is_exact = end, False

    def _run_walks(self, units: Sequence[WalkUnit]) -> list[Walked]:
        weights = [unit.end - unit.start for unit in units]
        total = max(1, sum(weights))
        shared = [
            replace(unit, memory_bytes=self.scratch.memory_bytes * weight // total)
            for unit, weight in zip(units, weights, strict=True)
        ]
        return _sound(
            self.runner.run_tasks("walk", walking.walk_all, shared, weights, self.progress)
        )

    # ------------------------------------------------------------------ build

    def _units(self) -> list[BuildUnit]:
        """What is to be brought up to date."""
        folder = trees.staging_folder(self.root)
        delays = self.settings.delays_ms()
        units: list[BuildUnit] = []
        for (raw, queue), stretches in sorted(self.rows.items()):
            name = self._name(raw, queue)
            if name is None:
                continue
            topic = self.topics.get(name.topic)
            is_batch = topic is not None and topic.has_batch_queues
            kind = QueueKind.BATCH if is_batch else QueueKind.ORDINARY
            delay = None
            if name.topic == names.SCHEDULE_TOPIC:
                delay = delays[min(queue, len(delays) - 1)]
            units.append(self._queue_unit(kind, name, stretches, folder, delay))
            if self.settings.has_compaction and topic is not None and topic.is_compacted:
                units.append(
                    LogUnit(
                        name,
                        tuple(stretches),
                        self.until,
                        self.logs.get(name, LogState()),
                        self.sizes.log,
                        self.sizes.log_index,
                        self.log,
                        folder,
                    )
                )
        known = {(unit.kind, unit.name) for unit in units if isinstance(unit, QueueUnit)}
        for kind, name in sorted(self.queues.keys() - known):
            if self._is_beyond(kind, self.queues[kind, name]):
                units.append(self._queue_unit(kind, name, (), folder, None))
        return units + list(self._index_units(folder))

    def _queue_unit(
        self,
        kind: QueueKind,
        name: TopicPartition,
        rows: Sequence[Stretch],
        folder: str,
        delay_ms: int | None,
    ) -> QueueUnit:
        state = self.queues.get((kind, name), QueueState())
        is_batch = kind is QueueKind.BATCH
        is_cut = self._is_beyond(kind, state)
        if is_cut:  # units of records that the log does not have: a broker's start cuts them off
            part = Part.BATCH_QUEUE if is_batch else Part.CONSUME_QUEUE
            state = dispatched.read_queue_state(
                reading.read_queue(self.root, part, name), kind, self.until
            )
            self.queues[kind, name] = state
        return QueueUnit(
            kind,
            name,
            tuple(rows),
            self.until,
            state,
            self.sizes.batch if is_batch else self.sizes.queue,
            folder,
            delay_ms,
            is_cut,
        )

    def _is_beyond(self, kind: QueueKind, state: QueueState) -> bool:
        """Whether the queue's last unit is of a record behind the log's end."""
        return state.end >= self.until if kind is QueueKind.BATCH else state.end > self.until

    def _name(self, raw: bytes, queue: int) -> TopicPartition | None:
        """The queue's name; None, and a problem, where no folder can have it."""
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            topic = ""
        if (
            not topic
            or topic in (".", "..")
            or "/" in topic
            or "\0" in topic
            or len(raw) > 255
            or queue < 0
        ):
            problem = Problem(
                ProblemKind.DAMAGED,
                f"records of topic {raw!r}, queue {queue}: no folder can have such a name",
                self._commit_log,
                None,
                "they were left out; no client can have sent them",
            )
            if problem not in self.report.problems:
                self.report.problems.append(problem)
            return None
        return TopicPartition(topic, queue)

    def _index_units(self, folder: str) -> Iterator[IndexUnit]:
        """The index files that take the entries, in their order."""
        if not self.settings.has_index or self.last_record < 0:
            return
        old = self.index
        slots = old.slots or self.settings.index_slots or index_file.DEFAULT_SLOTS
        capacity = old.capacity or self.settings.index_entries or index_file.DEFAULT_ENTRIES
        index_file.index_bytes(slots, capacity)
        left = [(stretch, 0, self._counted(stretch, end)) for stretch, end in self.entries]
        left = [part for part in left if part[2]]
        newest = min(self.last_record, self.until - 1)
        room = capacity - old.count if old.name else 0
        if not left and (room or newest <= old.last_address):
            return
        path, count, name = old.path, old.count, old.name
        last_address, before = old.last_address, None
        if not room:
            path, count, name, room = "", 1, self._index_name(name), capacity - 1
        while True:
            taken: list[tuple[Stretch, int, int]] = []
            while left and room:
                stretch, first, some = left.pop(0)
                part = min(some, room)
                taken.append((stretch, first, part))
                room -= part
                if part < some:
                    left.insert(0, (stretch, first + part, some - part))
            yield IndexUnit(
                name,
                slots,
                capacity,
                tuple(taken),
                path,
                count,
                before,
                max(old.last_address, 0),
                old.last_stored,
                folder,
            )
            if taken:
                stretch, first, part = taken[-1]
                before = stretch, first + part - 1
                last_address = int(walking.read_entries(*before, 1)[1][0])
            # A broker makes the next file for the first record behind a full one, be it without a
            # key.
            if not left and (room or newest <= last_address):
                return
            path, count, name, room = "", 1, self._index_name(name), capacity - 1

    def _counted(self, stretch: Stretch, end: int) -> int:
        """How many of a piece's entries are of records that may be dispatched."""
        if end <= self.until:
            return stretch.count
        _, places, _ = walking.read_entries(stretch, 0, stretch.count)
        return int(places.searchsorted(self.until))

    def _index_name(self, before: str) -> str:
        """As a broker names an index file by its clock, but behind the name ``before``."""
        at = time.localtime(self.now_ms // 1000)
        name = time.strftime("%Y%m%d%H%M%S", at) + f"{self.now_ms % 1000:03d}"
        return name if name > before else f"{int(before) + 1:017d}"

    def _build(self) -> list[tuple[BuildUnit, Built]]:
        """Write aside what changes; where offsets are left out, once more up to there."""
        units = self._units()
        built = self._run_builds(units)
        if self.report.read_from > self.report.log_start and any(
            one.gap_at >= 0 or one.begins_late for one in built
        ):
            # What lies before is lacking in one queue that others have: it was lost alone.
            self.queued_from = self.read_from = self.report.log_start
            self.rows.clear()
            self.entries.clear()
            self.report.records, self.report.problems = 0, []
            self._walk()
            trees.clear(self.root)
            units = self._units()
            built = self._run_builds(units)
        gaps = [one for one in built if one.gap_at >= 0]
        if gaps:
            worst = min(gaps, key=lambda one: one.gap_at)
            place = max(bisect_right([file.start for file in self.log], worst.gap_at) - 1, 0)
            self.bad = (
                self.log[place],
                worst.gap_at,
                f"the log leaves records out: it has {worst.gap}",
            )
            self.until = self.report.log_end = min(self.until, worst.gap_at)
            trees.clear(self.root)
            units = self._units()
            built = self._run_builds(units)
        return list(zip(units, built, strict=True))

    def _run_builds(self, units: Sequence[BuildUnit]) -> list[Built]:
        weights = [_weight(unit) for unit in units]
        return _sound(self.runner.run_tasks("build", each(build), units, weights, self.progress))

    # ------------------------------------------------------------------ what is missing

    def _settle(
        self,
        built: Sequence[tuple[BuildUnit, Built]],
        found: Mapping[tuple[QueueKind, TopicPartition], QueueState],
    ) -> bool:
        """Say what is damaged or missing; whether what was built may be put in place.

        ``found``: the queues as they were before any was cut back.
        """
        ahead = {
            (name.topic, name.partition): offsets
            for (kind, name), state in found.items()
            if self._is_beyond(kind, state)
            if (offsets := self._listed(kind, name, self.until)) is not None
        }
        if self.bad is not None:
            self._tell_damage(*self.bad, built, ahead, found)
            return not ahead
        proofs = (
            [f"consume queues list records there: queue offsets {_in_words(ahead)}"]
            if ahead
            else []
        )
        if self.settings.has_index and self.index.last_address >= self.until:
            proofs.append(f"the index names the physical offset {self.index.last_address}")
        reached = dispatched.address_of_checkpoint(self.root)
        if reached > self.until:
            proofs.append(f"by the checkpoint it had reached {reached}")
        if not proofs:
            return True
        place, position = self._commit_log, None
        if self.log and self.until >= self.log[-1].start:
            place, position = self.log[-1].path, self.until - self.log[-1].start
        message = f"the log ends at physical offset {self.until}, and had more: {'; '.join(proofs)}"
        if self.goes_on:
            remedy = "given up by --unclean, as a broker's start gives it up"
            self.report.problems.append(
                Problem(ProblemKind.RECOVERED, message, place, position, remedy)
            )
            return True
        damage = LogDamage(
            physical_offset=self.until,
            path=place,
            position=position,
            resumes_at=None,
            records_beyond=0,
            bytes_beyond=0,
            lost=beyond.ranges_of(ahead, "consume queue"),
            beyond=[],
        )
        give_up = "where no copy has the missing records, --unclean gives them up, as a broker's start does"
        self._tell(message, damage, is_changed=False, what_else=give_up)
        return False

    def _listed(
        self, kind: QueueKind, name: TopicPartition, start: int, end: int = NO_END
    ) -> tuple[int, int] | None:
        return beyond.listed(
            reading.read_queue(self.root, beyond.PART_OF[kind], name), kind, start, end
        )

    def _tell_damage(
        self,
        file: LogFile,
        address: int,
        words: str,
        built: Sequence[tuple[BuildUnit, Built]],
        ahead: Mapping[tuple[str, int], tuple[int, int]],
        found: Mapping[tuple[QueueKind, TopicPartition], QueueState],
    ) -> None:
        """Name the record, what is lost with it, and what a cut there would lose besides."""
        rest = beyond.survey(self.log, address)
        there = {}
        for kind, name in found:
            if (name.topic, name.partition) in ahead:
                offsets = self._listed(kind, name, address, rest.first if rest.records else NO_END)
                if offsets is not None:
                    there[name.topic, name.partition] = offsets
        ends = {
            (unit.name.topic, unit.name.partition): one.next_number
            for unit, one in built
            if isinstance(unit, QueueUnit)
            and unit.kind is QueueKind.ORDINARY
            and one.next_number >= 0
        }
        lost = beyond.lost_between(there, ahead, rest, ends)
        message = f"{words}; the record begins at physical offset {address}; "
        message += (
            f"lost: queue offsets {beyond.in_words(lost)}"
            if lost
            else "which queue offsets are lost is unknown"
        )
        if rest.records:
            message += (
                f"; {rest.records:,} whole records follow from physical offset {rest.first}: "
                f"queue offsets {_in_words(rest.queues)}"
            )
        damage = LogDamage(
            physical_offset=address,
            path=file.path,
            position=address - file.start,
            resumes_at=rest.first if rest.records else None,
            records_beyond=rest.records,
            bytes_beyond=rest.record_bytes,
            lost=lost,
            beyond=beyond.ranges_of(rest.queues, "records"),
        )
        give_up = f"lastwrite cut STORE --at {address} gives up the log from here on, and keeps aside what it removes"
        self._tell(message, damage, is_changed=not ahead, what_else=give_up)

    def _tell(self, message: str, damage: LogDamage, *, is_changed: bool, what_else: str) -> None:
        done = "what is before this place was dispatched" if is_changed else "nothing was changed"
        save = (
            "copy the store before a broker starts on it, because that start may cut the log here "
            "and remove the rest"
        )
        remedy = f"{done}; {save}; restore the file from a replica; {what_else}"
        self.report.problems.append(
            Problem(ProblemKind.DAMAGED, message, damage.path, damage.position, remedy)
        )
        self.report.damage = damage

    def _leave(
        self,
        built: Sequence[tuple[BuildUnit, Built]],
        found: Mapping[tuple[QueueKind, TopicPartition], QueueState],
    ) -> None:
        """Nothing is put in place: report the queues as they are."""
        trees.clear(self.root)
        for unit, _ in built:
            if isinstance(unit, IndexUnit):
                continue
            kind = unit.kind if isinstance(unit, QueueUnit) else QueueKind.COMPACTION
            state = found.get((kind, unit.name))
            self.report.queues.append(
                QueueReport(
                    kind=kind,
                    topic=unit.name.topic,
                    queue=unit.name.partition,
                    status=DispatchStatus.DAMAGED,
                    next_offset=state.next_number if state is not None else None,
                )
            )

    # ------------------------------------------------------------------ install

    def _install(self, built: Sequence[tuple[BuildUnit, Built]]) -> None:
        """Put all files in place, and say what was done."""
        changes = {tree: trees.TreeChange() for tree in trees.ORDER}
        for unit, one in built:
            self.report.bytes_written += one.bytes_written
            if isinstance(unit, IndexUnit):
                changes[names.INDEX].new.update(one.files)
                self.report.index_entries += one.added
                self.report.index_files.append(unit.name)
                continue
            kind = unit.kind if isinstance(unit, QueueUnit) else QueueKind.COMPACTION
            change = changes[kind.value]
            change.new.update(one.files)
            if one.is_anew:
                change.gone_folders.add(os.path.join(unit.name.topic, str(unit.name.partition)))
            self._report(kind, unit.name, one)
        changes[names.INDEX].gone.update(self.stale_indexes)
        for (kind, name), state in self.queues.items():
            folder = os.path.join(name.topic, str(name.partition))
            changes[kind.value].gone.update(os.path.join(folder, spare) for spare in state.spare)
        trees.install(self.root, changes, self._commit_log)

    def _report(self, kind: QueueKind, name: TopicPartition, one: Built) -> None:
        status = DispatchStatus.DISPATCHED if one.files else DispatchStatus.UNCHANGED
        self.report.queues.append(
            QueueReport(
                kind=kind,
                topic=name.topic,
                queue=name.partition,
                status=status,
                units_added=one.added,
                next_offset=one.next_number,
                files_written=len(one.files),
                records_passed=one.passed,
                records_keyless=one.keyless,
                records_too_large=one.too_large,
                is_anew=one.is_anew,
            )
        )
        if one.too_large:
            self.report.problems.append(
                Problem(
                    ProblemKind.UNSUPPORTED,
                    f"{one.too_large} records are too large for a compaction log's files",
                    os.path.join(self.root, Part.COMPACTION_LOG, name.topic, str(name.partition)),
                    None,
                    "a broker loses them too; raise compactionMappedFileSize before the log is made",
                )
            )


def _in_words(queues: Mapping[tuple[str, int], tuple[int, int]]) -> str:
    return beyond.in_words(beyond.ranges_of(queues, ""))


def _weight(unit: BuildUnit) -> int:
    if isinstance(unit, IndexUnit):
        return 20 * sum(count for _, _, count in unit.entries)
    each_bytes = 300 if isinstance(unit, LogUnit) else 20
    return each_bytes * sum(stretch.count for stretch in unit.rows)


def _sound(results: Sequence[T | Failed[U]]) -> list[T]:
    """The results; the first failure is raised: nothing was installed yet."""
    sound = []
    for result in results:
        if isinstance(result, Failed):
            error = result.error
            raise (
                error
                if isinstance(error, LogError)
                else LogError(f"{type(error).__name__}: {error}")
            )
        sound.append(result)
    return sound
