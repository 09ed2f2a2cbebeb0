"""What ``inspect`` finds in Pulsar topic folders, as values that print as JSON. Field names only grow.

None: not known, because it was not or could not be read. Times are milliseconds since 1970, ids are ``ledger:entry``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.uncleanable import Uncleanable


@dataclass(slots=True, kw_only=True)
class Entries:
    """What the entries of a ledger, or of several, hold."""

    entries: int = 0
    records: int = (
        0  # messages that are there: no placeholders, no markers; an encrypted batch is one
    )
    batches: int = 0  # entries that are batches
    tombstones: int = 0  # with a key and without value
    keyless: int = 0
    placeholders: int = 0  # what compaction has left of messages in batches
    encrypted: int = 0  # entries
    chunks: int = 0  # entries that are a part of a message
    markers: int = 0
    transactional: int = 0  # entries that belong to a transaction; markers are not among them
    unreadable: int = 0  # batches that cannot be decoded, though their checksum holds: compaction keeps them whole
    bytes: int = 0  # of entries, without what frames them in the file
    first_publish_time: int | None = None
    last_publish_time: int | None = None
    codecs: Counter[str] = field(
        default_factory=Counter
    )  # entries by compression, markers left out
    formats: Counter[str] = field(
        default_factory=Counter
    )  # "checksum", "no checksum", "broker metadata"

    def add(self, other: Entries) -> None:
        """Take in other entries of the same topic."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.codecs.update(other.codecs)
        self.formats.update(other.formats)
        self.see_time(other.first_publish_time)
        self.see_time(other.last_publish_time)

    def see_time(self, time_ms: int | None) -> None:
        if time_ms is None:
            return
        if self.first_publish_time is None or time_ms < self.first_publish_time:
            self.first_publish_time = time_ms
        if self.last_publish_time is None or time_ms > self.last_publish_time:
            self.last_publish_time = time_ms

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {name: getattr(self, name) for name in Entries.__slots__}
        return out | {name: dict(getattr(self, name)) for name in ("codecs", "formats")}


_SUMS = (
    "entries",
    "records",
    "batches",
    "tombstones",
    "keyless",
    "placeholders",
    "encrypted",
    "chunks",
    "markers",
    "transactional",
    "unreadable",
    "bytes",
)


@dataclass(slots=True, kw_only=True)
class LedgerInspection:
    """One ledger: its objects, and what is in them."""

    ledger: int
    file: str | None  # None: the topic's metadata name the ledger, and no object of it lies there
    file_bytes: int = 0
    first_entry: int | None = None
    last_entry: int | None = None
    first_id: str | None = None  # of a compacted ledger those of its messages
    last_id: str | None = None
    blocks: int | None = None
    is_indexed: bool = False
    contents: Entries = field(default_factory=Entries)

    def to_dict(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name) for name in LedgerInspection.__slots__ if name != "contents"
        }
        return {**own, **self.contents.to_dict()}


@dataclass(slots=True, kw_only=True)
class TopicInspection:
    """One topic, or one partition of a topic."""

    topic: str
    partition: int  # -1: not partitioned
    folder: str
    ledgers: list[LedgerInspection] = field(
        default_factory=list
    )  # of the backlog, below the horizon too
    contents: Entries = field(default_factory=Entries)  # of the backlog
    bytes: int = 0  # of all objects, the compacted ones too
    compacted: LedgerInspection | None = None
    horizon: str | None = None  # None: never compacted
    manifest: dict[str, Any] | None = None
    first_id: str | None = None  # of the backlog
    last_id: str | None = None
    last_message_id: dict[str, int] | None = None  # as a broker answers it to who reads all
    last_compacted_message_id: dict[str, int] | None = None  # … to who reads compacted
    read_below: str | None = None  # a transaction is open from here on: nobody reads further
    open_transactions: int | None = None
    aborted_transactions: int | None = None
    backlog_below_bytes: int = 0  # of entries up to the horizon: what expiry may take
    dirty_bytes: int = 0  # of entries beyond the horizon: what a round reads anew
    keys: int | None = (
        None  # distinct keys of the compacted ledger and of what lies beyond it; None: not counted
    )
    is_due: bool | None = None  # a round now would do something
    reason: str | None = None  # why it would not
    other_files: list[str] = field(default_factory=list)  # that belong to no ledger which counts
    uncleanable: Uncleanable | None = None  # what the cleaner noted when it set the topic aside
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    @property
    def is_damaged(self) -> bool:
        return any(problem.kind is ProblemKind.DAMAGED for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        apart = ("contents", "ledgers", "compacted", "problems")
        own = {name: getattr(self, name) for name in TopicInspection.__slots__ if name not in apart}
        entry_bytes = self.contents.to_dict()
        return {
            **entry_bytes,
            **own,
            "entry_bytes": self.contents.bytes,
            "status": "damaged" if self.is_damaged else "whole",
            "ledgers": [ledger.to_dict() for ledger in self.ledgers],
            "compacted": None if self.compacted is None else self.compacted.to_dict(),
            "uncleanable": self.uncleanable and self.uncleanable.to_dict(),
            "problems": [problem.to_dict() for problem in self.problems],
        }


@dataclass(slots=True, kw_only=True)
class PulsarFile:
    """One file that was asked for by itself."""

    file: str
    kind: str
    bytes: int
    entries: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    contents: Entries | None = None  # of a data object or an entry log
    problems: list[Problem] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        apart = ("contents", "problems", "details")
        own = {name: getattr(self, name) for name in PulsarFile.__slots__ if name not in apart}
        counts = (
            {}
            if self.contents is None
            else self.contents.to_dict() | {"entry_bytes": self.contents.bytes}
        )
        return {
            **counts,
            **own,
            **self.details,
            "problems": [problem.to_dict() for problem in self.problems],
        }


@dataclass(slots=True, kw_only=True)
class PulsarReport:
    """Everything at a path: topic folders, or one file."""

    path: str
    now_ms: int
    system: str = "pulsar"
    partitions: list[TopicInspection] = field(default_factory=list)
    files: list[PulsarFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def damaged(self) -> bool:
        lists = [
            self.problems,
            *(topic.problems for topic in self.partitions),
            *(file.problems for file in self.files),
        ]
        return any(
            problem.kind is ProblemKind.DAMAGED for problems in lists for problem in problems
        )

    @property
    def exit_status(self) -> int:
        return 3 if self.damaged else 0

    def to_dict(self) -> dict[str, Any]:
        contents = Entries()
        for topic in self.partitions:
            contents.add(topic.contents)
        return {
            "path": self.path,
            "system": self.system,
            "partitions": [topic.to_dict() for topic in self.partitions],
            "files": [file.to_dict() for file in self.files],
            "problems": [problem.to_dict() for problem in self.problems],
            "totals": {
                **contents.to_dict(),
                "partitions": len(self.partitions),
                "damaged": sum(topic.is_damaged for topic in self.partitions),
                "ledgers": sum(len(topic.ledgers) for topic in self.partitions),
                "bytes": sum(topic.bytes for topic in self.partitions),
                "entry_bytes": contents.bytes,
                "dirty_bytes": sum(topic.dirty_bytes for topic in self.partitions),
                "seconds": self.seconds,
            },
            "now_ms": self.now_ms,
        }
