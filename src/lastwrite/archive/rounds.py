"""The rounds of one command on partitions of an archive, as the driver sees them: manifests read,
journals begun and renewed, new manifests committed. A system adds what it makes of a manifest.

What a round read of a manifest is what it replaces: whoever committed in between has won, and the
round's objects are waste that its journal names.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from threading import Lock, Thread
from typing import TypeVar

from lastwrite.archive.manifest import Manifest
from lastwrite.archive.partition_store import (
    VersionedManifest,
    WriteTransaction,
    place_at,
    read_versioned_manifest,
)
from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig, LogError, RemoteFailed
from lastwrite.model.log import PartitionLog, ProblemKind, Segment
from lastwrite.storage.objects.store import ObjectStore

_AT_ONCE = 16  # requests wait for the store, not for us
_MOST_SEEN = 8192  # manifests that are held, two waves of partitions
RENEW_EVERY_S = 60.0  # is looked whether a journal is to be renewed

S = TypeVar("S")
T = TypeVar("T")
NameT = TypeVar("NameT")
Outcome = LogError | OSError | None


def partition_and_round(folder: str) -> tuple[str, str] | None:
    """The partition's address, and what its round's keys begin with, of a folder that
    ``ArchiveRounds.begin`` gave; None: it is another.
    """
    above, slash, name = folder.rpartition("/data/")
    return (above, f"data/{name}") if slash and name.endswith("-") else None


def partition_of(folder: str) -> str:
    """The partition's address, of a folder that ``ArchiveRounds.begin`` gave."""
    found = partition_and_round(folder)
    assert found is not None
    return found[0]


class _ReadAhead:
    """Reads manifests before they are asked for: a request takes some time, whoever waits."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._left = iter(folders if len(folders) > 1 else ())
        self._coming: dict[str, Future[VersionedManifest]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def read(self, folder: str) -> VersionedManifest:
        """The manifest; each is read once ahead, and then when it is asked for."""
        for expected in islice(self._left, 2 * _AT_ONCE - len(self._coming)):
            self._pool = self._pool or ThreadPoolExecutor(_AT_ONCE, "manifests")
            self._coming[expected] = self._pool.submit(read_versioned_manifest, expected)
        coming = self._coming.pop(folder, None)
        return read_versioned_manifest(folder) if coming is None else coming.result()


class ArchiveRounds:
    """What a command has read of partitions of an archive, and the rounds that it has begun.

    ``folder`` is a partition's address everywhere.
    """

    def __init__(self) -> None:
        self._seen: dict[str, VersionedManifest] = {}
        self._ahead = _ReadAhead(())
        self._worked_on: set[str] = set()  # whose log somebody has
        self._rounds: dict[str, tuple[object, WriteTransaction]] = {}  # that may still commit
        self._journals: list[tuple[ObjectStore, str]] = []  # of rounds that have committed
        self._turn = Lock()
        self._renewing: Thread | None = None

    def expect(self, folders: Sequence[str]) -> None:
        """Say which partitions will be asked for, in this order: some are read ahead."""
        self._ahead = _ReadAhead(folders)

    def seen(self, folder: str) -> VersionedManifest:
        """The manifest that was read last."""
        if folder not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._forget()
            self._seen[folder] = self._ahead.read(folder)
        return self._seen[folder]

    def _forget(self) -> None:
        """Let go of the manifests that were read first, but for those that a round has seen."""
        for folder in list(islice(self._seen, _MOST_SEEN // 2)):
            if folder not in self._rounds:
                del self._seen[folder]
                self._worked_on.discard(folder)

    def now(self, folder: str) -> VersionedManifest:
        """The manifest as it is now, or was when the partition's settings were asked for a moment
        ago.
        """
        if folder in self._worked_on:
            self._seen.pop(folder, None)
        self._worked_on.add(folder)
        return self.seen(folder)

    def address_in(self, to: str, log: PartitionLog) -> str:
        """The address of the log's partition in the archive ``to``."""
        raise NotImplementedError

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        """Where the round's tasks write, in the log's own partition or in that of the archive
        ``to``.

        Raises:
            InvalidConfig: ``to`` has the partition already.
        """
        folder = log.folder if to is None else self.address_in(to, log)
        return self.begin(folder, log.segments, is_new=to is not None)

    def begin_all(self, logs: Sequence[PartitionLog], to: str | None) -> None:
        """Write the journals of these partitions' rounds, many at once. Where that fails the next
        call of ``output_folder`` says so.
        """

        def begin(log: PartitionLog) -> None:
            self.output_folder(log, to)

        map_concurrently(begin, logs)

    def begin(self, folder: str, of: object, *, is_new: bool = False) -> str:
        """Where the round's tasks write; its journal is there before the first of them does.

        Args:
            folder: the partition.
            of: what the round has read of the log. A round of something else has failed, and what
                it wrote is removed.
            is_new: the partition must not be there yet.

        Raises:
            InvalidConfig: it is.
        """
        last = self._rounds.get(folder)
        if last is None or last[0] != of:
            place = place_at(folder)
            if last is not None:
                place.abandon(last[1])
            if is_new and place.read() is not None:
                raise InvalidConfig(
                    "a partition exists already",
                    path=folder,
                    remedy="give --to an archive without this partition",
                )
            begun = place.begin(None if is_new else self.seen(folder))
            last = self._rounds[folder] = of, begun
            self._keep_renewing()
        return f"{folder}/{last[1].prefix}"

    @contextlib.contextmanager
    def try_lock(
        self, folders: Mapping[NameT, str], of: Callable[[str], object]
    ) -> Iterator[set[NameT]]:
        """Begin rounds of those partitions of which nobody else has begun one of late; the context
        gives which. At its end what has not tried to commit is removed.

        Args:
            folders: the partitions, by whatever they are called.
            of: reads a partition's log by ``now``, and says what ``begin`` is to be told of it.

        Raises:
            RemoteFailed: the store does not answer.
        """
        free: set[NameT] = set()

        def take(name: NameT) -> None:
            folder = folders[name]
            try:
                told = of(folder)
                self._worked_on.discard(folder)  # the round gets what was read just now
                self.begin(folder, told)
            except RemoteFailed:
                raise
            except LogError:  # the round will say so
                free.add(name)
                return
            begun = self._rounds[folder][1]
            place = place_at(folder)
            if place.newer_writer(begun) is None:
                free.add(name)
            else:
                self.take(folder)
                place.yield_to_other(begun)

        def let_go(folder: str) -> None:
            begun = self.take(folder)
            if begun is not None:
                place_at(folder).abandon(begun)

        try:
            refused = [error for error in map_concurrently(take, [*folders]) if error is not None]
            if refused:
                raise refused[0]
            yield free
        finally:
            map_concurrently(let_go, [*folders.values()])

    def _keep_renewing(self) -> None:
        """Say of rounds that last long that they still run, as long as there is one."""
        with self._turn:
            if self._renewing is None or not self._renewing.is_alive():
                self._renewing = Thread(target=self._renew, name="journals", daemon=True)
                self._renewing.start()

    def _renew(self) -> None:
        while self._rounds:
            time.sleep(RENEW_EVERY_S)
            for folder, (_, begun) in list(self._rounds.items()):
                with contextlib.suppress(LogError):  # the commit will say so
                    place_at(folder).renew(begun)

    def base(self, folder: str) -> VersionedManifest:
        """What the partition's next commit replaces: what its round has seen, if one was begun."""
        last = self._rounds.get(folder)
        return self.seen(folder) if last is None or last[1].seen is None else last[1].seen

    def is_open(self, folder: str) -> bool:
        """Whether a round was begun that has not tried to commit."""
        return folder in self._rounds

    def take(self, folder: str) -> WriteTransaction | None:
        """The partition's round, which is not open from here on: whether its objects count, only
        the store knows.
        """
        last = self._rounds.pop(folder, None)
        return None if last is None else last[1]

    def commit(self, folder: str, made: Manifest) -> None:
        """Let ``made`` count; the journal goes with ``remove_journals``.

        Raises:
            CommitConflict, RemoteFailed: as ``Place.commit``.
        """
        seen, place = self.base(folder), place_at(folder)
        begun = self.take(folder) or place.begin(seen)
        self._seen[folder] = place.commit(begun, made, keeps_journal=True)
        self._journals.append((place.store, place.journal(begun.id)))

    def commit_each(self, commit: Callable[[T], None], wave: Sequence[T]) -> list[Outcome]:
        """Commit for each of the wave; one for one why it failed. Their journals go together."""
        outcomes = map_concurrently(commit, wave)
        self.remove_journals()
        return outcomes

    def remove_journals(self) -> None:
        """Remove those of the rounds that have committed, many by one request."""
        journals, self._journals = self._journals, []
        by_store: dict[str, tuple[ObjectStore, list[str]]] = {}
        for store, key in journals:
            by_store.setdefault(store.address, (store, []))[1].append(key)
        for store, keys in by_store.values():
            with contextlib.suppress(LogError):  # the next sweep finds them
                store.remove(keys)

    def discard(self, folder: str, keys: Sequence[str]) -> None:
        """Remove objects that nobody will name: of a round that has not tried to commit. After a
        try its objects may count; those of one that lost are gone already.
        """
        last = self._rounds.get(folder)
        if last is not None:
            place = place_at(folder)
            place.store.remove([place.key(key) for key in keys if key.startswith(last[1].prefix)])


def conflict(folder: str, what: str = "log") -> CommitConflict:
    """What a round has come to that finds other segments than those it has read."""
    return CommitConflict(
        f"another round has committed since the {what} was read",
        path=folder,
        remedy="run again: it begins with what that round left; nothing is lost",
    )


def delete_replaced_objects(
    stored: dict[int, S], sources: Iterable[Segment], path_of: Callable[[S], str], folder: str
) -> None:
    """Take the segments that a round replaces out of those that the manifest has, by base offset.

    Raises:
        CommitConflict: it has others.
    """
    for source in sources:
        there = stored.pop(source.base_offset, None)
        if there is None or path_of(there) != source.path:
            raise conflict(folder)


def reject_damaged(log: PartitionLog, to: str) -> None:
    """
    Raises:
        CorruptLog: the log is damaged, so it is left out of the archive ``to``.
        LogError: the log has a format that is not supported.
    """
    problem = next((problem for problem in log.problems if not problem.is_note), None)
    if problem is not None:
        kind = CorruptLog if problem.kind is ProblemKind.DAMAGED else LogError
        raise kind(f"{problem.kind}, and left out of {to}: {problem}", path=log.folder)


def map_concurrently(work: Callable[[T], None], wave: Sequence[T]) -> list[Outcome]:
    """Do the work for all, many at once; one for one why it failed."""

    def tried(one: T) -> Outcome:
        try:
            work(one)
        except (LogError, OSError) as error:
            return error
        return None

    if len(wave) < 2:
        return [tried(one) for one in wave]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(tried, wave))
