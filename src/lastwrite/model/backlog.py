"""What a log costs that compaction copies from and leaves as it is."""

from __future__ import annotations

from lastwrite.model.document import FrozenDocument


class Backlog(FrozenDocument, frozen=True, kw_only=True):
    """The segments that a round leaves as they are, seen from the horizon that it reaches."""

    segments: int  # that lie below the horizon whole: of compacted readers nobody needs them
    bytes: int
    segments_beyond: int  # the others, one that the horizon cuts among them
    bytes_beyond: int
    segments_free: (
        int  # of those below: retention does not hold them, once every subscription has passed them
    )
    bytes_free: int
    reason: str | None  # why the first of the others below has to stay; None: there is none
