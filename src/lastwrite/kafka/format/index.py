"""The three indexes beside a Kafka segment: offset, time, aborted transactions.

Offset index, the smallest case: three batches of 3000 bytes end at offsets 9, 19 and 29. A batch
gets an entry if more than 4096 bytes were written since the last entry. So only the third batch
gets an entry, ``(29, 6000)``: its last offset and its position. A reader of offset 29 or above
starts at byte 6000. A reader of offset 25 starts at byte 0, because an entry has only the last
offset of its batch. The rule: start at the greatest entry not above the target, or else at the
segment's start.

Time index: with each offset entry, Kafka writes ``(largest timestamp so far, last offset of the
earliest batch with this timestamp)``, unless the previous entry has this timestamp.
Closing the segment adds one more entry, so the last entry has the segment's largest timestamp. A
segment without timestamps has no entries.

Index files of an active segment are padded with zeros to a fixed size, and truncated when the
segment is closed. Entries must rise, so they end before the first entry that does not rise. A
non-zero byte after them is damage.

Source: Kafka 4.4 ``OffsetIndex``, ``TimeIndex``, ``TransactionIndex``, ``LogSegment.append``,
KAFKA-806; docs/formats/kafka.md, "Indexes"; docs/formats/kafka-cleaning.md, "Index entries".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.kernel import njit
from lastwrite.encoding.layout import I16, I32, I64, At, Buffer, layout
from lastwrite.errors import CorruptLog, UnsupportedFormat

Int64s = npt.NDArray[np.int64]

DEFAULT_INTERVAL_BYTES = 4096  # index.interval.bytes
MAX_RELATIVE_OFFSET = (1 << 31) - 1
MAX_POSITION = (1 << 31) - 1
NO_TIMESTAMP_MS = -1


class OffsetEntry(NamedTuple):
    """The last offset of a batch, and the byte at which the batch or an earlier batch begins."""

    # fmt: off
    #                                       offset  type
    relative_offset: Annotated[int, At(0, I32)]  # offset minus the segment's base offset
    position:        Annotated[int, At(4, I32)]
    # fmt: on


class TimeEntry(NamedTuple):
    """A timestamp and an offset: every record with a later timestamp has a greater offset."""

    # fmt: off
    #                                       offset  type
    timestamp_ms:    Annotated[int, At(0, I64)]
    relative_offset: Annotated[int, At(8, I32)]  # offset minus the segment's base offset
    # fmt: on


class AbortedEntry(NamedTuple):
    """A transaction that wrote data and was aborted; offsets are absolute."""

    # fmt: off
    #                                           offset  type
    version:            Annotated[int, At(0,  I16)]  # always 0
    producer_id:        Annotated[int, At(2,  I64)]
    # the transaction's first offset, perhaps in an earlier segment
    first_offset:       Annotated[int, At(10, I64)]
    last_offset:        Annotated[int, At(18, I64)]  # offset of the marker, in this segment
    # first offset of the earliest transaction still open, or else the offset after the marker
    last_stable_offset: Annotated[int, At(26, I64)]
    # fmt: on


OFFSET_ENTRY = layout(OffsetEntry, byte_order=">", size=8)
TIME_ENTRY = layout(TimeEntry, byte_order=">", size=12)
ABORTED_TRANSACTION = layout(AbortedEntry, byte_order=">", size=34)

_OFFSET_DTYPE = np.dtype(OFFSET_ENTRY.dtype_items())
_TIME_DTYPE = np.dtype(TIME_ENTRY.dtype_items())
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """Entries of a ``.index``: absolute ``offsets`` rise, ``positions`` never fall."""

    base_offset: int
    offsets: Int64s
    positions: Int64s

    def __len__(self) -> int:
        return len(self.offsets)

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last entry with an offset of at most ``offset``, or else (base offset, 0).

        The batch that contains ``offset``, and all later batches, begin at or after the position.
        """
        row = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return (
            (self.base_offset, 0) if row < 0 else (int(self.offsets[row]), int(self.positions[row]))
        )


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """Entries of a ``.timeindex``: ``timestamps_ms`` rise, absolute ``offsets`` never fall."""

    base_offset: int
    timestamps_ms: Int64s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.timestamps_ms)

    @property
    def largest_timestamp_ms(self) -> int | None:
        """The last timestamp. In a closed segment's index it is the largest. None if empty."""
        return int(self.timestamps_ms[-1]) if len(self.timestamps_ms) else None


def decode_offset_index(data: Buffer, base_offset: int) -> OffsetIndex:
    """Decode a ``.index`` without the zeros after the entries. Copies the entries.

    Raises:
        CorruptLog: the size is not a multiple of 8, a position falls or is negative, or a non-zero
            byte follows the entries.
    """
    if not len(data):
        return OffsetIndex(base_offset, _NONE, _NONE)
    entries = _entries(data, _OFFSET_DTYPE, "offset index")
    relative = entries["relative_offset"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    # No entry has relative offset 0: the first batch never gets an entry, and the second ends above
    # the base offset.
    count = _rising(relative, 0)
    _check_zeros(data, count * OFFSET_ENTRY.size, "offset index")
    _check_never_falls(
        positions[:count], OFFSET_ENTRY.size, OFFSET_ENTRY.offset_of("position"), "position"
    )
    return OffsetIndex(base_offset, relative[:count] + base_offset, positions[:count])


def encode_offset_index(index: OffsetIndex) -> bytes:
    """The bytes of a ``.index``, without padding.

    Raises:
        ValueError: an offset or a position needs more than 31 bits.
    """
    entries = np.empty(len(index), _OFFSET_DTYPE)
    entries["relative_offset"] = _fitting(index.offsets - index.base_offset, "relative offset")
    entries["position"] = _fitting(index.positions, "position")
    return entries.tobytes()


def decode_time_index(data: Buffer, base_offset: int) -> TimeIndex:
    """Decode a ``.timeindex`` without the zeros after the entries. Copies the entries.

    The first entry may consist of zeros, if the batch at the base offset has timestamp 0. Zeros at
    the start are such an entry if the file has no more bytes, or if a greater entry follows.
    Otherwise the file is new, and all its zeros are padding.

    Raises:
        CorruptLog: the size is not a multiple of 12, an offset falls or is negative, or a non-zero
            byte follows the entries.
    """
    entries = _entries(data, _TIME_DTYPE, "time index")
    timestamps_ms = entries["timestamp_ms"].astype(np.int64)
    relative = entries["relative_offset"].astype(np.int64)
    count = _rising(timestamps_ms, NO_TIMESTAMP_MS)
    if count == 1 and len(entries) > 1 and timestamps_ms[0] == 0 and relative[0] == 0:
        count = 0
    _check_zeros(data, count * TIME_ENTRY.size, "time index")
    _check_never_falls(
        relative[:count], TIME_ENTRY.size, TIME_ENTRY.offset_of("relative_offset"), "offset"
    )
    return TimeIndex(base_offset, timestamps_ms[:count], relative[:count] + base_offset)


def encode_time_index(index: TimeIndex) -> bytes:
    """The bytes of a ``.timeindex``, without padding.

    Raises:
        ValueError: an offset needs more than 31 bits.
    """
    entries = np.empty(len(index), _TIME_DTYPE)
    entries["timestamp_ms"] = index.timestamps_ms
    entries["relative_offset"] = _fitting(index.offsets - index.base_offset, "relative offset")
    return entries.tobytes()


def decode_transaction_index(data: Buffer, base_offset: int) -> tuple[AbortedEntry, ...]:
    """Decode a ``.txnindex``. An incomplete last entry is ignored, as in Kafka.

    Raises:
        UnsupportedFormat: an entry has a version above 0.
        CorruptLog: a version is below 0, or the offsets of the markers do not rise from the base
            offset.
    """
    view = memoryview(data)
    size = ABORTED_TRANSACTION.size
    aborted: list[AbortedEntry] = []
    last_offset = base_offset - 1
    for at in range(0, len(view) - size + 1, size):
        entry = AbortedEntry._make(ABORTED_TRANSACTION.unpack_from(view, at))
        if entry.version > 0:
            raise UnsupportedFormat(f"the transaction index has version {entry.version}", at)
        if entry.version < 0:
            raise CorruptLog(f"the transaction index has version {entry.version}", at)
        if entry.last_offset <= last_offset:
            raise CorruptLog(
                f"the entry has marker offset {entry.last_offset}, which is not above the "
                f"previous entry's {last_offset}",
                at,
            )
        last_offset = entry.last_offset
        aborted.append(entry)
    return tuple(aborted)


def encode_transaction_index(aborted: Sequence[AbortedEntry]) -> bytes:
    """The bytes of a ``.txnindex``. Write no file if there are no entries."""
    return b"".join(ABORTED_TRANSACTION.pack(*entry) for entry in aborted)


class SegmentIndexer:
    """Builds the offset and time index of one segment from its batches, appended in order.

    Memory: 20 bytes for each ``interval_bytes`` of the segment.
    """

    def __init__(self, base_offset: int, interval_bytes: int = DEFAULT_INTERVAL_BYTES) -> None:
        if interval_bytes < 0:
            raise ValueError(f"the index interval is {interval_bytes} bytes")
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        # Four numbers: bytes since the last offset entry, largest timestamp, its offset, timestamp
        # of the last time entry.
        self._state = np.array([0, NO_TIMESTAMP_MS, base_offset, NO_TIMESTAMP_MS], np.int64)
        self._end_offset = base_offset
        self._end_position = 0
        self._offset_rows: list[Int64s] = []
        self._time_rows: list[Int64s] = []

    @property
    def largest_timestamp_ms(self) -> int | None:
        """The largest timestamp of all batches so far. None if no batch has one."""
        largest = int(self._state[1])
        return None if largest == NO_TIMESTAMP_MS else largest

    def append(
        self, positions: Int64s, sizes: Int64s, last_offsets: Int64s, max_timestamps_ms: Int64s
    ) -> None:
        """Add the next batches, one row each: position, bytes, last offset, largest timestamp.

        The last offset comes from the batch header; compaction may have removed its record.

        Raises:
            CorruptLog: offsets do not rise or are more than 31 bits above the base offset, or
                batches overlap or begin beyond 2 GiB. No batch is added.
        """
        if not len(positions):
            return
        self._check(positions, sizes, last_offsets)
        # The kernel needs contiguous arrays. A column of a table is not contiguous.
        columns = map(np.ascontiguousarray, (positions, sizes, last_offsets, max_timestamps_ms))
        offset_rows = np.empty((len(positions), 2), np.int64)
        time_rows = np.empty((len(positions), 2), np.int64)
        offset_count, time_count = _mark(
            *columns,
            self._interval_bytes,
            self._state,
            offset_rows,
            time_rows,
        )
        # A slice would keep the memory of the whole array; a copy has only the few entries.
        self._offset_rows.append(offset_rows[:offset_count].copy())
        self._time_rows.append(time_rows[:time_count].copy())
        self._end_offset = int(last_offsets[-1]) + 1
        self._end_position = int(positions[-1] + sizes[-1])

    def finish(self) -> tuple[bytes, bytes]:
        """The bytes of ``.index`` and ``.timeindex``, including the closing time entry."""
        offset_rows = np.concatenate([np.empty((0, 2), np.int64), *self._offset_rows])
        closing = [self._state[1:3]] if self._state[1] > self._state[3] else []
        time_rows = np.concatenate(
            [np.empty((0, 2), np.int64), *self._time_rows, *(row[None] for row in closing)]
        )
        return (
            encode_offset_index(
                OffsetIndex(self._base_offset, offset_rows[:, 0], offset_rows[:, 1])
            ),
            encode_time_index(TimeIndex(self._base_offset, time_rows[:, 0], time_rows[:, 1])),
        )

    def _check(self, positions: Int64s, sizes: Int64s, last_offsets: Int64s) -> None:
        falls = last_offsets[1:] <= last_offsets[:-1]
        if last_offsets[0] < self._end_offset or falls.any():
            row = 0 if last_offsets[0] < self._end_offset else int(falls.argmax()) + 1
            raise CorruptLog(
                f"the batch ends at offset {last_offsets[row]}, not after the batch before it",
                int(positions[row]),
            )
        if int(last_offsets[-1]) - self._base_offset > MAX_RELATIVE_OFFSET:
            raise CorruptLog(
                f"offset {last_offsets[-1]} is too far above the segment's base offset "
                f"{self._base_offset} for an index",
                int(positions[-1]),
            )
        overlaps = positions[1:] < positions[:-1] + sizes[:-1]
        if positions[0] < self._end_position or overlaps.any():
            row = 0 if positions[0] < self._end_position else int(overlaps.argmax()) + 1
            raise CorruptLog(
                "the batch begins before the end of the batch before it", int(positions[row])
            )
        if int(positions[-1]) > MAX_POSITION:
            raise CorruptLog(
                "the batch begins beyond 2 GiB, the largest position of an index",
                int(positions[-1]),
            )


@njit(cache=True, nogil=True)
def _mark(
    positions: Int64s,
    sizes: Int64s,
    last_offsets: Int64s,
    max_timestamps_ms: Int64s,
    interval_bytes: int,
    state: Int64s,
    offset_rows: Int64s,
    time_rows: Int64s,
) -> tuple[int, int]:
    """Write index entries for batches, as a broker does. Returns (offset entries, time entries)."""
    since, largest_ms, largest_offset, written_ms = state[0], state[1], state[2], state[3]
    offset_count = 0
    time_count = 0
    for row in range(positions.shape[0]):
        if max_timestamps_ms[row] > largest_ms:
            largest_ms = max_timestamps_ms[row]
            largest_offset = last_offsets[row]
        if since > interval_bytes:
            offset_rows[offset_count, 0] = last_offsets[row]
            offset_rows[offset_count, 1] = positions[row]
            offset_count += 1
            if largest_ms > written_ms:
                time_rows[time_count, 0] = largest_ms
                time_rows[time_count, 1] = largest_offset
                time_count += 1
                written_ms = largest_ms
            since = 0
        since += sizes[row]
    state[0], state[1], state[2], state[3] = since, largest_ms, largest_offset, written_ms
    return offset_count, time_count


def _entries(data: Buffer, dtype: np.dtype[np.void], what: str) -> npt.NDArray[np.void]:
    surplus = len(data) % dtype.itemsize
    if surplus:
        raise CorruptLog(
            f"the {what} has {len(data)} bytes, which is not a multiple of {dtype.itemsize}",
            len(data) - surplus,
        )
    return np.frombuffer(data, dtype)


def _rising(column: Int64s, floor: int) -> int:
    """Count the leading values that rise. The first value must exceed ``floor``."""
    if not len(column) or column[0] <= floor:
        return 0
    falls = column[1:] <= column[:-1]  # values are compared, because differences could overflow
    return int(falls.argmax()) + 1 if falls.any() else len(column)


def _check_zeros(data: Buffer, at: int, what: str) -> None:
    if at < len(data) and np.frombuffer(data, np.uint8)[at:].any():
        raise CorruptLog(f"the {what} entry is not above the entry before it", at)


def _check_never_falls(column: Int64s, entry_bytes: int, field_at: int, what: str) -> None:
    falls = column[1:] < column[:-1]
    starts_below = len(column) > 0 and column[0] < 0
    if starts_below or falls.any():
        row = 0 if starts_below else int(falls.argmax()) + 1
        raise CorruptLog(
            f"the {what} {column[row]} follows a greater one", row * entry_bytes + field_at
        )


def _fitting(column: Int64s, what: str) -> Int64s:
    if len(column) and (int(column.min()) < 0 or int(column.max()) > MAX_POSITION):
        raise ValueError(f"the {what} is outside 0 to 2^31 - 1")
    return column
