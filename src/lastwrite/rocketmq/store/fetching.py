"""Fetches the messages of a store's compaction log after the archive's end into the archive.

    store       0 ── 12 ────── 600 ────── 1200 ─── 1366 (active)     compacted up to 950
    archive     0 ────── 600 ── 900                                  ends at 900
    fetched                            900 ─ 1200 ─ 1366

A broker's compaction replaces files, and the new files begin at address 0 again. So messages are
selected by queue offset, and the archive keeps its messages below its end. Each message's checksum
is verified. A message is stored unchanged except for its address.

A broker's compaction drops deletes at once. If it has compacted beyond the archive's end, the
missing queue offsets are searched in the commit log, and deletes are fetched from there. If the
commit log no longer has these offsets, the fetch fails, because the archive would keep deleted
messages.

A fetch also fails if the log does not continue the archive. That is the case if the topic was
created again, if the log begins after the archive's end at an uncompacted offset, or if it ends
before the archive does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from msgspec import structs

from lastwrite.archive.ingest import Advance, IngestResult
from lastwrite.archive.partition_store import partition_store_at
from lastwrite.engine.chunks import BatchWindows
from lastwrite.errors import CorruptLog, LogError, NotALog, NotContinued
from lastwrite.model.columns import (
    DROP,
    ROW_BASE_OFFSET,
    ROW_COLUMNS,
    ROW_NEXT_OFFSET,
    ROW_POSITION,
    ROW_SIZE,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import PartitionLog, Segment
from lastwrite.model.work import Limits, ScanRange, SegmentOutput
from lastwrite.reports.fetching import HoldReason
from lastwrite.rocketmq.format.chunk import RocketmqFormat
from lastwrite.rocketmq.format.record import PHYSICAL_OFFSET_AT, RocketmqMessage, body_of
from lastwrite.rocketmq.format.sides import TopicConfig
from lastwrite.rocketmq.store import archived, live_files, queues
from lastwrite.rocketmq.store.archived import ArchivedQueue, StoredFile
from lastwrite.rocketmq.store.archived_file import ArchivedFile
from lastwrite.rocketmq.store.ordinary import CommitLogMessages, next_offset

ELSEWHERE = "fetch the queue into another archive: give another --to"
GAP = (
    "accept the loss with --accept-gap, which records the gap in the archive's manifest; or "
    "fetch the queue into another archive: give another --to"
)
_LIMIT_BYTES = 64 << 20  # largest decompressed size of a body


def fetch(
    log: PartitionLog,
    folder: str,
    *,
    topic: TopicConfig | None,
    source: str,
    kept_deletes_ms: int,
    include_active: bool,
    limits: Limits,
    advance: Advance,
    accepts_gap: bool = False,
) -> IngestResult:
    """Fetch the messages of ``log`` after the end of the archive's queue at ``folder``.

    Args:
        log: a queue of a store, as listed.
        folder: the queue's address in the archive. The queue may not exist yet.
        topic: the topic's settings. None keeps the settings in the archive.
        source: the path of the store.
        kept_deletes_ms: how long the store's compaction keeps deletes; 0 for a broker.
        include_active: fetch the active file too.
        limits: memory limits.
        advance: called with the number of bytes of each write.
        accepts_gap: continue if messages after the archive's end are lost, and record the gap.

    Raises:
        LogError: the log does not continue the archive.
        CorruptLog: the log or the manifest is damaged.
        CommitConflict: another command changed the archive in the meantime.
        RemoteFailed: the object store failed.
    """
    place, now_ms = partition_store_at(folder), time.time_ns() // 1_000_000
    seen = place.read()
    before = ArchivedQueue() if seen is None else archived.contents_of(seen.manifest, folder)
    if not log.segments:
        raise NotALog("the compaction log has no file", path=log.folder, remedy="check the path")
    end = log.end_offset if include_active else log.segments[-1].base_offset
    dropped: Sequence[int] = ()
    gap: tuple[int, int] | None = None
    if seen is not None:
        _reject_divergence(log, before, folder)
        gap = _gap_before(log, before, source)
        if gap is not None and not accepts_gap:
            raise no_continuation(
                f"{folder} cannot be continued: the log begins at queue offset {log.log_start}, "
                f"but the archive ends at {before.end_offset}. The messages in between are "
                "lost, because compaction did not reach them",
                log.folder,
                HoldReason.GAP,
                GAP,
            )
        if now_ms - before.brought_ms >= kept_deletes_ms:
            dropped, lost = _dropped(log, before, end, source, accepts_gap)
            if lost is not None and not accepts_gap:
                raise no_continuation(
                    f"{folder} cannot be continued: the log is compacted up to queue offset "
                    f"{min(log.checkpoint or 0, end)}, and offset {lost[0]} is in neither the "
                    "compaction log nor the commit log. Deletes that the archive needs may be "
                    "lost",
                    log.folder,
                    HoldReason.DELETES,
                    GAP,
                )
            if lost is not None:
                gap = lost if gap is None else (min(gap[0], lost[0]), max(gap[1], lost[1]))
    first, stored_before = before.end_offset, before
    if gap is not None:
        before = structs.replace(before, gaps=(*before.gaps, gap))
    words = None if gap is None else archived.describe_gap(*gap)
    told = {"topic": topic or before.topic, "source": source, "brought_ms": now_ms}
    stored = before.last_stored_ms
    # The archive is complete up to the active file. Compaction may have removed the last message
    # before that file, but not in every replica, so its store time may be unknown here. Use the
    # store time of the active file's first message, which was stored later.
    if not include_active:
        stored = max(stored, log.segments[-1].first_batch_timestamp_ms or stored)
    if seen is not None and end <= first:
        # The archive has all deletes that the store has dropped so far, so the retention period of
        # further deletes begins now.
        if (
            before is not stored_before
            or topic not in (None, before.topic)
            or 0 < kept_deletes_ms // 2 < now_ms - before.brought_ms
        ):
            after = structs.replace(before, **told)
            place.commit(place.begin(seen), archived.manifest_of(seen, after, folder))
        return IngestResult(
            first_offset=first, end_offset=first, segments=0, bytes=0, is_new=False, gap=words
        )
    begun = place.begin(seen)
    file_bytes = before.file_bytes or log.segments[0].file_bytes
    after = structs.replace(
        before, file_bytes=file_bytes, end_offset=end, last_stored_ms=stored, **told
    )
    with place.abort_on_error(begun), closing(IncomingMessages(log, source, dropped)) as brought:
        for n, segment in enumerate(log.segments):
            target = ArchivedFile(folder, begun.prefix, after.next_address)
            made = brought.take(n, segment, (first, end), target, limits, advance)
            if made is not None:
                after = structs.replace(
                    after,
                    files=(*after.files, made),
                    last_stored_ms=max(after.last_stored_ms, made.largest_timestamp_ms),
                )
            place.renew(begun)
        live_files.check_unmoved(log)
        if brought.last is not None:
            is_last = brought.last[0] == end - 1
            after = structs.replace(after, last_message=brought.last[1] if is_last else None)
    place.commit(begun, archived.manifest_of(seen, after, folder))
    new = after.files[len(before.files) :]
    return IngestResult(
        first_offset=first if seen is not None else min(end, log.log_start),
        end_offset=end,
        segments=len(new),
        bytes=sum(each.bytes for each in new),
        is_new=seen is None,
        gap=words,
    )


# ---------------------------------------------------------------------- refused fetches


def _find_divergence(log: PartitionLog, before: ArchivedQueue) -> str | None:
    """The reason why ``log`` does not continue the archive. Returns None if it may."""
    end = before.end_offset
    if log.end_offset < end:
        return (
            f"the log ends at queue offset {log.end_offset}, but the archive has offsets up to "
            f"{end}: the log was truncated, or the topic was deleted and created again"
        )
    latest = queues.last_stored_before(log, end)
    if latest is not None and latest[1] > before.last_stored_ms:
        return (
            f"the topic was deleted and created again: the message at queue offset {latest[0]} "
            f"was stored at time {latest[1]}, and the archive had all messages below offset "
            f"{end} by time {before.last_stored_ms}"
        )
    if before.last_message is not None and last_message(log, end) not in (
        None,
        before.last_message,
    ):
        return (
            "the topic was deleted and created again: the archive has another message at queue "
            f"offset {end - 1}"
        )
    last = queues.last_record_before(log, end)
    if last is None:
        return None
    why = find_recreation(log, last[0].base, digest(last[1]))
    if why is None:
        return None
    return f"the topic was deleted and created again: {why}; {REBUILD_QUEUE}"


REBUILD_QUEUE = (
    "if the compaction log has messages of an earlier topic, and the commit log still has every "
    "message of the new topic, first move both folders of the queue out of the store, keep them, "
    "and run lastwrite dispatch"
)


def find_recreation(
    log: PartitionLog, offset: int, known: str, stored_ms: int | None = None
) -> str | None:
    """The reason to believe that the topic was created again after ``offset`` was read, or None.

    A broker keeps the compaction log of a deleted topic, and appends the messages of a new topic of
    this name only from the log's end offset on. So the message at ``offset`` in the commit log is
    compared. If the commit log has fewer messages, its last one is compared. Returns None if
    nothing differs.

    Args:
        known: digest of the message at ``offset`` when it was read.
        stored_ms: the largest store time of the messages up to ``offset``, if known.
    """
    if archived.is_archived(log.folder):
        return None
    found, root = None, queues.root_of(log.folder)
    with suppress(LogError), closing(CommitLogMessages(root, log.name)) as own:
        found = own.find(offset) if own.has_queue else None
        last = next_offset(root, log.name) - 1 if own.has_queue else -1
        if found is None and 0 <= last < offset and (latest := own.find(last)) is not None:
            here = queues.last_record_before(log, last + 1)
            is_other = here is not None and here[0].base == last and here[1] != latest[1]
            is_later = stored_ms is not None and latest[0].store_time_ms > stored_ms
            if is_other or is_later:
                return (
                    f"the commit log ends with another message of queue offset {last}, before "
                    f"{offset}, and the compaction log has the earlier topic's"
                )
    if found is None or digest(found[1]) == known:
        return None
    return (
        f"the commit log has another message at queue offset {offset}, and the compaction log "
        "has messages of the old topic"
    )


def no_continuation(
    text: str, path: str, reason: HoldReason, remedy: str = ELSEWHERE
) -> NotContinued:
    """An error that the log at ``path`` does not continue the archive."""
    error = NotContinued(text, path=path, remedy=remedy)
    error.held = reason
    return error


def _reject_divergence(log: PartitionLog, before: ArchivedQueue, folder: str) -> None:
    why = _find_divergence(log, before)
    if why is not None:
        words = f"{folder} cannot be continued: {why}"
        raise no_continuation(words, log.folder, HoldReason.ANOTHER)


def _gap_before(log: PartitionLog, before: ArchivedQueue, source: str) -> tuple[int, int] | None:
    """The range of offsets before the log's start whose messages may be lost.

    Returns None if no message can be lost: compacted offsets are superseded by later messages, and
    messages without a key are never in the log.
    """
    first = max(before.end_offset, log.checkpoint or 0)
    if log.log_start <= first:
        return None
    with closing(CommitLogMessages(source, log.name)) as messages:
        for number in range(first, log.log_start):
            found = messages.find(number)
            if found is None or found[0].keys is not None:
                return number, log.log_start
    return None


def _dropped(
    log: PartitionLog, before: ArchivedQueue, end: int, source: str, goes_on: bool
) -> tuple[Sequence[int], tuple[int, int] | None]:
    """The offsets of deletes to fetch from the commit log, and the range of lost offsets.

    The store's compaction dropped these deletes after the archive's end. A lost offset is missing
    from the compaction log and the commit log. The range is None if no offset is lost. If
    ``goes_on`` is false, the search ends at the first lost offset.
    """
    lost: tuple[int, int] | None = None
    compared = min(log.checkpoint or 0, end)
    found: list[int] = []
    with closing(CommitLogMessages(source, log.name)) as messages:
        for first, last in queues.gaps(log, before.end_offset, compared):
            for number in range(first, last):
                told = messages.find(number)
                if told is None:
                    lost = (number if lost is None else lost[0], number + 1)
                    if not goes_on:
                        return (), lost
                elif is_delete(told[0]):
                    found.append(number)
    return found, lost


def is_delete(message: RocketmqMessage) -> bool:
    if message.keys is None:
        return False
    try:
        return not body_of(message, _LIMIT_BYTES)
    except LogError:  # a message with an undecodable body counts as an ordinary write
        return False


def last_message(log: PartitionLog, end: int | None = None) -> str | None:
    """A digest of the message before ``end``, by default of the log's last message.

    None if the message is missing.
    """
    data = queues.record_at(log, (log.end_offset if end is None else end) - 1)
    return None if data is None else digest(data)


def digest(data: bytes) -> str:
    """A digest of a record without its address, so that copies in all logs have equal digests."""
    rest = data[:PHYSICAL_OFFSET_AT] + data[PHYSICAL_OFFSET_AT + 8 :]
    return blake2b(rest, digest_size=16).hexdigest()


# ---------------------------------------------------------------------- fetched messages


@dataclass(slots=True)
class IncomingMessages:
    """The messages of a log that a fetch stores in the archive.

    ``dropped`` has offsets to fetch from the commit log.
    """

    log: PartitionLog
    source: str
    dropped: Sequence[int] = ()
    last: tuple[int, str] | None = None  # queue offset and digest of the last fetched message
    _messages: CommitLogMessages | None = field(default=None, init=False)
    _done: int = field(default=0, init=False)  # number of elements of ``dropped`` that are fetched

    def take(
        self,
        number: int,
        segment: Segment,
        span: tuple[int, int],
        target: ArchivedFile,
        limits: Limits,
        advance: Advance,
    ) -> StoredFile | None:
        """Store the messages of one file that have offsets in ``span``. None if there are none."""
        (first, end), until = span, self.log.segment_end(number)
        if until <= first or segment.base_offset >= end:
            return None
        try:
            if segment.size_bytes:
                for data, rows in self._messages_of(number, segment, span, limits):
                    self._append(target, data, rows)
                    advance(int(rows[:, ROW_SIZE].sum()))
            self._add_dropped(target, min(until, end))
            result = SegmentOutput(0, 0, 0)
            target.finish(result, segment.mtime_ns)
        except BaseException:
            target.abandon()
            raise
        return result.stored if isinstance(result.stored, StoredFile) else None

    def _messages_of(
        self, number: int, segment: Segment, span: tuple[int, int], limits: Limits
    ) -> Iterator[tuple[ByteArray, Int64Array]]:
        format = RocketmqFormat(limits.plain_bytes)
        piece = ScanRange.of(
            segment,
            number=0,
            place=number,
            start=0,
            end=segment.size_bytes,
            end_offset=self.log.segment_end(number),
            keyed=False,
        )
        checker = queues.QueueIndexChecker(piece)
        for chunk in BatchWindows(limits).of(format, piece):
            checker.check(chunk.table, chunk.shift)
            offsets = chunk.table["base_offset"]
            actions = np.where((offsets < span[0]) | (offsets >= span[1]), DROP, 0)
            out: ByteArray = np.empty(int(chunk.table["size"].sum()), dtype=np.uint8)
            rows: Int64Array = np.zeros((len(chunk.table), ROW_COLUMNS), dtype=np.int64)
            data, _, filled = format.rebuild(
                chunk.buffer,
                chunk.table,
                actions.astype(np.uint8),
                np.empty(0, dtype=np.int64),
                np.empty(0, dtype=np.uint8),
                out,
                rows,
            )
            if filled:
                yield data, rows[:filled]

    def _append(self, target: ArchivedFile, data: ByteArray, rows: Int64Array) -> None:
        """Append messages, with the dropped messages inserted in offset order."""
        begin = 0
        while self._done < len(self.dropped):
            at = int(np.searchsorted(rows[:, ROW_BASE_OFFSET], self.dropped[self._done]))
            if at == len(rows):
                break
            target.append(data, rows[begin:at])
            self._add_dropped(target, int(rows[at, ROW_BASE_OFFSET]))
            begin = at
        target.append(data, rows[begin:])
        self._note_last(data, rows[-1])

    def _add_dropped(self, target: ArchivedFile, below: int) -> None:
        """Append the dropped messages below queue offset ``below``, read from the commit log."""
        while self._done < len(self.dropped) and self.dropped[self._done] < below:
            offset = self.dropped[self._done]
            self._messages = self._messages or CommitLogMessages(self.source, self.log.name)
            found = self._messages.find(offset)
            if found is None:
                raise LogError(
                    f"the commit log lost the message of queue offset {offset} during the fetch",
                    path=self.log.folder,
                    remedy=ELSEWHERE,
                )
            data, rows = _framed(found[1], self.log.folder)
            target.append(data, rows)
            self._note_last(data, rows[-1])
            self._done += 1

    def _note_last(self, data: ByteArray, row: Int64Array) -> None:
        at, size = int(row[ROW_POSITION]), int(row[ROW_SIZE])
        self.last = int(row[ROW_NEXT_OFFSET]) - 1, digest(data[at : at + size].tobytes())

    def close(self) -> None:
        if self._messages is not None:
            self._messages.close()


def _framed(record: bytes, path: str) -> tuple[ByteArray, Int64Array]:
    """A record's bytes as an array, and the record's row for ``ArchivedFile.append``."""
    format, data = RocketmqFormat(), np.frombuffer(record, dtype=np.uint8).copy()
    table, *_ = format.split(data, 0, len(data), 0)
    if len(table) != 1:
        raise CorruptLog("the data is not exactly one record", 0, path)
    none: Int64Array = np.empty(0, dtype=np.int64)
    rows: Int64Array = np.zeros((1, ROW_COLUMNS), dtype=np.int64)
    keep: ByteArray = np.zeros(1, dtype=np.uint8)
    format.rebuild(data, table, keep, none, keep, np.empty_like(data), rows)
    return data, rows
