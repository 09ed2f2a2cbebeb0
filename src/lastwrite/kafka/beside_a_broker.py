"""What a reader holds a log against that a broker has open, or that rounds replace in an archive:
whether what it read was still there.

The broker appends, closes segments, lets its cleaner exchange them and deletes what has expired; a
new leader may make it cut the log. All of this but appending changes the folder, a file that was
listed, or the leader epochs (docs/decisions/beside-a-broker.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lastwrite.archive.partition_store import place_at
from lastwrite.errors import CommitConflict, LogError
from lastwrite.kafka.format.names import HIGH_WATERMARKS, LEADER_EPOCHS
from lastwrite.kafka.format.text import decode_leader_epochs
from lastwrite.model.log import PartitionLog
from lastwrite.storage import reading
from lastwrite.storage.files import to_log_error
from lastwrite.storage.reading import TRIES, TRY_AGAIN, check_segments

T = TypeVar("T")


def folder_state(folder: str) -> tuple[int, int]:
    """The folder and when a file last came or went there.

    Raises:
        CommitConflict: the broker has deleted or moved the partition.
        LogError: it cannot be looked at.
    """
    try:
        seen = os.stat(folder)
    except OSError as error:
        raise to_log_error(error, folder, "look at the partition") from error
    return seen.st_ino, seen.st_mtime_ns


def noted_ns(root: str) -> int:
    """When the broker noted its high watermarks; 0: it has not."""
    path = os.path.join(root, HIGH_WATERMARKS)
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise to_log_error(error, path, "look at the checkpoint") from error


def marks(folder: str, end_offset: int) -> tuple[object, ...]:
    """What is the same as long as nothing below ``end_offset`` was cut off: the folder, and which
    leaders wrote there.
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
        pass  # of a version that we do not know: the bytes count
    return folder_state(folder)[0], epochs


def check_uncut(log: PartitionLog) -> None:
    """Of a log that a broker has open, hold it against what was listed: nothing was cut off.

    Raises:
        CommitConflict: something was, or the partition is another one now.
    """
    if log.open_as is not None and marks(log.folder, log.end_offset) != log.open_as:
        raise CommitConflict(
            "the log was cut, or made anew, while it was read", path=log.folder, remedy=TRY_AGAIN
        )


def check_unmoved(log: PartitionLog) -> None:
    """The same, and that every segment is as it was.

    Raises:
        CommitConflict: one is not.
    """
    check_uncut(log)
    if log.open_as is not None:
        check_segments(log)


@contextmanager
def one_try(number: int, *logs: PartitionLog, is_last: bool = False) -> Iterator[None]:
    """As ``reading.one_try``, of logs that brokers have open, or of archives: there a conflict is
    passed over where another generation counts now. ``is_last``: nothing is passed over.

    Raises:
        CommitConflict: nobody changes them; or of the last try.
    """
    try:
        yield
    except CommitConflict as error:
        for log in logs:
            if log.generation and not is_last:
                seen = place_at(log.folder).read()
                if seen is not None and seen.manifest.generation != log.generation:
                    if number < TRIES:
                        return
                    raise _lost(log) from error
        is_open = any(log.open_as is not None for log in logs)
        with reading.one_try(number, is_open=is_open and not is_last):
            raise


def _lost(log: PartitionLog) -> CommitConflict:
    return CommitConflict(
        f"generation {log.generation} was replaced while it was read, and its objects removed",
        path=log.folder,
        remedy="run again; let rounds and sweeps keep for longer what they replace "
        "(storage.keepReplacedMs)",
    )


def read_again(
    log: PartitionLog, read: Callable[[str], PartitionLog], work: Callable[[PartitionLog], T]
) -> T:
    """What ``work`` makes of a log; where a broker changed it meanwhile, of what ``read`` lists
    then, a few times.

    Raises:
        CommitConflict: it changed every time.
    """
    for tries in range(1, TRIES + 1):
        with one_try(tries, log):
            found = work(log)
            check_unmoved(log)
            return found
        log = read(log.folder)
    raise AssertionError("unreachable")


def go_on(log: PartitionLog, read: Callable[[str], PartitionLog], last: int) -> PartitionLog:
    """``log`` as ``read`` lists it now, to be read on behind the offset ``last``; -1: from its
    start. Offsets stay what they are from round to round.

    Raises:
        CommitConflict: what was read was cut off, or what comes next was deleted.
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
