"""Update a table: read the log's changes, and commit them.

For each bucket with changes, the keys of its files are read and compared with the changes. Replaced
rows are deleted by position or, if the format has no positions, by rewriting their file. The new
rows become one more file. An update therefore reads the changes, and the keys of changed buckets.

Deleted rows and small files make a table slow to read. The same commit therefore rewrites buckets
with many changes, many deleted rows or many files, the worst first. It may rewrite four times the
bytes that it adds. The unspent part of this budget is added to the budget of the next update.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastwrite.errors import (
    CommitConflict,
    InvalidConfig,
    LogError,
    LogHeld,
    RemoteFailed,
    UnsupportedFormat,
)
from lastwrite.model.columns import Int64Array
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import Progress
from lastwrite.reports.table_round import TableRound
from lastwrite.rows.decoded import ERROR
from lastwrite.rows.last_writes import LastWrites
from lastwrite.rows.system import RowSystem
from lastwrite.storage.machine import core_count
from lastwrite.storage.objects.address import is_address
from lastwrite.tables.buckets import BUCKET_BYTES, bucket_count, checksum_of, summed
from lastwrite.tables.changes import Changes, NeedsFullScan, bytes_of, was_compacted_since
from lastwrite.tables.columns import OFFSET, PARTITION, as_bytes
from lastwrite.tables.files import read_file, read_keys, remove_files
from lastwrite.tables.format import ANEW, DataFile, Head, TableChange, TableFormat, TableState
from lastwrite.tables.growth import check_unions, grown, renames, unions_after
from lastwrite.tables.layout import check_free, check_writable
from lastwrite.tables.memory import release_memory
from lastwrite.tables.rebucket import buckets_after, rebucket
from lastwrite.tables.rows import IS_DELETE, Rows
from lastwrite.tables.written import fitted, write_bucket

_OTHER_LOG = (
    "give another --to, which keeps this table; or rebuild the table with --anew, which removes "
    "rows that the log no longer has"
)
FIXED = ("key_format", "value_format", "headers")  # settings that change only with --anew
MANY = 0.2  # share of changed or deleted rows at which a bucket is rewritten
MANY_FILES = 8  # number of files at which a bucket is rewritten
_SHARE = 4  # an update may rewrite this multiple of the bytes that it adds
_SMALL_BYTES = 4 << 20  # bytes that each update may rewrite in addition to its budget


class TableRequest(NamedTuple):
    """The options of a table that was requested.

    Attributes:
        settings: as in ``TableState``. Settings in ``FIXED`` must equal the table's, unless it is
            rebuilt.
        buckets: the number of buckets. None means a number that depends on the table's size.
        anew: whether all rows are written again, regardless of the table's state.
    """

    rows: Rows
    settings: Mapping[str, str]
    memory_bytes: int
    buckets: int | None = None
    anew: bool = False


def sync_table(
    format: TableFormat,
    head: Head | None,
    system: RowSystem,
    logs: Sequence[PartitionLog],
    wish: TableRequest,
    progress: Progress,
) -> TableRound:
    """Create the table, or update it to the end of ``logs``, which are of one topic.

    ``head`` is the head that ``format`` has just returned. If another program has rewritten files
    meanwhile without a change of rows, the update is repeated.

    Raises:
        CommitConflict: changes are missing: a log begins above the table's offset, ends below it,
            or belongs to another topic of the same name.
        InvalidConfig: the table has another topic or other settings.
        LogHeld: another run has changed the table meanwhile.
    """
    if head is None:
        check_free(format.location)
    for tries in (2, 1, 0):
        try:
            return _synchronize(_Task(format, system, logs, wish, head, head, progress))
        except LogHeld:
            now = format.head(anew=wish.anew)
            if not tries or head is None or now is None or not _same_rows(now.state, head.state):
                raise
            head = now
    raise AssertionError("unreachable")


def _same_rows(one: TableState | None, other: TableState | None) -> bool:
    """Whether two table states are equal, except for the number of buckets."""
    if one is None or other is None:
        return one is other
    return replace(one, buckets=other.buckets) == other


def _synchronize(task: _Task) -> TableRound:
    format, system, logs, wish, head, *_ = task
    if head is not None and head.state is not None:
        _check_topic(format, head.state, system, logs)
    if head is None or wish.anew:
        return _round(task._replace(base=None), None)
    wish = wish._replace(rows=wish.rows.fit_to(head.schema))
    task = task._replace(request=wish)
    state = _same(format, head, wish)
    _reject_gaps(system, logs, state)
    renamed = renames(head.schema, wish.rows.schema, wish.rows.aliases)
    check_unions(state.unions, head.schema, wish.rows, renamed, format.address)
    if renamed:
        if not format.can_rename:
            path, old = next(iter(renamed.items()))
            raise InvalidConfig(
                f"the reader's schema renames the column {old} to {path} by an alias, but "
                f"tables of format {format.name} do not support renames; nothing was changed",
                path=format.address,
                remedy=f"keep the column's name, or {ANEW}",
            )
        head = format.rename(head, renamed)
        task = task._replace(head=head, base=head)
    ends = {log.name.partition: system.end_of(log, True) for log in logs}
    is_same = state.settings == dict(wish.settings)
    if state.offsets == ends and is_same and grown(head.schema, wish.rows.schema) == head.schema:
        return _unchanged(format, head, state)
    if not state.moved and not was_compacted_since(system, logs, state.offsets):
        with suppress(NeedsFullScan):
            return _round(task, state.offsets)
        now = format.head()
        if now is not None and _same_rows(now.state, state):  # ``rebucket`` may have added buckets
            task = task._replace(head=now, base=now)
    return _round(task, None)


class _Task(NamedTuple):
    """One update of a table. ``base`` is the head, or None if the update replaces all rows."""

    format: TableFormat
    system: RowSystem
    logs: Sequence[PartitionLog]
    request: TableRequest
    head: Head | None
    base: Head | None
    progress: Progress


def _round(task: _Task, since: Mapping[int, int] | None) -> TableRound:
    wish = task.request
    # Checked once per table in a store, where the check costs two requests.
    if task.base is None or not is_address(task.format.location):
        check_writable(task.format.location)
    last = LastWrites(
        task.system,
        task.logs,
        wish.memory_bytes // 2,
        since=since,
        progress=task.progress,
        has_index=False,
    )
    try:
        if since is not None and last.has_moved_keys:
            raise NeedsFullScan
        state = task.base.state if task.base is not None else None
        room = _bucket_bytes(wish)
        if state is None:
            buckets = wish.buckets or bucket_count(bytes_of(last, len(last)), room)
        else:
            rows = len(last) + (state.rows if since is not None and not state.plain_bytes else 0)
            table_bytes = bytes_of(last, rows)
            if since is not None:
                table_bytes += state.plain_bytes
            else:
                table_bytes = max(table_bytes, state.plain_bytes)
            buckets = wish.buckets or buckets_after(state.buckets, table_bytes, room)
            if buckets > state.buckets:
                task = _moved(task, buckets)
        with Changes(last, wish.rows, since, wish.memory_bytes // 8) as changes:
            changes.gather(buckets, task.progress)
            # The number of buckets was estimated from the log's compressed size. Now the size of
            # the rows is known.
            if state is None and not wish.buckets:
                buckets = max(buckets, bucket_count(changes.bytes, _plain_bytes(wish)))
                changes.rewrite_buckets(buckets)
            last.close()
            release_memory()
            return _Round(task, changes, buckets).run()
    finally:
        last.close()


def _moved(task: _Task, buckets: int) -> _Task:
    """Distribute the table's rows over more buckets. Returns the update for the new head."""
    assert task.base is not None and task.base.state is not None
    was = task.base.state.buckets
    task.progress.note(
        f"the table has outgrown its {was} buckets; Lastwrite distributes the rows over "
        f"{buckets} buckets"
    )
    head = rebucket(task.format, task.base, buckets, task.request.memory_bytes, task.progress)
    return task._replace(head=head, base=head)


def _bucket_bytes(wish: TableRequest) -> int:
    """The target size of a bucket in bytes.

    Up to four copies of a bucket are in memory while it is written.
    """
    return max(1 << 20, min(BUCKET_BYTES, wish.memory_bytes // 12))


def _plain_bytes(wish: TableRequest) -> int:
    """The maximum size in memory of one bucket's rows, in bytes, for a new table."""
    return max(2 * _bucket_bytes(wish), wish.memory_bytes // (6 * _threads(wish)))


def _threads(wish: TableRequest, plain_bytes: int = 0) -> int:
    """The number of buckets to process in parallel, so that they fit in memory.

    ``plain_bytes`` is the size of a bucket's rows in memory, or 0.
    """
    bucket_bytes = max(_bucket_bytes(wish), plain_bytes // 2)
    return max(1, min(core_count(), wish.memory_bytes // (6 * bucket_bytes)))


@dataclass
class _BucketChanges:
    """The result of an update for one bucket."""

    bucket: int
    added: pa.Table  # new rows, in any order
    new_rows: int  # number of new rows
    removed_rows: dict[
        str, Int64Array
    ]  # file path to positions of rows that are not current any more
    minus: int  # checksum of the removed rows
    plus: int  # checksum of the new rows
    files: list[DataFile] = field(default_factory=list)  # new files
    removed: list[str] = field(default_factory=list)  # paths of removed files
    deletes: dict[str, Int64Array] = field(default_factory=dict)  # see ``TableChange``
    written_anew: bool = False

    @property
    def removed_count(self) -> int:
        return sum(map(len, self.removed_rows.values()))


class _Round:
    """One attempt to update a table."""

    def __init__(self, task: _Task, changes: Changes, buckets: int) -> None:
        self._task, self._format, self._changes = task, task.format, changes
        self._base, self._buckets = task.base, buckets
        self._state = task.base.state if task.base is not None else None
        self._identity = task.request.rows.identity
        schema = task.request.rows.schema
        self._schema = schema if task.base is None else grown(task.base.schema, schema)
        self._file_schema = task.format.file_schema(task.base, self._schema)
        self._old = {} if task.base is None else task.base.in_bucket()
        self._run = secrets.token_hex(8)
        self._written: list[str] = []

    def run(self) -> TableRound:
        chosen, credit = self._chosen()
        every = self._old if self._changes.is_complete else ()
        buckets = sorted({*self._changes.counts, *chosen, *every})
        try:
            rows_bytes = self._changes.bytes + (self._state.plain_bytes if self._state else 0)
            threads = _threads(self._task.request, rows_bytes // self._buckets)
            with ThreadPoolExecutor(threads, "table") as pool:
                found = self._collect(pool.map(partial(self._one, chosen=chosen), buckets), buckets)
            release_memory()
            return self._commit(found, credit)
        except RemoteFailed:
            raise  # do not remove the files: the commit may have succeeded
        except Exception:
            with suppress(LogError):
                remove_files(self._written)
            raise

    def _collect(
        self, each: Iterator[_BucketChanges], buckets: Sequence[int]
    ) -> list[_BucketChanges]:
        """Collect the buckets' results, and report progress in bytes read and added."""
        counts, progress = self._changes.counts, self._task.progress
        a_change = self._changes.bytes / max(1, sum(counts.values()))
        sizes = [
            round(a_change * counts.get(bucket, 0))
            + sum(file.size_bytes for file in self._old.get(bucket, ()))
            for bucket in buckets
        ]
        progress.stage("write", sum(sizes))
        found = []
        for one, size in zip(each, sizes, strict=True):
            found.append(one)
            progress.advance(size)
        return found

    def _chosen(self) -> tuple[set[int], int]:
        """The buckets to rewrite now, and the unused part of the rewrite budget, in bytes."""
        counts = self._changes.counts
        if self._base is None or self._state is None:
            return set(), 0
        all_rows = sum(file.rows for file in self._base.files)
        all_bytes = sum(file.size_bytes for file in self._base.files)
        a_row = all_bytes / max(all_rows, 1)
        budget = self._state.credit_bytes + int(_SHARE * a_row * sum(counts.values()))
        scored = []
        for bucket, files in self._old.items():
            rows = sum(file.rows for file in files)
            deleted = sum(file.deleted for file in files)
            size = sum(file.size_bytes for file in files)
            # After a read of the entire log, the table already has most of the changed rows, so
            # the changes are not counted.
            changed = 0 if self._changes.is_complete else counts.get(bucket, 0)
            score = max(changed / rows / MANY, deleted / rows / MANY, len(files) / MANY_FILES)
            if score >= 1:
                scored.append((score, bucket, size))
        chosen = set()
        free = _SMALL_BYTES
        for _, bucket, size in sorted(scored, reverse=True):
            if size <= free:
                free -= size
            elif size <= budget:
                budget -= size
            else:
                continue
            chosen.add(bucket)
        return chosen, min(budget, all_bytes)

    # ------------------------------------------------------------------ a bucket

    def _one(self, bucket: int, chosen: set[int]) -> _BucketChanges:
        files = self._old.get(bucket, [])
        deleted = self._deleted(bucket) if files else {}
        found = self._find_changes(bucket, files, deleted)
        if self._base is not None and self._base.by_positions and bucket not in chosen:
            for path, positions in found.removed_rows.items():
                whole = np.union1d(deleted.get(path, _NONE), positions)
                rows = next(file.rows for file in files if file.path == path)
                if len(whole) == rows:
                    found.removed.append(path)
                else:
                    found.deletes[path] = whole
            self._write(found, [found.added])
        elif found.removed_rows or bucket in chosen:
            found.written_anew = True
            parts = [self._remaining_rows(file, deleted, found.removed_rows) for file in files]
            found.removed = [file.path for file in files]
            self._write(found, [*parts, found.added])
        else:
            self._write(found, [found.added])
        found.added = found.added.schema.empty_table()  # frees the rows; a slice would not
        return found

    def _deleted(self, bucket: int) -> Mapping[str, Int64Array]:
        assert self._base is not None
        return self._format.deleted(self._base, bucket)

    def _find_changes(
        self, bucket: int, files: Sequence[DataFile], deleted: Mapping[str, Int64Array]
    ) -> _BucketChanges:
        """Find the removed rows and the new rows of a bucket."""
        changes = self._changes.of(bucket)
        known = self._state.deletes_ms if self._state is not None else {}
        self._changes.check_times(changes, known)
        keys = as_bytes(changes.column(self._identity))
        partitions = np.asarray(changes.column(PARTITION))
        offsets = np.asarray(changes.column(OFFSET))
        comes = ~np.asarray(changes.column(IS_DELETE))
        gone: dict[str, Int64Array] = {}
        minus = 0
        for file in files:
            there = read_keys(file.path, file.size_bytes, self._schema)
            its_keys = as_bytes(there.column(0))
            at = pc.index_in(its_keys, value_set=keys).fill_null(-1).to_numpy(zero_copy_only=False)
            is_live = np.ones(len(there), np.bool_)
            is_live[deleted.get(file.path, _NONE)] = False
            hits = np.flatnonzero((at >= 0) & is_live)
            change = at[hits]
            its_partitions = np.asarray(there.column(PARTITION))
            its_offsets = np.asarray(there.column(OFFSET))
            if self._changes.is_complete:
                same = (its_partitions[hits] == partitions[change]) & (
                    its_offsets[hits] == offsets[change]
                )
                comes[change[same]] = False
                is_live[hits[same]] = False
                goes = np.flatnonzero(is_live)
            else:
                if (its_partitions[hits] != partitions[change]).any():
                    raise NeedsFullScan
                goes = hits
            if len(goes):
                gone[file.path] = goes.astype(np.int64)
                minus += checksum_of(
                    its_keys.take(pa.array(goes)), its_partitions[goes], its_offsets[goes]
                )
        rows = changes.drop_columns([IS_DELETE])
        rows = rows if comes.all() else rows.filter(pa.array(comes))
        plus = checksum_of(
            as_bytes(rows.column(self._identity)),
            np.asarray(rows.column(PARTITION)),
            np.asarray(rows.column(OFFSET)),
        )
        return _BucketChanges(bucket, rows, len(rows), gone, minus, plus)

    def _remaining_rows(
        self, file: DataFile, deleted: Mapping[str, Int64Array], gone: Mapping[str, Int64Array]
    ) -> pa.Table:
        """The rows of a file that stay current after the update."""
        rows = read_file(file.path, file.size_bytes)
        stays = np.ones(len(rows), np.bool_)
        for which in (deleted, gone):
            stays[which.get(file.path, _NONE)] = False
        return rows if stays.all() else rows.filter(pa.array(stays))

    def _write(self, found: _BucketChanges, parts: Iterable[pa.Table]) -> None:
        """Write rows, sorted, to one new file. Writes no file if there are no rows."""
        some = [fitted(part, self._file_schema) for part in parts if len(part)]
        if some:
            path = self._format.data_path(found.bucket, f"{found.bucket:05d}-{self._run}.parquet")
            self._written.append(path)
            rows = pa.concat_tables(some)
            found.files.append(write_bucket(path, found.bucket, rows, self._identity))

    # ------------------------------------------------------------------ the commit

    def _commit(self, found: Sequence[_BucketChanges], credit: int) -> TableRound:
        task, was, changes = self._task, self._state, self._changes
        log = task.logs[0]
        deletes = dict(changes.deletes_ms)
        if not changes.is_complete and was is not None:
            for partition, latest in was.deletes_ms.items():
                deletes[partition] = max(latest, deletes.get(partition, latest))
        ids = {
            each.name.partition: task.system.identity(each, changes.ends[each.name.partition])
            for each in task.logs
        }
        added = sum(each.new_rows for each in found)
        removed = sum(each.removed_count for each in found)
        state = TableState(
            system=task.system.name,
            topic=log.name.topic,
            identity={partition: id_ for partition, id_ in ids.items() if id_ is not None},
            offsets=changes.ends,
            settings=dict(task.request.settings),
            buckets=self._buckets,
            rows=added - removed + (was.rows if was is not None else 0),
            checksum=summed(
                was.checksum if was is not None else "",
                sum(each.plus for each in found),
                sum(each.minus for each in found),
            ),
            moved=changes.moved,
            deletes_ms=deletes,
            credit_bytes=credit,
            plain_bytes=self._plain_bytes(added, removed),
            unions=unions_after(was.unions if was is not None else None, task.request.rows),
        )
        change = TableChange(
            added=[file for each in found for file in each.files],
            removed=self._removed_paths(found),
            deletes={path: at for each in found for path, at in each.deletes.items()},
            state=state,
            schema=self._schema,
            replaces_all=task.base is None,
        )
        head = self._format.commit(task.head, change)
        how = "updated" if not changes.is_complete else "compared" if self._base else "made"
        return TableRound(
            path=self._format.address,
            format=self._format.name,
            head=head.token,
            how=how,
            topic=state.topic,
            offsets=dict(state.offsets),
            rows=state.rows,
            buckets=state.buckets,
            added=added,
            removed=removed,
            files=len(change.added),
            bytes_written=sum(file.size_bytes for file in change.added),
            written_anew=sum(each.written_anew for each in found),
            odd_times=changes.odd_times,
            first_odd_time=changes.first_odd_time,
        )

    def _removed_paths(self, found: Sequence[_BucketChanges]) -> list[str]:
        if self._task.base is None and self._task.head is not None:
            return [file.path for file in self._task.head.files]
        return [path for each in found for path in each.removed]

    def _plain_bytes(self, added: int, removed: int) -> int:
        was, changes = self._state, self._changes
        if changes.is_complete or was is None:
            return changes.bytes
        if not was.plain_bytes:
            return 0
        stays = was.plain_bytes * (was.rows - removed) // max(1, was.rows)
        return stays + changes.bytes * added // max(1, sum(changes.counts.values()))


def _unchanged(format: TableFormat, head: Head, state: TableState) -> TableRound:
    return TableRound(
        path=format.address,
        format=format.name,
        head=head.token,
        how="unchanged",
        topic=state.topic,
        offsets=dict(state.offsets),
        rows=state.rows,
        buckets=state.buckets,
    )


_NONE = np.empty(0, np.int64)


def _check_topic(
    format: TableFormat, state: TableState, system: RowSystem, logs: Sequence[PartitionLog]
) -> None:
    """Check that the table belongs to the topic of ``logs``.

    Raises:
        InvalidConfig: the table belongs to another topic. This is an error with ``anew``, too.
    """
    topics = {log.name.topic for log in logs}
    if state.system != system.name or (topics and topics != {state.topic}):
        raise InvalidConfig(
            f"the table has rows of {state.system}'s topic {state.topic}; nothing was changed",
            path=format.address,
            remedy="give another address with --to",
        )


def _same(format: TableFormat, head: Head, wish: TableRequest) -> TableState:
    """Check that the head matches the request. Returns the head's state.

    Raises:
        InvalidConfig: the table was created with other settings.
        UnsupportedFormat: another program removed a column.
    """
    state, where = head.state, format.address
    if state is None:
        raise InvalidConfig(
            "the table was not created by Lastwrite, and has no rows",
            path=where,
            remedy=ANEW,
        )
    wanted = {name: wish.settings[name] for name in FIXED}
    wanted |= {"buckets": str(wish.buckets)} if wish.buckets else {}
    has = {**state.settings, "buckets": str(state.buckets)}
    for name, value in wanted.items():
        if has.get(name) != value:
            raise InvalidConfig(
                f"the table was created with {option_of(name, str(has.get(name)))}, but "
                f"{option_of(name, value)} was requested; nothing was changed",
                path=where,
                remedy=f"give {option_of(name, str(has.get(name)))}, or {ANEW}",
            )
    lacking = {each.name for each in wish.rows.schema} - {*head.schema.names, ERROR}
    if lacking:
        raise UnsupportedFormat(
            f"another program renamed or dropped the table's column {min(lacking)}; nothing was "
            "changed",
            path=where,
            remedy=ANEW,
        )
    return state


def option_of(name: str, value: str) -> str:
    """The command-line option for a setting."""
    option = "--" + name.replace("_", "-")
    if name == "headers":
        return option if value == "true" else "--no-headers"
    return f"{option} {value}"


def _reject_gaps(system: RowSystem, logs: Sequence[PartitionLog], state: TableState) -> None:
    found = {log.name.partition: log for log in logs}
    for partition, offset in state.offsets.items():
        log = found.get(partition)
        if log is None:
            problem = f"the topic no longer has partition {partition}, but the table has rows of it"
            raise CommitConflict(problem, path=state.topic, remedy=_OTHER_LOG)
        known = state.identity.get(partition)
        other = None if known is None else system.difference(log, offset, known)
        if other is not None:
            problem = f"the topic was deleted and created again: {other}"
        elif (end := system.end_of(log, True)) < offset:
            problem = (
                f"the log ends at offset {end}, but the table has records up to {offset}: the "
                "topic was deleted and created again, or the log was truncated"
            )
        elif system.lost_after(log, offset):
            problem = (
                f"the log begins at offset {log.log_start}, but the table has records only up "
                f"to {offset}: deletes may be missing"
            )
        else:
            continue
        raise CommitConflict(problem, path=log.folder, remedy=system.before_anew + _OTHER_LOG)
