"""Every error that this package raises, each with a stable code and an exit status.

LogError                    LW-100
├── CorruptLog              LW-301  bytes contradict their format
│   └── TruncatedLog        LW-302  a file ends too early
├── BadValue                LW-303  a key or value does not match its schema
├── UnsupportedFormat       LW-101  well formed, but of an unsupported version, codec or layout
├── InvalidConfig           LW-201  an unknown, invalid or contradictory setting
├── NotALog                 LW-202  the path contains no log
├── LogHeld                 LW-401  a broker or another run has locked the log
│   └── TableConflict       LW-402  another writer changed the table first
├── CommitConflict          LW-102  the log changed during the round
├── NotContinued            LW-103  the source does not continue the archive
├── VerificationFailed      LW-501  a promise of compaction is broken
├── OutOfMemoryBudget       LW-104  a batch needs more memory than the setting allows
├── RemoteFailed            LW-105  a server does not answer, or refuses
└── EnvironmentUnfit        LW-106  Java, Spark or the platform is missing or too old

The first digit of a code is the exit status. A docstring states the cause, and the remedy after
``Remedy:``; docs/reference/errors.md is generated from them. All arguments are kept in ``args``,
so an error survives pickling from a worker to the driver.
"""

from __future__ import annotations

import re
import sys

# pattern of the path of an archive's object, in any system
_ARCHIVED = re.compile("/data/[0-9a-f]{32}-[^/]+/[^/]+$")
_OF_ARCHIVE = (
    "no object was changed; restore this one from the bucket's versions or from a copy of the "
    "archive, or fetch the records that the source still has into another archive"
)

_OF_ARCHIVE_AGAIN = (
    "nothing was changed; run the command again: a round may have replaced it. If the "
    "error names the same "
    "object again, restore it from the bucket's versions or from a copy of the archive"
)


def is_of_archive(path: str) -> bool:
    """Whether the path belongs to a data object of an archive."""
    return _ARCHIVED.search(path) is not None


def remedy_at(path: str | None, remedy: str | None, of_archive: str = _OF_ARCHIVE) -> str | None:
    """The remedy for damage at ``path``.

    It is ``of_archive`` if the path is in an archive, because no broker has a replica of an
    archive's objects. Otherwise it is ``remedy``.
    """
    is_archived = remedy is not None and path is not None and is_of_archive(path)
    return of_archive if is_archived else remedy


class LogError(Exception):
    """A problem that has no class of its own.

    ``at`` is a byte position in the file ``path``, or None if no single byte is the cause.
    ``remedy`` is a sentence that states what the user can do.

    Remedy: the message states it.
    """

    code = "LW-100"
    exit_status = 1
    # remedy for damaged objects of an archive, which no broker replicates
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
        remedy = f" — {self.remedy}" if self.remedy else ""
        return f"{place}{self.problem}{remedy} [{self.code}]"

    def located(self, path: str, shift: int = 0) -> LogError:
        """A copy of the error that names the file ``path``.

        The error's position is increased by ``shift`` bytes.
        """
        at = None if self.at is None else self.at + shift
        return type(self)(self.problem, at, self.path or path, self.remedy)


class located:
    """A context that adds the file ``path`` to errors, and ``shift`` bytes to their position."""

    __slots__ = ("_path", "_shift")

    def __init__(self, path: str, shift: int = 0) -> None:
        self._path = path
        self._shift = shift

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, LogError):
            raise error.located(self._path, self._shift) from error


class CorruptLog(LogError):
    """Bytes contradict their format, or a file is missing that other files refer to.

    Remedy: keep the file. Restore it from a replica or a backup, or run ``lastwrite explain`` to
    see what is lost. Another run reads the same bytes.
    """

    code = "LW-301"
    exit_status = 3
    remedy_of_archive = _OF_ARCHIVE


class TruncatedLog(CorruptLog):
    """A file ends inside a record, a batch or another structure.

    The last segment of a log may end like this after a crash.

    Remedy: restore the file from a replica or a backup. Only for the last segment of a Kafka log:
    copy the folder, then start the broker, which truncates the segment to its last whole batch.
    """

    code = "LW-302"


class BadValue(LogError):
    """A key or a value does not match its schema or format; ``path`` is its partition.

    Remedy: correct the schema, read the column as bytes, or choose ``null`` or ``aside`` for bad
    values.
    """

    code = "LW-303"
    exit_status = 3


class UnsupportedFormat(LogError):
    """The data is well formed, but this release does not support its version, codec or layout.

    Remedy: use the release, tool or setting that the message names.
    """

    code = "LW-101"


class InvalidConfig(LogError):
    """A setting is unknown, out of range, or contradicts another one.

    Remedy: correct the setting and run the command again.
    """

    code = "LW-201"
    exit_status = 2


class NotALog(LogError):
    """The path does not exist, or contains nothing that Lastwrite recognises.

    Remedy: give the path of a log root, a store, an archive, a partition or one of its files.
    """

    code = "LW-202"
    exit_status = 2


class LogHeld(LogError):
    """A broker or another run has locked the log.

    Remedy: stop the process that the message names, or wait for it.
    """

    code = "LW-401"
    exit_status = 4


class TableConflict(LogHeld):
    """Another writer changed the table first; nothing of this run was committed.

    Remedy: run the command again.
    """

    code = "LW-402"


class CommitConflict(LogError):
    """The log changed during the round; nothing was replaced, and the old log is complete.

    Remedy: run the command again.
    """

    code = "LW-102"
    remedy_of_archive = _OF_ARCHIVE_AGAIN


class NotContinued(LogError):
    """The source does not continue the archive: records differ, or are missing between the two.

    ``held`` is the reason, a value of ``reports.fetching.HoldReason``.

    Remedy: fetch into another archive. If records are lost, ``--accept-gap`` continues and records
    the gap. For Kafka, ``--set-aside`` sets aside the archived records that the log lacks, and
    continues.
    """

    code = "LW-103"
    held: str = "another"


class VerificationFailed(LogError):
    """A promise of compaction is broken: a record is missing without a reason, or was changed.

    Remedy: keep both logs and report it.
    """

    code = "LW-501"
    exit_status = 5


class OutOfMemoryBudget(LogError):
    """One batch needs more memory than the memory setting allows.

    Remedy: raise ``--memory``.
    """

    code = "LW-104"


class RemoteFailed(LogError):
    """A broker, name server, registry or object store does not answer, or refuses the request.

    ``path`` is the address.

    Remedy: check that the server is running and reachable, then run the command again.
    """

    code = "LW-105"


class EnvironmentUnfit(LogError):
    """Java, Spark, a Python package or the platform is missing or unsuitable.

    Remedy: install what the message names; ``lastwrite doctor`` checks the environment.
    """

    code = "LW-106"


def install_command(extra: str) -> str:
    """The command that installs an extra into the Python environment of the running package."""
    package = f"'lastwrite[{extra}]'"
    if "/pipx/venvs/" in sys.prefix:
        return f"pipx runpip lastwrite install {package}"
    if "/uv/tools/" in sys.prefix:
        return f"uv pip install --python {sys.prefix} {package}"
    if "/uv/archive-" in sys.prefix:
        return f"uvx --from {package} lastwrite"
    return f"pip install {package}"


def missing_extra(
    purpose: str, package: str, extra: str, otherwise: str = "", path: str | None = None
) -> EnvironmentUnfit:
    """The error for a missing package that the extra ``extra`` installs.

    ``otherwise`` is a way to do without the package, such as "leave out spark=".
    """
    return EnvironmentUnfit(
        f"{purpose} needs the package {package}, which is not installed",
        path=path,
        remedy=f"run {install_command(extra)}" + (f", or {otherwise}" if otherwise else ""),
    )


# The codes of failures of a command that are not a ``LogError``.
WRONG_USE, INTERRUPTED, SYSTEM_ERROR, UNEXPECTED = "LW-200", "LW-107", "LW-108", "LW-199"

# The failures that are not a ``LogError``: code, name, exit status, cause and remedy.
OTHER_FAILURES = (
    (
        WRONG_USE,
        "WrongUse",
        2,
        "An unknown command, option or argument.",
        "See the command's help.",
    ),
    (
        INTERRUPTED,
        "Interrupted",
        1,
        "The user or the system interrupted the command. Unfinished work was not committed.",
        "Run the command again.",
    ),
    (
        SYSTEM_ERROR,
        "OSError",
        1,
        "The operating system refused to read or write a file.",
        "Correct the cause that the message names, then run the command again.",
    ),
    (
        UNEXPECTED,
        "any other class",
        1,
        "A fault in Lastwrite.",
        "Report it with the traceback that `LASTWRITE_DEBUG=1` prints.",
    ),
)
