"""Segments after a broker was killed, and what the broker's next start would change.

On a clean shutdown a broker writes the file ``.kafka_cleanshutdown`` to its log root. Without this
file, the broker was killed or is running. The *recovery point* (rp) is the offset up to which the
broker had flushed. From the segment with the recovery point on, the next start ignores the indexes
and verifies the checksums of all entries::

    0.log    flushed                       trusted
    100.log  whole            rp 130       indexes rebuilt
    200.log  whole, then half a batch      truncated there: the log's end
    300.log                                removed

Source: Kafka 4.4 ``LogLoader.recoverLog``, ``LogSegment.recover``; docs/formats/kafka.md, "Names";
docs/formats/kafka-cleaning.md, "Loading a log".
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import google_crc32c
import numpy as np

from lastwrite.errors import CommitConflict, CorruptLog, LogError, TruncatedLog
from lastwrite.kafka.format.index import (
    DEFAULT_INTERVAL_BYTES,
    MAX_RELATIVE_OFFSET,
    OFFSET_ENTRY,
    TIME_ENTRY,
    SegmentIndexer,
    decode_offset_index,
    decode_time_index,
)
from lastwrite.kafka.format.names import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    RECOVERY_POINTS,
    KafkaFileKind,
    Suffix,
    segment_file_name,
)
from lastwrite.kafka.producers.history import encode_aborted
from lastwrite.kafka.recovery import index_check, proof_walk
from lastwrite.model.columns import Int64Array
from lastwrite.model.log import AbortedTransaction, Segment
from lastwrite.storage import files
from lastwrite.storage.files import to_log_error

_AGAIN = "nothing was changed; stop the process that writes to this log, and run the command again"
_WINDOW_BYTES = 1 << 20
_LARGE_BYTES = 16 << 20
_ROWS = 4096

# Byte positions of fields in an entry's header (docs/formats/kafka.md, "Record batch", "Messages of
# magic 0 and 1").
_OLD_CRC = 12
_MAGIC = 16
_ATTRIBUTES = 21  # the first byte that a batch's checksum covers
_HEADER_BYTES = 61
_HEAD_BYTES = 17  # bytes of an entry from its start through the magic
# ``entries_behind_damage`` stops after it has verified this many bytes of invalid candidate
# entries.
_MOST_PROVEN = 256 << 20


def was_killed(root: str) -> bool:
    """Whether ``root`` is the log root of a broker that was killed or is running."""
    is_brokers = any(
        os.path.exists(os.path.join(root, name)) for name in (META_PROPERTIES, RECOVERY_POINTS)
    )
    return is_brokers and not os.path.exists(os.path.join(root, CLEAN_SHUTDOWN))


class IndexState(NamedTuple):
    """The state of an index, after a walk over its segment."""

    entry_bytes: int = 0  # size of the file without trailing zeros
    is_correct: bool = False  # whether every entry is correct; entries may be missing
    # whether the index is correct and has no trailing zeros; the last entry of a time index must
    # also have the segment's largest timestamp
    is_closed: bool = False


_NO_INDEX = IndexState()


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """One segment as a broker's recovery would leave it: its end, and the state of its indexes."""

    size_bytes: int  # size after truncation
    end_offset: int  # offset after the last remaining entry, or the base offset
    largest_timestamp_ms: int  # largest timestamp of the remaining entries; -1 if none
    index: IndexState = _NO_INDEX
    time_index: IndexState = _NO_INDEX
    # the first offset at or after ``end_offset`` in an index; None if there is none
    indexed_beyond: int | None = None
    # whether the segment has control batches, and therefore may need a transaction index
    has_markers: bool = False
    error: LogError | None = None  # why the segment is truncated
    is_emptied: bool = False  # whether all entries are removed, because they are out of order
    is_unseen: bool = False  # whether a broker does not notice the error and does not truncate

    def is_indexed(self, *, is_active: bool) -> bool:
        """Whether the segment's indexes can be used.

        ``is_active`` states whether it is the active one.
        """
        if is_active:
            return self.index.is_correct and self.time_index.is_correct
        return self.index.is_closed and self.time_index.is_closed


def recover_segment(
    log_path: str, base_offset: int, index_path: str, time_index_path: str
) -> RecoveredSegment:
    """Walk a segment as a broker's recovery does, and check its indexes. Writes nothing.

    Raises:
        LogError: a file cannot be read.
    """
    return _recover_once(
        base_offset, *(file_identity(path) for path in (log_path, index_path, time_index_path))
    )


class FileIdentity(NamedTuple):
    """Attributes that show whether a file has changed. ``size_bytes`` is -1 if it is missing."""

    path: str
    size_bytes: int
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0


def file_identity(path: str) -> FileIdentity:
    try:
        seen = os.stat(path)
    except FileNotFoundError:
        return FileIdentity(path, -1)
    except OSError as error:
        raise to_log_error(error, path, "read the file's attributes") from error
    return FileIdentity(path, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)


# Cached, because a compaction needs the result four times: for the listing, for the plan, and for
# the checks before and after the commit.
@lru_cache(maxsize=256)
def _recover_once(
    base_offset: int, log: FileIdentity, index: FileIdentity, time_index: FileIdentity
) -> RecoveredSegment:
    path, file_bytes, *_ = log
    truth = _IndexCheck(base_offset, index, time_index)
    size, end_offset, largest, has_markers = 0, base_offset, -1, False
    error: LogError | None = None
    walk = _Entries(path, file_bytes)
    for rows in walk:
        bad = _first_out_of_order(rows, end_offset)
        if bad < len(rows):
            at, last = int(rows[bad, proof_walk.POSITION]), int(rows[bad, proof_walk.LAST_OFFSET])
            error = CorruptLog(
                f"the batch ends at offset {last}, but the batch before it ends at offset "
                f"{end_offset - 1}",
                at,
                path,
            )
            # Kafka's recovery detects a wrong order only at batches that get an index entry.
            if _is_emptied(path, file_bytes, base_offset):
                return RecoveredSegment(0, base_offset, -1, error=error, is_emptied=True)
            return RecoveredSegment(size, end_offset, largest, error=error, is_unseen=True)
        truth.check(rows)
        size = int(rows[-1, proof_walk.POSITION] + rows[-1, proof_walk.SIZE])
        end_offset = int(rows[-1, proof_walk.LAST_OFFSET]) + 1
        largest = max(largest, int(rows[:, proof_walk.TIMESTAMP_MS].max()))
        has_markers |= bool(rows[:, proof_walk.IS_CONTROL].any())
    states = truth.judge(size, end_offset, largest)
    return RecoveredSegment(
        size, end_offset, largest, *states, truth.first_beyond(end_offset), has_markers, walk.error
    )


def _first_out_of_order(rows: Int64Array, end_offset: int) -> int:
    """The row number of the first entry whose offsets are out of order.

    The row count if there is none.

    An entry must begin at or above the end of the entry before it. The first entry must begin at or
    above ``end_offset``.
    """
    ends = np.concatenate([np.array([end_offset], np.int64), rows[:-1, proof_walk.LAST_OFFSET] + 1])
    bad = (rows[:, proof_walk.BASE_OFFSET] < ends) | (
        rows[:, proof_walk.LAST_OFFSET] < rows[:, proof_walk.BASE_OFFSET]
    )
    return int(np.argmax(bad)) if bad.any() else len(rows)


class _Entries:
    """Iterates over the verified entries of a segment, as arrays of ``proof_walk`` rows.

    The iteration begins at byte ``start``. Afterwards, ``error`` is the reason why it ended before
    the file's end. None means that all entries are verified.
    """

    def __init__(self, path: str, file_bytes: int, start: int = 0) -> None:
        self._path = path
        self._bytes = file_bytes
        self._start = start
        self.error: LogError | None = None

    def __iter__(self) -> Iterator[Int64Array]:
        rows = np.empty((_ROWS, proof_walk.COLUMNS), dtype=np.int64)
        position, window = self._start, _WINDOW_BYTES
        try:
            with open(self._path, "rb", buffering=0) as file:
                while position < self._bytes:
                    data = np.frombuffer(os.pread(file.fileno(), window, position), dtype=np.uint8)
                    left = self._bytes - position
                    if len(data) < min(window, left):
                        raise CommitConflict(
                            "another program truncated the segment during the command",
                            position,
                            self._path,
                            _AGAIN,
                        )
                    filled, at, wanted, why = proof_walk.walk_proven(data, left, rows)
                    if filled:
                        found = rows[:filled].copy()
                        found[:, proof_walk.POSITION] += position
                        yield found
                    position += at
                    window = max(_WINDOW_BYTES, wanted)
                    if why == proof_walk.MORE and wanted > _LARGE_BYTES:
                        if _checksum_matches(file.fileno(), position, wanted):
                            yield _row(
                                os.pread(file.fileno(), _HEADER_BYTES, position), position, wanted
                            )
                            position, window = position + wanted, _WINDOW_BYTES
                        else:
                            why = proof_walk.CORRUPT
                    if why == proof_walk.TORN:
                        self.error = TruncatedLog(
                            "the file ends inside a batch", position, self._path
                        )
                        return
                    if why == proof_walk.CORRUPT:
                        self.error = CorruptLog(
                            "no batch with a correct checksum begins at this byte",
                            position,
                            self._path,
                        )
                        return
        except OSError as error:
            raise to_log_error(error, self._path, "read the segment") from error


def _checksum_matches(file: int, position: int, size_bytes: int) -> bool:
    """Whether the checksum of a large entry is right. Reads the entry in windows."""
    head = os.pread(file, _HEADER_BYTES, position)
    is_old = head[_MAGIC] < 2 or head[_MAGIC] > 127
    at, end, crc = position + (_MAGIC if is_old else _ATTRIBUTES), position + size_bytes, 0
    while at < end:
        portion = os.pread(file, min(_WINDOW_BYTES, end - at), at)
        if not portion:
            return False
        crc = zlib.crc32(portion, crc) if is_old else google_crc32c.extend(crc, portion)
        at += len(portion)
    return crc == int.from_bytes(
        head[_OLD_CRC:_MAGIC] if is_old else head[_MAGIC + 1 : _ATTRIBUTES], "big"
    )


def _row(head: bytes, position: int, size_bytes: int) -> Int64Array:
    """The ``proof_walk`` row of an entry with the header ``head``."""
    row = np.empty((1, proof_walk.COLUMNS), dtype=np.int64)
    proof_walk.describe(np.frombuffer(head, dtype=np.uint8), 0, size_bytes, row[0])
    row[0, proof_walk.POSITION] = position
    return row


class EntriesBehindDamage(NamedTuple):
    """Verified entries after a damaged range of a segment."""

    position: int
    base_offset: int
    end_offset: int  # offset after the last entry before the next damage


def entries_behind_damage(
    log_path: str, at: int, base_offset: int, end_offset: int
) -> EntriesBehindDamage | None:
    """The first verified entries after byte ``at`` with offsets from ``end_offset`` on.

    Such entries exist if a power cut or a failing disk lost a page. After a torn write there are
    none. The search examines each byte once, and stops after ``_MOST_PROVEN`` bytes of invalid
    candidate entries. None if no entry is found.

    Raises:
        LogError: the file cannot be read.
    """
    return _entries_behind_damage_once(file_identity(log_path), at, base_offset, end_offset)


@lru_cache(maxsize=256)
def _entries_behind_damage_once(
    log: FileIdentity, at: int, base_offset: int, end_offset: int
) -> EntriesBehindDamage | None:
    path, file_bytes, *_ = log
    begin, proven = at + 1, 0
    try:
        with open(path, "rb", buffering=0) as file:
            while begin < file_bytes - _HEAD_BYTES and proven < _MOST_PROVEN:
                data = np.frombuffer(os.pread(file.fileno(), _WINDOW_BYTES, begin), dtype=np.uint8)
                if len(data) <= _HEAD_BYTES:
                    break
                place = 0 if data.any() else -1  # skip zeros of a preallocated file
                while place >= 0 and proven < _MOST_PROVEN:
                    left = file_bytes - begin
                    place = proof_walk.seek(
                        data, place, left, end_offset, base_offset + MAX_RELATIVE_OFFSET
                    )
                    if place < 0:
                        break
                    size = int.from_bytes(data[place + 8 : place + 12].tobytes(), "big") + 12
                    if _checksum_matches(file.fileno(), begin + place, size):
                        return _follow(path, file_bytes, begin + place, end_offset)
                    proven += size
                    place += 1
                begin += len(data) - _HEAD_BYTES
    except OSError as error:
        raise to_log_error(error, path, "read the segment") from error
    return None


def _follow(path: str, file_bytes: int, position: int, floor: int) -> EntriesBehindDamage | None:
    """Collect the verified entries from ``position`` on, up to the next damage."""
    base, end_offset = -1, floor
    for rows in _Entries(path, file_bytes, position):
        base = int(rows[0, proof_walk.BASE_OFFSET]) if base < 0 else base
        good = _first_out_of_order(rows, end_offset)
        if good:
            end_offset = int(rows[good - 1, proof_walk.LAST_OFFSET]) + 1
        if good < len(rows):
            break
    return EntriesBehindDamage(position, base, end_offset) if end_offset > floor else None


def _is_emptied(path: str, file_bytes: int, base_offset: int) -> bool:
    """Whether a broker empties an out-of-order segment when it rebuilds the indexes.

    A broker detects the wrong order only if an index entry would be below the entry before.
    """
    since, largest, largest_offset = 0, -1, base_offset
    entry_offset, time_offset, entry_time = -1, -1, -1
    for rows in _Entries(path, file_bytes):
        for _, size, _, last, timestamp, _ in rows.tolist():
            if timestamp > largest:
                largest, largest_offset = timestamp, last
            if since > DEFAULT_INTERVAL_BYTES:
                if last <= entry_offset or largest_offset < time_offset:
                    return True
                entry_offset, since = last, 0
                if largest > entry_time:
                    entry_time, time_offset = largest, largest_offset
            since += size
    return largest_offset < time_offset


class _IndexCheck:
    """Checks a segment's two indexes against its entries."""

    def __init__(self, base_offset: int, index: FileIdentity, time_index: FileIdentity) -> None:
        self._reached, self._last_before = index_check.NO_TIME, base_offset - 1
        self._offsets, self._times = (
            decode_offset_index(b"", base_offset),
            decode_time_index(b"", base_offset),
        )
        self._are_offsets_correct = self._are_times_correct = True
        self._file_bytes = index[1], time_index[1]
        try:
            self._offsets = decode_offset_index(_read(index), base_offset)
        except CorruptLog:
            self._are_offsets_correct = False
        try:
            self._times = decode_time_index(_read(time_index), base_offset)
        except CorruptLog:
            self._are_times_correct = False

    def check(self, rows: Int64Array) -> None:
        """Check the indexes against the next entries of the segment."""
        begins, bases = rows[:, proof_walk.POSITION], rows[:, proof_walk.BASE_OFFSET]
        lasts, timestamps = rows[:, proof_walk.LAST_OFFSET], rows[:, proof_walk.TIMESTAMP_MS]
        end = int(begins[-1] + rows[-1, proof_walk.SIZE])
        offsets, times = self._offsets, self._times
        contradiction = index_check.false_offset_entry(
            offsets.offsets, offsets.positions, begins, end, bases
        )
        self._are_offsets_correct &= contradiction is None
        contradiction = index_check.false_time_entry(
            times.timestamps_ms, times.offsets, lasts, timestamps, self._reached, self._last_before
        )
        self._are_times_correct &= contradiction is None
        self._reached = max(self._reached, int(timestamps.max()))
        self._last_before = int(lasts[-1])

    def first_beyond(self, end_offset: int) -> int | None:
        """The first offset at or after ``end_offset`` in one of the indexes, or None."""
        firsts = (
            named[int(np.searchsorted(named, end_offset)) :][:1]
            for named in (self._offsets.offsets, self._times.offsets)
        )
        return min((int(first[0]) for first in firsts if len(first)), default=None)

    def judge(
        self, size_bytes: int, end_offset: int, largest_timestamp_ms: int
    ) -> tuple[IndexState, IndexState]:
        """The states of the offset index and the time index, after all entries were checked."""
        offsets, times = self._offsets, self._times
        beyond = index_check.entry_beyond(
            offsets.offsets, offsets.positions, size_bytes, end_offset
        )
        are_offsets_true = self._are_offsets_correct and beyond is None
        are_times_true = self._are_times_correct and not (
            len(times) and int(times.offsets[-1]) >= end_offset
        )
        last = times.largest_timestamp_ms
        index_bytes, time_bytes = len(offsets) * OFFSET_ENTRY.size, len(times) * TIME_ENTRY.size
        return (
            IndexState(
                index_bytes,
                are_offsets_true,
                are_offsets_true and index_bytes == self._file_bytes[0],
            ),
            IndexState(
                time_bytes,
                are_times_true,
                are_times_true
                and time_bytes == self._file_bytes[1]
                and (-1 if last is None else last) == largest_timestamp_ms,
            ),
        )


def _read(file: FileIdentity) -> bytes:
    path, size_bytes, *_ = file
    if size_bytes < 0:
        raise CorruptLog("the file is missing", path=path)
    try:
        with open(path, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise to_log_error(error, path, "read the index") from error


# ---------------------------------------------------------------------- what recovery writes


def repair_indexes(segment: Segment, aborted: Sequence[AbortedTransaction]) -> None:
    """Write the indexes that a broker would write for a segment at start. Correct indexes stay.

    If only the time index is missing, an empty time index is created, as in Kafka. ``aborted`` are
    the entries of the transaction index; without entries the file is removed.
    """
    folder = os.path.dirname(segment.path)
    index = segment_file_name(segment.base_offset, KafkaFileKind.INDEX)
    time_index = segment_file_name(segment.base_offset, KafkaFileKind.TIME_INDEX)
    if not segment.is_indexed:
        paths = [os.path.join(folder, name) for name in (index, time_index)]
        found = recover_segment(segment.path, segment.base_offset, *paths)
        offsets, times = new_indexes(segment.path, segment.base_offset, segment.size_bytes)
        # A broker rebuilds both indexes if the offset index is missing, so it is written last.
        if not found.time_index.is_closed:
            _replace(folder, time_index, times)
        if not found.index.is_closed:
            _replace(folder, index, offsets)
    elif segment.size_bytes and not os.path.exists(os.path.join(folder, time_index)):
        _replace(folder, time_index, b"")
    transaction_index = segment_file_name(segment.base_offset, KafkaFileKind.TRANSACTION_INDEX)
    if not segment.is_abort_indexed and aborted:
        _replace(folder, transaction_index, encode_aborted(aborted))
    elif not segment.is_abort_indexed and os.path.exists(os.path.join(folder, transaction_index)):
        files.unlink(os.path.join(folder, transaction_index))
        files.fsync_dir(folder)


def _replace(folder: str, name: str, content: bytes) -> None:
    staged = os.path.join(folder, f"{name}.recovered{Suffix.CLEANED}")
    log = name[:20] + KafkaFileKind.LOG
    like = files.owner_of(os.path.join(folder, name), [os.path.join(folder, log)])
    files.write(staged, content, like=like)
    files.rename(staged, os.path.join(folder, name))
    files.fsync_dir(folder)


def new_indexes(log_path: str, base_offset: int, size_bytes: int) -> tuple[bytes, bytes]:
    """The ``.index`` and ``.timeindex`` of a segment's first ``size_bytes``.

    Uses Kafka's default for ``index.interval.bytes``, because the topic's setting is unknown here
    and any interval gives a correct index. Offsets too large for an index have no entry.
    """
    indexer = SegmentIndexer(base_offset, DEFAULT_INTERVAL_BYTES)
    for rows in _Entries(log_path, size_bytes):
        near = rows[rows[:, proof_walk.LAST_OFFSET] - base_offset <= MAX_RELATIVE_OFFSET]
        indexer.append(
            near[:, proof_walk.POSITION],
            near[:, proof_walk.SIZE],
            near[:, proof_walk.LAST_OFFSET],
            near[:, proof_walk.TIMESTAMP_MS],
        )
    return indexer.finish()
