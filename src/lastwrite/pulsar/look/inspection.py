"""The results of ``inspect`` on Pulsar topic folders, as values that print as JSON.

Existing field names never change. None means that a value is unknown, because it was not or could
not be read. Times are milliseconds since 1970, and ids are ``ledger:entry``.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, ClassVar

from msgspec import field

from lastwrite.model.log import Problem, any_damaged
from lastwrite.reports.compaction import Quarantined
from lastwrite.reports.document import SPREAD, UNPRINTED, Document, JsonName, figure
from lastwrite.reports.settings import Setting, effective


class EntryCounts(Document, kw_only=True):
    """Counts of entries and messages in one or more ledgers."""

    entries: int = 0
    # number of messages, excluding placeholders and markers; an encrypted batch counts as one
    records: int = 0
    batches: int = 0  # entries that are batches
    tombstones: int = 0  # messages with a key and without a value
    keyless: int = 0
    placeholders: int = 0  # placeholders of messages that compaction removed from batches
    encrypted: int = 0  # encrypted entries
    chunks: int = 0  # entries that are a chunk of a message
    markers: int = 0
    transactional: int = 0  # entries that belong to transactions, without markers
    # batches that cannot be decoded although their checksum matches: compaction keeps them
    # unchanged
    unreadable: int = 0
    bytes: int = 0  # bytes of entries, without the framing in the file
    first_publish_time: int | None = None
    last_publish_time: int | None = None
    # number of entries by codec, without markers
    codecs: Counter[str] = field(default_factory=Counter)
    # entries by format: "checksum", "no checksum", "broker metadata"
    formats: Counter[str] = field(default_factory=Counter)

    def add(self, other: EntryCounts) -> None:
        """Add ``other``, the counts of further entries of the same topic."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.codecs.update(other.codecs)
        self.formats.update(other.formats)
        self.add_time(other.first_publish_time)
        self.add_time(other.last_publish_time)

    def add_time(self, time_ms: int | None) -> None:
        if time_ms is not None:
            first, last = self.first_publish_time, self.last_publish_time
            self.first_publish_time = time_ms if first is None else min(first, time_ms)
            self.last_publish_time = time_ms if last is None else max(last, time_ms)


_SUMS = tuple(
    "entries records batches tombstones keyless placeholders encrypted chunks markers "
    "transactional unreadable bytes".split()
)


class LedgerInspection(Document, kw_only=True):
    """The inspection of one ledger: its objects, and the counts of their contents."""

    ledger: int
    file: str | None  # null if the folder has no object of the ledger
    file_bytes: int = 0
    first_entry: int | None = None
    last_entry: int | None = None
    first_id: str | None = None  # id of the first message, only in a compacted ledger
    last_id: str | None = None
    blocks: int | None = None
    is_indexed: bool = False
    contents: Annotated[EntryCounts, SPREAD] = field(default_factory=EntryCounts)


class TopicInspection(Document, kw_only=True):
    """The inspection of one topic, or one partition of a topic."""

    # contents of the backlog
    contents: Annotated[EntryCounts, SPREAD] = field(default_factory=EntryCounts)
    topic: str
    partition: int  # -1 if not partitioned
    folder: str
    bytes: int = 0  # bytes of all objects, compacted ledgers included
    horizon: str | None = None  # null if never compacted
    manifest: dict[str, Any] | None = None
    first_id: str | None = None  # id of the backlog's first message
    last_id: str | None = None
    # the last message id that a broker reports to a reader without readCompacted
    last_message_id: dict[str, int] | None = None
    # the last message id that a broker reports to a reader with readCompacted
    last_compacted_message_id: dict[str, int] | None = None
    read_below: str | None = None  # start of the first open transaction, where readers stop
    open_transactions: int | None = None
    aborted_transactions: int | None = None
    backlog_below_bytes: int = 0  # bytes of entries up to the horizon, which retention may delete
    dirty_bytes: int = 0  # bytes of entries beyond the horizon, which the next compaction reads
    # distinct keys of the compacted ledger and of later entries; null if not counted
    keys: int | None = None
    is_due: bool | None = None  # whether a compaction now would change the topic
    reason: str | None = None  # why a compaction now would change nothing
    other_files: list[str] = []  # files of ledgers in the folder that are not part of the log
    uncleanable: Quarantined | None = None  # the cleaner's note, if the topic is in quarantine
    problem_count: int = 0
    settings: Annotated[tuple[Setting, ...], JsonName(effective)] = ()
    entry_bytes: ClassVar[int] = figure(lambda self: self.contents.bytes)
    status: ClassVar[str] = figure(lambda self: "damaged" if self.is_damaged else "whole")
    ledgers: list[LedgerInspection] = []  # all raw ledgers, below and beyond the horizon
    compacted: LedgerInspection | None = None
    problems: list[Problem] = []

    @property
    def is_damaged(self) -> bool:
        return any_damaged(self.problems)


class EntriesOfFile(Document):
    """The counts of a file's entries and messages."""

    contents: Annotated[EntryCounts, SPREAD]
    entry_bytes: ClassVar[int] = figure(lambda self: self.contents.bytes)


def of_file(contents: EntryCounts | None) -> EntriesOfFile | None:
    """The JSON form of the counts. None for a file without entries."""
    return None if contents is None else EntriesOfFile(contents)


class PulsarFile(Document, kw_only=True):
    """The inspection of one file outside of a topic folder."""

    # contents of a data object or an entry log
    contents: Annotated[EntryCounts | None, JsonName(of_file), SPREAD] = None
    file: str
    kind: str
    bytes: int
    entries: int | None = None
    details: Annotated[dict[str, Any], SPREAD] = {}
    problems: list[Problem] = []


class TopicTotals(Document, kw_only=True):
    """The sums over all inspected topics."""

    contents: Annotated[EntryCounts, SPREAD]
    partitions: int
    damaged: int
    ledgers: int
    bytes: int  # bytes of all objects
    entry_bytes: ClassVar[int] = figure(lambda self: self.contents.bytes)
    dirty_bytes: int
    seconds: float


class PulsarReport(Document, kw_only=True):
    """The report on a path: topic folders, or one file."""

    path: str
    system: str = "pulsar"
    partitions: list[TopicInspection] = []
    files: list[PulsarFile] = []
    problems: list[Problem] = []
    totals: ClassVar[TopicTotals] = figure(lambda self: self.sums())
    now_ms: int
    seconds: Annotated[float, UNPRINTED] = 0.0

    @property
    def damaged(self) -> bool:
        lists = [
            self.problems,
            *(topic.problems for topic in self.partitions),
            *(file.problems for file in self.files),
        ]
        return any(map(any_damaged, lists))

    @property
    def exit_status(self) -> int:
        return 3 if self.damaged else 0

    def sums(self) -> TopicTotals:
        contents = EntryCounts()
        for topic in self.partitions:
            contents.add(topic.contents)
        return TopicTotals(
            contents=contents,
            partitions=len(self.partitions),
            damaged=sum(topic.is_damaged for topic in self.partitions),
            ledgers=sum(len(topic.ledgers) for topic in self.partitions),
            bytes=sum(topic.bytes for topic in self.partitions),
            dirty_bytes=sum(topic.dirty_bytes for topic in self.partitions),
            seconds=self.seconds,
        )
