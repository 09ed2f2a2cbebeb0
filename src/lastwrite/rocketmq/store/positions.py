"""Reads and writes ``STORE/compaction/position-checkpoint``, the compaction position of each queue.

A position is the highest queue offset whose key compaction has compared. The first dirty offset is
the position plus 1. A broker names a queue ``<topic>_<queue>`` in the file. Such a name cannot be
split reliably, so entries of other queues are copied unchanged.

If the file is missing, empty or not JSON, a broker uses its backup. If the backup is not usable
either, the broker has no positions. The next compaction then compares all closed files again, with
the same result.

Source: RocketMQ 5.5.0 ``CompactionPositionMgr``, ``ConfigManager``;
docs/formats/rocketmq-compaction.md, "A run" and "What 5.5.0 does otherwise than older releases".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lastwrite.errors import LogError
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.names import BACKUP_SUFFIX, POSITION_CHECKPOINT
from lastwrite.rocketmq.format.sides import decode_positions, encode_positions, position_name
from lastwrite.storage import files
from lastwrite.storage.ownership import Ownership

FILES = (POSITION_CHECKPOINT, POSITION_CHECKPOINT + BACKUP_SUFFIX)
UNKNOWN = -1  # position of a queue that was never compacted

_MOST_BYTES = 64 << 20  # largest file; enough for a million queues
_TMP = ".tmp"


@dataclass(frozen=True, slots=True)
class QueuePositions:
    """The positions of all queues of a store, by the queues' names in the file."""

    offsets: Mapping[str, int]
    # why the file was not used; ``offsets`` is then from the backup, or empty; None: it was used
    problem: LogError | None = None

    def of(self, name: TopicPartition) -> int:
        return self.offsets.get(key_of(name), UNKNOWN)

    def changed(self, changes: Mapping[TopicPartition, int]) -> dict[str, int]:
        """All positions with ``changes`` applied; new queues are added at the end."""
        return {**self.offsets, **{key_of(name): offset for name, offset in changes.items()}}


def key_of(name: TopicPartition) -> str:
    """The name of a queue in the positions file."""
    return position_name(name.topic, name.partition)


def read_positions(tree: str) -> QueuePositions:
    """Read the positions file in the folder ``tree``, a store's ``compaction``, or its backup.

    Returns no positions if neither file has any.

    Raises:
        LogError: a file cannot be read.
    """
    problem: LogError | None = None
    for file in FILES:
        path = os.path.join(tree, file)
        try:
            content = _read(path)
            if content.strip():
                return QueuePositions(decode_positions(content), problem)
        except LogError as error:
            problem = problem or error.located(path)
    return QueuePositions({}, problem)


def _read(path: str) -> bytes:
    """The bytes of a file; empty if the file is missing or is a folder."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise LogError(
                    "the file is too large for a position-checkpoint",
                    path=path,
                    remedy="move the file out of the store and keep it; the next compaction "
                    "creates it again",
                )
            return file.read(_MOST_BYTES)
    except (FileNotFoundError, IsADirectoryError):
        return b""
    except OSError as error:
        raise files.to_log_error(error, path, "read the position-checkpoint") from error


def write_new_positions(tree: str, offsets: Mapping[str, int], old_tree: str) -> None:
    """Write the positions file of ``tree``, the successor of the folder ``old_tree``.

    As in a broker, the file's backup has the positions of ``old_tree``.
    """
    file, backup = (os.path.join(tree, name) for name in FILES)
    for name in FILES:  # without a file, the old backup is kept
        old = os.path.join(old_tree, name)
        if os.path.isfile(old):
            files.link(old, backup)
            break
    files.write(file, encode_positions(offsets), like=_owner(old_tree))


def _owner(tree: str) -> Ownership:
    """The owner for a new positions file: of the old file, else of its backup or the folder."""
    file, backup = (os.path.join(tree, name) for name in FILES)
    return files.owner_of(file, [backup])


def replace_positions(tree: str, offsets: Mapping[str, int]) -> None:
    """Replace the positions file in the folder ``tree``. The old file becomes the backup.

    RocketMQ 5.5.0 does the same. A crash between the two renames leaves only the backup, which has
    the old positions.
    """
    file, backup = (os.path.join(tree, name) for name in FILES)
    with files.removed_on_failure(file + _TMP):
        files.write(file + _TMP, encode_positions(offsets), like=_owner(tree))
    if os.path.isfile(file):
        files.rename(file, backup)
    files.rename(file + _TMP, file)
    files.fsync_dir(tree)
