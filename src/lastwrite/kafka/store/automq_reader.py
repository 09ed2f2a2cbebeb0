"""Reads a segment whose batches are the payloads of stream records in AutoMQ's objects.

    object A   [header payload header payload …] index      object B   […]
    segment     payload payload …                                       payload …

A run is a range of an object (``kafka.automq.partition``). The headers are removed as a run is
read, so the reader needs the exact size of each run's payloads. An index entry does not state how
many data blocks it has, so ``measure`` reads the blocks' headers where there may be several.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lastwrite.errors import CommitConflict, CorruptLog, LogError, UnsupportedFormat
from lastwrite.kafka.automq.partition import StoredRun
from lastwrite.kafka.automq.payloads import strip_run
from lastwrite.kafka.automq.stored_objects import BLOCK_HEADER, RECORD_HEADER, StreamBlockHeader
from lastwrite.kafka.automq.stream_kernels import WAL_GAP_BYTES
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Limits
from lastwrite.storage.objects.address import join, store_at
from lastwrite.storage.reading import SegmentReader

_AT_ONCE = 32  # parallel requests for block headers, which mostly wait for the store
_AHEAD = 16  # requests of one reader
# A run of at most this size is read whole: one request takes as long as a request for a header.
_SMALL_BYTES = 64 << 10
_REMEDY = (
    "restore the object from the bucket's versions or from a copy; if the cluster is running, copy "
    "the controllers' metadata log and the bucket again"
)
_vanished: set[str] = set()  # addresses of buckets in which a reader did not find an object
_unusual: set[str] = set()  # addresses of buckets whose runs have more blocks than expected


def take_vanished(address: str) -> bool:
    """Whether a reader of this process did not find an object of the bucket since the last call."""
    found = address in _vanished
    _vanished.discard(address)
    return found


def is_unusual(address: str) -> bool:
    """Whether a reader found several data blocks in a run that was expected to have only one."""
    return address in _unusual


class Bucket(NamedTuple):
    """The bucket that contains the bytes of runs, and the local file of its write-ahead objects."""

    address: str
    wal_path: str

    def path_of(self, run: StoredRun) -> str:
        """The path or address of the object of a run, for messages."""
        return join(self.address, run.key) if run.key else self.wal_path

    def fetch(
        self, run: StoredRun, position: int, size_bytes: int, stores: StoreSettings | None = None
    ) -> ByteArray:
        """Bytes of the object of ``run``.

        Raises:
            CommitConflict: the object was deleted or shortened.
        """
        content = np.empty(size_bytes, np.uint8)
        if not run.key:
            with open(self.wal_path, "rb", buffering=0) as file:
                file.seek(position)
                file.readinto(memoryview(content))
            return content
        store, prefix = store_at(self.address, stores)
        try:
            store.read_into(f"{prefix}/{run.key}" if prefix else run.key, content, position)
        except CommitConflict:
            _vanished.add(self.address)
            raise
        return content


class MeasuredRuns(NamedTuple):
    """Runs, and the number of payload bytes of each."""

    runs: tuple[StoredRun, ...]
    sizes: tuple[int, ...]


def measure(
    runs: Sequence[StoredRun],
    fetch: Callable[[StoredRun, int, int], ByteArray],
    path_of: Callable[[StoredRun], str],
    *,
    reads_all: bool = False,
) -> tuple[MeasuredRuns, list[Problem]]:
    """Find the sizes of the payloads of ``runs``. Damaged runs are left out, with a problem each.

    A run that has only one block is not read, unless some of its records belong to another
    segment. In a large run, only the headers of its blocks are read.

    Args:
        fetch: returns bytes of a run's object, given a position in the object and a size.
        path_of: returns the path of the object that contains a run.
        reads_all: read the headers of blocks of all runs.

    Raises:
        CommitConflict: an object was deleted.
    """
    problems: list[Problem] = []

    def size_of(run: StoredRun) -> int | None:
        try:
            if run.is_whole and run.size_bytes > _SMALL_BYTES:
                return _size_by_headers(run, fetch)
            return len(strip_run(fetch(run, run.position, run.size_bytes), run))
        except (CorruptLog, UnsupportedFormat) as error:
            kind = ProblemKind.DAMAGED if isinstance(error, CorruptLog) else ProblemKind.UNSUPPORTED
            path = error.path or path_of(run)
            problems.append(Problem(kind, error.problem, path, error.at, error.remedy))
            return None

    sizes = [_known_size(run, is_sure=not reads_all) for run in runs]
    unknown = [n for n, size in enumerate(sizes) if size is None]
    if unknown:
        with ThreadPoolExecutor(_AT_ONCE, "automq") as pool:
            for n, size in zip(unknown, pool.map(lambda n: size_of(runs[n]), unknown), strict=True):
                sizes[n] = size
    pairs = [(run, size) for run, size in zip(runs, sizes, strict=True) if size is not None]
    found = MeasuredRuns(tuple(run for run, _ in pairs), tuple(size for _, size in pairs))
    return found, problems


def _known_size(run: StoredRun, *, is_sure: bool) -> int | None:
    """The size of a run's payloads. None if it has to be read."""
    is_one_block = run.records == 1 or (is_sure and run.is_one_block)
    if not run.is_whole or not (run.is_in_wal or is_one_block):
        return None
    headers = run.records * RECORD_HEADER.size
    if run.is_in_wal:
        return run.size_bytes - headers - (run.records - 1) * WAL_GAP_BYTES
    return run.size_bytes - headers - BLOCK_HEADER.size


def _size_by_headers(run: StoredRun, fetch: Callable[[StoredRun, int, int], ByteArray]) -> int:
    """The size of the payloads of a run of data blocks, from the headers of the blocks."""
    size_bytes = run.size_bytes - run.records * RECORD_HEADER.size
    at = 0
    while at < run.size_bytes:
        left = run.size_bytes - at - BLOCK_HEADER.size
        head = fetch(run, run.position + at, BLOCK_HEADER.size) if left >= 0 else b""
        block = StreamBlockHeader._make(BLOCK_HEADER.unpack_from(head, 0)) if left >= 0 else None
        if block is None or not 0 <= block.size_bytes <= left:
            raise CorruptLog(
                f"a data block exceeds its index entry, in stream {run.stream_id}, offsets "
                f"{run.start_offset} to {run.end_offset - 1}",
                run.position + at,
                remedy=_REMEDY,
            )
        size_bytes -= BLOCK_HEADER.size
        at += BLOCK_HEADER.size + block.size_bytes
    return size_bytes


def _payloads(bucket: Bucket, run: StoredRun, content: ByteArray) -> ByteArray:
    """The payloads of the records of ``run`` that are needed. ``content`` has its bytes."""
    try:
        return strip_run(content, run)
    except LogError as error:
        raise error.located(bucket.path_of(run)) from error


class _RunRequest(NamedTuple):
    """Neighbouring runs in one object, which are read by a single request."""

    runs: tuple[StoredRun, ...]
    position: int
    size_bytes: int
    start: int  # position of the payloads in the segment
    end: int


@dataclass(frozen=True, slots=True)
class AutomqSegmentOpener:
    """Opens the segment that consists of ``measured`` runs. See ``SegmentOpener``."""

    bucket: Bucket
    measured: MeasuredRuns

    def open(self, start: int, end: int, limits: Limits | None = None) -> AutomqReader:
        return AutomqReader(self, start, end, limits or Limits())


def _parts(measured: MeasuredRuns, most_bytes: int) -> list[_RunRequest]:
    """Combine neighbouring runs into requests of at most ``most_bytes``."""
    found: list[_RunRequest] = []
    at = 0
    for run, size in zip(*measured, strict=True):
        last = found[-1] if found else None
        if (
            last is not None
            and run.key
            and last.runs[0].key == run.key
            and last.position + last.size_bytes == run.position
            and last.size_bytes + run.size_bytes <= most_bytes
        ):
            found[-1] = _RunRequest(
                (*last.runs, run),
                last.position,
                last.size_bytes + run.size_bytes,
                last.start,
                at + size,
            )
        else:
            found.append(_RunRequest((run,), run.position, run.size_bytes, at, at + size))
        at += size
    return found


class AutomqReader(SegmentReader):
    """Reads a segment by position, into the caller's buffer.

    Sequential reads keep several requests in flight, with at most ``2 * ahead_bytes``.

    Raises:
        CommitConflict: an object was deleted.
        CorruptLog, UnsupportedFormat: a stream record or a data block is damaged or unknown.
    """

    def __init__(self, opener: AutomqSegmentOpener, start: int, end: int, limits: Limits) -> None:
        self._bucket, self._stores = opener.bucket, limits.stores
        self._most_bytes = limits.ahead_bytes
        self._parts = _parts(opener.measured, limits.ahead_bytes // 2)
        self._starts = [part.start for part in self._parts]
        self._next, self._end = start, end
        self._ready: dict[int, Future[ByteArray]] = {}  # requests by part number, ascending
        self._threads: ThreadPoolExecutor | None = None

    def check_unchanged(self) -> None:
        """Do nothing: objects never change."""

    def read_into(self, target: ByteArray, position: int) -> None:
        """Fill ``target`` with the bytes from ``position`` on."""
        is_in_order = position == self._next
        self._next = position + len(target)
        done = 0
        while done < len(target):
            number = bisect.bisect_right(self._starts, position + done) - 1
            part = self._parts[number]
            content = self._content(number, is_in_order)
            piece = content[position + done - part.start :][: len(target) - done]
            if not len(piece):
                raise CorruptLog("the segment ends here", position + done)
            target[done : done + len(piece)] = piece
            done += len(piece)

    def _content(self, number: int, is_in_order: bool) -> ByteArray:
        for other in [other for other in self._ready if other < number - 1]:
            self._ready.pop(other).cancel()
        if not is_in_order and number not in self._ready:
            found: Future[ByteArray] = Future()
            found.set_result(self._fetch(number))
            for other in [*self._ready][:-1]:
                self._ready.pop(other).cancel()
            self._ready[number] = found
        if is_in_order:
            self._request_from(number)
        return self._ready[number].result()

    def _request_from(self, number: int) -> None:
        """Request the part and the parts after it, within the limits."""
        self._threads = self._threads or ThreadPoolExecutor(_AHEAD, "automq-ahead")
        budget = 2 * self._most_bytes
        for ahead in range(number, min(number + _AHEAD, len(self._parts))):
            part = self._parts[ahead]
            budget -= part.size_bytes
            if ahead > number and (budget < 0 or part.start >= self._end):
                return
            if ahead not in self._ready:
                self._ready[ahead] = self._threads.submit(self._fetch, ahead)

    def _fetch(self, number: int) -> ByteArray:
        part = self._parts[number]
        raw = self._bucket.fetch(part.runs[0], part.position, part.size_bytes, self._stores)
        found: list[ByteArray] = []
        at = 0
        for run in part.runs:
            found.append(_payloads(self._bucket, run, raw[at : at + run.size_bytes]))
            at += run.size_bytes
        content = found[0] if len(found) == 1 else np.concatenate(found)
        if len(content) != part.end - part.start:
            _vanished.add(self._bucket.address)
            _unusual.add(self._bucket.address)
            raise CommitConflict(
                "the runs of the object have more data blocks than expected",
                path=self._bucket.path_of(part.runs[0]),
                remedy="run the command again, without Spark workers (fetch)",
            )
        return content

    def close(self) -> None:
        self._ready.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
