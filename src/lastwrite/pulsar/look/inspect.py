"""``inspect`` of Pulsar topic folders: reads and counts every entry, and checks the metadata."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from lastwrite.engine.context import LOOKING, Context
from lastwrite.engine.system import System, system_named
from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.explanation.record_states import count_keys
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.pulsar.format.entry import Entry, messages_of
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.look.count import count_ledger
from lastwrite.pulsar.look.files import index_rows, walk_file
from lastwrite.pulsar.look.inspection import (
    EntryCounts,
    LedgerInspection,
    PulsarFile,
    PulsarReport,
    TopicInspection,
)
from lastwrite.pulsar.look.rows import VALUE_LIMIT_BYTES, compression_of
from lastwrite.pulsar.look.walk import WalkedEntry, checksum_problem, walk
from lastwrite.pulsar.store.manifest import CompactionManifest
from lastwrite.pulsar.store.place import PulsarFileKind, is_topic_folder, kind_of, name_of
from lastwrite.pulsar.store.reading import LedgerMoved, LedgerReader
from lastwrite.pulsar.store.topic import Ledger, TopicFolder, find_topics, list_topic, partition_of
from lastwrite.pulsar.store.view import read_view
from lastwrite.pulsar.store.watching import NOTES
from lastwrite.spark.inline import Inline, choose_spark
from lastwrite.spark.use import exchange_for, runner_for
from lastwrite.storage.choice import Topics
from lastwrite.storage.problems import problem_of
from lastwrite.storage.quarantine import read_quarantine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PROBLEMS = 20  # maximum number of listed problems per topic; further problems are only counted


def inspect_topics(
    path: str,
    topic: Topics,
    partition: int | None,
    config: Mapping[str, object] | None,
    now_ms: int | None,
    progress: Progress | None,
    spark: SparkSession | Inline | None = None,
) -> PulsarReport:
    """Read the topic folders at ``path`` completely, and report on them.

    Raises:
        NotALog, InvalidConfig: before the first read.

    Damage is not raised: it is in the report, with file and byte.
    """
    began = time.monotonic()
    system = system_named("pulsar")
    settings = dict(config or {})
    system.check_config(settings)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    report = PulsarReport(path=path, now_ms=now)
    progress = progress or NoProgress()
    kind = kind_of(path)
    if kind is not None and not is_topic_folder(os.path.dirname(os.path.abspath(path))):
        report.files.append(inspect_file(path, kind, progress))
        report.seconds = round(time.monotonic() - began, 3)
        return report
    listed = [(folder, _listed(folder)) for folder in find_topics(path, topic, partition)]
    topics = [found for _, found in listed if isinstance(found, TopicFolder)]
    progress.stage("inspect", sum(each.size_bytes for one in topics for each in one.all_ledgers))
    for folder, found in listed:
        if isinstance(found, TopicFolder):
            report.partitions.append(
                _TopicInspection(found, progress).run(system, settings, now, spark)
            )
        else:
            name = name_of(folder)
            unread = TopicInspection(topic=name.base, partition=name.partition, folder=folder)
            unread.problems, unread.problem_count = [problem_of(found, folder)], 1
            report.partitions.append(unread)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def inspect_file(path: str, kind: PulsarFileKind, progress: Progress) -> PulsarFile:
    """The report on a single file: counts of its entries, and their ledgers."""
    found = PulsarFile(file=path, kind=str(kind), bytes=os.path.getsize(path))
    progress.stage("inspect", found.bytes)
    if kind is PulsarFileKind.INDEX_OBJECT:
        try:
            found.entries = sum(1 for _ in index_rows(path))
        except LogError as error:
            found.problems.append(problem_of(error, path))
        return found
    counts = found.contents = EntryCounts()
    ledgers: Counter[int] = Counter()
    for entry, position, size, _, stored in walk_file(path, kind, found.problems.append):
        if entry.crc_holds is False:
            found.problems.append(problem_of(checksum_problem(entry, path, position), path))
            continue
        ledgers[stored.ledger] += 1
        try:
            count_entry(counts, entry, size)
        except UnsupportedFormat as error:
            found.problems.append(problem_of(error, path, position))
    found.entries = counts.entries
    found.details = {"ledgers": {str(ledger): count for ledger, count in sorted(ledgers.items())}}
    return found


def _listed(folder: str) -> TopicFolder | LogError:
    try:
        return list_topic(folder)
    except LogError as error:
        return error


class _TopicInspection:
    """Inspects one topic and collects the results in ``found``."""

    def __init__(self, topic: TopicFolder, progress: Progress) -> None:
        self._topic = topic
        self._progress = progress
        name = topic.name
        self.found = TopicInspection(topic=name.base, partition=name.partition, folder=topic.folder)
        self._seen: set[tuple[str, int | None, str]] = set()

    def note(self, problem: Problem) -> None:
        """Add a problem, unless it was added before.

        All problems are counted, and the first problems are listed. Damage replaces a listed minor
        problem.
        """
        mark = (problem.path, problem.position, problem.message)
        if mark in self._seen:
            return
        self._seen.add(mark)
        found, is_damage_named = self.found, self.found.is_damaged
        found.problem_count += 1
        if len(found.problems) < MOST_PROBLEMS:
            found.problems.append(problem)
        elif problem.kind is ProblemKind.DAMAGED and not is_damage_named:
            found.problems[-1] = problem

    def run(
        self,
        system: System,
        settings: Mapping[str, object],
        now_ms: int,
        spark: SparkSession | Inline | None,
    ) -> TopicInspection:
        topic, found = self._topic, self.found
        for problem in topic.problems:
            self.note(problem)
        horizon = topic.horizon
        try:
            found.uncleanable = read_quarantine(topic.folder, NOTES).get(partition_of(topic.name))
        except CorruptLog as error:
            self.note(problem_of(error, topic.folder))
        found.horizon = None if horizon is None else str(horizon)
        found.manifest = None if topic.manifest is None else json.loads(topic.manifest.encode())
        for ledger in topic.ledgers:
            seen = self._ledger(ledger, False)
            found.ledgers.append(seen)
            found.contents.add(seen.contents)
            below = _bytes_below(ledger, horizon, seen)
            found.backlog_below_bytes += below
            found.dirty_bytes += seen.contents.bytes - below
        if topic.ledgers:
            found.first_id = str(Position(topic.ledgers[0].id, 0))
            found.last_id = str(Position(topic.ledgers[-1].id, topic.ledgers[-1].entries - 1))
        if topic.compacted is not None and topic.manifest is not None:
            found.compacted = self._compacted(topic.manifest, topic.compacted)
        found.bytes = sum(ledger.size_bytes for ledger in topic.all_ledgers)
        found.other_files = sorted(os.path.basename(ledger.path) for ledger in topic.strays)
        self._last_ids()
        self._judge(system, settings, now_ms, spark)
        return found

    def _ledger(self, ledger: Ledger, is_compacted: bool) -> LedgerInspection:
        seen = LedgerInspection(
            ledger=ledger.id,
            file=os.path.basename(ledger.path),
            file_bytes=ledger.size_bytes,
            blocks=len(ledger.index.blocks),
            is_indexed=True,
        )
        counted = count_ledger(ledger, is_compacted)
        if counted is not None:
            seen.contents = counted.contents
            if ledger.entries:
                seen.first_entry, seen.last_entry = 0, ledger.entries - 1
                seen.first_id, seen.last_id = str(counted.first), str(counted.last)
        else:
            self._walk(ledger, is_compacted, seen)
        self._progress.advance(ledger.size_bytes)
        return seen

    def _walk(self, ledger: Ledger, is_compacted: bool, inspection: LedgerInspection) -> None:
        """Count a ledger entry by entry, because it is damaged or the kernels do not support it."""
        last: Position | None = None
        try:
            for each in walk(LedgerReader(ledger), is_compacted, self.note):
                place = Position(each.entry.ledger, each.entry.entry)
                if inspection.first_entry is None:
                    inspection.first_entry, inspection.first_id = each.number, str(place)
                elif last is not None and place <= last:
                    wrong = CorruptLog(f"entry {place} follows entry {last}", each.position)
                    self.note(problem_of(wrong, ledger.path, remedy=RESTORE))
                inspection.last_entry, inspection.last_id, last = each.number, str(place), place
                self._count(inspection.contents, each, ledger.path)
        except CorruptLog as error:
            self.note(problem_of(error, ledger.path, remedy=RESTORE))

    def _count(self, counts: EntryCounts, each: WalkedEntry, path: str) -> None:
        entry = each.entry
        if entry.crc_holds is False:
            self.note(
                problem_of(checksum_problem(entry, path, each.position), path, remedy=RESTORE)
            )
            return
        try:
            count_entry(counts, entry, each.size)
        except UnsupportedFormat as error:
            self.note(problem_of(error, path, each.position, RESTORE))

    def _compacted(self, manifest: CompactionManifest, parts: Sequence[Ledger]) -> LedgerInspection:
        """Inspect the compacted ledger with all its parts, and compare it to its manifest."""
        seen = LedgerInspection(ledger=manifest.ledger, file=manifest.object, is_indexed=True)
        path = parts[0].path if parts else self._topic.folder
        for n, part in enumerate(parts):
            one = self._ledger(part, True)
            seen = one if n == 0 else _joined(seen, one)
        wrong = []
        if seen.last_id is not None and not self.found.is_damaged:
            first, last, messages = seen.first_id, seen.last_id, seen.contents.records
            if Position.parse(last) > manifest.horizon:
                wrong.append(f"entry {last} is beyond the compaction horizon {manifest.horizon}")
            if (first, last) != (str(manifest.from_), str(manifest.to)):
                by = f"but the manifest states {manifest.from_} to {manifest.to}"
                wrong.append(f"the ledger has the entries {first} to {last}, {by}")
            if messages != manifest.messages and not seen.contents.unreadable:
                wrong.append(
                    f"the ledger has {messages} messages, but the manifest states "
                    f"{manifest.messages}"
                )
        for message in wrong:
            self.note(problem_of(CorruptLog(message, path=path), path))
        return seen

    def _last_ids(self) -> None:
        """Find the last message ids, and the open and aborted transactions."""
        found = self.found
        try:
            view = read_view(self._topic.folder, False)
            found.open_transactions = view.open_transactions
            found.aborted_transactions = len(view.aborted)
            found.read_below = None if view.undecided is None else str(Position.of(view.undecided))
            found.last_message_id = view.last_message_id(False)
            found.last_compacted_message_id = view.last_message_id(True)
        except (LogError, LedgerMoved):
            return  # the damage was already reported

    def _judge(
        self,
        system: System,
        settings: Mapping[str, object],
        now_ms: int,
        spark: SparkSession | Inline | None,
    ) -> None:
        """Decide whether a compaction is due now, and count the distinct keys of the log."""
        if self.found.is_damaged:
            return
        try:
            log = system.read(self._topic.folder)
            decision = system.decide(log, settings, now_ms, False)
        except LogError as error:
            self.note(problem_of(error, self._topic.folder))
            return
        self.found.is_due, self.found.reason = decision.reason is None, decision.reason
        self.found.settings = system.settings_of(self._topic.folder, settings)
        with (
            runner_for(choose_spark(spark), "", None, {}, NoProgress()) as (runner, plan),
            closing(exchange_for(runner)) as way,
        ):
            context = Context(system, way, runner.workers, plan.limits(), LOOKING, NoProgress())
            self.found.keys = count_keys(context, log)


def _joined(inspection: LedgerInspection, part: LedgerInspection) -> LedgerInspection:
    """Add ``part``, the next part of a compacted ledger, to the inspection of the earlier parts."""
    inspection.contents.add(part.contents)
    inspection.file_bytes += part.file_bytes
    inspection.blocks = (inspection.blocks or 0) + (part.blocks or 0)
    if part.last_id is not None:
        entries = 0 if inspection.last_entry is None else inspection.last_entry + 1
        inspection.first_entry, inspection.last_entry = 0, entries + (part.last_entry or 0)
        inspection.first_id, inspection.last_id = inspection.first_id or part.first_id, part.last_id
    return inspection


def _bytes_below(ledger: Ledger, horizon: Position | None, inspection: LedgerInspection) -> int:
    """The approximate bytes of a ledger's entries up to the horizon.

    A ledger that contains the horizon counts in proportion to its entries up to the horizon.
    """
    if horizon is None or ledger.id > horizon.ledger or not ledger.entries:
        return 0
    if ledger.id < horizon.ledger:
        return inspection.contents.bytes
    return inspection.contents.bytes * min(horizon.entry + 1, ledger.entries) // ledger.entries


def count_entry(counts: EntryCounts, entry: Entry, size: int) -> None:
    """Add an entry of ``size`` bytes and its messages to ``counts``.

    Raises:
        UnsupportedFormat: an unknown codec.
    """
    meta = entry.metadata
    counts.entries += 1
    counts.bytes += size
    counts.formats["no checksum" if entry.checksum is None else "checksum"] += 1
    counts.formats["broker metadata"] += entry.broker is not None
    if entry.is_marker:
        counts.markers += 1
        return
    counts.codecs[compression_of(meta)] += 1
    counts.batches += entry.is_batch
    counts.encrypted += entry.is_encrypted
    counts.chunks += meta.is_chunk
    counts.transactional += meta.transaction is not None
    counts.add_time(meta.publish_time)
    if not entry.is_readable_batch:
        counts.records += 1
        counts.keyless += meta.partition_key is None
        counts.tombstones += (
            meta.partition_key is not None and not entry.value_bytes and not meta.is_chunk
        )
        return
    try:
        messages = messages_of(entry, VALUE_LIMIT_BYTES)
    except UnsupportedFormat:
        raise
    except LogError:
        counts.unreadable += 1
        counts.records += 1
        return
    for message in messages:
        if message.compacted_out:
            counts.placeholders += 1
            continue
        counts.records += 1
        counts.keyless += message.key is None
        counts.tombstones += message.key is not None and not message.value
