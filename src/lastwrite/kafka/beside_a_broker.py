"""Checks that a log did not change while it was read.

A broker may have the log open, or a compaction may replace it in an archive. A broker appends,
rolls segments, replaces segments by cleaned segments, and deletes expired segments. After a leader
change it may truncate the log. Each of these actions except appending changes the folder, a listed
file, or the leader epochs (docs/decisions/beside-a-broker.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lastwrite.archive.partition_store import partition_store_at
from lastwrite.errors import CommitConflict, LogError
from lastwrite.kafka.format.names import HIGH_WATERMARKS, LEADER_EPOCHS
from lastwrite.kafka.format.text import decode_leader_epochs
from lastwrite.model.log import PartitionLog
from lastwrite.storage import reading
from lastwrite.storage.files import to_log_error
from lastwrite.storage.reading import TRIES, TRY_AGAIN, check_segments

T = TypeVar("T")


def folder_state(folder: str) -> tuple[int, int]:
    """The folder's inode, and the time in ns when a file was last added or removed.

    Raises:
        CommitConflict: the broker has deleted or moved the partition.
        LogError: the folder cannot be read.
    """
    try:
        seen = os.stat(folder)
    except OSError as error:
        raise to_log_error(
            error, folder, "read the attributes of the partition's folder"
        ) from error
    return seen.st_ino, seen.st_mtime_ns


def noted_ns(root: str) -> int:
    """Time in ns at which the broker last wrote its high watermarks; 0 if it never did."""
    path = os.path.join(root, HIGH_WATERMARKS)
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise to_log_error(error, path, "read the attributes of the checkpoint") from error


def marks(folder: str, end_offset: int) -> tuple[object, ...]:
    """A value that changes if the log is truncated below ``end_offset``.

    It consists of the folder's inode and the leader epochs that start below that offset.
    """
    path = os.path.join(folder, LEADER_EPOCHS)
    epochs: object = ()
    try:
        with open(path, "rb") as file:
            content = file.read()
        epochs = content
        epochs = tuple(
            (each.epoch, each.start_offset)
            for each in decode_leader_epochs(content)
            if each.start_offset < end_offset
        )
    except FileNotFoundError:
        pass
    except OSError as error:
        raise to_log_error(error, path, "read the leader epochs") from error
    except LogError:
        pass  # the version is unknown, so compare the bytes
    return folder_state(folder)[0], epochs


def check_uncut(log: PartitionLog) -> None:
    """Check that a log, which a broker has open, was not truncated since it was listed.

    Raises:
        CommitConflict: the log was truncated, or created again.
    """
    if log.open_as is not None and marks(log.folder, log.end_offset) != log.open_as:
        raise CommitConflict(
            "the log was truncated or created again while it was read",
            path=log.folder,
            remedy=TRY_AGAIN,
        )


def check_unmoved(log: PartitionLog) -> None:
    """Check that a log was not truncated since it was listed, and that every segment is unchanged.

    Raises:
        CommitConflict: the log or a segment has changed.
    """
    check_uncut(log)
    if log.open_as is not None:
        check_segments(log)


@contextmanager
def one_try(number: int, *logs: PartitionLog, is_last: bool = False) -> Iterator[None]:
    """A context for one attempt to read a log.

    Suppresses a conflict that a later attempt may resolve, so that the caller can retry. In an
    archive, a later attempt is useful if another commit has replaced the log since it was listed.
    With ``is_last``, no conflict is suppressed.

    Raises:
        CommitConflict: a retry cannot succeed, or this was the last attempt.
    """
    try:
        yield
    except CommitConflict as error:
        for log in logs:
            if log.generation and not is_last:
                current = partition_store_at(log.folder).read()
                if current is not None and current.manifest.generation != log.generation:
                    if number < TRIES:
                        return
                    raise _lost(log) from error
        is_open = any(log.open_as is not None or _is_of_parts(log) for log in logs)
        with reading.one_try(number, is_open=is_open and not is_last):
            raise


def _is_of_parts(log: PartitionLog) -> bool:
    """Whether the log is in a bucket of AutoMQ, whose cluster may replace the objects."""
    return any(segment.opener is not None for segment in log.segments)


def _lost(log: PartitionLog) -> CommitConflict:
    return CommitConflict(
        f"another program replaced generation {log.generation} of the log and removed its objects "
        "during the command",
        path=log.folder,
        remedy="run the command again; to avoid this, raise storage.keepReplacedMs for compact "
        "and sweep, which is the time that replaced objects are kept",
    )


def read_again(
    log: PartitionLog, read: Callable[[str], PartitionLog], work: Callable[[PartitionLog], T]
) -> T:
    """Return ``work(log)``. If a broker changes the log meanwhile, list it again and retry.

    Raises:
        CommitConflict: the log changed during each of ``TRIES`` attempts.
    """
    for tries in range(1, TRIES + 1):
        with one_try(tries, log):
            found = work(log)
            check_unmoved(log)
            return found
        log = read(log.folder)
    raise AssertionError("unreachable")


def relist_after(log: PartitionLog, read: Callable[[str], PartitionLog], last: int) -> PartitionLog:
    """List ``log`` again, to continue after offset ``last``. -1 means from the log's start.

    Compaction does not change offsets, so reading can continue.

    Raises:
        CommitConflict: the records already read were truncated, or the next records were deleted.
    """
    check_uncut(log)
    before = log.generation
    log = read(log.folder)
    if last >= 0 and last + 1 < log.log_start:
        raise CommitConflict(
            f"offsets {last + 1} to {log.log_start - 1} were deleted while the log was read"
            + (f" at generation {before}" if before else ""),
            path=log.folder,
            remedy=TRY_AGAIN,
        )
    return log
