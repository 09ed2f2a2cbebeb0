"""Partitions served from a copy: converted partitions of RocketMQ and Pulsar, compacted views.

A copy is created when a client first requests the partition, and updated in the background. Clients
read the previous copy until the next is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from lastwrite.archive.layout import partition_address
from lastwrite.archive.partition_store import is_partition
from lastwrite.commands.compact import compact
from lastwrite.encoding.compression import Codec
from lastwrite.engine.system import System
from lastwrite.errors import CommitConflict, CorruptLog, LogError
from lastwrite.kafka.jobs.encode import fetch_batches
from lastwrite.kafka.look.served import stretch_from
from lastwrite.kafka.store import log_dir
from lastwrite.kafka.store.archived import SYSTEM, is_archived
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from lastwrite.reports.compaction import Status
from lastwrite.rows.system import rows_of
from lastwrite.server.catalog import ServedPartition, ServedSource
from lastwrite.server.copy_store import CopyStore
from lastwrite.server.files import Files
from lastwrite.spark.inline import INLINE
from lastwrite.storage.file_state import state_of
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import TRIES

_FORM = 1  # version of the copy format; copies of other versions are not used
_MEMORY = "512m"  # memory limit of each compaction


class CopyPolicy(NamedTuple):
    """The settings that all copies share.

    A compacted copy is created again when its dirty ratio exceeds ``dirty_ratio``.
    """

    copies: CopyStore
    threads: ThreadPoolExecutor
    codec: Codec
    is_compacted: bool  # whether topics that are not compacted are served as compacted copies
    config: Mapping[str, object]  # settings of the compactions
    notify: Callable[[str], None]
    dirty_ratio: float = 0.5

    def partition(
        self, name: TopicPartition, folder: str, source: ServedSource, files: Files
    ) -> ServedPartition:
        """Create the object that serves a partition of ``source``."""
        system = source.system
        assert isinstance(system, System)
        found = ServedPartition(name, folder, files, self.notify, self.config)
        if system.name != SYSTEM:
            found = ConvertedPartition(name, folder, files, self, system.name)
        return CompactedPartition(found, files, self) if self.is_compacted else found


class MaterializedPartition(ServedPartition):
    """A partition that is served from a copy."""

    def __init__(self, name: TopicPartition, folder: str, files: Files, making: CopyPolicy) -> None:
        super().__init__(name, folder, files, making.notify, making.config)
        self._policy = making
        self._job: Future[object] | None = None

    def refresh(self) -> bool:
        """Copy a changed partition in the background. Returns whether a new copy is complete."""
        if self._log is None:
            return super().refresh()
        job, self._job = self._job, None
        if job is None:
            if self.is_unchanged():
                return False
            job = self._policy.threads.submit(self.reread)
        if not job.done():
            self._job = job
            return False
        job.result()
        return True


class ConvertedPartition(MaterializedPartition):
    """A partition of RocketMQ or Pulsar, served from a converted copy.

    ``name`` is its name for Kafka clients.
    """

    is_of_kafka = False

    def __init__(
        self, name: TopicPartition, folder: str, files: Files, making: CopyPolicy, system: str
    ) -> None:
        super().__init__(name, folder, files, making)
        self._rows = rows_of(system)

    @property
    def epoch(self) -> int:
        return 0

    @property
    def topic_id(self) -> str | None:
        return None

    @property
    def settings_folder(self) -> str:
        return self.log().log.folder

    def peek(self) -> None:
        """Do nothing: responses before the first Fetch need no data of the partition."""

    def listed(self) -> PartitionLog:
        """Update the copy, and return it as a partition's log.

        Raises:
            LogError: the partition cannot be read, or the copy cannot be written.
        """
        for tries in range(1, TRIES + 1):
            try:
                return self._copied()
            except CommitConflict:  # a compaction or a broker changed the partition during the copy
                if tries == TRIES:
                    raise
        raise AssertionError("the last try returns")

    def _copied(self) -> PartitionLog:
        (log,) = self._rows.logs_of(self.folder, is_compacted=True, config=self._config)
        self._log_gaps(log)
        copies = self._policy.copies
        place = copies.path_of(_FORM, self._rows.name, self._policy.codec.label, *_history(log))
        folder = partition_address(place, SYSTEM, self.name.topic, self.name.partition)
        try:
            fetch_batches(self._rows, log, folder, self._policy.codec)
        except CommitConflict:
            raise
        except LogError:
            if not os.path.isdir(place):
                raise
            copies.remove(place)  # create the copy again, because it may be damaged
            fetch_batches(self._rows, log, folder, self._policy.codec)
        copies.used(place)
        return log_dir.read_partition(folder)

    def state(self) -> Hashable:
        if is_partition(self.folder):
            return self.manifest_state()
        try:
            with os.scandir(self.folder) as entries:
                return tuple(sorted((each.name, state_of(each.path)) for each in entries))
        except OSError:
            return None


def _history(log: PartitionLog) -> tuple[object, ...]:
    """Values that stay equal while a log only grows. Any other change of the log changes them."""
    first = log.segments[0].first_batch_timestamp_ms if log.segments else None
    where = log.folder if is_address(log.folder) else os.path.abspath(log.folder)
    return where, log.log_start, log.checkpoint, first


class _Copy(NamedTuple):
    """A compacted copy. ``checkpoint`` is the cleaner checkpoint of its source."""

    path: str
    log: PartitionLog
    checkpoint: int | None

    @property
    def end(self) -> int:
        """The offset below which the copy has compacted records."""
        return self.log.checkpoint or 0


class CompactedPartition(MaterializedPartition):
    """A partition served as a compacted copy up to some offset, then its uncompacted tail.

    Records keep their offsets. The copy is created again when the tail exceeds the dirty ratio, and
    after a compaction of the log itself. If that compaction removed tombstones, the new copy lacks
    these tombstones and the records that they delete, too.
    """

    def __init__(self, inner: ServedPartition, files: Files, making: CopyPolicy) -> None:
        super().__init__(inner.name, inner.folder, files, making)
        self.is_of_kafka = inner.is_of_kafka
        self._inner = inner
        # states of the closed segments after the copy's end, by base offset
        self._tail: dict[int, Hashable] = {}
        self._copy: _Copy | None = None
        # state of the log when no copy could be created for it; None if there was no such state
        self._uncompacted_state: Hashable = None

    @property
    def epoch(self) -> int:
        return self._inner.epoch

    @property
    def topic_id(self) -> str | None:
        return self._inner.topic_id

    @property
    def settings_folder(self) -> str:
        return self._inner.settings_folder

    @property
    def is_read(self) -> bool:
        return self._inner.is_read

    def peek(self) -> None:
        self._inner.peek()

    def listed(self) -> PartitionLog:
        """The partition's log for clients: the compacted copy, then the tail.

        Raises:
            LogError: the log cannot be read, or the copy cannot be written.
        """
        log = self._inner.reread().log
        if max(log.checkpoint or 0, log.log_start) >= log.closed_end and log.checkpoint is not None:
            return log  # no copy is needed, because the log itself is compacted
        if self._copy is not None and self._is_valid(self._copy, log):
            served = composed(self._copy.log, log)
            if self._dirty_ratio(served, self._copy.end) <= self._policy.dirty_ratio:
                self._policy.copies.used(self._copy.path)
                return served
        identity = tuple(map(_state_of, log.segments))
        if identity == self._uncompacted_state:
            return log
        try:
            self._copy, self._tail = self._create_copy(log, identity), {}
        # the log changed during the compaction; the next check tries again
        except CommitConflict as error:
            self._policy.notify(f"{self.name} is served uncompacted for now: {error.problem}")
            self._copy = None
            return log
        if self._copy is None:
            self._uncompacted_state = identity
            return log
        self._policy.copies.used(self._copy.path)
        # the log grew between the two reads, so that the copy ends after ``log``
        if self._copy.end > log.high_watermark:
            log = self._inner.reread().log
            if not self._is_valid(self._copy, log):
                return log
        return composed(self._copy.log, log)

    def state(self) -> Hashable:
        return self._inner.state()

    def _is_valid(self, copy: _Copy, log: PartitionLog) -> bool:
        """Whether the copy exists, and the log was not compacted after the copy was created."""
        is_there = os.path.isdir(copy.path)
        if not is_there or copy.checkpoint != log.checkpoint or log.end_offset < copy.end:
            return False
        # A compaction of an archive always changes the checkpoint. The checkpoints are equal here,
        # so the copy is valid.
        if is_archived(log.folder):
            return True
        closed = (each for each in log.segments if copy.end <= each.base_offset < log.closed_end)
        states = {each.base_offset: _state_of(each) for each in closed}
        is_same = all(states.get(base) == was for base, was in self._tail.items())
        self._tail = states
        return is_same

    @staticmethod
    def _dirty_ratio(served: PartitionLog, end: int) -> float:
        """The share of a log's bytes that are after the end of the copy."""
        behind = sum(each.size_bytes for each in served.segments if each.base_offset >= end)
        return behind / max(served.size_bytes, 1)

    def _create_copy(self, log: PartitionLog, identity: Hashable) -> _Copy | None:
        """Create a copy of the current log. None if the log is not to be compacted."""
        copies, name = self._policy.copies, self.name
        place = copies.path_of(_FORM, "compacted", log.folder, log.checkpoint, identity)
        if not os.path.isdir(place):
            report = compact(
                log.folder,
                to=copies.temporary_path(place),
                config={**self._policy.config, "min.cleanable.dirty.ratio": 0},
                topic_config=[(name.topic, "cleanup.policy", "compact")],
                include_active=log.open_as is None,
                memory=_MEMORY,
                spark=INLINE,
            )
            found = report.partitions[0]
            if found.status is Status.SKIPPED:
                self._policy.notify(f"{name} is served uncompacted: {found.reason}")
                return None
            if found.status is Status.FAILED:
                raise CommitConflict(found.reason or found.status, path=log.folder)
            if found.status is Status.DAMAGED:
                raise CorruptLog(
                    f"{name} cannot be compacted: {found.reason or found.status}",
                    path=log.folder,
                    remedy="serve the topic without --compacted",
                )
            copies.install(place)
        (folder,) = find_partitions(place)
        return _Copy(place, log_dir.read_partition(folder), log.checkpoint)


def _state_of(segment: Segment) -> Hashable:
    return segment.path, segment.size_bytes, segment.mtime_ns, segment.etag


def composed(copy: PartitionLog, log: PartitionLog) -> PartitionLog:
    """The copy's segments up to the copy's end offset, followed by the log's own segments."""
    end = copy.checkpoint or 0
    segments = [each for each in copy.segments if each.base_offset < end]
    for n, each in enumerate(log.segments):
        if each.base_offset >= end:
            segments.append(each)
        elif log.segment_end(n) > end:
            rest = stretch_from(each, end, log.segment_end(n))
            segments += [rest] if rest is not None else []
    aborted = {*copy.aborted, *log.aborted}
    return replace(
        log,
        segments=tuple(segments),
        aborted=tuple(sorted(aborted, key=lambda each: each.last_offset)),
    )
