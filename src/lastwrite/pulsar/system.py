"""Pulsar's part of the engine: topic folders, their rules and their format.

A topic, or one partition of it, is a partition of the engine; a ledger is a segment; an entry is a
batch of one or many messages. A compaction reads the compacted ledger and the entries after its
horizon. It writes one new compacted ledger, up to a new horizon.

Source: Pulsar 4.2.4 AbstractTwoPhaseCompactor, PublishingOrderCompactor, EventTimeOrderCompactor;
docs/formats/pulsar.md, "Compacted ledger"; docs/formats/pulsar-compaction.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

from msgspec import structs

from lastwrite.archive.rounds import partition_and_round
from lastwrite.config.system import SettingSources, no_topics_of_kafka
from lastwrite.engine.system import (
    CommitPlan,
    Decision,
    Format,
    SegmentAppender,
    SegmentParts,
    System,
)
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.model.policy import LONG_MAX, Policy, Strategy
from lastwrite.model.work import RewriteUnit, SegmentOutput
from lastwrite.pulsar.format.chunk import KEEPS_PREFIX, LIKE_BROKER, TELLS_GROUPS, PulsarFormat
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.rules.backlog import RawSegment, backlog_of
from lastwrite.pulsar.rules.settings import THRESHOLDS, PulsarConfig, states_retention
from lastwrite.pulsar.store import archived, lock, publish, staging, topic_log, watching
from lastwrite.pulsar.store.archiving import NewCompacted, PulsarRounds
from lastwrite.pulsar.store.backlog import raw_ledgers
from lastwrite.pulsar.store.manifest import EVENT_TIME, PUBLISHING, CompactionManifest
from lastwrite.pulsar.store.place import locate, name_of
from lastwrite.pulsar.store.publish import NewLedger
from lastwrite.pulsar.store.topic import find_topics, list_topic, partition_of, topic_names
from lastwrite.pulsar.store.untouched import list_untouched
from lastwrite.reports.compaction import Backlog
from lastwrite.reports.settings import Setting
from lastwrite.reports.untouched import UntouchedFile
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.objects.promises import reject_if_broken
from lastwrite.storage.parallel_sync import overlapped
from lastwrite.storage.throttle import Spend

# The pieces that are assigned to workers are small, so that several workers share a ledger. Joining
# the results is cheap.
_PIECE_BYTES = 8 << 20


class PulsarSystem(System):
    """Pulsar's implementation of ``engine.system.System``, for topic folders."""

    name = "pulsar"
    scan_kernel = "lastwrite.pulsar.format.kernels:walk"
    kind_of_path = "a Pulsar topic"
    offset_span = LONG_MAX
    # Scans are not cached, because each compaction reads new ledgers.
    makes_one_segment = True
    notes = watching.NOTES
    damage_remedy = PulsarFormat.damage_remedy
    governs_keyless = "topicCompactionRetainNullKey"
    policy_remedy = (
        "give --config compactionThreshold=100M, which selects topics with more than 100 MB "
        "beyond the compaction horizon"
    )
    # Readers without readCompacted use the raw ledgers. Retention deletes these, not compaction.
    no_retention = "Pulsar's compaction removes no raw ledger"
    no_deletes = "Pulsar's compacted ledger contains no tombstones"
    look_ms = 60_000  # default of brokerServiceCompactionMonitorIntervalInSeconds

    def __init__(self) -> None:
        self._rounds = PulsarRounds()

    def with_sources(self, sources: SettingSources) -> PulsarSystem:
        """A system for these sources: ``ArchivedPulsar`` for topics of an archive."""
        no_topics_of_kafka(self.kind_of_path, sources)
        found = {
            root: sources.are_archives or archived.holds_archived(root) for root in sources.roots
        }
        archives = [root for root, is_in_archive in found.items() if is_in_archive]
        if not archives:
            return PulsarSystem()
        if any(not found[root] and locate(root) is not None for root in found):
            raise InvalidConfig(
                "some paths are topics of an archive, and others are topic folders",
                path=archives[0],
                remedy="run the command once for each of the two",
            )
        return ArchivedPulsar()

    # ------------------------------------------------------------------ layout

    find = staticmethod(find_topics)
    topic_names = staticmethod(topic_names)
    scan_root = staticmethod(watching.scan_root)
    hold = staticmethod(lock.hold)
    try_lock = staticmethod(lock.try_lock)
    reject_if_locked = staticmethod(lock.reject_if_locked)

    def name_of(self, folder: str) -> TopicPartition:
        return partition_of(name_of(folder))

    def root_of(self, folder: str) -> str:
        """The topic's folder: each topic is a root of its own, because topics share no files."""
        return folder

    # ------------------------------------------------------------------ rules

    def check_config(self, config: Mapping[str, object]) -> None:
        PulsarConfig.from_names(config)

    def settings_of(self, folder: str, config: Mapping[str, object]) -> tuple[Setting, ...]:
        return PulsarConfig.from_names(config).listed(config)

    def is_policy_known(self, folder: str, config: Mapping[str, object]) -> bool:
        """Whether the settings have a compaction threshold.

        A command can compact any topic, but the daemon needs the threshold.
        """
        return bool(THRESHOLDS & config.keys())

    def decide(
        self,
        log: PartitionLog,
        config: Mapping[str, object],
        now_ms: int,
        include_active: bool,
        like_broker: bool = False,
    ) -> Decision:
        """Decide whether a compaction is due, which is the case whenever the horizon can move."""
        settings = _config_of(config)
        first_dirty = log.log_start if log.checkpoint is None else log.checkpoint
        end = max(log.high_watermark, first_dirty)
        fresh = sum(s.size_bytes for s in log.segments if first_dirty <= s.base_offset < end)
        whole = fresh + sum(s.size_bytes for s in log.segments if s.base_offset < first_dirty)
        # By event time, messages of the compacted ledger compete too, so all records are compared.
        # With ``like_broker``, all messages compete, and each chunk counts as a message.
        strategy = Strategy.EVENT_TIME if settings.by_event_time else Strategy.OFFSET
        if strategy is Strategy.OFFSET and not like_broker and self._has_parts(log):
            strategy = Strategy.GROUPS
        compares_all = strategy is not Strategy.OFFSET or like_broker
        reading = LIKE_BROKER if like_broker else 0
        reading |= KEEPS_PREFIX if settings.keeps_broker_metadata else 0
        reading |= TELLS_GROUPS if strategy is Strategy.GROUPS else 0
        return Decision(
            first_dirty=first_dirty,
            end=end,
            elect_from=0 if compares_all else first_dirty,
            dirty_ratio=fresh / whole if whole else 0.0,
            reason=None if fresh else _nothing_new(log),
            waits=waits(fresh, settings.compaction_threshold_bytes),
            cleanable_bytes=fresh,
            index_interval_bytes=staging.BLOCK_BYTES,
            policy=Policy(
                # Tombstones expire at once: their delete horizon is 0, and the present is at least
                # 0.
                now_ms=max(now_ms, 0),
                tombstone_retention_ms=0,
                ages_by_write_time=True,
                keep_keyless=settings.retain_null_key,
                strategy=strategy,
                reading=reading,
            ),
        )

    def _has_parts(self, log: PartitionLog) -> bool:
        return topic_log.has_parts(log, self._compacted_of(log))

    def group(
        self, log: PartitionLog, end: int, config: Mapping[str, object], like_broker: bool = False
    ) -> list[list[int]]:
        places = [n for n, segment in enumerate(log.segments) if segment.base_offset < end]
        return [places] if places else []

    def backlog(
        self, log: PartitionLog, horizon: int, config: Mapping[str, object], now_ms: int
    ) -> Backlog | None:
        """The raw ledgers up to the horizon, and which of them the retention in ``config`` expires.

        Without a retention in ``config``, expiry is unknown.
        """
        settings = _config_of(config)
        age, size = settings.retention_ms, settings.retention_bytes
        found = backlog_of(self._raw_ledgers(log.folder), horizon, age, size, now_ms)
        if states_retention(config):
            return found
        return structs.replace(found, segments_free=None, bytes_free=None, reason=None)

    def _raw_ledgers(self, folder: str) -> list[RawSegment]:
        return raw_ledgers(list_topic(folder))

    # ------------------------------------------------------------------ store

    recover = staticmethod(publish.recover)
    read = staticmethod(topic_log.read_topic)
    index_checker = staticmethod(topic_log.OffloadIndexChecker)

    def _compacted_of(self, log: PartitionLog) -> CompactionManifest | None:
        """The manifest of the topic's compacted ledger."""
        return topic_log.read_compacted(log.folder)

    def estimate_records(self, log: PartitionLog) -> int:
        """The estimated number of records, from the stored counts of the ledgers.

        Placeholders are included.
        """
        return topic_log.record_count(log, self._compacted_of(log))

    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        return PulsarFormat(plain_bytes, reading)

    def check_writable(self, log: PartitionLog, end: int) -> None:
        publish.reject_unwritable(log.folder)

    def cut(self, log: PartitionLog, segment: int, piece_bytes: int) -> list[int]:
        return topic_log.cuts_of(log.segments[segment], min(piece_bytes, _PIECE_BYTES))

    def appender(self, base_offset: int, unit: RewriteUnit) -> SegmentAppender:
        in_archive = unit.folder and partition_and_round(unit.folder)
        return staging.StagedPart(unit) if in_archive else staging.StagedLedger(unit)

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        if to is not None and is_address(to):
            return self._rounds.output_folder(log, to)
        return log.folder if to is None else publish.copy_staging_folder(log, to)

    def join_parts(self, parts: SegmentParts) -> SegmentOutput:
        if partition_and_round(parts.folder) is not None:
            return staging.join_stored(parts.parts, parts.base_offset)
        if len(parts.parts) == 1:
            return parts.parts[0]
        first = parts.log.segments[0].path
        return staging.join(parts.folder, parts.parts, parts.base_offset, first)

    def discard(self, part: SegmentOutput) -> None:
        """Remove the part's temporary files or objects."""
        if part.stored is not None:
            self._rounds.discard_part(part)
        else:
            staging.discard(part.log_path)

    def swap(self, wave: Sequence[CommitPlan]) -> list[LogError | OSError | None]:
        def publish_one(new: CommitPlan) -> LogError | OSError | None:
            ledger = self._new_ledger(new)
            return None if ledger is None else publish.publish(new.log, ledger)

        return list(overlapped(publish_one, wave))

    def delete_replaced(self, logs: Sequence[PartitionLog]) -> list[LogError | OSError | None]:
        return list(overlapped(publish.delete_replaced, logs))

    def untouched(self, folders: Sequence[str], to: str | None) -> list[UntouchedFile]:
        if to is not None and is_address(to):
            return []
        return [
            each
            for folder in folders
            for each in list_untouched(folder, None if to is None else publish.copy_at(folder, to))
        ]

    def publish_copies(
        self, copies: Sequence[CommitPlan], to: str
    ) -> list[LogError | OSError | None]:
        """Create copies of topics in another archive, with all data that their readers need."""
        if is_address(to):
            return self._publish_in_archive(copies, to)

        def publish_one(copy: CommitPlan) -> LogError | OSError | None:
            return publish.publish_copy(copy.log, self._new_ledger(copy), to)

        return list(overlapped(publish_one, copies))

    def _publish_in_archive(
        self, copies: Sequence[CommitPlan], to: str
    ) -> list[LogError | OSError | None]:
        return self._rounds.publish([(copy.log, self._new_compacted(copy)) for copy in copies], to)

    def _new_ledger(self, new: CommitPlan) -> NewLedger | None:
        """The new ledger with its temporary name and its values for the manifest.

        None if the compaction has no output.
        """
        if not new.outputs or new.policy is None or new.first_dirty is None:
            return None
        (made,) = new.outputs
        return NewLedger(
            path=made.log_path,
            horizon=Position.of(new.first_dirty - 1),
            messages=made.records,
            order=_order_of(new.policy),
            retain_null_key=new.policy.keep_keyless,
            parts=self._has_parts(new.log),
            read=sum(made.counts),
            ledgers=_raw_of(new),
        )

    def _new_compacted(self, new: CommitPlan) -> NewCompacted | None:
        """The new compacted ledger of an archived topic, as objects. None without output."""
        if not new.outputs or new.policy is None or new.first_dirty is None:
            return None
        (made,) = new.outputs
        assert isinstance(made.stored, tuple)
        return NewCompacted(
            parts=made.stored,
            horizon=Position.of(new.first_dirty - 1),
            messages=made.records,
            order=_order_of(new.policy),
            retain_null_key=new.policy.keep_keyless,
            chunks=self._has_parts(new.log),
            read=sum(made.counts),
            ledgers=_raw_of(new),
        )


class ArchivedPulsar(PulsarSystem):
    """Pulsar's implementation of ``engine.system.System`` for topics of an archive.

    Topics are read from manifests instead of folder listings, and are not locked.
    """

    notes = watching.ARCHIVE_NOTES
    scan_root = staticmethod(watching.scan_archive)

    def root_of(self, folder: str) -> str:
        """The folder of all topics of the archive."""
        return archived.root_of(folder)

    def archive_of(self, folder: str, to: str | None = None) -> str | None:
        return archived.archive_of(folder) if to is None else to.rstrip("/")

    def hold(self, root: str, names: Iterable[TopicPartition], /) -> AbstractContextManager[None]:
        reject_if_broken(os.path.dirname(root))
        return nullcontext()

    def reject_if_locked(self, root: str, names: object = None, /) -> None:
        """Does nothing: topics of an archive are not locked."""

    def try_lock(
        self, root: str, names: Iterable[TopicPartition], /
    ) -> AbstractContextManager[set[TopicPartition]]:
        archive = os.path.dirname(root)
        reject_if_broken(archive)
        folders = {name: watching.folder_in(archive, name) for name in names}
        return self._rounds.try_lock(folders, lambda folder: self.read(folder).segments)

    def check_sources(self, folders: Sequence[str]) -> None:
        self._rounds.expect(folders)

    def recover(self, folder: str) -> None:
        """Does nothing: a manifest is never partial, and sweeps remove a crashed run's objects."""

    def read(self, folder: str, spend: Spend | None = None) -> PartitionLog:
        return self._rounds.read(folder, spend)

    def _raw_ledgers(self, folder: str) -> list[RawSegment]:
        return self._rounds.raw_ledgers(folder)

    def _compacted_of(self, log: PartitionLog) -> CompactionManifest | None:
        return self._rounds.contents(log.folder).compacted_manifest(name_of(log.folder))

    def check_writable(self, log: PartitionLog, end: int) -> None:
        """Does nothing: in an archive, compaction only creates new objects."""

    def starts_writing(self, log: PartitionLog, to: str | None) -> bool:
        return True

    def begin_writing(self, logs: Sequence[PartitionLog], to: str | None) -> None:
        self._rounds.begin_all(logs, to)

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        return self._rounds.output_folder(log, to)

    def swap(self, wave: Sequence[CommitPlan]) -> list[LogError | OSError | None]:
        return self._rounds.swap([(new.log, self._new_compacted(new)) for new in wave])

    def delete_replaced(self, logs: Sequence[PartitionLog]) -> list[LogError | OSError | None]:
        """Does nothing: the next compaction removes the replaced objects."""
        return [None] * len(logs)

    def untouched(self, folders: Sequence[str], to: str | None) -> list[UntouchedFile]:
        return []

    def publish_copies(
        self, copies: Sequence[CommitPlan], to: str
    ) -> list[LogError | OSError | None]:
        return self._publish_in_archive(copies, to)


def waits(fresh: int, threshold: int) -> str | None:
    """The reason why no broker would compact a topic with this many uncompacted bytes.

    None if a broker would compact it.

    Source: docs/formats/pulsar-compaction.md, "Retention and thresholds".
    """
    if threshold == 0:
        return "compactionThreshold is 0, so brokers compact the topic only on request"
    if fresh <= threshold:
        return (
            f"only {fresh} bytes are beyond the compaction horizon, and compactionThreshold is "
            f"{threshold}"
        )
    return None


def _nothing_new(log: PartitionLog) -> str:
    """The reason why the horizon cannot move."""
    if log.first_unstable_offset is not None:
        return f"an open transaction begins at {Position.of(log.first_unstable_offset)}"
    if log.checkpoint is not None:
        behind = Position.of(log.checkpoint)
        return (
            "the topic has no message beyond the compaction horizon, "
            f"{behind.ledger}:{behind.entry - 1}"
        )
    return "the topic has no message"


def _order_of(policy: Policy) -> str:
    return EVENT_TIME if policy.strategy is Strategy.EVENT_TIME else PUBLISHING


def _raw_of(new: CommitPlan) -> tuple[int, ...]:
    """The ids of the raw ledgers that a compaction read."""
    (sources,) = new.sources
    raw = (each for each in sources if not topic_log.is_of_compacted(new.log, each))
    return tuple(sorted({Position.of(each.base_offset).ledger for each in raw}))


def _config_of(config: Mapping[str, object]) -> PulsarConfig:
    return _config_named(tuple((name, type(value), value) for name, value in config.items()))


@lru_cache(maxsize=256)
def _config_named(named: tuple[tuple[str, type, object], ...]) -> PulsarConfig:
    return PulsarConfig.from_names({name: value for name, _, value in named})


PULSAR = PulsarSystem()
