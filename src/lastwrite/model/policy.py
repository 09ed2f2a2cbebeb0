"""The policy by which the rules decide on records. Units of work contain it as a value."""

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
    """The value by which a key's last write is elected. At equal values the offset decides."""

    OFFSET = 0
    TIMESTAMP = 1
    HEADER = 2
    # by event time; records are compared in the log's order, because a delete resets the key's
    # time
    EVENT_TIME = 3
    GROUPS = 4  # by offset; all parts of a larger record share the verdict of its last part

    @property
    def has_versions(self) -> bool:
        """Whether election entries need a version in addition to the record's ordinal."""
        return self is not Strategy.OFFSET


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """The values by which the rules of systems differ.

    ``engine.rules.verdict`` describes their effects.
    """

    now_ms: int
    # time that a tombstone stays after the round that first keeps it, or after its write
    tombstone_retention_ms: int
    keep_keyless: bool = False
    keep_empty: bool = False  # whether batches that are already empty stay
    shell_offset: int = -1  # the batch that ends at this offset stays, even without records
    # A tombstone of an old format has no horizon. It is dropped if its file was last changed at or
    # before this time.
    old_tombstones_until_ms: int = -1
    # A batch of an old format that ends at this offset keeps its last offset when it is converted,
    # because only that offset shows where the log ends.
    end_offset: int = -1
    strategy: Strategy = Strategy.OFFSET
    strategy_header: str = ""
    # With a strategy other than OFFSET, the last record before this offset (the log's end) stays
    # even if it is shadowed.
    pinned_offset: int = -1
    # Whether no tombstone is dropped. Needed with a strategy other than OFFSET, if a record above
    # the range may be an older write.
    keep_tombstones: bool = False
    # A tombstone in a batch that ends beyond this offset is held for readers that have not reached
    # it. It is dropped ``hold_ms`` after its horizon.
    held_from: int = NOT_HELD
    hold_ms: int = 0
    # Whether a batch's horizon is its write time. If so, a tombstone is dropped
    # ``tombstone_retention_ms`` later, and no horizon is stamped.
    ages_by_write_time: bool = False
    # The last record before this offset (the log's end) always stays.
    kept_end_offset: int = -1
    # The format's own settings for reading and writing records, encoded as a number.
    reading: int = 0
    # Last offsets of the last data batches of active producers, ascending. These batches stay, even
    # without records.
    last_offsets: Int64Array = field(default_factory=_none)
    # (id, epoch) of active producers without a data batch, ascending. Their markers of that epoch
    # stay, even without records.
    marker_producers: Int64Array = field(default_factory=_no_pairs)

    @property
    def new_horizon_ms(self) -> int | None:
        """The delete horizon that a round stamps on a batch. None if it exceeds a 64-bit integer.

        Source: Kafka 4.4.0 MemoryRecordsBuilder, which does not write the negative horizon of an
        overflow.
        """
        horizon_ms = self.now_ms + self.tombstone_retention_ms
        return horizon_ms if 0 <= horizon_ms <= LONG_MAX else None

    def held_until_ms(self, horizon_ms: int) -> int | None:
        """The time at which a held tombstone with this horizon is dropped.

        None means that it is kept until the consumer group has read it.
        """
        until_ms = horizon_ms + self.hold_ms
        return None if self.hold_ms >= FOR_EVER_MS or until_ms > LONG_MAX else until_ms
