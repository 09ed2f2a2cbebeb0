"""Which consumer groups block the removal of tombstones.

A tombstone may be the last write of its key. With ``hold.tombstones.for.groups=a`` it is then kept
until group ``a`` has committed an offset after the tombstone's batch. ``hold.tombstones.max.ms``
after the delete horizon it is removed in any case. An unknown group also blocks the removal,
because the group may not have read any record. The setting keeps no other record: a superseded
tombstone is removed at once, and retention deletes whole segments.

The smallest case: group ``a`` has committed offset 7, and group ``b`` is unknown. Tombstones are
kept from offset 0 on. After ``b`` has committed offset 9, they are kept from offset 7 on.

Source: docs/decisions/dropping-a-tombstone.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lastwrite.model.policy import FOR_EVER_MS, NOT_HELD
from lastwrite.reports.holding import BlockingGroup


def blocking_groups(
    groups: Sequence[str],
    positions: Mapping[str, int],
    end_offset: int,
    reasons: Mapping[str, str] | None = None,
) -> tuple[BlockingGroup, ...]:
    """The consumer groups in ``groups`` that have not read the log to its end.

    ``positions`` has the committed offset of each known group. ``reasons`` has an error for each
    group with an offset that could not be read.
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
    """The offset from which on tombstones are kept for the blocking groups ``holding``."""
    return min((each.position or 0 for each in holding), default=NOT_HELD)


def hold_ms(max_ms: int) -> int:
    """Convert ``hold.tombstones.max.ms``, where -1 means for ever, to the value in ``Policy``."""
    return FOR_EVER_MS if max_ms < 0 else min(max_ms, FOR_EVER_MS)
