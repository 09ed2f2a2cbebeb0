"""Fetch several logs into an archive in parallel: the part of ``fetch`` that all systems share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from msgspec import structs

from lastwrite.errors import (
    CommitConflict,
    CorruptLog,
    LogError,
    LogHeld,
    NotContinued,
    RemoteFailed,
)
from lastwrite.model.attempts import Attempts
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.model.progress import Progress
from lastwrite.reports.fetching import FetchedLog, HoldReason, LogsFetched
from lastwrite.storage.machine import core_count

Advance = Callable[[int], None]  # a function that is called with the number of bytes written
_MOST_AT_ONCE = 4  # few parallel fetches, because Python code does not run in parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """The amount of data that a fetch added to one partition of the archive."""

    first_offset: int
    end_offset: int
    segments: int
    bytes: int
    is_new: bool  # whether the partition is new in the archive
    foreign_bytes: int = 0  # bytes of objects that are referenced, not copied
    gap: str | None = None  # lost records before this data, as accepted by the user

    def of(self, found: FetchedLog) -> FetchedLog:
        """The report ``found``, with these amounts added."""
        return structs.replace(
            found,
            first_offset=self.first_offset,
            end_offset=self.end_offset,
            segments=self.segments,
            size_bytes=self.bytes,
            foreign_bytes=self.foreign_bytes,
            is_new=self.is_new,
            gap=self.gap,
        )


def max_parallel() -> int:
    """The number of partitions fetched in parallel."""
    return min(_MOST_AT_ONCE, core_count())


def fetch_all(
    folders: Sequence[str], to: str, bring: Callable[[str, Advance], FetchedLog], progress: Progress
) -> LogsFetched:
    """Fetch each of the ``folders`` into the archive ``to``."""
    turn = Lock()

    def advance(done_bytes: int) -> None:
        with turn:
            progress.advance(done_bytes)

    with ThreadPoolExecutor(max_parallel()) as pool:
        found = pool.map(lambda folder: bring(folder, advance), folders)
        return LogsFetched(archive=to, partitions=tuple(found))


def fetch_with_retry(found: FetchedLog, bring: Callable[[], FetchedLog]) -> FetchedLog:
    """Fetch one partition into an archive and return its report.

    Args:
        found: the report to return, with the reason added, if the fetch fails.
        bring: fetches the partition. It is retried (see ``Attempts``) if the partition or the
            archive changed meanwhile.
    """
    attempts = Attempts()
    try:
        found = attempts.run(bring)
    except (LogError, OSError) as error:
        found = structs.replace(
            found,
            reason=str(error),
            is_damaged=isinstance(error, CorruptLog),
            held=hold_reason_of(error),
        )
    return structs.replace(found, attempts=attempts.count)


def hold_reason_of(error: Exception) -> HoldReason:
    """The ``HoldReason`` for an error that prevents the fetch of a partition."""
    if isinstance(error, NotContinued):
        return HoldReason(error.held)
    if isinstance(error, CorruptLog):
        return HoldReason.DAMAGED
    may_pass = isinstance(error, (RemoteFailed, CommitConflict, LogHeld, OSError))
    return HoldReason.WAITING if may_pass else HoldReason.FAILED


def rejected_report(found: FetchedLog, log: PartitionLog) -> FetchedLog | None:
    """The report on a log that is not fetched because it has a problem. None without a problem."""
    damage = next((problem for problem in log.problems if not problem.is_note), None)
    if damage is None:
        return None
    is_damaged = damage.kind is ProblemKind.DAMAGED
    held = HoldReason.DAMAGED if is_damaged else HoldReason.FAILED
    return structs.replace(found, reason=str(damage), is_damaged=is_damaged, held=held)
