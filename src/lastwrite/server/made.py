"""Partitions that are served from a copy that the server made: those of other systems, as Kafka's,
and those that nobody compacted, as if somebody had.

A copy is made when a client first asks for the partition, and brought up to date beside those who
read: they go on in what there was until the next is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from lastwrite.archive.layout import partition_address
from lastwrite.archive.place import is_partition
from lastwrite.commands.compact import compact
from lastwrite.encoding.compression import Codec
from lastwrite.engine.system import System
from lastwrite.errors import CommitConflict, CorruptLog, LogError
from lastwrite.kafka.jobs.encode import bring
from lastwrite.kafka.look.served import stretch_from
from lastwrite.kafka.store import log_dir
from lastwrite.kafka.store.archived import SYSTEM, is_archived
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from lastwrite.reports.compaction import Status
from lastwrite.rows.system import rows_of
from lastwrite.server.catalog import Partition, Source
from lastwrite.server.copies import Copies
from lastwrite.server.files import Files
from lastwrite.spark.inline import INLINE
from lastwrite.storage.file_state import state_of
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import TRIES

_FORM = 1  # of copies; another one is another copy
_MEMORY = "512m"  # of a round


class Making(NamedTuple):
    """What all copies are made by. ``dirty_ratio``: of a compacted one, from where on it is made
    anew.
    """

    copies: Copies
    threads: ThreadPoolExecutor
    codec: Codec
    is_compacted: bool  # what nobody has compacted is served as if somebody had
    config: Mapping[str, object]  # of rounds
    tell: Callable[[str], None]
    dirty_ratio: float = 0.5

    def partition(
        self, name: TopicPartition, folder: str, source: Source, files: Files
    ) -> Partition:
        """What serves a partition that the source has."""
        system = source.system
        assert isinstance(system, System)
        found = Partition(name, folder, files, self.tell)
        if system.name != SYSTEM:
            found = Encoded(name, folder, files, self, system.name)
        return Compacted(found, files, self) if self.is_compacted else found


class Made(Partition):
    """A partition of which a copy is served."""

    def __init__(self, name: TopicPartition, folder: str, files: Files, making: Making) -> None:
        super().__init__(name, folder, files, making.tell)
        self._making = making
        self._job: Future[object] | None = None

    def look(self) -> bool:
        """As of others; but what has changed is made beside those who read, and seen when it is
        there.
        """
        if self._log is None:
            return super().look()
        job, self._job = self._job, None
        if job is None:
            if self.is_as_seen():
                return False
            job = self._making.threads.submit(self.again)
        if not job.done():
            self._job = job
            return False
        job.result()
        return True


class Encoded(Made):
    """A partition of RocketMQ or Pulsar; ``name`` is what Kafka's clients call it."""

    is_of_kafka = False

    def __init__(
        self, name: TopicPartition, folder: str, files: Files, making: Making, system: str
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
        """Nothing has to be read to tell of it."""

    def listed(self) -> PartitionLog:
        """
        Raises:
            LogError: it cannot be read, or the copy not be written.
        """
        for tries in range(1, TRIES + 1):
            try:
                return self._copied()
            except CommitConflict:  # a round, or a broker, was faster
                if tries == TRIES:
                    raise
        raise AssertionError("the last try returns")

    def _copied(self) -> PartitionLog:
        (log,) = self._rows.logs_of(self.folder, is_compacted=True)
        self._tell_gaps(log)
        copies = self._making.copies
        place = copies.place(_FORM, self._rows.name, self._making.codec.label, *_history(log))
        folder = partition_address(place, SYSTEM, self.name.topic, self.name.partition)
        try:
            bring(self._rows, log, folder, self._making.codec)
        except CommitConflict:
            raise
        except LogError:
            if not os.path.isdir(place):
                raise
            copies.remove(place)  # it may be the copy that is at fault
            bring(self._rows, log, folder, self._making.codec)
        copies.used(place)
        return log_dir.read_partition(folder)

    def seen(self) -> Hashable:
        if is_partition(self.folder):
            return self.seen_manifest()
        try:
            with os.scandir(self.folder) as entries:
                return tuple(sorted((each.name, state_of(each.path)) for each in entries))
        except OSError:
            return None


def _history(log: PartitionLog) -> tuple[object, ...]:
    """What stays as long as a log only grows."""
    first = log.segments[0].first_batch_timestamp_ms if log.segments else None
    where = log.folder if is_address(log.folder) else os.path.abspath(log.folder)
    return where, log.log_start, log.checkpoint, first


class _Copy(NamedTuple):
    """A cleaned copy; ``checkpoint``: of the log that it was made of."""

    place: str
    log: PartitionLog
    checkpoint: int | None

    @property
    def end(self) -> int:
        """Up to which it is clean."""
        return self.log.checkpoint or 0


class Compacted(Made):
    """A partition of which the last writes below a certain offset are served, then its tail.

    Offsets are those of the log. The copy is made anew when so much came behind it that a cleaner
    would run, and when somebody else compacts the log: a delete that is gone there then has to be
    gone from the copy with all that it deleted.
    """

    def __init__(self, inner: Partition, files: Files, making: Making) -> None:
        super().__init__(inner.name, inner.folder, files, making)
        self.is_of_kafka = inner.is_of_kafka
        self._inner = inner
        self._tail: dict[int, Hashable] = {}  # closed segments behind the copy, by their begin
        self._copy: _Copy | None = None
        self._left_alone: Hashable = None  # a log that is served as it lies

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
        """
        Raises:
            LogError: it cannot be read, or the copy not be written.
        """
        log = self._inner.again().log
        if max(log.checkpoint or 0, log.log_start) >= log.closed_end and log.checkpoint is not None:
            return log  # somebody else did it
        if self._copy is not None and self._is_true(self._copy, log):
            served = composed(self._copy.log, log)
            if self._dirty_ratio(served, self._copy.end) <= self._making.dirty_ratio:
                self._making.copies.used(self._copy.place)
                return served
        identity = tuple(map(_state_of, log.segments))
        if identity == self._left_alone:
            return log
        try:
            self._copy, self._tail = self._made(log, identity), {}
        except CommitConflict as error:  # it grew, or a round was faster: the next look tries again
            self._making.tell(f"{self.name} is served as it lies for now: {error.problem}")
            self._copy = None
            return log
        if self._copy is None:
            self._left_alone = identity
            return log
        self._making.copies.used(self._copy.place)
        return composed(self._copy.log, log)

    def seen(self) -> Hashable:
        return self._inner.seen()

    def _is_true(self, copy: _Copy, log: PartitionLog) -> bool:
        """Whether nobody has cleaned the log since it was made."""
        is_there = os.path.isdir(copy.place)
        if not is_there or copy.checkpoint != log.checkpoint or log.end_offset < copy.end:
            return False
        if is_archived(log.folder):  # whose manifest tells of a round and its checkpoint at once
            return True
        closed = (each for each in log.segments if copy.end <= each.base_offset < log.closed_end)
        states = {each.base_offset: _state_of(each) for each in closed}
        is_same = all(states.get(base) == was for base, was in self._tail.items())
        self._tail = states
        return is_same

    @staticmethod
    def _dirty_ratio(served: PartitionLog, end: int) -> float:
        """How much of what is served came behind the copy."""
        behind = sum(each.size_bytes for each in served.segments if each.base_offset >= end)
        return behind / max(served.size_bytes, 1)

    def _made(self, log: PartitionLog, identity: Hashable) -> _Copy | None:
        """A copy as of now; None: of this log there shall be none."""
        copies, name = self._making.copies, self.name
        place = copies.place(_FORM, "compacted", log.folder, log.checkpoint, identity)
        if not os.path.isdir(place):
            report = compact(
                log.folder,
                to=copies.aside(place),
                config={**self._making.config, "min.cleanable.dirty.ratio": 0},
                topic_config=[(name.topic, "cleanup.policy", "compact")],
                include_active=log.open_as is None,
                memory=_MEMORY,
                spark=INLINE,
            )
            found = report.partitions[0]
            if found.status is Status.SKIPPED:
                self._making.tell(f"{name} is served as it lies: {found.reason}")
                return None
            if found.status is Status.FAILED:
                raise CommitConflict(found.reason or found.status, path=log.folder)
            if found.status is Status.DAMAGED:
                raise CorruptLog(
                    f"no compacted copy of {name} can be made: {found.reason or found.status}",
                    path=log.folder,
                    remedy="serve it as it lies, without --compacted",
                )
            copies.keep(place)
        (folder,) = find_partitions(place)
        return _Copy(place, log_dir.read_partition(folder), log.checkpoint)


def _state_of(segment: Segment) -> Hashable:
    return segment.path, segment.size_bytes, segment.mtime_ns, segment.etag


def composed(copy: PartitionLog, log: PartitionLog) -> PartitionLog:
    """The log, with the copy's segments in place of its own as far as the copy is clean."""
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
