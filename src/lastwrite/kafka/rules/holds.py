"""For whom deletes are held: groups that were named, and have not come so far.

``hold.tombstones.for.groups=a`` keeps a delete that is its key's last write until group ``a`` has
committed an offset beyond its batch; one that goes by its horizon goes ``hold.tombstones.max.ms``
after that all the same. A group of which nothing is known holds them, too: nobody guesses that it
has read anything. Nothing else is held: a superseded delete goes at once, and retention takes whole
segments.

The smallest case: ``a`` stands at 7, and ``b`` is not known. Deletes are held from 0 on; once ``b``
has committed 9, from 7 on.

Source: docs/decisions/dropping-a-tombstone.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lastwrite.model.policy import FOR_EVER_MS, NOT_HELD
from lastwrite.reports.holding import HeldFor


def held_for(
    groups: Sequence[str],
    positions: Mapping[str, int],
    end_offset: int,
    reasons: Mapping[str, str] | None = None,
) -> tuple[HeldFor, ...]:
    """The ``groups`` that have not read the log to its end.

    ``positions``: the offset that each known group wants next. ``reasons``: why a position is not
    known, where it cannot be read.
    """
    found = []
    for group in groups:
        position = positions.get(group)
        if position is None or position < end_offset:
            behind = None if position is None else end_offset - max(position, 0)
            reason = None if position is not None else (reasons or {}).get(group)
            found.append(HeldFor(group=group, position=position, behind=behind, reason=reason))
    return tuple(found)


def held_from(holding: Iterable[HeldFor]) -> int:
    """The offset from which on deletes are held."""
    return min((each.position or 0 for each in holding), default=NOT_HELD)


def hold_ms(max_ms: int) -> int:
    """``hold.tombstones.max.ms`` as a policy has it; -1: for ever."""
    return FOR_EVER_MS if max_ms < 0 else min(max_ms, FOR_EVER_MS)
