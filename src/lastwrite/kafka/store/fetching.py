"""Fetches the part of a log directory beyond an archive's end into the archive.

    log directory      0 ────── 600 ────── 1200 ─── 1366 (active)
    archive            0 ────── 600 ── 900                          ends at 900
    fetched                            900 ─ 1200 ─ 1366

Whole segments of a broker's tier are not copied; the archive references them by address.

By default only closed segments are fetched. Batches are verified by their checksums and written
unchanged. If the archive ends inside a segment, the remainder becomes a separate segment. Offsets,
leader epochs, the producers at the new end and the transaction indexes are fetched too.

A fetch is refused if the log does not continue the archive. Then the log begins after the archive's
end, belongs to another topic of the same name, or has other leader epochs; or its broker may have
removed tombstones before they were fetched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from lastwrite.archive.ingest import Advance, IngestResult
from lastwrite.archive.manifest import Manifest
from lastwrite.archive.partition_store import (
    VersionedManifest,
    WriteTransaction,
    partition_store_at,
    read_versioned_manifest,
)
from lastwrite.engine.chunks import BatchWindows
from lastwrite.engine.rules.retention import Retention
from lastwrite.engine.system import CommitPlan
from lastwrite.errors import CommitConflict, LogError, NotALog, NotContinued
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    KafkaFileKind,
    segment_file_name,
)
from lastwrite.kafka.format.text import decode_leader_epochs, decode_partition_metadata
from lastwrite.kafka.producers.history import read_producers
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.store import archived, index_files, tiered
from lastwrite.kafka.store.archived import ArchivedLog, ArchivedMetadata, StoredSegment
from lastwrite.kafka.store.archived_segment import ArchivedSegment, rows_of
from lastwrite.kafka.store.keeping import Keep, keeper
from lastwrite.model.columns import BatchTable, ByteArray
from lastwrite.model.log import PartitionLog, Segment
from lastwrite.model.work import Limits, ScanRange, SegmentOutput
from lastwrite.reports.fetching import HoldReason
from lastwrite.storage.reading import reader_of

# (producer id, first offset, last offset, last stable offset), as in ``ArchivedLog.aborted``
Aborted = tuple[tuple[int, int, int, int], ...]

_ELSEWHERE = "fetch the log into another archive with --to"
_ASIDE = (
    "fetch the log into another archive with --to; or give --set-aside, which sets aside the "
    "archive's records that the log does not have, and continues"
)
_GAP = (
    "give --accept-gap to accept the loss, which the archive's manifest records; or give "
    "--set-aside, which sets the archive's contents aside and fetches the entire log; or fetch "
    "the log into another archive with --to"
)
_NO_WATERMARK = (
    "a high watermark is never inside a batch: start the broker, which writes a correct one, and "
    "fetch again; or fetch from another replica"
)


def fetch(
    log: PartitionLog,
    folder: str,
    *,
    known: ArchivedMetadata | None,
    config: KafkaTopicConfig,
    include_active: bool,
    limits: Limits,
    advance: Advance,
    copies: bool = False,
    secret: bytes | None = None,
    groups: Mapping[str, tuple[int, int, str] | None] | None = None,
    accepts_gap: bool = False,
) -> IngestResult:
    """Fetch the records of ``log`` beyond the end of the archived partition at ``folder``.

    Args:
        log: the source, as it was listed.
        folder: the partition's address in the archive; it need not exist yet.
        known: the topic's settings in the cluster. None leaves the archive's settings unchanged.
        config: the topic's effective settings: ``delete.retention.ms`` and the index interval.
        include_active: fetch the active segment too, up to the high watermark.
        limits: the memory to use.
        advance: called with the number of bytes as they are written.
        copies: copy segments of a tier too, instead of referencing them.
        secret: the partition's secret for cached scans. None means that no scans are cached.
        accepts_gap: if the log begins after the archive's end, continue and record the gap.
        groups: committed offsets of consumer groups, None for a deleted group. Other groups keep
            the archive's offsets.

    Raises:
        LogError: the log does not continue the archive.
        CorruptLog: the log or the manifest is damaged.
        CommitConflict: another process changed the archive meanwhile.
        RemoteFailed: the store fails.
    """
    place, now_ms = partition_store_at(folder), time.time_ns() // 1_000_000
    said = _of_cluster(log, now_ms)
    seen = place.read()
    before = _begin(log) if seen is None else archived.contents_of(seen.manifest, folder)
    stored, gap = before, None
    if not log.segments:
        raise NotALog(
            "the partition's folder contains no segment", path=log.folder, remedy="check the path"
        )
    end = log.high_watermark
    # If the log lags behind the archive, the archive's groups are newer and stay.
    if groups is not None and end >= before.end_offset:
        said["groups"] = _moved(before, groups)
    if not include_active and not log.is_closed:
        end = min(end, log.segments[-1].base_offset)
    epochs, topic_id = _lineage(log, end)
    if seen is not None and not before.is_blank:
        why = find_divergence(log.log_start, before, topic_id)
        is_gap = accepts_gap and why is not None and why.reason is HoldReason.GAP
        if is_gap:
            why, before = None, before.with_gap(log.log_start)
            gap = archived.describe_gap(*before.gaps[-1])
        why = why or fork(before, epochs, end, None in (topic_id, before.topic_id))
        if not is_gap:  # with an accepted gap, lost tombstones are accepted too
            why = why or _lost_deletes(log, before, now_ms, config.delete_retention_ms)
        if why is not None:
            raise no_continuation(folder, why, log.folder)
    if "gaps" in said:  # the source is an archive
        said["gaps"] = _gaps_of_both(before, said["gaps"])
    if seen is not None and end <= before.end_offset:
        # The archive has all offsets, so it has missed no tombstone. Therefore the time limit for
        # tombstones restarts. It does not restart if the source is an older archive.
        is_older = archived.is_archived(log.folder) and end < before.end_offset
        after = structs.replace(before, known=known or before.known, **({} if is_older else said))
        is_due = after.brought_ms - before.brought_ms > config.delete_retention_ms // 2
        if is_due or after != structs.replace(stored, brought_ms=after.brought_ms):
            place.commit(place.begin(seen), manifest_of(seen, after, folder))
        end = before.end_offset
        return IngestResult(
            first_offset=end, end_offset=end, segments=0, bytes=0, is_new=False, gap=gap
        )
    end, first = max(end, before.end_offset), before.end_offset
    begun = place.begin(seen)
    with place.abort_on_error(begun):
        made: list[StoredSegment] = []
        keep = None if secret is None else keeper(log, before, (folder, begun), secret, limits)
        for n, segment in enumerate(log.segments):
            named = None if copies else _named(log, n, segment, (first, end))
            if named is not None:
                made.append(named)
                continue
            base = max(first, segment.base_offset)
            new = ArchivedSegment(folder, f"data/{begun.id}-", base, config.index_interval_bytes)
            made += copied(log, n, segment, (first, end), new, limits, advance, keep)
            place.renew(begun)
        after = _after(log, before, made, end, epochs, topic_id, (folder, begun))
    after = structs.replace(after, known=known or before.known, **said)
    place.commit(begun, manifest_of(seen, after, folder))
    return IngestResult(
        first_offset=first,
        end_offset=end,
        segments=len(made),
        bytes=sum(each.bytes for each in made if not each.address),
        foreign_bytes=sum(each.bytes for each in made if each.address),
        is_new=seen is None,
        gap=gap,
    )


def _gaps_of_both(
    before: ArchivedLog, source: Iterable[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """The archive's gaps after a fetch.

    These are its earlier gaps, and the gaps of the source beyond the archive's end.
    """
    end = before.end_offset
    return (*before.gaps, *((max(first, end), until) for first, until in source if until > end))


def _moved(
    before: ArchivedLog, groups: Mapping[str, tuple[int, int, str] | None]
) -> tuple[tuple[str, int, int, str], ...]:
    """The archive's committed offsets after they are updated by ``groups``."""
    told = {group: (at, epoch, word) for group, at, epoch, word in before.groups} | dict(groups)
    return tuple((group, *at) for group, at in sorted(told.items()) if at is not None)


def publish(
    copy: CommitPlan, folder: str, transaction: WriteTransaction, metadata: ArchivedMetadata | None
) -> None:
    """Write a log, or another archive's partition, as a new partition of an archive.

    Compaction has already written the rewritten segments. This function copies the other segments.

    Raises:
        CorruptLog, CommitConflict, RemoteFailed: the source is damaged, changed or cannot be read.
            The new partition is then not created.
    """
    log, end = copy.log, copy.log.high_watermark
    replaced = {source.base_offset for sources in copy.sources for source in sources}
    span, target = (_begin(log).end_offset, end), (folder, transaction)
    made = [counted(each) for each in copy.outputs if each.stored is not None]
    place = partition_store_at(folder)
    with place.abort_on_error(transaction):
        said = _of_cluster(log, time.time_ns() // 1_000_000)
        for n, segment in enumerate(log.segments):
            if segment.base_offset not in replaced:
                base = max(span[0], segment.base_offset)
                new = ArchivedSegment(folder, f"data/{transaction.id}-", base)
                made += copied(log, n, segment, span, new)
                place.renew(transaction)
        made.sort(key=lambda each: each.base_offset)
        made = [*archived.with_cached_scans(made, folder, copy.scans)]
        epochs, topic_id = _lineage(log, end)
        after = _after(log, _begin(log), made, end, epochs, topic_id, target)
    after = structs.replace(
        after,
        known=metadata,
        checkpoint=log.checkpoint if copy.first_dirty is None else copy.first_dirty,
        aborted=aborted_after(after.aborted, copy),
        **said,
    )
    manifest = manifest_of(None, retained(after, copy.retention), folder)
    place.commit(transaction, manifest)


def _of_cluster(log: PartitionLog, now_ms: int) -> dict[str, Any]:
    """The fields of the manifest's ``log`` that describe the source cluster.

    If the source is an archive, its fields are copied, so that a fetch can continue the copy.

    Raises:
        CommitConflict: the archive changed while it was copied.
    """
    if not archived.is_archived(log.folder):
        return {"brought_ms": now_ms}
    manifest = read_versioned_manifest(log.folder).manifest
    if manifest.generation != log.generation:
        raise CommitConflict(
            "another program changed the archive during the command",
            path=log.folder,
            remedy="run the command again",
        )
    before = archived.contents_of(manifest, log.folder)
    return {
        "brought_ms": before.brought_ms,
        "groups": before.groups,
        "gaps": before.gaps,
        "last_batch": before.last_batch,
    }


def counted(output: SegmentOutput) -> StoredSegment:
    """The manifest's entry for a new segment, with its record count if known."""
    assert isinstance(output.stored, StoredSegment)
    # The records of a part that became several segments were not counted per segment.
    return structs.replace(output.stored, records=None if output.more_outputs else output.records)


def aborted_after(before: Aborted, new: CommitPlan) -> Aborted:
    """The entries of all transaction indexes of an archived log after a compaction."""
    places = {segment.base_offset: n for n, segment in enumerate(new.log.segments)}
    ends = {
        source.base_offset: new.log.segment_end(places[source.base_offset])
        for sources in new.sources
        for source in sources
    }
    stay = [
        entry for entry in before if not any(base <= entry[2] < end for base, end in ends.items())
    ]
    return tuple(sorted((*stay, *map(astuple, new.aborted)), key=lambda entry: entry[2]))


def retained(log: ArchivedLog, retention: Retention | None) -> ArchivedLog:
    """The archived log without the segments that ``retention`` deletes."""
    if retention is None or not retention.segments:
        return log
    log_start, first_unstable = max(log.log_start, retention.log_start), log.first_unstable
    return structs.replace(
        log,
        segments=tuple(each for each in log.segments if each.base_offset >= retention.first_base),
        aborted=tuple(each for each in log.aborted if each[2] >= retention.log_start),
        first_unstable=None if first_unstable is None else max(first_unstable, log_start),
        log_start=log_start,
    )


def _begin(log: PartitionLog) -> ArchivedLog:
    """The contents of an archived partition before its first fetch: no records."""
    base = begin_of(log)
    return ArchivedLog(log_start=base, end_offset=base)


def begin_of(log: PartitionLog) -> int:
    """The first offset of ``log`` that can be fetched."""
    return log.segments[0].base_offset if log.segments else log.log_start


def _lineage(log: PartitionLog, end: int) -> tuple[tuple[tuple[int, int], ...], str | None]:
    """The leader epochs that begin below ``end``, and the topic id.

    Epochs are empty, and the topic id is None, if the folder lacks the file that contains them.
    """
    epochs: tuple[tuple[int, int], ...] = ()
    topic_id = None
    content = index_files.side_file(log.folder, LEADER_EPOCHS)
    if content is not None:
        found = decode_leader_epochs(content)
        epochs = tuple((each.epoch, each.start_offset) for each in found if each.start_offset < end)
    content = index_files.side_file(log.folder, PARTITION_METADATA)
    if content is not None:
        topic_id = str(decode_partition_metadata(content))
    return epochs, topic_id


class DivergenceReason(NamedTuple):
    """The reason why a log does not continue an archive."""

    reason: HoldReason
    description: str


def find_divergence(
    log_start: int, before: ArchivedLog, topic_id: str | None
) -> DivergenceReason | None:
    """Compare topic id and log start of a log with the archive.

    Returns the reason why the log cannot continue the archive. None if it can.
    """
    if None not in (topic_id, before.topic_id) and topic_id != before.topic_id:
        there = before.topic_id
        return DivergenceReason(
            HoldReason.ANOTHER,
            f"the topic was deleted and created again: its id is {topic_id}, and {there} in the "
            "archive",
        )
    if log_start > before.end_offset:
        return DivergenceReason(
            HoldReason.GAP,
            f"the log starts at offset {log_start}, and the archive ends at offset "
            f"{before.end_offset}: the {log_start - before.end_offset} offsets between them are "
            "lost",
        )
    return None


def no_continuation(folder: str, why: DivergenceReason, source: str) -> NotContinued:
    """The error for a ``source`` that does not continue the partition at ``folder``."""
    words = f"the archived partition {folder} cannot be continued: {why.description}"
    remedy = _GAP if why.reason is HoldReason.GAP else _ASIDE
    error = NotContinued(words, path=source, remedy=remedy)
    error.held = why.reason
    return error


def fork(
    before: ArchivedLog, epochs: Sequence[tuple[int, int]], end: int, may_be_another: bool
) -> DivergenceReason | None:
    """The first difference between the leader epochs of log and archive. None if they agree.

    A log is only truncated after an election, which starts a later epoch. ``may_be_another`` means
    that the topic ids are unknown. Only then, the first offsets of epochs are compared. In the same
    topic they may differ, because they increase if old segments are deleted, or if a replica is
    rebuilt from a compacted log.
    """
    here, there = dict(epochs), dict(before.epochs)
    last, newest = max(there, default=None), max(here, default=None)
    if last is None or newest is None:
        return None
    later = [start for epoch, start in epochs if epoch > last]
    if later and min(later) < before.end_offset:
        return DivergenceReason(
            HoldReason.FORK,
            f"offsets {min(later)} to {before.end_offset} have leader epoch {last} in the "
            "archive, and a later epoch in the log: a leader election truncated the log after "
            "they were fetched",
        )
    if newest < last and end > before.end_offset:
        return DivergenceReason(
            HoldReason.FORK,
            f"the log ends at offset {end} in leader epoch {newest}, and the archive at offset "
            f"{before.end_offset} in the later epoch {last}: the log was continued from an older "
            "copy",
        )
    for epoch in sorted(here.keys() & there.keys()) if may_be_another else ():
        if here[epoch] != there[epoch] and max(here[epoch], there[epoch]) > epochs[0][1]:
            return DivergenceReason(
                HoldReason.ANOTHER,
                f"leader epoch {epoch} starts at offset {here[epoch]} in the log, and at offset "
                f"{there[epoch]} in the archive: log and archive belong to different topics",
            )
    return None


def _lost_deletes(
    log: PartitionLog, before: ArchivedLog, now_ms: int, retention_ms: int
) -> DivergenceReason | None:
    """The reason why a tombstone may be missing from the offsets to fetch. None if none can be."""
    since_ms = now_ms - before.brought_ms
    if (log.checkpoint or 0) <= before.end_offset or since_ms <= retention_ms:
        return None
    return lost_deletes(before, since_ms, retention_ms)


def lost_deletes(before: ArchivedLog, since_ms: int, retention_ms: int) -> DivergenceReason:
    """The reason why tombstones may be missing: the log was cleaned beyond the archive's end."""
    return DivergenceReason(
        HoldReason.DELETES,
        f"the broker's cleaner compacted offsets from {before.end_offset} on, and the last fetch "
        f"was {since_ms // 3_600_000} hours ago: tombstones are kept for {retention_ms} ms "
        "(delete.retention.ms), so the archive may have missed some",
    )


def _named(
    log: PartitionLog, number: int, segment: Segment, span: tuple[int, int]
) -> StoredSegment | None:
    """The manifest's entry for a segment that stays in a broker's tier.

    None if the segment must be copied: it is not in a tier, or only a part of it is needed.
    """
    first, end = span
    if not tiered.is_tier(log.folder) or segment.base_offset < first:
        return None
    found = tiered.cached_tier(log.folder).named(segment)
    if found is None or log.segment_end(number) > end:
        return None
    return StoredSegment(
        base_offset=segment.base_offset,
        folder="",
        address=segment.path,
        bytes=segment.size_bytes,
        etag=segment.etag,
        index_bytes=found.size(KafkaFileKind.INDEX),
        time_index_bytes=found.size(KafkaFileKind.TIME_INDEX),
        transaction_index_bytes=found.size(KafkaFileKind.TRANSACTION_INDEX),
        largest_timestamp_ms=segment.largest_timestamp_ms,
        first_batch_timestamp_ms=segment.first_batch_timestamp_ms,
        mtime_ms=segment.mtime_ms,
        in_chunks=found.in_chunks(),
    )


def copied(
    log: PartitionLog,
    number: int,
    segment: Segment,
    span: tuple[int, int],
    appender: ArchivedSegment,
    limits: Limits | None = None,
    advance: Advance = lambda written: None,
    keep: Keep | None = None,
) -> Iterator[StoredSegment]:
    """Copy the part of a segment inside ``span`` to the archive. Yields the new segments."""
    first, end = span
    until = log.segment_end(number)
    if until <= first or segment.base_offset >= end or not segment.size_bytes:
        return
    base = max(first, segment.base_offset)
    records, begin = 0, -1
    try:
        for start, exact, table in proven_batches(segment, number, span, until, limits or Limits()):
            reject_across(table, base, end, segment.path)
            begin = start if begin < 0 else begin
            appender.append(exact, rows_of(table))
            records += int(table["records"].sum())
            advance(len(exact))
        aborted = [entry for entry in log.aborted if base <= entry.last_offset < min(until, end)]
        result = SegmentOutput(0, 0, 0)
        appender.finish(result, segment.mtime_ns, aborted)
    except BaseException:
        appender.abandon()
        raise
    if isinstance(result.stored, StoredSegment):
        kept = keep and keep(number, begin, begin + result.bytes_written, base)
        yield structs.replace(result.stored, records=records, kept=kept)


def proven_batches(
    segment: Segment, place: int, span: tuple[int, int], until: int, limits: Limits
) -> Iterator[tuple[int, ByteArray, BatchTable]]:
    """The batches in a segment whose offsets overlap ``span``, with verified checksums.

    Yields (position in the segment, bytes, table). ``place`` is the segment's number in its log,
    and ``until`` is the segment's end offset.
    """
    first, end = span
    piece = ScanRange.of(
        segment,
        number=0,
        place=place,
        start=0,
        end=segment.size_bytes,
        end_offset=until,
        keyed=False,
    )
    with reader_of(segment) as reader:
        for chunk in BatchWindows(limits).of(KafkaFormat(limits.plain_bytes), piece):
            table = chunk.table
            table = table[(table["next_offset"] > first) & (table["base_offset"] < end)]
            if not len(table):
                continue
            start = int(table["origin"][0])
            size = int(table["origin"][-1] + table["origin_size"][-1]) - start
            exact = np.empty(size, dtype=np.uint8)
            reader.read_into(exact, start + chunk.shift)
            yield start + chunk.shift, exact, table


def reject_across(table: BatchTable, base: int, end: int, path: str) -> None:
    """Check that no batch spans ``base`` or ``end``: an archive contains only whole batches."""
    begins, ends = int(table["base_offset"][0]), int(table["next_offset"][-1])
    if begins < base or ends > end:
        is_begin = begins < base
        place, what = (
            (base, "where the archive ends")
            if is_begin
            else (end, "up to which the log is replicated")
        )
        row = table[0 if is_begin else -1]
        raise LogError(
            f"the batch with offsets {int(row['base_offset'])} to {int(row['next_offset']) - 1} "
            f"crosses offset {place}, {what}",
            path=path,
            remedy=_ELSEWHERE if is_begin else _NO_WATERMARK,
        )


def _after(
    log: PartitionLog,
    before: ArchivedLog,
    segments: Sequence[StoredSegment],
    end: int,
    epochs: Sequence[tuple[int, int]],
    topic_id: str | None,
    target: tuple[str, WriteTransaction],
) -> ArchivedLog:
    """The contents of the archived partition after the fetch."""
    folder, begun = target
    snapshots = dict(index_files.snapshots_of(log.folder))

    def entries(offset: int) -> tuple[ProducerEntry, ...]:
        return decode_snapshot(index_files.read_file(snapshots[offset]))

    producers, _ = read_producers(log.segments, list(snapshots), entries, log.log_start, end, end)
    # All records are replicated, so only open transactions are unstable. They may begin in the
    # archive, before the log's first offset.
    open_from = min((each.open_from for each in producers if each.open_from >= 0), default=None)
    log_start = before.log_start
    if not before.segments:  # the log may start inside a batch, after records were deleted
        log_start = max(log_start, min(log.log_start, end))
    first_unstable = None if open_from is None else max(open_from, log_start)
    snapshot, size = None, 0
    if end in snapshots:
        content = index_files.read_file(snapshots[end])
        snapshot = f"data/{begun.id}-producers/{segment_file_name(end, KafkaFileKind.SNAPSHOT)}"
        size = len(content)
        partition_store_at(folder).put(snapshot, content)
    # The archive's epochs take precedence: a broker that deletes old segments moves the start of
    # the first epoch, and the archive has the original start.
    lineage = {**dict(epochs), **dict(before.epochs)}
    added = (
        tuple(astuple(entry))
        for entry in log.aborted
        if before.end_offset <= entry.last_offset < end
    )
    return structs.replace(
        before,
        log_start=log_start,
        end_offset=end,
        first_unstable=first_unstable,
        segments=(*before.segments, *segments),
        aborted=(*before.aborted, *added),
        producers=tuple(tuple(astuple(each)) for each in producers),
        snapshot=snapshot,
        last_batch=None,
        snapshot_bytes=size,
        epochs=tuple(sorted(lineage.items())),
        topic_id=topic_id or before.topic_id,
    )


def manifest_of(current: VersionedManifest | None, after: ArchivedLog, folder: str) -> Manifest:
    """The manifest with the new contents. The commit sets its ``generation`` and ``nonce``."""
    log = msgspec.Raw(msgspec.json.encode(after))
    if current is not None:
        return structs.replace(current.manifest, log=log, objects=after.objects())
    name = archived.name_of(folder)
    return Manifest(
        system=archived.SYSTEM,
        topic=name.topic,
        partition=name.partition,
        objects=after.objects(),
        log=log,
    )
