"""What a system brings to the engine: where its logs lie, its rules, its store and its format.

The steps know these classes and no system. A new system is a package beside ``kafka`` whose
``system.py`` has a ``System`` under its name in capitals, and a name in ``commands/systems.py``. It
states what differs: what most systems have in common is done here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

import numpy as np

from lastwrite.config.system import Config, SystemSettings
from lastwrite.engine.rules.retention import Retention
from lastwrite.errors import LogError
from lastwrite.model.columns import BatchTable, ByteArray, Int64Array, Run, UInt64Array
from lastwrite.model.log import AbortedTransaction, KeptScan, PartitionLog, Segment, TopicPartition
from lastwrite.model.policy import Policy
from lastwrite.model.work import Limits, Piece, RewriteUnit, SegmentOutput
from lastwrite.reports.compaction import Backlog
from lastwrite.reports.holding import HeldFor
from lastwrite.storage.layout import Layout
from lastwrite.storage.quarantine import QuarantineFile
from lastwrite.storage.staging import remove_staged
from lastwrite.storage.throttle import Spend


class Format(Protocol):
    """Bytes to columns and back; see ``kafka.format.chunk`` for the meaning of each call."""

    cut_remedy: str  # what to do where an index names a place at which no batch begins or ends
    damage_remedy: str  # what to do where a file of records is damaged

    def split(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]: ...

    def split_proven(
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
    # the reason is only that too little is dirty: a round for expired deletes can run
    is_at_rest: bool = False
    # why the daemon leaves it alone, though a round that somebody asks for would run
    waits: str | None = None
    elect_from: int = 0  # records below it were compared with each other in earlier rounds
    compacts: bool = True  # False: only what has expired goes
    cleanable_bytes: int = 0
    overdue_ms: int = 0  # how long it has waited for more than it may
    index_interval_bytes: int = 4096
    # of the records in range: with more that have no key nothing is cleaned
    max_keyless_ratio: float = 1.0
    held_for: tuple[HeldFor, ...] = ()  # readers for whom the policy holds deletes


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
    # the entries of the transaction indexes of what was made
    aborted: Sequence[AbortedTransaction] = ()
    # of segments of an archive as they will be, by base offset: what a scan of them finds; None:
    # what was known is forgotten; absent: as it is
    kept: Mapping[int, KeptScan | None] = field(default_factory=dict)


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


class Rules(ABC):
    """What the settings say of a partition."""

    no_retention: str = ""  # why nothing expires
    no_deletes: str = ""  # why no delete is kept that could be dropped later

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
    recover_finishes: bool = False  # what was half done; else it is cleared away
    # a round makes one segment of all that it cleans, changed or not
    makes_one_segment: bool = False
    damage_remedy: str  # what to do where a file of records is damaged
    copies_beside_a_broker: bool = True  # ``compact`` with ``to``, of a log that one has open

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

    def read_below(self, folder: str, end: int, /) -> PartitionLog:
        """The same, of a log that a broker has open: as if it ended at the offset ``end``."""
        return self.read(folder)

    def check_unmoved(self, log: PartitionLog, /) -> None:
        """Hold a log that a broker has open against what was read of it.

        Raises:
            CommitConflict: the broker has changed it since.
        """
        return None

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

    def archive_of(self, folder: str, to: str | None = None, /) -> str | None:
        """The archive in which a round leaves a partition; None, by default: it does not."""
        return None

    def begins_writing(self, log: PartitionLog, to: str | None, /) -> bool:
        """Whether ``begin_writing`` is asked before something of the log is written aside; by
        default not.
        """
        return False

    def begin_writing(self, logs: Sequence[PartitionLog], to: str | None, /) -> None:
        """What the driver has to do for all these logs together before something of them is written
        aside.
        """
        raise NotImplementedError

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


class System(Layout, SystemSettings, Rules, Store):
    """One system's share in every step, and in what stands around a round."""

    name: str
    scan_kernel: str  # the largest that only a round's scan needs: see ``kernel_cache.is_compiled``
    notes: QuarantineFile  # how the daemon remembers what it has set aside
    look_ms: int = 15_000  # how long the daemon rests where nothing is due, by default


def system_named(name: str) -> System:
    """The system of that name, which is known to exist; loaded when it is first asked for."""
    system: System = getattr(import_module(f"lastwrite.{name}.system"), name.upper())
    return system
