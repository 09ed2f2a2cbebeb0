"""Manage one command's rounds (write transactions) on partitions of an archive, on the driver.

This module reads manifests, writes and renews journals, and commits new manifests. Each system
supplies the contents of the new manifest. A round replaces the manifest that it has read. If
another writer has committed in between, the round fails. A sweep then finds its objects by its
journal.
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
    clear_unused,
    partition_store_at,
    read_versioned_manifest,
)
from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig, LogError, RemoteFailed
from lastwrite.model.log import PartitionLog, ProblemKind, Segment
from lastwrite.storage.objects.store import ObjectStore

_AT_ONCE = 16  # parallel requests; they spend most of their time waiting
_MOST_SEEN = 8192  # manifests kept in memory: two waves of partitions
RENEW_EVERY_S = 60.0  # seconds between checks for journals to renew

S = TypeVar("S")
T = TypeVar("T")
NameT = TypeVar("NameT")
Outcome = LogError | OSError | None


def partition_and_round(folder: str) -> tuple[str, str] | None:
    """The address of a partition, and the key prefix of a round's objects, parsed from ``folder``.

    None if ``folder`` is not a folder that ``ArchiveRounds.begin`` returned.
    """
    above, slash, name = folder.rpartition("/data/")
    return (above, f"data/{name}") if slash and name.endswith("-") else None


def partition_of(folder: str) -> str:
    """The address of the partition to which a folder returned by ``ArchiveRounds.begin``
    belongs.
    """
    found = partition_and_round(folder)
    assert found is not None
    return found[0]


class _ReadAhead:
    """Reads manifests in advance and in parallel, to hide the latency of requests."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._remaining = iter(folders if len(folders) > 1 else ())
        self._pending: dict[str, Future[VersionedManifest]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def read(self, folder: str) -> VersionedManifest:
        """The manifest of a partition. Only the first call uses a manifest that was read ahead."""
        for expected in islice(self._remaining, 2 * _AT_ONCE - len(self._pending)):
            self._pool = self._pool or ThreadPoolExecutor(_AT_ONCE, "manifests")
            self._pending[expected] = self._pool.submit(read_versioned_manifest, expected)
        coming = self._pending.pop(folder, None)
        return read_versioned_manifest(folder) if coming is None else coming.result()


class ArchiveRounds:
    """The manifests that a command has read, and the rounds that it has begun.

    The argument ``folder`` is a partition's address.
    """

    def __init__(self) -> None:
        self._manifests: dict[str, VersionedManifest] = {}
        self._ahead = _ReadAhead(())
        self._worked_on: set[str] = set()  # partitions for which ``now`` was called
        self._rounds: dict[
            str, tuple[object, WriteTransaction]
        ] = {}  # rounds that may still commit
        # store and key of each committed round's journal
        self._journals: list[tuple[ObjectStore, str]] = []
        self._lock = Lock()
        self._renewing: Thread | None = None

    def expect(self, folders: Sequence[str]) -> None:
        """Announce the partitions that will be read, in order, so that some are read in advance."""
        self._ahead = _ReadAhead(folders)

    def manifest_of(self, folder: str) -> VersionedManifest:
        """The manifest of a partition as last read."""
        if folder not in self._manifests:
            if len(self._manifests) >= _MOST_SEEN:
                self._drop_oldest()
            self._manifests[folder] = self._ahead.read(folder)
        return self._manifests[folder]

    def _drop_oldest(self) -> None:
        """Drop the oldest half of the manifests, except the manifests of rounds in progress."""
        for folder in list(islice(self._manifests, _MOST_SEEN // 2)):
            if folder not in self._rounds:
                del self._manifests[folder]
                self._worked_on.discard(folder)

    def now(self, folder: str) -> VersionedManifest:
        """Read the current manifest of a partition.

        If the manifest was already read to get the topic's settings, the first call returns that
        one.
        """
        if folder in self._worked_on:
            self._manifests.pop(folder, None)
        self._worked_on.add(folder)
        return self.manifest_of(folder)

    def address_in(self, to: str, log: PartitionLog) -> str:
        """The address of the log's partition in the archive ``to``."""
        raise NotImplementedError

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        """The folder where the round's tasks write, in the log's own archive or in ``to``.

        Raises:
            InvalidConfig: the archive ``to`` already has the partition.
        """
        return self._begin_for(log, to)

    def _begin_for(self, log: PartitionLog, to: str | None, *, clears: bool = True) -> str:
        folder = log.folder if to is None else self.address_in(to, log)
        return self.begin(folder, log.segments, is_new=to is not None, clears=clears)

    def begin_all(self, logs: Sequence[PartitionLog], to: str | None) -> None:
        """Write the journals of these partitions' rounds in parallel, and delete unused objects.

        If a write fails, the next call of ``output_folder`` for that partition raises the error.
        """

        def begin(log: PartitionLog) -> None:
            self._begin_for(log, to, clears=False)

        with self._clearing():
            map_concurrently(begin, logs)

    @contextlib.contextmanager
    def _clearing(self) -> Iterator[None]:
        """Collect the unused objects of all rounds that begin in this context.

        They are deleted together at its end.
        """
        before = {begun.id for _, begun in self._rounds.values()}
        yield
        new = [(folder, each) for folder, (_, each) in self._rounds.items()]
        with contextlib.suppress(LogError):  # a later round deletes the remaining objects
            clear_unused(
                [
                    (partition_store_at(folder), each)
                    for folder, each in new
                    if each.id not in before
                ]
            )

    def begin(self, folder: str, of: object, *, is_new: bool = False, clears: bool = True) -> str:
        """Start a round: write its journal, and return the folder where its tasks write.

        Args:
            folder: the partition.
            of: the round's input from the log. If this command's previous round had another
                input, that round has failed, and its objects are deleted.
            is_new: the partition must not exist yet.
            clears: as in ``PartitionStore.begin``.

        Raises:
            InvalidConfig: the partition exists.
        """
        last = self._rounds.get(folder)
        if last is None or last[0] != of:
            place = partition_store_at(folder)
            if last is not None:
                place.abandon(last[1])
            if is_new and place.read() is not None:
                raise InvalidConfig(
                    "the archive already has this partition",
                    path=folder,
                    remedy="give --to an archive without this partition",
                )
            transaction = place.begin(None if is_new else self.manifest_of(folder), clears=clears)
            last = self._rounds[folder] = of, transaction
            self._keep_renewing()
        return f"{folder}/{last[1].prefix}"

    @contextlib.contextmanager
    def try_lock(
        self, folders: Mapping[NameT, str], of: Callable[[str], object]
    ) -> Iterator[set[NameT]]:
        """Start rounds of the partitions that have no other round in progress.

        Yields the names of these partitions. At the end, rounds that did not try to commit are
        abandoned.

        Args:
            folders: the addresses of the partitions, by names that the caller chooses.
            of: a function that reads a partition's log by ``now``, and returns the value to pass to
                ``begin`` as ``of``.

        Raises:
            RemoteFailed: the store does not respond.
        """
        free: set[NameT] = set()

        def take(name: NameT) -> None:
            folder = folders[name]
            try:
                told = of(folder)
                self._worked_on.discard(folder)  # the round uses the manifest that was just read
                self.begin(folder, told, clears=False)
            except RemoteFailed:
                raise
            except LogError:  # ignored here, because the compaction will report the error
                free.add(name)
                return
            begun = self._rounds[folder][1]
            place = partition_store_at(folder)
            if place.newer_writer(begun) is None:
                free.add(name)
            else:
                self.take(folder)
                place.yield_to_other(begun)

        def let_go(folder: str) -> None:
            transaction = self.take(folder)
            if transaction is not None:
                partition_store_at(folder).abandon(transaction)

        try:
            with self._clearing():
                outcomes = map_concurrently(take, [*folders])
            refused = [error for error in outcomes if error is not None]
            if refused:
                raise refused[0]
            yield free
        finally:
            map_concurrently(let_go, [*folders.values()])

    def _keep_renewing(self) -> None:
        """Start the thread that renews the journals of long rounds, if it is not running."""
        with self._lock:
            if self._renewing is None or not self._renewing.is_alive():
                self._renewing = Thread(target=self._renew, name="journals", daemon=True)
                self._renewing.start()

    def _renew(self) -> None:
        while self._rounds:
            time.sleep(RENEW_EVERY_S)
            for folder, (_, begun) in list(self._rounds.items()):
                # ignored here, because the commit will report the error
                with contextlib.suppress(LogError):
                    partition_store_at(folder).renew(begun)

    def base(self, folder: str) -> VersionedManifest:
        """The manifest that the partition's round has read. The round's commit replaces it."""
        last = self._rounds.get(folder)
        return (
            self.manifest_of(folder)
            if last is None or last[1].replaced is None
            else last[1].replaced
        )

    def is_open(self, folder: str) -> bool:
        """Whether the partition has a round that has not tried to commit yet."""
        return folder in self._rounds

    def take(self, folder: str) -> WriteTransaction | None:
        """Remove and return the partition's round.

        After this, only the manifest in the store shows whether the round is committed.
        """
        last = self._rounds.pop(folder, None)
        return None if last is None else last[1]

    def commit(self, folder: str, manifest: Manifest) -> None:
        """Commit the new manifest ``manifest``. The journal stays until ``remove_journals`` is
        called.

        Raises:
            CommitConflict, RemoteFailed: as ``PartitionStore.commit``.
        """
        seen, place = self.base(folder), partition_store_at(folder)
        transaction = self.take(folder) or place.begin(seen)
        self._manifests[folder] = place.commit(transaction, manifest, keeps_journal=True)
        self._journals.append((place.store, place.journal(transaction.id)))

    def commit_each(self, commit: Callable[[T], None], wave: Sequence[T]) -> list[Outcome]:
        """Commit several partitions, then delete their journals.

        Returns an error or None for each partition.
        """
        outcomes = map_concurrently(commit, wave)
        self.remove_journals()
        return outcomes

    def remove_journals(self) -> None:
        """Delete the journals of committed rounds, many per request."""
        journals, self._journals = self._journals, []
        by_store: dict[str, tuple[ObjectStore, list[str]]] = {}
        for store, key in journals:
            by_store.setdefault(store.address, (store, []))[1].append(key)
        for store, keys in by_store.values():
            with contextlib.suppress(LogError):  # the next sweep deletes the journals
                store.remove(keys)

    def discard(self, folder: str, keys: Sequence[str]) -> None:
        """Delete objects that a round wrote, and that its commit will not reference.

        Does nothing after an attempt to commit: the objects may be committed, or already deleted.
        """
        last = self._rounds.get(folder)
        if last is not None:
            place = partition_store_at(folder)
            place.store.remove([place.key(key) for key in keys if key.startswith(last[1].prefix)])


def conflict(folder: str, what: str = "log") -> CommitConflict:
    """The error for a round whose manifest no longer has the segments that the round has read."""
    return CommitConflict(
        f"another round has committed since the {what} was read",
        path=folder,
        remedy="nothing is lost; run the command again, which starts from that round",
    )


def delete_replaced_objects(
    stored: dict[int, S], sources: Iterable[Segment], path_of: Callable[[S], str], folder: str
) -> None:
    """Remove the segments ``sources``, which a round replaces, from the manifest's list.

    Raises:
        CommitConflict: the manifest has other segments at their offsets.
    """
    for source in sources:
        there = stored.pop(source.base_offset, None)
        if there is None or path_of(there) != source.path:
            raise conflict(folder)


def reject_damaged(log: PartitionLog, to: str) -> None:
    """Check that a log may be copied into an archive.

    Raises:
        CorruptLog: the log is damaged, so it is omitted from the archive ``to``.
        LogError: the log has a format that is not supported.
    """
    problem = next((problem for problem in log.problems if not problem.is_note), None)
    if problem is not None:
        kind = CorruptLog if problem.kind is ProblemKind.DAMAGED else LogError
        raise kind(f"{problem.kind}, so {to} does not have it: {problem}", path=log.folder)


def map_concurrently(work: Callable[[T], None], wave: Sequence[T]) -> list[Outcome]:
    """Run ``work`` for all items in parallel. Returns an error or None for each."""

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
