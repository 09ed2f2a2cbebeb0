"""Read a topic folder as the log that the compaction stages work on.

``topic`` describes the folder's content.

The smallest case: ledger 10 has entries 0 to 5, and entry 5 is a marker. The manifest names
compacted ledger 13 with horizon 10:1. The log has three segments. Ledger 13 is the first. Entries 2
to 4 of ledger 10 are the second, which is compacted. Entry 5 alone is the third; it stays beyond
the new horizon, 10:4.

Source: Pulsar 4.2.4; docs/formats/pulsar-compaction.md.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.model.columns import BatchTable
from lastwrite.model.log import AbortedTransaction, PartitionLog, Segment
from lastwrite.model.work import ScanRange
from lastwrite.pulsar.format.names import INDEX_SUFFIX
from lastwrite.pulsar.format.offload import BLOCK_HEADER_BYTES, ENTRY_HEAD, EntryHead, IndexObject
from lastwrite.pulsar.format.position import COMPACTED, MAX_ENTRY, Position
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.store import lock
from lastwrite.pulsar.store.archived import contents_of, is_archived
from lastwrite.pulsar.store.manifest import CompactionManifest, read_manifest
from lastwrite.pulsar.store.objects import read_index
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.survey import (
    DATA,
    LedgerSurvey,
    free,
    keep_survey,
    stored_survey,
    survey_of,
    transactions_of,
)
from lastwrite.pulsar.store.topic import Ledger, TopicFolder, list_topic, partition_of
from lastwrite.storage import files
from lastwrite.storage.files import to_log_error
from lastwrite.storage.problems import problem_of
from lastwrite.storage.throttle import Spend


def read_topic(folder: str, spend: Spend | None = None) -> PartitionLog:
    """Read a topic folder as a log: the compacted ledger, then the raw entries beyond its horizon.

    ``checkpoint`` is after the horizon, ``high_watermark`` after the highest possible next horizon,
    and ``first_unstable_offset`` at the first entry of the earliest undecided transaction. In
    ``aborted`` a transaction's number is the producer.

    Raises:
        LogError: a file cannot be read, or the folder is not named after a topic.
    """
    return log_of(list_topic(folder), spend)


def log_of(topic: TopicFolder, spend: Spend | None = None) -> PartitionLog:
    """The log of a listed topic.

    The metadata of a ledger without stored counts are read once. ``spend`` is called with the bytes
    read. If this process has locked the topic, the new counts are stored next to the ledger.
    """
    return _TopicLogBuilder(topic, spend or free).log()


def _is_whole(ledger: Ledger, horizon: Position | None) -> bool:
    """Whether no entry beyond the horizon is missing. The listing reports missing entries."""
    return not ledger.missing or (
        horizon is not None and Position(ledger.id, ledger.missing[-1].last) <= horizon
    )


def _in_threads(
    ledgers: Sequence[Ledger], work: Callable[[Ledger], LedgerSurvey]
) -> list[LedgerSurvey | LogError]:
    """Call ``work`` for each ledger, in threads. Returns each result or the raised error."""

    def done(ledger: Ledger) -> LedgerSurvey | LogError:
        try:
            return work(ledger)
        except LogError as error:
            return error

    # If faults are injected, the work runs in order, so that a test can predict the failing
    # operation.
    if len(ledgers) < 2 or files.faults.is_armed:
        return [done(ledger) for ledger in ledgers]
    with ThreadPoolExecutor(min(len(ledgers), os.cpu_count() or 1), "lastwrite-survey") as pool:
        return list(pool.map(done, ledgers))


@dataclass(frozen=True, slots=True)
class _LedgerBeyondHorizon:
    """A ledger that has entries beyond the horizon."""

    ledger: Ledger
    survey: LedgerSurvey
    first: int  # the first entry beyond the horizon

    def position(self, entry: int) -> Position:
        return Position(self.ledger.id, entry)


class _TopicLogBuilder:
    """Builds the ``PartitionLog`` of a topic."""

    def __init__(self, topic: TopicFolder, spend: Spend) -> None:
        self._topic = topic
        self._problems = list(topic.problems)
        is_held = lock.holds(topic.folder, partition_of(topic.name))
        self._survey = partial(keep_survey if is_held else survey_of, spend=spend)

    def log(self) -> PartitionLog:
        topic = self._topic
        beyond = self._beyond()
        found = transactions_of({each.ledger.id: each.survey for each in beyond}, topic.horizon)
        undecided = found.first_undecided
        aborted = [
            AbortedTransaction(txn, found.firsts[txn].offset, marker.offset, marker.offset + 1)
            for txn, marker in found.markers.items()
            if txn in found.aborted and txn in found.firsts
        ]
        horizon = _new_horizon(beyond, undecided, {entry.producer_id for entry in aborted})
        checkpoint = None if topic.horizon is None else topic.horizon.offset + 1
        segments = [
            *self._compacted(),
            *(part for each in beyond for part in _stretches(each, horizon)),
        ]
        end = checkpoint or 0
        if beyond:
            end = beyond[-1].position(beyond[-1].survey.entries - 1).offset + 1
        return PartitionLog(
            name=partition_of(topic.name),
            folder=topic.folder,
            segments=tuple(segments),
            log_start=max(segments[0].base_offset, 0) if segments else 0,
            end_offset=end,
            high_watermark=(checkpoint or 0) if horizon is None else horizon.offset + 1,
            checkpoint=checkpoint,
            problems=tuple(self._problems),
            aborted=tuple(sorted(aborted, key=lambda entry: entry.last_offset)),
            first_unstable_offset=None if undecided is None else undecided.offset,
            superseded=tuple(
                ledger.segment(Position(ledger.id, 0).offset)
                for ledger in topic.ledgers
                if ledger.stored_entries and not ledger.is_beyond(topic.horizon)
            ),
        )

    def _beyond(self) -> list[_LedgerBeyondHorizon]:
        horizon = self._topic.horizon
        ledgers = [
            ledger
            for ledger in self._topic.ledgers
            if ledger.is_beyond(horizon) and _is_whole(ledger, horizon)
        ]
        found = []
        for ledger, survey in zip(ledgers, _in_threads(ledgers, self._survey), strict=True):
            if isinstance(survey, CorruptLog | UnsupportedFormat):
                self._problems.append(problem_of(survey, ledger.path, remedy=RESTORE))
                continue
            if isinstance(survey, LogError):
                raise survey
            cut = horizon is not None and horizon.ledger == ledger.id
            first = horizon.entry + 1 if cut and horizon is not None else 0
            found.append(_LedgerBeyondHorizon(ledger, survey, first))
        return found

    def _compacted(self) -> Iterator[Segment]:
        for n, ledger in enumerate(self._topic.compacted or ()):
            if ledger.size_bytes:
                first = None if n == 0 else ledger.first_id
                base = COMPACTED if first is None else first.offset
                yield ledger.segment(base)


def _new_horizon(
    beyond: Sequence[_LedgerBeyondHorizon], undecided: Position | None, aborted: Collection[int]
) -> Position | None:
    """The last entry that a compaction may include. None if there is none.

    The entry is before all undecided data, and is neither a marker nor aborted data.
    """
    for each in reversed(beyond):
        entry = each.survey.entries - 1
        if undecided is not None and each.position(entry) >= undecided:
            entry = undecided.entry - 1 if undecided.ledger == each.ledger.id else -1
        runs = each.survey.runs
        row = int(np.searchsorted(runs[:, 0], entry, side="right")) - 1
        while row >= 0 and runs[row, 1] >= entry >= each.first:
            if runs[row, 2] == DATA and int(runs[row, 3]) not in aborted:
                break
            entry = int(runs[row, 0]) - 1
            row -= 1
        if entry >= each.first:
            return each.position(entry)
    return None


def _stretches(each: _LedgerBeyondHorizon, horizon: Position | None) -> Iterator[Segment]:
    """The segment of a ledger up to the new horizon, and the segment beyond it."""
    ledger, entries = each.ledger, each.survey.entries
    borders = [each.first, entries]
    if (
        horizon is not None
        and horizon.ledger == ledger.id
        and each.first <= horizon.entry < entries - 1
    ):
        borders.insert(1, horizon.entry + 1)
    places = [_entry_position(ledger, each.survey, entry) for entry in borders]
    for first, start, end in zip(borders, places, places[1:], strict=False):
        yield replace(
            ledger.segment(each.position(first).offset, position=start, size=end - start),
            largest_timestamp_ms=each.survey.largest_publish_ms,
        )


def _entry_position(ledger: Ledger, found: LedgerSurvey, entry: int) -> int:
    """The position of an entry in its object. A block's first entry has the header's position.

    The position after the last entry is the object's end.

    Raises:
        CorruptLog: the entry is not found from the positions in the index and the survey.
    """
    if entry >= found.entries:
        return ledger.size_bytes
    block = ledger.index.block_of(entry)
    number, at = 0, 0
    if block is not None:
        if block.first_entry == entry:
            return block.offset
        number, at = block.first_entry, block.offset + BLOCK_HEADER_BYTES
    row = int(np.searchsorted(found.marks[:, 0], entry, side="right")) - 1
    if row >= 0 and int(found.marks[row, 0]) >= number:
        number, at = int(found.marks[row, 0]), int(found.marks[row, 1])
    data = np.empty(ENTRY_HEAD.size, dtype=np.uint8)
    try:
        with ledger.reader() as reader:
            while number <= entry:
                head = None
                if at + ENTRY_HEAD.size <= ledger.size_bytes:
                    reader.read_into(data, at)
                    head = EntryHead._make(ENTRY_HEAD.unpack_from(data))
                if head is None or head.size < 0 or head.entry != number:
                    raise CorruptLog(
                        f"entry {number} is not where the index or the survey places it",
                        at,
                        ledger.path,
                        RESTORE,
                    )
                if number == entry:
                    return at
                at += ENTRY_HEAD.size + head.size
                number += 1
    except OSError as error:
        raise to_log_error(error, ledger.path, "read the object") from error
    raise CorruptLog(
        f"entry {entry} is not where the index or the survey places it", at, ledger.path, RESTORE
    )


# ---------------------------------------------------------------------- pieces


def cuts_of(segment: Segment, piece_bytes: int) -> list[int]:
    """Positions that split a segment into pieces of about ``piece_bytes``.

    The positions are starts of blocks, or of other entries whose positions are stored with the
    ledger.
    """
    start, end = segment.position, segment.position + segment.size_bytes
    cuts = [start]
    if segment.size_bytes > piece_bytes * 3 // 2:
        index = read_index(segment.path)
        places = {block.offset for block in index.blocks}
        if index.metadata.compacted_topic is None:
            seen = stored_survey(segment.path, segment.file_bytes, segment.mtime_ns)
            places |= set() if seen is None else set(seen.marks[:, 1].tolist())
        known = sorted(place for place in places if start < place < end)
        count = -(-segment.size_bytes // piece_bytes)
        for n in range(1, count):
            at = bisect_left(known, start + segment.size_bytes * n // count)
            if at < len(known) and known[at] > cuts[-1]:
                cuts.append(known[at])
    if segment.size_bytes:
        cuts.append(end)
    return cuts


def record_count(log: PartitionLog, compacted: CompactionManifest | None) -> int:
    """The approximate number of records in the log.

    ``compacted`` is the manifest of the compacted ledger.
    """
    count = 0
    for segment in log.segments:
        found = _summary_of(log, segment, compacted)
        if found is not None:
            share = segment.size_bytes / segment.file_bytes
            count += int(found.messages * share)
    return count


def has_parts(log: PartitionLog, compacted: CompactionManifest | None) -> bool:
    """Whether the log may contain messages that were sent in several chunks."""
    told = (_summary_of(log, segment, compacted) for segment in log.segments)
    return any(found is not None and found.parts for found in told)


def _summary_of(
    log: PartitionLog, segment: Segment, compacted: CompactionManifest | None
) -> LedgerSurvey | CompactionManifest | None:
    """The stored counts of a segment. None if they are unknown.

    They are in the survey of a raw ledger, or in the manifest of the compacted ledger.
    """
    if not is_of_compacted(log, segment):
        return stored_survey(segment.path, segment.file_bytes, segment.mtime_ns)
    # The manifest counts the records of all parts, so it is returned only for the first part.
    return compacted if segment.base_offset == COMPACTED else None


def read_compacted(folder: str) -> CompactionManifest | None:
    """The manifest of the topic's compacted ledger. None if there is none.

    Raises:
        LogError: the manifest cannot be read.
    """
    if is_archived(folder):
        return contents_of(read_versioned_manifest(folder).manifest, folder).compacted_manifest(
            name_of(folder)
        )
    return read_manifest(folder)


def is_of_compacted(log: PartitionLog, segment: Segment) -> bool:
    """Whether the segment belongs to the compacted ledger.

    That ledger has the ids up to the horizon.
    """
    return segment.base_offset < (log.checkpoint or 0)


class OffloadIndexChecker:
    """Checks that the blocks of the index begin where entries of the scanned piece begin."""

    def __init__(self, piece: ScanRange) -> None:
        index = IndexObject.decode(piece.index) if piece.index else read_index(piece.path)
        blocks = [block for block in index.blocks if piece.start <= block.offset < piece.end]
        self._path = piece.path + INDEX_SUFFIX
        self._is_raw = index.metadata.compacted_topic is None
        self._begins = np.array(
            [block.offset + BLOCK_HEADER_BYTES for block in blocks], dtype=np.int64
        )
        self._firsts = np.array([block.first_entry for block in blocks], dtype=np.int64)

    def check(self, table: BatchTable, shift: int) -> None:
        """Check the blocks that begin in the next entries.

        The position of an entry in the object is its origin in ``table`` plus ``shift``.

        Raises:
            CorruptLog: no entry, or another entry, begins at a position of the index.
        """
        begins = table["origin"] + shift
        first, end = np.searchsorted(self._begins, [begins[0], begins[-1] + 1])
        named = self._begins[first:end]
        at = np.searchsorted(begins, named)
        wrong = begins[at] != named
        if self._is_raw:
            wrong |= (table["base_offset"][at] & MAX_ENTRY) != self._firsts[first:end]
        if wrong.any():
            row = int(first) + int(np.argmax(wrong))
            words = f"block {row} of the index does not begin with entry {int(self._firsts[row])}"
            raise CorruptLog(words, None, self._path, RESTORE)

    def ends(self) -> None:
        """Does nothing: the end is checked when the files are listed."""
