"""Quick checks for changes in a log root, and the root's quarantine notes. Used by the daemon.

The daemon checks thousands of partitions every few seconds. So a check costs two system calls per
partition. The folder's time shows whether files were added or removed, and the active segment's
size whether records were appended. A closed segment changes only by a rename.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.kafka.format.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    folder_name,
    live_partition,
)
from lastwrite.kafka.store import archived, lock
from lastwrite.kafka.store.checkpoints import read_offsets
from lastwrite.model.log import Segment
from lastwrite.storage.files import to_log_error
from lastwrite.storage.layout import PartitionSnapshot
from lastwrite.storage.quarantine import QuarantineFile
from lastwrite.storage.reading import RESTS_NS, SETTLED_NS


def scan_root(root: str) -> list[PartitionSnapshot]:
    """A snapshot of every live partition folder in ``root``, including empty ones, by name.

    Each snapshot includes the partition's checkpoint entries.

    Raises:
        LogError: the root cannot be listed.
    """
    offsets = []
    for file in (CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS):
        try:
            offsets.append(read_offsets(root, file))
        except (CorruptLog, UnsupportedFormat):  # reading the partition will report the damage
            offsets.append({})
    now_ns = time.time_ns()
    found = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                name = live_partition(entry.name)
                if name is None or not entry.is_dir():
                    continue
                seen = entry.stat()
                state: Hashable | None = None
                if now_ns - seen.st_mtime_ns > SETTLED_NS:
                    state = (
                        seen.st_ino,
                        seen.st_mtime_ns,
                        *(known.get(name) for known in offsets),
                    )
                found.append(
                    PartitionSnapshot(name, entry.path, state, now_ns - seen.st_mtime_ns > RESTS_NS)
                )
    except OSError as error:
        raise to_log_error(error, root, "list the log root") from error
    return sorted(found)


def is_as_read(segment: Segment) -> bool:
    """Whether the segment's file still has the size and time with which it was read.

    Always True in an archive, because its segments never change.
    """
    if segment.etag:
        return True
    try:
        seen = os.stat(segment.path)
    except OSError:
        return False
    return (seen.st_size, seen.st_mtime_ns) == (segment.file_bytes, segment.mtime_ns)


NOTES = QuarantineFile(
    lock.PLACE,
    folder_name,
    live_partition,
    lambda root, name: os.path.join(root, folder_name(name)),
    archived.SYSTEM,
    archived.is_root,
)
