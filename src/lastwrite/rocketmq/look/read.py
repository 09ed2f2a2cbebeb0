"""``read`` of a queue of a RocketMQ compaction topic: the messages that a consumer receives.

A consumer pulls at an offset, receives messages and the next offset, and pulls there, until the
broker has no more messages. ``read`` does the same with the files. Each step uses
``rocketmq.rules.pull.answer``, so offset gaps, ends of files and offsets outside the log have the
same effect as in a broker.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from lastwrite.errors import CorruptLog, InvalidConfig, NotALog
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.reports.table import Row
from lastwrite.rocketmq.format.names import RESTORE_QUEUE
from lastwrite.rocketmq.format.record import decode_message
from lastwrite.rocketmq.look.rows import message_rows
from lastwrite.rocketmq.rules.pull import MAX_MESSAGES, PullResult, PullStatus, answer, count_pulled
from lastwrite.rocketmq.store import lock
from lastwrite.rocketmq.store.compacted import CompactedQueue, FilesMoved, RecordBlock, first_damage
from lastwrite.rocketmq.store.place import find_place
from lastwrite.rocketmq.store.topics import compacted_queues, compacted_topics, read_topics

BY_INDEX = "compaction index"
BY_SCAN = "compaction log (no index)"


class QueueReading(Iterator[Row]):
    """The messages of a read, as dictionaries with the fields of ``dump``.

    The outcome is set after the last message.

    ``status`` and ``code`` describe the last answer: the broker's name and the response code.
    ``next_offset`` is the offset at which a consumer continues. ``notes`` states where the
    files differ from a broker's files, and how the read handled each difference.
    """

    def __init__(
        self, queue: CompactedQueue, exists: bool, offset: int, limit: int | None, one_pull: bool
    ) -> None:
        self._queue = queue
        self._exists = exists
        self._limit = limit
        self._one_pull = one_pull
        self._found = 0
        self._problem: CorruptLog | None = None
        self.offset = self.next_offset = self._requested = offset
        self.min_offset = self.max_offset = 0
        self.status: PullStatus | None = None
        self._rows = self._read()

    @property
    def notes(self) -> list[Problem]:
        return self._queue.notes

    @property
    def code(self) -> int | None:
        """The response code of the last answer. None before the last message was read."""
        return None if self.status is None else self.status.code(self._requested)

    def __next__(self) -> Row:
        row = next(self._rows)
        self._found += 1
        return row

    def summary(self) -> Row:
        """The outcome of the read as a dictionary. Field names are never changed."""
        return {
            "status": None if self.status is None else str(self.status),
            "code": self.code,
            "topic": self._queue.name.topic,
            "queue_id": self._queue.name.partition,
            "offset": self.offset,
            "next_offset": self.next_offset,
            "min_offset": self.min_offset,
            "max_offset": self.max_offset,
            "messages": self._found,
            "notes": msgspec.to_builtins(self.notes),
        }

    # ------------------------------------------------------------------ pulls

    def _read(self) -> Iterator[Row]:
        while True:
            try:
                said = self._answer(self.next_offset)
                if said.status is not PullStatus.FOUND:
                    self.status, self.next_offset = said.status, said.next_offset
                    break
                self.status = PullStatus.FOUND
                if not self._found_all:
                    yield from self._messages(said)
                if self._one_pull or self._found_all:
                    break
            except FilesMoved:
                self._queue.refresh()
        damage = self._problem or first_damage([self._queue])
        if damage is not None:
            raise damage

    @property
    def _found_all(self) -> bool:
        return self._limit is not None and self._found >= self._limit

    def _answer(self, offset: int) -> PullResult:
        self._requested = offset
        files = self._queue.ranges if self._exists else None
        said = answer(offset, files)
        self.min_offset, self.max_offset = said.min_offset, said.max_offset
        return said

    def _messages(self, result: PullResult) -> Iterator[Row]:
        """The messages of one answer, or all messages up to the end of the answer's file."""
        assert result.file is not None
        end = self._end_of(result.file) if self._one_pull else None
        for block in self._queue.blocks_of(result.file, self.next_offset, check_crc=False):
            for number in range(len(block.table)):
                offset = int(block.table["queue_offset"][number])
                if self._found_all:
                    return
                if end is not None and offset >= end:
                    self.next_offset = end
                    return
                yield from self._rows_of(block, number)
                self.next_offset = offset + 1
        held = self._queue.range_of(result.file)  # a wrong index was rebuilt meanwhile
        if held is not None:  # damaged messages at the end were skipped
            self.next_offset = max(self.next_offset, held.last + 1)

    def _end_of(self, file: int) -> int:
        """The queue offset after the last message that one pull returns."""
        entries = self._queue.entries(file)
        at = int(np.searchsorted(entries.lasts, self.next_offset))
        most = MAX_MESSAGES if self._limit is None else min(self._limit, MAX_MESSAGES)
        count = count_pulled(entries.sizes[at : at + most].tolist(), most)
        return int(entries.lasts[at + count - 1]) + 1 if count else self.next_offset

    def _rows_of(self, block: RecordBlock, number: int) -> Iterator[Row]:
        begin = int(block.table["position"][number])
        end = begin + int(block.table["size"][number])
        message = decode_message(memoryview(block.buffer), begin, end)
        found_by = BY_SCAN if block.is_rebuilt else BY_INDEX
        position = begin + block.shift
        for row in message_rows(message, block.file.path, position, found_by, is_commit_log=False):
            if row["problem"] is not None and self._problem is None:
                self._problem = CorruptLog(
                    row["problem"],
                    position,
                    block.file.path,
                    RESTORE_QUEUE,
                )
            yield row


def read_queue(
    path: str, topic: str | None, queue: int | None, offset: int, limit: int | None, one_pull: bool
) -> QueueReading:
    """The messages of one queue. Takes the arguments of ``commands.read``.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first message.
    """
    if offset < 0:
        raise InvalidConfig(f"{offset} is not a queue offset", remedy="give an offset of 0 or more")
    root, name = queue_at(path, topic, queue)
    lock.reject_if_locked(root, [name])
    compacted = CompactedQueue(root, name)
    exists = compacted.exists or is_due(root, name)
    return QueueReading(compacted, exists, offset, limit, one_pull)


def store_at(path: str) -> tuple[str, str | None, int | None]:
    """The store that contains ``path``, and the topic and queue in the path.

    Raises:
        NotALog: the path is neither a store nor inside a store.
    """
    place = find_place(path)
    if place.root is None:
        raise NotALog(
            "the file is outside a RocketMQ store",
            path=path,
            remedy="give the store (the broker's storePathRootDir)",
        )
    return place.root, place.topic, place.queue


def queue_at(path: str, topic: str | None, queue: int | None) -> tuple[str, TopicPartition]:
    """The store at ``path`` and the requested queue.

    Raises:
        NotALog: no store is there, or it does not have the topic.
        InvalidConfig: several queues match, or the topic is not compacted.
    """
    root, its_topic, its_queue = store_at(path)
    if (
        its_topic is not None
        and topic not in (None, its_topic)
        or its_queue is not None
        and queue not in (None, its_queue)
    ):
        raise InvalidConfig(
            f"the path belongs to topic {its_topic}, queue {its_queue}, and --topic or --queue "
            "names another",
            path=path,
            remedy="leave out --topic and --queue",
        )
    topic = its_topic or topic
    queue = its_queue if queue is None else queue
    if topic is None:
        raise InvalidConfig(
            "no topic was given",
            path=path,
            remedy="give --topic; the store's compacted topics: "
            f"{_listed(compacted_topics(root)) or 'none is compacted'}",
        )
    check_compacted(root, topic)
    if queue is None:
        known = compacted_queues(root, topic)
        if len(known) != 1:
            raise InvalidConfig(
                f"topic {topic} has {len(known)} queues, and none was chosen",
                path=path,
                remedy=f"choose a queue with --queue: {_listed(known)}",
            )
        queue = known[0]
    return root, TopicPartition(topic, queue)


def check_compacted(root: str, topic: str) -> None:
    """Check that the topic has compaction logs or is configured to have them.

    Raises:
        NotALog: the topic does not exist.
        InvalidConfig: a broker serves the topic from the commit log.
    """
    if compacted_queues(root, topic):
        return
    known = read_topics(root)
    if topic not in known:
        raise NotALog(
            f"the store has no topic {topic}",
            path=root,
            remedy="choose one of the compacted topics: "
            f"{_listed(compacted_topics(root)) or 'none'}",
        )
    if not known[topic].is_compacted:
        raise InvalidConfig(
            f"topic {topic} is not compacted: a broker serves it from the commit log",
            path=root,
            remedy="to read the commit log, run lastwrite dump",
        )


def is_due(root: str, name: TopicPartition) -> bool:
    """Whether a broker would create the queue's compaction log.

    A broker checks this every 30 seconds.
    """
    topic = read_topics(root).get(name.topic)
    return topic is not None and topic.is_compacted and name.partition < topic.write_queues


def _listed(values: list[str] | list[int]) -> str:
    most = 20
    return ", ".join(map(str, values[:most])) + (", …" if len(values) > most else "")
