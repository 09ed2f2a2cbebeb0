"""What a system brings to the engine: where its logs lie, its rules, its store and its format.

The steps know these classes and no system. A new system is a package beside ``kafka`` whose
``system.py`` has a ``System`` under its name in capitals, and a name in ``commands/systems.py``. It
states what differs: what most systems have in common is done here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from lastwrite.engine.rules.retention import Retention
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.model.columns import BatchTable, ByteArray, Int64Array, Run, UInt64Array
from lastwrite.model.log import AbortedTransaction, Glance, PartitionLog, Segment, TopicPartition
from lastwrite.model.policy import Policy
from lastwrite.model.work import Limits, Piece, RewriteUnit, SegmentOutput
from lastwrite.reports.compaction import Backlog
from lastwrite.reports.settings import Outvoted, Override, Setting
from lastwrite.storage.quarantine import QuarantineFile
from lastwrite.storage.staging import remove_staged
from lastwrite.storage.throttle import Spend

Config: TypeAlias = Mapping[str, object]  # settings under upstream's names


class Format(Protocol):
    """Bytes to columns and back; see ``kafka.format.chunk`` for the meaning of each call."""

    cut_remedy: str  # what to do where an index names a place at which no batch begins or ends
    damage_remedy: str  # what to do where a file of records is damaged

    def split(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]: ...

    def opened(
        self, buffer: ByteArray, table: BatchTable, wanted: ByteArray | None = None
    ) -> Iterator[Run]: ...

    def kept(self) -> list[tuple[int, str]]: ...

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
    remedy: str | None = None  # what to state so that it is cleaned
    # why the daemon leaves it alone, though a round that somebody asks for would run
    waits: str | None = None
    elect_from: int = 0  # records below it were compared with each other in earlier rounds
    compacts: bool = True  # False: only what has expired goes
    cleanable_bytes: int = 0
    overdue_ms: int = 0  # how long it has waited for more than it may
    index_interval_bytes: int = 4096
    # of the records in range: with more that have no key nothing is cleaned
    max_keyless_ratio: float = 1.0


class LeftAlone(NamedTuple):
    """Why nothing at all is done to a partition, and what to state so that something is."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where topics' settings may be learned from, beside ``config``
    (docs/decisions/explicit-compact.md).
    """

    overrides: tuple[Override, ...] = ()
    roots: tuple[str, ...] = ()  # log roots that were named together
    metadata: str | None = None  # where the cluster's metadata lies
    # the folders of partitions that the caller named, not their root alone
    named: frozenset[str] = frozenset()


class IndexChecker(Protocol):
    """Holds a piece's index entries against the batches that are really there."""

    def check(self, table: BatchTable, shift: int) -> None:
        """The next batches; ``shift`` is what their origins lack to file positions."""
        ...

    def ends(self) -> None:
        """There are no more batches in the piece."""
        ...


class SegmentAppender(Protocol):
    """Writes one new segment aside, with its indexes."""

    def append(self, data: ByteArray, rows: Int64Array) -> None: ...
    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None: ...
    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What a log, or its copy, shall be: ``log`` with each of ``made`` in the place of its
    ``sources``.
    """

    log: PartitionLog
    sources: Sequence[Sequence[Segment]] = ()
    made: Sequence[SegmentOutput] = ()
    first_dirty: int | None = None  # None: as it is
    retention: Retention | None = None  # what it takes is not in a copy
    policy: Policy | None = None  # by which its records were judged; None: there was no round


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one new segment, all written aside, and what it takes to join them."""

    log: PartitionLog
    sources: Sequence[Segment]  # that it replaces
    parts: Sequence[SegmentOutput]
    folder: str  # where the whole is written aside
    index_interval_bytes: int
    limits: Limits
    aborted: Sequence[AbortedTransaction]  # the entries of its transaction index

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset

    @property
    def mtime_ns(self) -> int:
        return self.sources[-1].mtime_ns


class Layout(ABC):
    """Where a system's partitions lie, and who works on them."""

    @abstractmethod
    def find(self, path: str, topic: str | None, partition: int | None, /) -> list[str]:
        """The partition folders at ``path``, sorted."""

    @abstractmethod
    def name_of(self, folder: str, /) -> TopicPartition: ...

    @abstractmethod
    def root_of(self, folder: str, /) -> str:
        """The folder that a broker's lock and checkpoints of this partition lie in."""

    def glance(self, root: str, /) -> list[Glance]:
        """For the daemon: every partition folder at ``root``, and cheaply whether it has changed;
        by default nobody knows.

        Raises:
            LogError: the root cannot be listed.
        """
        return [
            Glance(self.name_of(folder), folder, None, True)
            for folder in self.find(root, None, None)
        ]

    @abstractmethod
    def hold(self, root: str, names: Collection[TopicPartition], /) -> AbstractContextManager[None]:
        """Keep everybody else away from these partitions of the root."""

    @abstractmethod
    def try_hold(
        self, root: str, names: Collection[TopicPartition], /
    ) -> AbstractContextManager[set[TopicPartition]]:
        """Keep everybody else away from those of the partitions that are free; the context gives
        which.
        """

    @abstractmethod
    def refuse_if_held(self, root: str, names: Collection[TopicPartition], /) -> None: ...

    def broker_of(self, root: str, /) -> str | None:
        """The broker that runs on the root, in words; by default no broker opens it."""
        return None

    def refuse_unclean(self, root: str, config: Config, /) -> None:
        """Say no to a root whose broker did not stop in order, where that matters and ``config``
        does not allow it; by default it never matters.
        """
        return None


class Rules(ABC):
    """By which settings a partition is cleaned, and what they say of it."""

    governs_keyless: str  # the setting, in the system's words, of records without a key
    policy_remedy: str  # what to do where nobody has said which logs the daemon shall compact
    no_retention: str = ""  # why nothing expires

    @abstractmethod
    def check_config(self, config: Config, /) -> None: ...

    @abstractmethod
    def settings_of(self, folder: str, config: Config, /) -> tuple[Setting, ...]:
        """All settings that hold for the partition, and who says them."""

    def outvoted(self, folder: str, config: Config, /) -> tuple[Outvoted, ...]:
        """What of ``config`` does not hold for the partition, since its cluster says otherwise."""
        return ()

    def leaves_alone(self, folder: str, config: Config, /) -> LeftAlone | None:
        """Why nothing at all is done to the partition, and what would have to be stated; None: it
        is worked on.
        """
        return None

    def is_policy_known(self, folder: str, config: Config, /) -> bool:
        """Whether anybody has said that the partition's topic is compacted, or that it is not."""
        return True

    @abstractmethod
    def decide(
        self,
        log: PartitionLog,
        config: Config,
        now_ms: int,
        include_active: bool,
        like_broker: bool = False,
    ) -> Decision: ...

    @abstractmethod
    def group(
        self, log: PartitionLog, end: int, config: Config, like_broker: bool = False
    ) -> list[list[int]]:
        """The places of the segments below ``end``, in groups that may become one segment each, or
        more if need be.
        """

    def expired(self, log: PartitionLog, config: Config, now_ms: int) -> Retention:
        """What of ``log`` no longer has to be kept; by default all has."""
        return Retention(
            segments=(),
            rolls=False,
            first_base=log.log_start,
            log_start=log.log_start,
            stays=self.no_retention,
        )

    def backlog(
        self, log: PartitionLog, horizon: int, config: Config, now_ms: int
    ) -> Backlog | None:
        """What the log costs that stays as it is when all below ``horizon`` is compacted; None, by
        default: compaction changes the log itself.
        """
        return None


class Store(ABC):
    """How a partition is read, written and committed."""

    offset_span: int  # how far an offset may lie from its segment's base
    joins_parts: bool = True  # a new segment may be written in parts that are joined
    keeps_scans: bool = False  # what was scanned may be kept beside the log
    # a round makes one segment of all that it cleans, changed or not
    makes_one_segment: bool = False
    damage_remedy: str  # what to do where a file of records is damaged

    @abstractmethod
    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        """``reading``: as ``Policy.reading``."""

    @abstractmethod
    def recover(self, folder: str, /) -> None:
        """Finish or undo what a crash left half done."""

    @abstractmethod
    def refuse_unwritable(self, log: PartitionLog, end: int, /) -> None:
        """Say no before anything is written where a file of the log below ``end`` could not be
        replaced.

        Raises:
            LogError: it names the file or folder, and what stops it.
        """

    @abstractmethod
    def read(self, folder: str, spend: Spend | None = None, /) -> PartitionLog:
        """``spend`` is told of the bytes of records that are read for that."""

    @abstractmethod
    def cut(self, log: PartitionLog, segment: int, piece_bytes: int, /) -> list[int]:
        """Positions in the file, the first and the last the segment's own, at which it may be cut
        into pieces.
        """

    def aborted_by_log(self, log: PartitionLog, /) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions as the log itself tells them, where its transaction index
        contradicts it.
        """
        return log.aborted

    @abstractmethod
    def estimate_records(self, log: PartitionLog, /) -> int: ...

    @abstractmethod
    def index_checker(self, piece: Piece, /) -> IndexChecker: ...

    @abstractmethod
    def appender(self, base_offset: int, unit: RewriteUnit, /) -> SegmentAppender:
        """A new segment of the unit, from this offset on; of a unit that is one of several parts,
        without indexes.
        """

    @abstractmethod
    def output_folder(self, log: PartitionLog, to: str | None, /) -> str:
        """Where new segments are written aside: in the partition, or for a copy below ``to``."""

    def join_parts(self, parts: Parts, /) -> SegmentOutput:
        """One segment of its parts; by default there is one, which is the segment already."""
        (whole,) = parts.parts
        return whole

    def discard(self, part: SegmentOutput, /) -> None:
        """Remove what was written aside."""
        for new in (part, *part.further):
            remove_staged(new.paths)

    @abstractmethod
    def swap(self, wave: Sequence[CommitPlan], /) -> list[LogError | OSError | None]:
        """Swap new segments in; a crash before ``tidy`` leaves what ``recover`` finishes. Log for
        log why it failed.
        """

    def record(self, root: str, first_dirty: Mapping[TopicPartition, int], /) -> None:
        """Set the checkpoint of partitions of ``root`` that were swapped, all at once; by default
        ``swap`` does it.
        """
        return None

    @abstractmethod
    def tidy(self, logs: Sequence[PartitionLog], /) -> list[LogError | OSError | None]:
        """Remove what ``swap`` left, after ``record``. Log for log why it failed."""

    @abstractmethod
    def publish_copies(
        self, copies: Sequence[CommitPlan], to: str
    ) -> list[LogError | OSError | None]:
        """Make copies below ``to``; copy for copy why that failed."""

    def segment_path(self, log: PartitionLog, base_offset: int, /) -> str:
        """Where the segment lies, or will lie once a round is committed."""
        return log.path_of(base_offset)

    def retain(
        self, wave: Sequence[tuple[PartitionLog, Retention]], /
    ) -> list[LogError | OSError | None]:
        """Take out what the retentions say; log for log why that failed. By default they take
        nothing.
        """
        return [None] * len(wave)


class System(Layout, Rules, Store):
    """One system's share in every step."""

    name: str
    kind_of_path: str  # what lies at a path of it, in words
    notes: QuarantineFile  # how the daemon remembers what it has set aside
    look_ms: int = 15_000  # how long the daemon rests where nothing is due, by default

    def told(self, sources: Sources) -> System:
        """The same system, which learns topics' settings from ``sources`` too; by default it needs
        none.

        Raises:
            InvalidConfig: they say what this system does not know.
            NotALog: nothing lies where they point.
        """
        no_topics_of_kafka(self.kind_of_path, sources)
        return self


def no_topics_of_kafka(system: str, sources: Sources) -> None:
    """Refuse what only Kafka's topics have.

    Raises:
        InvalidConfig: an override, or metadata of a cluster.
    """
    if sources.overrides:
        raise InvalidConfig(
            f"--topic-config is for topics of Kafka, and this is {system}",
            remedy="give --config NAME=VALUE, with --topic NAME if it is for one topic alone",
        )
    if sources.metadata is not None:
        raise InvalidConfig(
            f"--metadata is for log roots of Kafka, and this is {system}",
            remedy="leave it out: it needs none",
        )


def system_named(name: str) -> System:
    """The system of that name, which is known to exist; loaded when it is first asked for."""
    system: System = getattr(import_module(f"lastwrite.{name}.system"), name.upper())
    return system
