"""``inspect`` of Kafka's logs: counts and verifies, without Spark and without changing anything.

Every batch is read and its checksum verified, a chunk at a time. After damage in one batch or
partition, the next batches and partitions are still inspected.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from lastwrite.engine.context import LOOKING, Context, Options
from lastwrite.engine.rules.ranges import cleanable_range
from lastwrite.engine.system import System
from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.explanation.record_states import count_keys
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.format import names
from lastwrite.kafka.format.names import KafkaFileKind
from lastwrite.kafka.look.inspection import FileInspection, InspectReport, PartitionInspection
from lastwrite.kafka.look.problems import kafka_problem_of
from lastwrite.kafka.look.rows import index_rows, side_file_rows
from lastwrite.kafka.look.single import SingleFile, identify, reject_beyond, segment_of
from lastwrite.kafka.look.survey import Surveyor
from lastwrite.kafka.rules.producers import active
from lastwrite.kafka.store import lock, partitions, tiered
from lastwrite.kafka.store import log_dir as store
from lastwrite.kafka.store.checkpoints import read_offsets
from lastwrite.kafka.system import KAFKA, KafkaSystem
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.reports.settings import OverriddenSetting
from lastwrite.spark.inline import Inline, choose_spark
from lastwrite.spark.use import exchange_for, runner_for
from lastwrite.storage.quarantine import read_quarantine
from lastwrite.storage.reading import read_small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PROBLEMS = 20  # most problems listed per partition; further problems are only counted
_NO_END = (1 << 63) - 1


def inspect_logs(
    system: System,
    folders: Sequence[str],
    report: InspectReport,
    options: Options,
    memory: str | int | None,
    spark: SparkSession | Inline | None,
    progress: Progress,
) -> None:
    """Add the partitions in ``folders`` to ``report``. ``system`` resolves their settings.

    Raises:
        LogHeld: a process has locked partitions of a root. No partition was read.
    """
    job = _LogInspection(options, memory, system, spark, progress)
    roots: dict[str, list[TopicPartition]] = {}
    for folder in folders:
        roots.setdefault(partitions.root_of(folder), []).append(partitions.partition_name(folder))
    for root, inside in sorted(roots.items()):
        lock.reject_if_locked(root, inside)
        report.problems += root_problems(root)
    report.partitions += job.partitions(folders)
    report.notes += job.notes.values()
    try:
        aside = {root: read_quarantine(root, system.notes) for root in roots}
    except CorruptLog as error:
        report.problems.append(kafka_problem_of(error, folders[0]))
        return
    for folder, found in zip(folders, report.partitions, strict=True):
        entries = aside[partitions.root_of(folder)]
        found.uncleanable = entries.get(partitions.partition_name(folder))


def inspect_file(
    path: str, report: InspectReport, memory: str | int | None, progress: Progress
) -> None:
    """Inspect one file, and add the result to ``report``.

    Raises:
        NotALog: ``path`` is not a file of a Kafka log.
        LogHeld: a process has locked the file's log root.
    """
    file = identify(path)
    lock.reject_if_locked(file.root)
    reject_beyond(file)
    report.files.append(_LogInspection(LOOKING, memory, KAFKA, None, progress).file(file))


class _LogInspection:
    """One inspection: its options, and the inspection of each log."""

    def __init__(
        self,
        options: Options,
        memory: str | int | None,
        system: System,
        spark: SparkSession | Inline | None,
        progress: Progress,
    ) -> None:
        assert isinstance(system, KafkaSystem)
        self._settings, self._now_ms = options.config, options.now_ms
        self._include_active = options.include_active
        self._system = system
        self._spark = spark
        self._progress = progress
        self.notes: dict[tuple[str, str], OverriddenSetting] = {}
        if memory is None:
            self._surveyor = Surveyor()
        else:
            from lastwrite.spark.memory import parse_bytes

            self._surveyor = Surveyor(parse_bytes(memory))

    def partitions(self, folders: Sequence[str]) -> list[PartitionInspection]:
        logs: dict[str, PartitionLog] = {}
        unreadable: dict[str, PartitionInspection] = {}
        for folder in folders:
            try:
                logs[folder] = self._read(folder)
            except (CorruptLog, UnsupportedFormat) as error:
                unreadable[folder] = self._unreadable(folder, error)
        self._progress.stage("inspect", sum(log.size_bytes for log in logs.values()))
        return [
            beside_a_broker.read_again(logs[folder], self._read, self._partition)
            if folder in logs
            else unreadable[folder]
            for folder in folders
        ]

    def _read(self, folder: str) -> PartitionLog:
        """List a partition's log.

        The segments of a tier are followed by the segments in the log roots.
        """
        log = self._system.read(folder) if tiered.is_tier(folder) else store.read_partition(folder)
        return self._system.judged(log, self._settings)

    def _unreadable(self, folder: str, error: LogError) -> PartitionInspection:
        name = partitions.partition_name(folder)
        problem = kafka_problem_of(error, folder)
        return PartitionInspection(
            topic=name.topic,
            partition=name.partition,
            folder=folder,
            problems=[problem],
            problem_count=1,
        )

    def _partition(self, log: PartitionLog) -> PartitionInspection:
        found = PartitionInspection(
            topic=log.name.topic,
            partition=log.name.partition,
            folder=log.folder,
            bytes=log.size_bytes,
            log_start=log.log_start,
            high_watermark=log.high_watermark,
            end_offset=log.end_offset,
            checkpoint=log.checkpoint,
            last_stable_offset=log.last_stable_offset,
        )
        note = _ProblemCollector(found)
        for problem in log.problems:
            note(problem)
        self._surveyor.new_partition()
        last = len(log.segments) - 1
        for number, segment in enumerate(log.segments):
            end = log.segments[number + 1].base_offset if number < last else _NO_END
            is_active = number == last and not log.is_closed
            seen = self._surveyor.survey(segment, end, is_active, note, self._progress.advance)
            found.segments.append(seen)
            found.contents.add(seen.contents)
        found.producers = self._surveyor.producer_count
        found.transactions = self._surveyor.transactions.result
        found.open_transactions = self._surveyor.transactions.open
        if log.segments:
            self._judge(log, found)
        if not found.is_damaged:
            with (
                runner_for(choose_spark(self._spark), "", None, {}, NoProgress()) as (runner, plan),
                closing(exchange_for(runner)) as way,
            ):
                found.keys = count_keys(
                    Context(
                        self._system, way, runner.workers, plan.limits(), LOOKING, NoProgress()
                    ),
                    log,
                )
        return found

    def _judge(self, log: PartitionLog, found: PartitionInspection) -> None:
        """Add a log's dirty range to its inspection, and whether a compaction is due now."""
        settings = self._system.settings(log.folder, self._settings).config
        found.active_producers = len(
            active(log.producers, self._now_ms, settings.producer_id_expiration_ms)
        )
        found.expired_producers = len(log.producers) - found.active_producers
        range_ = cleanable_range(log, settings, self._now_ms, self._include_active)
        found.first_dirty_offset = range_.first_dirty
        found.first_uncleanable_offset = range_.first_uncleanable
        found.cleanable_bytes = range_.cleanable_bytes
        found.dirty_ratio = range_.ratio
        found.dirty_bytes = sum(
            segment.size_bytes
            for number, segment in enumerate(log.segments)
            if log.segment_end(number) > range_.first_dirty
        )
        found.is_due, found.reason = range_.eligible, range_.reason
        found.settings = self._system.settings_of(log.folder, self._settings)
        self.notes |= {
            (n.topic, n.name): n for n in self._system.outvoted(log.folder, self._settings)
        }
        alone = self._system.why_unmanaged(log.folder, self._settings)
        if alone is not None:
            found.is_due, found.reason = False, str(alone)

    def file(self, file: SingleFile) -> FileInspection:
        """Inspect one file. Segments are read completely; in other files, entries are counted."""
        kind = file.name.kind
        found = FileInspection(
            file=file.path,
            kind=_kind_of(file),
            bytes=os.path.getsize(file.path),
            topic=file.partition.topic if file.partition else None,
            partition=file.partition.partition if file.partition else None,
        )
        if kind in (KafkaFileKind.LOG, KafkaFileKind.METADATA_SNAPSHOT):
            segment = segment_of(file)
            self._progress.stage("inspect", segment.size_bytes)
            found.segment = self._surveyor.survey(
                segment, _NO_END, False, found.problems.append, self._progress.advance
            )
            return found
        try:
            if kind in (
                KafkaFileKind.INDEX,
                KafkaFileKind.TIME_INDEX,
                KafkaFileKind.TRANSACTION_INDEX,
            ):
                rows = index_rows(read_small(file.path), kind, file.base_offset, file.partition)
            else:
                rows = side_file_rows(file)
            found.entries = sum(1 for _ in rows)
        except LogError as error:
            found.problems.append(kafka_problem_of(error, file.path))
        return found


class _ProblemCollector:
    """Counts a partition's problems, one for each position, and lists the first of them.

    Problems without a position differ by their message, as the gaps of an archive do.
    """

    def __init__(self, found: PartitionInspection) -> None:
        self._found = found
        self._seen: set[tuple[str, int | str]] = set()

    def __call__(self, problem: Problem) -> None:
        place = (
            problem.path,
            problem.message if problem.position is None else problem.position,
        )
        if place in self._seen:
            return
        self._found.problem_count += 1
        damage_is_named = self._found.is_damaged
        if len(self._found.problems) < MOST_PROBLEMS:
            self._seen.add(place)
            self._found.problems.append(problem)
        elif problem.kind is ProblemKind.DAMAGED and not damage_is_named:
            self._found.problems[-1] = problem  # damage replaces a less severe problem


def root_problems(root: str) -> list[Problem]:
    """A problem for each damaged checkpoint file of a log root."""
    problems: list[Problem] = []
    for name in (
        names.CLEANER_OFFSETS,
        names.HIGH_WATERMARKS,
        names.LOG_STARTS,
        names.RECOVERY_POINTS,
    ):
        try:
            read_offsets(root, name)
        except LogError as error:
            problems.append(kafka_problem_of(error, os.path.join(root, name)))
    return problems


def _kind_of(file: SingleFile) -> str:
    return file.root_file or file.name.kind.value.removeprefix(".")
