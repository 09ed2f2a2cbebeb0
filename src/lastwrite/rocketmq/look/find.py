"""Finds messages in a RocketMQ store by queue offset, address, key, message id or time.

A lookup uses the same files as a broker: a consume queue for offsets and times, an index file for
keys, and the commit log for message ids, which contain the address. An index entry is used only if
its record matches. If an index is missing, ends early or does not match the log, the commit log is
searched instead, and ``say`` is called.

A consume queue has no units for records that a broker had not dispatched when it was killed. So the
commit log after the queue's last message is searched too.

Source: RocketMQ 5.5.0 ``ConsumeQueue``, ``BatchConsumeQueue``, ``IndexFile.selectPhyOffset``,
``MQAdminImpl.viewMessage``; docs/formats/rocketmq.md; docs/formats/rocketmq-compaction.md, "A
pull".
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import numpy as np

from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.reports.table import BODY_LIMIT_BYTES
from lastwrite.rocketmq.format import kernels, names, properties, record, units
from lastwrite.rocketmq.format.index_file import IndexFile
from lastwrite.rocketmq.format.java_hash import index_hash
from lastwrite.rocketmq.format.record import RocketmqMessage, decode_message
from lastwrite.rocketmq.look.walk import RECORD_LIMIT_BYTES, LogWalk
from lastwrite.rocketmq.store import layouts
from lastwrite.rocketmq.store.live_files import (
    Pairs,
    check_marks,
    marks,
    read_pairs,
    up_to_dispatched,
)
from lastwrite.rocketmq.store.missing import missing_files
from lastwrite.rocketmq.store.reading import (
    INDEX_LIMIT_BYTES,
    LogReader,
    MappedFile,
    MappedLog,
    StoreFolder,
    commit_log_folders,
    list_queues,
    log_of_one,
    map_file,
    read_commit_log,
    read_file,
    read_index_files,
    read_queue,
)
from lastwrite.rocketmq.store.topics import topics_or_none
from lastwrite.storage.problems import damaged
from lastwrite.storage.reading import TRIES, one_try

# Values of ``found_by``.
BY_ADDRESS = "address"
BY_QUEUE = "consume queue"
BY_BATCH_QUEUE = "batch consume queue"
BY_INDEX = "index file"
BY_COMPACTION_INDEX = "compaction index"
BY_SCAN = "commit log (no index)"
BY_COMPACTION_SCAN = "compaction log (no index)"

_QUEUES = (StoreFolder.CONSUME_QUEUE, StoreFolder.BATCH_QUEUE)


class MessageMatch(NamedTuple):
    """A found record: its file, its position, and how it was found."""

    message: RocketmqMessage
    file: str
    position: int
    found_by: str
    is_commit_log: bool = True


class _Unit(NamedTuple):
    """A unit of a consume queue or a batch consume queue."""

    offset: int
    address: int
    size: int
    number: int
    file: str
    position: int
    found_by: str

    @classmethod
    def of(cls, table: units.Units, row: int, file: MappedFile, place: int = 0) -> _Unit:
        """The unit in row ``row`` of ``table``. The table begins at unit ``place`` of the file."""
        is_batch = table.dtype == units.BATCH_DTYPE
        unit_bytes = table.dtype.itemsize
        at = (place + row) * unit_bytes
        first, last = units.offsets_of(table, row, file.start + place * unit_bytes)
        address, size = int(table["physical_offset"][row]), int(table["size"][row])
        by = BY_BATCH_QUEUE if is_batch else BY_QUEUE
        return cls(first, address, size, last - first + 1, file.path, at, by)

    @property
    def is_filler(self) -> bool:
        return self.size == units.FILLER_SIZE

    @property
    def end(self) -> int:
        """The address after the unit's record."""
        return self.address + self.size


class _Contradiction(Exception):
    """Raised with a reason if the index does not match the log. Caught in this module."""


def dispatches_of(message: RocketmqMessage) -> list[tuple[str, int, int]]:
    """The queues that have a unit of a record: topic, queue and offset.

    The record's own queue is the first; its light queues follow.
    """
    found = [(message.topic, message.queue_id, message.queue_offset)]
    if names.dispatches_to_light_queues(message.topic):
        found += properties.light_queues(message.properties, message.queue_id)
    return found


class StoreFinder:
    """Finds messages in one store, or in one log file without a store (``log``).

    ``note`` is called with damage, ``say`` with a text if messages are not found the way
    a broker finds them.
    """

    def __init__(
        self,
        root: str | None,
        config: Mapping[str, object] | None,
        note: Callable[[Problem], None],
        say: Callable[[str], None],
        log: MappedLog | None = None,
    ) -> None:
        self._root = root
        self._note = note
        self._printed: set[str] = set()
        self._print = say
        is_whole = log is None
        if log is None:
            log = up_to_dispatched(
                root, lambda: read_commit_log(root, config) if root else MappedLog()
            )
        self.log = log
        self.place = ", ".join(commit_log_folders(root, config)) if root is not None else "the log"
        missing = missing_files(root if is_whole else None, log, self.place)
        for problem in chain(log.problems, missing):
            note(problem)
        for problem in () if root is None else layouts.unsupported(root):
            say(str(problem))
        self._reader = LogReader(log)

    def close(self) -> None:
        self._reader.close()

    def note(self, text: str) -> None:
        """Print a text if it was not printed before."""
        if text not in self._printed:
            self._printed.add(text)
            self._print(text)

    # ------------------------------------------------------------------ addresses

    def read(self, address: int, size: int | None = None) -> RocketmqMessage:
        """The record that begins at ``address``.

        Raises:
            CorruptLog: no record begins there, its size is not ``size``, or it stores another
                address.
        """
        if size is None:
            size = int.from_bytes(self._reader.read(address, 4), "big", signed=True)
        if not 0 < size <= RECORD_LIMIT_BYTES:
            raise CorruptLog(f"no record begins at physical offset {address}")
        data = self._reader.read(address, size)
        message = decode_message(data, 0, len(data))
        if message.size != size:
            raise CorruptLog(
                f"the record at physical offset {address} has {message.size} bytes, not {size}"
            )
        if message.physical_offset != address:
            raise CorruptLog(
                f"the record at physical offset {address} contains the physical offset "
                f"{message.physical_offset}"
            )
        return message

    def found(self, message: RocketmqMessage, address: int, by: str) -> MessageMatch:
        file = self.log.find(address)
        assert file is not None  # the message was read from a file of this log
        return MessageMatch(message, file.path, address - file.start, by)

    def at_address(self, address: int) -> Iterator[MessageMatch]:
        """The record that begins at ``address``, else the record with the byte at this address."""
        file = self.log.find(address)
        if file is None:
            self.note(
                f"no file of {self.place} contains physical offset {address}: {self._bounds()}"
            )
            return
        try:
            yield self.found(self.read(address), address, BY_ADDRESS)
            return
        except LogError:
            pass
        for _, position, message in self._walk().records(file.start, file.end):
            if file.start + position <= address < file.start + position + message.size:
                self.note(
                    f"no record begins at physical offset {address}: it is byte "
                    f"{address - file.start - position} of the record at physical offset "
                    f"{file.start + position}"
                )
                yield MessageMatch(message, file.path, position, BY_SCAN)
                return
        self.note(f"{file.path}: no record at physical offset {address}")

    def by_message_id(self, text: str, topic: str | None) -> Iterator[MessageMatch]:
        """The record with the offset message id ``text``, else the records with this unique key.

        Raises:
            InvalidConfig: the text is neither an offset message id nor a unique key.
        """
        try:
            host, address = record.parse_message_id(text)
        except InvalidConfig:
            if len(text) != 32:  # a unique key usually has 32 characters
                raise
            host, address = None, -1
        if host is not None and self.log.find(address) is not None:
            try:
                message = self.read(address)
            except LogError as error:
                self.note(
                    f"message id {text} contains physical offset {address}, but {error.problem}"
                )
            else:
                if message.store_host != host:
                    self.note(
                        f"message id {text} names the store host {host}, but the record was "
                        f"stored by {message.store_host}"
                    )
                yield self.found(message, address, BY_ADDRESS)
                return
        before = len(self._printed)
        by_key = self.by_key(text, topic, is_unique=True)
        first = next(by_key, None)
        if first is not None:
            self.note(
                f"no message at the physical offset in {text}; Lastwrite searched for it as a "
                "unique key"
            )
            yield first
            yield from by_key
        elif len(self._printed) == before:
            self.note(f"no message has the message id or unique key {text}")

    def _bounds(self) -> str:
        if not self.log.files:
            return "the log has no file"
        return f"the log has {self.log.start} to {self.log.end - 1}"

    def _walk(self) -> LogWalk:
        return LogWalk(self.log, self._note)

    # ------------------------------------------------------------------ queues

    def queues(self, topic: str | None = None, queue: int | None = None) -> list[TopicPartition]:
        """The queues with a folder in the store, filtered by topic and queue; sorted."""
        if self._root is None:
            return []
        found = {
            name
            for part in (
                StoreFolder.CONSUME_QUEUE,
                StoreFolder.BATCH_QUEUE,
                StoreFolder.COMPACTION_LOG,
            )
            for name in list_queues(self._root, part)
            if topic in (None, name.topic) and queue in (None, name.partition)
        }
        return sorted(found)

    def queues_in_log(self, topic: str | None, queue: int | None) -> list[TopicPartition]:
        """The queues with records in the commit log, which is read completely."""
        found: set[TopicPartition] = set()
        for chunk in self._walk().chunks():
            for name, _ in chunk.by_queue():
                if topic in (None, name.topic) and queue in (None, name.partition):
                    found.add(name)
        return sorted(found)

    def queue(self, name: TopicPartition, first: int = 0) -> Iterator[MessageMatch]:
        """The records of a queue from queue offset ``first`` on, found with the consume queue.

        Offsets that are missing between units or after the last unit are searched in the commit
        log.
        """
        next_offset, reached = first, self.log.start
        any_unit = False
        for unit in self._units(name, first):
            if self._is_expired(unit) and reached == self.log.start:  # no record was found yet
                self.note(
                    f"the consume queue of {name} begins with messages that the commit log no "
                    f"longer has; the commit log begins at physical offset {self.log.start}"
                )
                any_unit = True
                continue
            try:
                message = self._believed(unit, name, next_offset)
            except _Contradiction as wrong:
                self.note(
                    f"{unit.file}, byte {unit.position}: the unit of queue offset {unit.offset} "
                    f"is wrong ({wrong}): the index of {name} was rebuilt in memory from the "
                    "commit log"
                )
                yield from self._named_missing(
                    name, self._scan(name, next_offset, reached), next_offset
                )
                return
            if unit.offset > next_offset:
                for found in self._scan(name, next_offset, reached, unit.address):
                    self.note(
                        f"the {unit.found_by} of {name} has no unit for queue offset "
                        f"{found.message.queue_offset}; the message was found in the commit log"
                    )
                    yield found
            any_unit = True
            next_offset, reached = unit.offset + unit.number, unit.end
            yield self.found(message, unit.address, unit.found_by)
        last = None if any_unit else self._last_unit(name)
        if last is not None:  # all units of the queue are below the requested offset
            any_unit = True
            with suppress(_Contradiction):
                self._believed(last, name, 0)
                reached = last.end
        rest = self._scan(name, next_offset, reached)
        head = next(rest, None)
        if head is None:
            return
        if self._root is not None:
            self.note(
                f"the consume queue of {name} ends before queue offset "
                f"{head.message.queue_offset}; later messages were found in the commit log"
                if any_unit
                else f"{name} has no consume queue; its index was rebuilt in memory from the "
                "commit log"
            )
        yield head
        yield from rest

    def _named_missing(
        self, name: TopicPartition, found: Iterator[MessageMatch], next_offset: int
    ) -> Iterator[MessageMatch]:
        """Yield the records ``found`` of a queue, from offset ``next_offset`` on.

        Adds a problem for records that have a unit but are missing.
        """
        last = self._last_unit(name)
        end = next_offset if last is None else last.offset + last.number
        for one in found:
            offset = one.message.queue_offset
            if one.message.topic == name.topic:
                self._note_missing(name, next_offset, min(offset, end))
                next_offset = max(next_offset, offset + _messages(one.message))
            yield one
        self._note_missing(name, next_offset, end)

    def _note_missing(self, name: TopicPartition, first: int, end: int) -> None:
        if first < end:
            wrong = (
                f"the commit log lacks the messages of queue offsets {first} to {end - 1} of {name}"
            )
            self._note(damaged(f"{wrong}, but the consume queue has units for them", self.place))

    def _is_expired(self, unit: _Unit) -> bool:
        return 0 <= unit.address < self.log.start

    def _believed(self, unit: _Unit, name: TopicPartition, at_least: int) -> RocketmqMessage:
        if unit.offset + unit.number <= at_least:
            raise _Contradiction(
                f"its queue offset is {unit.offset}, but {at_least} or more is expected"
            )
        try:
            message = self.read(unit.address, unit.size)
        except LogError as error:
            raise _Contradiction(error.problem) from error
        if (name.topic, name.partition, unit.offset) not in dispatches_of(message):
            if not message.is_inner_batch or (message.topic, message.queue_id) != (
                name.topic,
                name.partition,
            ):
                raise _Contradiction(
                    f"it points to queue offset {message.queue_offset} of "
                    f"{message.topic}-{message.queue_id}"
                )
        return message

    def _units(self, name: TopicPartition, first: int) -> Iterator[_Unit]:
        """The units of a queue from queue offset ``first`` on, without fillers."""
        size = units.CONSUME_QUEUE_UNIT.size
        for part in _QUEUES:
            log = self._files(part, name)
            for problem in log.problems:
                self._note(problem)
            for gap in log.gaps:  # only a note: the commit log is searched for these messages
                self.note(str(gap))
            for file in log.files:
                if part is StoreFolder.CONSUME_QUEUE and file.end <= first * size:
                    continue
                table, count = self._valid_units(file, part)
                if part is StoreFolder.BATCH_QUEUE:
                    begin = units.find_offset(table, first, count)
                else:
                    begin = max(first - file.start // size, 0)
                for row in range(begin, count):
                    unit = _Unit.of(table, row, file)
                    if not unit.is_filler or part is StoreFolder.BATCH_QUEUE:
                        yield unit
                is_short = count < len(table) and self.log.bound is None
                if part is StoreFolder.CONSUME_QUEUE and is_short and not log.is_last(file):
                    # The file ends early, so units may be missing before the next file. An invalid
                    # unit stands for the missing units.
                    yield _Unit.of(table, count, file)._replace(address=-1, size=0)

    def _files(self, part: StoreFolder, name: TopicPartition) -> MappedLog:
        return read_queue(self._root, part, name) if self._root is not None else MappedLog()

    def _valid_units(self, file: MappedFile, part: StoreFolder) -> tuple[units.Units, int]:
        """The units of an index file, and the number of leading units that may be used.

        The count ends at an invalid unit, or at a unit whose record begins at or after the bound of
        the log.
        """
        table, count = _valid_units(file, part)
        if self.log.bound is not None:
            count = units.lower_bound(table["physical_offset"], self.log.bound, count)
        return table, count

    def _last_unit(self, name: TopicPartition) -> _Unit | None:
        """The last valid unit of the queue. Returns None if the queue has no valid unit."""
        for part in _QUEUES:
            for file in reversed(self._files(part, name).files):
                table, count = self._valid_units(file, part)
                if count:
                    return _Unit.of(table, count - 1, file)
        return None

    def _scan(
        self, name: TopicPartition, first: int, start: int = 0, end: int | None = None
    ) -> Iterator[MessageMatch]:
        """The records of a queue with queue offset ``first`` or higher, in commit log order."""
        if end is not None and end <= self.log.start:
            return
        for chunk in self._walk().chunks(start, end):
            table = chunk.table
            picked = (table["queue_id"] == name.partition) & (table["queue_offset"] >= first)
            picked &= chunk.is_dispatched(slice(None)) & chunk.has_topic(name.topic)
            # Select inner batches and multi-dispatched records too: a batch may begin below
            # ``first``, and only the properties name a record's further queues.
            picked |= (table["marks"] & (kernels.HAS_MULTI_DISPATCH | kernels.HAS_INNER)) != 0
            for row in np.flatnonzero(picked).tolist():
                message = chunk.message(row)
                if any(
                    (topic, queue) == (name.topic, name.partition)
                    and offset + _messages(message) > first
                    for topic, queue, offset in dispatches_of(message)
                ):
                    yield MessageMatch(message, chunk.file.path, chunk.position(row), BY_SCAN)

    def _first_late(
        self, name: TopicPartition, time_ms: int, first: int, start: int = 0, end: int | None = None
    ) -> int | None:
        """The queue offset of the first message stored at ``time_ms`` or later in a log range.

        Searches the commit log from ``start`` to before ``end``. None if there is no such message.
        """
        late = (
            found.message.queue_offset
            for found in self._scan(name, first, start, end)
            if found.message.store_time_ms >= time_ms
        )
        return next(late, None)

    # ------------------------------------------------------------------ keys

    def by_key(
        self, key: str, topic: str | None = None, is_unique: bool = False
    ) -> Iterator[MessageMatch]:
        """The records of ``topic`` with the key, in commit log order. None means all topics.

        With ``is_unique`` only the client's unique key is compared, otherwise the application's
        keys too.
        """
        answer = self._addresses(key, topic, is_unique)
        if answer is None:
            yield from self._scan_key(key, topic, is_unique)
            return
        addresses, missing = answer
        found = [self.found(self.read(address), address, BY_INDEX) for address in addresses]
        rest = [
            other
            for start, end in missing
            for other in self._scan_key(key, topic, is_unique, start, end)
            if other.message.physical_offset not in addresses
        ]
        if rest:
            self.note(
                "the index files do not cover the whole commit log; Lastwrite searched the "
                "rest of the commit log"
            )
        elif not found:
            rest = list(self._scan_key(key, topic, is_unique))
            if rest:
                self.note(
                    f"no index file has the key {key!r}; the index was rebuilt in memory from the "
                    "commit log"
                )
        if self._root is not None and list_queues(self._root, StoreFolder.BATCH_QUEUE):
            # Search inner batches too, because a broker does not index the messages in them.
            known = {each.message.physical_offset for each in (*found, *rest)}
            rest += [
                each
                for each in self._scan_key(key, topic, is_unique, only_inner=True)
                if each.message.physical_offset not in known
            ]
        yield from sorted(found + rest, key=lambda one: one.message.physical_offset)

    def _addresses(
        self, key: str, topic: str | None, is_unique: bool
    ) -> tuple[set[int], list[tuple[int, int | None]]] | None:
        """Addresses of the records with the key, and address ranges that no index file covers.

        Returns None if the index files cannot be used.
        """
        files = read_index_files(self._root) if self._root is not None else MappedLog()
        for problem in files.problems:
            self._note(problem)
        if not files.files:
            if self._root is not None:
                self.note(
                    "the store has no index file; the index was rebuilt in memory from the "
                    "commit log"
                )
            return None
        if topic is not None:
            topics = {topic}
        else:  # all topics that have a folder or settings
            topics = {name.topic for name in self.queues()}
            topics.update(topics_or_none(self._root, self._note))
        parts = [key] if " " not in key else [part for part in key.split(" ") if part][:1]
        found: set[int] = set()
        missing: list[tuple[int, int | None]] = []
        reached = 0
        for file in files.files:
            try:
                index = IndexFile.of(map_file(file))
                for topic_ in sorted(topics):
                    for part in parts:
                        for address in index.addresses(topic_, part):
                            is_read = self.log.bound is None or address < self.log.bound
                            if (
                                address >= self.log.start
                                and is_read
                                and self._has(address, topic_, part, key, is_unique)
                            ):
                                found.add(address)
            except (LogError, _Contradiction) as error:
                said = error.problem if isinstance(error, LogError) else str(error)
                self.note(
                    f"{file.path} is wrong ({said}); the index was rebuilt in memory from the "
                    "commit log"
                )
                return None
            header = index.header
            if header.count > 1:
                if header.first_physical_offset > reached:
                    missing.append((reached, header.first_physical_offset))
                reached = max(reached, header.last_physical_offset)
        missing.append((reached, None))
        return found, [part for part in missing if part[1] is None or part[1] > self.log.start]

    def _has(self, address: int, topic: str, part: str, key: str, is_unique: bool) -> bool:
        """Whether the record at ``address`` has the key.

        Returns False if another key of the record has the same hash.

        Raises:
            _Contradiction: no record begins there, or none of its keys has this hash.
        """
        try:
            message = self.read(address)
        except LogError as error:
            raise _Contradiction(error.problem) from error
        wanted = index_hash(topic, part)
        keys = [*message.properties.get(properties.KEYS, "").split(" "), message.unique_key or ""]
        if message.tags:
            keys.append(f"T#{message.tags}")  # 5.5.0 also indexes the tag
        if not any(one and index_hash(message.topic, one) == wanted for one in keys):
            raise _Contradiction(
                f"its entry for {part!r} points to physical offset {address}, but that record "
                "does not have the key"
            )
        return message.topic == topic and has_key(message, key, is_unique)

    def _scan_key(
        self,
        key: str,
        topic: str | None,
        is_unique: bool,
        start: int = 0,
        end: int | None = None,
        only_inner: bool = False,
    ) -> Iterator[MessageMatch]:
        """The records with the key, and inner batches with a message that has it."""
        wanted = key.encode("utf-8", "surrogateescape")
        for chunk in self._walk().chunks(start, end):
            inner = np.flatnonzero(chunk.is_inner_batch(slice(None))).tolist()
            for row in inner if only_inner else sorted({*chunk.rows_with(wanted), *inner}):
                message = chunk.message(row)
                if topic in (None, message.topic) and any(
                    has_key(each, key, is_unique) for each in _with_members(message)
                ):
                    yield MessageMatch(message, chunk.file.path, chunk.position(row), BY_SCAN)

    # ------------------------------------------------------------------ times

    def address_at(self, time_ms: int) -> int | None:
        """The address of the first record stored at ``time_ms`` or later.

        Store times never decrease.
        """
        files = [file for file in self.log.files if self._first_time(file) is not None]
        times = [self._first_time(file) or 0 for file in files]
        n = max(bisect_left(times, time_ms) - 1, 0)
        start = files[n].start if files else 0
        for chunk in self._walk().chunks(start):
            late = chunk.table["store_time"] >= time_ms
            if late.any():
                return chunk.file.start + chunk.position(int(np.argmax(late)))
        return None

    def _first_time(self, file: MappedFile) -> int | None:
        try:
            return self.read(file.start).store_time_ms
        except LogError:
            return None

    def offset_at(self, name: TopicPartition, time_ms: int) -> int | None:
        """The queue offset of the first message stored at ``time_ms`` or later.

        The search uses the consume queue. Returns None if there is no such message.
        """
        try:
            return self._search_time(name, time_ms)
        except _Contradiction as wrong:
            self.note(
                f"the consume queue of {name} cannot be searched by time ({wrong}); its index "
                "was rebuilt in memory from the commit log"
            )
        return self._first_late(name, time_ms, 0)

    def _search_time(self, name: TopicPartition, time_ms: int) -> int | None:
        """Search the queue's units by bisection; see ``offset_at``."""
        part = next((part for part in _QUEUES if self._files(part, name).files), None)
        if part is None:
            raise _Contradiction("the queue has no file")
        log = self._files(part, name)
        dtype = units.queue_units(b"", is_batch=part is StoreFolder.BATCH_QUEUE).dtype
        firsts = [0]  # the number of each file's first unit
        for file in log.files:
            firsts.append(firsts[-1] + file.size_bytes // dtype.itemsize)
        total = firsts[-2] + self._valid_units(log.files[-1], part)[1]
        with LogReader(log) as reader:

            def unit_at(number: int) -> _Unit:
                n = bisect_right(firsts, number) - 1
                file, place = log.files[n], number - firsts[n]
                data = reader.read(file.start + place * dtype.itemsize, dtype.itemsize)
                if len(data) < dtype.itemsize:
                    raise _Contradiction("a unit cannot be read")
                return _Unit.of(np.frombuffer(data, dtype), 0, file, place)

            def is_late(number: int) -> bool:
                unit = unit_at(number)
                if unit.is_filler or (unit.size > 0 and self._is_expired(unit)):
                    return False
                return self._believed(unit, name, 0).store_time_ms >= time_ms

            found = bisect_left(range(total), True, key=is_late)
            if found < total:
                before = unit_at(found - 1) if found else None
                return self._earlier(name, time_ms, before, unit_at(found))
            last = unit_at(total - 1) if total else None
        reached = 0 if last is None or last.is_filler or self._is_expired(last) else last.end
        return self._first_late(name, time_ms, 0, reached)

    def _earlier(
        self, name: TopicPartition, time_ms: int, before: _Unit | None, unit: _Unit
    ) -> int:
        """The queue offset of the first message stored at ``time_ms`` or later.

        This is the message of ``unit``, or a message in the gap between ``before`` and ``unit``.
        """
        ahead = 0 if before is None else before.offset + before.number
        found = None
        if unit.offset > ahead:
            start = self.log.start
            if before is not None and before.address >= start and not before.is_filler:
                start = before.end
            found = self._first_late(name, time_ms, ahead, start, unit.address)
        return unit.offset if found is None else found

    # ------------------------------------------------------------------ compaction logs

    def compacted(
        self, name: TopicPartition, first: int = 0, only: str | None = None
    ) -> Iterator[MessageMatch]:
        """The records of a queue's compaction log from queue offset ``first`` on.

        The search uses the log's index. ``only`` restricts the result to one file. Stale records
        that have no unit are not returned.
        """
        assert self._root is not None
        for tries in range(1, TRIES + 1):
            pairs = read_pairs(self._root, name)
            with one_try(tries, is_open=pairs.is_open):
                for found in self._of_pairs(pairs, name, first, only):
                    yield found
                    first = found.message.queue_offset + 1
                return

    def _of_pairs(
        self, listed: Pairs, name: TopicPartition, first: int, only: str | None
    ) -> Iterator[MessageMatch]:
        """The records of ``compacted``, read from one listing of the queue's files.

        Raises:
            CommitConflict: a broker has replaced the files.
        """
        log, index = listed.logs, listed.indexes
        known = marks(log, index)
        for problem in chain(log.problems, index.problems):
            self._note(problem)
        pairs = {file.start: file for file in index.files}
        for lonely in sorted(pairs.keys() - set(log.starts)):
            lonely_index = "the index file has no log file of the same name"
            remedy = f"do not start a broker on the store, because it fails; {names.RESTORE_QUEUE}"
            self._note(damaged(lonely_index, pairs[lonely].path, None, remedy))
        next_offset = first
        with LogReader(log) as reader:
            for file in log.files:
                base = os.path.basename(file.path)
                if only is not None and base != os.path.basename(only):
                    continue
                pair = pairs.get(file.start)
                try:
                    for found in self._indexed(file, pair, reader, next_offset):
                        next_offset = found.message.queue_offset + 1
                        yield found
                except (_Contradiction, LogError) as wrong:
                    if listed.is_open:
                        check_marks(known)
                    if isinstance(wrong, LogError):
                        raise
                    self.note(
                        f"{pair.path if pair else file.path}: {wrong}; the index of {base} of "
                        f"{name} was rebuilt in memory from the compaction log"
                    )
                    for found in self._framed(file, next_offset):
                        next_offset = found.message.queue_offset + 1
                        yield found

    def _indexed(
        self, file: MappedFile, pair: MappedFile | None, reader: LogReader, first: int
    ) -> Iterator[MessageMatch]:
        if pair is None:
            raise _Contradiction("the log file has no index file")
        table, count = _valid_units(pair, StoreFolder.COMPACTION_INDEX)
        for n in range(units.find_offset(table, first, count), count):
            address, size = int(table["physical_offset"][n]), int(table["size"][n])
            offset = int(table["base"][n])
            where = f"unit {n} (queue offset {offset}) is wrong"
            if not file.start <= address <= file.end - size:
                raise _Contradiction(f"{where}: its record would be in another file")
            if offset < first:
                raise _Contradiction(f"{where}: {first} or more is expected")
            data = reader.read(address, size)
            try:
                message = decode_message(data, 0, len(data))
            except LogError as error:
                raise _Contradiction(f"{where}: {error.problem}") from error
            if message.queue_offset != offset or message.size != size:
                raise _Contradiction(
                    f"{where}: it points to a record of queue offset {message.queue_offset} and "
                    f"{message.size} bytes"
                )
            first = offset + 1
            yield MessageMatch(message, file.path, address - file.start, BY_COMPACTION_INDEX, False)

    def _framed(self, file: MappedFile, first: int) -> Iterator[MessageMatch]:
        walk = LogWalk(log_of_one(file), self._note, is_compaction=True)
        for _, position, message in walk.records():
            if message.queue_offset >= first:
                first = message.queue_offset + 1
                yield MessageMatch(message, file.path, position, BY_COMPACTION_SCAN, False)


def has_key(message: RocketmqMessage, key: str, is_unique: bool = False) -> bool:
    """Whether the message has ``key`` as its unique key or among its application keys.

    With ``is_unique`` only the client's unique key is compared.
    """
    keys = message.properties.get(properties.KEYS, "")
    return key == message.unique_key or (not is_unique and is_one_of(keys, key))


def _with_members(message: RocketmqMessage) -> Iterator[RocketmqMessage]:
    """The message itself and, if it is a readable inner batch, the messages in it."""
    yield message
    if message.is_inner_batch:
        with suppress(LogError):
            yield from record.split_inner(message, BODY_LIMIT_BYTES)


def is_one_of(keys: str, key: str) -> bool:
    """Whether ``key`` is the whole property ``KEYS``, or one of its words."""
    return key == keys or key in keys.split(" ")


def _messages(message: RocketmqMessage) -> int:
    """The number of queue offsets that a record uses."""
    text = message.properties.get(properties.INNER_NUM, "")
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if message.is_inner_batch and is_number else 1


def _valid_units(file: MappedFile, part: StoreFolder) -> tuple[units.Units, int]:
    """The units of an index file, and the number of valid units."""
    data = read_file(file, INDEX_LIMIT_BYTES)
    table = units.queue_units(data, is_batch=part is not StoreFolder.CONSUME_QUEUE)
    return table, units.valid_count(table)
