"""How far each queue was compacted: ``STORE/compaction/position-checkpoint`` and its backup.

A position is the highest queue offset whose key a round has compared; the first dirty offset is the
one behind it. The broker names a queue ``<topic>_<queue>``, a name that cannot be taken apart for
sure, so entries that we do not ask for stay as they are written.

What a broker makes of a file that is missing, empty or no JSON: it takes the backup, and where that
is no better nothing. Nothing is harmless: the next round compares all closed files again, with the
same result.

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
UNKNOWN = -1  # of a queue that was never compacted

_MOST_BYTES = 64 << 20  # some million queues
_TMP = ".tmp"


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of all queues of a store, by the broker's names for them."""

    offsets: Mapping[str, int]
    problem: LogError | None = (
        None  # why the file itself was not believed; the backup, or nothing, stands in for it
    )

    def of(self, name: TopicPartition) -> int:
        return self.offsets.get(key_of(name), UNKNOWN)

    def changed(self, changes: Mapping[TopicPartition, int]) -> dict[str, int]:
        """All of them with other values for some queues; new ones come last."""
        return {**self.offsets, **{key_of(name): offset for name, offset in changes.items()}}


def key_of(name: TopicPartition) -> str:
    """The broker's name for a queue."""
    return position_name(name.topic, name.partition)


def read_positions(tree: str) -> Positions:
    """What the folder ``tree``, a store's ``compaction``, says; empty where neither file says
    anything.

    Raises:
        LogError: a file cannot be read.
    """
    problem: LogError | None = None
    for file in FILES:
        path = os.path.join(tree, file)
        try:
            content = _read(path)
            if content.strip():
                return Positions(decode_positions(content), problem)
        except LogError as error:
            problem = problem or error.located(path)
    return Positions({}, problem)


def _read(path: str) -> bytes:
    """The file's bytes; none where it is missing, or no file."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise LogError(
                    "the file is too large for positions",
                    path=path,
                    remedy="move it out of the store: it is rebuilt",
                )
            return file.read(_MOST_BYTES)
    except (FileNotFoundError, IsADirectoryError):
        return b""
    except OSError as error:
        raise files.to_log_error(error, path, "read the positions") from error


def write_new_positions(tree: str, offsets: Mapping[str, int], old_tree: str) -> None:
    """Put the positions into a new tree; its backup is what ``old_tree`` says, as with a broker."""
    file, backup = (os.path.join(tree, name) for name in FILES)
    for name in FILES:  # without the file the older backup stays
        old = os.path.join(old_tree, name)
        if os.path.isfile(old):
            files.link(old, backup)
            break
    files.write(file, encode_positions(offsets), like=_owner(old_tree))


def _owner(tree: str) -> Ownership:
    """Whose new positions are: of the file that they replace, else of the backup, else of the tree."""
    file, backup = (os.path.join(tree, name) for name in FILES)
    return files.owner_of(file, [backup])


def replace_positions(tree: str, offsets: Mapping[str, int]) -> None:
    """Set the positions of the tree in use: the file becomes the backup, as a broker of 5.5.0 does
    it.

    A crash in between leaves the backup alone, which says what the file did.
    """
    file, backup = (os.path.join(tree, name) for name in FILES)
    with files.removed_on_failure(file + _TMP):
        files.write(file + _TMP, encode_positions(offsets), like=_owner(tree))
    if os.path.isfile(file):
        files.rename(file, backup)
    files.rename(file + _TMP, file)
    files.fsync_dir(tree)
