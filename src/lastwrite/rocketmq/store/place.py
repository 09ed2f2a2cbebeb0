"""Resolves a path to a RocketMQ store, or to a log, folder, topic, queue or file in a store.

Source: RocketMQ 5.5.0 and 4.9.3; docs/formats/rocketmq.md, "The store".
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, replace

from lastwrite.archive.layout import first_partition_at
from lastwrite.errors import NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.store import archived
from lastwrite.rocketmq.store.links import is_brokers
from lastwrite.rocketmq.store.reading import (
    KIND_OF_PART,
    PART_OF_KIND,
    QUEUE_PARTS,
    WORK_FOLDERS,
    RocketmqFileKind,
    StoreFolder,
    entries_of,
    read_head,
    start_of,
    starts_with_record,
)
from lastwrite.storage.objects.address import is_address

_MOST_ODD_NAMES = 16  # most files with other names that are opened to find a record
_COUNTS = ("timermetrics", "transactionMetrics")  # JSON files in ``config`` without .json
_COMPACTION_PARTS = (StoreFolder.COMPACTION_LOG, StoreFolder.COMPACTION_INDEX)
_SIDE_FILES = {
    "checkpoint": RocketmqFileKind.CHECKPOINT,
    "abort": RocketmqFileKind.ABORT,
    "lock": RocketmqFileKind.LOCK,
    "topics.json": RocketmqFileKind.TOPICS,
    "consumerOffset.json": RocketmqFileKind.CONSUMER_OFFSETS,
    "lmqConsumerOffset.json": RocketmqFileKind.CONSUMER_OFFSETS,
    "delayOffset.json": RocketmqFileKind.DELAY_OFFSETS,
    "timercheck": RocketmqFileKind.TIMER_CHECKPOINT,
    "position-checkpoint": RocketmqFileKind.POSITIONS,
}
# Folder names that only RocketMQ uses. Lastwrite does not read all of these folders.
_OWN_NAMES = (
    names.TIMER_LOG,
    names.COMMIT_LOG,
    names.CONSUME_QUEUES,
    names.CONSUME_QUEUE_EXTENSIONS,
    names.BATCH_CONSUME_QUEUES,
    names.COMPACTION,
    "consumequeue_rocksdb",
    "rocksdbstore",
)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A resolved path. ``root`` is the store; None for a file outside a store."""

    path: str
    root: str | None
    part: StoreFolder | None = None  # None means the store itself, or a file at its root
    topic: str | None = None
    queue: int | None = None
    file: RocketmqFileKind | None = None  # None means a folder

    @property
    def name(self) -> TopicPartition | None:
        if self.topic is None or self.queue is None:
            return None
        return TopicPartition(self.topic, self.queue)


def is_store(path: str) -> bool:
    """Whether the folder is a broker's ``storePathRootDir``."""
    if os.path.isfile(os.path.join(path, StoreFolder.CONFIG, names.TOPICS)):
        return True
    return any(
        _holds(os.path.join(path, part), part) for part in (StoreFolder.COMMIT_LOG, *QUEUE_PARTS)
    )


def _holds(folder: str, part: StoreFolder) -> bool:
    """Whether the content of ``folder`` fits the folder ``part`` of a store."""
    if part is StoreFolder.COMMIT_LOG:
        return any(names.parse_file_name(name) is not None for name in entries_of(folder))
    if part is StoreFolder.INDEX:
        return any(map(names.is_index_name, entries_of(folder)))
    if part is StoreFolder.COMPACTION:
        root = os.path.dirname(folder)
        return any(os.path.isdir(os.path.join(root, below)) for below in _COMPACTION_PARTS)
    if part is StoreFolder.CONFIG:
        return any(".json" in name for name in entries_of(folder))
    return any(
        names.parse_queue_name(queue) is not None
        for topic in entries_of(folder)
        for queue in entries_of(os.path.join(folder, topic))
    )


def locate(path: str) -> StorePlace | None:
    """Resolve ``path``. Returns None if it does not belong to RocketMQ.

    A file is recognized by its name and its parent folders. A file outside a store is recognized by
    its first bytes; a commit log file may then have any name. A symbolic link is replaced by its
    real path. The given path is used instead if it leads to a store that a broker has used, and the
    real path does not: ``compaction`` may be a link to another disk.
    """
    found = _in_archive(str(path))
    if found is not None or is_address(str(path)):
        return found
    given = os.path.abspath(str(path))
    real = os.path.realpath(given)
    if real == given:
        return _located(str(path))
    found = _located(real)
    if found is not None and found.root is not None and is_brokers(found.root):
        return found
    other = _located(given)
    if other is not None and other.root is not None and is_brokers(other.root):
        return replace(other, root=os.path.realpath(other.root))
    return found or other


def _in_archive(path: str) -> StorePlace | None:
    """The compaction logs at ``path`` in an archive: of all topics, of a topic, or of a queue.

    Returns None if ``path`` is not in an archive.
    """
    first = first_partition_at(path, archived.SYSTEM)
    if first is None:
        return None
    path = path.rstrip("/") if is_address(path) else os.path.abspath(path)
    root = archived.root_of(first)
    topic, queue = None, None
    if path == first:
        topic, queue = archived.name_of(first).topic, archived.name_of(first).partition
    elif path == os.path.dirname(first):
        topic = archived.name_of(first).topic
    return StorePlace(path, root, StoreFolder.COMPACTION_LOG, topic, queue)


def _located(path: str) -> StorePlace | None:
    if os.path.isdir(path) and is_store(path):
        return StorePlace(path, path)
    found = _by_folders(path)
    if os.path.isdir(path):
        return found or _lone_log(path)
    if not os.path.isfile(path):
        return None
    if found is not None:
        return found
    base = os.path.basename(path)
    kind = _SIDE_FILES.get(base.removesuffix(".bak").removesuffix(".tmp"))
    if kind is not None:
        return StorePlace(path, _root_of_side_file(path, kind), file=kind)
    is_index = names.is_index_name(base)
    if is_index or names.parse_file_name(base.removesuffix(names.DELETED_SUFFIX)) is not None:
        kind = _sniff(path, is_index)
        return None if kind is None else StorePlace(path, None, file=kind)
    # A copy under another name counts as a commit log only if it begins with a record's magic.
    is_log = _sniff(path, is_index=False) is RocketmqFileKind.COMMIT_LOG
    return StorePlace(path, None, file=RocketmqFileKind.COMMIT_LOG) if is_log else None


def _lone_log(path: str) -> StorePlace | None:
    """Resolve a folder of log files outside a store: another commit log folder, or a copy.

    The files of a copy may have any names.
    """
    for name in entries_of(path):
        if names.parse_file_name(name) is not None:
            kind = _sniff(os.path.join(path, name), is_index=False)
            return None if kind is None else StorePlace(path, None, PART_OF_KIND[kind])
    files = (os.path.join(path, name) for name in entries_of(path))
    odd = itertools.islice(filter(os.path.isfile, files), _MOST_ODD_NAMES)
    return (
        StorePlace(path, None, StoreFolder.COMMIT_LOG)
        if any(map(starts_with_record, odd))
        else None
    )


def is_in_store(path: str) -> bool:
    """Whether the path is in a store, including the files that Lastwrite does not read."""
    folder = os.path.dirname(os.path.abspath(path))
    below = os.path.basename(os.path.abspath(path))
    while below:
        is_own = os.path.isfile(path) or below.partition(".")[0] in _OWN_NAMES
        if is_own and is_store(folder):
            return True
        folder, below = os.path.split(folder)
    return False


def find_place(path: str) -> StorePlace:
    """Resolve ``path`` to a part of RocketMQ's files.

    Raises:
        NotALog: the path does not belong to RocketMQ.
    """
    found = locate(path)
    if found is None:
        wrong = (
            "the path belongs to no RocketMQ store"
            if os.path.exists(path)
            else "no such file or folder"
        )
        remedy = "give a store (the broker's storePathRootDir), or a folder or file inside it"
        if is_in_store(path):
            wrong = "Lastwrite does not read this file or folder of a RocketMQ store"
            remedy = "give the store, or one of its logs, queues, index files or settings files"
        raise NotALog(wrong, path=path, remedy=remedy)
    return found


def _by_folders(path: str) -> StorePlace | None:
    """Resolve a path by the names of its parent folders.

    Uses the nearest folder with the name of a store folder, but prefers a folder in a real store.
    """
    whole = os.path.abspath(path)
    steps = whole.split(os.sep)
    is_file = os.path.isfile(whole)
    best: StorePlace | None = None
    for n in range(1, len(steps)):
        for part in StoreFolder:
            wanted = part.split("/")
            if steps[n : n + len(wanted)] != wanted:
                continue
            root = os.sep.join(steps[:n]) or os.sep
            place = _below(path, root, part, steps[n + len(wanted) :], is_file)
            if place is None or not (
                is_file or _holds(os.path.join(root, part), part) or is_store(root)
            ):
                continue
            if best is None or is_store(root):
                best = place
    return best


def _below(
    path: str, root: str, part: StoreFolder, rest: list[str], is_file: bool
) -> StorePlace | None:
    folders = rest[:-1] if is_file else rest
    if part in (StoreFolder.COMPACTION, StoreFolder.CONFIG):
        if folders:
            return None
        if not is_file:
            return StorePlace(path, root, part)
        base = rest[-1].removesuffix(".bak")
        if part is StoreFolder.COMPACTION:
            kind = _SIDE_FILES.get(base)
            is_known = kind is RocketmqFileKind.POSITIONS
        else:
            base = base.removesuffix(".tmp")
            kind = _SIDE_FILES.get(base, RocketmqFileKind.CONFIG)
            is_known = ".json" in base or base in (*_SIDE_FILES, *_COUNTS)
        return StorePlace(path, root, part, file=kind) if is_known else None
    topic: str | None = None
    queue: int | None = None
    if part in QUEUE_PARTS:
        if folders and folders[-1] in WORK_FOLDERS:
            folders = folders[:-1]
        if len(folders) > 2 or (len(folders) == 2 and names.parse_queue_name(folders[1]) is None):
            return None
        topic = folders[0] if folders else None
        queue = int(folders[1]) if len(folders) == 2 else None
        if is_file and queue is None:
            return None
    elif folders:
        return None
    if not is_file:
        return StorePlace(path, root, part, topic, queue)
    if start_of(rest[-1].removesuffix(names.DELETED_SUFFIX), part is StoreFolder.INDEX) is None:
        return None
    return StorePlace(path, root, part, topic, queue, KIND_OF_PART[part])


def _root_of_side_file(path: str, kind: RocketmqFileKind) -> str | None:
    folder = os.path.dirname(os.path.abspath(path))
    if kind not in (RocketmqFileKind.CHECKPOINT, RocketmqFileKind.ABORT, RocketmqFileKind.LOCK):
        folder = os.path.dirname(folder)
    return folder if is_store(folder) else None


def _sniff(path: str, is_index: bool) -> RocketmqFileKind | None:
    """The kind of a file, recognized by its first bytes."""
    data = read_head(path)
    if is_index:
        return RocketmqFileKind.INDEX

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "big", signed=True)

    if starts_with_record(path):
        return RocketmqFileKind.COMMIT_LOG
    if len(data) >= 46 and number(0, 8) >= 0 and number(8, 4) > 0 and number(28, 8) >= 0:
        if number(36, 2) > 0 and number(38, 8) == -1 << 32:  # in a unit, these fields are -1 and 0
            return RocketmqFileKind.BATCH_QUEUE
    if len(data) >= 20 and number(0, 8) >= 0 and number(8, 4) > 0 and number(0, 8) >> 48 == 0:
        return RocketmqFileKind.CONSUME_QUEUE
    if len(data) >= 20 and 20 <= number(0, 2) and number(18, 2) == number(0, 2) - 20:
        return RocketmqFileKind.EXTENSION
    return None
