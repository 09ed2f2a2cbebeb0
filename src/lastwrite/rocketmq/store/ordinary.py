"""Find a queue's messages in its consume queue and commit log, to check its compaction log."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress

from lastwrite.errors import CorruptLog, LogError
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.record import RocketmqMessage, decode_message
from lastwrite.rocketmq.reports import QueueKind
from lastwrite.rocketmq.store import dispatched, reading
from lastwrite.rocketmq.store.reading import StoreFolder
from lastwrite.rocketmq.store.topics import read_topics

_MOST_LOOKED_AT = 1000  # largest number of messages of a gap that are read
_LARGEST_RECORD_BYTES = 256 << 20

_settings: Mapping[str, object] = {}


def use(settings: Mapping[str, object]) -> None:
    """Set the settings with which this process finds commit logs."""
    global _settings
    _settings = settings


class CommitLogMessages:
    """The messages of a queue by queue offset, read from the commit log."""

    def __init__(self, root: str, name: TopicPartition) -> None:
        self._name = name
        self._units = reading.LogReader(reading.read_queue(root, StoreFolder.CONSUME_QUEUE, name))
        self._log = reading.LogReader(reading.read_commit_log(root, _settings))

    @property
    def has_queue(self) -> bool:
        """Whether the consume queue exists."""
        return bool(self._units.log.files)

    def find(self, number: int) -> tuple[RocketmqMessage, bytes] | None:
        """The message at a queue offset, and its bytes.

        Returns None if the message is missing or unreadable.

        Raises:
            LogError: a file cannot be read.
        """
        address = dispatched.address_in(self._units, number)
        size = int.from_bytes(self._log.read(address, 4), "big") if address is not None else 0
        if address is None or not 0 < size <= _LARGEST_RECORD_BYTES:
            return None
        with suppress(LogError):
            data = self._log.read(address, size)
            found = decode_message(data, 0, size)
            place = found.topic, found.queue_id, found.queue_offset
            if place == (self._name.topic, self._name.partition, number):
                return found, data
        return None

    def close(self) -> None:
        self._units.close()
        self._log.close()


def keyed_between(root: str, name: TopicPartition, first: int, end: int) -> int | None:
    """The first queue offset in ``[first, end)`` whose record in the commit log has a key.

    Returns None if none of the first thousand records has a key or is in the commit log.

    Raises:
        LogError: a file cannot be read.
    """
    if first >= end:
        return None
    with closing(CommitLogMessages(root, name)) as messages:
        for number in range(max(first, 0), min(end, first + _MOST_LOOKED_AT)):
            found = messages.find(number) if messages.has_queue else None
            if found is not None and found[0].keys is not None:
                return number
    return None


def next_offset(root: str, name: TopicPartition) -> int:
    """The next offset that the queue's consume queue will assign. -1 if it is unknown.

    Raises:
        LogError: a file cannot be read.
    """
    try:
        queue = reading.read_queue(root, StoreFolder.CONSUME_QUEUE, name)
        return dispatched.read_queue_state(queue, QueueKind.ORDINARY).next_number
    except CorruptLog:
        return -1


def is_compacted(root: str, topic: str) -> bool:
    """Whether the broker compacts the topic, according to its settings. False if unknown."""
    try:
        known = read_topics(root).get(topic)
    except LogError:
        return False
    return known is not None and known.is_compacted
