"""Lists a partition's folder as Kafka's loader would leave it after a start.

Changes that a crash interrupted are listed as finished or undone (see ``kafka.recovery``), but no
file is changed. Listing costs a directory listing, two small reads per segment, and the headers at
the end of the last segment.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from lastwrite.errors import CommitConflict, CorruptLog, LogError, UnsupportedFormat
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.kafka.format.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    OffsetIndex,
    decode_offset_index,
    decode_time_index,
)
from lastwrite.kafka.format.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SEGMENT_KINDS,
    KafkaFileKind,
    Suffix,
    classify,
    segment_file_name,
)
from lastwrite.kafka.format.remedy import REBUILD
from lastwrite.kafka.format.text import decode_leader_epochs, decode_partition_metadata
from lastwrite.kafka.producers.history import decode_aborted, read_history, read_producers
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot
from lastwrite.kafka.recovery import unclean_shutdown
from lastwrite.kafka.recovery.lost_records import EndEvidence
from lastwrite.kafka.recovery.problems import RecoveryProblems
from lastwrite.kafka.recovery.unfinished_swap import (
    crash_state,
    finish_swap,
    is_intent,
    orphans,
    orphans_being_deleted,
    remove_leftovers,
    remove_orphans,
    undo_or_end,
)
from lastwrite.kafka.recovery.walking import NO_END, OpenFile, walk, walk_tail
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.archived import is_archived, read_archived
from lastwrite.kafka.store.checkpoints import write_offset
from lastwrite.kafka.store.index_files import read_file
from lastwrite.kafka.store.partitions import name_in_root, partition_name, root_of, why_disowned
from lastwrite.kafka.store.root_state import RootState
from lastwrite.kafka.store.tiered import is_tier, read_tier
from lastwrite.model.log import AbortedTransaction, PartitionLog, Problem, ProblemKind, Segment
from lastwrite.storage import preflight
from lastwrite.storage.files import to_log_error
from lastwrite.storage.parallel_sync import run_steps_serially
from lastwrite.storage.reading import AGAIN, SETTLED_NS, TRY_AGAIN

_MOVE_AWAY = "move the file out of this folder: it is not a part of the log"
_BRING_BACK = "restore the file from a backup of this folder, or from a replica that is in sync"
# A log that changes is listed again for up to 30 s. A broker writes high watermarks more often.
_LOOKS, _LOOK_AGAIN_S = 500, 0.06
# A larger closed segment without an index is not read to determine its end offset.
_MOST_WALKED_BYTES = 16 << 20
_NOTING_NS = 1_000_000_000  # most ns between a broker's collecting and writing of watermarks
_STALE_CHECKPOINT = (
    "if that line is older than this log (the topic was deleted and created again, or the folder "
    "was restored), stop the broker and remove the line: the next round starts at the log's start"
)
_MARKS = {
    HIGH_WATERMARKS: "the high watermark",
    CLEANER_OFFSETS: "the first dirty offset",
    LOG_STARTS: "the log start",
}


def recover(folder: str) -> None:
    """Finish or undo changes that a crash interrupted. The caller has locked the partition.

    Indexes without a segment are removed unless they are evidence of lost records. If the broker
    was killed, closed segments get the indexes that its next start would write. Files that this
    start would truncate or remove stay, and are ignored. A damaged log is not changed.

    Raises:
        LogError: a file cannot be changed. The next call finishes the work.
    """
    # Indexes of a segment being deleted are removed first: once its .deleted file is gone, they
    # would look like evidence of a lost segment.
    names = _names(folder)
    if unfinished := orphans_being_deleted(names):
        remove_orphans(folder, unfinished)
        names = _names(folder)
    state = crash_state(folder, names)
    if state.intent is not None:
        name, first_dirty = partition_name(folder), state.intent.first_dirty_offset
        run_steps_serially(finish_swap(folder, state.intent))
        write_offset(root_of(folder), CLEANER_OFFSETS, name, first_dirty)
        run_steps_serially(remove_leftovers(folder))
    elif not state.is_settled:
        undo_or_end(folder, state)
    if not state.is_settled:
        names = _names(folder)
    lost = orphans(names)
    if lost and not read_partition(folder).is_damaged:
        remove_orphans(folder, lost)
    if not unclean_shutdown.was_killed(root_of(folder)):
        return
    log = read_partition(folder)
    if log.is_damaged:
        return
    for n, segment in enumerate(log.segments[:-1]):
        unclean_shutdown.repair_indexes(segment, log.aborted_in(n))


def reject_unwritable(folder: str, end: int) -> None:
    """Check that a compaction can replace the checkpoints and the segments below ``end``.

    Raises:
        LogError: a file cannot be replaced.
    """
    found = [(name, classify(name)) for name in _names(folder)]
    preflight.reject_unwritable(
        folder, [name for name, file in found if file.offset is not None and file.offset < end]
    )
    preflight.reject_unwritable(root_of(folder), [CLEANER_OFFSETS])


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error


def read_partition(folder: str, below: int = NO_END, root: RootState | None = None) -> PartitionLog:
    """List one partition: its segments, bounds, and the problems of its files.

    A log that a broker has open is listed as if it ended at its high watermark, or at the offset
    ``below`` (docs/decisions/beside-a-broker.md). ``root`` is the root's recent state, for a caller
    that lists many partitions. If a broker has the root open, its state is read again.

    ``Segment.path`` is the present name of the file, which may be ``….log.swap`` after a crash. A
    damaged file is reported in ``problems`` and raises no error.

    Raises:
        NotALog: ``folder`` is not a partition's folder.
        LogHeld: a broker is starting on the root.
        CommitConflict: a broker keeps changing the partition's files.
        LogError: a file cannot be read.
    """
    if is_archived(folder):
        return read_archived(folder)
    if is_tier(folder):
        return read_tier(folder).log
    if root is None:
        root = RootState(os.path.dirname(os.path.abspath(folder)))
    if root.broker is None:
        return _PartitionListing(folder, root).log()
    return _read_beside(folder, below)


def _read_beside(folder: str, below: int) -> PartitionLog:
    """List a log that a broker has open. If the log changes meanwhile, it is listed again."""
    root = os.path.dirname(os.path.abspath(folder))
    lock.reject_starting(root)
    why = "its files changed during each attempt to read it"
    for _ in range(_LOOKS):
        before = beside_a_broker.folder_state(folder)
        if time.time_ns() - before[1] > SETTLED_NS:
            try:
                reading = _PartitionListing(folder, RootState(root), below)
                log = reading.log()
                if beside_a_broker.folder_state(folder) == before:
                    if reading.moving is None:
                        return log
                    why = reading.moving
            except CommitConflict as error:
                why = error.problem
        time.sleep(_LOOK_AGAIN_S)
    raise CommitConflict(
        f"a broker has this log open, and a consistent state cannot be read: {why}",
        path=folder,
        remedy=TRY_AGAIN,
    )


class _PartitionListing:
    """Lists one partition from its files, as a ``PartitionLog``.

    ``below`` bounds the end offset of a log that a broker has open; None means that no broker has
    it open. ``moving`` is the reason why the log must be listed again; None if that is unnecessary.
    """

    def __init__(self, folder: str, root: RootState, below: int | None = None) -> None:
        self.moving: str | None = None
        self._folder = os.path.abspath(folder)
        self._name = name_in_root(self._folder)
        self._is_disowned = why_disowned(self._folder) is not None
        if self._is_disowned:
            below = None  # no bound is needed: brokers append only to live folders
        self._root = root
        # Aborted transactions by base offset of the segment.
        self._aborted: dict[int, tuple[AbortedTransaction, ...]] = {}
        # Segments whose transaction index may be wrong after a crash.
        self._unsure: set[int] = set()
        self._index = b""  # content of the active segment's offset index
        # producers by offset of the snapshot
        self._producers: dict[int, tuple[ProducerEntry, ...]] = {}
        self._bare_from: int | None = None
        self._holes: list[tuple[int, int]] = []
        # Checkpoints are read before the log, so that later offsets of a broker are not used.
        problems: list[Problem] = []
        noted_ns = 0 if below is None else root.noted_ns
        self._noted_ns = noted_ns - _NOTING_NS
        self._offsets = {
            file: self._offset(file, problems)
            for file in (LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
        }
        flushed_to = 0 if self._is_disowned else root.recovery_point(self._name)
        names = _names(folder)
        self._state = crash_state(folder, names)
        self._live = self._state.live(names)
        self._orphans = orphans(self._live)
        self._bases = sorted(
            int(name[:20]) for name in self._live if classify(name).kind is KafkaFileKind.LOG
        )
        self._log_start = self._offsets[LOG_STARTS] or 0
        self._below = below
        self._behind: list[str] = []  # files of segments beyond the bound, which are not read
        if below is not None:
            self._below = self._drop_beyond(min(below, self._offsets[HIGH_WATERMARKS] or 0))
        self._missing = self._missing_segments({*orphans_being_deleted(names)})
        for name in self._orphans:
            del self._live[name]
        self._was_killed = below is None and root.was_killed
        # A killed broker may not have flushed the segments from this base offset on completely.
        self._unflushed = max((base for base in self._bases if base <= flushed_to), default=0)
        self._found = RecoveryProblems(
            self._folder, self._live, self._bases, self._missing, self._log_start
        )
        self._found.problems += problems
        self._found.witnesses += [
            *(
                EndEvidence(
                    at,
                    f"{words} is {at} ({file}, line '{self._name.topic} "
                    f"{self._name.partition} {at}')",
                    _STALE_CHECKPOINT if file == CLEANER_OFFSETS else "",
                )
                for file, words in _MARKS.items()
                if (at := self._offsets[file])
            ),
            EndEvidence(flushed_to, f"the recovery point is {flushed_to} ({RECOVERY_POINTS})"),
        ]
        self._report_recovered(names)

    def log(self) -> PartitionLog:
        for name in sorted(self._live):
            self._check_file(name)
        bases = self._bases
        segments, end_offset = self._segments()
        checkpoint = self._offsets[CLEANER_OFFSETS]
        log_start = max(self._log_start, bases[0] if bases else 0)
        if not bases:
            end_offset = log_start
        self._found.report_missing_segments(self._orphans, end_offset)
        if self._below is None:
            self._found.missing_at_end(segments[-1] if segments else None, end_offset)
        else:
            self._find_cleaned(segments)
            log_start = min(log_start, end_offset)
            if checkpoint is not None:
                checkpoint = min(checkpoint, end_offset)
            self._report_open_files(end_offset)
        seen = {os.path.basename(segment.path) for segment in segments}
        logs = {self._live[segment_file_name(base, KafkaFileKind.LOG)] for base in bases}
        watermark = self._offsets[HIGH_WATERMARKS]
        high_watermark = end_offset if watermark is None else min(watermark, end_offset)
        producers, first_unstable = read_producers(
            segments,
            [int(name[:20]) for name in self._of_kind(KafkaFileKind.SNAPSHOT)],
            self._snapshot,
            log_start,
            high_watermark,
            end_offset,
            self._bare_from,
        )
        intent = self._state.intent
        listed = PartitionLog(
            name=self._name,
            folder=self._folder,
            segments=segments,
            log_start=log_start,
            end_offset=end_offset,
            high_watermark=high_watermark,
            checkpoint=checkpoint if intent is None else intent.first_dirty_offset,
            problems=tuple(self._found.problems),
            producers=producers,
            aborted=tuple(
                entry
                for base in bases
                for entry in self._aborted.get(base, ())
                if entry.last_offset < end_offset
            ),
            first_unstable_offset=first_unstable,
            unseen=tuple(sorted({*(logs - seen), *self._behind})),
            cached=tuple(sorted(self._of_kind(KafkaFileKind.KEPT))),
            open_as=None
            if self._below is None
            else beside_a_broker.marks(self._folder, end_offset),
            holes=tuple(self._holes),
        )
        return self._with_aborted(listed) if self._unsure else listed

    # ------------------------------------------------------------------ beside a broker

    def _drop_beyond(self, bound: int) -> int:
        """Drop the segments that begin above the offset ``bound``.

        Returns ``bound``, or the log's first offset if that is larger.
        """
        last = max((base for base in self._bases if base <= bound), default=None)
        if last is None:
            last = self._bases[0] if self._bases else 0
        for name in list(self._live):
            file = classify(name)
            if file.offset is None or file.offset <= last:
                continue
            if file.kind is KafkaFileKind.LOG:
                self._behind.append(self._live[name])
            if file.kind in SEGMENT_KINDS or file.offset > bound:
                del self._live[name]
        self._bases = [base for base in self._bases if base <= last]
        self._orphans = [name for name in self._orphans if name in self._live]
        if any(classify(name).suffix is Suffix.SWAP for name in self._live.values()):
            self.moving = "the broker's cleaner is replacing segments"
        return max(bound, last)

    def _open_segment(self, base: int) -> tuple[Segment, int]:
        """The segment with the offset where the listing ends, truncated there, and its end offset.

        The segment's indexes are not used, because the broker may be writing them.
        """
        assert self._below is not None
        path = self._found.log_path(base)
        seen = _stat(path)
        name = segment_file_name(base, KafkaFileKind.INDEX)
        try:  # the index may be of the old segment: a cleaner renames the new log first
            index = decode_offset_index(self._read(name) if name in self._live else b"", base)
        except CorruptLog:
            index = decode_offset_index(b"", base)
        tail = walk_tail(path, seen.st_size, index, self._below)
        if tail.end_offset < self._below:
            if tail.error is not None:
                self._found.note(tail.error, path)
            elif tail.end == seen.st_size and not self._behind:
                self.moving = f"the log ends at offset {tail.end_offset}, below the high watermark"
        largest = tail.largest_timestamp_ms
        segment = Segment(
            base_offset=base,
            path=path,
            size_bytes=tail.end,
            mtime_ns=seen.st_mtime_ns,
            largest_timestamp_ms=largest if largest >= 0 else seen.st_mtime_ns // 1_000_000,
            first_batch_timestamp_ms=self._first_timestamp(path, base, tail.end, is_active=True),
            unused_bytes=seen.st_size - tail.end if self._behind else 0,
            is_indexed=False,
            is_abort_indexed=False,
            growing=0 if self._behind else seen.st_ino,
        )
        return segment, tail.end_offset

    def _find_cleaned(self, segments: Sequence[Segment]) -> None:
        """Find segments that the cleaner may have replaced since the high watermark was written.

        The cleaner may have removed records below the bound because of later records above it. A
        replaced segment keeps its modification time, but its change time is later.
        """
        for segment in segments:
            seen = _stat(segment.path)
            if seen.st_ctime_ns >= self._noted_ns and seen.st_ctime_ns != seen.st_mtime_ns:
                self.moving = (
                    "the broker's cleaner has replaced segments since the last high watermark was "
                    "written"
                )

    def _report_open_files(self, end_offset: int) -> None:
        bound = self._offsets[HIGH_WATERMARKS] or 0
        mark = f"the high watermark{'' if bound <= end_offset else f' is {bound}'}"
        self._found.problems.append(
            Problem(
                ProblemKind.OPEN,
                f"a broker has this log open: read up to offset {end_offset}, {mark}",
                self._folder,
            )
        )

    def _with_aborted(self, log: PartitionLog) -> PartitionLog:
        """The log with the aborted transactions that a broker would find when it starts.

        Only segments whose transaction index may be wrong are changed. An index entry is right if
        its marker exists, even if the transaction has no data left.
        """
        history = read_history(log)
        told = replace(log, aborted=history.aborted)
        segments: list[Segment] = []
        aborted: list[AbortedTransaction] = []
        for n, segment in enumerate(log.segments):
            known = self._aborted.get(segment.base_offset, ())
            if segment.base_offset in self._unsure:
                by_marker = {
                    entry.last_offset: entry
                    for entry in known
                    if (entry.producer_id, entry.last_offset) in history.aborts
                }
                for entry in told.aborted_in(n):
                    other = by_marker.get(entry.last_offset)
                    if other is None or other.first_offset > entry.first_offset:
                        by_marker[entry.last_offset] = entry
                true = tuple(by_marker[offset] for offset in sorted(by_marker))
                if true != known:
                    self._found.recovered(
                        "the transaction index does not match the segment's records, which are "
                        "used instead",
                        segment_file_name(segment.base_offset, KafkaFileKind.TRANSACTION_INDEX),
                    )
                    segment, known = replace(segment, is_abort_indexed=False), true
            segments.append(segment)
            aborted += known
        problems = tuple(self._found.problems)
        return replace(log, segments=tuple(segments), aborted=tuple(aborted), problems=problems)

    def _report_recovered(self, names: Sequence[str]) -> None:
        if self._state.renames:
            words = "the file belongs to an unfinished swap: the new segments are used"
            self._found.recovered(words, self._state.renames[0][0])
            return
        for name in names:
            if classify(name).suffix in (Suffix.SWAP, Suffix.CLEANED):
                words = (
                    "the file belongs to a swap that was not completed: the new segments are "
                    "ignored"
                )
                self._found.recovered(words, name)
                return

    def _of_kind(self, kind: KafkaFileKind) -> list[str]:
        return [name for name in self._live if classify(name).kind is kind]

    def _read(self, name: str) -> bytes:
        return read_file(f"{self._folder}/{self._live[name]}")

    # ------------------------------------------------------------------ side files

    def _offset(self, file: str, problems: list[Problem]) -> int | None:
        """The partition's offset in a checkpoint file of the log root.

        None if there is no entry, or if the folder is not a live partition. A damaged file is added
        to ``problems``.
        """
        if self._is_disowned:
            return None
        try:
            return self._root.offsets(file).get(self._name)
        except (CorruptLog, UnsupportedFormat) as error:
            path = error.path or os.path.join(self._root.root, file)
            problems.append(
                Problem(ProblemKind.DAMAGED, error.problem, path, error.at, error.remedy)
            )
            return None

    def _check_file(self, name: str) -> None:
        """Check a file by its name, and a small file also by its content."""
        kind, found = classify(name).kind, self._found
        if (
            kind is KafkaFileKind.LOG
            or kind is KafkaFileKind.INDEX
            or kind is KafkaFileKind.TIME_INDEX
        ):
            return  # ``_segment`` checks these files
        if kind is KafkaFileKind.TRANSACTION_INDEX:
            base = int(name[:20])
            if self._is_unflushed(base):
                self._unsure.add(base)
            try:
                self._aborted[base] = decode_aborted(self._read(name), base)
            except CorruptLog as error:
                if not self._is_unflushed(base):
                    found.note(error, found.path_of(name), REBUILD)
        elif kind is KafkaFileKind.SNAPSHOT:
            found.witnesses.append(
                EndEvidence(int(name[:20]), f"the producer snapshot {name} exists")
            )
            try:
                offset = int(name[:20])
                self._producers[offset] = decode_snapshot(self._read(name))
                for entry in self._producers[offset]:
                    text = (
                        f"producer {entry.producer_id} wrote up to offset {entry.last_offset} "
                        f"({name})"
                    )
                    found.witnesses.append(EndEvidence(entry.last_offset + 1, text))
            except LogError as error:
                found.recovered(
                    f"{error.problem}: the snapshot is ignored, as by a broker", name, error.at
                )
        elif kind in (KafkaFileKind.LEADER_EPOCHS, KafkaFileKind.PARTITION_METADATA):
            try:
                if name == LEADER_EPOCHS:
                    for epoch, start_offset in decode_leader_epochs(self._read(name)):
                        text = f"leader epoch {epoch} starts at offset {start_offset} ({name})"
                        found.witnesses.append(EndEvidence(start_offset, text))
                elif name == PARTITION_METADATA:
                    decode_partition_metadata(self._read(name))
            except LogError as error:
                found.note(error, found.path_of(name), _BRING_BACK)
        elif kind in (
            KafkaFileKind.FOREIGN,
            KafkaFileKind.METADATA_SNAPSHOT,
            KafkaFileKind.QUORUM_STATE,
        ):
            if not is_intent(name):
                found.damaged(
                    "the file is not a part of a Kafka log", found.path_of(name), remedy=_MOVE_AWAY
                )

    def _snapshot(self, offset: int) -> tuple[ProducerEntry, ...]:
        found = self._producers.get(offset)
        if found is None:  # the snapshot cannot be decoded: raise the error again
            found = decode_snapshot(self._read(segment_file_name(offset, KafkaFileKind.SNAPSHOT)))
        return found

    def _missing_segments(self, on_their_way: set[str]) -> dict[int, int]:
        """The largest offset in the indexes of each segment without ``.log``, by base offset."""
        removed: dict[int, int] = {}
        for name in self._orphans:
            data, base, kind = self._read(name), int(name[:20]), classify(name).kind
            if name in on_their_way or not any(data):  # an index of zeros is no evidence
                continue
            named = [removed.get(base, base)]
            try:
                if kind is KafkaFileKind.TRANSACTION_INDEX:
                    named += [entry.last_offset for entry in decode_aborted(data, base)]
                elif kind is KafkaFileKind.INDEX:
                    named += decode_offset_index(data, base).offsets.tolist()
                else:
                    named += decode_time_index(data, base).offsets.tolist()
            except LogError:
                pass
            removed[base] = max(named)
        return removed

    # ------------------------------------------------------------------ segments

    def _note_hole(self, base: int, end: int) -> None:
        """Record the offsets between a closed segment's end and the next segment as a hole.

        A cleaner may have removed offsets below its checkpoint. A lost segment whose indexes remain
        is not a hole: the indexes are reported.
        """
        following = self._following(base)
        if end < following and not any(end <= gone < following for gone in self._missing):
            self._holes.append((end, following))

    def _may_precede_hole(self, base: int) -> bool:
        return self._following(base) > max(self._log_start, self._offsets[CLEANER_OFFSETS] or 0)

    def _following(self, base: int) -> int:
        """The base offset of the segment after the segment at ``base``.

        The last segment's own base.
        """
        place = bisect_right(self._bases, base)
        return self._bases[place] if place < len(self._bases) else base

    def _is_unflushed(self, base: int) -> bool:
        return self._was_killed and base >= self._unflushed

    def _segments(self) -> tuple[tuple[Segment, ...], int]:
        """The segments as Kafka's recovery would leave them, and the log's end offset."""
        segments: list[Segment] = []
        end_offset = 0
        for base in self._bases:
            is_active = base == self._bases[-1]
            has_no_index = segment_file_name(base, KafkaFileKind.INDEX) not in self._live
            if is_active and self._below is not None:
                segment, end_offset = self._open_segment(base)
            elif self._is_unflushed(base) or (self._was_killed and has_no_index):
                segment, end_offset = self._recovered_segment(base, is_active=is_active)
            else:
                with OpenFile(self._found.log_path(base)) as file:
                    segment = self._segment(base, file, is_active=is_active)
                    if is_active:
                        segment, end_offset = self._with_tail(segment, file)
            segments.append(segment)
            if segment.torn_bytes:
                behind = self._bases[len(segments) :]
                if behind:
                    self._found.recovered(
                        f"this segment is after the log's end: {len(behind)} segments from this "
                        "one on are ignored",
                        segment_file_name(behind[0], KafkaFileKind.LOG),
                    )
                break
        return tuple(segments), end_offset

    def _recovered_segment(self, base: int, *, is_active: bool) -> tuple[Segment, int]:
        """The segment as Kafka's recovery would truncate it after a crash, and its end offset."""
        log, index, times, _ = (segment_file_name(base, kind) for kind in SEGMENT_KINDS)
        path = self._found.path_of(log)
        found = unclean_shutdown.recover_segment(
            path, base, self._found.path_of(index), self._found.path_of(times)
        )
        seen = _stat(path)
        size_bytes = seen.st_size
        is_damaged = self._found.is_lost_in(
            base, found, is_active=is_active, is_unflushed=self._is_unflushed(base)
        )
        if found.error is not None and not is_damaged:
            size_bytes = found.size_bytes
            cut = seen.st_size - size_bytes
            words = (
                f"{found.error.problem}: the log ends at this byte, and {cut} bytes after it are "
                "ignored"
            )
            self._found.recovered(words, log, size_bytes)
        if found.has_markers:
            self._unsure.add(base)
        is_indexed = found.is_indexed(is_active=is_active)
        if not is_indexed and size_bytes and not is_damaged:
            words = "the index is missing or does not match the segment's records: it is not used"
            self._found.recovered(words, index)
        if found.error is None and size_bytes and self._may_precede_hole(base):
            self._note_hole(base, found.end_offset)
        largest = found.largest_timestamp_ms
        segment = Segment(
            base_offset=base,
            path=path,
            size_bytes=size_bytes,
            mtime_ns=seen.st_mtime_ns,
            largest_timestamp_ms=largest if largest >= 0 else seen.st_mtime_ns // 1_000_000,
            first_batch_timestamp_ms=self._first_timestamp(path, base, size_bytes, is_active=True),
            index_bytes=found.index.entry_bytes if is_indexed else 0,
            time_index_bytes=found.time_index.entry_bytes if is_indexed else 0,
            torn_bytes=seen.st_size - size_bytes,
            is_indexed=is_indexed,
        )
        return segment, found.end_offset

    def _segment(self, base: int, file: OpenFile, *, is_active: bool) -> Segment:
        path = self._found.log_path(base)
        seen = _stat(path)
        is_filled = bool(seen.st_size)
        index_bytes, last_entry = self._last_entry(base, KafkaFileKind.INDEX, is_filled, is_active)
        time_bytes, last_time = self._last_entry(base, KafkaFileKind.TIME_INDEX, is_filled)
        if not seen.st_size and not is_active:
            named = [
                entry[n] for n, entry in enumerate((last_entry, last_time)) if entry is not None
            ]
            if named:
                self._found.report_indexed_beyond(base, 0, base, base + min(named))
        elif last_entry is not None and not is_active and last_entry[1] >= seen.st_size:
            end_offset = walk(path, seen.st_size, base).end_offset
            self._found.report_entry_beyond(base, end_offset, seen.st_size, last_entry, index_bytes)
        elif seen.st_size and not is_active and self._may_precede_hole(base):
            self._find_end(base, seen.st_size, last_entry, file)
        largest = seen.st_mtime_ns // 1_000_000
        if last_time is not None and last_time[0] >= 0:
            largest = last_time[0]
        return Segment(
            base_offset=base,
            path=path,
            size_bytes=seen.st_size,
            mtime_ns=seen.st_mtime_ns,
            largest_timestamp_ms=largest,
            first_batch_timestamp_ms=self._first_timestamp(
                path, base, seen.st_size, is_active, file, is_walked=is_active and not index_bytes
            ),
            index_bytes=index_bytes,
            time_index_bytes=time_bytes,
        )

    def _find_end(
        self, base: int, size_bytes: int, last_entry: tuple[int, int] | None, file: OpenFile
    ) -> None:
        """Find a closed segment's end offset by the batch headers after its last index entry."""
        if last_entry is None and size_bytes > _MOST_WALKED_BYTES:
            return
        entries = [] if last_entry is None else [last_entry]
        offsets, positions = ([entry[n] for entry in entries] for n in range(2))
        index = OffsetIndex(
            base, np.array(offsets, dtype=np.int64) + base, np.array(positions, dtype=np.int64)
        )
        tail = walk_tail(self._found.log_path(base), size_bytes, index, reader=file)
        if tail.error is None:
            self._note_hole(base, tail.end_offset)

    def _last_entry(
        self, base: int, kind: KafkaFileKind, is_filled: bool, is_kept: bool = False
    ) -> tuple[int, tuple[int, int] | None]:
        """The size of an index without padding, and the two fields of its last entry.

        ``is_kept`` means the active segment's offset index, whose content is kept in ``_index``.
        """
        name = segment_file_name(base, kind)
        path = self._found.path_of(name)
        layout = OFFSET_ENTRY if kind is KafkaFileKind.INDEX else TIME_ENTRY
        if name not in self._live:
            if is_filled and self._was_killed:
                self._found.recovered(
                    "the time index is missing: the modification time of its segment is used "
                    "instead",
                    name,
                )
            elif is_filled:
                words = "the index is missing, although its segment has records"
                self._found.damaged(words, path, remedy=REBUILD)
            return 0, None
        size = _stat(path).st_size
        if size % layout.size:
            words = f"the index has {size} bytes, which is not a multiple of {layout.size}"
            self._found.damaged(words, path, size, REBUILD)
            return size, None
        if not size:
            return 0, None
        count = size if is_kept else layout.size
        try:
            with OpenFile(path) as file:
                data = file.read(count, size - count)
        except OSError as error:
            raise to_log_error(error, path, "read the index") from error
        if len(data) < count:
            raise CommitConflict(
                "another program truncated the index during the command", path=path, remedy=AGAIN
            )
        if is_kept:
            self._index = data
        tail = data[-layout.size :]
        if any(tail):
            first, second = layout.unpack_from(tail)
            return size, (first, second)
        try:
            if kind is KafkaFileKind.INDEX:
                offsets = decode_offset_index(data if is_kept else read_file(path), base)
                columns = offsets.offsets - base, offsets.positions
            else:
                times = decode_time_index(read_file(path), base)
                columns = times.timestamps_ms, times.offsets - base
        except LogError as error:
            self._found.note(error, path, REBUILD)
            return size, None
        rows = len(columns[0])
        return rows * layout.size, (int(columns[0][-1]), int(columns[1][-1])) if rows else None

    def _first_timestamp(
        self,
        path: str,
        base: int,
        size_bytes: int,
        is_active: bool,
        file: OpenFile | None = None,
        is_walked: bool = False,
    ) -> int | None:
        """The largest timestamp of the first batch. None if there is no batch.

        ``file`` is the segment's open file, which stays open. ``is_walked`` means that the caller
        then reads the file from byte 0 on.
        """
        if not size_bytes:
            return None
        try:
            with nullcontext(file) if file is not None else OpenFile(path) as opened:
                head = opened.read_head(size_bytes, is_walked=is_walked)
            header = decode_batch_header(head, 0)
            if header.base_offset < base:
                words = (
                    f"the first batch has base offset {header.base_offset}, below the segment's "
                    f"base offset {base}"
                )
                raise CorruptLog(words, 0)
        except OSError as error:
            raise to_log_error(error, path, "read the segment") from error
        except LogError as error:
            if not is_active:  # reading the whole active segment reports the error
                self._found.note(error, path)
            return None
        return header.max_timestamp_ms

    def _with_tail(self, active: Segment, file: OpenFile) -> tuple[Segment, int]:
        """The active segment of a broker that was not killed, and its end offset."""
        base = active.base_offset
        try:
            index = decode_offset_index(self._index, base)
        except LogError as error:
            index = decode_offset_index(b"", base)
            path = self._found.path_of(segment_file_name(base, KafkaFileKind.INDEX))
            if not any(problem.path == path for problem in self._found.problems):
                self._found.note(error, path, REBUILD)
        tail = walk_tail(active.path, active.size_bytes, index, reader=file)
        self._bare_from = base if tail.is_bare else None
        if len(index) and int(index.positions[-1]) >= active.size_bytes:
            last = int(index.offsets[-1]) - base, int(index.positions[-1])
            index_bytes = len(index) * OFFSET_ENTRY.size
            self._found.report_entry_beyond(
                base, tail.end_offset, active.size_bytes, last, index_bytes
            )
        self._found.torn_tail(active.path, tail)
        # The active segment's time index may lack entries for the newest records.
        indexed = active.largest_timestamp_ms if active.time_index_bytes else -1
        if tail.largest_timestamp_ms > indexed:
            active = replace(active, largest_timestamp_ms=tail.largest_timestamp_ms)
        return active, tail.end_offset


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise to_log_error(error, path, "read the file's attributes") from error
