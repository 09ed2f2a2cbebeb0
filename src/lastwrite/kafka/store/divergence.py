"""Sets aside the part of an archive that the log no longer has, so that the archive can continue.

    before   ARCHIVE/kafka/orders/0                                0 ─── 900 ─── 1366
    after    ARCHIVE/kafka/orders/0                                0 ─── 900
             ARCHIVE/_lastwrite/aside/orders-0-17/kafka/orders/0         900 ─── 1366

The part set aside is an archive that every command can read. This archive is complete before the
original partition is truncated. The archive's name ends with the number of the partition's manifest
(17), so that a run after a crash finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple

from msgspec import structs

from lastwrite.archive.partition_store import (
    WriteTransaction,
    partition_store_at,
    read_versioned_manifest,
)
from lastwrite.errors import CommitConflict, NotContinued
from lastwrite.kafka.producers.history import read_producers
from lastwrite.kafka.store import archived
from lastwrite.kafka.store.archived import ArchivedLog, StoredSegment
from lastwrite.kafka.store.archived_segment import ArchivedSegment
from lastwrite.kafka.store.fetching import copied, manifest_of
from lastwrite.model.log import PartitionLog
from lastwrite.reports.fetching import FetchedLog, HoldReason
from lastwrite.storage.objects.address import join


def fetch_or_set_aside(
    folder: str,
    bring: Callable[[], FetchedLog],
    aside: Callable[[ArchivedLog, HoldReason], str],
    asides: list[str],
) -> FetchedLog:
    """Fetch a log into the archived partition at ``folder``, by calling ``bring``.

    If the log does not continue the archive, ``aside`` moves the diverging records to another
    archive, and ``bring`` is called again. The other archive's address is added to ``asides``.

    Raises:
        NotContinued: the archive is empty, so nothing can be set aside. Errors of ``bring`` and
            ``aside`` pass through.
    """
    try:
        return bring()
    except NotContinued as error:
        before = archived.contents_of(read_versioned_manifest(folder).manifest, folder)
        if before.is_blank:
            raise
        asides.append(aside(before, HoldReason(error.held)))
        return bring()


def set_aside(to: str, folder: str, cut: int | None, log_start: int) -> str:
    """Move an archived partition's records from offset ``cut`` on to another archive.

    Args:
        cut: the offset at which archive and log diverge. None means unknown: then all records are
            moved. All records are also moved if compaction removed records below ``cut`` because of
            records above ``cut``.
        log_start: first offset of the live log. If the archive ends before this offset, all records
            are moved, too.

    Returns:
        The address of the new archive with the part set aside.

    Raises:
        CommitConflict: another process changed the partition meanwhile; its change stays.
        CorruptLog, RemoteFailed: the archive cannot be read or written. Nothing is lost then.
    """
    place = partition_store_at(folder)
    current = place.read()
    if current is None:
        raise CommitConflict(
            "another program removed the partition during the command",
            path=folder,
            remedy="run the command again",
        )
    before = archived.contents_of(current.manifest, folder)
    log = archived.log_of(current.manifest, folder)
    if cut is not None and not _may_be_cut(before, cut, log_start):
        cut = None
    name = f"{log.name}-{current.manifest.generation}"
    aside = join(to, f"_lastwrite/aside/{name}")
    _copy(log, before, archived.address_in(aside, log.name), cut)
    transaction = place.begin(current)
    with place.abort_on_error(transaction):
        after = (
            _blank(before, log_start)
            if cut is None
            else _cut(log, before, cut, folder, transaction)
        )
    place.commit(transaction, manifest_of(current, after, folder))
    return aside


def _may_be_cut(log: ArchivedLog, cut: int, log_start: int) -> bool:
    """Whether the archive would be correct after it is truncated at ``cut``.

    A compaction beyond ``cut`` may have removed records below ``cut`` because of later records,
    which are set aside.
    """
    is_inside = max(log.log_start, log_start - 1) < cut <= log.end_offset
    return is_inside and (log.checkpoint is None or log.checkpoint <= cut)


def _segments(
    log: PartitionLog, span: tuple[int, int], target: str, transaction: WriteTransaction
) -> Sequence[StoredSegment]:
    """Copy the part of the log in ``span`` to the partition at ``target``. Returns its segments."""
    made: list[StoredSegment] = []
    for n, segment in enumerate(log.segments):
        base = max(span[0], segment.base_offset)
        made += copied(log, n, segment, span, ArchivedSegment(target, transaction.prefix, base))
        partition_store_at(target).renew(transaction)
    return made


def _copy(log: PartitionLog, before: ArchivedLog, target: str, cut: int | None) -> None:
    """Copy the records from offset ``cut`` on to the partition ``target``, unless it exists.

    None copies all records.
    """
    place = partition_store_at(target)
    if place.read() is not None:
        return
    first = log.log_start if cut is None else cut
    begin = min((each.base_offset for each in log.segments), default=first)
    span = (begin if cut is None else cut), log.end_offset
    transaction = place.begin(None)
    with place.abort_on_error(transaction):
        made = _segments(log, span, target, transaction)
        unstable = before.first_unstable
        after = structs.replace(
            before,
            log_start=first,
            checkpoint=before.checkpoint if cut is None else None,
            first_unstable=None if unstable is None else max(unstable, first),
            segments=tuple(made),
            aborted=tuple(each for each in before.aborted if each[2] >= span[0]),
            snapshot=None,
            snapshot_bytes=0,
            active_from=None,
        )
    place.commit(transaction, manifest_of(None, after, target))


def _blank(before: ArchivedLog, log_start: int) -> ArchivedLog:
    """The contents of an empty archived partition that keeps the topic's settings."""
    return ArchivedLog(log_start=log_start, end_offset=log_start, known=before.known)


def _cut(
    log: PartitionLog, before: ArchivedLog, cut: int, folder: str, transaction: WriteTransaction
) -> ArchivedLog:
    """The partition's contents, truncated at ``cut``. A segment that spans ``cut`` is rewritten."""
    below: list[StoredSegment] = []
    for n, stored in enumerate(before.segments):
        if log.segment_end(n) <= cut:
            below.append(stored)
        elif stored.base_offset < cut:
            span = stored.base_offset, cut
            new = ArchivedSegment(folder, transaction.prefix, stored.base_offset)
            below += copied(log, n, log.segments[n], span, new)
    segments = [archived.segment_of(each, folder) for each in below]
    producers, unstable = read_producers(segments, (), lambda _: (), before.log_start, cut, cut)
    return structs.replace(
        before,
        end_offset=cut,
        first_unstable=unstable,
        segments=tuple(below),
        aborted=tuple(each for each in before.aborted if each[2] < cut),
        producers=tuple(astuple(each) for each in producers),
        snapshot=None,
        snapshot_bytes=0,
        last_batch=None,
        epochs=tuple(each for each in before.epochs if each[1] < cut),
        active_from=None if before.active_from is None else min(before.active_from, cut),
    )
