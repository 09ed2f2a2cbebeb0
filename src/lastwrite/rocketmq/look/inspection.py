"""What ``inspect`` finds in a RocketMQ store, as values that print as JSON. Field names only grow.

None: not known, because it was not or could not be read. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lastwrite.model.log import Problem, ProblemKind


@dataclass(slots=True, kw_only=True)
class Messages:
    """What the records of a log, or of one queue in it, are."""

    records: int = 0
    messages: int = 0  # those inside of inner batches, each
    tombstones: int = 0  # with a body that is empty, after decompression too
    keyless: int = 0
    inner_batches: int = 0
    delayed: int = 0
    prepared: int = 0  # of transactions
    rolled_back: int = 0
    bytes: int = 0
    first_offset: int | None = None  # in the queue; of several queues meaningless, and None
    last_offset: int | None = None
    first_timestamp: int | None = None  # when the broker stored the first
    last_timestamp: int | None = None
    formats: Counter[str] = field(default_factory=Counter)  # records by magic: "v1", "v2"
    codecs: Counter[str] = field(default_factory=Counter)  # records by compression
    endings: Counter[str] = field(
        default_factory=Counter
    )  # records by how their properties end: tells old brokers

    def add(self, other: Messages) -> None:
        """Take in other records of the same log."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("formats", "codecs", "endings"):
            getattr(self, name).update(getattr(other, name))
        for name, best in (("first_timestamp", min), ("last_timestamp", max)):
            known = [
                value for value in (getattr(self, name), getattr(other, name)) if value is not None
            ]
            setattr(self, name, best(known, default=None))

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {name: getattr(self, name) for name in Messages.__slots__}
        return out | {name: dict(getattr(self, name)) for name in ("formats", "codecs", "endings")}


_SUMS = (
    "records",
    "messages",
    "tombstones",
    "keyless",
    "inner_batches",
    "delayed",
    "prepared",
    "rolled_back",
    "bytes",
)


@dataclass(slots=True, kw_only=True)
class FileOfLog:
    """One file of a log, a queue or an index."""

    file: str
    kind: str
    bytes: int
    start: int | None = None  # the address of its first byte, by its name
    end_position: int | None = None  # behind the last record or unit
    ending: str | None = None  # "blank", "open", "never written", "damaged", "full"
    entries: int | None = None  # records, units, entries
    first_offset: int | None = None
    last_offset: int | None = None
    details: dict[str, Any] = field(
        default_factory=dict
    )  # of an index file its header; of a small file its content

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in FileOfLog.__slots__ if name != "details"}
        return {**own, **self.details}


@dataclass(slots=True, kw_only=True)
class LogInspection:
    """The commit log."""

    folders: list[str]
    file_size: int | None = None  # of each file, as the files say
    start: int = 0  # the first address
    end: int | None = None  # the address behind the last record
    bytes: int = 0
    files: list[FileOfLog] = field(default_factory=list)
    contents: Messages = field(default_factory=Messages)

    def to_dict(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name)
            for name in LogInspection.__slots__
            if name not in ("files", "contents")
        }
        return {
            **own,
            **self.contents.to_dict(),
            "bytes": self.bytes,
            "files": [file.to_dict() for file in self.files],
        }


@dataclass(slots=True, kw_only=True)
class IndexOfQueue:
    """A queue's consume queue, batch consume queue or extension."""

    kind: str
    file_size: int | None = None
    files: list[FileOfLog] = field(default_factory=list)
    units: int = 0  # without fillers
    fillers: int = 0
    first_offset: int | None = None
    end_offset: int | None = None  # behind the last
    expired: int = 0  # lead to what the commit log no longer has
    lacking: int | None = None  # records of the commit log that no unit leads to
    wrong: int | None = None  # units that lead to anything but their record

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in IndexOfQueue.__slots__ if name != "files"}
        return {**own, "files": [file.to_dict() for file in self.files]}


@dataclass(slots=True, kw_only=True)
class CompactionInspection:
    """A queue's compaction log with its index."""

    file_size: int | None = None
    index_file_size: int | None = None
    bytes: int = 0
    files: list[FileOfLog] = field(default_factory=list)
    contents: Messages = field(default_factory=Messages)
    keys: int | None = None
    unindexed: int = 0  # records that no unit leads to: nobody reads them
    position: int | None = None  # the highest queue offset that an earlier run has compacted
    first_dirty_offset: int = 0
    dirty_bytes: int = 0  # of records above the position, in closed files
    cleanable_bytes: int | None = None  # that a round would take now
    dirty_ratio: float | None = None
    is_due: bool | None = None  # a round of ours would clean it now; None: it cannot be read
    reason: str | None = None  # why it would not

    def to_dict(self) -> dict[str, Any]:
        names = [
            name for name in CompactionInspection.__slots__ if name not in ("files", "contents")
        ]
        own = {name: getattr(self, name) for name in names}
        contents = self.contents.to_dict()
        return {
            **contents,
            **own,
            "log_bytes": contents["bytes"],
            "files": [file.to_dict() for file in self.files],
        }


@dataclass(slots=True, kw_only=True)
class QueueInspection:
    """One queue of a topic, in all the parts of the store that have it."""

    topic: str
    partition: int
    cleanup_policy: str | None = None  # of the topic's settings
    contents: Messages = field(default_factory=Messages)  # in the commit log
    consume_queue: IndexOfQueue | None = None
    batch_consume_queue: IndexOfQueue | None = None
    extension: IndexOfQueue | None = None
    compaction: CompactionInspection | None = None
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    @property
    def is_damaged(self) -> bool:
        return any(problem.kind is ProblemKind.DAMAGED for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        parts = ("consume_queue", "batch_consume_queue", "extension", "compaction")
        return {
            "topic": self.topic,
            "partition": self.partition,
            "queue_id": self.partition,
            "status": "damaged" if self.is_damaged else "whole",
            "cleanup_policy": self.cleanup_policy,
            **self.contents.to_dict(),
            **{
                name: None if (part := getattr(self, name)) is None else part.to_dict()
                for name in parts
            },
            "problems": [problem.to_dict() for problem in self.problems],
            "problem_count": self.problem_count,
        }


@dataclass(slots=True, kw_only=True)
class StoreReport:
    """Everything at a path of a RocketMQ store."""

    path: str
    what: str  # in words
    now_ms: int
    root: str | None = None
    system: str = "rocketmq"
    stopped_in_order: bool | None = None  # no ``abort`` lies there
    commit_log: LogInspection | None = None
    partitions: list[QueueInspection] = field(default_factory=list)
    index_files: list[FileOfLog] = field(default_factory=list)
    files: list[FileOfLog] = field(
        default_factory=list
    )  # small ones, or the one that was asked for
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def damaged(self) -> bool:
        lists = [self.problems, *(queue.problems for queue in self.partitions)]
        return any(
            problem.kind is ProblemKind.DAMAGED for problems in lists for problem in problems
        )

    @property
    def exit_status(self) -> int:
        return 3 if self.damaged else 0

    def to_dict(self) -> dict[str, Any]:
        log = self.commit_log
        compacted = [queue.compaction for queue in self.partitions if queue.compaction is not None]
        return {
            "path": self.path,
            "system": self.system,
            "what": self.what,
            "root": self.root,
            "stopped_in_order": self.stopped_in_order,
            "commit_log": None if log is None else log.to_dict(),
            "partitions": [queue.to_dict() for queue in self.partitions],
            "index_files": [file.to_dict() for file in self.index_files],
            "files": [file.to_dict() for file in self.files],
            "problems": [problem.to_dict() for problem in self.problems],
            "totals": {
                "partitions": len(self.partitions),
                "damaged": sum(queue.is_damaged for queue in self.partitions),
                "records": None if log is None else log.contents.records,
                "bytes": None if log is None else log.contents.bytes,
                "compacted_records": sum(part.contents.records for part in compacted),
                "compacted_bytes": sum(part.contents.bytes for part in compacted),
                "dirty_bytes": sum(part.dirty_bytes for part in compacted),
                "seconds": self.seconds,
            },
            "now_ms": self.now_ms,
        }
