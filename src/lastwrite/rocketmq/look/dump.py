"""``dump`` of a RocketMQ store: messages in the order of the commit log or of a queue, or found by
what is known of them; index entries; small files. Rows come while files are read."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.model.log import Problem, ProblemKind, TopicPartition
from lastwrite.reports.table import Row
from lastwrite.rocketmq.format import names, sides
from lastwrite.rocketmq.format.index_file import ENTRY_DTYPE, INDEX_HEADER, IndexFile
from lastwrite.rocketmq.look.find import Found, StoreFinder, has_key
from lastwrite.rocketmq.look.rows import (
    batch_unit_rows,
    consume_queue_rows,
    extension_rows,
    message_rows,
)
from lastwrite.rocketmq.look.walk import LogWalk
from lastwrite.rocketmq.store import lock
from lastwrite.rocketmq.store.reading import (
    FileKind,
    MappedFile,
    MappedLog,
    Part,
    StorePlace,
    find_place,
    list_queues,
    map_whole,
    read_files,
    read_index_files,
    read_one_file,
    read_queue,
    read_whole,
)
from lastwrite.storage.problems import limited, problem_of
from lastwrite.storage.reading import read_small

BY_WALK = "commit log"
BY_COMPACTION_WALK = "compaction log"

_ENTRIES_AT_ONCE = 1 << 14
_INDEX_PARTS = (Part.CONSUME_QUEUE, Part.EXTENSION, Part.BATCH_QUEUE, Part.COMPACTION_INDEX)
_PART_OF = {
    FileKind.CONSUME_QUEUE: Part.CONSUME_QUEUE,
    FileKind.EXTENSION: Part.EXTENSION,
    FileKind.BATCH_QUEUE: Part.BATCH_QUEUE,
    FileKind.COMPACTION_INDEX: Part.COMPACTION_INDEX,
}
_INDEX_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What one call asks for; None: not asked."""

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
            raise InvalidConfig(f"{(given or ['--batches'])[0]} finds messages, not index entries")
        if self.offset is not None and self.time_ms is not None:
            raise InvalidConfig("--offset and --time exclude each other: both say where to begin")

    @property
    def is_found(self) -> bool:
        """Whether one message, or those of a key, are asked for, and not a stretch."""
        return any(
            value is not None
            for value in (self.commit_log_offset, self.key, self.unique_key, self.message_id)
        )


def dump_store(
    path: str, wanted: Wanted, limit: int | None, say: Callable[[str], None]
) -> Iterator[Row]:
    """The rows of what lies at ``path``: a store, one of its folders, a topic, a queue, or one
    file.

    ``say`` is told of what was not found as a broker would have found it, and of what a crash left.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first row.
        CorruptLog: after the last row, the first damage; nothing that is whole was left out.
    """
    place = find_place(path)
    if place.root is not None:
        lock.refuse_if_held(place.root)
    job = _StoreDump(place, wanted, say)
    return limited(job.rows(), limit, job.problems)


class _StoreDump:
    def __init__(self, place: StorePlace, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._place = place
        self._wanted = wanted
        self._say = say
        self._topic = wanted.topic if wanted.topic is not None else place.topic
        self._queue = wanted.queue if wanted.queue is not None else place.queue
        self.problems: list[Problem] = []
        self._seen: set[tuple[str, int | None, str]] = set()

    def note(self, problem: Problem) -> None:
        """Each place once; what a crash leaves is no damage, and only said."""
        mark = (problem.path, problem.position, problem.message)
        if mark in self._seen:
            return
        self._seen.add(mark)
        if problem.kind is ProblemKind.RECOVERED:
            self._say(str(problem))
        else:
            self.problems.append(problem)

    def rows(self) -> Iterator[Row]:
        place = self._place
        if self._wanted.index and (place.file is None or place.file.has_records):
            yield from self._index()
        elif place.file is not None and not place.file.has_records:
            yield from self._file_rows(place)
        elif place.part in (*_INDEX_PARTS, Part.INDEX):
            yield from self._index()
        elif place.part is Part.CONFIG:
            yield from self._config()
        else:
            yield from self._messages()

    # ------------------------------------------------------------------ messages

    def _messages(self) -> Iterator[Row]:
        wanted = self._wanted
        any_row = False
        finder = self._finder()
        try:
            for found in self._found(finder):
                for row in message_rows(
                    found.message,
                    found.file,
                    found.position,
                    found.found_by,
                    found.is_commit_log,
                    wanted.whole_batches,
                ):
                    if self._precedes(row):
                        continue
                    any_row = True
                    if row["problem"] is not None:
                        self.note(
                            Problem(ProblemKind.DAMAGED, row["problem"], found.file, found.position)
                        )
                    if wanted.decode:
                        row["decoded"] = _decoded(row)
                    yield row
        finally:
            finder.close()
        if not any_row and wanted.is_found:
            self._say("no such message")

    def _precedes(self, row: Row) -> bool:
        """Whether the message lies below the offset that was asked for, though its batch or its key
        did not.
        """
        wanted = self._wanted
        if wanted.offset is None or (
            row["batch_index"] is None and wanted.key is None and wanted.unique_key is None
        ):
            return False
        return bool(row["queue_offset"] < wanted.offset)

    def _finder(self) -> StoreFinder:
        place = self._place
        log: MappedLog | None = None
        if place.file is not None:
            log = read_one_file(place.path)
        elif place.part is Part.COMMIT_LOG:
            log = read_files(place.path)
        return StoreFinder(place.root, self._wanted.config, self.note, self._say, log)

    def _found(self, finder: StoreFinder) -> Iterator[Found]:
        wanted, place = self._wanted, self._place
        if wanted.compacted or place.part in (Part.COMPACTION, Part.COMPACTION_LOG):
            yield from self._compacted(finder)
        elif wanted.commit_log_offset is not None:
            yield from finder.at_address(wanted.commit_log_offset)
        elif wanted.message_id is not None:
            yield from finder.by_message_id(wanted.message_id, self._topic)
        elif wanted.key is not None or wanted.unique_key is not None:
            key = wanted.unique_key if wanted.key is None else wanted.key
            for found in finder.by_key(key or "", self._topic, wanted.key is None):
                if self._queue in (None, found.message.queue_id):
                    yield found
        elif (self._topic, self._queue, wanted.offset) != (None, None, None):
            yield from self._queues(finder)
        else:
            start = 0
            if wanted.time_ms is not None:
                address = finder.address_at(wanted.time_ms)
                if address is None:
                    return
                start = address
            if (
                not finder.log.files
                and place.root is not None
                and list_queues(place.root, Part.COMPACTION_LOG)
            ):
                self._say("there is no commit log: these are the compaction logs")
                yield from self._compacted(finder)
                return
            for file, position, message in LogWalk(finder.log, self.note).records(start):
                yield Found(message, file.path, position, BY_WALK)

    def _queues(self, finder: StoreFinder) -> Iterator[Found]:
        for name in self._names(finder):
            first = self._wanted.offset or 0
            if self._wanted.time_ms is not None:
                at = finder.offset_at(name, self._wanted.time_ms)
                if at is None:
                    continue
                first = at
            rows = finder.queue(name, first)
            head = next(rows, None)
            if self._wanted.time_ms is None:
                end = None if head is None else head.message.queue_offset
                yield from self._older(finder, name, first, end)
            if head is not None:
                yield head
                yield from rows

    def _older(
        self, finder: StoreFinder, name: TopicPartition, first: int, end: int | None
    ) -> Iterator[Found]:
        """What the compaction log still has of a queue from ``first`` on, and the commit log no
        longer.
        """
        if end is not None and end <= first:
            return
        if self._place.root is None or name not in list_queues(
            self._place.root, Part.COMPACTION_LOG
        ):
            return
        any_found = False
        for found in finder.compacted(name, first):
            if end is not None and found.message.queue_offset >= end:
                return
            if not any_found:
                upto = "" if end is None else f" up to offset {end}"
                self._say(
                    f"the commit log no longer has the messages of {name}{upto}: these are its compaction log's"
                )
            any_found = True
            yield found

    def _names(self, finder: StoreFinder) -> list[TopicPartition]:
        if self._topic is not None and self._queue is not None:
            return [TopicPartition(self._topic, self._queue)]
        found = set(finder.queues(self._topic, self._queue))
        for topic in self._topics().values():
            if self._topic in (None, topic.name) and found:
                count = max(topic.read_queues, topic.write_queues)
                found |= {
                    TopicPartition(topic.name, queue)
                    for queue in range(min(count, 1 << 10))
                    if self._queue in (None, queue)
                    and any(name.topic == topic.name for name in found)
                }
        if not found:
            if self._place.root is not None:
                self._say(
                    "no queue of such a name has a folder: its index was rebuilt in memory from the commit log"
                )
            found = set(finder.queues_in_log(self._topic, self._queue))
        return sorted(found)

    def _topics(self) -> dict[str, sides.Topic]:
        path = (
            ""
            if self._place.root is None
            else os.path.join(self._place.root, names.CONFIG, names.TOPICS)
        )
        if not os.path.isfile(path):
            return {}
        try:
            return sides.decode_topics(read_small(path))
        except LogError as error:
            self.note(problem_of(error, path))
            return {}

    def _compacted(self, finder: StoreFinder) -> Iterator[Found]:
        wanted, place = self._wanted, self._place
        if (
            wanted.commit_log_offset is not None
            or wanted.message_id is not None
            or wanted.time_ms is not None
        ):
            raise InvalidConfig(
                "a compaction log is asked by queue offset or by key: its records have addresses of their own",
                remedy="leave --compacted out, or give --offset or --key",
            )
        if place.file is not None and (place.root is None or place.name is None):
            for file, position, message in LogWalk(
                finder.log, self.note, is_compaction=True
            ).records():
                yield Found(message, file.path, position, BY_COMPACTION_WALK, False)
            return
        root = place.root or place.path
        key = wanted.key if wanted.key is not None else wanted.unique_key
        for name in list_queues(root, Part.COMPACTION_LOG):
            if self._topic not in (None, name.topic) or self._queue not in (None, name.partition):
                continue
            for found in finder.compacted(
                name, wanted.offset or 0, place.path if place.file is not None else None
            ):
                if key is None or has_key(found.message, key, wanted.key is None):
                    yield found

    # ------------------------------------------------------------------ indexes

    def _index(self) -> Iterator[Row]:
        place = self._place
        if place.root is None:
            if place.part is None:
                raise InvalidConfig(
                    "a log file by itself has no index", path=place.path, remedy="give the store"
                )
            yield from self._index_log(read_files(place.path), place.part, place.name)
            return
        parts = [place.part] if place.part in _INDEX_PARTS else list(_INDEX_PARTS)
        if place.part in (Part.COMPACTION, Part.COMPACTION_LOG) or self._wanted.compacted:
            parts = [Part.COMPACTION_INDEX]
        if place.part is not Part.INDEX:
            for part in parts:
                for name in list_queues(place.root, part):
                    if self._topic in (None, name.topic) and self._queue in (None, name.partition):
                        yield from self._index_log(read_queue(place.root, part, name), part, name)
        if place.part in (None, Part.INDEX) and self._topic is None and not self._wanted.compacted:
            log = read_index_files(place.root)
            self._note_all(log)
            for file in log.files:
                yield from self._guarded(self._key_rows(file), file.path)

    def _index_log(self, log: MappedLog, part: Part, name: TopicPartition | None) -> Iterator[Row]:
        self._note_all(log)
        for file in log.files:
            yield from self._guarded(self._entry_rows(file, part, name), file.path)

    def _entry_rows(
        self, file: MappedFile, part: Part, name: TopicPartition | None
    ) -> Iterator[Row]:
        first = self._wanted.offset or 0
        data = read_whole(file, _INDEX_LIMIT_BYTES)
        if part is Part.CONSUME_QUEUE:
            return consume_queue_rows(data, name, file.path, file.start, first)
        if part is Part.EXTENSION:
            return extension_rows(data, name, file.path, file.start)
        index = "batchconsumequeue" if part is Part.BATCH_QUEUE else "compaction"
        return batch_unit_rows(data, name, file.path, index, first)

    def _key_rows(self, file: MappedFile) -> Iterator[Row]:
        """The entries of a file of key hashes, as they were written."""
        index = IndexFile.of(map_whole(file))
        base = INDEX_HEADER.size + 4 * index.slots
        size = ENTRY_DTYPE.itemsize
        for begin in range(1, index.header.count, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, index.header.count - begin)
            at = base + size * begin
            some = np.frombuffer(bytes(index.data[at : at + size * count]), ENTRY_DTYPE)
            for n, (hash_, address, seconds, previous) in enumerate(some.tolist(), begin):
                yield {
                    "index": "index",
                    "entry": n,
                    "slot": hash_ % index.slots,
                    "hash": hash_,
                    "physical_offset": address,
                    "seconds": seconds,
                    "store_timestamp": index.header.first_store_time_ms + 1000 * seconds,
                    "previous": previous,
                    "file": file.path,
                    "position": base + size * n,
                }

    def _guarded(self, rows: Iterator[Row], path: str) -> Iterator[Row]:
        try:
            yield from rows
        except LogError as error:
            self.note(problem_of(error, path))

    def _note_all(self, log: MappedLog) -> None:
        for problem in log.problems:
            self.note(problem)

    # ------------------------------------------------------------------ single files

    def _file_rows(self, place: StorePlace) -> Iterator[Row]:
        kind = place.file
        if kind is FileKind.INDEX:
            log = read_one_file(place.path)
            return chain.from_iterable(
                self._guarded(self._key_rows(file), file.path) for file in log.files
            )
        if kind in _PART_OF:
            return self._index_log(read_one_file(place.path), _PART_OF[kind], place.name)
        return self._guarded(side_rows(place), place.path)

    def _config(self) -> Iterator[Row]:
        for name in (names.TOPICS, names.CONSUMER_OFFSETS):
            path = os.path.join(self._place.path, name)
            if os.path.isfile(path):
                yield from self._file_rows(find_place(path))


def side_rows(place: StorePlace) -> Iterator[Row]:
    """The entries of a small file.

    Raises:
        CorruptLog: it is none of what its name says.
    """
    data = read_small(place.path)
    if place.file is FileKind.CHECKPOINT:
        found = sides.decode_checkpoint(data)
        yield {
            "commit_log_timestamp": found.commit_log_time_ms,
            "consume_queue_timestamp": found.consume_queue_time_ms,
            "index_timestamp": found.index_time_ms,
            "master_flushed_offset": found.master_flushed_offset,
            "confirm_offset": found.confirm_offset,
            "consume_queue_offset": found.consume_queue_offset,
            "recovery_timestamp": found.recovery_time_ms,
        }
    elif place.file is FileKind.ABORT:
        yield {"abort": True, "process": sides.decode_abort(data)}
    elif place.file is FileKind.LOCK:
        yield {"lock": data[:64].decode("utf-8", "backslashreplace")}
    elif place.file is FileKind.TOPICS:
        for topic in sides.decode_topics(data).values():
            yield {
                "topic": topic.name,
                "read_queues": topic.read_queues,
                "write_queues": topic.write_queues,
                "perm": topic.perm,
                "order": topic.is_ordered,
                "filter_type": topic.filter_type,
                "sys_flag": topic.system_flag,
                "attributes": topic.attributes,
            }
    elif place.file is FileKind.CONSUMER_OFFSETS:
        for (topic_name, group), offsets in sides.decode_consumer_offsets(data).items():
            for queue, offset in offsets.items():
                yield {"topic": topic_name, "group": group, "queue_id": queue, "offset": offset}
    elif place.file is FileKind.POSITIONS:
        for name, position in sides.decode_positions(data).items():
            topic_name, _, queue_text = name.rpartition("_")
            queue_number = names.parse_queue_name(queue_text)
            if queue_number is None:
                raise CorruptLog(f"position of {name!r}, which names no queue", path=place.path)
            yield {"topic": topic_name, "queue_id": queue_number, "position": position}
    else:
        try:
            yield {"file": os.path.basename(place.path), "content": json.loads(data)}
        except (ValueError, RecursionError) as error:
            raise CorruptLog(f"no JSON: {error}", path=place.path) from None


def _decoded(row: Row) -> Row:
    """The body as text where it is text."""
    try:
        return {
            "body": None if row["body"] is None else base64.b64decode(row["body"]).decode("utf-8")
        }
    except UnicodeDecodeError:
        return {"body": None}
