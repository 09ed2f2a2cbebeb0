"""What a RocketMQ broker answers to a pull of a compaction topic: status, next offset, and where it
looks.

A queue holds ``a@0 b@1 a@2``, compacted: ``b@1 a@2``. Its minimum is 1, its maximum 3, the offset
behind the last. Who asks for 1 or 2 gets the message, who asks for 0 gets the next larger one, and
who asks for 3 hears that there is none yet (*overflow one*). Beyond that the reader is moved back:
to the maximum, or to 0 where the minimum is 0 (*overflow badly*). There is no "too small".

Files complicate it. One answer never leaves the file that it begins in. A pair of files without a
valid unit is no trouble where it is the last, new one. Elsewhere the search may end in it, and then
the answer is "nothing, go on at 0" (*found null*), for ever. A log whose first pair is like that
has minimum 0 and answers so to offset 0.

This is the search through the files themselves, ``searchBcqByCacheEnable=false``: with the cache a
restarted broker skips live messages.

Source: RocketMQ 5.5.0 ``CompactionLog.getMessage``, ``SparseConsumeQueue``, ``BatchConsumeQueue``,
``DefaultPullMessageResultHandler``; docs/formats/rocketmq-compaction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

# Settings of the broker, and of the stock client where it asks for no less.
MAX_MESSAGES = 32  # the stock pull consumer's pullBatchSize
# maxTransferBytesOnMessageInMemory, maxTransferCountOnMessageInMemory
MEMORY_BYTES, MEMORY_MESSAGES = 262_144, 32
# maxTransferBytesOnMessageInDisk, maxTransferCountOnMessageInDisk
DISK_BYTES, DISK_MESSAGES = 65_536, 8
SMALLEST_MAX_BYTES, LARGEST_MAX_BYTES = 100, 128 << 20

# Codes of the answer on the wire.
SUCCESS = 0
PULL_NOT_FOUND = 19
PULL_OFFSET_MOVED = 21


class PullStatus(StrEnum):
    """How a broker calls the outcome."""

    FOUND = "FOUND"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"  # no compaction log of the queue
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"  # the reader has everything
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"  # the search ends in a file without a valid unit

    def code(self, offset: int) -> int:
        """What a client sees that asked for ``offset``."""
        if self is PullStatus.FOUND:
            return SUCCESS
        if self is PullStatus.OFFSET_OVERFLOW_BADLY:
            return PULL_OFFSET_MOVED
        is_empty = self in (PullStatus.NO_MATCHED_LOGIC_QUEUE, PullStatus.NO_MESSAGE_IN_QUEUE)
        if is_empty and offset != 0:
            return PULL_OFFSET_MOVED
        return PULL_NOT_FOUND


class FileOffsets(NamedTuple):
    """The offsets that the index of one file names, both included."""

    first: int
    last: int


class ListedOffsets(Protocol):
    """Those of all files of a queue, in order; None: of a pair of files without a valid unit."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> FileOffsets | None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a broker answers. Where it is FOUND, ``next_offset`` is the offset asked for: what
    follows depends on how many messages go into the answer, which begins in the file ``file`` at
    the first offset that is not below it.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    file: int | None = None  # its place in the list


def answer(offset: int, files: ListedOffsets | None) -> Answer:
    """The answer to a pull at ``offset`` of a queue whose files, in their order, name these
    offsets.

    ``files``: None for a queue without compaction log. It is asked for no more entries than the
    search needs, those at its end first.
    """
    if files is None:
        return Answer(PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    smallest, largest = _smallest(files), _largest(files)
    if largest == 0:
        return Answer(PullStatus.NO_MESSAGE_IN_QUEUE, 0, smallest, largest)
    if offset == largest:
        return Answer(PullStatus.OFFSET_OVERFLOW_ONE, offset, smallest, largest)
    if offset > largest:
        moved = 0 if smallest == 0 else largest
        return Answer(PullStatus.OFFSET_OVERFLOW_BADLY, moved, smallest, largest)
    number = 0 if offset <= smallest else _find_file(offset, files)
    held = None if number is None else files[number]
    if held is None or held.last < offset:
        return Answer(PullStatus.OFFSET_FOUND_NULL, 0, smallest, largest)
    return Answer(PullStatus.FOUND, offset, smallest, largest, number)


def _smallest(files: ListedOffsets) -> int:
    first = files[0] if files else None
    return 0 if first is None else first.first


def _largest(files: ListedOffsets) -> int:
    """The offset after the last message. A broker looks for it in the last two files only."""
    for number in range(len(files) - 1, max(len(files) - 3, -1), -1):
        held = files[number]
        if held is not None:
            return held.last + 1
    return 0


def _find_file(offset: int, files: ListedOffsets) -> int | None:
    """The file that holds ``offset``, else the one after the last that ends below it."""
    for number in range(len(files) - 1, -1, -1):
        held = files[number]
        if held is None:
            continue
        if held.last < offset and number + 1 < len(files):
            return number + 1
        if held.first <= offset <= held.last:
            return number
    return None


def taken(
    sizes: Sequence[int],
    max_messages: int = MAX_MESSAGES,
    max_bytes: int = LARGEST_MAX_BYTES,
    on_disk: bool = False,
) -> int:
    """How many of the messages of ``sizes`` bytes, which follow each other in one file, go into one
    answer.

    ``max_messages``, ``max_bytes``: as the client asks. ``on_disk``: whether the broker takes them
    for read from disk: they lie further from the log's end than ``accessMessageInMemoryMaxRatio``
    of its memory. The first always goes.
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
