"""The units of a dispatch's work, and their results.

Addresses count over the whole commit log, positions within one file. All values are plain and small
when pickled; bytes of records are never included.
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
    """Contiguous rows or index entries of one piece in a scratch file."""

    path: str
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class WalkUnit:
    """A piece of a commit log file: the records that begin in ``[start, end)``.

    ``is_exact`` means that a record begins at ``start``; otherwise the first one after it is
    searched.
    """

    file: MappedFile
    start: int
    end: int
    is_exact: bool
    queued_from: int  # lower addresses are in all consume queues
    indexed_from: int  # lower addresses are in the index; NO_END: no index is built
    compacted: frozenset[str]  # topics
    batched: frozenset[str]  # topics with batch consume queues
    light: int  # how light queues are numbered, see ``format.dispatch``
    index_tags: bool  # tags are index keys, too
    scratch: str
    memory_scratch: str = ""
    memory_bytes: int = 0


@dataclass(slots=True)
class WalkedPiece:
    """The result of a piece's walk."""

    begin: int = -1  # address of the first record; -1: none found
    end: int = -1  # after the last
    # why the walk ended: 0 at the piece's end, else a code of ``rocketmq.store.walking``
    stop: int = 0
    stop_at: int = -1  # address that the code refers to
    records: int = 0
    last_record: int = -1  # address of the last record that may be indexed
    queues: list[tuple[bytes, int, ScratchSlice]] = field(
        default_factory=list
    )  # topic, queue, rows
    entries: ScratchSlice | None = None
    light_bad: int = 0  # records with a light queue that no broker could dispatch
    light_bad_at: int = -1  # address of the first of them


@dataclass(frozen=True, slots=True)
class QueueState:
    """The current end of a consume queue."""

    # number of the next unit, in a batch consume queue counted by units; -1: it is empty
    next_number: int = -1
    end: int = -1  # end of its last record, for a batch consume queue its begin; -1: none
    tail_path: str = ""  # the file for the next unit, or a full one
    tail_start: int = 0  # position of that file in the queue
    first_number: int = 0  # number of the first unit that is not a filler
    spare: tuple[str, ...] = ()  # names of files after the end, which a broker's start deletes


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """One consume queue, ordinary or batch, to update."""

    kind: QueueKind
    name: TopicPartition
    rows: tuple[ScratchSlice, ...]
    until: int
    state: QueueState
    file_bytes: int
    folder: str  # for new files
    delay_ms: int | None = None  # for a queue of delayed messages: its units have the delivery time
    is_cut: bool = False  # its last file has units after the end, which are removed


@dataclass(frozen=True, slots=True)
class LogState:
    """The current end of a compaction log."""

    highest: int = -1  # queue offset
    start: int = -1  # the last pair's name; -1: there is no pair
    log_wrote: int = 0
    index_wrote: int = 0
    log_path: str = ""
    index_path: str = ""


@dataclass(frozen=True, slots=True)
class LogUnit:
    """One queue's compaction log to update."""

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
    """The newest index file; an empty ``name`` means that there is none."""

    name: str = ""
    path: str = ""
    slots: int = 0
    capacity: int = 0  # of entries; the first is never used
    count: int = 1  # number of the next entry
    last_address: int = -1
    last_stored: int = 0


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """One index file: a new one, or the newest one with more entries.

    ``entries`` has stretches, with the first entry to use and the number of entries. ``before`` is
    the position of the preceding entry if it is in scratch. Otherwise the last address and store
    time of the preceding file are given.
    """

    name: str
    slots: int
    capacity: int
    entries: tuple[tuple[ScratchSlice, int, int], ...]
    old_path: str  # empty for a new file
    old_count: int
    before: tuple[ScratchSlice, int] | None
    last_address: int
    last_stored: int
    folder: str


BuildUnit = QueueUnit | LogUnit | IndexUnit


@dataclass(slots=True)
class StagedIndexFiles:
    """New, synced files for one queue or the index."""

    # path below the tree, and path of the new file
    files: list[tuple[str, str]] = field(default_factory=list)
    is_anew: bool = False  # the old content of the queue is removed
    added: int = 0  # units, or entries
    passed: int = 0  # records that a broker skips, too
    keyless: int = 0
    too_large: int = 0
    gap_at: int = -1  # address of a record after a gap in queue offsets; nothing was written then
    gap: str = ""
    begins_late: bool = False  # the first unit of an empty queue has a number other than 0
    next_number: int = -1
    bytes_written: int = 0
