"""What ``fetch`` brought into an archive, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastwrite.model.log import Problem, ProblemKind


class HowFetched(StrEnum):
    """What became of a ledger."""

    LINKED = "linked"  # a second name of the source's own file, or its copy where the file system knows no links
    COPIED = "copied"
    WRITTEN = "written"  # from another form
    PRESENT = "present"  # an earlier fetch brought it
    MISSING = "missing"  # the topic's metadata list it, and it lies in none of the sources


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedLedger:
    """One ledger of a topic."""

    ledger: int
    how: HowFetched
    entries: int
    size_bytes: int  # of the data object
    path: str  # the data object in the archive; empty: there is none
    source: str  # where it came from; empty: from nowhere
    is_open: bool = False  # it may have more entries by now
    is_compacted: bool = False

    def to_dict(self) -> dict[str, object]:
        return {
            "ledger": self.ledger,
            "how": str(self.how),
            "entries": self.entries,
            "bytes": self.size_bytes,
            "object": self.path or None,
            "source": self.source or None,
            "open": self.is_open,
            "compacted": self.is_compacted,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    """One topic: its ledgers in the log's order, the compacted one last, and what was not as it should be."""

    topic: str  # the full name, a partition's own
    folder: str
    ledgers: tuple[FetchedLedger, ...]
    horizon: str | None = None  # ledger:entry, where a compacted ledger was brought
    problems: tuple[Problem, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "folder": self.folder,
            "horizon": self.horizon,
            "ledgers": [ledger.to_dict() for ledger in self.ledgers],
            "problems": [problem.to_dict() for problem in self.problems],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReport:
    """All topics of a fetch."""

    archive: str
    topics: tuple[FetchedTopic, ...]
    problems: tuple[Problem, ...] = ()  # of the sources, of no topic

    @property
    def exit_status(self) -> int:
        """3 where something is damaged or missing, 1 where something cannot be read; what is whole was brought."""
        every = [*self.problems, *(problem for topic in self.topics for problem in topic.problems)]
        kinds = {problem.kind for problem in every}
        return 3 if ProblemKind.DAMAGED in kinds else 1 if ProblemKind.UNSUPPORTED in kinds else 0

    def to_dict(self) -> dict[str, object]:
        return {
            "path": self.archive,
            "topics": [topic.to_dict() for topic in self.topics],
            "problems": [problem.to_dict() for problem in self.problems],
            "exit_status": self.exit_status,
        }
