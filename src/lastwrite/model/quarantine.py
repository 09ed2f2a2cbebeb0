"""A partition that a cleaner has set aside, and why."""

from __future__ import annotations

from lastwrite.model.document import FrozenDocument


class Quarantined(FrozenDocument, frozen=True, kw_only=True):
    """Why the last round of a partition failed, and when it is tried again."""

    reason: str
    since_ms: int  # when it failed first
    tries: int  # failed ones, the first included
    next_try_ms: int
