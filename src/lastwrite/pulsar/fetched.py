"""What ``fetch`` brought into an archive, as values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import field

from lastwrite.model.log import Problem, ProblemKind
from lastwrite.reports.document import As, FrozenDocument, figure, or_none


class HowFetched(StrEnum):
    """What became of a ledger."""

    # a second name of the source's own file, or its copy where the file system knows no links
    LINKED = "linked"
    COPIED = "copied"
    WRITTEN = "written"  # from another form
    PRESENT = "present"  # an earlier fetch brought it
    MISSING = "missing"  # the topic's metadata list it, and it is in none of the sources


class FetchedLedger(FrozenDocument, frozen=True, kw_only=True):
    """One ledger of a topic."""

    ledger: int
    how: HowFetched
    entries: int  # that are here; of a ledger that is not, how many it has
    size_bytes: int = field(name="bytes")  # of the data object
    # the data object in the archive; empty, and printed as null: there is none
    path: Annotated[str, As(or_none)] = field(name="object")
    # where it came from; empty, and printed as null: from nowhere
    source: Annotated[str, As(or_none)]
    is_open: bool = field(default=False, name="open")  # it may have more entries by now
    is_compacted: bool = field(default=False, name="compacted")
    # first and last of entries that are known, and not here
    missing: tuple[tuple[int, int], ...] = ()


class FetchedTopic(FrozenDocument, frozen=True, kw_only=True):
    """One topic: its ledgers in the log's order, the compacted one last, and what is wrong."""

    topic: str  # the full name, a partition's own
    folder: str
    horizon: str | None = None  # ledger:entry, where a compacted ledger was brought
    ledgers: tuple[FetchedLedger, ...]
    problems: tuple[Problem, ...] = ()
    attempts: int = 1  # more than one where another writer changed the topic first


class FetchReport(FrozenDocument, frozen=True, kw_only=True):
    """All topics of a fetch."""

    archive: str = field(name="path")
    topics: tuple[FetchedTopic, ...]
    problems: tuple[Problem, ...] = ()  # of the sources, of no topic
    # 3 where something is damaged or missing, 1 where something cannot be read; what is whole was
    # brought
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status."""
        every = [*self.problems, *(problem for topic in self.topics for problem in topic.problems)]
        kinds = {problem.kind for problem in every}
        return 3 if ProblemKind.DAMAGED in kinds else 1 if ProblemKind.UNSUPPORTED in kinds else 0
