"""The position of an entry: ledger id and entry id, and both as one offset.

Ledger ids of a topic rise, and entries of a ledger are numbered 0, 1, 2 …. So ``ledger << 32 |
entry`` rises through a topic: entry 5 of ledger 10 has offset 42949672965. An entry is a record
batch, and its messages share the offset.

``10:-1`` is the position before ledger 10's first entry, as cursors use it. Its offset is below the
offset of that entry.

Source: Pulsar 4.2.4 ``PositionImpl``; docs/formats/pulsar.md, "Positions".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lastwrite.errors import InvalidConfig, UnsupportedFormat

ENTRY_BITS = 32
# the highest ledger id; the offset after its last entry still fits an int64
MAX_LEDGER = (1 << 31) - 2
MAX_ENTRY = (1 << 32) - 1
# The base offset of the compacted ledger, which is below the offset of every raw entry.
COMPACTED = -1

_TEXT = re.compile(r"(-1|[0-9]{1,19}):(-1|[0-9]{1,19})", re.ASCII)


class Position(NamedTuple):
    """The id of an entry: ledger and entry number. Positions sort in the log's order."""

    ledger: int
    entry: int

    @property
    def offset(self) -> int:
        """The position as one int64, ``ledger << 32 | entry``.

        Raises:
            UnsupportedFormat: the ledger is above 2^31 - 2, the entry above 2^32 - 1, or one is
                below -1.
        """
        if not (-1 <= self.ledger <= MAX_LEDGER and -1 <= self.entry <= MAX_ENTRY):
            raise UnsupportedFormat(
                f"entry {self} is outside the range that Lastwrite supports",
                remedy=f"only topics with ledger ids up to {MAX_LEDGER} can be compacted",
            )
        return (self.ledger << ENTRY_BITS) + self.entry

    @property
    def next(self) -> Position:
        """The position after this entry, in the same ledger."""
        return Position(self.ledger, self.entry + 1)

    @classmethod
    def of(cls, offset: int) -> Position:
        """The position with this offset.

        The offset of ``10:-1`` gives the last entry that ledger 9 could have.
        """
        return cls(offset >> ENTRY_BITS, offset & MAX_ENTRY)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse ``ledger:entry``.

        A message id with further parts (partition, batch index) is an error.

        Raises:
            InvalidConfig: the text has another form.
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise InvalidConfig(
                f"{text!r} is not a message id", remedy="give LEDGER:ENTRY, for example 10:5"
            )
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST = Position(-1, -1)
