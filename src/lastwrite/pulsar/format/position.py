"""Where an entry lies: ledger and entry, and the two as one offset.

Ledger ids of a topic rise, entries of a ledger are 0, 1, 2 …; so ``ledger << 32 | entry`` rises
through a topic, and entry 5 of ledger 10 is offset 42949672965. An entry is a record batch: its
messages share the offset.

``10:-1`` is the place before ledger 10's first entry, as cursors have it; its offset comes before
that entry's.

Source: Pulsar 4.2.4 ``PositionImpl``; docs/formats/pulsar.md, "Positions".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lastwrite.errors import InvalidConfig, UnsupportedFormat

ENTRY_BITS = 32
MAX_LEDGER = (1 << 31) - 2  # the offset behind its last entry is an int64, too
MAX_ENTRY = (1 << 32) - 1
# The compacted ledger's base offset: it stands before entry 0:0, which a raw ledger may begin with.
COMPACTED = -1

_TEXT = re.compile(r"(-1|[0-9]{1,19}):(-1|[0-9]{1,19})", re.ASCII)


class Position(NamedTuple):
    """The id of an entry; ordered as the log is."""

    ledger: int
    entry: int

    @property
    def offset(self) -> int:
        """Both numbers as one, int64.

        Raises:
            UnsupportedFormat: a ledger beyond 2^31 - 2, an entry beyond 2^32 - 1, or one below -1.
        """
        if not (-1 <= self.ledger <= MAX_LEDGER and -1 <= self.entry <= MAX_ENTRY):
            raise UnsupportedFormat(
                f"entry {self} does not fit an offset",
                remedy=f"ledgers up to {MAX_LEDGER} can be compacted",
            )
        return (self.ledger << ENTRY_BITS) + self.entry

    @property
    def next(self) -> Position:
        """The place behind the entry, in the same ledger."""
        return Position(self.ledger, self.entry + 1)

    @classmethod
    def of(cls, offset: int) -> Position:
        """The entry of an offset; of one that ``10:-1`` gave, the last that ledger 9 could have."""
        return cls(offset >> ENTRY_BITS, offset & MAX_ENTRY)

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position of ``ledger:entry``; further parts (partition, batch index) are not ours.

        Raises:
            InvalidConfig: another form.
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise InvalidConfig(f"{text!r} is no message id", remedy="give LEDGER:ENTRY, like 10:5")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST = Position(-1, -1)
