"""Writes batches of a live topic to an archive as they arrive from a broker.

    log       0 ─────────────────── 1366 (high watermark)
    archive   0 ── 900                                         ends at 900
    written       900 ── 1200 ── 1366                          segments of segment.bytes

``fetching`` reads producers, aborted transactions and leader epochs from a broker's files; here
they are derived from the batches. The partition is committed from time to time, so that an
interrupted fetch continues from the last commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import astuple, dataclass
from typing import TypeAlias

import numpy as np
from msgspec import structs

from lastwrite.archive.ingest import IngestResult
from lastwrite.archive.partition_store import WriteTransaction, partition_store_at
from lastwrite.kafka.format.index import MAX_RELATIVE_OFFSET
from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name
from lastwrite.kafka.producers.history import entry_after, feed, sightings_in
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from lastwrite.kafka.rules.joining import joined, roll_ms
from lastwrite.kafka.rules.producers import ProducerStates, active
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.store import archived, index_files
from lastwrite.kafka.store.archived import ArchivedLog, ArchivedMetadata, StoredSegment
from lastwrite.kafka.store.archived_segment import ArchivedSegment, rows_of
from lastwrite.kafka.store.fetching import (
    DivergenceReason,
    find_divergence,
    fork,
    lost_deletes,
    manifest_of,
    no_continuation,
    proven_batches,
    reject_across,
)
from lastwrite.kafka.store.last_batch import batches_from, last_of
from lastwrite.model.columns import HAS_PRODUCER, IS_OLD, BatchTable, ByteArray
from lastwrite.model.log import AbortedTransaction, ProducerState
from lastwrite.model.work import Limits, SegmentOutput
from lastwrite.reports.fetching import HoldReason

_COMMIT_BYTES = 256 << 20  # new bytes after which the segments are committed
Groups: TypeAlias = tuple[tuple[str, int, int, str], ...]
Epochs: TypeAlias = tuple[tuple[int, int], ...]

_ALL_REPLICATED = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource:
    """The source of a fetch: a partition of a live topic, as it was when the fetch started."""

    path: str  # address of the source, for errors
    log_start: int
    end: int  # the high watermark: the end of the replicated records
    topic_id: str | None
    # returns the leader epochs above an epoch, with their first offsets; see ``LiveLog.lineage``
    lineage: Callable[[int], Epochs]
    # the topic's settings in the cluster; None leaves the archive's settings unchanged
    metadata: ArchivedMetadata | None
    # the groups' committed offsets; None leaves the archive's offsets unchanged
    groups: Groups | None
    config: KafkaTopicConfig
    asked_ms: int  # time just before ``end`` was requested
    # groups whose committed offsets could not be read, so the archive's offsets stay
    unread_groups: Set[str] = frozenset()
    # continue the archive even if offsets between its end and ``log_start`` are lost
    accepts_gap: bool = False
    # the caller fetches repeatedly; LogHeld is raised if another process has a write transaction
    follows: bool = False
    level_ms: int = 0  # time at which the archive last had all records; 0 if unknown
    # (append name, number) pairs if no broker wrote the records, which then get a single commit;
    # None for records of a broker
    written: tuple[tuple[str, int], ...] | None = None


class KafkaArchiveWriter:
    """Writes batches of a live topic's partition to the archived partition at ``folder``.

    Raises:
        LogError: the log does not continue the archive.
        CorruptLog, RemoteFailed: the manifest is damaged, or the store fails.
    """

    def __init__(self, source: LiveSource, folder: str) -> None:
        self._source = source
        self._folder = folder
        self._store = partition_store_at(folder)
        self._current = self._store.read()
        self._is_new = self._current is None
        self._gap: str | None = None
        if self._current is not None:
            self._log = archived.contents_of(self._current.manifest, folder)
            self._is_new = self._log.is_blank
        if self._is_new:
            begin = min(source.log_start, source.end)
            self._log = ArchivedLog(log_start=begin, end_offset=begin)
        else:
            why = find_divergence(source.log_start, self._log, source.topic_id)
            if source.accepts_gap and why is not None and why.reason is HoldReason.GAP:
                self._log, why = self._log.with_gap(source.log_start), None
                self._gap = archived.describe_gap(*self._log.gaps[-1])
            self._check_continuation(why)
        self.epoch = max(dict(self._log.epochs), default=-1)  # the last leader epoch in the archive
        self._lineage = source.lineage(self.epoch)
        if not self._is_new:
            self._check_continuation(self._fork())
        self.first = self._at = self._log.end_offset
        self.end = max(source.end, self._at)
        self._last = self._log.last_batch
        # The first offset to request. The archive's last batch is requested again, for comparison.
        self.since = self.first
        if self._last is not None and source.log_start < self._last.next_offset:
            self.since = self._last.next_offset - 1 if self.first < self.end else self.end
        self._states = ProducerStates(
            [ProducerState(*each) for each in self._log.producers], _ALL_REPLICATED
        )
        self._entries = {each.producer_id: each for each in self._snapshot()}
        self._aborted_seen = 0
        self._fetched_ms = source.asked_ms
        if not self._is_new:
            self._fetched_ms = max(self._log.brought_ms, source.level_ms)
        self._epochs = dict(self._log.epochs)
        for epoch, start in self._lineage:
            if start < self.end:
                self._epochs.setdefault(epoch, start)
        self._transaction: WriteTransaction | None = None
        self._segment: ArchivedSegment | None = None
        self._segment_base = self._segment_bytes = 0
        self._segment_records: int | None = 0
        self._active_from, self._active_bytes, self._active_since = self._active()
        self._replaced = 0  # number of the archive's last segments that are merged into a new one
        self._new_segments: list[StoredSegment] = []
        self._since_commit = self._segments = self._bytes = 0

    def _check_continuation(self, why: DivergenceReason | None) -> None:
        if why is not None:
            raise no_continuation(self._folder, why, self._source.path)

    def _snapshot(self) -> Sequence[ProducerEntry]:
        """The producers at the archive's end, as entries of a broker's snapshot."""
        if self._log.snapshot is None:
            return ()
        return decode_snapshot(index_files.read_file(f"{self._folder}/{self._log.snapshot}"))

    def _active(self) -> tuple[int, int, int]:
        """The active segment: (base offset, bytes, time of the first batch or -1)."""
        log = self._log
        begin = log.end_offset if log.active_from is None else log.active_from
        inside = [each for each in log.segments if each.base_offset >= begin]
        since = inside[0].first_batch_timestamp_ms if inside else None
        return begin, sum(each.bytes for each in inside), -1 if since is None else since

    def _fork(self) -> DivergenceReason | None:
        """The first difference between the leader epochs of log and archive. None if they agree."""
        before, known = self._log, self.epoch
        why = fork(before, self._lineage, self._source.end, False)
        if why is None and self._lineage and self._lineage[0][0] < known:
            return DivergenceReason(
                HoldReason.FORK,
                f"the archive has leader epoch {known} up to offset {before.end_offset}, and the "
                "log does not have these records: a leader election truncated the log after they "
                "were fetched",
            )
        if why is None and self._source.end < before.end_offset:
            return DivergenceReason(
                HoldReason.FORK,
                f"the log ends at offset {self._source.end}, and the archive at offset "
                f"{before.end_offset}: the log was truncated after the last fetch, or the topic "
                "was deleted and created again",
            )
        return why

    def _other_end(self) -> DivergenceReason:
        end = self._log.end_offset
        return DivergenceReason(
            HoldReason.FORK,
            f"the log's records below offset {end} differ from the archive's: the log was "
            "truncated and continued, or the topic was deleted and created again",
        )

    # ------------------------------------------------------------------ batches

    def append(self, data: ByteArray, table: BatchTable) -> None:
        """Append the batches in ``data``, which ``table`` describes.

        The batches must follow the last appended batch, or begin at offset ``since``.

        Raises:
            LogError: a batch spans the archive's end, or the high watermark.
            LogHeld: a follower must wait until another process ends its write transaction.
            CommitConflict, RemoteFailed: from the store.
        """
        compacts = self._source.config.compacts
        table, is_another = batches_from(self._last, self._at, data, table, compacts)
        self._check_continuation(self._other_end() if is_another else None)
        if not len(table):
            return
        base = self._at
        if self._is_new and not self._bytes:  # the log may start inside its first batch
            base = min(base, int(table["base_offset"][0]))
        reject_across(table, base, self.end, self._source.path)
        self._check_continuation(self._lost_deletes(table, base))
        while len(table):
            count = self._count_fitting(table, base)
            if count:
                self._take(data, table[:count], base)
                table, base = table[count:], self._at
                continue
            self._close_segment()
            self._active_from, self._active_bytes, self._active_since = base, 0, -1
            if self._since_commit >= _COMMIT_BYTES and self._source.written is None:
                self._commit()

    def _lost_deletes(self, table: BatchTable, at: int) -> DivergenceReason | None:
        """The reason why a tombstone may be missing from the batches fetched, or None."""
        config = self._source.config
        if self._gap is not None:  # --accept-gap also accepts lost tombstones
            return None
        since_ms = time.time_ns() // 1_000_000 - self._fetched_ms
        if since_ms <= config.delete_retention_ms or not config.compacts:
            return None
        count = int(table["next_offset"][-1]) - min(at, int(table["base_offset"][0]))
        if int(table["records"].sum()) == count:
            return None
        return lost_deletes(self._log, since_ms, config.delete_retention_ms)

    def _count_fitting(self, table: BatchTable, base: int) -> int:
        """The number of batches that a broker would append to the current segment.

        A broker limits the bytes and the offsets of a segment. For a follower, the time span of a
        segment is limited, too. At least one batch fits into an empty segment.
        """
        config, filled = self._source.config, self._active_bytes
        if not self._source.follows:
            filled = 0 if self._segment is None else self._segment_bytes
        base = base if not filled else self._active_from
        ends = filled + np.cumsum(table["origin_size"])
        by_bytes = int(np.searchsorted(ends, config.segment_bytes, side="right"))
        last = table["next_offset"] - 1
        by_offsets = int(np.searchsorted(last, base + MAX_RELATIVE_OFFSET, side="right"))
        count = min(by_bytes, by_offsets)
        if self._source.follows:
            times = table["max_timestamp"]
            since = self._active_since if filled else int(times[0])
            if since >= 0:
                late = np.flatnonzero(times - since > roll_ms(config))
                count = min([count, *late[:1].tolist()])
        return count if filled else max(1, count)

    def _take(self, data: ByteArray, table: BatchTable, base: int) -> None:
        if self._segment is None:
            self._open(table, base)
        if not self._active_bytes:
            self._active_since = int(table["max_timestamp"][0])
        assert self._segment is not None
        begin, last = int(table["origin"][0]), table[-1]
        part = data[begin : int(last["origin"] + last["origin_size"])]
        self._segment.append(part, rows_of(table))
        if (table["flags"] & HAS_PRODUCER).any():
            for seen in sightings_in(part, base, self.end):
                feed(self._states, (seen,))
                id = seen.producer_id
                self._entries[id] = entry_after(self._entries.get(id), seen)
        self._note_epochs(data, table)
        self._segment_bytes += len(part)
        self._active_bytes += len(part)
        if self._segment_records is not None:
            self._segment_records += int(table["records"].sum())
        self._bytes += len(part)
        self._at = int(last["next_offset"])
        self._last = last_of(data, table)

    def _open(self, table: BatchTable, base: int) -> None:
        if self._transaction is None:
            self._transaction = self._begin()
        if int(table["next_offset"][0]) - 1 - base > MAX_RELATIVE_OFFSET:
            base = int(table["base_offset"][0])
        again = self._joined(table)
        if again:
            base = again[0].base_offset
        if not self._source.follows:
            self._active_from, self._active_bytes = base, 0
        self._segment_base, self._segment_bytes, self._segment_records = base, 0, 0
        self._segment = ArchivedSegment(
            self._folder,
            f"data/{self._transaction.id}-",
            base,
            self._source.config.index_interval_bytes,
        )
        self._copy(again)

    def _joined(self, coming: BatchTable) -> Sequence[StoredSegment]:
        """The small segments at the archive's end to merge into the new segment.

        Only uncleaned segments are merged; a follower merges only parts of the active segment. The
        batches in ``coming`` must fit into the new segment, too.
        """
        before, config = self._log, self._source.config
        if self._new_segments or self._at != before.end_offset or self._gap is not None:
            return ()
        begin = before.checkpoint or 0
        if self._source.follows:
            begin = max(begin, self._active_from)
        last_offset = int(coming["next_offset"][-1]) - 1
        tail: list[StoredSegment] = []
        for each in reversed(before.segments):
            is_near = last_offset - each.base_offset <= MAX_RELATIVE_OFFSET
            if each.address or each.base_offset < begin or not is_near:
                break
            tail.append(each)
        tail.reverse()
        most_bytes = config.segment_bytes - int(coming["origin_size"].sum())
        count = joined([each.bytes for each in tail], most_bytes)
        return tail[len(tail) - count :]

    def _copy(self, segments: Sequence[StoredSegment]) -> None:
        """Begin the new segment with the batches of ``segments``, and verify their checksums."""
        assert self._segment is not None
        ends = [*(each.base_offset for each in segments[1:]), self._at]
        for stored, end in zip(segments, ends, strict=True) if segments else ():
            segment = archived.segment_of(stored, self._folder)
            span = stored.base_offset, end
            for _, exact, table in proven_batches(segment, 0, span, end, Limits()):
                reject_across(table, *span, segment.path)
                self._segment.append(exact, rows_of(table))
                self._segment_bytes += len(exact)
            if self._segment_bytes and self._transaction is not None:
                self._store.renew(self._transaction)
        if None in (each.records for each in segments):
            self._segment_records = None
        else:
            self._segment_records = sum(each.records or 0 for each in segments)
        self._replaced = len(segments)
        if not self._source.follows:
            self._active_bytes = self._segment_bytes

    def _close_segment(self) -> None:
        if self._segment is None:
            return
        assert self._transaction is not None
        base, result = self._segment_base, SegmentOutput(0, 0, 0)
        known = (AbortedTransaction(*each) for each in self._log.aborted)
        new = self._states.aborted[self._aborted_seen :]
        aborted = [each for each in (*known, *new) if each.last_offset >= base]
        self._segment.finish(result, time.time_ns(), aborted)
        self._segment = None
        assert isinstance(result.stored, StoredSegment)
        self._new_segments.append(structs.replace(result.stored, records=self._segment_records))
        self._since_commit += result.stored.bytes
        self._segment_bytes = 0
        self._store.renew(self._transaction)

    def _note_epochs(self, data: ByteArray, table: BatchTable) -> None:
        """Record the first offset of each leader epoch. Batches of v0 and v1 have no epochs."""
        if self._lineage:
            return
        rows = table[(table["flags"] & IS_OLD) == 0]
        if not len(rows):
            return
        at = rows["origin"][:, None] + np.arange(12, 16)
        epochs = data[at].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
        for row in [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]:
            epoch = int(epochs[row])
            if epoch < 1 << 31:  # as an unsigned number, the unknown epoch -1 is larger
                self._epochs.setdefault(epoch, int(rows["base_offset"][row]))

    # ------------------------------------------------------------------ the end

    def _begin(self) -> WriteTransaction:
        """Begin a write transaction on the archived partition.

        Raises:
            LogHeld: a follower must wait until another process ends its write transaction.
        """
        if self._source.follows and self._current is not None:
            return self._store.begin_after_others(self._current)
        return self._store.begin(self._current)

    def finish(self, end: int | None = None) -> None:
        """Commit the batches so far. ``end`` replaces ``self.end`` if the log's end was unknown.

        Raises:
            CommitConflict: another process changed the partition meanwhile.
            RemoteFailed: the store fails.
            LogHeld: another process has a write transaction on the partition.
        """
        self._close_segment()
        self._at = self.end = self.end if end is None else end
        before, source = self._log, self._source
        is_due = source.asked_ms - before.brought_ms > source.config.delete_retention_ms // 2
        is_other = source.metadata not in (None, before.known)
        is_other = is_other or self._groups(before) != before.groups
        is_other = is_other or (not source.follows and before.active_from is not None)
        if self._transaction or self._is_new or is_due or is_other or self._gap:
            self._commit()

    def commit_partial(self) -> bool:
        """Commit the batches so far, after the source failed. Returns False if there are none.

        Raises:
            CommitConflict, RemoteFailed, LogHeld: as ``finish``; nothing more is committed then.
        """
        try:
            self._close_segment()
            if self._new_segments:
                self._commit()
        except BaseException:
            self.abandon()
            raise
        self.abandon()
        self.end = self._at
        return self.end > self.first

    @property
    def fetched_ms(self) -> int:
        """The time of the partition's last fetch, as in the manifest."""
        return self._log.brought_ms

    @property
    def finished(self) -> IngestResult:
        """The result of the fetch. It counts committed records only."""
        return IngestResult(
            first_offset=self.first,
            end_offset=self.end,
            segments=self._segments,
            bytes=self._bytes,
            is_new=self._is_new,
            gap=self._gap,
        )

    def abandon(self) -> None:
        """Remove all objects that were written but not committed."""
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            self._store.abandon(transaction)

    def _commit(self) -> None:
        """Add the finished segments to the archive."""
        transaction = self._transaction or self._begin()
        self._transaction = (
            None  # after an error the commit may have succeeded, so its objects stay
        )
        after = self._after(transaction)
        manifest = manifest_of(self._current, after, self._folder)
        self._current = self._store.commit(transaction, manifest)
        self._log = after
        self._segments += len(self._new_segments)
        self._new_segments, self._since_commit, self._replaced = [], 0, 0
        self._aborted_seen = len(self._states.aborted)

    def _after(self, transaction: WriteTransaction) -> ArchivedLog:
        """The contents of the partition's manifest after the commit."""
        before, source = self._log, self._source
        aborted: tuple[AbortedTransaction, ...] = self._states.aborted[self._aborted_seen :]
        expiration_ms = source.config.producer_id_expiration_ms
        producers = active(self._states.producers, source.asked_ms, expiration_ms)
        open_from = min((each.open_from for each in producers if each.open_from >= 0), default=None)
        snapshot, size = self._put_snapshot(transaction, producers)
        return structs.replace(
            before,
            end_offset=self._at,
            first_unstable=None if open_from is None else max(open_from, before.log_start),
            segments=(
                *before.segments[: len(before.segments) - self._replaced],
                *self._new_segments,
            ),
            aborted=(*before.aborted, *map(astuple, aborted)),
            producers=tuple(astuple(each) for each in producers),
            snapshot=snapshot,
            snapshot_bytes=size,
            epochs=tuple(sorted(self._epochs.items())),
            topic_id=source.topic_id or before.topic_id,
            known=source.metadata or before.known,
            brought_ms=source.asked_ms,
            groups=self._groups(before),
            active_from=self._active_from if source.follows else None,
            last_batch=self._last,
            written=before.written if source.written is None else source.written,
        )

    def _groups(self, before: ArchivedLog) -> Groups:
        """The groups' committed offsets for the manifest.

        If a group's offsets could not be read, its offsets in the archive are kept.
        """
        source = self._source
        if source.groups is None:
            return before.groups
        kept = [each for each in before.groups if each[0] in source.unread_groups]
        return tuple(sorted((*source.groups, *kept)))

    def _put_snapshot(
        self, transaction: WriteTransaction, producers: Sequence[ProducerState]
    ) -> tuple[str | None, int]:
        """Write a producer snapshot as a broker would. Returns the object's key and size."""
        if self._at == self._log.end_offset and self._log.snapshot is not None:
            return self._log.snapshot, self._log.snapshot_bytes
        entries = [
            self._entries[id] for id in (e.producer_id for e in producers) if id in self._entries
        ]
        if not entries or len(entries) < len(producers):  # never write an incomplete snapshot
            return None, 0
        content = encode_snapshot(entries)
        key = (
            f"data/{transaction.id}-producers/{segment_file_name(self._at, KafkaFileKind.SNAPSHOT)}"
        )
        self._store.put(key, content)
        return key, len(content)
