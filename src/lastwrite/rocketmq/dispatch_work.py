"""The units of a dispatch's work, and what comes back from them.

Addresses are places in the commit log as a whole, positions places in one file. Everything here is
plain and pickles small; bytes of records never ride along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.reports import QueueKind
from lastwrite.rocketmq.store.reading import MappedFile

NO_END = (1 << 63) - 1  # an address after every log's end


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows or index entries of one piece, one after another in a scratch file."""

    path: str
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class WalkUnit:
    """A piece of a commit log file: the records that begin from ``start`` to before ``end``.

    ``is_exact``: a record begins at ``start``; else the first one after it must be looked for.
    """

    file: MappedFile
    start: int
    end: int
    is_exact: bool
    queued_from: int  # addresses below are in all consume queues
    indexed_from: int  # addresses below are in the index; NO_END: there shall be none
    compacted: frozenset[str]  # topics
    batched: frozenset[str]  # topics with batch consume queues
    light: int  # how light queues are numbered, see ``format.dispatch``
    index_tags: bool  # tags are keys of the index too
    scratch: str
    memory_scratch: str = ""
    memory_bytes: int = 0


@dataclass(slots=True)
class WalkedPiece:
    """What a piece holds."""

    begin: int = -1  # address of the first record; -1: none was found
    end: int = -1  # after the last
    # why the walk ended: 0 at the piece's end, else a code of ``rocketmq.store.walking``
    stop: int = 0
    stop_at: int = -1  # address that the code speaks of
    records: int = 0
    last_record: int = -1  # address of the last one that may be indexed
    queues: list[tuple[bytes, int, Stretch]] = field(default_factory=list)  # topic, queue, rows
    entries: Stretch | None = None
    light_bad: int = 0  # records with a light queue that no broker could dispatch
    light_bad_at: int = -1  # address of the first of them


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a consume queue holds."""

    # of the next unit, in a batch consume queue counted by units; -1: it is empty
    next_number: int = -1
    end: int = -1  # where its last record ends; of a batch consume queue where it begins; -1: none
    tail_path: str = ""  # of the file that the next unit goes into, or that is full
    tail_start: int = 0  # the byte of the queue at which that file begins
    first_number: int = 0  # of the first unit that is no filler
    spare: tuple[str, ...] = ()  # names of files after the end, which a broker's start deletes


@dataclass(frozen=True, slots=True)
class QueueUnit:
    """One consume queue, ordinary or batch, to be brought up to date."""

    kind: QueueKind
    name: TopicPartition
    rows: tuple[Stretch, ...]
    until: int
    state: QueueState
    file_bytes: int
    folder: str  # where files are written aside
    delay_ms: int | None = None  # of this queue of delayed messages: units tell when they are due
    is_cut: bool = False  # its last file has units after the end, which go


@dataclass(frozen=True, slots=True)
class LogState:
    """What a compaction log holds."""

    highest: int = -1  # queue offset
    start: int = -1  # the last pair's name; -1: there is no pair
    log_wrote: int = 0
    index_wrote: int = 0
    log_path: str = ""
    index_path: str = ""


@dataclass(frozen=True, slots=True)
class LogUnit:
    """One queue's compaction log to be brought up to date."""

    kind: ClassVar[QueueKind] = QueueKind.COMPACTION
    name: TopicPartition
    rows: tuple[Stretch, ...]
    until: int
    state: LogState
    log_bytes: int
    index_bytes: int
    commit_log: tuple[MappedFile, ...]
    folder: str


@dataclass(frozen=True, slots=True)
class IndexState:
    """The newest index file; ``name`` empty: there is none."""

    name: str = ""
    path: str = ""
    slots: int = 0
    capacity: int = 0  # of entries, the first of which is never used
    count: int = 1  # number of the next entry
    last_address: int = -1
    last_stored: int = 0


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """One index file: a new one, or the newest one with more entries.

    ``entries``: stretches, of each the first entry that counts and how many. ``before``: where the
    entry before the first lies, if it lies in scratch; else the last address and store time of the
    file before are given.
    """

    name: str
    slots: int
    capacity: int
    entries: tuple[tuple[Stretch, int, int], ...]
    old_path: str  # empty: a new file
    old_count: int
    before: tuple[Stretch, int] | None
    last_address: int
    last_stored: int
    folder: str


BuildUnit = QueueUnit | LogUnit | IndexUnit


@dataclass(slots=True)
class Built:
    """Files that were written aside, durably, for one queue or the index."""

    # path below the tree, where it was written
    files: list[tuple[str, str]] = field(default_factory=list)
    is_anew: bool = False  # what the queue had goes
    added: int = 0  # units, or entries
    passed: int = 0  # records that a broker passes over too
    keyless: int = 0
    too_large: int = 0
    gap_at: int = -1  # address of a record that leaves queue offsets out; nothing was written then
    gap: str = ""
    begins_late: bool = False  # an empty queue's first unit has another number than 0
    next_number: int = -1
    bytes_written: int = 0
