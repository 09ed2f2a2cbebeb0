"""How a system's records are judged, as values that units of work carry to the workers."""

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
    """The order that makes a record its key's last write; between equals the later offset wins."""

    OFFSET = 0
    TIMESTAMP = 1
    HEADER = 2
    # a delete resets its key's time, so records must be compared in the log's order
    EVENT_TIME = 3
    GROUPS = 4  # by offset; all parts of a larger record share the fate of its last part

    @property
    def has_versions(self) -> bool:
        """Whether an entry needs a version in addition to its record's ordinal."""
        return self is not Strategy.OFFSET


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """The values by which systems differ; ``engine.rules.verdict`` describes the effect of each."""

    now_ms: int
    # from the round that first keeps a tombstone, or from the tombstone's own write
    tombstone_retention_ms: int
    keep_keyless: bool = False
    keep_empty: bool = False  # a batch that is already empty stays
    shell_offset: int = -1  # the batch that ends at this offset stays, empty if need be
    # A tombstone of an old format, which has no horizon, is dropped if its file was last changed by
    # then.
    old_tombstones_until_ms: int = -1
    # The batch of an old format that ends here keeps its last offset, because only that shows where
    # the log ends.
    end_offset: int = -1
    strategy: Strategy = Strategy.OFFSET
    strategy_header: str = ""
    # With a strategy other than OFFSET, the last record before this offset (the log's end) stays
    # though shadowed.
    pinned_offset: int = -1
    # No tombstone is dropped. With a strategy other than OFFSET, a record above the range may be
    # the older write.
    keep_tombstones: bool = False
    # A tombstone in a batch that ends beyond this offset is held for readers that have not reached
    # it: it is dropped ``hold_ms`` later.
    held_from: int = NOT_HELD
    hold_ms: int = 0
    # The batches' horizons are their write times. A tombstone is dropped ``tombstone_retention_ms``
    # after its write, and nothing is stamped.
    ages_by_write_time: bool = False
    # The last record before this offset (the log's end) always stays.
    kept_end_offset: int = -1
    # The format's own number for settings that affect how it reads and writes records.
    reading: int = 0
    # Last offsets of the last data batches of active producers, ascending: these batches stay,
    # empty if need be.
    last_offsets: Int64Array = field(default_factory=_none)
    # (id, epoch) of active producers without such a batch, ascending: their markers of that epoch
    # stay, empty if need be.
    marker_producers: Int64Array = field(default_factory=_no_pairs)

    @property
    def new_horizon_ms(self) -> int | None:
        """The delete horizon that a round stamps on a batch. None if it would exceed a 64-bit
        integer.

        Source: Kafka 4.4.0 MemoryRecordsBuilder, which writes no horizon below 0. A sum that
        overflows is below 0.
        """
        horizon_ms = self.now_ms + self.tombstone_retention_ms
        return horizon_ms if 0 <= horizon_ms <= LONG_MAX else None

    def held_until_ms(self, horizon_ms: int) -> int | None:
        """When a held tombstone with this horizon is dropped. None means never, unless a reader
        reaches it.
        """
        until_ms = horizon_ms + self.hold_ms
        return None if self.hold_ms >= FOR_EVER_MS or until_ms > LONG_MAX else until_ms
