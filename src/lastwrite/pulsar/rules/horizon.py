"""What a reader gets of a log that has a compacted part: where each read looks, where it goes on,
what comes last.

A log holds ``a@1 b@2 a@3 b@4 c@7``, in which ``b@4`` is a delete, and was compacted up to its
*horizon* 5: the compacted part is ``a@3``. A read at or below the horizon, 5 included, looks into
the compacted part and gives what lies there at the position or behind it; a read above looks into
the *backlog*, the log itself. So a reader from the begin gets ``a@3`` and goes on at 4. There,
still below the horizon, the compacted part has nothing more, and the reader is moved behind the
horizon, to 6, where the backlog gives ``c@7``. Nothing comes twice at the border, nothing is left
out.

A reader keeps nothing but its position. When a newer horizon appears between two reads, the next
read asks the newer pair of horizon and compacted part; what a reader sees of a key still only
rises. One thing it may miss: a delete between its position and the newer horizon, for deletes are
in no compacted part.

Offsets are places in the log. ``EARLIEST`` lies before all of them. A horizon need not be the
offset of a record.

Source: Pulsar 4.2.4 ``CompactedTopicImpl``, ``ServerCnx.handleGetLastMessageId``;
docs/formats/pulsar-compaction.md, "Reads around the horizon" and "The last message id".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

EARLIEST = -1
NOT_BATCHED = -1  # the index of a record that is in no batch


class LogPart(StrEnum):
    """Which part of the log answers."""

    COMPACTED = "compacted"
    BACKLOG = "backlog"


@dataclass(frozen=True, slots=True)
class Step:
    """Where a read looks. ``first`` is the place in the compacted part at which it begins; None:
    nothing is there for it, or the backlog answers. ``position`` is where the backlog is read from,
    or where the reader goes on after a read that gave nothing."""

    source: LogPart
    position: int
    first: int | None = None


def step(
    position: int, horizon: int | None, compacted: Sequence[int], borders: Sequence[int] = ()
) -> Step:
    """Where a read at ``position`` looks, in a log whose compacted part has entries at the offsets
    ``compacted``.

    ``horizon``: None for a log that was never compacted. ``compacted`` rises strictly; it is asked
    for no more offsets than halving needs. ``borders``: places in it, rising, whose offsets are
    cheaper to ask; those of others are asked between two borders only.
    """
    if horizon is None or position > horizon:
        return Step(LogPart.BACKLOG, position)
    number = bisect_left(borders, position, key=compacted.__getitem__)
    low = borders[number - 1] if number else 0
    high = borders[number] if number < len(borders) else len(compacted)
    first = bisect_left(compacted, position, low, high)
    if first == len(compacted):
        return Step(LogPart.COMPACTED, max(position, horizon + 1))
    return Step(LogPart.COMPACTED, position, first)


def last_source(
    last_readable: int | None, horizon: int | None, reads_compacted: bool
) -> LogPart | None:
    """Which part says what a reader's last message is; None: there is no message.

    ``last_readable``: the offset of the backlog's last entry that readers get, None where the
    backlog has none.
    """
    if not reads_compacted or horizon is None:
        return None if last_readable is None else LogPart.BACKLOG
    if last_readable is None or last_readable <= horizon:
        return LogPart.COMPACTED
    return LogPart.BACKLOG


def last_index(
    source: LogPart, record_count: int | None, survivors: Sequence[int], removed: Iterable[bool]
) -> int:
    """The index of the last record of an entry, for who asks for the last message.

    ``record_count``: what the batch says that it holds; None: the entry is no batch. ``survivors``:
    the indexes that it names as not removed, none where it does not name them. ``removed``: of each
    record whether compaction took it, empty where nobody can look inside; asked for only where
    neither of the others decides.
    """
    if source is LogPart.BACKLOG:
        return NOT_BATCHED if record_count is None else record_count - 1
    if record_count is None or record_count <= 1:
        return NOT_BATCHED
    if survivors:
        return survivors[-1]
    marks = list(removed)
    left = [index for index, is_removed in enumerate(marks) if not is_removed]
    return left[-1] if left else record_count - 1
