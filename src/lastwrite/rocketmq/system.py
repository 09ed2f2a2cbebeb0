"""RocketMQ's part of the engine: compaction logs, their rules and their format.

A queue of a topic is a partition, a file of its compaction log is a segment, and a record is a
batch with one record. There are two kinds of compaction:

- By default, each closed file is replaced by a file of the same name with the remaining records. A
  file without removed records is kept unchanged, and a pair without remaining records is removed. A
  broker can serve such a store.
- ``like_broker`` packs the records of all closed files from address 0. The result is byte for byte
  that of the broker's compaction.

Source: RocketMQ 5.5.0 CompactionLog, CompactionStore; docs/formats/rocketmq-compaction.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache, partial

from lastwrite.archive.rounds import partition_and_round
from lastwrite.config.system import SettingSources
from lastwrite.engine.rules.ranges import Range, cleanable_range, is_at_rest
from lastwrite.engine.system import CommitPlan, Decision, Format, SegmentAppender, System
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.model.policy import LONG_MAX, Policy
from lastwrite.model.work import RewriteUnit, SegmentOutput
from lastwrite.reports.settings import Setting
from lastwrite.reports.untouched import UntouchedFile
from lastwrite.rocketmq.format.chunk import RocketmqFormat
from lastwrite.rocketmq.format.names import OFFSET_DIGITS
from lastwrite.rocketmq.rules.settings import DROP, KEEP, RocketmqConfig
from lastwrite.rocketmq.store import archived, live_files, lock, ordinary, queues
from lastwrite.rocketmq.store import publish as publishing
from lastwrite.rocketmq.store.archived_file import ArchivedFile
from lastwrite.rocketmq.store.archiving import QueueRounds
from lastwrite.rocketmq.store.publish import Pair, QueueChange
from lastwrite.rocketmq.store.staging import StagedFiles
from lastwrite.rocketmq.store.topic_copies import copy_config
from lastwrite.rocketmq.store.untouched import untouched_by_round
from lastwrite.storage import quarantine
from lastwrite.storage.layout import PartitionSnapshot
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.objects.promises import reject_if_broken
from lastwrite.storage.parallel_sync import Outcome, outcome
from lastwrite.storage.quarantine import QuarantineFile
from lastwrite.storage.throttle import Spend


class RocketmqSystem(System):
    """RocketMQ's implementation of ``engine.system.System``, which documents the methods."""

    name = "rocketmq"
    scan_kernel = "lastwrite.rocketmq.format.chunk_kernels:walk"
    kind_of_path = "a RocketMQ store"
    offset_span = LONG_MAX
    joins_parts = False  # a record stores its address, so parts cannot be joined
    # Scan results are not stored, because a broker does not load a queue's folder with other files.
    notes = QuarantineFile(
        lock.PLACE,
        str,
        quarantine.name_of,
        queues.folder_of,
        archived.SYSTEM,
        lambda root, names: archived.is_root(root),
    )
    damage_remedy = RocketmqFormat.damage_remedy
    governs_keyless = "keyless.messages"
    policy_remedy = ""  # every queue with a compaction log is compacted
    no_retention = "a compaction log has no retention"
    copies_beside_a_broker = False  # ``--to`` hard-links files that are not rewritten

    # ------------------------------------------------------------------ layout

    # For a store, ``scan_root`` returns no file versions. The daemon needs none, because it does
    # not run beside a broker, and the files change only while a broker runs.
    names_of_parts = queues.NAMES_OF_PARTS
    find = staticmethod(queues.find_queues)
    name_of = staticmethod(queues.name_of)
    root_of = staticmethod(queues.root_of)
    hold = staticmethod(lock.hold)
    reject_if_locked = staticmethod(lock.reject_if_locked)
    broker_of = staticmethod(lock.broker_of)

    def scan_root(self, root: str, /) -> list[PartitionSnapshot]:
        return archived.scan_root(root) or ([] if is_address(root) else super().scan_root(root))

    def try_lock(
        self, root: str, names: Collection[TopicPartition], /
    ) -> AbstractContextManager[set[TopicPartition]]:
        if not archived.is_root(root):
            return lock.try_lock(root, names)
        reject_if_broken(os.path.dirname(root))
        folders = {name: archived.folder_of(root, name) for name in names}
        return self._rounds.try_lock(folders, lambda folder: self._rounds.read(folder).segments)

    def __init__(self) -> None:
        self._rounds = QueueRounds()  # compactions in archives

    def with_sources(self, sources: SettingSources) -> RocketmqSystem:
        super().with_sources(sources)
        return RocketmqSystem()

    def check_sources(self, folders: Sequence[str], /) -> None:
        self._rounds.expect([folder for folder in folders if archived.is_archived(folder)])

    def reject_unclean(self, root: str, config: Mapping[str, object]) -> None:
        lock.reject_unclean(root, goes_on=RocketmqConfig.from_names(config).unclean)

    # ------------------------------------------------------------------ rules

    def check_config(self, config: Mapping[str, object]) -> None:
        RocketmqConfig.from_names(config)
        ordinary.use(config)  # the commit log may be in another folder

    def settings_of(self, folder: str, config: Mapping[str, object]) -> tuple[Setting, ...]:
        return RocketmqConfig.from_names(config).listed(config)

    def decide(
        self,
        log: PartitionLog,
        config: Mapping[str, object],
        now_ms: int,
        include_active: bool,
        like_broker: bool = False,
    ) -> Decision:
        """Decide what to compact.

        ``like_broker`` compacts all closed files if one is dirty, and drops deletes at once.

        Raises:
            InvalidConfig: ``like_broker`` is used with the active file or an archive, which a
                broker never compacts.
        """
        settings = _config_of(tuple((name, type(value), value) for name, value in config.items()))
        if like_broker and log.is_closed:
            raise InvalidConfig("brokers do not compact archives", remedy="leave out --like-broker")
        if like_broker:
            if include_active:
                raise InvalidConfig(
                    "brokers never compact the active file",
                    remedy="leave out --like-broker or --include-active",
                )
            settings = replace(
                settings,
                min_cleanable_dirty_ratio=0.0,
                min_compaction_lag_ms=0,
                max_compaction_lag_ms=LONG_MAX,
                delete_retention_ms=0,
                keyless_messages=DROP,
            )
        found = range_of(log, settings, now_ms, include_active)
        ends_at = found.first_uncleanable
        cleaned = [s for s in log.segments if s.size_bytes and s.base_offset < ends_at]
        reason = found.reason
        if reason is None and not found.eligible:
            reason = "not due"
        return Decision(
            first_dirty=found.first_dirty,
            # As in a broker, the new position is the offset of the last record in the compacted
            # files.
            end=queues.end_offset_of(cleaned[-1]) if cleaned and not log.is_closed else ends_at,
            elect_from=found.first_dirty,
            dirty_ratio=found.ratio,
            reason=reason,
            is_at_rest=is_at_rest(found, log, settings),
            cleanable_bytes=found.cleanable_bytes,
            overdue_ms=found.overdue_ms,
            policy=Policy(
                # ``like_broker`` drops deletes of any age, as a broker does. The largest time is
                # used, because a delete's store time may be ahead of the clock.
                now_ms=LONG_MAX if like_broker else now_ms,
                tombstone_retention_ms=settings.delete_retention_ms,
                ages_by_write_time=True,
                keep_keyless=settings.keyless_messages == KEEP,
                reading=int(settings.undecodable_messages == KEEP),
                # The record at the highest offset is kept. Without it, a broker would reject new
                # messages, or old messages would reappear.
                kept_end_offset=-1 if like_broker else log.end_offset,
            ),
        )

    def group(
        self, log: PartitionLog, end: int, config: Mapping[str, object], like_broker: bool = False
    ) -> list[list[int]]:
        places = [
            n
            for n, segment in enumerate(log.segments)
            if segment.size_bytes and segment.base_offset < end
        ]
        if like_broker:
            return [places] if places else []
        if log.is_closed:
            return _joined(log, places, self._rounds.contents(log.folder).file_bytes)
        return [[place] for place in places]

    # ------------------------------------------------------------------ store

    estimate_records = staticmethod(queues.record_count)  # exact: counts the units of all indexes
    index_checker = staticmethod(queues.QueueIndexChecker)

    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        return RocketmqFormat(plain_bytes, keeps_undecodable=bool(reading))

    def recover(self, folder: str) -> None:
        if not archived.is_archived(folder):  # an archive's manifest is replaced atomically
            publishing.recover(queues.root_of(folder), queues.name_of(folder))

    def check_writable(self, log: PartitionLog, end: int) -> None:
        if not archived.is_archived(log.folder):  # objects of an archive are never overwritten
            publishing.reject_unwritable(queues.root_of(log.folder))

    def read(self, folder: str, spend: Spend | None = None) -> PartitionLog:
        if archived.is_archived(folder):
            return self._rounds.read(folder)
        return queues.read_queue(folder)

    read_below = staticmethod(queues.read_below)
    check_unmoved = staticmethod(live_files.check_unmoved)

    def cut(self, log: PartitionLog, segment: int, piece_bytes: int) -> list[int]:
        return queues.cuts_of(log.segments[segment], piece_bytes)

    def appender(self, base_offset: int, unit: RewriteUnit) -> SegmentAppender:
        place = unit.folder and partition_and_round(unit.folder)
        source = unit.pieces[0]
        # ``etag`` is set if the source is in an archive; without a folder, its records are only
        # counted.
        if place or source.etag:
            folder, prefix = place or (None, "")
            start = queues.address_of(source.path)
            return ArchivedFile(folder, prefix, start, unit.limits.stores)
        return StagedFiles(unit)

    def discard(self, part: SegmentOutput) -> None:
        if part.stored is not None:
            self._rounds.discard_part(part)
        else:
            super().discard(part)

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        if self.archive_of(log.folder, to) is not None:
            return self._rounds.output_folder(log, to)
        root = queues.root_of(log.folder)
        return publishing.staging_folder(
            root if to is None else os.path.abspath(to), log.name, root
        )

    def untouched(self, folders: Sequence[str], to: str | None) -> list[UntouchedFile]:
        own = [folder for folder in folders if self.archive_of(folder, to) is None]
        return untouched_by_round(own, to)

    def archive_of(self, folder: str, to: str | None = None) -> str | None:
        is_archived = archived.is_archived(folder)
        if to is not None:
            return to.rstrip("/") if is_archived or is_address(to) else None
        return os.path.dirname(archived.root_of(folder)) if is_archived else None

    def starts_writing(self, log: PartitionLog, to: str | None) -> bool:
        return self.archive_of(log.folder, to) is not None

    def begin_writing(self, logs: Sequence[PartitionLog], to: str | None) -> None:
        self._rounds.begin_all(logs, to)

    def swap(self, wave: Sequence[CommitPlan]) -> list[LogError | OSError | None]:
        """Install the new files and the positions of all queues of a store in one step."""
        if wave and archived.is_archived(wave[0].log.folder):
            return self._rounds.swap(wave)
        return _by_root(
            [queues.root_of(new.log.folder) for new in wave],
            lambda root, places: publishing.publish(
                root, [_change(wave[place]) for place in places]
            ),
        )

    def delete_replaced(self, logs: Sequence[PartitionLog]) -> list[LogError | OSError | None]:
        if logs and archived.is_archived(logs[0].folder):  # the next compaction removes old objects
            return [None] * len(logs)

        def of_root(root: str, places: Sequence[int]) -> list[Outcome]:
            names = [logs[place].name for place in places]
            return [outcome(partial(publishing.delete_replaced, root, names))] * len(places)

        return _by_root([queues.root_of(log.folder) for log in logs], of_root)

    def publish_copies(
        self, copies: Sequence[CommitPlan], to: str
    ) -> list[LogError | OSError | None]:
        """Publish copies of queues and their configuration, so that a broker can start on them."""
        if copies and self.archive_of(copies[0].log.folder, to) is not None:
            return self._rounds.publish(copies, to)
        root = os.path.abspath(to)
        changes = [
            replace(_change(copy), source=queues.root_of(copy.log.folder)) for copy in copies
        ]
        errors = publishing.publish_copies(root, changes)
        made = [change for change, error in zip(changes, errors, strict=True) if error is None]

        def finish() -> None:
            for source in sorted({change.source for change in made if change.source is not None}):
                copy_config(source, root)
            publishing.delete_replaced(root, [change.name for change in made])

        late = outcome(finish) if made else None
        return [error or late for error in errors]


def _joined(log: PartitionLog, places: Sequence[int], file_bytes: int) -> list[list[int]]:
    """Group adjacent segments of at most ``file_bytes`` in total. Returns the segments' indexes."""
    groups: list[list[int]] = []
    size = 0
    for place in places:
        size += log.segments[place].size_bytes
        if groups and groups[-1][-1] == place - 1 and size <= file_bytes:
            groups[-1].append(place)
        else:
            groups.append([place])
            size = log.segments[place].size_bytes
    return groups


def range_of(
    log: PartitionLog, settings: RocketmqConfig, now_ms: int, include_active: bool
) -> Range:
    """The range of offsets that the next compaction reads."""
    if log.checkpoint is not None:
        # The first dirty offset may be in a gap, and in no file if all files are compacted. So use
        # the offset of the next record.
        log = replace(log, checkpoint=queues.first_offset_from(log, log.checkpoint))
    return cleanable_range(log, settings, now_ms, include_active)


def _change(new: CommitPlan) -> QueueChange:
    """The change of a queue for a plan: pairs of log and index files to remove and to add.

    A broker does not serve records before an empty pair, which a failed append leaves. So empty
    pairs are removed too, except the active pair.
    """
    replaced = [segment for sources in new.sources for segment in sources]
    closed = new.log.segments[:-1] if replaced else ()
    empty = [segment for segment in closed if not segment.size_bytes]
    removed = [os.path.basename(segment.path) for segment in (*replaced, *empty)]
    pairs = [
        Pair(os.path.basename(made.log_path)[:OFFSET_DIGITS], made.log_path, made.index_path)
        for made in new.outputs
        if not made.is_deleted
    ]
    first_dirty = new.log.checkpoint if new.first_dirty is None else new.first_dirty
    position = None if not first_dirty else first_dirty - 1
    return QueueChange(
        name=new.log.name, log=new.log, removed=removed, pairs=pairs, position=position
    )


def _by_root(
    roots: Sequence[str], work: Callable[[str, Sequence[int]], Sequence[Outcome]]
) -> list[LogError | OSError | None]:
    """Call ``work`` once for each store, with the positions in ``roots`` that belong to it.

    Returns the errors in the order of ``roots``.
    """
    errors: list[LogError | OSError | None] = [None] * len(roots)
    places: dict[str, list[int]] = {}
    for place, root in enumerate(roots):
        places.setdefault(root, []).append(place)
    for root, inside in places.items():
        for place, error in zip(inside, work(root, inside), strict=True):
            errors[place] = error
    return errors


@lru_cache(maxsize=256)
def _config_of(named: tuple[tuple[str, type, object], ...]) -> RocketmqConfig:
    return RocketmqConfig.from_names({name: value for name, _, value in named})


ROCKETMQ = RocketmqSystem()
