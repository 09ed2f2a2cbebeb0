"""What a log costs that compaction copies from and leaves as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
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

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}
