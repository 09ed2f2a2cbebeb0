"""A partition that a cleaner has set aside, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncleanable:
    """Why the last round of a partition failed, and when it is tried again."""

    reason: str
    since_ms: int  # when it failed first
    tries: int  # failed ones, the first included
    next_try_ms: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}
