"""A round on partitions of an archive, as the driver sees it: manifests read, journals begun, new
manifests committed.

What a round read of a manifest is what it replaces: whoever committed in between has won, and the
round's objects are waste that its journal names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from typing import TypeVar

import msgspec
from msgspec import structs

from lastwrite.archive.manifest import Manifest
from lastwrite.archive.place import GRACE_MS, Round, Seen
from lastwrite.engine.rules.retention import Retention
from lastwrite.engine.system import CommitPlan, Parts
from lastwrite.errors import CommitConflict, LogError
from lastwrite.kafka.format.names import FileKind
from lastwrite.kafka.producers.history import encode_aborted
from lastwrite.kafka.store import archived
from lastwrite.kafka.store.archived import ArchivedLog, StoredSegment
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import SegmentOutput

_AT_ONCE = 16  # requests wait for the store, not for us

T = TypeVar("T")
Outcome = LogError | OSError | None


def partition_and_round(folder: str) -> tuple[str, str] | None:
    """The partition's address, and what its round's keys begin with, of a folder that
    ``Rounds.output_folder`` gave; None: it is another.
    """
    above, slash, name = folder.rpartition("/data/")
    return (above, f"data/{name}") if slash and name.endswith("-") else None


class Rounds:
    """What a command has read of partitions of an archive, and the rounds that it has begun."""

    def __init__(self, grace_ms: int = GRACE_MS) -> None:
        self._grace_ms = grace_ms
        self._seen: dict[str, Seen] = {}
        self._worked_on: set[str] = set()  # whose log somebody has
        self._rounds: dict[str, tuple[PartitionLog, Round]] = {}  # that may still commit

    def seen(self, folder: str) -> Seen:
        """The manifest that was read last."""
        if folder not in self._seen:
            self._seen[folder] = archived.read_seen(folder)
        return self._seen[folder]

    def read(self, folder: str) -> PartitionLog:
        """The log as it is now, or was when its settings were asked for a moment ago."""
        if folder in self._worked_on:
            self._seen.pop(folder, None)
        self._worked_on.add(folder)
        return archived.log_of(self.seen(folder).manifest, folder)

    def contents(self, folder: str) -> ArchivedLog:
        """What the manifest that was read last says."""
        return archived.contents_of(self.seen(folder).manifest, folder)

    def output_folder(self, log: PartitionLog) -> str:
        """Where the round's tasks write; its journal is there before the first of them does."""
        last = self._rounds.get(log.folder)
        if last is None or last[0].segments != log.segments:
            place = archived.place_of(log.folder)
            if last is not None:  # of a round that failed
                place.abandon(last[1])
            last = log, place.begin(self.seen(log.folder), self._grace_ms)
            self._rounds[log.folder] = last
        return f"{log.folder}/{last[1].prefix}"

    def swap(self, wave: Sequence[CommitPlan]) -> list[Outcome]:
        """Commit each; plan for plan why it failed."""
        return _each(self._swap, wave)

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
                assert isinstance(made.stored, StoredSegment)
                # Of several segments of one part nobody counted them.
                records = None if made.further else made.records
                stored[made.base_offset] = structs.replace(made.stored, records=records)
        after = structs.replace(
            before,
            segments=tuple(stored[base] for base in sorted(stored)),
            checkpoint=before.checkpoint if new.first_dirty is None else new.first_dirty,
            aborted=_aborted_after(before, new),
        )
        self._commit(folder, _retained(after, new.retention))

    def retain(self, wave: Sequence[tuple[PartitionLog, Retention]]) -> list[Outcome]:
        """Take out what the retentions say, where a round has not done so already."""
        return _each(self._retain, wave)

    def _retain(self, judged: tuple[PartitionLog, Retention]) -> None:
        log, retention = judged
        if retention.segments:
            before = archived.contents_of(self._base(log.folder).manifest, log.folder)
            after = _retained(before, retention)
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
        self._seen[folder] = place.commit(begun, made)

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
                place = archived.place_of(parts.log.folder)
                place.put(part.stored.key(FileKind.TRANSACTION_INDEX), content)
                part.stored = structs.replace(part.stored, transaction_index_bytes=len(content))
    first, *others = made
    behind = [further for part in others for further in (part, *part.further)]
    return replace(first, further=(*first.further, *behind))


def _aborted_after(before: ArchivedLog, new: CommitPlan) -> tuple[tuple[int, int, int, int], ...]:
    """The entries of the transaction indexes as the round leaves them."""
    places = {segment.base_offset: n for n, segment in enumerate(new.log.segments)}
    ends = {
        source.base_offset: new.log.segment_end(places[source.base_offset])
        for sources in new.sources
        for source in sources
    }
    stay = [
        entry
        for entry in before.aborted
        if not any(base <= entry[2] < end for base, end in ends.items())
    ]
    return tuple(sorted((*stay, *map(astuple, new.aborted)), key=lambda entry: entry[2]))


def _retained(log: ArchivedLog, retention: Retention | None) -> ArchivedLog:
    """The log without what ``retention`` takes."""
    if retention is None or not retention.segments:
        return log
    return structs.replace(
        log,
        segments=tuple(each for each in log.segments if each.base_offset >= retention.first_base),
        aborted=tuple(each for each in log.aborted if each[2] >= retention.log_start),
        log_start=max(log.log_start, retention.log_start),
    )


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
