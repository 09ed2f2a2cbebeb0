"""Restore a partition of an archive into a running cluster with Produce requests.

Example: the archive has a@0 b@1 d@5, and the cluster an empty topic::

    note      a b: archive 0 to 2, cluster 1; d: archive 2 to 6, cluster 3
    cluster   marker@0 a@1 b@2                     the run is killed
    note      d: archive 2 to 6, cluster 4
    cluster   marker@0 a@1 b@2 marker@3 d@4

The note is written first and contains the future offset of each batch. The next run can therefore
derive from the log which batches arrived, even if responses were lost; see ``network.producer``.
The note also maps the committed offsets of consumer groups to offsets in the cluster.

Source: docs/decisions/giving-back-through-produce.md.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import structs

from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CommitConflict, CorruptLog, LogError, located
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.outgoing import OutgoingBatch, Sender
from lastwrite.kafka.format.transplant import Transplant
from lastwrite.kafka.jobs.group_positions import OffsetsSet, is_a_users, set_groups
from lastwrite.kafka.jobs.restorable import PREFIX, RestorablePartition
from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.network.connection import RetriableError
from lastwrite.kafka.network.coordinator import TransactionClient
from lastwrite.kafka.network.live_log import LiveLog
from lastwrite.kafka.network.producer import ProgressRecord, TransactionalProducer
from lastwrite.kafka.restored import GroupGiven, LogGiven
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from lastwrite.kafka.store import archived, restoring
from lastwrite.kafka.store.archived import ArchivedLog
from lastwrite.model.columns import IS_CONTROL
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import Limits

_WINDOW_BYTES = 16 << 20  # the most bytes that one note covers
_WINDOW_BATCHES = 100
_ANOTHER_NAME = (
    "no record in the topic was changed; restore under another name with --as; or, if the topic's "
    "records are not needed, delete the topic, and run the command again"
)
_AROUND_BYTES = 1024  # most bytes of a request besides its batch

Advance: TypeAlias = Callable[[int], None]


class RestoreProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of restoring a partition, stored as a note in the cluster."""

    source: str  # the archived log: topic id, or topic name without an id, and partition
    topic_id: str | None  # id of the topic in the cluster
    producer: int  # producer id of the restored batches in the cluster
    first: int  # first offset of the restored records in the cluster
    at: int  # offset of the next record to restore, in the archive
    offset: int  # offset of the next record to restore, in the cluster
    # for each batch that the note covers: the value of ``at`` after it, and its record count
    steps: tuple[tuple[int, int], ...] = ()
    # pairs of an offset in the archive and the corresponding offset in the cluster
    marks: tuple[tuple[int, int], ...] = ()
    groups: OffsetsSet = ()

    def where(self, position: int) -> int | None:
        """Translate a committed offset in the archive to the offset in the cluster.

        None if the note lacks the offset, because no group had it when the records were restored.
        """
        return self.offset if position >= self.at else dict(self.marks).get(position)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreContext:
    """The parameters that all partitions of one restore share."""

    cluster: KafkaCluster
    client: KafkaClientConfig
    limits: Limits
    drop_open: bool
    largest_request: int | None  # largest request in bytes for all brokers; None if unknown
    throttle: Advance  # called with the bytes to be sent; waits for the rate limit
    advance: Advance  # called with the number of archived bytes that were restored


class PartitionRestore:
    """Restores one partition, up to the offset ``until``, exclusive.

    ``until`` None means that all records are restored.

    Raises:
        LogError: a transaction is open at the end.
        CorruptLog, RemoteFailed: the archive is damaged or cannot be read.
    """

    def __init__(
        self, found: RestorablePartition, shared: RestoreContext, until: int | None
    ) -> None:
        self._shared, self._cluster = shared, shared.cluster
        self._found, self._name = found, found.to
        seen = read_versioned_manifest(found.address).manifest
        self._contents: ArchivedLog = archived.contents_of(seen, found.address)
        self._log: PartitionLog = archived.log_of(seen, found.address)
        log = self._log
        self._end = (
            log.end_offset if until is None else min(max(until, log.log_start), log.end_offset)
        )
        open_from = restoring.open_transactions(log, self._end)
        if not shared.drop_open and until is None:
            restoring.reject_open(log, open_from)
        self._transplant = Transplant(
            end_offset=self._end,
            open_from=open_from,
            aborted=[each for each in log.aborted if each.last_offset < self._end],
            leader_epoch=None,
        )
        self._source = f"{self._contents.topic_id or found.name.topic}/{found.name.partition}"
        self._topic_id = self._cluster.topic(self._name.topic).id_text
        self._positions = sorted({each[1] for each in self._contents.groups if is_a_users(each[0])})
        self._transactions = TransactionClient(self._cluster, f"{PREFIX}{self._name}")
        self._producer = TransactionalProducer(self._cluster, self._name, self._transactions)
        self._note = ProgressRecord(self._cluster, f"{PREFIX}{self._name.topic}", self._name)
        self._path = f"kafka://{self._cluster.address}/{self._name}"
        self._records = self._bytes = 0
        self._reported = -1  # offset in the archive up to which ``advance`` was called

    def has_more(self) -> bool:
        """Whether records remain to be restored. Changes nothing.

        Raises:
            LogError, CommitConflict, RemoteFailed: the topic or its progress note cannot be read,
                or the note belongs to another restore.
        """
        if self._complete() is not None:
            return False
        given, _ = self._read_progress()
        self._check_batch_sizes(self._log.log_start if given is None else given.at)
        return True

    def _check_batch_sizes(self, first: int) -> None:
        """Check that the brokers accept requests as large as the largest batch.

        Raises:
            LogError: a batch from offset ``first`` on is larger than the brokers' largest request.
        """
        most = self._shared.largest_request
        if most is not None:
            for offset, size in restoring.batches_above(self._log, most - _AROUND_BYTES):
                if first <= offset < self._end:
                    raise self._too_large(offset, size, most)

    def _too_large(self, offset: int, size: int, most: int) -> LogError:
        return LogError(
            f"the batch at offset {offset} of {self._found.name} has {size} bytes, and the "
            f"brokers refuse requests above socket.request.max.bytes={most}",
            path=self._found.address,
            remedy="this batch and all later ones were not sent. Set socket.request.max.bytes to "
            f"{size + _AROUND_BYTES} or more on each broker, restart the brokers, and run "
            "the command again. "
            f"Or restore only the records before the batch with --until {offset}; or restore all "
            "records into the log root of a stopped broker with --to LOGROOT",
        )

    def _complete(self) -> RestoreProgress | None:
        """The progress note, if earlier runs have restored all records; else None."""
        self._transactions.begin()
        given = self._read()
        is_all = given is not None and given.at >= self._end and not given.steps
        return given if is_all else None

    def restore(self) -> LogGiven:
        """Restore the missing records, and set the groups' committed offsets.

        Raises:
            LogError: the topic has records of another producer.
            CommitConflict: another run restores the same partition.
            CorruptLog: the archive is damaged.
            RemoteFailed: the archive or the cluster does not answer.
        """
        try:
            given = self._through()
        finally:
            self._producer.close()
        found = LogGiven(
            topic=self._name.topic,
            partition=self._name.partition,
            source=self._found.address,
            folder=self._path,
            first_offset=given.first,
            end_offset=given.offset,
            source_end=self._end,
            records=self._records,
            size_bytes=self._bytes,
            is_written=self._records > 0,
        )
        return structs.replace(found, groups=tuple(self._set_groups(given)))

    def _through(self) -> RestoreProgress:
        """Send all missing batches. Retries until the timeout passes without progress."""
        patience_s = self._shared.client.api_timeout_ms / 1000
        at, until = -1, time.monotonic() + patience_s
        while True:
            try:
                given = self._complete() or self._fence()
                if given.at > at:
                    at, until = given.at, time.monotonic() + patience_s
                return given if given.at >= self._end else self._restore_rest(given)
            except RetriableError as error:
                if time.monotonic() < until:
                    self._cluster.wait(until)
                elif at < 0:
                    raise
                else:
                    raise self._stalled(at, patience_s, error) from error

    def _stalled(self, at: int, seconds: float, error: RetriableError) -> RetriableError:
        return RetriableError(
            f"no record of {self._found.name} from offset {at} on arrived for {seconds:.0f} s: "
            f"{error}",
            path=self._path,
            remedy="earlier records are restored; check the network and the broker, and run the "
            "same command again, which continues there; default.api.timeout.ms sets how long it "
            "waits",
        )

    # ------------------------------------------------------------------ progress

    def _read(self) -> RestoreProgress | None:
        """Read the progress note.

        None if there is no note, or if the note is about a deleted topic of the same name.

        Raises:
            LogError: the topic contains records restored from another log.
        """
        text = self._note.read()
        if not text:
            return None
        try:
            given = decode_struct(text, RestoreProgress)
        except msgspec.MsgspecError as error:
            raise CorruptLog(
                f"the restore's progress note cannot be decoded: {error}", 0, self._path
            ) from error
        if given.topic_id != self._topic_id:
            return None
        if given.source != self._source:
            raise LogError(
                f"the topic contains records restored from another log, {given.source}",
                path=self._path,
                remedy=_ANOTHER_NAME,
            )
        return given

    def _fence(self) -> RestoreProgress:
        """Fence other producers.

        Returns the progress, updated by the records that are in the topic.

        Raises:
            LogError: the topic has records of another producer.
        """
        self._producer.begin()
        given, end = self._read_progress()
        producer = self._transactions.producer_id
        if given is None:
            begin = self._log.log_start
            return RestoreProgress(self._source, self._topic_id, producer, end, begin, end)
        marks = tuple(each for each in given.marks if each[0] <= given.at)
        first = end if given.offset == given.first else given.first
        return structs.replace(given, producer=producer, first=first, offset=end, marks=marks)

    def _read_progress(self) -> tuple[RestoreProgress | None, int]:
        """The progress according to the topic's records, and the log's end.

        The progress is None if there is no progress note.

        Raises:
            LogError: the topic has records of another producer.
        """
        given = self._read()
        log = LiveLog(self._cluster, self._name, self._shared.client)
        try:
            bounds = log.bounds()
            start = bounds.log_start if given is None else given.offset
            if start < bounds.log_start:
                raise LogError(
                    "restored records were deleted from the topic: its log starts at offset "
                    f"{bounds.log_start}, beyond offset {start}, up to which an earlier run "
                    "restored",
                    path=self._path,
                    remedy=_ANOTHER_NAME,
                )
            ours, foreign = self._ends(log, start, bounds.high_watermark, given)
        finally:
            log.close()
        if foreign is not None:
            raise LogError(
                f"the topic contains records of another producer, from offset {foreign} on",
                path=self._path,
                remedy=_ANOTHER_NAME,
            )
        return given and self._advanced(given, ours), bounds.high_watermark

    def _ends(
        self, log: LiveLog, start: int, end: int, progress: RestoreProgress | None
    ) -> tuple[int, int | None]:
        """The end offset of the restored records, and the first offset of other records.

        The second is None if there are no other records.
        """
        ours = start
        format = KafkaFormat(self._shared.limits.plain_bytes)
        for _, table in log.batches(start, end, format, epoch=-1):
            data = table[table["flags"] & IS_CONTROL == 0]
            is_ours = data["producer_id"] == (-2 if progress is None else progress.producer)
            if is_ours.any():
                ours = int(data["next_offset"][is_ours].max())
            if not is_ours.all():
                return ours, int(data["base_offset"][np.argmin(is_ours)])
        return ours, None

    def _advanced(self, progress: RestoreProgress, ours: int) -> RestoreProgress:
        """The restore's progress after the batches that arrived in the topic.

        ``ours`` is the end offset of the restored records in the topic's log.
        """
        at, offset = progress.at, progress.offset
        for behind, records in progress.steps:
            if offset + records > ours:
                break
            at, offset = behind, offset + records
        if offset != ours:
            raise LogError(
                "the topic was changed since an earlier run: the restored records end at offset "
                f"{ours}, but the restore's progress note has {offset}",
                path=self._path,
                remedy=_ANOTHER_NAME,
            )
        return structs.replace(progress, at=at, offset=offset, steps=())

    # ------------------------------------------------------------------ the remaining batches

    def _restore_rest(self, progress: RestoreProgress) -> RestoreProgress:
        for window in self._windows(progress.at):
            size = sum(len(each.data) for each in window)
            self._shared.throttle(size)
            marks = self._marks(progress, window)
            steps = tuple((each.next_offset, each.records) for each in window)
            progress = structs.replace(progress, steps=steps, marks=marks)
            self._write(progress)
            self._producer.send(window, progress.offset)
            records = sum(each.records for each in window)
            progress = structs.replace(
                progress, at=window[-1].next_offset, offset=progress.offset + records, steps=()
            )
            self._records += records
            self._bytes += size
        new = dict.fromkeys(self._pending(progress), progress.offset)
        end = {} if self._end in dict(progress.marks) else {self._end: progress.offset}
        marks = (*progress.marks, *sorted((new | end).items()))
        progress = structs.replace(progress, at=self._end, marks=marks)
        self._write(progress)
        return progress

    def _write(self, progress: RestoreProgress) -> None:
        self._note.write(msgspec.json.encode(progress).decode(), self._transactions)

    def _pending(self, progress: RestoreProgress) -> Iterator[int]:
        """The groups' committed offsets that point to records not restored yet."""
        is_begin = progress.offset == progress.first
        known = {each[0] for each in progress.marks}
        for each in self._positions:
            if each not in known and (is_begin or each >= progress.at):
                yield each

    def _marks(
        self, progress: RestoreProgress, window: Sequence[OutgoingBatch]
    ) -> tuple[tuple[int, int], ...]:
        pending, found, offset = (
            list(self._pending(progress)),
            list(progress.marks),
            progress.offset,
        )
        for batch in window:
            count = bisect_left(pending, batch.next_offset)
            found += [(each, offset + bisect_left(batch.offsets, each)) for each in pending[:count]]
            pending, offset = pending[count:], offset + batch.records
        return tuple(found)

    def _windows(self, first: int) -> Iterator[list[OutgoingBatch]]:
        window: list[OutgoingBatch] = []
        size, most = 0, self._shared.largest_request
        for batch in self._batches(first):
            if most is not None and len(batch.data) > most - _AROUND_BYTES:
                raise self._too_large(batch.offsets[0], len(batch.data), most)
            window.append(batch)
            size += len(batch.data)
            if size >= _WINDOW_BYTES or len(window) >= _WINDOW_BATCHES:
                yield window
                window, size = [], 0
        if window:
            yield window

    def _batches(self, first: int, end: int | None = None) -> Iterator[OutgoingBatch]:
        """The outgoing batches of the records from ``first`` to ``end``; None means the partition's
        end.
        """
        limits, log = self._shared.limits, self._log
        end = self._end if end is None else end
        format = KafkaFormat(limits.plain_bytes)
        sender = Sender(format, self._transplant, first, end)
        for n, segment in enumerate(log.segments):
            if segment.base_offset >= end or log.segment_end(n) <= first:
                continue
            for chunk in restoring.chunks_of(log, n, segment, limits, format):
                with located(segment.path, chunk.shift):
                    yield from sender.batches(chunk.buffer, chunk.table)
                behind = int(chunk.table["next_offset"][-1])
                if behind > self._reported:
                    self._reported = behind
                    self._shared.advance(chunk.origin_bytes)

    # ------------------------------------------------------------------ groups

    def _set_groups(self, progress: RestoreProgress) -> list[GroupGiven]:
        def translate(positions: Sequence[int]) -> Mapping[int, int | str]:
            unknown = [each for each in positions if progress.where(each) is None]
            located = self._located(progress, unknown) if unknown else {}
            return {
                each: located[each] if (at := progress.where(each)) is None else at
                for each in positions
            }

        def note(groups: OffsetsSet) -> None:
            self._write(structs.replace(progress, groups=groups))

        positions = self._contents.groups
        return set_groups(self._cluster, self._name, positions, progress.groups, translate, note)

    def _located(self, progress: RestoreProgress, positions: Sequence[int]) -> dict[int, int]:
        """Translate committed offsets in records that earlier runs restored. Returns a dictionary.

        A mark in the progress note is an offset in the archive and its offset in the cluster.
        Records are counted in both logs from the last mark at or below the first position. If both
        counts are equal, and the cluster's log has no hole, the n-th records correspond. If a log
        has lost records, each position becomes the mark's offset in the cluster. Groups then read
        records again, but skip none.
        """
        marks = [(self._log.log_start, progress.first), *progress.marks]
        at, offset = max(
            (each for each in marks if each[0] <= positions[0]), default=(0, progress.first)
        )
        counts, total = dict.fromkeys(positions, 0), 0
        for batch in self._batches(at, progress.at):
            total += batch.records
            for each in positions:
                counts[each] += bisect_left(batch.offsets, each)
        runs, there = self._runs(offset, progress.offset)
        if there != total:
            return dict.fromkeys(positions, offset)
        found = {}
        for each, count in counts.items():
            before, start = runs[bisect_right(runs, (count, progress.offset)) - 1]
            found[each] = progress.offset if count == total else start + count - before
        return found

    def _runs(self, first: int, end: int) -> tuple[list[tuple[int, int]], int]:
        """The ranges of offsets with records in the cluster's log, and the record count.

        ``first`` and ``end`` limit the offsets. A range is (number of records before it, its first
        offset). The count is -1 if records are missing.
        """
        runs: list[tuple[int, int]] = []
        count, at = 0, first
        log = LiveLog(self._cluster, self._name, self._shared.client)
        format = KafkaFormat(self._shared.limits.plain_bytes)
        try:
            for _, table in log.batches(first, end, format, epoch=-1):
                for row in table:
                    base, behind = max(int(row["base_offset"]), first), int(row["next_offset"])
                    is_whole = int(row["records"]) == behind - int(row["base_offset"])
                    if base != at or not is_whole:
                        return [], -1
                    at = behind
                    if not row["flags"] & IS_CONTROL:
                        runs.append((count, base))
                        count += min(behind, end) - base
        except CommitConflict:  # the log start offset has increased
            return [], -1
        finally:
            log.close()
        return runs, count
