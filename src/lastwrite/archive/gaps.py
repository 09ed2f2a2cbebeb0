"""Gaps of an archive: records lost between two fetches, whose loss ``--accept-gap`` allowed.

The manifest of a partition records its gaps. Each command that reads the partition reports them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from lastwrite.model.log import PartitionLog, Problem, ProblemKind


def gap_sentence(what: str) -> str:
    """A sentence about a gap. ``what`` is a plural noun for the lost records."""
    return (
        f"{what} were lost before they were fetched; keys that were written or deleted there "
        "have older values in the archive"
    )


def gap_at(path: str, text: str) -> Problem:
    """A problem note about a gap of the partition at ``path``."""
    return Problem(ProblemKind.GAP, text, path)


class RecordsLost(UserWarning):
    """A warning that records of an archive were lost before they were fetched."""


def warn_of(logs: Iterable[PartitionLog], named: set[str]) -> None:
    """Warn of each gap in the logs.

    A gap whose text is in ``named`` was reported before and is skipped.

    Adds the reported gaps to ``named``. A gap of an archive causes a ``RecordsLost`` warning. A gap
    of a log directory causes a plain ``UserWarning``, because compaction may explain it.
    """
    for log in logs:
        kind = UserWarning if log.holes else RecordsLost
        for gap in map(str, gaps_in([log])):
            if gap not in named:
                named.add(gap)
                warnings.warn(gap, kind, stacklevel=3)


def gaps_in(logs: Iterable[PartitionLog]) -> list[Problem]:
    """Problem notes about all gaps of these logs."""
    return [each for log in logs for each in log.problems if each.kind is ProblemKind.GAP]
