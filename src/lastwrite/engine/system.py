"""The interface between the engine and a system: its layout, rules, store and format.

The steps of a round depend only on these classes. A new system is a package beside ``kafka`` and an
entry in ``commands/systems.py``. Its ``system.py`` defines a ``System`` object, named after the
package in capitals. The base classes implement what most systems share.
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

    cut_remedy: str  # remedy if an index has a position where no batch begins or ends
    damage_remedy: str  # the remedy for a damaged file of records

    def split(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]: ...

    def split_proven(
        self, buffer: ByteArray, start: int, end: int, lowest_offset: int
    ) -> tuple[BatchTable, int, int, ByteArray]: ...

    def opened(
        self, buffer: ByteArray, table: BatchTable, selected: ByteArray | None = None
    ) -> Iterator[BatchRun]: ...

    def take_problems(self) -> list[tuple[int, str]]: ...

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
    """A decision on whether a partition is cleaned, and up to which offset."""

    first_dirty: int
    end: int  # end offset, exclusive; segments with a base at or above it are not cleaned
    dirty_ratio: float
    reason: str | None  # why the partition is skipped; None if it is cleaned
    policy: Policy
    remedy: str | None = None  # what to configure so that the partition is cleaned
    # whether the only reason is that too little of the log is dirty; a round for expired deletes
    # can then run
    is_at_rest: bool = False
    # why the daemon skips the partition, although a round on request would run
    waits: str | None = None
    elect_from: int = 0  # records below this offset were compared with each other in earlier rounds
    # whether the log is compacted; False if only expired segments are deleted
    compacts: bool = True
    cleanable_bytes: int = 0
    overdue_ms: int = 0  # time by which the partition has exceeded its maximum lag
    index_interval_bytes: int = 4096
    # the partition is not cleaned if a larger share of its records has no key
    max_keyless_ratio: float = 1.0
    held_for: tuple[BlockingGroup, ...] = ()  # consumer groups for which the policy holds deletes


class IndexChecker(Protocol):
    """Compares the index entries of a piece with the piece's batches."""

    def check(self, table: BatchTable, shift: int) -> None:
        """Check the index entries of the next batches.

        A batch's position in the file is ``shift`` plus its ``origin`` in ``table``.
        """
        ...

    def ends(self) -> None:
        """Check that the index has no entries after the last batch of the piece."""
        ...


class SegmentAppender(Protocol):
    """Writes one new segment and its indexes to staged files."""

    def append(self, data: ByteArray, rows: Int64Array) -> None: ...
    def finish(
        self, result: SegmentOutput, mtime_ns: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> None: ...
    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The new content of a log or of its copy.

    The segments ``outputs`` replace the segments ``sources`` of ``log``.
    """

    log: PartitionLog
    sources: Sequence[Sequence[Segment]] = ()
    outputs: Sequence[SegmentOutput] = ()
    first_dirty: int | None = None  # new first dirty offset; None keeps the old one
    retention: Retention | None = None  # segments that retention deletes; a copy omits them
    policy: Policy | None = None  # policy of the round; None if there was no round
    # transaction index entries of the segments in ``outputs``
    aborted: Sequence[AbortedTransaction] = ()
    # In an archive: the stored scans to list in the manifest, by base offset. None removes the scan
    # of a segment; a segment that is absent keeps its scan.
    scans: Mapping[int, KeptScan | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """The staged parts of one new segment, and the arguments that ``join_parts`` needs."""

    log: PartitionLog
    sources: Sequence[Segment]  # the old segments, which the new segment replaces
    parts: Sequence[SegmentOutput]
    folder: str  # folder in which the joined segment is staged
    index_interval_bytes: int
    limits: Limits
    aborted: Sequence[AbortedTransaction]  # transaction index entries of the new segment

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset

    @property
    def mtime_ns(self) -> int:
        return self.sources[-1].mtime_ns


class Rules(ABC):
    """The rules of a system: what its settings mean for a partition."""

    no_retention: str = ""  # why this system deletes no expired segments; empty if it does
    no_deletes: str = ""  # why this system does not keep deletes until a horizon

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

        If one segment cannot contain the group, it becomes several.
        """

    def expired(self, log: PartitionLog, config: Config, now_ms: int) -> Retention:
        """The segments of ``log`` that retention deletes; by default none."""
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
        """The backlog of a system whose compaction leaves the log's segments in place.

        The segments are divided at the offset ``horizon``. None, the default, means that compaction
        replaces segments of the log itself.
        """
        return None


class LogStore(ABC):
    """Reads, writes and commits the partitions of a system."""

    offset_span: int  # largest distance of an offset from its segment's base offset
    joins_parts: bool = True  # whether several tasks may write parts of a segment
    keeps_scans: bool = False  # whether scans may be stored beside the log
    # whether ``recover`` finishes an interrupted commit; if not, it undoes the commit
    recover_finishes: bool = False
    # whether a round writes all cleaned records to one new segment
    makes_one_segment: bool = False
    damage_remedy: str  # the remedy for a damaged file of records
    # whether ``compact --to`` can copy a log that a broker has open
    copies_beside_a_broker: bool = True

    @abstractmethod
    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        """A new format object, which decompresses at most ``plain_bytes`` at once.

        ``reading`` encodes the system's settings for reading records (``Policy.reading``).
        """

    @abstractmethod
    def recover(self, folder: str, /) -> None:
        """Finish or undo a commit that a crash interrupted."""

    @abstractmethod
    def check_writable(self, log: PartitionLog, end: int, /) -> None:
        """Check, before anything is written, that the log's files below ``end`` can be replaced.

        Raises:
            LogError: a file cannot be replaced; the error names the file or folder and the cause.
        """

    @abstractmethod
    def read(self, folder: str, spend: Spend | None = None, /) -> PartitionLog:
        """Read the log's segments and bounds. Calls ``spend`` with the number of record bytes that
        are read.
        """

    def read_below(self, folder: str, end: int, /) -> PartitionLog:
        """Read a log that a broker has open as if it ended at offset ``end``."""
        return self.read(folder)

    def judged(self, log: PartitionLog, config: Config, /) -> PartitionLog:
        """The log, with the problems added that depend on its settings.

        By default, nothing is added.
        """
        return log

    def check_unmoved(self, log: PartitionLog, /) -> None:
        """Check that a log that a broker has open has not changed since it was read.

        Raises:
            CommitConflict: the broker has changed the log.
        """
        return None

    @abstractmethod
    def cut(self, log: PartitionLog, segment: int, piece_bytes: int, /) -> list[int]:
        """The positions at which a segment is split into pieces of about ``piece_bytes``, including
        the segment's start and end.
        """

    def aborted_by_log(self, log: PartitionLog, /) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions of a log according to its markers.

        The engine uses them if the log's transaction index is wrong.
        """
        return log.aborted

    @abstractmethod
    def estimate_records(self, log: PartitionLog, /) -> int: ...

    @abstractmethod
    def index_checker(self, piece: ScanRange, /) -> IndexChecker: ...

    @abstractmethod
    def appender(self, base_offset: int, unit: RewriteUnit, /) -> SegmentAppender:
        """Return a writer for a new segment of ``unit`` that starts at ``base_offset``.

        It writes no indexes if the unit is one of several parts.
        """

    @abstractmethod
    def output_folder(self, log: PartitionLog, to: str | None, /) -> str:
        """The folder in which new segments are staged: in the partition, or below ``to`` for a
        copy.
        """

    def untouched(self, folders: Sequence[str], to: str | None, /) -> list[UntouchedFile]:
        """The files that a round leaves unchanged, next to the logs in ``folders``.

        With ``to``, the files that the copy does not have. Archives have no such files.

        Raises:
            LogError: a folder cannot be listed.
        """
        return []

    def archive_of(self, folder: str, to: str | None = None, /) -> str | None:
        """The address of the archive to which a round writes the partition. None by default."""
        return None

    def starts_writing(self, log: PartitionLog, to: str | None, /) -> bool:
        """Whether ``begin_writing`` must be called before segments of the log are staged.

        Default: false.
        """
        return False

    def begin_writing(self, logs: Sequence[PartitionLog], to: str | None, /) -> None:
        """Prepare the logs for writing. Called once on the driver, before any segment is staged."""
        raise NotImplementedError

    def join_parts(self, parts: SegmentParts, /) -> SegmentOutput:
        """Join the parts of a new segment into one output.

        By default there is one part, the segment itself.
        """
        (whole,) = parts.parts
        return whole

    def discard(self, part: SegmentOutput, /) -> None:
        """Delete the staged files of a segment, or of a part of one."""
        for new in (part, *part.more_outputs):
            remove_staged(new.paths)

    @abstractmethod
    def swap(self, wave: Sequence[CommitPlan], /) -> list[LogError | OSError | None]:
        """Replace old segments by new ones. Returns an error or None for each log.

        After a crash before ``delete_replaced``, ``recover`` finishes the swap.
        """

    def record(self, root: str, first_dirty: Mapping[TopicPartition, int], /) -> None:
        """Write the checkpoint of ``root`` for all partitions in ``first_dirty`` at once.

        Does nothing by default: ``swap`` has stored the first dirty offsets.
        """
        return None

    @abstractmethod
    def delete_replaced(self, logs: Sequence[PartitionLog], /) -> list[LogError | OSError | None]:
        """Delete the segments that ``swap`` replaced. Called after ``record``.

        Returns an error or None for each log.
        """

    @abstractmethod
    def publish_copies(
        self, copies: Sequence[CommitPlan], to: str
    ) -> list[LogError | OSError | None]:
        """Publish copies of partitions below ``to``. Returns an error or None for each copy."""

    def segment_path(self, log: PartitionLog, base_offset: int, /) -> str:
        """The path of the segment with ``base_offset``, now or after the commit."""
        return log.path_of(base_offset)

    def retain(
        self, wave: Sequence[tuple[PartitionLog, Retention]], /
    ) -> list[LogError | OSError | None]:
        """Delete the segments that retention has selected. Returns an error or None for each log.

        By default nothing expires.
        """
        return [None] * len(wave)


class System(PartitionLocator, SystemSettings, Rules, LogStore):
    """The implementation of a system: the code and settings specific to Kafka, Pulsar or
    RocketMQ.
    """

    name: str
    # a large kernel that scans use; if it is not compiled yet, a round reports that kernels are
    # being compiled
    scan_kernel: str
    notes: QuarantineFile  # the file in which the daemon lists quarantined partitions
    look_ms: int = 15_000  # default time that the daemon waits if no round is due


def system_named(name: str) -> System:
    """The system with this name, which must exist. The first call imports its module."""
    system: System = getattr(import_module(f"lastwrite.{name}.system"), name.upper())
    return system
