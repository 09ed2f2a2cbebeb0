"""``dispatch``: build consume queues, the index and compaction logs from a RocketMQ commit log.

    lastwrite.dispatch("/root/store")

    look ──► walk ──► build ──► install
    driver   a task   a task    driver: one tree of the
             pieces   a queue,  store after the other,
             of a log an index  each in one step
                      file

``look`` finds the end of each queue, log and index, so that dispatched records are not read
again. ``walk`` reads the commit log from the lowest of these ends, and ``build`` writes the
changed files to a work folder. Only small values are sent between processes; rows are in
scratch files.

If the log is damaged or has a gap in queue offsets, all queues are dispatched up to that
address, so that a broker can continue from there. Nothing is changed if a queue has units
beyond that address, because these units are the only references to the records there. Nothing
is changed either if the log ends before its queues do, unless its broker was killed.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from lastwrite.encoding.kernel_cache import report_if_compiling
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, NotALog
from lastwrite.model.log import Problem, ProblemKind, TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import FailedUnit
from lastwrite.rocketmq.dispatch_work import (
    NO_END,
    BuildUnit,
    IndexFileState,
    IndexUnit,
    LogState,
    LogUnit,
    QueueState,
    QueueUnit,
    ScratchSlice,
    StagedIndexFiles,
    WalkedPiece,
    WalkUnit,
)
from lastwrite.rocketmq.format import dispatch as rules
from lastwrite.rocketmq.format import index_file, kernels, names
from lastwrite.rocketmq.format.sides import TopicConfig
from lastwrite.rocketmq.reports import (
    DispatchReport,
    DispatchStatus,
    LogDamage,
    QueueKind,
    QueueReport,
)
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.rocketmq.store import (
    beyond,
    dispatched,
    links,
    lock,
    reading,
    trees,
    untouched,
    walking,
)
from lastwrite.rocketmq.store.building import build
from lastwrite.rocketmq.store.layouts import reject_other_layouts
from lastwrite.rocketmq.store.place import is_store
from lastwrite.rocketmq.store.reading import MappedFile, StoreFolder
from lastwrite.rocketmq.store.topics import read_topics
from lastwrite.spark.inline import Inline
from lastwrite.spark.memory import MemoryPlan
from lastwrite.spark.use import runner_for, shared_folder
from lastwrite.spark.work import Runner
from lastwrite.spark.worker_check import check_workers
from lastwrite.storage.problems import damaged, recovered
from lastwrite.storage.scratch import ScratchFolders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_PIECE_BYTES = 32 << 20
# A name that each dispatch locks, so that two dispatches of a store exclude each other.
_ALL = TopicPartition("lastwrite-dispatch", 0)

T = TypeVar("T")
U = TypeVar("U")


def dispatch(  # one parameter for each option of the command line
    path: str,
    *,
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
    """Add missing records to the consume queues, index and compaction logs of a store.

    The result equals the files that the store's broker would write.

    Args:
        path: the store, a broker's ``storePathRootDir``.
        config: settings with the broker's names. Existing files determine the file sizes.
        whole_log: read the commit log from its start, which also rebuilds a single missing queue.
            Otherwise it is read from the end of the consume queues, as a broker does.
        unclean: continue although the broker was not stopped cleanly. Units of records that the
            commit log has lost are removed.
        now_ms: the time for the names of new index files. None means now.
        memory: memory of all processes together, in bytes or as ``"2g"``. None means a quarter of
            the machine's memory.
        spark, master, conf, progress: as for ``compact``.

    Raises:
        NotALog, InvalidConfig: nothing was changed.
        LogHeld: a broker or another command has the store, or its broker was killed.
        CorruptLog: an existing queue cannot be continued; nothing was changed.
        EnvironmentUnfit: Java or Spark is missing.

    Damage of the commit log does not raise; it is in the report.
    """
    begin = time.perf_counter()
    settings = DispatchConfig.from_names(config or {})
    root = links.home_of(str(path))
    if not is_store(root):
        raise NotALog(
            "the folder is not a RocketMQ store",
            path=root,
            remedy="give the broker's storePathRootDir",
        )
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    progress = progress or NoProgress()
    reject_other_layouts(root, "dispatch", config)
    trees.reject_unwritable(root)
    with contextlib.ExitStack() as stack:
        held = {*reading.list_queues(root, StoreFolder.COMPACTION_LOG), _ALL}
        stack.enter_context(lock.hold(root, held))
        lock.reject_unclean(root, goes_on=unclean)
        trees.clear(root)
        runner, plan = stack.enter_context(runner_for(spark, master, memory, conf or {}, progress))
        scratch = stack.enter_context(contextlib.closing(_scratch(runner, plan)))
        shared = shared_folder(runner)
        check_workers(runner, [root, *([shared] if shared else [])], progress)
        report_if_compiling(progress.note, "lastwrite.rocketmq.format.dispatch:take")
        report = DispatchReport(path=root, now_ms=now)
        job = _Dispatch(
            root, settings, whole_log, unclean, _Workers(runner, plan, scratch, progress), report
        )
        try:
            job.run()
        except BaseException:
            if job.installed:
                done = ", ".join(job.installed)
                progress.note(
                    f"{root}: {done} were installed before the failure; run the same command "
                    "again to install the others"
                )
            with contextlib.suppress(LogError, OSError):
                trees.clear(root)  # on an error, the next dispatch removes the files
            raise
        changed = set(job.installed)
        report.untouched = untouched.list_untouched(root, changed, untouched.BY_DISPATCH)
        report.stage_seconds = {name: stage.seconds for name, stage in runner.profile.items()}
    report.seconds = time.perf_counter() - begin
    return report


def _scratch(runner: Runner, plan: MemoryPlan) -> ScratchFolders:
    """The scratch folders for rows that one stage writes and the next reads."""
    parent = shared_folder(runner)
    if parent is None:
        raise InvalidConfig(
            "the Spark workers share no folder for scratch files",
            remedy="give a folder that all workers can reach with --conf "
            "spark.lastwrite.scratch=DIR, or run with --master local[*]",
        )
    return ScratchFolders(parent or None, 0 if parent else plan.scratch_bytes)


@dataclass(frozen=True, slots=True)
class _Workers:
    """Runs the tasks of a dispatch: the runner, and the resources of its tasks."""

    runner: Runner
    memory: MemoryPlan
    scratch: ScratchFolders
    progress: Progress

    def walk(self, units: Sequence[WalkUnit]) -> list[WalkedPiece]:
        """Walk pieces of the commit log; scratch memory is divided in proportion to their sizes."""
        weights = [unit.end - unit.start for unit in units]
        total = max(1, sum(weights))
        shared = [
            replace(unit, memory_bytes=self.scratch.memory_bytes * weight // total)
            for unit, weight in zip(units, weights, strict=True)
        ]
        pending = self.runner.begin_tasks("walk", walking.walk_all, shared, weights, self.progress)
        return _results_or_raise(pending.result())

    def build(self, units: Sequence[BuildUnit]) -> list[StagedIndexFiles]:
        weights = [_weight(unit) for unit in units]
        return _results_or_raise(self.runner.run("build", build, units, weights, self.progress))


@dataclass(slots=True)
class _Sizes:
    """The sizes of new files: the sizes of existing files, or the settings if there are none."""

    queue: int = 0
    batch: int = 0
    log: int = 0
    log_index: int = 0


@dataclass(slots=True)
class _Dispatch:
    """One run of dispatch, which fills ``report``."""

    root: str
    settings: DispatchConfig
    whole_log: bool
    goes_on: bool  # continue without the records that a killed broker lost
    workers: _Workers
    report: DispatchReport
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    log: tuple[MappedFile, ...] = ()
    queues: dict[tuple[QueueKind, TopicPartition], QueueState] = field(default_factory=dict)
    logs: dict[TopicPartition, LogState] = field(default_factory=dict)
    index: IndexFileState = field(default_factory=IndexFileState)
    stale_indexes: list[str] = field(default_factory=list)
    sizes: _Sizes = field(default_factory=_Sizes)
    queued_from: int = 0
    indexed_from: int = 0
    read_from: int = 0
    until: int = NO_END  # address at which the commit log ends or is damaged
    rows: dict[tuple[bytes, int], list[ScratchSlice]] = field(default_factory=dict)
    # index entries of each piece, and the address where the piece ends
    entries: list[tuple[ScratchSlice, int]] = field(default_factory=list)
    last_record: int = -1
    # the damage that ends the dispatch: file, address of the record, reason
    bad: tuple[MappedFile, int, str] | None = None
    installed: list[str] = field(default_factory=list)  # trees that were changed

    def run(self) -> None:
        self._read_state()
        self._walk()
        found = dict(self.queues)
        built = self._build()
        if self._may_install(built, found):
            self._install(built)
        else:
            self._leave(built, found)

    # ------------------------------------------------------------------ look

    def _read_state(self) -> None:
        """Read the state of the store, and set the address from which to read the commit log."""
        self.topics = read_topics(self.root)
        found = reading.read_commit_log(self.root, self._folders())
        others = (p for p in found.problems if os.path.basename(p.path) != trees.GUARD)
        replace(found, problems=tuple(others)).check_loadable()
        files = list(found.files)
        while files and walking.is_empty(files[-1]):
            files.pop()
        self.log = tuple(files)
        start = self.log[0].start if self.log else 0
        self.report.log_start = start
        self._check_queues()
        self._check_logs()
        if reading.list_queues(self.root, StoreFolder.EXTENSION):
            wrong = (
                "dispatch adds no consume queue extension units for the messages that it dispatches"
            )
            remedy = (
                "nothing to do: consume queue units contain the tags code, and SQL filters "
                "read the messages; a broker with enableConsumeQueueExt adds extension units "
                "for later messages"
            )
            path = os.path.join(self.root, StoreFolder.EXTENSION)
            problem = Problem(ProblemKind.UNSUPPORTED, wrong, path, None, remedy)
            self.report.problems.append(problem)
        is_whole = (
            self.whole_log or trees.is_guarded(self._commit_log) or not self._has_last_record()
        )
        ends = {
            kind: [s.end for (k, _), s in self.queues.items() if k is kind] for kind in QueueKind
        }
        kinds = [QueueKind.ORDINARY]
        if ends[QueueKind.BATCH] or any(topic.has_batch_queues for topic in self.topics.values()):
            kinds.append(QueueKind.BATCH)
        self.queued_from = start
        if not is_whole:
            self.queued_from = max(start, min(max(ends[kind], default=-1) for kind in kinds))
        self.indexed_from = NO_END
        starts = [self.queued_from, *self._log_starts()]
        if self.settings.has_index:
            self._check_index()
            self.indexed_from = max(start, self.index.last_address + 1)
            # The record at the last address is in the index. The walk begins there, because the
            # address of the next record is unknown.
            starts.append(max(start, self.index.last_address))
        self.read_from = start if is_whole else max(start, min(starts))

    def _has_last_record(self) -> bool:
        """Whether the commit log has the last record of the consume queues."""
        ends = [
            (state.end, name)
            for (kind, name), state in self.queues.items()
            if kind is QueueKind.ORDINARY
        ]
        end, name = max(ends, default=(-1, None))
        if name is None or end < 0:
            return True
        number = self.queues[QueueKind.ORDINARY, name].next_number - 1
        queue = reading.read_queue(self.root, StoreFolder.CONSUME_QUEUE, name)
        address = dispatched.address_of(queue, number)
        if address is None or not self.log or address < self.log[0].start:
            return False
        return walking.has_record(self._file_of(address), address)

    def _file_of(self, address: int) -> MappedFile:
        """The last file that begins at or before the address, else the first file."""
        place = bisect_right([file.start for file in self.log], address) - 1
        return self.log[max(place, 0)]

    def _folders(self) -> dict[str, object]:
        given = {
            "storePathCommitLog": self.settings.commit_log_folders,
            "readOnlyCommitLogStorePaths": self.settings.read_only_folders,
        }
        return {name: text for name, text in given.items() if text}

    @property
    def _commit_log(self) -> str:
        return reading.commit_log_folders(self.root, self._folders())[0]

    def _check_queues(self) -> None:
        sizes: dict[QueueKind, int] = {}
        for kind in (QueueKind.ORDINARY, QueueKind.BATCH):
            files: dict[str, int] = {}
            for name in reading.list_queues(self.root, StoreFolder(kind)):
                log = reading.read_queue(self.root, StoreFolder(kind), name)
                self.queues[kind, name] = dispatched.read_queue_state(log, kind)
                if log.file_size is not None:
                    files[log.files[0].path] = log.file_size
            if files:
                sizes[kind] = _common_size(files, dispatched.MAKE_ANEW)
        given = self.settings
        ordinary = sizes.get(QueueKind.ORDINARY) or given.consume_queue_bytes
        batch = sizes.get(QueueKind.BATCH) or given.batch_queue_bytes
        ordinary = ordinary or names.DEFAULT_CONSUME_QUEUE_BYTES
        self.sizes.queue = -(-ordinary // 20) * 20  # rounded up to whole units, as in a broker
        self.sizes.batch = batch or names.DEFAULT_BATCH_QUEUE_BYTES
        if self.sizes.batch % 46:
            raise InvalidConfig(
                f"mapperFileSizeBatchConsumeQueue of {batch} is not a multiple of 46",
                remedy="set it to the broker's value",
            )

    def _check_logs(self) -> None:
        settings = self.settings
        if not settings.has_compaction:
            return
        sizes: tuple[int, int] | None = None
        compacted = {name for name, topic in self.topics.items() if topic.is_compacted}
        files: dict[str, tuple[int, int]] = {}
        for name in reading.list_queues(self.root, StoreFolder.COMPACTION_LOG):
            state, log_bytes, index_bytes = dispatched.read_log_state(self.root, name)
            if log_bytes is not None and index_bytes is not None:
                files[state.log_path] = log_bytes, index_bytes
            if name.topic in compacted:
                self.logs[name] = state
        if files:
            sizes = _common_size(files, dispatched.MAKE_LOG_ANEW)
        if sizes is None:
            sizes = names.log_sizes(
                settings.compaction_bytes or names.DEFAULT_COMPACTION_LOG_BYTES,
                settings.compaction_cq_bytes or names.DEFAULT_COMPACTION_QUEUE_BYTES,
            )
        self.sizes.log, self.sizes.log_index = sizes
        if self.sizes.log_index < 2 * 46:
            raise InvalidConfig(
                f"a compaction index of {self.sizes.log_index} bytes is too small for one message",
                remedy="set compactionCqMappedFileSize to the broker's value",
            )
        for kind, name in self.queues:
            if kind is QueueKind.ORDINARY and name.topic in compacted:
                self.logs.setdefault(name, LogState())

    def _log_starts(self) -> Iterator[int]:
        """Yield an address for each compaction log, at or before the first record that it lacks."""
        for name, state in self.logs.items():
            queue = self.queues.get((QueueKind.ORDINARY, name))
            if queue is None:
                # The queue has no units, so all its records are at or after this address, unless
                # queue files were lost.
                yield self.queued_from
                continue
            if state.highest + 1 >= queue.next_number:
                continue
            if state.highest < queue.first_number:
                # Begin at the start of the log, because records without a unit (prepared messages,
                # for example) may precede the queue's first unit.
                yield 0
                continue
            # Begin at the last record in the log, because a record without a unit may follow it.
            log = reading.read_queue(self.root, StoreFolder.CONSUME_QUEUE, name)
            yield dispatched.address_of(log, state.highest) or 0

    def _check_index(self) -> None:
        settings = self.settings
        newest = None
        if lock.was_killed(self.root):
            newest = dispatched.read_checkpoint(self.root).index_time_ms
        self.index, self.stale_indexes = dispatched.read_index_state(
            self.root, settings.index_slots, settings.index_entries, newest
        )

    # ------------------------------------------------------------------ walk

    def _walk(self) -> None:
        """Read the commit log. A piece whose walk began at a wrong address is walked again."""
        self.until = self.read_from
        self.bad = None
        if not self.log:
            return
        file = self._file_of(self.read_from)
        at = min(max(self.read_from, file.start), file.end)
        if at < file.end and not walking.starts_record(file, at):
            at = file.start  # no record begins at the address, so begin at the file's start
        self.report.log_end = self.until = self.report.read_from = at
        pieces = list(self._pieces(self.log.index(file), at))
        if not pieces:
            return  # no data follows
        results = self.workers.walk(pieces)
        last = WalkedPiece(end=at)
        expected = at
        for n, (unit, walked) in enumerate(zip(pieces, results, strict=True)):
            if n and unit.file != pieces[n - 1].file:
                if not self._is_continued(pieces[n - 1].file, last, unit.file):
                    break
                last, expected = WalkedPiece(end=unit.start), unit.start
            if last.stop or expected >= unit.end:
                continue  # the file's data has ended, or the piece is inside one record
            if walked.begin != expected:
                walked = self.workers.walk([replace(unit, start=expected, is_exact=True)])[0]
            self._accept(walked)
            last, expected = walked, walked.end
        else:
            self._check_end(pieces[-1].file, last)
        self.report.log_end = self.until
        self.report.read_from = at
        self.report.bytes_read = max(self.until - at, 0)

    def _is_continued(self, file: MappedFile, last: WalkedPiece, following: MappedFile) -> bool:
        """Whether the log continues in ``following``, the next file.

        False after damage or a missing file.
        """
        if last.stop not in (0, kernels.BLANK):
            wrong = f"{walking.WORDS[last.stop]}, and the log continues in {following.path}"
        elif following.start != file.end:
            is_there = any(other.start == file.end for other in self.log)
            what = "contains no record" if is_there else "is missing"
            wrong = (
                f"the file that begins at physical offset {file.end} {what}, and later files of "
                "the log exist"
            )
        else:
            return True
        self.bad = file, last.end, wrong
        return False

    def _check_end(self, file: MappedFile, last: WalkedPiece) -> None:
        """Report the end of the newest file if it has a partial record or damage."""
        if last.stop in (0, kernels.BLANK):
            return
        words = walking.WORDS[last.stop]
        if beyond.survey([file], last.end + 1).records:
            self.bad = file, last.end, words
        elif last.stop != kernels.END:
            wrong = f"{words}: the log ends at physical offset {last.end}"
            remedy = (
                "nothing to do: a crash truncated the last record, and the broker removes it "
                "when it starts"
            )
            self.report.problems.append(recovered(wrong, file.path, last.end - file.start, remedy))

    def _accept(self, walked: WalkedPiece) -> None:
        self.until = max(self.until, walked.end)
        self.report.records += walked.records
        self.last_record = max(self.last_record, walked.last_record)
        for topic, queue, stretch in walked.queues:
            self.rows.setdefault((topic, queue), []).append(stretch)
        if walked.entries is not None:
            self.entries.append((walked.entries, walked.end))
        if walked.light_bad:
            self._note_bad_light_queues(walked.light_bad, walked.light_bad_at)

    def _note_bad_light_queues(self, count: int, address: int) -> None:
        file = self._file_of(address)
        wrong = (
            f"{count} records in this part of the log, first this one, name a light queue that "
            "cannot have units, or an invalid light queue offset; a broker's dispatch fails at "
            "such a record and does not continue"
        )
        remedy = (
            "dispatch skipped that light queue and the later light queues of the record, and "
            "built everything else"
        )
        problem = Problem(ProblemKind.UNSUPPORTED, wrong, file.path, address - file.start, remedy)
        self.report.problems.append(problem)

    def _pieces(self, first: int, at: int) -> Iterator[WalkUnit]:
        size = min(_MOST_PIECE_BYTES, self.workers.memory.limits().piece_bytes)
        compacted: frozenset[str] = frozenset()
        if self.settings.has_compaction:
            compacted = frozenset(n for n, topic in self.topics.items() if topic.is_compacted)
        batched = frozenset(n for n, topic in self.topics.items() if topic.has_batch_queues)
        light = rules.NO_LIGHT
        if self.settings.has_light_queues:
            at_zero = self.settings.light_at_zero
            light = rules.LIGHT_AT_ZERO if at_zero else rules.LIGHT_BY_RECORD
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
                    batched,
                    light,
                    self.settings.index_tags,
                    self.workers.scratch.folder,
                    self.workers.scratch.memory,
                )
                start, is_exact = end, False

    # ------------------------------------------------------------------ build

    def _units(self) -> list[BuildUnit]:
        """The units of work for the queues, compaction logs and index files to build."""
        folder = trees.staging_folder(self.root)
        delays = self.settings.delays_ms()
        units: list[BuildUnit] = []
        for (raw, queue), stretches in sorted(self.rows.items()):
            name = self._name(raw, queue, stretches[0])
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
        rows: Sequence[ScratchSlice],
        folder: str,
        delay_ms: int | None,
    ) -> QueueUnit:
        state = self.queues.get((kind, name), QueueState())
        is_cut = self._is_beyond(kind, state)
        if is_cut:  # the queue has units of missing records; a broker removes them at start
            queue = reading.read_queue(self.root, StoreFolder(kind), name)
            state = dispatched.read_queue_state(queue, kind, self.until)
            self.queues[kind, name] = state
        size = self.sizes.batch if kind is QueueKind.BATCH else self.sizes.queue
        return QueueUnit(kind, name, tuple(rows), self.until, state, size, folder, delay_ms, is_cut)

    def _is_beyond(self, kind: QueueKind, state: QueueState) -> bool:
        """Whether the queue's last unit belongs to a record after the log's end."""
        return state.end >= self.until if kind is QueueKind.BATCH else state.end > self.until

    def _name(self, raw: bytes, queue: int, rows: ScratchSlice) -> TopicPartition | None:
        """The name of a queue as topic and partition.

        If no folder can have that name, returns None and adds a problem.
        """
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            topic = ""
        is_name = topic not in ("", ".", "..") and not {"/", "\0"} & set(topic)
        if is_name and len(raw) <= 255 and queue >= 0:
            return TopicPartition(topic, queue)
        row = walking.read_rows(replace(rows, count=1))[0]
        address = int(row[rules.ADDRESS])
        file = self._file_of(address)
        if int(row[rules.FLAGS]) & rules.IS_LIGHT:
            wrong = (
                f"records name the light queue {raw!r}, queue {queue}, which is not a valid "
                "folder name"
            )
            remedy = "dispatch skipped that queue and built everything else"
            problem = Problem(
                ProblemKind.UNSUPPORTED, wrong, file.path, address - file.start, remedy
            )
        else:
            wrong = (
                f"records name the topic {raw!r}, queue {queue}, which is not a valid folder name"
            )
            remedy = "dispatch skipped these records; no client can have sent them"
            problem = damaged(wrong, file.path, address - file.start, remedy)
        if problem not in self.report.problems:
            self.report.problems.append(problem)
        return None

    def _index_units(self, folder: str) -> Iterator[IndexUnit]:
        """The units of work for the index files to build, in order."""
        if not self.settings.has_index or self.last_record < 0:
            return
        old = self.index
        slots = old.slots or self.settings.index_slots or index_file.DEFAULT_SLOTS
        capacity = old.capacity or self.settings.index_entries or index_file.DEFAULT_ENTRIES
        index_file.index_bytes(slots, capacity)
        left = [(stretch, 0, self._counted(stretch, end)) for stretch, end in self.entries]
        left = [part for part in left if part[2]]
        newest = min(self.last_record, self.until - 1)
        path, count, name = old.path, old.count, old.name
        room = capacity - old.count if old.name else 0
        last_address, before = old.last_address, None
        # If the newest file is full, a broker creates the next file at the next record, even at a
        # record without a key.
        while left or (not room and newest > last_address):
            if not room:
                path, count, name, room = "", 1, self._index_name(name), capacity - 1
            taken: list[tuple[ScratchSlice, int, int]] = []
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

    def _counted(self, stretch: ScratchSlice, end: int) -> int:
        """The number of a piece's entries whose records are below ``until``."""
        if end <= self.until:
            return stretch.count
        _, places, _ = walking.read_entries(stretch, 0, stretch.count)
        return int(places.searchsorted(self.until))

    def _index_name(self, before: str) -> str:
        """The name for a new index file: the local time ``now_ms``, as in a broker.

        If the time is not above the name ``before``, returns the number after ``before``.
        """
        seconds, ms = divmod(self.report.now_ms, 1000)
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(seconds)) + f"{ms:03d}"
        return name if name > before else f"{int(before) + 1:017d}"

    def _build(self) -> list[tuple[BuildUnit, StagedIndexFiles]]:
        """Build the changed files. If queue offsets have a gap, build again up to the gap."""
        units = self._units()
        built = self.workers.build(units)
        if self.report.read_from > self.report.log_start and any(
            one.gap_at >= 0 or one.begins_late for one in built
        ):
            # A queue lacks units for earlier records although other queues have them, so its files
            # were lost. The whole log is read again.
            self.queued_from = self.read_from = self.report.log_start
            self.rows.clear()
            self.entries.clear()
            self.report.records, self.report.problems = 0, []
            self._walk()
            units, built = self._rebuild()
        gaps = [one for one in built if one.gap_at >= 0]
        if gaps:
            worst = min(gaps, key=lambda one: one.gap_at)
            wrong = f"records are missing from the log: it has {worst.gap}"
            self.bad = self._file_of(worst.gap_at), worst.gap_at, wrong
            self.until = self.report.log_end = min(self.until, worst.gap_at)
            units, built = self._rebuild()
        return list(zip(units, built, strict=True))

    def _rebuild(self) -> tuple[list[BuildUnit], list[StagedIndexFiles]]:
        trees.clear(self.root)
        units = self._units()
        return units, self.workers.build(units)

    # ------------------------------------------------------------------ what is missing

    def _may_install(
        self,
        built: Sequence[tuple[BuildUnit, StagedIndexFiles]],
        found: Mapping[tuple[QueueKind, TopicPartition], QueueState],
    ) -> bool:
        """Report damage and missing records. Returns whether the built files may be installed.

        ``found`` has the queues' states before the build. They include units beyond the log's end.
        """
        ahead = {
            name: offsets
            for (kind, name), state in found.items()
            if self._is_beyond(kind, state)
            if (offsets := self._listed(kind, name, self.until)) is not None
        }
        if self.bad is not None:
            self._report_damage(*self.bad, built, ahead, found)
            return not ahead
        proofs = []
        if ahead:
            proofs.append(
                "consume queues have units for later records: queue offsets "
                f"{_describe_queues(ahead)}"
            )
        if self.settings.has_index and self.index.last_address >= self.until:
            proofs.append(
                f"the index files have an entry for physical offset {self.index.last_address}"
            )
        checkpoint = dispatched.read_checkpoint(self.root)
        reached = max(checkpoint.confirm_offset, checkpoint.consume_queue_offset)
        if reached > self.until:
            proofs.append(f"the checkpoint has physical offset {reached}")
        if not proofs:
            return True
        place, position = self._commit_log, None
        if self.log and self.until >= self.log[-1].start:
            place, position = self.log[-1].path, self.until - self.log[-1].start
        message = (
            f"the commit log ends at physical offset {self.until}, but records after that were "
            f"lost: {'; '.join(proofs)}"
        )
        if self.goes_on:
            remedy = "--unclean was given: the lost records are given up, as when a broker starts"
            self.report.problems.append(recovered(message, place, position, remedy))
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
        give_up = (
            "if no copy has the missing records, give them up with --unclean, as a broker does "
            "when it starts"
        )
        self._report_log_damage(message, damage, is_changed=False, what_else=give_up)
        return False

    def _listed(
        self, kind: QueueKind, name: TopicPartition, start: int, end: int = NO_END
    ) -> tuple[int, int] | None:
        return beyond.listed(
            reading.read_queue(self.root, StoreFolder(kind), name), kind, start, end
        )

    def _report_damage(
        self,
        file: MappedFile,
        address: int,
        text: str,
        built: Sequence[tuple[BuildUnit, StagedIndexFiles]],
        ahead: Mapping[TopicPartition, tuple[int, int]],
        found: Mapping[tuple[QueueKind, TopicPartition], QueueState],
    ) -> None:
        """Report the damaged record, the lost offsets, and the records that a cut would remove."""
        rest = beyond.survey(self.log, address)
        there = {}
        for kind, name in found:
            if name in ahead:
                offsets = self._listed(kind, name, address, rest.first if rest.records else NO_END)
                if offsets is not None:
                    there[name] = offsets
        ends = {
            unit.name: one.next_number
            for unit, one in built
            if isinstance(unit, QueueUnit)
            and unit.kind is QueueKind.ORDINARY
            and one.next_number >= 0
        }
        lost = beyond.lost_between(there, ahead, rest, ends)
        which = "Lastwrite cannot determine which queue offsets are lost"
        if lost:
            which = f"queue offsets {beyond.describe_ranges(lost)} are lost"
        message = f"{text}; the damage begins at physical offset {address}; {which}"
        if rest.records:
            message += (
                f"; from physical offset {rest.first} {rest.records:,} undamaged records "
                f"follow, queue offsets {_describe_queues(rest.queues)}"
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
        give_up = (
            f"or give up the log from the damage on with lastwrite cut STORE --at {address}, "
            "which keeps the removed files for --undo"
        )
        self._report_log_damage(message, damage, is_changed=not ahead, what_else=give_up)

    def _report_log_damage(
        self, message: str, damage: LogDamage, *, is_changed: bool, what_else: str
    ) -> None:
        done = (
            "everything before the damage was dispatched" if is_changed else "nothing was changed"
        )
        save = (
            "copy the store before you start a broker on it: the broker may truncate the log "
            "at this record"
        )
        remedy = f"{done}; {save}; then restore the file from a replica; {what_else}"
        self.report.problems.append(damaged(message, damage.path, damage.position, remedy))
        self.report.damage = damage

    def _leave(
        self,
        built: Sequence[tuple[BuildUnit, StagedIndexFiles]],
        found: Mapping[tuple[QueueKind, TopicPartition], QueueState],
    ) -> None:
        """Discard the built files, and report the queues as damaged."""
        trees.clear(self.root)
        for unit, _ in built:
            if isinstance(unit, IndexUnit):
                continue
            state = found.get((unit.kind, unit.name))
            self.report.queues.append(
                QueueReport(
                    kind=unit.kind,
                    topic=unit.name.topic,
                    queue=unit.name.partition,
                    status=DispatchStatus.DAMAGED,
                    next_offset=state.next_number if state is not None else None,
                )
            )

    # ------------------------------------------------------------------ install

    def _install(self, built: Sequence[tuple[BuildUnit, StagedIndexFiles]]) -> None:
        """Install all built files in the store, and add the changes to the report."""
        changes = {tree: trees.TreeChange() for tree in trees.ORDER}
        for unit, one in built:
            self.report.bytes_written += one.bytes_written
            if isinstance(unit, IndexUnit):
                changes[names.INDEX].new.update(one.files)
                self.report.index_entries += one.added
                self.report.index_files.append(unit.name)
                continue
            change = changes[unit.kind]
            change.new.update(one.files)
            if one.is_anew:
                change.removed_folders.add(reading.queue_folder("", unit.name))
            self._report(unit.kind, unit.name, one)
        changes[names.INDEX].removed.update(self.stale_indexes)
        for (kind, name), state in self.queues.items():
            folder = reading.queue_folder("", name)
            changes[kind].removed.update(os.path.join(folder, spare) for spare in state.spare)
        trees.install(self.root, changes, self._commit_log, self.installed)

    def _report(self, kind: QueueKind, name: TopicPartition, one: StagedIndexFiles) -> None:
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
            folder = reading.queue_folder(os.path.join(self.root, StoreFolder.COMPACTION_LOG), name)
            wrong = (
                f"{one.too_large} records are larger than a file of the compaction log, and "
                "were skipped"
            )
            remedy = (
                "a broker skips them too; raise compactionMappedFileSize before the compaction "
                "log is created"
            )
            self.report.problems.append(
                Problem(ProblemKind.UNSUPPORTED, wrong, folder, None, remedy)
            )


def _common_size(sizes: Mapping[str, T], remedy: str) -> T:
    """The file size that all queues have in common.

    ``sizes`` has the size for one file of each queue.

    Raises:
        CorruptLog: the sizes differ.
    """
    ((common, count), *others) = Counter(sizes.values()).most_common()
    if others:
        path = next(path for path, size in sizes.items() if size != common)
        wrong = (
            f"this queue has files of {_bytes(sizes[path])} bytes, and {count} queues have "
            f"files of {_bytes(common)} bytes"
        )
        raise CorruptLog(wrong, None, path, remedy)
    return common


def _bytes(size: object) -> str:
    return " and ".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _describe_queues(queues: Mapping[TopicPartition, tuple[int, int]]) -> str:
    return beyond.describe_ranges(beyond.ranges_of(queues, ""))


def _weight(unit: BuildUnit) -> int:
    if isinstance(unit, IndexUnit):
        return 20 * sum(count for _, _, count in unit.entries)
    each_bytes = 300 if isinstance(unit, LogUnit) else 20
    return each_bytes * sum(stretch.count for stretch in unit.rows)


def _results_or_raise(results: Sequence[T | FailedUnit[U]]) -> list[T]:
    """The results of the tasks. Raises the first error; no file has been installed by then."""
    sound = []
    for result in results:
        if isinstance(result, FailedUnit):
            error = result.error
            if isinstance(error, LogError):
                raise error
            raise LogError(f"{type(error).__name__}: {error}")
        sound.append(result)
    return sound
