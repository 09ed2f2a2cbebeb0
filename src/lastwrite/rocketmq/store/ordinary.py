"""What a queue's consume queue and the commit log say of messages that its compaction log ought to
have.
"""

from __future__ import annotations

from contextlib import suppress

from lastwrite.errors import CorruptLog, LogError
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.record import decode_message
from lastwrite.rocketmq.reports import QueueKind
from lastwrite.rocketmq.store import dispatched, reading
from lastwrite.rocketmq.store.reading import Part
from lastwrite.rocketmq.store.topics import read_topics

_MOST_LOOKED_AT = 1000  # messages of a gap that may all be without a key
_LARGEST_RECORD_BYTES = 256 << 20


def keyed_between(root: str, name: TopicPartition, first: int, end: int) -> int | None:
    """The first queue offset from ``first`` to before ``end`` whose record, in the commit log, has
    a key.

    None: there is none among the first thousand, or they are not in the commit log any more.

    Raises:
        LogError: a file cannot be read.
    """
    if first >= end:
        return None
    queue = reading.read_queue(root, Part.CONSUME_QUEUE, name)
    if not queue.files:
        return None
    with reading.LogReader(reading.read_commit_log(root)) as log:
        for number in range(max(first, 0), min(end, first + _MOST_LOOKED_AT)):
            address = dispatched.address_of(queue, number)
            size = int.from_bytes(log.read(address, 4), "big") if address is not None else 0
            if address is None or not 0 < size <= _LARGEST_RECORD_BYTES:
                continue
            with suppress(LogError):
                found = decode_message(log.read(address, size), 0, size)
                place = found.topic, found.queue_id, found.queue_offset
                if place == (name.topic, name.partition, number) and found.keys is not None:
                    return number
    return None


def next_offset(root: str, name: TopicPartition) -> int:
    """Of the next message in the queue's ordinary consume queue; -1: nothing tells.

    Raises:
        LogError: a file cannot be read.
    """
    try:
        queue = reading.read_queue(root, Part.CONSUME_QUEUE, name)
        return dispatched.read_queue_state(queue, QueueKind.ORDINARY).next_number
    except CorruptLog:
        return -1


def is_compacted(root: str, topic: str) -> bool:
    """Whether a broker keeps a compaction log of the topic, as far as is known."""
    try:
        known = read_topics(root).get(topic)
    except LogError:
        return False
    return known is not None and known.is_compacted
