"""Reads a complete segment, verifies every batch, counts its contents, and reports problems.

Uses the kernels of a compaction's scan, in this process, a chunk at a time. If records of a chunk
are damaged, it is processed again batch by batch, so that one bad batch does not hide others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.compression import Codec
from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.errors import (
    CorruptLog,
    LogError,
    OutOfMemoryBudget,
    RemoteFailed,
    UnsupportedFormat,
)
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.names import KafkaFileKind
from lastwrite.kafka.look.inspection import Contents, OpenTransaction, SegmentInspection
from lastwrite.kafka.look.problems import frame_bytes, kafka_problem_of, torn_tail
from lastwrite.kafka.look.proof import KafkaIndexProof
from lastwrite.kafka.look.rows import index_rows
from lastwrite.model.columns import (
    ABORTED,
    BAD_HORIZON,
    COMMITTED,
    CONTROL,
    HAS_PRODUCER,
    IS_CONTROL,
    IS_TRANSACTIONAL,
    KEYLESS,
    NO_HORIZON,
    TOMBSTONE,
    BatchTable,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import Problem, Segment
from lastwrite.reports.verification import Transactions
from lastwrite.storage.problems import BATCH_LIMIT_BYTES, Window
from lastwrite.storage.reading import exists, read_small, reader_of

Note = Callable[[Problem], None]

MOST_PRODUCERS = 1 << 20  # largest number of producer ids that are counted; they take 8 MiB
_HEADER_BYTES = 61
_PRODUCER_ID_AT = 43
_MAGIC_AT = 16


class TransactionCount:
    """Counts a log's transactions batch by batch, and tracks the open ones."""

    def __init__(self) -> None:
        # [first offset, record count] of open transactions, by producer id
        self._open: dict[int, list[int]] = {}
        self._aborted = self._committed = self._aborted_records = 0

    def data(self, producer_id: int, first_offset: int, records: int) -> None:
        self._open.setdefault(producer_id, [first_offset, 0])[1] += records

    def marker(self, producer_id: int, aborts: bool) -> None:
        _, records = self._open.pop(producer_id, (0, 0))
        self._aborted += aborts
        self._committed += not aborts
        self._aborted_records += records if aborts else 0

    @property
    def result(self) -> Transactions:
        return Transactions(
            open=len(self._open),
            aborted=self._aborted,
            committed=self._committed,
            aborted_records=self._aborted_records,
        )

    @property
    def open(self) -> list[OpenTransaction]:
        """The open transactions, in the order of their first offsets."""
        begun = sorted((first, producer_id) for producer_id, (first, _) in self._open.items())
        return [OpenTransaction(producer_id, first) for first, producer_id in begun]


class Surveyor:
    """Verifies segments and counts their contents. Keeps the current partition's producers."""

    def __init__(self, limit_bytes: int = BATCH_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.format = KafkaFormat(limit_bytes)
        # Fingerprints are computed but not used.
        self._secret = secret_from(b"\x01" * (8 * SECRET_WORDS))
        self._states: ByteArray = np.empty(1 << 16, dtype=np.uint8)
        self._entries = np.empty((1 << 16, 2), dtype=np.uint64)
        self.new_partition()

    def new_partition(self) -> None:
        """Begin another partition: discard the producers and transactions counted so far."""
        self._producers: Int64Array = np.empty(0, dtype=np.int64)
        self.transactions = TransactionCount()

    @property
    def producer_count(self) -> int:
        """The number of distinct producer ids in the partition, at most ``MOST_PRODUCERS``."""
        return len(self._producers)

    def survey(
        self,
        segment: Segment,
        end_offset: int,
        is_active: bool,
        note: Note,
        advance: Callable[[int], None],
    ) -> SegmentInspection:
        """Read ``segment`` to its end, and pass problems to ``note``.

        An offset of ``end_offset`` or more is a problem.
        """
        found = SegmentInspection(
            file=segment.path,
            base_offset=segment.base_offset,
            bytes=segment.size_bytes,
            is_active=is_active,
            modified=segment.mtime_ms,
        )
        indexes = KafkaIndexProof(segment)
        walk = _SegmentWalk(self, segment, end_offset, found.contents, indexes, note, advance)
        try:
            walk.run()
        except LogError as error:
            walk.note(kafka_problem_of(error, segment.path))
        # If a batch is unreadable, the last index entries may refer to it, so skip their check.
        if walk.is_whole:
            largest = found.contents.max_timestamp
            indexes.ends(segment.size_bytes, walk.next_offset, -1 if largest is None else largest)
        for problem in indexes.problems:
            note(problem)
        found.index_entries = count_entries(segment, KafkaFileKind.INDEX, note)
        found.time_index_entries = count_entries(segment, KafkaFileKind.TIME_INDEX, note)
        found.transaction_index_entries = count_entries(
            segment, KafkaFileKind.TRANSACTION_INDEX, note
        )
        return found

    def count(self, data: ByteArray, buffer: ByteArray, table: BatchTable, into: Contents) -> None:
        """Count the contents of the batches in ``table``, and add the counts to ``into``.

        ``buffer`` has the batches to which ``table`` refers, and ``data`` has their stored bytes.

        Raises:
            CorruptLog, OutOfMemoryBudget: ``into`` is unchanged. Positions count from the start of
                ``data``.
        """
        tombstones = keyless = control = 0
        kinds = np.zeros(len(table), dtype=np.uint8)  # state of each batch's first record
        for run in self.format.opened(buffer, table):
            counts = table["records"][run.first : run.last]
            ahead = int(counts.sum())  # records as stated by the headers; ``walk`` verifies it
            if ahead > len(self._states):
                self._states = np.empty(ahead + (ahead >> 2), dtype=np.uint8)
                self._entries = np.empty((len(self._states), 2), dtype=np.uint64)
            states = self._states[:ahead]
            self.format.walk(run, table, self._secret, 0, states, self._entries, 0)
            tombstones += _count(states & TOMBSTONE)
            keyless += _count(states & KEYLESS)
            control += _count(states & CONTROL)
            filled = np.flatnonzero(counts)
            kinds[run.first + filled] = states[(np.cumsum(counts) - counts)[filled]]
        markers = np.where(kinds & CONTROL, kinds, 0)
        self._follow(table, kinds)
        horizons = table["horizon"][table["horizon"] != NO_HORIZON].tolist()
        bad_horizons = _count(table["flags"] & BAD_HORIZON)
        magics = enumerate(np.bincount(data[table["origin"] + _MAGIC_AT]).tolist())
        codecs = {codec.label: _count(table["codec"] == codec) for codec in Codec}
        more = Contents(
            batches=len(table),
            records=int(table["records"].sum()),
            tombstones=tombstones,
            keyless=keyless,
            control_records=control,
            empty_batches=_count(table["records"] == 0),
            transactional_batches=_count(table["flags"] & IS_TRANSACTIONAL),
            abort_markers=_count(markers & ABORTED),
            commit_markers=_count(markers & COMMITTED),
            producer_batches=self._note_producers(buffer, table),
            horizon_batches=len(horizons) + bad_horizons,
            bad_horizon_batches=bad_horizons,
            first_offset=int(table["base_offset"][0]),
            last_offset=int(table["next_offset"][-1]) - 1,
            max_timestamp=_none_below(int(table["max_timestamp"].max())),
            earliest_horizon=min(horizons, default=None),
            codecs=_counter(codecs),
            formats=_counter({f"v{magic}": n for magic, n in magics}),
        )
        into.add(more)

    def _follow(self, table: BatchTable, kinds: ByteArray) -> None:
        """Count the transactions in the batches of ``table``.

        ``kinds`` has the state byte of each batch's first record.
        """
        rows = np.flatnonzero(table["flags"] & IS_TRANSACTIONAL)
        fields = (
            table[name][rows].tolist()
            for name in ("producer_id", "base_offset", "records", "flags")
        )
        for kind, producer_id, base_offset, records, flags in zip(
            kinds[rows].tolist(), *fields, strict=True
        ):
            if not flags & IS_CONTROL:
                self.transactions.data(producer_id, base_offset, records)
            elif kind & (ABORTED | COMMITTED):
                self.transactions.marker(producer_id, bool(kind & ABORTED))

    def _note_producers(self, buffer: ByteArray, table: BatchTable) -> int:
        """Add the producers of these batches.

        Returns the number of batches that have a producer.
        """
        positions = table["position"][(table["flags"] & HAS_PRODUCER) != 0]
        if len(positions) and len(self._producers) < MOST_PRODUCERS:
            raw = buffer[positions[:, None] + np.arange(_PRODUCER_ID_AT, _PRODUCER_ID_AT + 8)]
            ids = np.ascontiguousarray(raw).view(">i8").ravel().astype(np.int64)
            self._producers = np.union1d(self._producers, ids)[:MOST_PRODUCERS]
        return len(positions)


class _SegmentWalk:
    """Verifies one segment and counts its contents."""

    def __init__(
        self,
        surveyor: Surveyor,
        segment: Segment,
        end_offset: int,
        contents: Contents,
        indexes: KafkaIndexProof,
        note: Note,
        advance: Callable[[int], None],
    ) -> None:
        self._surveyor = surveyor
        self._segment = segment
        self._end_offset = end_offset
        self._contents = contents
        self._indexes = indexes
        self._note = note
        self._advance = advance
        self.next_offset = segment.base_offset  # end offset of the last batch
        self.is_whole = True  # every batch so far could be read

    def note(self, problem: Problem) -> None:
        self.is_whole = False
        self._note(problem)

    def run(self) -> None:
        path, size = self._segment.path, self._segment.size_bytes
        format = self._surveyor.format
        with reader_of(self._segment) as reader:
            window = Window(reader, size, self._surveyor.limit_bytes)
            position = 0
            least = _HEADER_BYTES
            while position < size:
                data = window.at(position, least)
                least = _HEADER_BYTES
                try:
                    table, consumed, wanted, held = format.split(
                        data, 0, len(data), self.next_offset
                    )
                except (CorruptLog, UnsupportedFormat, OutOfMemoryBudget) as error:
                    step = self._skip_damage(error, position, data)
                    self._advance(step)
                    if not step:
                        return
                    position += step
                    continue
                if len(table):
                    self._take(data, held, table, position)
                    position += consumed
                    self._advance(consumed)
                elif wanted > 0 and wanted <= size - position and wanted > len(data):
                    least = wanted
                else:
                    self.note(torn_tail(path, position, size - position, max(wanted, 0)))
                    return

    def _skip_damage(self, error: LogError, position: int, data: ByteArray) -> int:
        """Report the error at ``position``. Returns the number of bytes to skip; 0 if unknown."""
        size = frame_bytes(data)
        left = self._segment.size_bytes - position
        self.note(kafka_problem_of(error, self._segment.path, position))
        if not 0 < size <= left:
            return 0
        if size == left:
            return size
        # Continue only if another batch seems to follow.
        behind = data[size : size + 17]
        return size if len(behind) < 17 or (behind[16] <= 2 and frame_bytes(behind) > 0) else 0

    def _take(self, data: ByteArray, held: ByteArray, table: BatchTable, position: int) -> None:
        """Count the batches of ``table``.

        ``held`` has the batches to which ``table`` refers, and ``data`` has their stored bytes.
        """
        if int(table["next_offset"][-1]) > self._end_offset:
            row = table[int(np.argmax(table["next_offset"] > self._end_offset))]
            self.note(
                kafka_problem_of(
                    CorruptLog(
                        f"the batch ends at offset {int(row['next_offset']) - 1}, but its segment "
                        f"ends before offset {self._end_offset}",
                        int(row["origin"]),
                    ),
                    self._segment.path,
                    position,
                )
            )
        self.next_offset = int(table["next_offset"][-1])
        self._indexes.check(table, position)
        try:
            self._surveyor.count(data, held, table, self._contents)
        except (CorruptLog, UnsupportedFormat, OutOfMemoryBudget) as error:
            if len(table) == 1:
                self.note(kafka_problem_of(error, self._segment.path, position))
                return
            for row in range(len(table)):
                try:
                    self._surveyor.count(data, held, table[row : row + 1], self._contents)
                except (CorruptLog, UnsupportedFormat, OutOfMemoryBudget) as narrow:
                    self.note(kafka_problem_of(narrow, self._segment.path, position))


def count_entries(segment: Segment, kind: KafkaFileKind, note: Note) -> int | None:
    """The number of entries in an index of ``segment``.

    None if the index is missing, unusable or unreadable. ``note`` gets the problem of an unreadable
    index.
    """
    stem, _, tail = segment.path.rpartition(".log")
    path = f"{stem}{kind}{tail}"
    is_true = (
        segment.is_abort_indexed if kind is KafkaFileKind.TRANSACTION_INDEX else segment.is_indexed
    )
    if not is_true or not exists(path):
        return None
    try:
        return sum(1 for _ in index_rows(read_small(path), kind, segment.base_offset, None))
    except RemoteFailed:  # the index could not be read
        raise
    except LogError as error:
        note(kafka_problem_of(error, path))
        return None


def _counter(counts: dict[str, int]) -> Counter[str]:
    return Counter({name: count for name, count in counts.items() if count})


def _count(mask: npt.NDArray[Any]) -> int:
    return int(np.count_nonzero(mask))


def _none_below(timestamp_ms: int) -> int | None:
    return None if timestamp_ms < 0 else timestamp_ms
