"""The interface of a system for reading rows: it lists logs, divides them, and reads batches.

Each system's ``look/columns.py`` contains its implementation as ``ROWS``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
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
    """Decodes the records of chunks of a log. Workers must not share an instance."""

    @property
    def format(self) -> Format: ...

    def records(
        self,
        chunk: BatchWindow,
        selected: ByteArray | None,
        span: tuple[int, int],
        *,
        is_committed: bool,
    ) -> Iterator[RecordColumns]:
        """Yield the records with offsets in ``span``. Each result is valid until the next one.

        Reads only batches whose byte in ``selected`` is not 0; None means all batches.
        ``is_committed`` leaves out records of aborted transactions.

        Raises:
            CorruptLog, UnsupportedFormat, OutOfMemoryBudget: a record cannot be read.
        """

    def with_headers(self, records: RecordColumns) -> RecordColumns:
        """A copy of ``records`` with their decoded headers."""


class RowSystem(ABC):
    """The system-specific functions for reading rows."""

    name: str
    is_offset_unique: bool = True  # whether all records of a partition have different offsets
    is_empty_delete: bool = False  # whether an empty value deletes its key, like a null value
    before_anew: str = ""  # first words of a remedy: the step before a recreated topic is reread
    rounds_move_start: bool = (
        False  # whether compaction sets the log start to the first record left
    )

    @abstractmethod
    def logs_of(
        self,
        path: str,
        topic: Topics = None,
        partition: int | None = None,
        *,
        wants: Wants | None = None,
        is_compacted: bool = False,
        config: Mapping[str, object] | None = None,
    ) -> list[PartitionLog]:
        """List the requested partitions at ``path``, and check that they can be used.

        ``is_compacted``: whether only last writes are read, so that records which compaction
        removed may be missing. ``config``: the user's settings. Kafka reads
        ``cleanup.policy`` there.

        Raises:
            NotALog, InvalidConfig, LogHeld, CorruptLog: a partition cannot be used.
        """

    @abstractmethod
    def count_partitions(self, log: PartitionLog) -> int:
        """The number of partitions of the log's topic in the log's root."""

    def cuts(
        self, log: PartitionLog, segment: int, span: tuple[int, int], piece_bytes: int
    ) -> list[int]:
        """The byte positions at which a segment is split into pieces.

        The pieces contain at least the offsets in ``span``, whose end is exclusive.
        """
        return system_named(self.name).cut(log, segment, piece_bytes)

    @abstractmethod
    def reader(self, plain_bytes: int, extra: Any, *, raw_keys: bool) -> RowReader:
        """A new row reader. ``extra`` is a result of ``extra_of``."""

    def extra_of(self, log: PartitionLog) -> Any:
        """Data about the log that a reader needs besides a segment's range. Must be picklable."""
        return None

    def end_of(self, log: PartitionLog, is_committed: bool) -> int:
        """The first offset in the log that consumers do not receive yet."""
        return log.last_stable_offset if is_committed else log.high_watermark

    def lost_after(self, log: PartitionLog, offset: int) -> bool:
        """Whether records from ``offset`` on are missing for a reason other than compaction."""
        if log.log_start <= offset:
            return False
        cleaned = log.checkpoint if self.rounds_move_start else None
        if cleaned is None or offset > cleaned:
            return True
        # If several records have one offset, a gap above the checkpoint cannot be detected.
        return self.is_offset_unique and log.log_start > cleaned

    def numbers(self, records: RecordColumns) -> Int64Array:
        """A permanent number for each record, ascending in the partition. By default the offset.

        Raises:
            UnsupportedFormat: a number does not fit in 64 bits.
        """
        return records.offsets

    def number_of(self, offset: int) -> int:
        """The least number of a record at or above this offset.

        Raises:
            UnsupportedFormat: as ``numbers``.
        """
        return offset

    def offset_of(self, number: int) -> int:
        """The offset of the record with this number."""
        return number

    def with_deletes(self, records: RecordColumns) -> RecordColumns:
        """A copy of ``records`` in which the value of each delete is null."""
        if not self.is_empty_delete:
            return records
        starts, lengths = records.values
        is_delete = (lengths == 0) & (records.keys[1] >= 0)
        return records._replace(values=(starts, np.where(is_delete, -1, lengths)))

    def identity(self, log: PartitionLog, offset: int) -> str | None:
        """Text that identifies a log that was read up to ``offset``, for a checkpoint.

        None means that the log cannot be distinguished from a later log of the same name.

        Raises:
            CommitConflict: a file was replaced after it was listed.
        """
        return None

    def difference(self, log: PartitionLog, offset: int, identity: str) -> str | None:
        """How ``log`` differs from the log with ``identity``, which was read up to ``offset``.

        None means that it may be the same log. Compaction and retention alone are no difference.

        Raises:
            CommitConflict: a file was replaced after it was listed.
        """
        return None


def rows_of(system: str) -> RowSystem:
    """The ``RowSystem`` of a system, which must exist. It is imported at the first call."""
    found: RowSystem = import_module(f"lastwrite.{system}.look.columns").ROWS
    return found
