"""What a system brings to the engine: a format, a policy, a log store.

The stages know these protocols and no system. A new system is a module beside ``kafka`` and a row in
``SYSTEMS``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import numpy as np

from lastwrite.compaction.retention import Retention
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.logstore.pulsar.topic import locate as locate_topic
from lastwrite.logstore.rocketmq.reading import locate
from lastwrite.logstore.throttle import Spend
from lastwrite.logstore.uncleanable import Notes
from lastwrite.logstore.watching import Glance
from lastwrite.model.backlog import Backlog
from lastwrite.model.columns import BatchTable, ByteArray, Int64Array, Run, UInt64Array
from lastwrite.model.log import AbortedTransaction, PartitionLog, Segment, TopicPartition
from lastwrite.model.policy import Policy
from lastwrite.model.work import Limits, Piece, RewriteUnit, Rewritten


class Format(Protocol):
    """Bytes to columns and back; see ``formats.kafka.chunk`` for the meaning of each call."""

    cut_remedy: str  # what to do where an index names a place at which no batch begins or ends

    def split(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]: ...

    def opened(
        self, buffer: ByteArray, table: BatchTable, wanted: ByteArray | None = None
    ) -> Iterator[Run]: ...

    def walk(
        self,
        run: Run,
        table: BatchTable,
        secret: UInt64Array,
        ordinal: int,
        states: ByteArray,
        entries: UInt64Array,
        filled: int,
        keys: Int64Array | None = None,
    ) -> int: ...

    def add_versions(
        self,
        buffer: ByteArray,
        run: Run,
        table: BatchTable,
        policy: Policy,
        ordinal: int,
        entries: UInt64Array,
        start: int,
        filled: int,
    ) -> None: ...

    def records_below(self, run: Run, row: np.void, offset: int) -> int: ...

    def rebuilt_size(self, table: BatchTable, records: int) -> int: ...

    def rebuild(
        self,
        buffer: ByteArray,
        table: BatchTable,
        actions: ByteArray,
        horizons: Int64Array,
        keep: ByteArray,
        out: ByteArray,
        rows: Int64Array,
    ) -> tuple[ByteArray, int, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the system's rules say of one partition before its records are read."""

    first_dirty: int
    end: int  # exclusive; no segment at or above is cleaned
    dirty_ratio: float
    reason: str | None  # why it is skipped; None: it is cleaned
    policy: Policy
    waits: str | None = (
        None  # why the daemon leaves it alone, though a round that somebody asks for would run
    )
    elect_from: int = 0  # records below it were compared with each other in earlier rounds
    compacts: bool = True  # False: only what has expired goes
    cleanable_bytes: int = 0
    overdue_ms: int = 0  # how long it has waited for more than it may
    index_interval_bytes: int = 4096


class IndexChecker(Protocol):
    """Holds a piece's index entries against the batches that are really there."""

    def check(self, table: BatchTable, shift: int) -> None:
        """The next batches; ``shift`` is what their origins lack to file positions."""
        ...


class SegmentAppender(Protocol):
    """Writes one new segment aside, with its indexes."""

    def append(self, data: ByteArray, rows: Int64Array) -> None: ...
    def finish(
        self, result: Rewritten, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None: ...
    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a log, or its copy, shall be: ``log`` with each of ``made`` in the place of its ``sources``."""

    log: PartitionLog
    sources: Sequence[Sequence[Segment]] = ()
    made: Sequence[Rewritten] = ()
    first_dirty: int | None = None  # None: as it is
    retention: Retention | None = None  # what it takes is not in a copy
    policy: Policy | None = None  # by which its records were judged; None: there was no round


class System(Protocol):
    """One system's share in every stage."""

    name: str
    offset_span: int  # how far an offset may lie from its segment's base
    joins_parts: bool  # a new segment may be written in parts that are joined
    keeps_scans: bool  # what was scanned may be kept beside the log
    makes_one_segment: bool  # a round makes one new segment of all that it cleans, changed or not
    notes: Notes  # how the daemon remembers what it has set aside
    look_ms: int  # how long the daemon rests where nothing is due, by default
    policy_remedy: str  # what to do where nobody has said which logs the daemon shall compact

    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        """``reading``: as ``Policy.reading``."""
        ...

    def find(self, path: str, topic: str | None, partition: int | None) -> list[str]:
        """The partition folders at ``path``, sorted."""
        ...

    def glance(self, root: str) -> list[Glance]:
        """For the daemon: every partition folder at ``root``, and cheaply whether it has changed.

        Raises:
            LogError: the root cannot be listed.
        """
        ...

    def root_of(self, folder: str) -> str:
        """The folder that a broker's lock and checkpoints of this partition lie in."""
        ...

    def hold(self, root: str, names: Collection[TopicPartition]) -> AbstractContextManager[None]:
        """Keep everybody else away from these partitions of the root."""
        ...

    def try_hold(
        self, root: str, names: Collection[TopicPartition]
    ) -> AbstractContextManager[set[TopicPartition]]:
        """Keep everybody else away from those of the partitions that are free; the context gives which."""
        ...

    def broker_of(self, root: str) -> str | None:
        """The broker that runs on the root, in words."""
        ...

    def refuse_if_held(self, root: str, names: Collection[TopicPartition]) -> None: ...

    def refuse_unclean(self, root: str, config: Mapping[str, object]) -> None:
        """Say no to a root whose broker did not stop in order, where that matters and ``config`` does not allow it."""
        ...

    def recover(self, folder: str) -> None:
        """Finish or undo what a crash left half done."""
        ...

    def name_of(self, folder: str) -> TopicPartition: ...

    def read(self, folder: str, spend: Spend | None = None) -> PartitionLog:
        """``spend`` is told of the bytes of records that are read for that."""
        ...

    def decide(
        self,
        log: PartitionLog,
        config: Mapping[str, object],
        now_ms: int,
        include_active: bool,
        like_broker: bool = False,
    ) -> Decision: ...

    def group(
        self, log: PartitionLog, end: int, config: Mapping[str, object], like_broker: bool = False
    ) -> list[list[int]]:
        """The places of the segments below ``end``, in groups that may become one segment each, or more if need be."""
        ...

    def check_config(self, config: Mapping[str, object]) -> None: ...

    def is_policy_known(self, folder: str, config: Mapping[str, object]) -> bool:
        """Whether anybody has said that the partition's topic is compacted, or that it is not."""
        ...

    def cut(self, log: PartitionLog, segment: int, piece_bytes: int) -> list[int]:
        """Positions in the file, the first and the last the segment's own, at which it may be cut into pieces."""
        ...

    def aborted_by_log(self, log: PartitionLog) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions as the log itself tells them, where its transaction index contradicts it."""
        ...

    def estimate_records(self, log: PartitionLog) -> int: ...

    def index_checker(self, piece: Piece) -> IndexChecker: ...

    def appender(self, base_offset: int, unit: RewriteUnit) -> SegmentAppender:
        """A new segment of the unit, from this offset on; of a unit that is one of several parts, without indexes."""
        ...

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        """Where new segments are written aside: in the partition, or beside its copy below ``to``."""
        ...

    def join_parts(
        self,
        log: PartitionLog,
        base_offset: int,
        parts: Sequence[Rewritten],
        folder: str,
        index_interval_bytes: int,
        limits: Limits,
        aborted: tuple[AbortedTransaction, ...],
        mtime_ns: int,
    ) -> Rewritten: ...

    def discard(self, part: Rewritten) -> None: ...

    def swap(self, wave: Sequence[Renewed]) -> list[LogError | OSError | None]:
        """Swap new segments in; a crash before ``tidy`` leaves what ``recover`` finishes. Log for log why it failed."""
        ...

    def record(self, root: str, first_dirty: Mapping[TopicPartition, int]) -> None:
        """Set the checkpoint of partitions of ``root`` that were swapped, all at once."""
        ...

    def tidy(self, logs: Sequence[PartitionLog]) -> list[LogError | OSError | None]:
        """Remove what ``swap`` left, after ``record``. Log for log why it failed."""
        ...

    def publish_copies(self, copies: Sequence[Renewed], to: str) -> list[LogError | OSError | None]:
        """Make copies below ``to``; copy for copy why that failed."""
        ...

    def segment_path(self, log: PartitionLog, base_offset: int) -> str:
        """Where the segment lies, or will lie once a round is committed."""
        ...

    def expired(self, log: PartitionLog, config: Mapping[str, object], now_ms: int) -> Retention:
        """What of ``log`` no longer has to be kept."""
        ...

    def backlog(
        self, log: PartitionLog, horizon: int, config: Mapping[str, object], now_ms: int
    ) -> Backlog | None:
        """What the log costs that stays as it is when all below ``horizon`` is compacted; None: nothing does."""
        ...

    def retain(
        self, wave: Sequence[tuple[PartitionLog, Retention]]
    ) -> list[LogError | OSError | None]:
        """Take out what the retentions say; log for log why that failed."""
        ...


SYSTEMS = {
    "kafka": "lastwrite.pipeline.kafka:KAFKA",
    "rocketmq": "lastwrite.pipeline.rocketmq:ROCKETMQ",
    "pulsar": "lastwrite.pipeline.pulsar:PULSAR",
}


def system_named(name: str | None, path: str | None = None) -> System:
    """The system ``name``; None: the one whose files lie at ``path``, Kafka where that is not told.

    Raises:
        InvalidConfig: no such system.
    """
    if name is None and path is not None:
        name = (
            "rocketmq"
            if locate(path) is not None
            else "pulsar"
            if locate_topic(path) is not None
            else "kafka"
        )
    place = SYSTEMS.get(name or "kafka")
    if place is None:
        raise InvalidConfig(f"unknown system {name!r}", remedy=f"one of: {', '.join(SYSTEMS)}")
    module, _, attribute = place.partition(":")
    system: System = getattr(import_module(module), attribute)
    return system


def kafka_alone(name: str | None, path: str, command: str) -> System:
    """Kafka, for a command that knows no other system yet.

    Raises:
        InvalidConfig: another system is named, or its files lie at ``path``.
    """
    found = system_named(name, path)
    if found.name != "kafka":
        raise InvalidConfig(
            f"{command} knows Kafka's logs only, so far, and this is a store of {found.name}",
            path=path,
            remedy="inspect, plan, compact, dump and read know it",
        )
    return found
