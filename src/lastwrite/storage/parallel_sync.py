"""Many small pieces of work that wait for the disk, so that they wait together.

A sync takes a small partition longer than all its bytes, a removal too where the disk is told what
is free, and a disk ends twenty of them in little more than the time of one. So work on a partition
is written as *steps*: a generator that yields what waits for the disk, and goes on when all of it
is done. Many go side by side::

    a: rename rename ─┐ sync ┌─ rename ─┐ sync ┌─ rename
    b: rename rename ─┤ sync ├─ rename ─┤ sync ├─ rename
    c: rename rename ─┘ sync └─ rename ─┘ sync └─ rename

All of them take a step before one takes the next. In between one thread does all; only what waits
has threads, for whatever else Python does in threads costs more than it gains. Where fault points
are armed everything goes in order, so that a test knows the operation it stops at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeAlias, TypeVar

from lastwrite.errors import LogError
from lastwrite.storage import files

_THREADS = 16
_LEAST_A_THREAD = 4

T = TypeVar("T")
R = TypeVar("R")

DiskWork: TypeAlias = Callable[[], None]  # a sync of a file or folder, or a removal
Steps: TypeAlias = Generator[Sequence[DiskWork], None, None]
Outcome: TypeAlias = LogError | OSError | None  # the error that ended something; None: it went well


def together(works: Sequence[DiskWork]) -> list[Outcome]:
    """Do all of them in threads; one for one what it raised."""
    threads = 1 if files.faults.is_armed else min(_THREADS, len(works) // _LEAST_A_THREAD)
    if threads < 2:
        return [outcome(work) for work in works]
    begun = [_threads().submit(_outcomes, works[n::threads]) for n in range(threads)]
    try:
        parts = [each.result() for each in begun]
    finally:
        wait(begun)  # Ctrl-C ends none of them
    return [parts[n % threads][n // threads] for n in range(len(works))]


def _outcomes(works: Sequence[DiskWork]) -> list[Outcome]:
    return [outcome(work) for work in works]


def all_or_raise(works: Sequence[DiskWork]) -> None:
    """Do all of them in threads; the first error is raised when all have ended."""
    for error in together(works):
        if error is not None:
            raise error


def outcome(work: Callable[[], None]) -> Outcome:
    """Do it; what it raised."""
    try:
        work()
    except (LogError, OSError) as error:
        return error
    return None


def side_by_side(works: Iterable[Steps]) -> list[Outcome]:
    """Take the steps of all of them together; work for work the error that ended it.

    What was to be done on disk raises inside the work that waited for it.
    """
    going: list[tuple[int, Steps, Outcome]] = [
        (place, work, None) for place, work in enumerate(works)
    ]
    outcomes: list[Outcome] = [None] * len(going)
    while going:
        waiting: list[tuple[int, Steps]] = []
        asked: list[DiskWork] = []
        counts: list[int] = []
        for place, work, failure in going:
            try:
                wanted = next(work) if failure is None else work.throw(failure)
            except StopIteration:
                continue
            except (LogError, OSError) as error:
                outcomes[place] = error
                continue
            waiting.append((place, work))
            asked += wanted
            counts.append(len(wanted))
        found = iter(together(asked))
        going = []
        for (place, work), count in zip(waiting, counts, strict=True):
            errors = [error for error in (next(found) for _ in range(count)) if error is not None]
            going.append((place, work, errors[0] if errors else None))
    return outcomes


_pool: ThreadPoolExecutor | None = None  # of this process: to begin a thread costs half a sync


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lastwrite-disk")
    return _pool


def _forget() -> None:
    """In a fork no such thread runs."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget)


def run_steps_serially(work: Steps) -> None:
    """Take the steps of one work.

    Raises:
        LogError, OSError: what ended it.
    """
    (error,) = side_by_side([work])
    if error is not None:
        raise error


def overlapped(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The results of ``work``, item for item, in threads: for what reads and writes much.

    What one raises is raised here, and what has not begun never does.
    """
    if len(items) < 2 or files.faults.is_armed:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(_THREADS, len(items)), thread_name_prefix="lastwrite-disk") as pool:
        try:
            yield from pool.map(work, items)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
