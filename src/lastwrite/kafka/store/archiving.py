"""A round on partitions of an archive, as the driver sees it: manifests read, journals begun, new
manifests committed.

What a round read of a manifest is what it replaces: whoever committed in between has won, and the
round's objects are waste that its journal names.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from threading import Lock, Thread
from typing import TypeVar

import msgspec
from msgspec import structs

from lastwrite.archive.layout import partition_address
from lastwrite.archive.manifest import Manifest
from lastwrite.archive.place import GRACE_MS, Place, Round, Seen
from lastwrite.engine.rules.retention import Retention
from lastwrite.engine.system import CommitPlan, Parts
from lastwrite.errors import CommitConflict, InvalidConfig, LogError
from lastwrite.kafka.format.names import FileKind
from lastwrite.kafka.producers.history import encode_aborted
from lastwrite.kafka.store import archived, fetching
from lastwrite.kafka.store.archived import ArchivedLog, Known, StoredSegment
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import SegmentOutput
from lastwrite.storage.objects.store import Store

_AT_ONCE = 16  # requests wait for the store, not for us
_MOST_SEEN = 8192  # manifests that are held, two waves of partitions
RENEW_EVERY_S = 60.0  # is looked whether a journal is to be renewed

T = TypeVar("T")
Outcome = LogError | OSError | None


def partition_and_round(folder: str) -> tuple[str, str] | None:
    """The partition's address, and what its round's keys begin with, of a folder that
    ``Rounds.output_folder`` gave; None: it is another.
    """
    above, slash, name = folder.rpartition("/data/")
    return (above, f"data/{name}") if slash and name.endswith("-") else None


def partition_of(folder: str) -> str:
    """The partition's address, of a folder that ``Rounds.output_folder`` gave."""
    found = partition_and_round(folder)
    assert found is not None
    return found[0]


def _address_in(to: str, log: PartitionLog) -> str:
    return partition_address(to, archived.SYSTEM, log.name.topic, log.name.partition)


def _refuse_existing(place: Place, folder: str) -> None:
    """Say no to a copy over a partition that is there."""
    if place.read() is not None:
        raise InvalidConfig(
            "a partition exists already",
            path=folder,
            remedy="give --to an archive without this partition",
        )


class _ReadAhead:
    """Reads manifests before they are asked for: a request takes some time, whoever waits."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._left = iter(folders if len(folders) > 1 else ())
        self._coming: dict[str, Future[Seen]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def read(self, folder: str) -> Seen:
        """The manifest; each is read once ahead, and then when it is asked for."""
        for expected in islice(self._left, 2 * _AT_ONCE - len(self._coming)):
            self._pool = self._pool or ThreadPoolExecutor(_AT_ONCE, "manifests")
            self._coming[expected] = self._pool.submit(archived.read_seen, expected)
        coming = self._coming.pop(folder, None)
        return archived.read_seen(folder) if coming is None else coming.result()


class Rounds:
    """What a command has read of partitions of an archive, and the rounds that it has begun."""

    def __init__(self, grace_ms: int = GRACE_MS) -> None:
        self._grace_ms = grace_ms
        self._seen: dict[str, Seen] = {}
        self._ahead = _ReadAhead(())
        self._worked_on: set[str] = set()  # whose log somebody has
        self._rounds: dict[str, tuple[PartitionLog, Round]] = {}  # that may still commit
        self._journals: list[tuple[Store, str]] = []  # of rounds that have committed
        self._turn = Lock()
        self._renewing: Thread | None = None

    def expect(self, folders: Sequence[str]) -> None:
        """Say which partitions will be asked for, in this order: some are read ahead."""
        self._ahead = _ReadAhead(folders)

    def seen(self, folder: str) -> Seen:
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

    def read(self, folder: str) -> PartitionLog:
        """The log as it is now, or was when its settings were asked for a moment ago."""
        if folder in self._worked_on:
            self._seen.pop(folder, None)
        self._worked_on.add(folder)
        return archived.log_of(self.seen(folder).manifest, folder)

    def contents(self, folder: str) -> ArchivedLog:
        """What the manifest that was read last says."""
        return archived.contents_of(self.seen(folder).manifest, folder)

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        """Where the round's tasks write, in the log's own partition or in that of the archive
        ``to``; its journal is there before the first of them does.

        Raises:
            InvalidConfig: ``to`` has the partition already.
        """
        folder = log.folder if to is None else _address_in(to, log)
        last = self._rounds.get(folder)
        if last is None or last[0].segments != log.segments:
            place = archived.place_of(folder)
            if last is not None:  # of a round that failed
                place.abandon(last[1])
            if to is not None:
                _refuse_existing(place, folder)
            seen = self.seen(folder) if to is None else None
            last = log, place.begin(seen, self._grace_ms)
            self._rounds[folder] = last
            self._keep_renewing()
        return f"{folder}/{last[1].prefix}"

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
                    archived.place_of(folder).renew(begun)

    def begin(self, logs: Sequence[PartitionLog], to: str | None) -> None:
        """Write the journals of these partitions' rounds, many at once. Where that fails the next
        call of ``output_folder`` says so.
        """

        def begin(log: PartitionLog) -> None:
            self.output_folder(log, to)

        _each(begin, logs)

    def publish(
        self, copies: Sequence[CommitPlan], to: str, known: Callable[[str], Known | None]
    ) -> list[Outcome]:
        """Make a partition of the archive ``to`` of each; copy for copy why there is none.
        ``known``: what is known of the topic of a partition's folder.
        """
        return _each(lambda copy: self._publish(copy, to, known(copy.log.folder)), copies)

    def _publish(self, copy: CommitPlan, to: str, known: Known | None) -> None:
        damage = next((problem for problem in copy.log.problems if not problem.is_note), None)
        if damage is not None:
            raise LogError(f"damaged, and left out of {to}: {damage}", path=copy.log.folder)
        self.output_folder(copy.log, to)
        folder = _address_in(to, copy.log)
        fetching.publish(copy, folder, self._rounds.pop(folder)[1], known)

    def swap(self, wave: Sequence[CommitPlan]) -> list[Outcome]:
        """Commit each; plan for plan why it failed. Their journals go together."""
        outcomes = _each(self._swap, wave)
        self._remove_journals()
        return outcomes

    def _remove_journals(self) -> None:
        journals, self._journals = self._journals, []
        by_store: dict[str, tuple[Store, list[str]]] = {}
        for store, key in journals:
            by_store.setdefault(store.address, (store, []))[1].append(key)
        for store, keys in by_store.values():
            with contextlib.suppress(LogError):  # the next sweep finds them
                store.remove(keys)

    def _swap(self, new: CommitPlan) -> None:
        folder = new.log.folder
        before = archived.contents_of(self._base(folder).manifest, folder)
        stored = {each.base_offset: each for each in before.segments}
        for sources, made in zip(new.sources, new.made, strict=True):
            for source in sources:
                there = stored.pop(source.base_offset, None)
                if there is None or archived.segment_of(there, folder).path != source.path:
                    raise CommitConflict(
                        "another round has committed since the log was read",
                        path=folder,
                        remedy="run again: it begins with what that round left; nothing is lost",
                    )
            if made.stored is not None:
                stored[made.base_offset] = fetching.counted(made)
        after = structs.replace(
            before,
            segments=tuple(stored[base] for base in sorted(stored)),
            checkpoint=before.checkpoint if new.first_dirty is None else new.first_dirty,
            aborted=fetching.aborted_after(before.aborted, new),
        )
        self._commit(folder, fetching.retained(after, new.retention))

    def retain(self, wave: Sequence[tuple[PartitionLog, Retention]]) -> list[Outcome]:
        """Take out what the retentions say, where a round has not done so already."""
        outcomes = _each(self._retain, wave)
        self._remove_journals()
        return outcomes

    def _retain(self, judged: tuple[PartitionLog, Retention]) -> None:
        log, retention = judged
        if retention.segments:
            before = archived.contents_of(self._base(log.folder).manifest, log.folder)
            after = fetching.retained(before, retention)
            if after != before:
                self._commit(log.folder, after)

    def _base(self, folder: str) -> Seen:
        """What the partition's next commit replaces: what its round has seen, if one was begun."""
        last = self._rounds.get(folder)
        return self.seen(folder) if last is None or last[1].seen is None else last[1].seen

    def _commit(self, folder: str, after: ArchivedLog) -> None:
        seen = self._base(folder)
        place = archived.place_of(folder)
        if after == archived.contents_of(seen.manifest, folder) and folder not in self._rounds:
            return
        # From here on the round is not open: whether its objects count, only the store knows.
        last = self._rounds.pop(folder, None)
        begun = place.begin(seen, self._grace_ms) if last is None else last[1]
        made = successor(seen.manifest, after)
        self._seen[folder] = place.commit(begun, made, keeps_journal=True)
        self._journals.append((place.store, place.journal(begun.id)))

    def discard(self, part: SegmentOutput) -> None:
        """Remove the objects of a segment that nobody will name: of a round that has not tried to
        commit. After a try its objects may count; those of one that lost are gone already.
        """
        for new in (part, *part.further):
            if isinstance(new.stored, StoredSegment) and new.log_path:
                folder = os.path.dirname(new.log_path).removesuffix(new.stored.folder.rstrip("/"))
                folder = folder.rstrip("/")
                last = self._rounds.get(folder)
                if last is not None and new.stored.folder.startswith(last[1].prefix):
                    place = archived.place_of(folder)
                    place.store.remove([place.key(each.key) for each in new.stored.objects()])


def successor(manifest: Manifest, after: ArchivedLog) -> Manifest:
    """The manifest with other contents; ``Place.commit`` gives it what tells it from the last."""
    return structs.replace(
        manifest, log=msgspec.Raw(msgspec.json.encode(after)), objects=after.objects()
    )


def join_parts(parts: Parts) -> SegmentOutput:
    """The parts of a segment as segments of their own: an archive joins nothing, and its segments
    may begin at any batch. The transaction index of each is written here.
    """
    made = [part for part in parts.parts if not part.is_gone]
    if not made:
        return parts.parts[0]
    if len(parts.parts) > 1 and parts.aborted:
        ends = [part.base_offset for part in made[1:]]
        for part, end in zip(made, [*ends, None], strict=True):
            inside = [
                entry
                for entry in parts.aborted
                if (part is made[0] or part.base_offset <= entry.last_offset)
                and (end is None or entry.last_offset < end)
            ]
            if inside and isinstance(part.stored, StoredSegment):
                content = encode_aborted(inside)
                place = archived.place_of(partition_of(parts.folder))
                place.put(part.stored.key(FileKind.TRANSACTION_INDEX), content)
                part.stored = structs.replace(part.stored, transaction_index_bytes=len(content))
    first, *others = made
    behind = [further for part in others for further in (part, *part.further)]
    return replace(first, further=(*first.further, *behind))


def _each(work: Callable[[T], None], wave: Sequence[T]) -> list[Outcome]:
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
