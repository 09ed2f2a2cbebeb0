"""Lines on problems, quarantined partitions and untouched files, shared by all commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from lastwrite.cli.output import in_local_time, local_moment
from lastwrite.model.log import Problem, ProblemKind, TopicPartition
from lastwrite.reports.compaction import Quarantined
from lastwrite.reports.untouched import UNKNOWN, UntouchedFile

_MOST_NAMES = 12


class HasQuarantine(Protocol):
    """A report on a partition, of any system, that may have an entry of the quarantine list."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def uncleanable(self) -> Quarantined | None: ...


def problem_lines(problems: list[Problem]) -> Iterator[str]:
    """One line for each distinct problem, damage first.

    All logs that a broker has open share one line.
    """
    if problems:
        yield ""
    problems = list(dict.fromkeys(problems))
    open = [problem for problem in problems if problem.kind is ProblemKind.OPEN]
    for problem in sorted(problems, key=lambda problem: problem.kind):
        if len(open) == 1 or problem.kind is not ProblemKind.OPEN:
            yield f"{problem.kind}: {problem}"
    if len(open) > 1:
        yield (
            f"{ProblemKind.OPEN}: a broker has {len(open):,} of these logs open; see --json for "
            "the offset up to which each was read"
        )


def quarantine_lines(
    partitions: Sequence[HasQuarantine],
) -> Iterator[str]:
    """One line for each partition that the cleaner has quarantined."""
    for found in partitions:
        entry = found.uncleanable
        if entry is not None:
            name = TopicPartition(found.topic, found.partition)
            yield (
                f"uncleanable: {name}: set aside at {local_moment(entry.since_ms)} after "
                f"{entry.tries:,} {'try' if entry.tries == 1 else 'tries'}; next try at "
                f"{local_moment(entry.next_try_ms)}, or at once "
                f"after lastwrite release: {in_local_time(entry.reason)}"
            )


def untouched_lines(untouched: Sequence[UntouchedFile], *, is_copy: bool = False) -> Iterator[str]:
    """List the files that a command left unchanged because their kind is unknown.

    With ``is_copy``, list all files that the copy lacks.
    """
    unknown = [one.path for one in untouched if one.why == UNKNOWN]
    if is_copy and untouched:
        names = sorted({os.path.basename(one.path) for one in untouched})
        shown = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        yield f"not in the copy: {shown}{more}"
    elif unknown:
        yield f"unknown files, left unchanged: {', '.join(unknown)}"
