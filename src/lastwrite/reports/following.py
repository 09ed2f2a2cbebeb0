"""The state of a partition that an archive follows, after a fetch."""

from __future__ import annotations

from typing import Annotated

from lastwrite.reports.document import SPREAD, FrozenDocument
from lastwrite.reports.fetching import FetchedLog


class FollowedLog(FrozenDocument, frozen=True, kw_only=True):
    """One partition after a fetch: the result, and the archive's lag behind the log."""

    log: Annotated[FetchedLog, SPREAD]
    # records of the live log above the archive's end at the last request; null before the first
    # request
    lag_records: int | None = None
    # last time at which the archive had every record of the log; null if never
    level_ms: int | None = None
