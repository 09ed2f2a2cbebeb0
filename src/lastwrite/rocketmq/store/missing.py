"""Find commit log files that other files of the store refer to, but that are missing.

A commit log whose last files are missing looks like a shorter log. Consume queues, index files and
the checkpoint show that it was longer.

Source: RocketMQ 5.5.0 ``ConsumeQueue``, ``IndexHeader``, ``StoreCheckpoint``;
docs/formats/rocketmq.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lastwrite.errors import LogError
from lastwrite.model.log import Problem
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.format.index_file import decode_index_header
from lastwrite.rocketmq.format.sides import decode_consumer_offsets
from lastwrite.rocketmq.store import dispatched, live_files, reading
from lastwrite.rocketmq.store.reading import MappedLog, StoreFolder
from lastwrite.storage.problems import damaged
from lastwrite.storage.reading import read_small

_ELSEWHERE = (
    "restore the missing files from a replica or a backup; if the broker's commit log is in "
    "another folder, give --config storePathCommitLog=FOLDER"
)


def missing_files(root: str | None, log: MappedLog, place: str) -> Iterator[Problem]:
    """A problem for each missing file between others, and for missing files at the end.

    ``place`` describes the commit log's folders in messages. A log that a broker has open is not
    compared with its queues, because both change.
    """
    yield from log.gaps
    if root is None or log.bound is not None:
        return
    end = (
        f"the commit log ends at physical offset {log.end}"
        if log.files
        else "there is no commit log"
    )
    beyond = [found for found in _references(root) if found[1] >= log.end]
    # A single reference may itself be damaged. It counts only if the commit log has no file, or if
    # it points to the first byte after the last file.
    if beyond and (len(beyond) > 1 or not log.files or beyond[0][1] == log.end):
        path, address, what = beyond[0]
        wrong = f"{what} physical offset {address}, but {end} ({place})"
        yield damaged(wrong, path, None, _ELSEWHERE)
    positions = None if log.files else _lone_positions(root)
    if positions is not None:
        wrong = f"consumer groups have offsets, but {end} ({place}), and the store has no queue"
        yield damaged(wrong, positions, None, _ELSEWHERE)


def _references(root: str) -> Iterator[tuple[str, int, str]]:
    """The references to records in other files.

    A reference has the file's path, the record's address, and words that describe the reference.
    """
    for part in (StoreFolder.CONSUME_QUEUE, StoreFolder.BATCH_QUEUE):
        for name in reading.list_queues(root, part):
            queue = reading.read_queue(root, part, name)
            last = live_files.last_unit(queue, part)
            if last is not None:
                yield queue.files[-1].path, last[0], f"the last unit of {name} points to"
    for file in reading.read_index_files(root).files:
        try:
            header = decode_index_header(reading.map_file(file))
        except LogError:
            continue  # the command that reads the index reports the error
        if header.count > 1:
            yield (
                file.path,
                header.last_physical_offset,
                "the last entry of the index file points to",
            )
    reached = dispatched.read_checkpoint(root).consume_queue_offset
    if reached > 0:
        yield (
            os.path.join(root, names.CHECKPOINT),
            reached - 1,
            "the checkpoint's consume queue position is",
        )


def _lone_positions(root: str) -> str | None:
    """The path of the file with committed offsets of consumer groups, in a store without queues.

    Returns None if the store has a queue's folder, or if the file has no offset above 0.
    """
    parts = (StoreFolder.CONSUME_QUEUE, StoreFolder.BATCH_QUEUE, StoreFolder.COMPACTION_LOG)
    if any(reading.list_queues(root, part) for part in parts):
        return None
    path = os.path.join(root, names.CONFIG, names.CONSUMER_OFFSETS)
    try:
        groups = decode_consumer_offsets(read_small(path))
    except LogError:
        return None
    return path if any(offset > 0 for of in groups.values() for offset in of.values()) else None
