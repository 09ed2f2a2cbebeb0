"""The results of ``fetch``, as values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import field

from lastwrite.model.log import Problem, ProblemKind
from lastwrite.reports.document import FrozenDocument, JsonName, figure, or_none


class FetchMethod(StrEnum):
    """The way in which a ledger was fetched."""

    # hard-linked to the source's file, or copied where the file system has no hard links
    LINKED = "linked"
    COPIED = "copied"
    WRITTEN = "written"  # rewritten to a data object, from a MapFile or from bookies
    PRESENT = "present"  # stored by an earlier fetch
    MISSING = "missing"  # listed in the topic's metadata, but in none of the sources


class FetchedLedger(FrozenDocument, frozen=True, kw_only=True):
    """The result of a fetch for one ledger of a topic."""

    ledger: int
    how: FetchMethod
    entries: int  # number of copied entries; for a missing ledger, the number of all entries
    size_bytes: int = field(name="bytes")  # bytes of the data object
    # the data object in the archive; empty, printed as null, if the ledger has none
    path: Annotated[str, JsonName(or_none)] = field(name="object")
    # the file, folder or cluster that was copied; empty, printed as null, for a missing ledger
    source: Annotated[str, JsonName(or_none)]
    # whether the ledger may have grown since the fetch
    is_open: bool = field(default=False, name="open")
    is_compacted: bool = field(default=False, name="compacted")
    # the ledger's entries that the archive lacks: first and last id of each range
    missing: tuple[tuple[int, int], ...] = ()


class FetchedTopic(FrozenDocument, frozen=True, kw_only=True):
    """The result of a fetch for one topic: its ledgers in the log's order, and its problems.

    The compacted ledger is the last.
    """

    topic: str  # the topic's full name, with the partition
    folder: str
    # the compaction horizon as ledger:entry, if a compacted ledger was fetched
    horizon: str | None = None
    ledgers: tuple[FetchedLedger, ...]
    problems: tuple[Problem, ...] = ()
    # number of attempts; above 1 if another writer changed the topic during an attempt
    attempts: int = 1


class FetchReport(FrozenDocument, frozen=True, kw_only=True):
    """The results of a fetch for all topics."""

    archive: str = field(name="path")
    topics: tuple[FetchedTopic, ...]
    problems: tuple[Problem, ...] = ()  # problems of the sources that do not belong to one topic
    # 3 if entries or files are damaged or missing, 1 if some are not supported, otherwise 0. With 3
    # or 1, all other entries and files were fetched.
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status of the command."""
        every = [*self.problems, *(problem for topic in self.topics for problem in topic.problems)]
        kinds = {problem.kind for problem in every}
        return 3 if ProblemKind.DAMAGED in kinds else 1 if ProblemKind.UNSUPPORTED in kinds else 0
