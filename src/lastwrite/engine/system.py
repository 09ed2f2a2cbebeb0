"""The interface of a system to the engine: its layout, its rules, its store and its format.

The steps use these classes and name no system. A new system is a package beside ``kafka`` and a
name in ``commands/systems.py``. The package's ``system.py`` defines a ``System`` under its name in
capitals. It defines only what differs; these base classes implement what most systems share.
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
from lastwrite.model.columns import BatchRun, BatchTable, ByteArray, Int64Array, UInt64Array
from lastwrite.model.log import AbortedTransaction, KeptScan, PartitionLog, Segment, TopicPartition
from lastwrite.model.policy import Policy
from lastwrite.model.work import Limits, RewriteUnit, ScanRange, SegmentOutput
from lastwrite.reports.compaction import Backlog
from lastwrite.reports.holding import BlockingGroup
from lastwrite.reports.untouched import UntouchedFile
from lastwrite.storage.layout import PartitionLocator
from lastwrite.storage.quarantine import QuarantineFile
from lastwrite.storage.staging import remove_staged
from lastwrite.storage.throttle import Spend


class Format(Protocol):
    """Converts between bytes and columns; ``kafka.format.chunk`` documents each method."""

    cut_remedy: str  # the remedy if no batch begins or ends at a position that an index names
    damage_remedy: str  # the remedy if a file of records is damaged

    def split(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]: ...

    def split_proven(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]: ...

    def opened(
        self, buffer: ByteArray, table: BatchTable, wanted: ByteArray | None = None
    ) -> Iterator[BatchRun]: ...

    def kept(self) -> list[tuple[int, str]]: ...

    def walk(
        self,
        run: BatchRun,
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
        run: BatchRun,
        table: BatchTable,
        policy: Policy,
        ordinal: int,
        entries: UInt64Array,
        start: int,
        filled: int,
    ) -> None: ...

    def records_below(self, run: BatchRun, row: np.void, offset: int) -> int: ...

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
    """The decision of a system's rules on one partition, before its records are read."""

    first_dirty: int
    end: int  # exclusive; segments whose base is at or above it are not cleaned
    dirty_ratio: float
    reason: str | None  # why it is skipped; None if it is cleaned
    policy: Policy
    remedy: str | None = None  # what to configure so that it is cleaned
    # the only reason is that too little is dirty: a round for expired deletes can run
    is_at_rest: bool = False
    # why the daemon skips it, though a round on request would run
    waits: str | None = None
    elect_from: int = 0  # earlier rounds compared the records below it with each other
    compacts: bool = True  # False if only expired segments are deleted
    cleanable_bytes: int = 0
    overdue_ms: int = 0  # how long it has waited beyond its limit
    index_interval_bytes: int = 4096
    # share of the records in range: if more have no key, nothing is cleaned
    max_keyless_ratio: float = 1.0
    held_for: tuple[BlockingGroup, ...] = ()  # the readers for which the policy holds deletes


class IndexChecker(Protocol):
    """Compares a piece's index entries with the actual batches."""

    def check(self, table: BatchTable, shift: int) -> None:
        """Check the next batches; ``shift`` is added to their origins to get file positions."""
        ...

    def ends(self) -> None:
        """The piece has no more batches."""
        ...


class SegmentAppender(Protocol):
    """Writes one new segment to a staged file, with its indexes."""

    def append(self, data: ByteArray, rows: Int64Array) -> None: ...
    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None: ...
    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The new content of a log, or of its copy: ``log`` with each of ``made`` in place of its
    ``sources``.
    """

    log: PartitionLog
    sources: Sequence[Sequence[Segment]] = ()
    made: Sequence[SegmentOutput] = ()
    first_dirty: int | None = None  # None means that it stays as it is
    retention: Retention | None = None  # a copy leaves out the segments that it deletes
    policy: Policy | None = None  # the policy that judged its records; None if there was no round
    # the entries of the transaction indexes of ``made``
    aborted: Sequence[AbortedTransaction] = ()
    # The scans of an archive's segments, by base offset. None drops the known scan; a segment that
    # is absent keeps its scan.
    kept: Mapping[int, KeptScan | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """The staged parts of one new segment, and the arguments for joining them."""

    log: PartitionLog
    sources: Sequence[Segment]  # the segments that it replaces
    parts: Sequence[SegmentOutput]
    folder: str  # where the whole segment is staged
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
    """The settings' effect on a partition."""

    no_retention: str = ""  # why nothing expires
    no_deletes: str = ""  # why no delete is kept to be dropped later

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
        """The indexes of the segments below ``end``, in groups that may each become one segment.

        A group becomes more than one segment if one is not enough.
        """

    def expired(self, log: PartitionLog, config: Config, now_ms: int) -> Retention:
        """The part of ``log`` that retention deletes; by default nothing."""
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
        """The bytes of the log that compaction leaves in place, when all below ``horizon`` is
        compacted.

        None, the default, means that compaction changes the log itself.
        """
        return None


class LogStore(ABC):
    """Reads, writes and commits a partition."""

    offset_span: int  # the largest distance of an offset from its segment's base
    joins_parts: bool = True  # whether a new segment may be written in parts that are joined
    keeps_scans: bool = False  # whether scans may be kept beside the log
    # whether recovery finishes an interrupted commit; if not, it undoes it
    recover_finishes: bool = False
    # whether a round makes one segment of all that it cleans, changed or not
    makes_one_segment: bool = False
    damage_remedy: str  # the remedy if a file of records is damaged
    # whether ``compact`` with ``to`` works on a log that a broker has open
    copies_beside_a_broker: bool = True

    @abstractmethod
    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        """Return a new format; ``reading`` is ``Policy.reading``."""

    @abstractmethod
    def recover(self, folder: str, /) -> None:
        """Finish or undo what a crash interrupted."""

    @abstractmethod
    def refuse_unwritable(self, log: PartitionLog, end: int, /) -> None:
        """Check, before anything is written, that the log's files below ``end`` can be replaced.

        Raises:
            LogError: a file cannot be replaced; the error names the file or folder and the cause.
        """

    @abstractmethod
    def read(self, folder: str, spend: Spend | None = None, /) -> PartitionLog:
        """Read the log; ``spend`` is called with the bytes of records that are read for that."""

    def read_below(self, folder: str, end: int, /) -> PartitionLog:
        """Read a log that a broker has open as if it ended at offset ``end``."""
        return self.read(folder)

    def judged(self, log: PartitionLog, config: Config, /) -> PartitionLog:
        """The log with the problems that can only be found with its settings; by default none."""
        return log

    def check_unmoved(self, log: PartitionLog, /) -> None:
        """Check that a log that a broker has open is still as it was read.

        Raises:
            CommitConflict: the broker has changed it since.
        """
        return None

    @abstractmethod
    def cut(self, log: PartitionLog, segment: int, piece_bytes: int, /) -> list[int]:
        """The positions in the file at which a segment may be cut into pieces, its own two ends
        included.
        """

    def aborted_by_log(self, log: PartitionLog, /) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions according to the log itself, if its transaction index
        contradicts it.
        """
        return log.aborted

    @abstractmethod
    def estimate_records(self, log: PartitionLog, /) -> int: ...

    @abstractmethod
    def index_checker(self, piece: ScanRange, /) -> IndexChecker: ...

    @abstractmethod
    def appender(self, base_offset: int, unit: RewriteUnit, /) -> SegmentAppender:
        """A writer of a new segment of the unit, from this offset on.

        It writes no indexes if the unit is one of several parts.
        """

    @abstractmethod
    def output_folder(self, log: PartitionLog, to: str | None, /) -> str:
        """The folder in which new segments are staged: in the partition, or below ``to`` for a
        copy.
        """

    def untouched(self, folders: Sequence[str], to: str | None, /) -> list[UntouchedFile]:
        """The files beside the logs in ``folders``, which a round leaves as they are; those that
        the copy at ``to`` lacks, where one is made. Archives have none.

        Raises:
            LogError: a folder cannot be listed.
        """
        return []

    def archive_of(self, folder: str, to: str | None = None, /) -> str | None:
        """The archive to which a round writes a partition. None, the default, means that it does
        not.
        """
        return None

    def starts_writing(self, log: PartitionLog, to: str | None, /) -> bool:
        """Whether ``begin_writing`` must be called before anything of the log is staged; by default
        not.
        """
        return False

    def begin_writing(self, logs: Sequence[PartitionLog], to: str | None, /) -> None:
        """Prepare all these logs together, on the driver, before anything of them is staged."""
        raise NotImplementedError

    def join_parts(self, parts: SegmentParts, /) -> SegmentOutput:
        """Join the parts to one segment; by default there is one part, which is the segment
        already.
        """
        (whole,) = parts.parts
        return whole

    def discard(self, part: SegmentOutput, /) -> None:
        """Remove the staged files."""
        for new in (part, *part.further):
            remove_staged(new.paths)

    @abstractmethod
    def swap(self, wave: Sequence[CommitPlan], /) -> list[LogError | OSError | None]:
        """Swap new segments in, and return an error or None for each log.

        After a crash before ``tidy``, ``recover`` finishes the swap.
        """

    def record(self, root: str, first_dirty: Mapping[TopicPartition, int], /) -> None:
        """Set the checkpoints of partitions of ``root`` that were swapped, all at once.

        By default ``swap`` does this.
        """
        return None

    @abstractmethod
    def delete_replaced(self, logs: Sequence[PartitionLog], /) -> list[LogError | OSError | None]:
        """Remove the remains of ``swap``, after ``record``; return an error or None for each log."""

    @abstractmethod
    def publish_copies(
        self, copies: Sequence[CommitPlan], to: str
    ) -> list[LogError | OSError | None]:
        """Publish copies below ``to``, and return an error or None for each copy."""

    def segment_path(self, log: PartitionLog, base_offset: int, /) -> str:
        """The path of the segment, now or after the round is committed."""
        return log.path_of(base_offset)

    def retain(
        self, wave: Sequence[tuple[PartitionLog, Retention]], /
    ) -> list[LogError | OSError | None]:
        """Delete the segments that the retentions name, and return an error or None for each log.

        By default there are none.
        """
        return [None] * len(wave)


class System(PartitionLocator, SystemSettings, Rules, LogStore):
    """One system's part in every step, and in the commands around a round."""

    name: str
    scan_kernel: str  # the largest kernel that only a scan needs: see ``kernel_cache.is_compiled``
    notes: QuarantineFile  # where the daemon stores what it has set aside
    look_ms: int = 15_000  # how long the daemon waits if nothing is due, by default


def system_named(name: str) -> System:
    """The system of that name, which must exist; its module is imported at the first call."""
    system: System = getattr(import_module(f"lastwrite.{name}.system"), name.upper())
    return system
