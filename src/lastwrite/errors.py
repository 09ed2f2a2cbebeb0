"""Every error this package raises.

LogError
├── CorruptLog            bytes contradict their format: keep the file, do not retry
│   └── TruncatedLog      bytes stop early: normal at the tail of an active segment
├── BadValue              a key or value does not fit its schema: read it raw, or skip it
├── UnsupportedFormat     well formed, but of an unknown version or codec
├── InvalidConfig         a setting out of range or an unknown name: fix it, start again
├── NotALog               no known log at the path: name another path
├── LogHeld               a broker or another run has the log open: stop it, or wait
│   └── TableConflict     another writer changed the table first: run again
├── CommitConflict        the log changed meanwhile: nothing was swapped, start again
├── VerificationFailed    a promise of compaction does not hold: keep both logs, report it
├── OutOfMemoryBudget     one batch needs more than the memory setting allows: raise it
├── RemoteFailed          a name server or broker does not answer, or refuses: check it, try again
└── EnvironmentUnfit      Java, Spark or the platform is missing: see ``lastwrite doctor``

All arguments are stored in ``args``, so that an error can be pickled from a worker to the driver.
"""

from __future__ import annotations

import re

_ARCHIVED = re.compile("/data/[0-9a-f]{32}-[^/]+/[^/]+$")  # an object of an archive, in any system
_OF_ARCHIVE = (
    "no object was changed; restore this one from the bucket's versions or from a copy of the "
    "archive, or fetch the records that the source still has into another archive"
)

_OF_ARCHIVE_AGAIN = (
    "nothing was changed; run again: a round may have replaced it. If the error names the same "
    "object again, restore it from the bucket's versions or from a copy of the archive"
)


def is_of_archive(path: str) -> bool:
    """Whether the path is an object that a round wrote to an archive."""
    return _ARCHIVED.search(path) is not None


def remedy_at(path: str | None, remedy: str | None, of_archive: str = _OF_ARCHIVE) -> str | None:
    """The remedy for a damaged file at ``path``: ``remedy``, unless the file is in an archive.

    No broker can restore a file of an archive.
    """
    is_archived = remedy is not None and path is not None and is_of_archive(path)
    return of_archive if is_archived else remedy


class LogError(Exception):
    """A problem with a log, its position, and what the user can do.

    ``at`` is a byte position in the file ``path``. None means that no single byte is the cause.
    ``remedy`` is a sentence on what the user can do now.
    """

    exit_status = 1
    # the remedy for an object of an archive, which no broker can restore
    remedy_of_archive: str | None = None

    def __init__(
        self,
        problem: str,
        at: int | None = None,
        path: str | None = None,
        remedy: str | None = None,
    ) -> None:
        if self.remedy_of_archive is not None:
            remedy = remedy_at(path, remedy, self.remedy_of_archive)
        super().__init__(problem, at, path, remedy)
        self.problem = problem
        self.at = at
        self.path = path
        self.remedy = remedy

    def __str__(self) -> str:
        place = ""
        if self.path is not None:
            place = f"{self.path}: " if self.at is None else f"{self.path}, byte {self.at}: "
        elif self.at is not None:
            place = f"byte {self.at}: "
        return f"{place}{self.problem}" + (f" — {self.remedy}" if self.remedy else "")

    def located(self, path: str, shift: int = 0) -> LogError:
        """The same error with its file; ``shift`` bytes are added to its position."""
        at = None if self.at is None else self.at + shift
        return type(self)(self.problem, at, self.path or path, self.remedy)


class located:
    """Add the file to errors raised inside; ``shift`` bytes are added to their position."""

    __slots__ = ("_path", "_shift")

    def __init__(self, path: str, shift: int = 0) -> None:
        self._path = path
        self._shift = shift

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, LogError):
            raise error.located(self._path, self._shift) from error


class CorruptLog(LogError):
    """Bytes contradict their format."""

    exit_status = 3
    remedy_of_archive = _OF_ARCHIVE


class TruncatedLog(CorruptLog):
    """Bytes stop early."""


class BadValue(LogError):
    """A key or a value does not fit its schema; ``path`` is its partition."""

    exit_status = 3


class UnsupportedFormat(LogError):
    """Well formed, but of an unknown version or codec."""


class InvalidConfig(LogError):
    """A setting is unknown, out of range, or conflicts with another."""

    exit_status = 2


class NotALog(LogError):
    """There is no known log at the path."""

    exit_status = 2


class LogHeld(LogError):
    """A broker or another run has the log open."""

    exit_status = 4


class TableConflict(LogHeld):
    """Another writer changed the table first; nothing of this run was committed."""


class CommitConflict(LogError):
    """The log changed while the round ran; the old log is intact."""

    remedy_of_archive = _OF_ARCHIVE_AGAIN


class NotContinued(LogError):
    """The next records of an archive do not match a log.

    ``held`` is the reason in a word, from ``reports.fetching.Held``.
    """

    held: str = "another"


class VerificationFailed(LogError):
    """A promise of compaction does not hold."""

    exit_status = 5


class OutOfMemoryBudget(LogError):
    """One batch needs more memory than the setting allows."""


class RemoteFailed(LogError):
    """A name server or broker does not answer, or refuses; ``path`` is its address."""


class EnvironmentUnfit(LogError):
    """Java, Spark or the platform does not meet the requirements."""
