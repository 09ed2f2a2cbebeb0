"""Entries that a ledger has and its data object lacks: ranges of ids in the object's index.

If entry 7 of a ledger is damaged in every copy, ``fetch`` stores the other entries. The object then
has entries 0 to 6 in one block and 8 to 89 in the next. The custom metadata of its index contain
``lastwrite/missing`` = ``7``. Several ranges are ``7,12-15``: ascending, with at least one entry
between two ranges. A block begins after each range, so a reader of the index skips them without
further code. Only archives have this item: no broker reads a ledger with a gap.
The item is Lastwrite's own; the rest of the index is Pulsar 4.2.4 ``OffloadIndexBlockImpl``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lastwrite.errors import CorruptLog
from lastwrite.model.columns import Int64Array
from lastwrite.pulsar.format.position import MAX_ENTRY

# key in the index's custom metadata, under which missing entries are listed
MISSING = "lastwrite/missing"

_RANGES = re.compile(rb"[0-9]{1,10}(-[0-9]{1,10})?(,[0-9]{1,10}(-[0-9]{1,10})?)*")
_MOST_NAMED = 5


class EntryRange(NamedTuple):
    """Entries ``first`` to ``last`` of one ledger."""

    first: int
    last: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


def missing_in(entries: Int64Array, end: int) -> tuple[EntryRange, ...]:
    """The ids below ``end`` that are not in ``entries``, which must ascend."""
    known = np.concatenate(([-1], entries[entries < end], [end])).astype(np.int64)
    before = np.flatnonzero(np.diff(known) > 1)
    return tuple(EntryRange(int(known[n]) + 1, int(known[n + 1]) - 1) for n in before)


def ranges_of(entries: Sequence[int]) -> tuple[EntryRange, ...]:
    """The ranges with exactly the ids ``entries``, which ascend. Adjacent ids are in one range."""
    found: list[EntryRange] = []
    for entry in entries:
        if found and entry == found[-1].last + 1:
            found[-1] = EntryRange(found[-1].first, entry)
        else:
            found.append(EntryRange(entry, entry))
    return tuple(found)


def between(ranges: Iterable[EntryRange], first: int, end: int) -> tuple[EntryRange, ...]:
    """The overlap of the ranges with the entries from ``first`` to before ``end``."""
    return tuple(
        EntryRange(max(each.first, first), min(each.last, end - 1))
        for each in ranges
        if each.last >= first and each.first < end
    )


def entries_in(ranges: Iterable[EntryRange]) -> int:
    """The total number of entries in the ranges."""
    return sum(each.entries for each in ranges)


def encode_ranges(ranges: Sequence[EntryRange]) -> bytes:
    """Encode ascending ranges as text, for example ``7,12-15``."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges).encode()


def decode_ranges(text: bytes) -> tuple[EntryRange, ...]:
    """Parse ranges from text such as ``7,12-15``.

    Raises:
        CorruptLog: the text has another form, or the ranges do not ascend.
    """
    if not _RANGES.fullmatch(text):
        raise CorruptLog(f"the list of missing entries {text[:40]!r} cannot be parsed")
    found = []
    for part in text.decode().split(","):
        first, _, last = part.partition("-")
        found.append(EntryRange(int(first), int(last or first)))
    end = -2  # adjacent ranges are invalid, because a writer joins them
    for first_entry, last_entry in found:
        if not end + 2 <= first_entry <= last_entry <= MAX_ENTRY:
            raise CorruptLog(f"the list of missing entries {text[:40]!r} is not in ascending order")
        end = last_entry
    return tuple(found)


def describe_ids(ledger: int, ranges: Sequence[EntryRange]) -> str:
    """Describe ranges of entries in words, the first few by id.

    For example ``entry 80:7``, or ``entries 80:0 to 80:4 and 80:9, 6 in all``.
    """
    count = entries_in(ranges)
    named = [
        f"{ledger}:{a}" if a == b else f"{ledger}:{a} to {ledger}:{b}"
        for a, b in ranges[:_MOST_NAMED]
    ]
    if len(ranges) > _MOST_NAMED:
        named.append(f"{len(ranges) - _MOST_NAMED} more ranges")
    text = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    total = f", {count} in all" if len(ranges) > 1 else ""
    return f"{'entry' if count == 1 else 'entries'} {text}{total}"
