"""The interface of a system for reading rows: its logs, the places where they may be cut, and a
reader of whole batches.

Each system's ``look/columns.py`` provides it under the name ``ROWS``.
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
    """Decodes the records of chunks. Each worker has its own instance."""

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
        """The records with offsets in ``span`` in the batches whose byte in ``wanted`` is not 0.
        If ``is_committed``, records of aborted transactions are left out. Each result is valid
        until the next is requested.

        Raises:
            CorruptLog, UnsupportedFormat, OutOfMemoryBudget: a record cannot be read.
        """

    def with_headers(self, records: RecordColumns) -> RecordColumns:
        """The same records with their headers."""


class RowSystem(ABC):
    """A system's part in reading rows."""

    name: str
    is_offset_unique: bool = True  # no two records of a partition have the same offset
    is_empty_delete: bool = False  # an empty value deletes its key, as a null value does
    rounds_move_start: bool = False  # a log begins at the first record that a round kept

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
        """The partitions at ``path``, checked as far as a listing allows. Partitions that are not
        requested are not read.

        ``is_compacted``: only last writes are requested, so records that were compacted away may
        be missing.

        Raises:
            NotALog, InvalidConfig, LogHeld, CorruptLog: a partition cannot be used.
        """

    @abstractmethod
    def count_partitions(self, log: PartitionLog) -> int:
        """The number of partitions of its topic at the same place, itself included."""

    def cuts(
        self, log: PartitionLog, segment: int, span: tuple[int, int], piece_bytes: int
    ) -> list[int]:
        """The byte positions that cut a segment into pieces. The pieces contain at least the
        offsets in ``span``, whose end is exclusive.
        """
        return system_named(self.name).cut(log, segment, piece_bytes)

    @abstractmethod
    def reader(self, plain_bytes: int, extra: Any, *, raw_keys: bool) -> RowReader:
        """The reader; ``extra`` is a result of ``extra_of``."""

    def extra_of(self, log: PartitionLog) -> Any:
        """What a reader needs of the log beyond a piece of it. It must be picklable."""
        return None

    def end_of(self, log: PartitionLog, is_committed: bool) -> int:
        """The first offset that consumers do not receive."""
        return log.last_stable_offset if is_committed else log.high_watermark

    def lost_after(self, log: PartitionLog, offset: int) -> bool:
        """Whether records from ``offset`` on are missing at the log's start without a round."""
        if log.log_start <= offset:
            return False
        cleaned = log.checkpoint if self.rounds_move_start else None
        if cleaned is None or offset > cleaned:
            return True
        return self.is_offset_unique and log.log_start > cleaned  # otherwise no gap is visible

    def numbers(self, records: RecordColumns) -> Int64Array:
        """A number for each record, which identifies it permanently and rises in the partition.

        By default it is the offset.

        Raises:
            UnsupportedFormat: the number does not fit.
        """
        return records.offsets

    def number_of(self, offset: int) -> int:
        """The least number that a record of this offset or a later one can have.

        Raises:
            UnsupportedFormat: as ``numbers``.
        """
        return offset

    def offset_of(self, number: int) -> int:
        """The offset of the record of that number."""
        return number

    def with_deletes(self, records: RecordColumns) -> RecordColumns:
        """The same records, with a null value for each delete."""
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
    """A system's part in reading rows, loaded at the first call. The system must exist."""
    found: RowSystem = import_module(f"lastwrite.{system}.look.columns").ROWS
    return found
