"""``dump`` of a RocketMQ store: messages, index entries and small files as rows.

Messages are listed in the order of the commit log or of a queue, or found by key, id, time or
address. Rows are yielded while files are read.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from lastwrite.errors import CommitConflict, InvalidConfig, LogError
from lastwrite.model.log import Problem, ProblemKind, TopicPartition
from lastwrite.reports.table import Row, last_of_each
from lastwrite.rocketmq.format import names, properties
from lastwrite.rocketmq.look.find import MessageMatch, StoreFinder, has_key, is_one_of
from lastwrite.rocketmq.look.rows import (
    batch_unit_rows,
    consume_queue_rows,
    extension_rows,
    key_rows,
    message_rows,
    remedy_of,
    side_rows,
)
from lastwrite.rocketmq.look.walk import LogWalk
from lastwrite.rocketmq.store import layouts, lock
from lastwrite.rocketmq.store.live_files import (
    open_store,
    read_pairs,
    settled,
    up_to_dispatched,
)
from lastwrite.rocketmq.store.place import StorePlace, find_place
from lastwrite.rocketmq.store.reading import (
    INDEX_LIMIT_BYTES,
    PART_OF_KIND,
    MappedFile,
    MappedLog,
    RocketmqFileKind,
    StoreFolder,
    list_queues,
    read_file,
    read_files,
    read_index_files,
    read_one_file,
    read_queue,
)
from lastwrite.rocketmq.store.topics import MOST_QUEUES, all_queues, topics_or_none
from lastwrite.storage.choice import choose
from lastwrite.storage.problems import DAMAGE_REMEDY, damaged, limited, problem_of

BY_WALK = "commit log"
BY_COMPACTION_WALK = "compaction log"
_INDEX_PARTS = (
    StoreFolder.CONSUME_QUEUE,
    StoreFolder.EXTENSION,
    StoreFolder.BATCH_QUEUE,
    StoreFolder.COMPACTION_INDEX,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDumpRequest:
    """The options of one ``dump``. None means no restriction."""

    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    commit_log_offset: int | None = None
    key: str | None = None
    unique_key: str | None = None
    message_id: str | None = None
    time_ms: int | None = None
    whole_batches: bool = False
    index: bool = False
    compacted: bool = False
    decode: bool = False
    last: int | None = None  # number of last messages of each queue to print
    config: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ways = {
            "--commit-log-offset": self.commit_log_offset,
            "--key": self.key,
            "--unique-key": self.unique_key,
            "--message-id": self.message_id,
            "--time": self.time_ms,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise InvalidConfig(f"{' and '.join(given)} exclude each other")
        if self.index and (given or self.whole_batches):
            raise InvalidConfig(
                f"{(given or ['--batches'])[0]} selects messages, but --index lists index entries"
            )
        if self.index and self.last is not None:
            raise InvalidConfig("--last selects messages, but --index lists index entries")
        if self.offset is not None and self.time_ms is not None:
            raise InvalidConfig("--offset and --time exclude each other: both set the start")

    @property
    def is_found(self) -> bool:
        """Whether the call selects one message or the messages of a key, instead of a range."""
        ways = (self.commit_log_offset, self.key, self.unique_key, self.message_id)
        return any(way is not None for way in ways)


def dump_store(
    path: str, request: StoreDumpRequest, limit: int | None, note: Callable[[str], None]
) -> Iterator[Row]:
    """The rows for ``path``: a store, one of its folders, a topic, a queue, or one file.

    ``note`` is called with a text if messages are not found the way a broker finds them, and for
    leftovers of a crash.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first row.
        NotALog: no row exists, and the topic or queue is unknown.
        CorruptLog: after the last row, the first damage. All whole messages were returned.
    """
    place = find_place(path)
    if place.root is not None:
        lock.reject_if_locked(place.root)
    job = _StoreDump(place, request, note)
    rows = job.rows()
    if request.last is not None:
        rows = last_of_each(rows, request.last, "topic", "queue_id")
    return limited(rows, limit, job.problems)


class _StoreDump:
    def __init__(
        self, place: StorePlace, request: StoreDumpRequest, note: Callable[[str], None]
    ) -> None:
        self._store = place
        self._request = request
        self._note = note
        self._topic = request.topic if request.topic is not None else place.topic
        self._queue = request.queue if request.queue is not None else place.queue
        self.problems: list[Problem] = []
        self._seen: set[tuple[str, int | None, str]] = set()

    def note(self, problem: Problem) -> None:
        """Add a problem if it is new. A note on leftovers of a crash is only printed."""
        mark = (problem.path, problem.position, problem.message)
        if mark in self._seen:
            return
        self._seen.add(mark)
        if problem.kind in (ProblemKind.RECOVERED, ProblemKind.GAP):
            self._note(str(problem))
        else:
            self.problems.append(problem)

    def rows(self) -> Iterator[Row]:
        any_row = False
        for row in self._rows():
            any_row = True
            yield row
        if not any_row and not self.problems and self._store.root is not None:
            self._check_requested(
                self._store.root
            )  # the commit log may have queues without a folder

    def _check_requested(self, root: str) -> None:
        """Check that the requested topic and queue exist.

        Raises:
            NotALog: they are neither in the store's queues nor in the broker's settings.
        """
        wanted = self._request
        known = all_queues(root, topics_or_none(root, self.note))
        if known and not (wanted.topic or "").startswith(names.LIGHT_QUEUE):
            there = [(name, "") for name in known]
            choose(there, wanted.topic, wanted.queue, self._store.path, unit="queue")

    def _rows(self) -> Iterator[Row]:
        place = self._store
        if self._request.index and (place.file is None or place.file.has_records):
            yield from self._index()
        elif place.file is not None and not place.file.has_records:
            yield from self._file_rows(place)
        elif place.part in (*_INDEX_PARTS, StoreFolder.INDEX):
            yield from self._index()
        elif place.part is StoreFolder.CONFIG:
            yield from self._config()
        else:
            yield from self._messages()

    # ------------------------------------------------------------------ messages

    def _messages(self) -> Iterator[Row]:
        wanted = self._request
        any_row = False
        with closing(self._finder()) as finder:
            for found in self._found(finder):
                for row in message_rows(*found, wanted.whole_batches):
                    if self._precedes(row) or self._is_other(found, row):
                        continue
                    any_row = True
                    if row["problem"] is not None:
                        self.note(damaged(row["problem"], found.file, found.position, None))
                    if wanted.decode:
                        row["decoded"] = _decoded(row)
                    yield row
        if not any_row and wanted.is_found:
            self._note("no message matches")

    def _is_other(self, found: MessageMatch, row: Row) -> bool:
        """Whether the requested key belongs only to other messages of the same inner batch."""
        wanted = self._request
        key, is_unique = wanted.key, wanted.key is None
        if is_unique:
            key = wanted.unique_key
        if key is None or row["batch_index"] is None or has_key(found.message, key, is_unique):
            return False
        said = row["properties"]
        is_its_own = key == said.get(properties.UNIQUE_KEY)
        return not is_its_own and (is_unique or not is_one_of(said.get(properties.KEYS, ""), key))

    def _precedes(self, row: Row) -> bool:
        """Whether a message in a batch, or found by key, is below the requested offset."""
        wanted = self._request
        if wanted.offset is None or (
            row["batch_index"] is None and wanted.key is None and wanted.unique_key is None
        ):
            return False
        return bool(row["queue_offset"] < wanted.offset)

    def _finder(self) -> StoreFinder:
        place = self._store
        log: MappedLog | None = None
        if place.file is RocketmqFileKind.COMMIT_LOG:
            log = up_to_dispatched(place.root, lambda: read_one_file(place.path))
        elif place.file is not None:
            log = read_one_file(place.path)
        elif place.part is StoreFolder.COMMIT_LOG:
            log = up_to_dispatched(
                place.root, lambda: read_files(place.path, is_copy=place.root is None)
            )
        finder = StoreFinder(place.root, self._request.config, self.note, self._note, log)
        if place.root is not None and finder.log.bound is not None and not self._request.compacted:
            self._note(str(open_store(place.root, finder.log.bound)))
        return finder

    def _found(self, finder: StoreFinder) -> Iterator[MessageMatch]:
        wanted, place = self._request, self._store
        if wanted.compacted or place.part in (StoreFolder.COMPACTION, StoreFolder.COMPACTION_LOG):
            yield from self._compacted(finder)
        elif wanted.commit_log_offset is not None:
            yield from finder.at_address(wanted.commit_log_offset)
        elif wanted.message_id is not None:
            yield from finder.by_message_id(wanted.message_id, self._topic)
        elif wanted.key is not None or wanted.unique_key is not None:
            if self._has_only_compaction_log(finder):
                yield from self._compacted(finder)
                return
            key = wanted.unique_key if wanted.key is None else wanted.key
            for found in finder.by_key(key or "", self._topic, wanted.key is None):
                if self._queue in (None, found.message.queue_id):
                    yield found
        elif (self._topic, self._queue, wanted.offset) != (None, None, None):
            yield from self._queues(finder)
        else:
            yield from self._read_log(finder)

    def _read_log(self, finder: StoreFinder) -> Iterator[MessageMatch]:
        """Messages of the commit log from the requested time on.

        Without a commit log, the messages of the compaction logs.
        """
        time_ms = self._request.time_ms
        start = 0 if time_ms is None else finder.address_at(time_ms)
        if start is None:
            return
        if self._has_only_compaction_log(finder):
            yield from self._compacted(finder)
            return
        for file, position, message in LogWalk(finder.log, self.note).records(start):
            yield MessageMatch(message, file.path, position, BY_WALK)

    def _has_only_compaction_log(self, finder: StoreFinder) -> bool:
        """Whether there are compaction logs but no commit log; prints a note if so."""
        root = self._store.root
        if finder.log.files or root is None or not list_queues(root, StoreFolder.COMPACTION_LOG):
            return False
        self._note("the store has no commit log; Lastwrite reads the compaction logs")
        return True

    def _queues(self, finder: StoreFinder) -> Iterator[MessageMatch]:
        for name in self._names(finder):
            first = self._request.offset or 0
            if self._request.time_ms is not None:
                at = finder.offset_at(name, self._request.time_ms)
                if at is None:
                    continue
                first = at
            rows = finder.queue(name, first)
            head = next(rows, None)
            if self._request.time_ms is None:
                end = None if head is None else head.message.queue_offset
                yield from self._older(finder, name, first, end)
            if head is not None:
                yield head
                yield from rows

    def _older(
        self, finder: StoreFinder, name: TopicPartition, first: int, end: int | None
    ) -> Iterator[MessageMatch]:
        """Messages from offset ``first`` on that only the queue's compaction log has."""
        root = self._store.root
        if (end is not None and end <= first) or root is None:
            return
        if name not in list_queues(root, StoreFolder.COMPACTION_LOG):
            return
        any_found = False
        for found in finder.compacted(name, first):
            if end is not None and found.message.queue_offset >= end:
                return
            if not any_found:
                upto = "" if end is None else f" up to offset {end}"
                self._note(
                    f"the commit log no longer has the messages of {name}{upto}; Lastwrite "
                    "reads them from the compaction log"
                )
            any_found = True
            yield found

    def _names(self, finder: StoreFinder) -> list[TopicPartition]:
        if self._topic is not None and self._queue is not None:
            return [TopicPartition(self._topic, self._queue)]
        found = set(finder.queues(self._topic, self._queue))
        topics = {name.topic for name in found}
        for topic in topics_or_none(self._store.root, self.note).values():
            if topic.name in topics:
                count = min(max(topic.read_queues, topic.write_queues), MOST_QUEUES)
                queues = range(count) if self._queue is None else [self._queue]
                found |= {TopicPartition(topic.name, n) for n in queues if 0 <= n < count}
        if not found:
            if self._store.root is not None:
                self._note(
                    "no matching queue has a folder; the index was rebuilt in memory from the "
                    "commit log"
                )
            found = set(finder.queues_in_log(self._topic, self._queue))
        return sorted(found)

    def _compacted(self, finder: StoreFinder) -> Iterator[MessageMatch]:
        wanted, place = self._request, self._store
        if (wanted.commit_log_offset, wanted.message_id, wanted.time_ms) != (None, None, None):
            raise InvalidConfig(
                "a compaction log can be searched only by queue offset or key, because its "
                "records have other addresses than in the commit log",
                remedy="leave out --compacted, or give --offset or --key",
            )
        key = wanted.key if wanted.key is not None else wanted.unique_key
        if place.file is not None and (place.root is None or place.name is None):
            walk = LogWalk(finder.log, self.note, is_compaction=True)
            for file, position, message in walk.records():
                if key is None or has_key(message, key, wanted.key is None):
                    yield MessageMatch(message, file.path, position, BY_COMPACTION_WALK, False)
            return
        root = place.root or place.path
        only = None if place.file is None else place.path
        for name in filter(self._is_requested, list_queues(root, StoreFolder.COMPACTION_LOG)):
            for found in finder.compacted(name, wanted.offset or 0, only):
                if key is None or has_key(found.message, key, wanted.key is None):
                    yield found

    def _is_requested(self, name: TopicPartition) -> bool:
        return self._topic in (None, name.topic) and self._queue in (None, name.partition)

    # ------------------------------------------------------------------ indexes

    def _index(self) -> Iterator[Row]:
        place = self._store
        for problem in () if place.root is None else layouts.unsupported(place.root):
            self.note(problem)
        if place.root is None:
            if place.part is None:
                raise InvalidConfig(
                    "a log file outside a store has no index",
                    path=place.path,
                    remedy="give the path of the store",
                )
            yield from self._index_log(read_files(place.path), place.part, place.name)
            return
        parts = [place.part] if place.part in _INDEX_PARTS else list(_INDEX_PARTS)
        if (
            place.part in (StoreFolder.COMPACTION, StoreFolder.COMPACTION_LOG)
            or self._request.compacted
        ):
            parts = [StoreFolder.COMPACTION_INDEX]
        for part in parts if place.part is not StoreFolder.INDEX else ():
            for name in filter(self._is_requested, list_queues(place.root, part)):
                is_paired = part is StoreFolder.COMPACTION_INDEX
                log = (
                    read_pairs(place.root, name).indexes
                    if is_paired
                    else read_queue(place.root, part, name)
                )
                yield from self._index_log(log, part, name)
        if (
            place.part in (None, StoreFolder.INDEX)
            and self._topic is None
            and not self._request.compacted
        ):
            yield from self._index_log(read_index_files(place.root), StoreFolder.INDEX, None)

    def _index_log(
        self, log: MappedLog, part: StoreFolder, name: TopicPartition | None
    ) -> Iterator[Row]:
        gaps = () if part in (StoreFolder.COMPACTION_INDEX, StoreFolder.INDEX) else log.gaps
        for problem in (*log.problems, *gaps):
            self.note(problem)
        for file in log.files:
            yield from self._guarded(self._entry_rows(file, part, name), file.path)

    def _entry_rows(
        self, file: MappedFile, part: StoreFolder, name: TopicPartition | None
    ) -> Iterator[Row]:
        first = self._request.offset or 0
        if part is StoreFolder.INDEX:
            return key_rows(file)
        data = read_file(file, INDEX_LIMIT_BYTES)
        if part is StoreFolder.CONSUME_QUEUE:
            return consume_queue_rows(data, name, file.path, file.start, first)
        if part is StoreFolder.EXTENSION:
            return extension_rows(data, name, file.path, file.start)
        index = "batchconsumequeue" if part is StoreFolder.BATCH_QUEUE else "compaction"
        return batch_unit_rows(data, name, file.path, index, first)

    def _guarded(
        self, rows: Iterator[Row], path: str, remedy: str | None = DAMAGE_REMEDY
    ) -> Iterator[Row]:
        try:
            yield from rows
        except CommitConflict:
            raise  # the file was deleted
        except LogError as error:
            self.note(problem_of(error, path, remedy=remedy))

    # ------------------------------------------------------------------ single files

    def _file_rows(self, place: StorePlace) -> Iterator[Row]:
        kind = place.file
        if kind is RocketmqFileKind.INDEX or (kind is not None and kind.has_units):
            return self._index_log(read_one_file(place.path), PART_OF_KIND[kind], place.name)
        remedy = None if kind is None else remedy_of(kind)
        return self._guarded(self._side_rows(place), place.path, remedy)

    @staticmethod
    def _side_rows(place: StorePlace) -> Iterator[Row]:
        yield from settled(place.root, lambda: list(side_rows(place)))

    def _config(self) -> Iterator[Row]:
        for name in (names.TOPICS, names.CONSUMER_OFFSETS, names.LIGHT_OFFSETS):
            path = os.path.join(self._store.path, name)
            if os.path.isfile(path):
                yield from self._file_rows(find_place(path))


def _decoded(row: Row) -> Row:
    """A body as text. Null if it is not UTF-8."""
    body = None if row["body"] is None else base64.b64decode(row["body"])
    try:
        return {"body": None if body is None else body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body": None}
