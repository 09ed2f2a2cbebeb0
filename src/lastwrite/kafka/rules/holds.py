"""Which consumer groups block the removal of tombstones.

``hold.tombstones.for.groups=a`` keeps a tombstone that is its key's last write until group ``a``
has committed an offset beyond its batch. If the delete horizon has passed, the tombstone is removed
``hold.tombstones.max.ms`` after that in any case. An unknown group blocks them too, because it may
not have read anything. Nothing else is kept: a superseded tombstone is removed at once, and
retention deletes whole segments.

The smallest case: ``a`` is at 7, and ``b`` is unknown. Tombstones are kept from 0 on; once ``b``
has committed 9, from 7 on.

Source: docs/decisions/dropping-a-tombstone.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lastwrite.model.policy import FOR_EVER_MS, NOT_HELD
from lastwrite.reports.holding import BlockingGroup


def held_for(
    groups: Sequence[str],
    positions: Mapping[str, int],
    end_offset: int,
    reasons: Mapping[str, str] | None = None,
) -> tuple[BlockingGroup, ...]:
    """The ``groups`` that have not read the log to its end.

    ``positions`` has the next offset of each known group. ``reasons`` has the errors of positions
    that could not be read.
    """
    found = []
    for group in groups:
        position = positions.get(group)
        if position is None or position < end_offset:
            behind = None if position is None else end_offset - max(position, 0)
            reason = None if position is not None else (reasons or {}).get(group)
            found.append(
                BlockingGroup(group=group, position=position, behind=behind, reason=reason)
            )
    return tuple(found)


def held_from(holding: Iterable[BlockingGroup]) -> int:
    """The offset from which on tombstones are kept."""
    return min((each.position or 0 for each in holding), default=NOT_HELD)


def hold_ms(max_ms: int) -> int:
    """``hold.tombstones.max.ms`` as a policy stores it. -1 means for ever."""
    return FOR_EVER_MS if max_ms < 0 else min(max_ms, FOR_EVER_MS)
