"""Reads from a compacted log: the part that each read uses, the next position, the last message.

A log contains ``a@1 b@2 a@3 b@4 c@7``, where ``b@4`` is a tombstone, and was compacted up to its
*horizon* 5: the compacted part is ``a@3``. A read at or below the horizon, 5 included, uses the
compacted part and returns the entries there at or after the position. A read above the horizon uses
the *backlog*, the log itself. So a reader from the start gets ``a@3`` and continues at 4. Position
4 is still below the horizon, and the compacted part has nothing more. So the reader moves beyond
the horizon, to 6, where the backlog returns ``c@7``. No message near the horizon is returned twice
or lost.

A reader keeps only its position. If a newer horizon appears between two reads, the next read uses
the newer pair of horizon and compacted part. The versions of a key that a reader gets still only
rise. A reader may only miss a tombstone between its position and the newer horizon, because no
compacted part contains tombstones.

Offsets are positions in the log. ``EARLIEST`` is before all of them. A horizon need not be the
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
NOT_BATCHED = -1  # batch index of a record outside of batches


class LogPart(StrEnum):
    """The two parts of the log. Each read uses one of them."""

    COMPACTED = "compacted"
    BACKLOG = "backlog"


@dataclass(frozen=True, slots=True)
class ReadStep:
    """The source and position of one read.

    ``first`` is the index in the compacted part where the read begins. It is None if the compacted
    part has nothing for the read, or if the backlog is used. ``position`` is where the backlog is
    read, or where the reader continues after a read that returned nothing.
    """

    source: LogPart
    position: int
    first: int | None = None


def step(
    position: int, horizon: int | None, compacted: Sequence[int], borders: Sequence[int] = ()
) -> ReadStep:
    """The source and position of a read at ``position``.

    Args:
        horizon: None for a log that was never compacted.
        compacted: the offsets of the entries of the compacted part, strictly ascending. Only the
            offsets that a binary search needs are read.
        borders: ascending indexes of ``compacted`` whose offsets are cheaper to read. Other offsets
            are read only between two borders.
    """
    if horizon is None or position > horizon:
        return ReadStep(LogPart.BACKLOG, position)
    number = bisect_left(borders, position, key=compacted.__getitem__)
    low = borders[number - 1] if number else 0
    high = borders[number] if number < len(borders) else len(compacted)
    first = bisect_left(compacted, position, low, high)
    if first == len(compacted):
        return ReadStep(LogPart.COMPACTED, max(position, horizon + 1))
    return ReadStep(LogPart.COMPACTED, position, first)


def last_source(
    last_readable: int | None, horizon: int | None, reads_compacted: bool
) -> LogPart | None:
    """The part of the log that contains a reader's last message. None if there is no message.

    ``last_readable`` is the offset of the backlog's last readable entry, or None without one.
    """
    if not reads_compacted or horizon is None:
        return None if last_readable is None else LogPart.BACKLOG
    if last_readable is None or last_readable <= horizon:
        return LogPart.COMPACTED
    return LogPart.BACKLOG


def last_index(
    source: LogPart, record_count: int | None, survivors: Sequence[int], removed: Iterable[bool]
) -> int:
    """The batch index of an entry's last record, as a broker reports it for the last message.

    ``record_count`` is the number of messages that the batch states, or None for an entry that is
    not a batch. ``survivors`` are the indexes that the batch lists as not removed, or empty without
    such a list. ``removed`` has a flag per record, which is true if compaction removed the record.
    If the entry is unreadable, ``removed`` is empty. It is used only if ``record_count`` and
    ``survivors`` do not decide.
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
