"""The state of a partition that an archive follows, after each fetch, as values."""

from __future__ import annotations

from typing import Annotated

from lastwrite.reports.document import SPREAD, FrozenDocument
from lastwrite.reports.fetching import FetchedLog


class FollowedLog(FrozenDocument, frozen=True, kw_only=True):
    """One partition after a fetch: the result, and how far the archive lags behind."""

    log: Annotated[FetchedLog, SPREAD]
    # records of the live log beyond the archive's end at the last request; null before the first
    lag_records: int | None = None
    level_ms: int | None = None  # when the archive last had every record of the log; null if never
