"""``verify`` of a RocketMQ store.

Compaction logs are partitions. Their rows are compared like the rows of Kafka's logs
(``verification.logs``), and their records are decoded one by one (``look.records``). Rules for what
compaction may remove from a compaction log:

- a record up to the position (``position-checkpoint``) if a later record up to the position has its
  key; no record above the position, where the log is not compacted yet;
- a delete once its store time and ``delete.retention.ms`` have passed;
- a record without a key, unless ``keyless.messages`` is ``keep``;
- never the record with the highest queue offset.

The store's consume queues and index files are compared with its commit log, like in ``inspect``.
Queues without a compaction log are also partitions of the report.

Source: docs/formats/rocketmq.md; docs/decisions/rocketmq-rounds.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence

from lastwrite.errors import NotALog
from lastwrite.model.log import PartitionLog, Problem, ProblemKind
from lastwrite.reports.verification import (
    Checked,
    PartitionVerification,
    StoreVerification,
    VerifyReport,
    VerifyStatus,
)
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.look.inspect import inspect_beside
from lastwrite.rocketmq.look.inspection import IndexOfQueue, QueueInspection, StoreReport
from lastwrite.rocketmq.look.records import CompactionRecordReader
from lastwrite.rocketmq.look.rows import POSITIONS_REMEDY
from lastwrite.rocketmq.rules.settings import KEEP, RocketmqConfig
from lastwrite.rocketmq.store import lock
from lastwrite.rocketmq.store.archived import is_root
from lastwrite.rocketmq.store.live_files import is_open
from lastwrite.rocketmq.store.place import find_place
from lastwrite.rocketmq.store.positions import read_positions
from lastwrite.rocketmq.store.publish import live_tree
from lastwrite.rocketmq.store.reading import RocketmqFileKind, StoreFolder
from lastwrite.rocketmq.system import ROCKETMQ
from lastwrite.storage.problems import problem_of
from lastwrite.verification.invariants import Finding
from lastwrite.verification.logs import check_logs
from lastwrite.verification.proof import LogProof, Pair, ProofTools, ProvenRange, Question
from lastwrite.verification.units import ContentsUnit, RemovalRules

_COMPACTION = (StoreFolder.COMPACTION, StoreFolder.COMPACTION_LOG, StoreFolder.COMPACTION_INDEX)


class RocketmqProof(LogProof):
    """Verifies RocketMQ stores; implements ``LogProof``, which documents the methods."""

    system = ROCKETMQ
    noun = "queue"
    keyless_option = "--config keyless.messages=drop"
    damage_remedy = names.RESTORE_QUEUE
    has_start = False  # a queue begins at 0, even if its first record has a higher offset
    words = {
        Finding.LOST_TAIL: "a record is missing below the offset that compaction has reached",
        Finding.LOST_DELETE: (
            "a delete is missing although delete.retention.ms has not passed since its store time, "
            "and it was the last record of its key"
        ),
    }

    def find(self, question: Question) -> list[str]:
        try:
            return super().find(question)
        except NotALog:
            place = find_place(question.path)
            if question.before is not None or place.part in _COMPACTION:
                raise
            return []

    def is_of_one(self, path: str, folder: str) -> bool:
        return find_place(path).name is not None

    def check(
        self, pairs: Sequence[Pair], question: Question, means: ProofTools
    ) -> Iterator[PartitionVerification]:
        return check_logs(self, pairs, question, means)

    def reader(self, unit: ContentsUnit) -> CompactionRecordReader:
        return CompactionRecordReader(unit)

    def rules(self, log: PartitionLog, config: Mapping[str, object]) -> RemovalRules:
        keeps = RocketmqConfig.from_names(config).keyless_messages == KEEP
        return RemovalRules(max_keyless_ratio=0.0 if keeps else 1.0)

    def bounds(self, before: PartitionLog, after: PartitionLog) -> ProvenRange:
        """The offsets that compaction may have changed. No message above them may be missing."""
        return ProvenRange(0, max(before.checkpoint or 0, after.checkpoint or 0))

    def check_beside(
        self, question: Question, found: list[PartitionVerification], means: ProofTools
    ) -> StoreVerification | None:
        place = find_place(question.path)
        if place.root is not None:
            lock.reject_if_locked(place.root)
        store = StoreVerification(path=place.root or question.path)
        store.checked = VerifyReport(partitions=found).checked  # compaction logs
        if place.part not in _COMPACTION:
            report = inspect_beside(
                question.path, question.topic, question.partition, question.config, means.progress
            )
            _take(report, store, found)
            if question.topic is not None and not found:
                raise NotALog("the store has no such queue", path=question.path)
        if place.root is not None and place.file is None and not is_root(place.root):
            _check_positions(place.root, store)
        return store


def _take(
    report: StoreReport, store: StoreVerification, found: list[PartitionVerification]
) -> None:
    """Copy the results of ``inspect`` to ``store``, except the results for compaction logs."""
    log = report.commit_log
    if log is not None:
        store.segments, store.records = len(log.files), log.contents.records
        store.bytes = log.bytes
    store.index_files = len(report.index_files)
    parts = [part for queue in report.partitions for part in _indexes_of(queue)]
    alone = [one for one in report.files if one.kind == RocketmqFileKind.COMMIT_LOG]
    compacted = store.checked
    store.checked = Checked(
        records=compacted.records + store.records + sum(one.entries or 0 for one in alone),
        files=compacted.files
        + store.segments
        + sum(len(part.files) for part in parts)
        + len(report.index_files)
        + len(report.files),
        bytes=compacted.bytes
        + (0 if log is None else log.contents.bytes)
        + sum(one.details.get("log_bytes", 0) for one in alone),
    )
    for problem in report.problems:
        _note(store, problem)
    known = {partition.name: partition for partition in found}
    for queue in report.partitions:
        partition = known.get(queue.name)
        if partition is None:
            partition = _partition(queue)
            found.append(partition)
        for problem in queue.problems:
            _note(partition, problem)
    found.sort(key=lambda partition: partition.name)


def _partition(queue: QueueInspection) -> PartitionVerification:
    """A report on a queue without a compaction log: its messages and its units."""
    contents = queue.contents
    parts = _indexes_of(queue)
    return PartitionVerification(
        topic=queue.topic,
        partition=queue.partition,
        segments=sum(len(part.files) for part in parts),
        batches=contents.records,
        records=contents.messages,
        tombstones=contents.tombstones,
        keyless_records=contents.keyless,
        bytes=contents.bytes,
        log_start_offset=contents.first_offset or 0,
        end_offset=max((part.end_offset or 0 for part in parts), default=0),
    )


def _indexes_of(queue: QueueInspection) -> list[IndexOfQueue]:
    files = (queue.consume_queue, queue.batch_consume_queue, queue.extension)
    return [part for part in files if part is not None]


def _check_positions(root: str, store: StoreVerification) -> None:
    """Add a problem if the positions file or its backup cannot be read."""
    tree = live_tree(root)
    problem = read_positions(tree).problem
    if problem is not None and is_open(root):  # a broker may be writing the file
        time.sleep(0.1)
        problem = read_positions(tree).problem
    if problem is not None:
        path = os.path.join(tree, names.POSITION_CHECKPOINT)
        _note(store, problem_of(problem, path, remedy=POSITIONS_REMEDY))


def _note(found: PartitionVerification | StoreVerification, problem: Problem) -> None:
    """Add a problem if it is new."""
    place = os.path.realpath(problem.path), problem.position
    if any((os.path.realpath(one.path), one.position) == place for one in found.problems):
        return
    found.problems.append(problem)
    if problem.kind is ProblemKind.DAMAGED:
        found.raise_status(VerifyStatus.DAMAGED, str(problem))
    elif problem.kind is ProblemKind.UNSUPPORTED:
        found.raise_status(VerifyStatus.UNSUPPORTED, str(problem))


PROOF = RocketmqProof()
