"""Compaction and retention of Kafka partitions in an archive: the changes to their manifests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
from msgspec import structs

from lastwrite.archive.manifest import Manifest
from lastwrite.archive.partition_store import partition_store_at
from lastwrite.archive.rounds import (
    ArchiveRounds,
    Outcome,
    delete_replaced_objects,
    map_concurrently,
    partition_of,
    reject_damaged,
)
from lastwrite.engine.rules.retention import Retention
from lastwrite.engine.system import CommitPlan, SegmentParts
from lastwrite.kafka.format.names import KafkaFileKind
from lastwrite.kafka.producers.history import encode_aborted
from lastwrite.kafka.store import archived, fetching
from lastwrite.kafka.store.archived import ArchivedLog, ArchivedMetadata, StoredSegment
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import SegmentOutput


class KafkaRounds(ArchiveRounds):
    """Commits compaction and retention of archived Kafka partitions."""

    def __init__(self) -> None:
        super().__init__()
        # (the manifest's nonce, the topic's settings) by folder
        self._metadata: dict[str, tuple[str, ArchivedMetadata | None]] = {}
        # partitions with equal settings share one object
        self._alike: dict[str, ArchivedMetadata | None] = {}

    def read(self, folder: str) -> PartitionLog:
        """List an archived log by its current manifest."""
        return archived.log_of(self.now(folder).manifest, folder)

    def contents(self, folder: str) -> ArchivedLog:
        """The archived partition's contents, from the manifest that was read last."""
        return archived.contents_of(self.manifest_of(folder).manifest, folder)

    def metadata_of(self, folder: str) -> ArchivedMetadata | None:
        """The topic's settings in the manifest that was read last.

        The settings are cached longer than the manifest, because the daemon requests them for all
        partitions at each check.
        """
        seen, last = self._manifests.get(folder), self._metadata.get(folder)
        if last is None or (seen is not None and seen.manifest.nonce != last[0]):
            seen = self.manifest_of(folder)
            found = archived.contents_of(seen.manifest, folder).known
            last = seen.manifest.nonce, self._alike.setdefault(repr(found), found)
            self._metadata[folder] = last
        return last[1]

    def address_in(self, to: str, log: PartitionLog) -> str:
        return archived.address_in(to, log.name)

    def publish(
        self,
        copies: Sequence[CommitPlan],
        to: str,
        metadata: Callable[[str], ArchivedMetadata | None],
    ) -> list[Outcome]:
        """Write each compacted copy to the archive ``to``. Returns an error or None per copy.

        ``metadata`` returns the topic's settings for a partition's folder.
        """
        return map_concurrently(
            lambda copy: self._publish(copy, to, metadata(copy.log.folder)), copies
        )

    def _publish(self, copy: CommitPlan, to: str, metadata: ArchivedMetadata | None) -> None:
        reject_damaged(copy.log, to)
        self.output_folder(copy.log, to)
        folder = archived.address_in(to, copy.log.name)
        transaction = self.take(folder)
        assert transaction is not None
        fetching.publish(copy, folder, transaction, metadata)

    def swap(self, wave: Sequence[CommitPlan]) -> list[Outcome]:
        """Commit each compaction. Returns an error or None per plan.

        Journals are written together.
        """
        return self.commit_each(self._swap, wave)

    def _swap(self, new: CommitPlan) -> None:
        folder = new.log.folder
        before = archived.contents_of(self.base(folder).manifest, folder)
        stored = {each.base_offset: each for each in before.segments}

        def path_of(there: StoredSegment) -> str:
            return archived.segment_of(there, folder).path

        for sources, made in zip(new.sources, new.outputs, strict=True):
            delete_replaced_objects(stored, sources, path_of, folder)
            if made.stored is not None:
                stored[made.base_offset] = fetching.counted(made)
        after = structs.replace(
            before,
            segments=archived.with_cached_scans(
                map(stored.__getitem__, sorted(stored)), folder, new.scans
            ),
            checkpoint=before.checkpoint if new.first_dirty is None else new.first_dirty,
            aborted=fetching.aborted_after(before.aborted, new),
        )
        self._commit(folder, fetching.retained(after, new.retention))

    def retain(self, wave: Sequence[tuple[PartitionLog, Retention]]) -> list[Outcome]:
        """Delete each log's expired segments, unless they are deleted already."""
        return self.commit_each(self._retain, wave)

    def _retain(self, judged: tuple[PartitionLog, Retention]) -> None:
        log, retention = judged
        if retention.segments:
            before = archived.contents_of(self.base(log.folder).manifest, log.folder)
            after = fetching.retained(before, retention)
            if after != before:
                self._commit(log.folder, after)

    def _commit(self, folder: str, after: ArchivedLog) -> None:
        seen = self.base(folder)
        if self.is_open(folder) or after != archived.contents_of(seen.manifest, folder):
            self.commit(folder, successor(seen.manifest, after))

    def discard_part(self, part: SegmentOutput) -> None:
        """Delete the objects of a new segment and of the segments that continue it."""
        for new in (part, *part.more_outputs):
            if isinstance(new.stored, StoredSegment) and new.log_path:
                folder = os.path.dirname(new.log_path).removesuffix(new.stored.folder.rstrip("/"))
                self.discard(folder.rstrip("/"), [each.key for each in new.stored.objects()])


def successor(manifest: Manifest, after: ArchivedLog) -> Manifest:
    """The next manifest, with the contents ``after``.

    The commit sets the manifest's number (``generation``) and its random ``nonce``.
    """
    return structs.replace(
        manifest, log=msgspec.Raw(msgspec.json.encode(after)), objects=after.objects()
    )


def join_parts(parts: SegmentParts) -> SegmentOutput:
    """Turn each part of a segment into a separate segment.

    An archive does not join parts, because its segments may begin at any batch. The transaction
    index of each segment is written here.
    """
    made = [part for part in parts.parts if not part.is_deleted]
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
                place = partition_store_at(partition_of(parts.folder))
                place.put(part.stored.key(KafkaFileKind.TRANSACTION_INDEX), content)
                part.stored = structs.replace(part.stored, transaction_index_bytes=len(content))
    first, *others = made
    behind = [further for part in others for further in (part, *part.more_outputs)]
    return replace(first, more_outputs=(*first.more_outputs, *behind))
