"""What became of a partition that an archive follows, turn by turn, as values."""

from __future__ import annotations

from typing import Annotated

from lastwrite.reports.document import SPREAD, FrozenDocument
from lastwrite.reports.fetching import FetchedLog


class FollowedLog(FrozenDocument, frozen=True, kw_only=True):
    """One partition after a turn: what came or why nothing did, and how far behind it is."""

    log: Annotated[FetchedLog, SPREAD]
    # of the live log beyond the archive's end, when it was asked last; None: it never was
    lag_records: int | None = None
    level_ms: int | None = None  # when the archive last had all that there was; None: never yet
