"""A RocketMQ broker's answer to a pull of a compaction topic: status, next offset, and file.

The queue ``a@0 b@1 a@2`` is compacted to ``b@1 a@2``. Its minimum is 1 and its maximum, the offset
after the last message, is 3. A pull at 1 or 2 returns the message at that offset, and a pull at 0
returns the message at 1. A pull at 3 finds no message yet (*overflow one*). After a pull beyond 3
the client continues at the maximum, or at 0 if the minimum is 0 (*overflow badly*). No status means
"offset too small".

An answer contains records of one file only. A pair of files (log and index) without a valid unit is
harmless if it is the last pair. The search may end in any other such pair. The answer is then "no
message, continue at 0" (*found null*), at every retry. A log whose first pair has no valid unit has
the minimum 0 and returns this answer at offset 0.

These are the rules of the search through the files (``searchBcqByCacheEnable=false``). With the
cache, a restarted broker skips live messages.

Source: RocketMQ 5.5.0 ``CompactionLog.getMessage``, ``SparseConsumeQueue``, ``BatchConsumeQueue``,
``DefaultPullMessageResultHandler``; docs/formats/rocketmq-compaction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

# Default limits of the broker and of the stock client.
MAX_MESSAGES = 32  # the stock pull consumer's pullBatchSize
# maxTransferBytesOnMessageInMemory, maxTransferCountOnMessageInMemory
MEMORY_BYTES, MEMORY_MESSAGES = 262_144, 32
# maxTransferBytesOnMessageInDisk, maxTransferCountOnMessageInDisk
DISK_BYTES, DISK_MESSAGES = 65_536, 8
SMALLEST_MAX_BYTES, LARGEST_MAX_BYTES = 100, 128 << 20

# Response codes on the wire.
SUCCESS = 0
PULL_NOT_FOUND = 19
PULL_OFFSET_MOVED = 21


class PullStatus(StrEnum):
    """The broker's names for the outcomes of a pull."""

    FOUND = "FOUND"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"  # the queue has no compaction log
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"  # the reader has read all messages
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"  # the search ends in a file without a valid unit

    def code(self, offset: int) -> int:
        """The response code for a client that requested ``offset``."""
        if self is PullStatus.FOUND:
            return SUCCESS
        if self is PullStatus.OFFSET_OVERFLOW_BADLY:
            return PULL_OFFSET_MOVED
        is_empty = self in (PullStatus.NO_MATCHED_LOGIC_QUEUE, PullStatus.NO_MESSAGE_IN_QUEUE)
        if is_empty and offset != 0:
            return PULL_OFFSET_MOVED
        return PULL_NOT_FOUND


class FileOffsets(NamedTuple):
    """The first and last queue offset that one index file has."""

    first: int
    last: int


class ListedOffsets(Protocol):
    """The offset ranges of a queue's files, in order. None for a file without a valid unit."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> FileOffsets | None: ...


@dataclass(frozen=True, slots=True)
class PullResult:
    """A broker's answer.

    If the status is FOUND, ``next_offset`` is only the requested offset, because the real next
    offset depends on the number of messages in the answer. The messages begin in file ``file``, at
    the first offset that is at least the requested one.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    file: int | None = None  # index in the list of files


def answer(offset: int, files: ListedOffsets | None) -> PullResult:
    """A broker's answer to a pull at ``offset`` of a queue.

    ``files`` has the queue's files in order, or is None without a compaction log. The search reads
    few elements of ``files``, from the last to the first.
    """
    if files is None:
        return PullResult(PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    smallest, largest = _smallest(files), _largest(files)
    if largest == 0:
        return PullResult(PullStatus.NO_MESSAGE_IN_QUEUE, 0, smallest, largest)
    if offset == largest:
        return PullResult(PullStatus.OFFSET_OVERFLOW_ONE, offset, smallest, largest)
    if offset > largest:
        moved = 0 if smallest == 0 else largest
        return PullResult(PullStatus.OFFSET_OVERFLOW_BADLY, moved, smallest, largest)
    number = 0 if offset <= smallest else _find_file(offset, files)
    held = None if number is None else files[number]
    if held is None or held.last < offset:
        return PullResult(PullStatus.OFFSET_FOUND_NULL, 0, smallest, largest)
    return PullResult(PullStatus.FOUND, offset, smallest, largest, number)


def _smallest(files: ListedOffsets) -> int:
    first = files[0] if files else None
    return 0 if first is None else first.first


def _largest(files: ListedOffsets) -> int:
    """The offset after the last message. As in a broker, only the last two files are searched."""
    for number in range(len(files) - 1, max(len(files) - 3, -1), -1):
        held = files[number]
        if held is not None:
            return held.last + 1
    return 0


def _find_file(offset: int, files: ListedOffsets) -> int | None:
    """The index of the file that contains ``offset``.

    For an offset between two files, the index of the later file. None if there is no such file.
    """
    for number in range(len(files) - 1, -1, -1):
        held = files[number]
        if held is None:
            continue
        if held.last < offset and number + 1 < len(files):
            return number + 1
        if held.first <= offset <= held.last:
            return number
    return None


def count_pulled(
    sizes: Sequence[int],
    max_messages: int = MAX_MESSAGES,
    max_bytes: int = LARGEST_MAX_BYTES,
    on_disk: bool = False,
) -> int:
    """The number of messages in one answer to a pull.

    ``sizes`` has the sizes of contiguous messages. ``max_messages`` and ``max_bytes`` are the
    client's limits. ``on_disk`` selects the broker's limits for messages on disk. A broker applies
    them if the distance to the log's end exceeds ``accessMessageInMemoryMaxRatio`` of its memory.
    An answer has at least one message.
    """
    own_bytes, own_messages = MEMORY_BYTES, MEMORY_MESSAGES
    if on_disk:
        own_bytes, own_messages = DISK_BYTES, DISK_MESSAGES
    most_bytes = min(max(max_bytes, SMALLEST_MAX_BYTES), LARGEST_MAX_BYTES, own_bytes)
    most = min(max_messages, own_messages)
    count = total = 0
    for size in sizes:
        if count and (count >= most or total + size > most_bytes):
            break
        count += 1
        total += size
    return count
