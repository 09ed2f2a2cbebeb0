"""Compaction of RocketMQ queues in an archive: the changes of their manifests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from msgspec import structs

from lastwrite.archive.layout import partition_address
from lastwrite.archive.partition_store import partition_store_at
from lastwrite.archive.rounds import (
    ArchiveRounds,
    Outcome,
    delete_replaced_objects,
    map_concurrently,
    reject_damaged,
)
from lastwrite.engine.system import CommitPlan
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import Limits, SegmentOutput
from lastwrite.rocketmq.store import archived, fetching, queues
from lastwrite.rocketmq.store.archived import ArchivedQueue, StoredFile
from lastwrite.rocketmq.store.archived_file import ArchivedFile
from lastwrite.rocketmq.store.topics import read_topics


class QueueRounds(ArchiveRounds):
    """Compactions of RocketMQ queues in an archive; implements ``archive.rounds``."""

    def read(self, folder: str) -> PartitionLog:
        """The queue's log, as its current manifest describes it."""
        return archived.log_of(self.now(folder).manifest, folder)

    def contents(self, folder: str) -> ArchivedQueue:
        """The contents of the manifest that was read last."""
        return archived.contents_of(self.manifest_of(folder).manifest, folder)

    def address_in(self, to: str, log: PartitionLog) -> str:
        return partition_address(to, archived.SYSTEM, log.name.topic, log.name.partition)

    def swap(self, wave: Sequence[CommitPlan]) -> list[Outcome]:
        """Commit the plans, then delete all journals. Returns an error or None for each."""
        return self.commit_each(self._swap, wave)

    def _swap(self, new: CommitPlan) -> None:
        folder = new.log.folder
        seen = self.base(folder)
        before = archived.contents_of(seen.manifest, folder)
        stored = {each.base_offset: each for each in before.files}

        def path_of(there: StoredFile) -> str:
            return archived.segment_of(there, folder).path

        for sources, made in zip(new.sources, new.outputs, strict=True):
            delete_replaced_objects(stored, sources, path_of, folder)
            if isinstance(made.stored, StoredFile):
                stored[made.base_offset] = made.stored
        after = structs.replace(
            before,
            files=tuple(stored[base] for base in sorted(stored)),
            checkpoint=before.checkpoint if new.first_dirty is None else new.first_dirty,
        )
        if self.is_open(folder) or after != before:
            self.commit(folder, archived.manifest_of(seen, after, folder))

    def publish(self, copies: Sequence[CommitPlan], to: str) -> list[Outcome]:
        """Create a queue in ``to`` from each copy. Returns an error or None for each."""
        return map_concurrently(lambda copy: self._publish(copy, to), copies)

    def _publish(self, copy: CommitPlan, to: str) -> None:
        log, folder = copy.log, self.address_in(to, copy.log)
        reject_damaged(log, to)
        self.output_folder(log, to)
        transaction, place = self.take(folder), partition_store_at(folder)
        assert transaction is not None
        replaced = {source.path for sources in copy.sources for source in sources}
        files = [made.stored for made in copy.outputs if isinstance(made.stored, StoredFile)]
        with (
            place.abort_on_error(transaction),
            closing(fetching.IncomingMessages(log, "")) as incoming,
        ):
            for n, segment in enumerate(log.segments):
                if segment.path not in replaced:
                    start = queues.address_of(segment.path)
                    target, span = (
                        ArchivedFile(folder, transaction.prefix, start),
                        (0, log.end_offset),
                    )
                    made = incoming.take(n, segment, span, target, Limits(), lambda written: None)
                    files += [made] if made is not None else []
                    place.renew(transaction)
            after = structs.replace(
                self._source_of(log),
                files=tuple(sorted(files, key=lambda each: each.base_offset)),
                checkpoint=log.checkpoint if copy.first_dirty is None else copy.first_dirty,
            )
        place.commit(transaction, archived.manifest_of(None, after, folder))

    def _source_of(self, log: PartitionLog) -> ArchivedQueue:
        """The manifest fields for a log, without the list of files."""
        if archived.is_archived(log.folder):
            return self.contents(log.folder)
        root = queues.root_of(log.folder)
        stored = (each.largest_timestamp_ms for each in log.segments if each.size_bytes)
        return ArchivedQueue(
            end_offset=log.end_offset,
            file_bytes=log.segments[0].file_bytes if log.segments else 0,
            last_stored_ms=max(stored, default=-1),
            last_message=fetching.last_message(log),
            topic=read_topics(root).get(log.name.topic),
            source=root,
            brought_ms=time.time_ns() // 1_000_000,
        )

    def discard_part(self, part: SegmentOutput) -> None:
        """Remove the objects of one new file of an unfinished compaction."""
        folder = archived.queue_of_file(part.log_path)
        if folder is not None and isinstance(part.stored, StoredFile):
            self.discard(folder, [each.key for each in part.stored.objects()])
