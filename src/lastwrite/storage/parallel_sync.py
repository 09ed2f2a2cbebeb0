"""Run many small disk operations so that their waiting times overlap.

A sync takes longer than writing all bytes of a small partition. So does a removal if the disk
discards free blocks. But twenty syncs at once take little more time than one. The work on a
partition is therefore written as *steps*: a generator that yields disk operations, and is resumed
when they are done. Many generators run side by side::

    a: rename rename ─┐ sync ┌─ rename ─┐ sync ┌─ rename
    b: rename rename ─┤ sync ├─ rename ─┤ sync ├─ rename
    c: rename rename ─┘ sync └─ rename ─┘ sync └─ rename

All generators complete a step before the next step starts. One thread runs the generators. Only the
disk operations use more threads, because threads slow down other Python code. With fault points,
the operations run in order, so that a test can choose the operation at which it stops.
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

# a disk operation: a sync of a file or folder, or a removal
DiskWork: TypeAlias = Callable[[], None]
Steps: TypeAlias = Generator[Sequence[DiskWork], None, None]
# the error that ended an operation; None after success
Outcome: TypeAlias = LogError | OSError | None


def run_parallel(works: Sequence[DiskWork]) -> list[Outcome]:
    """Call all functions of ``works`` in threads. Returns an error or None for each."""
    threads = 1 if files.faults.is_armed else min(_THREADS, len(works) // _LEAST_A_THREAD)
    if threads < 2:
        return [outcome(work) for work in works]
    begun = [_threads().submit(_outcomes, works[n::threads]) for n in range(threads)]
    try:
        parts = [each.result() for each in begun]
    finally:
        wait(begun)  # wait even after Ctrl-C, which does not stop the threads
    return [parts[n % threads][n // threads] for n in range(len(works))]


def _outcomes(works: Sequence[DiskWork]) -> list[Outcome]:
    return [outcome(work) for work in works]


def all_or_raise(works: Sequence[DiskWork]) -> None:
    """Call all functions of ``works`` in threads, and raise the first error when all have ended."""
    for error in run_parallel(works):
        if error is not None:
            raise error


def outcome(work: Callable[[], None]) -> Outcome:
    """Call ``work``. Returns its error, or None."""
    try:
        work()
    except (LogError, OSError) as error:
        return error
    return None


def side_by_side(works: Iterable[Steps]) -> list[Outcome]:
    """Run generators of disk operations side by side. Returns the error that ended each, or None.

    An error of a disk operation is raised inside the generator that yielded it.
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
        found = iter(run_parallel(asked))
        going = []
        for (place, work), count in zip(waiting, counts, strict=True):
            errors = [error for error in (next(found) for _ in range(count)) if error is not None]
            going.append((place, work, errors[0] if errors else None))
    return outcomes


# The process keeps one pool of threads: starting a thread takes half as long as a sync.
_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lastwrite-disk")
    return _pool


def _forget() -> None:
    """Reset this module's state in a forked child: the threads exist only in the parent."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget)


def run_steps_serially(work: Steps) -> None:
    """Run one generator of disk operations to its end.

    Raises:
        LogError, OSError: the error that ended the generator.
    """
    (error,) = side_by_side([work])
    if error is not None:
        raise error


def overlapped(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield ``work(item)`` for each item, in order. Calls run in threads, so that waits overlap.

    An error is raised to the caller. Items that were not started are then cancelled.
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
