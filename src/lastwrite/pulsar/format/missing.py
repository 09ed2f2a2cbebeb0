"""Entries that a ledger has and its data object lacks: ranges of entry ids, noted in the object's
own index.

``fetch`` brings what is whole of a ledger whose entry 7 is damaged in every copy. The object then
holds entries 0 to 6 in one block and 8 to 89 in the next, and the custom metadata of its index say
``lastwrite/missing`` = ``7``. Several ranges are ``7,12-15``, rising and apart. A block begins
after each of them, so every reader finds its way by the index. The pair is for archives: no broker
reads a ledger with a gap.

The form is ours; the rest of the index is Pulsar 4.2.4 ``OffloadIndexBlockImpl``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lastwrite.errors import CorruptLog
from lastwrite.model.columns import Int64Array
from lastwrite.pulsar.format.position import MAX_ENTRY

MISSING = "lastwrite/missing"  # a custom metadatum of the index

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
    """The ids from 0 to before ``end`` that are not among ``entries``, which rise."""
    known = np.concatenate(([-1], entries[entries < end], [end])).astype(np.int64)
    before = np.flatnonzero(np.diff(known) > 1)
    return tuple(EntryRange(int(known[n]) + 1, int(known[n + 1]) - 1) for n in before)


def ranges_of(entries: Sequence[int]) -> tuple[EntryRange, ...]:
    """The ranges that these ids, which rise, make."""
    found: list[EntryRange] = []
    for entry in entries:
        if found and entry == found[-1].last + 1:
            found[-1] = EntryRange(found[-1].first, entry)
        else:
            found.append(EntryRange(entry, entry))
    return tuple(found)


def between(ranges: Iterable[EntryRange], first: int, end: int) -> tuple[EntryRange, ...]:
    """What of the ranges lies from entry ``first`` on and before entry ``end``."""
    return tuple(
        EntryRange(max(each.first, first), min(each.last, end - 1))
        for each in ranges
        if each.last >= first and each.first < end
    )


def entries_in(ranges: Iterable[EntryRange]) -> int:
    """How many entries the ranges have."""
    return sum(each.entries for each in ranges)


def encode_ranges(ranges: Sequence[EntryRange]) -> bytes:
    """The text of ranges that rise."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges).encode()


def decode_ranges(text: bytes) -> tuple[EntryRange, ...]:
    """The ranges of a text.

    Raises:
        CorruptLog: it is none, or they do not rise.
    """
    if not _RANGES.fullmatch(text):
        raise CorruptLog(f"{text[:40]!r} names no missing entries")
    found = []
    for part in text.decode().split(","):
        first, _, last = part.partition("-")
        found.append(EntryRange(int(first), int(last or first)))
    end = -2  # two ranges that touch were one
    for first_entry, last_entry in found:
        if not end + 2 <= first_entry <= last_entry <= MAX_ENTRY:
            raise CorruptLog(f"the missing entries {text[:40]!r} do not rise")
        end = last_entry
    return tuple(found)


def in_words(ledger: int, ranges: Sequence[EntryRange]) -> str:
    """The ids, the first few by name: ``entry 80:7``, ``entries 80:0 to 80:4 and 80:9, 90 in all``."""
    count = entries_in(ranges)
    named = [
        f"{ledger}:{a}" if a == b else f"{ledger}:{a} to {ledger}:{b}"
        for a, b in ranges[:_MOST_NAMED]
    ]
    if len(ranges) > _MOST_NAMED:
        named.append(f"{len(ranges) - _MOST_NAMED} more stretches")
    told = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    total = f", {count} in all" if len(ranges) > 1 else ""
    return f"{'entry' if count == 1 else 'entries'} {told}{total}"
