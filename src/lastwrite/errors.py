"""Every error this package raises.

LogError
├── CorruptLog            bytes contradict their format: keep the file, do not retry
│   └── TruncatedLog      bytes stop early: normal at the tail of an active segment
├── BadValue              a key or value is not what its schema says: read it raw, or put it aside
├── UnsupportedFormat     well formed, but of a version or codec we do not know
├── InvalidConfig         a setting out of range or an unknown name: fix it, start again
├── NotALog               nothing that we know lies at the path: point us elsewhere
├── LogHeld               a broker or another run holds the log: stop it, or wait
│   └── TableConflict     another writer changed the table first: run again
├── CommitConflict        the log changed while we worked: nothing was swapped, start again
├── VerificationFailed    a promise of compaction does not hold: keep both logs, report it
├── OutOfMemoryBudget     one batch needs more than the memory setting allows: raise it
├── RemoteFailed          a name server or broker does not answer, or refuses: see to it, ask again
└── EnvironmentUnfit      Java, Spark or the platform is missing: see ``lastwrite doctor``

All arguments are kept in ``args``, so an error survives the trip from a worker to the driver.
"""

from __future__ import annotations

import re

_ARCHIVED = re.compile("/data/[0-9a-f]{32}-[^/]+/[^/]+$")  # an object of an archive, in any system
_OF_ARCHIVE = (
    "no object was changed; bring this one back from the bucket's versions or a copy of the "
    "archive, or fetch what the source still has into another archive"
)

_OF_ARCHIVE_AGAIN = (
    "nothing was changed; run again: a round may have replaced it. Where the same object is named "
    "again, bring it back from the bucket's versions or a copy of the archive"
)


def is_of_archive(path: str) -> bool:
    """Whether it is of an object that an archive's round has written, under a name of its own."""
    return _ARCHIVED.search(path) is not None


def remedy_at(path: str | None, remedy: str | None, of_archive: str = _OF_ARCHIVE) -> str | None:
    """What to do where the file at ``path`` is damaged: ``remedy``, unless an archive has it, of
    which no broker knows.
    """
    is_archived = remedy is not None and path is not None and is_of_archive(path)
    return of_archive if is_archived else remedy


class LogError(Exception):
    """A problem with a log, where it lies, and what to do about it.

    ``at`` is a byte position in the file ``path``, or None where no single byte is to blame.
    ``remedy`` is a sentence that tells the reader what to do now.
    """

    exit_status = 1
    remedy_of_archive: str | None = None  # of an object of an archive, of which no broker knows

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
        """The same error with its file named; ``shift`` bytes are added to its position."""
        at = None if self.at is None else self.at + shift
        return type(self)(self.problem, at, self.path or path, self.remedy)


class located:
    """Name the file in errors raised inside; ``shift`` bytes are added to their position."""

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
    """A key or a value is not what its schema says; ``path`` is its partition."""

    exit_status = 3


class UnsupportedFormat(LogError):
    """Well formed, but of a version or codec that we do not know."""


class InvalidConfig(LogError):
    """A setting is unknown, out of range, or does not go with another."""

    exit_status = 2


class NotALog(LogError):
    """Nothing that we know lies at the path."""

    exit_status = 2


class LogHeld(LogError):
    """A broker or another run holds the log."""

    exit_status = 4


class TableConflict(LogHeld):
    """Another writer changed the table first; nothing of this run was committed."""


class CommitConflict(LogError):
    """The log changed while we worked; the old log is whole."""

    remedy_of_archive = _OF_ARCHIVE_AGAIN


class NotContinued(LogError):
    """What comes next in an archive is not what a log has; ``held``: why, in a word, as
    ``reports.fetching.Held`` has it.
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
    """Java, Spark or the platform is not what we need."""
