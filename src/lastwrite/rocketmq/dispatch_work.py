"""The units of work of a dispatch, and their results.

An address is an offset in the whole commit log, a position an offset in one file. All values are
small when pickled; they never include bytes of records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.reports import QueueKind
from lastwrite.rocketmq.store.reading import MappedFile

NO_END = (1 << 63) - 1  # an address above every log's end


@dataclass(frozen=True, slots=True)
class ScratchSlice:
    """A range of a scratch file: contiguous rows or index entries of one commit log piece."""

    path: str
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class WalkUnit:
    """A piece of a commit log file: the records that begin in ``[start, end)``.

    ``is_exact`` means that a record begins at ``start``; otherwise the walk searches the first
    record after it.
    """

    file: MappedFile
    start: int
    end: int
    is_exact: bool
    queued_from: int  # records at lower addresses are in all consume queues
    indexed_from: int  # records at lower addresses are in the index; NO_END: no index is built
    compacted: frozenset[str]  # topics with compaction logs
    batched: frozenset[str]  # topics with batch consume queues
    light: int  # numbering of light queues; see ``format.dispatch``
    index_tags: bool  # whether tags are indexed
    scratch: str
    memory_scratch: str = ""
    memory_bytes: int = 0


@dataclass(slots=True)
class WalkedPiece:
    """The result of reading one piece of a commit log file."""

    begin: int = -1  # address of the first record; -1: none found
    end: int = -1  # address after the last record
    # reason why the walk ended: 0 at the piece's end, else a code of ``rocketmq.store.walking``
    stop: int = 0
    stop_at: int = -1  # address of the cause of ``stop``
    records: int = 0
    last_record: int = -1  # address of the last record that may be indexed
    # (topic, queue, slice with the queue's rows)
    queues: list[tuple[bytes, int, ScratchSlice]] = field(default_factory=list)
    entries: ScratchSlice | None = None
    light_bad: int = 0  # records that a broker cannot dispatch because of a light queue
    light_bad_at: int = -1  # address of the first record counted in ``light_bad``


@dataclass(frozen=True, slots=True)
class QueueState:
    """The current end of a consume queue."""

    # number of the next unit; -1: the queue is empty
    next_number: int = -1
    # address at which the last record ends, or begins if the queue is a batch consume queue; -1: no
    # record
    end: int = -1
    tail_path: str = ""  # the file with the last unit
    tail_start: int = 0  # byte position in the queue at which ``tail_path`` begins
    first_number: int = 0  # number of the first unit that is not a filler
    spare: tuple[str, ...] = ()  # files after the queue's end; a starting broker deletes them


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """The work for one consume queue, ordinary or batch: its state, and the rows to append."""

    kind: QueueKind
    name: TopicPartition
    rows: tuple[ScratchSlice, ...]
    until: int
    state: QueueState
    file_bytes: int
    folder: str  # folder for the new files
    # delay of the messages in ms if they are delayed; their units have the delivery time
    delay_ms: int | None = None
    is_cut: bool = False  # units from number ``state.next_number`` on are removed


@dataclass(frozen=True, slots=True)
class LogState:
    """The current end of a compaction log."""

    highest: int = -1  # highest queue offset in the log; -1: none
    start: int = -1  # address of the last log file's first byte; -1: no file
    log_wrote: int = 0
    index_wrote: int = 0
    log_path: str = ""
    index_path: str = ""


@dataclass(frozen=True, slots=True)
class LogUnit:
    """The work for one compaction log: its state, and the rows of the records to append."""

    kind: ClassVar[QueueKind] = QueueKind.COMPACTION
    name: TopicPartition
    rows: tuple[ScratchSlice, ...]
    until: int
    state: LogState
    log_bytes: int
    index_bytes: int
    commit_log: tuple[MappedFile, ...]
    folder: str


@dataclass(frozen=True, slots=True)
class IndexFileState:
    """The state of the newest index file. An empty ``name`` means that there is none."""

    name: str = ""
    path: str = ""
    slots: int = 0
    capacity: int = 0  # number of entries, including the unused first one
    count: int = 1  # number of the next entry
    last_address: int = -1
    last_stored: int = 0


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """The work for one index file: create it, or add entries to the newest file.

    ``entries`` lists scratch slices, each with the number of its first entry to add and the count
    of entries. ``before`` locates the last entry of the previous index file, by scratch slice and
    number. If ``before`` is None, ``last_address`` and ``last_stored`` have the address and store
    time of the previous file's last entry.
    """

    name: str
    slots: int
    capacity: int
    entries: tuple[tuple[ScratchSlice, int, int], ...]
    old_path: str  # path of the old file; empty for a new file
    old_count: int
    before: tuple[ScratchSlice, int] | None
    last_address: int
    last_stored: int
    folder: str


BuildUnit = QueueUnit | LogUnit | IndexUnit


@dataclass(slots=True)
class StagedIndexFiles:
    """New, synced files of one queue or of the index, not yet in the store."""

    # (final path below the store's folder of this kind, path of the new file)
    files: list[tuple[str, str]] = field(default_factory=list)
    is_anew: bool = False  # whether all old units of the queue are replaced
    added: int = 0  # number of units or index entries
    passed: int = 0  # records skipped because their offset exists or is negative
    keyless: int = 0
    too_large: int = 0
    # address of the record after an offset gap, in which case no file is written; -1: no gap
    gap_at: int = -1
    gap: str = ""
    begins_late: bool = False  # whether the first unit of an empty queue has a number other than 0
    next_number: int = -1
    bytes_written: int = 0
