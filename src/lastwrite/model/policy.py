"""How one system wants its records judged, as values: units of work carry them to the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from lastwrite.model.columns import Int64Array

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
NOT_HELD = LONG_MAX
FOR_EVER_MS = 2**62


def _none() -> Int64Array:
    return np.empty(0, dtype=np.int64)


def _no_pairs() -> Int64Array:
    return np.empty((0, 2), dtype=np.int64)


class Strategy(IntEnum):
    """What makes a record its key's last write; a later offset decides between equals."""

    OFFSET = 0
    TIMESTAMP = 1
    HEADER = 2
    # a delete lets the key's time be forgotten, so records are compared in the log's order alone
    EVENT_TIME = 3
    GROUPS = 4  # by offset; parts of a larger record stay and go with its last

    @property
    def has_versions(self) -> bool:
        """Whether an entry needs more than its record's place."""
        return self is not Strategy.OFFSET


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """Values differ between systems, code does not. See ``engine.rules.verdict`` for what each
    decides.
    """

    now_ms: int
    # from the round that first keeps a tombstone, or from its own write
    tombstone_retention_ms: int
    keep_keyless: bool = False
    keep_empty: bool = False  # a batch that is empty already stays
    shell_offset: int = -1  # the batch whose next offset is this one stays, empty if need be
    # A tombstone of an old format, which knows no horizon, goes if its file was last changed by
    # then.
    old_tombstones_until_ms: int = -1
    # The batch of an old format that ends here keeps its last offset: nothing else tells where the
    # log ends.
    end_offset: int = -1
    strategy: Strategy = Strategy.OFFSET
    strategy_header: str = ""
    # With another strategy than OFFSET the last record before this offset, the log's end, stays
    # though shadowed.
    pinned_offset: int = -1
    # No tombstone goes: by another strategy than OFFSET a write that lies above the range may be an
    # older one.
    keep_tombstones: bool = False
    # A tombstone in a batch that ends beyond this offset is held for readers who have not come so
    # far: it goes ``hold_ms`` later than it might.
    held_from: int = NOT_HELD
    hold_ms: int = 0
    # What the batches have for horizons is when they were written: a tombstone goes when that is as
    # long ago as ``tombstone_retention_ms``, and nothing is ever stamped.
    ages_by_write_time: bool = False
    # The last record before this offset, the log's end, stays, whatever it is.
    kept_end_offset: int = -1
    # How the system's format shall read and write records where settings decide that: a number of
    # the format's own.
    reading: int = 0
    # Last offsets of active producers' last data batches, ascending: these batches stay, empty if
    # need be.
    last_offsets: Int64Array = field(default_factory=_none)
    # (id, epoch) of active producers without such a batch, ascending: their markers of that epoch
    # stay so.
    marker_producers: Int64Array = field(default_factory=_no_pairs)

    @property
    def new_horizon_ms(self) -> int | None:
        """The delete horizon that a round gives to a batch; None where it would be beyond a long.

        Source: Kafka 4.4.0 MemoryRecordsBuilder, which writes no horizon below 0. A sum that has
        wrapped is below 0.
        """
        horizon_ms = self.now_ms + self.tombstone_retention_ms
        return horizon_ms if 0 <= horizon_ms <= LONG_MAX else None

    def held_until_ms(self, horizon_ms: int) -> int | None:
        """When a held tombstone of this horizon goes; None means never, by itself."""
        until_ms = horizon_ms + self.hold_ms
        return None if self.hold_ms >= FOR_EVER_MS or until_ms > LONG_MAX else until_ms
