"""The *survey* of a raw ledger: the results of one pass over its entries' metadata.

Compaction needs its end position before it reads a record. The end is after the last entry that is
neither a marker nor part of an aborted transaction, and before every undecided transaction. The
survey therefore has the ledger's markers and transactional entries as *runs* of adjacent entries of
the same kind. It also has the number of messages, and *marks*: positions of entries about 256 KiB
apart, where a ledger with large blocks can be split into pieces.

A survey is stored beside its ledger as ``<object>.survey``, which may be missing or stale. It has
the size and modification time of its data object, and is rebuilt if they do not match. The scan
verifies the checksums of entries; the survey checks each length and id::

    0 magic LWSV · 4 version i32 · 8 size of the object i64 · 16 its mtime, ns, i64 ·
    24 entries i64 · 32 messages i64 · 40 largest publish time i64 · 48 parts i64 ·
    56 runs i64 · 64 marks i64 · 72 runs, marks, rows of i64, little-endian · last: crc-32c u32

Source: docs/formats/pulsar-compaction.md, "Markers and transactions"; docs/formats/pulsar.md,
"Offloaded ledger". The file is Lastwrite's own.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lastwrite.encoding.checksum import crc32c
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, TruncatedLog, located
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.pulsar.format.names import SURVEY_SUFFIX
from lastwrite.pulsar.format.position import MAX_ENTRY, Position
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.format.survey import ABORT_MARKER, COMMIT_MARKER, EntrySurveyor, SurveyTable
from lastwrite.pulsar.store.manifest import ASIDE_SUFFIX
from lastwrite.pulsar.store.topic import Ledger
from lastwrite.storage import files
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import SegmentReader, read_small
from lastwrite.storage.throttle import Spend

# Kinds of runs.
MARKER = 1  # a marker outside of transactions
COMMIT = 2
ABORT = 3
DATA = 4  # data of a transaction

_MAGIC = b"LWSV"
_VERSION = 2
_HEAD = struct.Struct("<4siqqqqqqqq")
_RUN, _MARK = 4, 2  # number of columns in a row of ``runs`` and of ``marks``
_CHUNK_BYTES = 4 << 20
_MOST_CHUNK_BYTES = 256 << 20
_MARK_BYTES = 256 << 10
_MOST_FILE_BYTES = 1 << 30
_MOST_MADE = 4096

# the surveys that this process has computed, by path, size and modification time of the object
_made: dict[tuple[str, int, int], LedgerSurvey] = {}


@dataclass(frozen=True, slots=True, eq=False)
class LedgerSurvey:
    """The counts of a raw ledger, and the runs of its entries that are not plain messages.

    ``runs`` has ascending rows of first entry, last entry, kind, and transaction number (-1 outside
    of transactions). Entries in no run are plain messages. ``marks`` has rows of an entry and its
    position in the object.
    """

    entries: int
    messages: int
    largest_publish_ms: int
    parts: int  # number of chunks of messages, without the last chunk of each message
    runs: Int64Array
    marks: Int64Array

    def encode(self, size_bytes: int, mtime_ns: int) -> bytes:
        """The bytes of the file, for a data object of this size and modification time."""
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            size_bytes,
            mtime_ns,
            self.entries,
            self.messages,
            self.largest_publish_ms,
            self.parts,
            len(self.runs),
            len(self.marks),
        )
        data = head + self.runs.astype("<i8").tobytes() + self.marks.astype("<i8").tobytes()
        return data + _digest(data)

    @classmethod
    def decode(cls, data: bytes, size_bytes: int, mtime_ns: int) -> LedgerSurvey | None:
        """Decode the bytes of a survey file.

        None if they are damaged, or if the file was written for another object or by another
        release.
        """
        if len(data) < _HEAD.size + 4 or data[-4:] != _digest(data[:-4]):
            return None
        magic, version, size, mtime, entries, messages, largest, parts, runs, marks = (
            _HEAD.unpack_from(data)
        )
        if (magic, version, size, mtime) != (_MAGIC, _VERSION, size_bytes, mtime_ns):
            return None
        if min(entries, messages, parts, runs, marks) < 0 or _HEAD.size + 8 * (
            _RUN * runs + _MARK * marks
        ) + 4 != len(data):
            return None
        rows = np.frombuffer(
            data, dtype="<i8", count=_RUN * runs + _MARK * marks, offset=_HEAD.size
        )
        return cls(
            entries,
            messages,
            largest,
            parts,
            rows[: _RUN * runs].reshape(-1, _RUN),
            rows[_RUN * runs :].reshape(-1, _MARK),
        )


def _digest(data: bytes) -> bytes:
    return int(crc32c(np.frombuffer(data, dtype=np.uint8), 0, len(data))).to_bytes(4, "little")


class TopicTransactions(NamedTuple):
    """The transactions of a topic, by number.

    ``firsts`` has the first data entry of each transaction, ``markers`` the marker of each decided
    transaction.
    """

    firsts: dict[int, Position]
    markers: dict[int, Position]
    aborted: frozenset[int]

    @property
    def undecided(self) -> list[Position]:
        """The first position of each transaction that has data and no marker."""
        return [first for txn, first in self.firsts.items() if txn not in self.markers]

    @property
    def first_undecided(self) -> Position | None:
        return min(self.undecided, default=None)


def transactions_of(
    surveys: Mapping[int, LedgerSurvey], beyond: Position | None = None
) -> TopicTransactions:
    """The transactions of a topic, from the surveys of its ledgers by ledger id.

    A survey lists the markers and transactional entries of a ledger. With ``beyond``, only entries
    after that position count.
    """
    firsts: dict[int, Position] = {}
    markers: dict[int, Position] = {}
    aborts: dict[int, bool] = {}
    for ledger, found in sorted(surveys.items()):
        begin = beyond.entry + 1 if beyond is not None and beyond.ledger == ledger else 0
        for first, last, what, txn in found.runs.tolist():
            if last < begin or txn < 0:
                continue
            if what == DATA:
                firsts.setdefault(txn, Position(ledger, max(first, begin)))
            else:
                markers[txn], aborts[txn] = Position(ledger, last), what == ABORT
    return TopicTransactions(firsts, markers, frozenset(txn for txn in aborts if aborts[txn]))


def free(size_bytes: int) -> None:
    """The default of ``spend``. It does nothing, so reading is not limited."""


def survey_of(ledger: Ledger, spend: Spend = free) -> LedgerSurvey:
    """The survey of a ledger: the kinds of its entries and its counts, from one pass over metadata.

    A stored survey is returned if it is valid. Otherwise the ledger is read, and ``spend`` is
    called with the bytes read.

    Raises:
        CorruptLog: lengths or ids are wrong, or do not match the index.
        UnsupportedFormat: a transaction's number is too large.
        CommitConflict: the object changed or was deleted.
        LogError: the ledger cannot be read.
    """
    found = LedgerSurvey.decode(ledger.survey, ledger.size_bytes, ledger.mtime_ns)
    found = found or stored_survey(ledger.path, ledger.size_bytes, ledger.mtime_ns)
    if found is None or found.entries != ledger.entries:
        found = _survey(ledger, spend)
    if len(_made) >= _MOST_MADE:
        _made.clear()
    _made[ledger.path, ledger.size_bytes, ledger.mtime_ns] = found
    return found


def keep_survey(ledger: Ledger, spend: Spend = free) -> LedgerSurvey:
    """The survey of a ledger, as from ``survey_of``.

    The survey is stored beside the ledger if possible.
    """
    found = survey_of(ledger, spend)
    path = ledger.path + SURVEY_SUFFIX
    if _read(path, ledger.size_bytes, ledger.mtime_ns) is None:
        with suppress(LogError):
            like = files.owner_of(path, [ledger.path]).as_far_as_may()
            content = found.encode(ledger.size_bytes, ledger.mtime_ns)
            files.replace(path, content, suffix=ASIDE_SUFFIX, is_synced=False, like=like)
    return found


def stored_survey(path: str, size_bytes: int, mtime_ns: int) -> LedgerSurvey | None:
    """The survey of the data object at ``path``, from the cache or from the survey's file.

    None if there is no survey for this size and modification time.
    """
    return _made.get((path, size_bytes, mtime_ns)) or _read(
        path + SURVEY_SUFFIX, size_bytes, mtime_ns
    )


def _read(path: str, size_bytes: int, mtime_ns: int) -> LedgerSurvey | None:
    if is_address(path):
        with suppress(FileNotFoundError, LogError):
            return LedgerSurvey.decode(read_small(path), size_bytes, mtime_ns)
        return None
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_FILE_BYTES:
                return None
            return LedgerSurvey.decode(file.read(), size_bytes, mtime_ns)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise files.to_log_error(error, path, "read the survey") from error


# ---------------------------------------------------------------------- the pass


def _survey(ledger: Ledger, spend: Spend) -> LedgerSurvey:
    runs = _Runs()
    marks: list[tuple[int, int]] = []
    messages, largest, parts = 0, -1, 0
    next_mark = _MARK_BYTES
    surveyor = EntrySurveyor()
    with ledger.reader() as reader:
        for first, end, start, stop in ledger.runs():
            following = first
            lowest = Position(ledger.id, first).offset
            for table, shift in _chunks(surveyor, reader, ledger.path, lowest, start, stop, spend):
                numbers = table["offset"] & MAX_ENTRY
                if int(numbers[0]) != following:
                    words = (
                        f"the object has entry {int(numbers[0])} in the place of entry {following}"
                    )
                    at = shift + int(table["position"][0])
                    raise CorruptLog(words, at, ledger.path, RESTORE)
                following = int(numbers[-1]) + 1
                runs.add(numbers, table["transaction"], _entry_kinds(table))
                begins = table["position"] + shift
                while int(begins[-1]) >= next_mark:
                    row = int(np.searchsorted(begins, next_mark))
                    marks.append((int(numbers[row]), int(begins[row])))
                    next_mark = int(begins[row]) + _MARK_BYTES
                messages += int(table["records"].sum())
                largest = max(largest, int(table["publish_time"].max()))
                parts += int(table["is_part"].sum())
            if following != end:
                words = (
                    f"the entries of the object end before entry {following}, but those of the "
                    f"index before entry {end}"
                )
                raise CorruptLog(words, stop, ledger.path, RESTORE)
        reader.check_unchanged()
    places = np.array(marks, dtype=np.int64).reshape(-1, _MARK)
    return LedgerSurvey(ledger.entries, messages, largest, parts, runs.rows(), places)


def _chunks(
    surveyor: EntrySurveyor,
    reader: SegmentReader,
    path: str,
    lowest: int,
    position: int,
    stop: int,
    spend: Spend,
) -> Iterator[tuple[SurveyTable, int]]:
    """The entries between two bytes of a data object, chunk by chunk.

    Each chunk comes with the number to add to its positions to get positions in the object.
    ``lowest`` is the lowest offset that the first entry may have.
    """
    buffer: ByteArray = np.empty(min(_CHUNK_BYTES, max(stop - position, 1)), dtype=np.uint8)
    # buffer[start:end] is not split yet; buffer[0] is at byte ``position`` of the object
    start = end = 0
    while position + start < stop:
        wanted = 0
        if end > start:
            with located(path, position):
                table, start, wanted = surveyor.take(buffer, start, end, lowest)
            if len(table):
                lowest = int(table["offset"][-1]) + 1
                yield table, position
            if wanted < 0 and start < end and len(table):
                continue
        left = stop - (position + end)
        if not left and start < end:
            raise TruncatedLog("the object ends inside an entry", position + start, path, RESTORE)
        if wanted > len(buffer):
            if wanted > _MOST_CHUNK_BYTES:
                raise OutOfMemoryBudget(
                    f"the entry has {wanted} bytes, more than Lastwrite can read",
                    position + start,
                    path,
                )
            grown = np.empty(wanted + (wanted >> 2), dtype=np.uint8)
            grown[: end - start] = buffer[start:end]
            buffer = grown
        elif start:
            buffer[: end - start] = buffer[start:end].copy()
        position, end, start = position + start, end - start, 0
        n = min(left, len(buffer) - end)
        reader.read_into(buffer[end : end + n], position + end)
        spend(n)
        end += n


def _entry_kinds(table: SurveyTable) -> Int64Array:
    """The kind of each entry in the table; 0 for a plain message."""
    markers = table["marker"]
    kinds: Int64Array = np.where(markers < 0, np.where(table["transaction"] >= 0, DATA, 0), MARKER)
    kinds[markers == COMMIT_MARKER] = COMMIT
    kinds[markers == ABORT_MARKER] = ABORT
    return kinds


class _Runs:
    """Collects runs of adjacent entries of the same kind."""

    def __init__(self) -> None:
        self._rows: list[Int64Array] = []

    def add(self, numbers: Int64Array, transactions: Int64Array, kinds: Int64Array) -> None:
        told = np.where(kinds >= COMMIT, transactions, -1)
        if not kinds.any():
            return
        differs = np.flatnonzero((np.diff(kinds) != 0) | (np.diff(told) != 0)) + 1
        firsts = np.concatenate((np.zeros(1, dtype=np.int64), differs))
        lasts = np.concatenate((differs, np.array([len(kinds)], dtype=np.int64))) - 1
        rows = np.stack((numbers[firsts], numbers[lasts], kinds[firsts], told[firsts]), axis=1)
        self._rows.append(rows[kinds[firsts] != 0])

    def rows(self) -> Int64Array:
        """All runs, one row each. A run that crosses a chunk border has a row in each chunk."""
        if not self._rows:
            return np.empty((0, _RUN), dtype=np.int64)
        return np.concatenate(self._rows)
