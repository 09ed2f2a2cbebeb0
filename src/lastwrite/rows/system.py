"""What a system owes so that its records become columns: its logs, where they may be cut, and a
reader of whole batches.

A system's ``look/columns.py`` has it under the name ``ROWS``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import numpy as np

from lastwrite.engine.chunks import BatchWindow
from lastwrite.engine.system import Format, system_named
from lastwrite.model.columns import ByteArray, Int64Array, RecordColumns
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.storage.choice import Topics

Wants: TypeAlias = Callable[[TopicPartition], bool]


class RowReader(Protocol):
    """Finds the records of chunks; one instance a worker."""

    @property
    def format(self) -> Format: ...

    def records(
        self,
        chunk: BatchWindow,
        wanted: ByteArray | None,
        span: tuple[int, int],
        *,
        is_committed: bool,
    ) -> Iterator[RecordColumns]:
        """The records whose offsets lie in ``span``, of the batches with a non-zero byte in
        ``wanted``; without those of aborted transactions where ``is_committed``. What comes is
        valid until the next is asked for.

        Raises:
            CorruptLog, UnsupportedFormat, OutOfMemoryBudget: a record cannot be read.
        """

    def with_headers(self, records: RecordColumns) -> RecordColumns:
        """The same records, with what their headers are."""


class RowSystem(ABC):
    """One system's share in reading rows."""

    name: str
    is_offset_unique: bool = True  # no two records of a partition share one
    is_empty_delete: bool = False  # a value of no bytes deletes its key, as a null one does
    rounds_move_start: bool = False  # a log begins at the first record that a round left

    @abstractmethod
    def logs_of(
        self,
        path: str,
        topic: Topics = None,
        partition: int | None = None,
        *,
        wants: Wants | None = None,
        is_compacted: bool = False,
    ) -> list[PartitionLog]:
        """The partitions at ``path``, each whole as far as listing tells; those that are not wanted
        are not looked at.

        ``is_compacted``: only last writes are asked for, so that what was compacted away need not
        be there.

        Raises:
            NotALog, InvalidConfig, LogHeld, CorruptLog: one is not.
        """

    @abstractmethod
    def count_partitions(self, log: PartitionLog) -> int:
        """How many partitions of its topic lie beside it, itself included."""

    def cuts(
        self, log: PartitionLog, segment: int, span: tuple[int, int], piece_bytes: int
    ) -> list[int]:
        """Where a segment is cut into pieces that hold at least what lies in ``span`` of offsets,
        the second exclusive.
        """
        return system_named(self.name).cut(log, segment, piece_bytes)

    @abstractmethod
    def reader(self, plain_bytes: int, extra: Any, *, raw_keys: bool) -> RowReader:
        """``extra``: that of ``extra_of``."""

    def extra_of(self, log: PartitionLog) -> Any:
        """What a reader has to know of the log beyond a piece of it; travels by pickle."""
        return None

    def end_of(self, log: PartitionLog, is_committed: bool) -> int:
        """The first offset that no reader gets."""
        return log.last_stable_offset if is_committed else log.high_watermark

    def lost_after(self, log: PartitionLog, offset: int) -> bool:
        """Whether records from ``offset`` on are gone from the log's begin, and no round took them."""
        if log.log_start <= offset:
            return False
        cleaned = log.checkpoint if self.rounds_move_start else None
        if cleaned is None or offset > cleaned:
            return True
        return self.is_offset_unique and log.log_start > cleaned  # else a gap may be none

    def numbers(self, records: RecordColumns) -> Int64Array:
        """A number for each record, by which it is known for ever, and which rises through the
        partition; by default its offset.

        Raises:
            UnsupportedFormat: there are not that many.
        """
        return records.offsets

    def number_of(self, offset: int) -> int:
        """The least number that a record of this offset or a later one can have.

        Raises:
            UnsupportedFormat: see above.
        """
        return offset

    def offset_of(self, number: int) -> int:
        """The offset of the record of that number."""
        return number

    def with_deletes(self, records: RecordColumns) -> RecordColumns:
        """The same records, with null for a value that deletes its key."""
        if not self.is_empty_delete:
            return records
        starts, lengths = records.values
        is_delete = (lengths == 0) & (records.keys[1] >= 0)
        return records._replace(values=(starts, np.where(is_delete, -1, lengths)))

    def identity(self, log: PartitionLog, offset: int) -> str | None:
        """The identity of a log that was read up to ``offset``, as text for a checkpoint.

        None means that nothing distinguishes the log from a later one of its name.

        Raises:
            CommitConflict: a file was replaced after it was listed.
        """
        return None

    def difference(self, log: PartitionLog, offset: int, identity: str) -> str | None:
        """How ``log`` differs from the log of that ``identity``, which was read up to ``offset``.

        None means that it may be the same log. Compaction and retention alone are no difference.

        Raises:
            CommitConflict: a file was replaced after it was listed.
        """
        return None


def rows_of(system: str) -> RowSystem:
    """The share of a system that is known to exist; loaded when it is first asked for."""
    found: RowSystem = import_module(f"lastwrite.{system}.look.columns").ROWS
    return found
