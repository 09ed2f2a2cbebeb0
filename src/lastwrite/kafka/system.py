"""The Kafka implementation of ``engine.system``, from Kafka's store, rules and format."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import lru_cache

from lastwrite.archive.rounds import partition_and_round
from lastwrite.config import keyless
from lastwrite.config.declaration import INT_MAX
from lastwrite.config.system import SettingSources, Unmanaged
from lastwrite.engine.rules.ranges import cleanable_range, is_at_rest
from lastwrite.engine.rules.retention import Retention
from lastwrite.engine.system import (
    CommitPlan,
    Decision,
    Format,
    SegmentAppender,
    SegmentParts,
    System,
)
from lastwrite.errors import CorruptLog, LogError, NotALog
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.cluster import metadata_log
from lastwrite.kafka.cluster.commits import GroupPartition
from lastwrite.kafka.cluster.roots import MetadataLookup, MetadataSource
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.remedy import RESTORE
from lastwrite.kafka.producers.history import read_history
from lastwrite.kafka.rules import holds
from lastwrite.kafka.rules.grouping import group_segments
from lastwrite.kafka.rules.producers import active, required_batches
from lastwrite.kafka.rules.retention import expired
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.rules.topic_settings import (
    KafkaTopicSettings,
    TopicMetadata,
    check_overrides,
    resolve,
)
from lastwrite.kafka.store import (
    archived,
    archiving,
    index_files,
    lock,
    partitions,
    pieces,
    tier_and_root,
    tiered,
    watching,
)
from lastwrite.kafka.store import commit as committing
from lastwrite.kafka.store import log_dir as store
from lastwrite.kafka.store import publish as publishing
from lastwrite.kafka.store import retention as retaining
from lastwrite.kafka.store.archived_segment import ArchivedSegment
from lastwrite.kafka.store.index_checker import index_checker
from lastwrite.kafka.store.joining import join_parts
from lastwrite.kafka.store.missing import judge_holes
from lastwrite.kafka.store.outputs import NewSegment
from lastwrite.kafka.store.positions import GroupPositions, positions_in
from lastwrite.kafka.store.staging import StagedSegment
from lastwrite.kafka.store.untouched import untouched_by_round
from lastwrite.model.log import AbortedTransaction, PartitionLog, Segment, TopicPartition
from lastwrite.model.policy import Policy, Strategy
from lastwrite.model.work import RewriteUnit, SegmentOutput
from lastwrite.reports.holding import BlockingGroup
from lastwrite.reports.settings import OverriddenSetting, Setting
from lastwrite.reports.untouched import UntouchedFile
from lastwrite.storage.layout import PartitionSnapshot
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.objects.promises import reject_if_broken
from lastwrite.storage.parallel_sync import side_by_side
from lastwrite.storage.throttle import Spend

_AGE_UNKNOWN = (
    "retention.ms is set neither by the topic nor by --config, and the brokers' default is unknown"
)
_POLICY_UNKNOWN = (
    "cleanup.policy is set neither by the topic nor by --config, and the brokers' default is "
    "unknown"
)
_ASK_AGAIN_S = 1.0


class KafkaSystem(System):
    """Kafka as a system that the engine can compact: implements each operation on Kafka's logs."""

    name = "kafka"
    scan_kernel = "lastwrite.kafka.format.kernels:walk"
    kind_of_path = "a log root of Kafka"
    offset_span = INT_MAX  # index entries have relative offsets of 31 bits
    keeps_scans = True
    recover_finishes = True
    notes = watching.NOTES
    governs_keyless = f"{keyless.OPTION} ({keyless.RATIO})"
    policy_remedy = (
        "give the cluster's metadata with --metadata PATH, or also name the log root that "
        "contains it; if all of these topics are compacted, give --config cleanup.policy=compact"
    )
    damage_remedy = RESTORE

    def __init__(self, sources: SettingSources | None = None) -> None:
        self._sources = sources or SettingSources()
        check_overrides(self._sources.overrides)
        self._clusters = MetadataLookup(self._sources.roots, self._sources.metadata)
        self._rounds = archiving.KafkaRounds()
        self._log_roots: set[str] = set()  # roots that are known not to be archives
        self._metadata_cache: dict[str, tuple[float, MetadataSource, Hashable]] = {}
        self._positions: dict[str, tuple[float, GroupPositions | NotALog]] = {}
        self._resolved: dict[
            tuple[str, str, bool], tuple[object, Mapping[str, object], KafkaTopicSettings]
        ] = {}

    @property
    def roots(self) -> tuple[str, ...]:
        """The log roots that the command may use."""
        return tuple(self._sources.roots)

    def with_sources(self, sources: SettingSources) -> KafkaSystem:
        return KafkaSystem(sources)

    def check_sources(self, folders: Sequence[str], /) -> None:
        problem: CorruptLog | None = None
        self._rounds.expect([folder for folder in folders if archived.is_archived(folder)])
        folders = [folder for folder in folders if not archived.is_archived(folder)]
        for folder in {self.root_of(folder): folder for folder in folders}.values():
            try:
                _find_topic_metadata(
                    self.name_of(folder).topic, *self._metadata_of(self.root_of(folder))
                )
                return
            except CorruptLog as error:
                problem = problem or error
        if problem is not None:
            raise problem

    # ------------------------------------------------------------------ layout

    find = staticmethod(partitions.find_partitions)

    def merge_tiers(self, folders: Sequence[str]) -> list[str]:
        """The folders to read: ``folders`` without local parts of partitions in tiered storage."""
        roots = self._sources.roots
        of_tier = (folder for folder in folders if tiered.is_tier(folder))
        part = {tier_and_root.local_folder(folder, roots) for folder in of_tier}
        return [folder for folder in folders if folder not in part]

    name_of = staticmethod(partitions.partition_name)
    root_of = staticmethod(partitions.root_of)
    hold = staticmethod(lock.hold)
    reject_if_locked = staticmethod(lock.reject_if_locked)
    reject_read_only = staticmethod(lock.reject_tier)
    broker_of = staticmethod(lock.broker_of)

    def scan_root(self, root: str, /) -> list[PartitionSnapshot]:
        if root not in self._log_roots:
            found = archived.scan_root(root)
            if found or is_address(root):
                return found
        seen = watching.scan_root(root)
        if seen:
            self._log_roots.add(root)
        return seen

    def try_lock(
        self, root: str, names: Collection[TopicPartition], /
    ) -> AbstractContextManager[set[TopicPartition]]:
        if not archived.is_root(root, names):
            return lock.try_lock(root, names)
        archive = os.path.dirname(root)
        reject_if_broken(archive)
        folders = {name: archived.address_in(archive, name) for name in names}
        return self._rounds.try_lock(folders, lambda folder: self._rounds.read(folder).segments)

    # ------------------------------------------------------------------ rules

    def check_config(self, config: Mapping[str, object]) -> None:
        KafkaTopicConfig.from_names(config)

    def settings(self, folder: str, config: Mapping[str, object]) -> KafkaTopicSettings:
        """The topic's settings, with their sources (docs/decisions/explicit-compact.md)."""
        topic, root = self.name_of(folder).topic, self.root_of(folder)
        is_named = folder in self._sources.named
        known, state = self._topic_metadata(folder)
        place = (topic, root, is_named)
        last = self._resolved.get(place)
        if last is None or last[0] != state or last[1] != config:
            found = resolve(topic, self._sources.overrides, known, config, is_named)
            last = self._resolved[place] = (state, dict(config), found)
        return last[2]

    def _topic_metadata(self, folder: str) -> tuple[TopicMetadata | None, Hashable]:
        """The metadata of a partition's topic, and a value that changes whenever the metadata does.

        The metadata is None if it is unknown.
        """
        if archived.is_archived(folder):
            known = self._rounds.metadata_of(folder)
            return None if known is None else known.to_topic_metadata(), repr(known)
        spokesman, state = self._metadata_of(self.root_of(folder))
        return _find_topic_metadata(self.name_of(folder).topic, spokesman, state), state

    def topic_metadata(self, folder: str) -> TopicMetadata | None:
        """The metadata of the partition's topic. None if the metadata log does not list it."""
        return self._topic_metadata(folder)[0]

    def _archived_metadata(self, folder: str) -> archived.ArchivedMetadata | None:
        known = self.topic_metadata(folder)
        return None if known is None else archived.ArchivedMetadata.of(known)

    def _metadata_of(self, root: str) -> tuple[MetadataSource, Hashable]:
        """The metadata log used for ``root``, and its state.

        Both are cached for ``_ASK_AGAIN_S``, because thousands of partitions need them. A topic's
        settings cannot change while no broker has the root open.
        """
        now = time.monotonic()
        last = self._metadata_cache.get(root)
        if last is None or now - last[0] > _ASK_AGAIN_S:
            spokesman = self._clusters.metadata_for(root)
            state = (
                None
                if spokesman.folder is None
                else (spokesman.folder, metadata_log.state(spokesman.folder))
            )
            last = self._metadata_cache[root] = (now, spokesman, state)
        return last[1:]

    def settings_of(self, folder: str, config: Mapping[str, object]) -> tuple[Setting, ...]:
        return self.settings(folder, config).listed

    def outvoted(self, folder: str, config: Mapping[str, object]) -> tuple[OverriddenSetting, ...]:
        return self.settings(folder, config).outvoted

    def why_unmanaged(self, folder: str, config: Mapping[str, object]) -> Unmanaged | None:
        try:
            self._reject_disowned(folder)
        except LogError as error:
            return Unmanaged(error.problem, error.remedy or "")
        if self.settings(folder, config).is_policy_known:
            return None
        topic = self.name_of(folder).topic
        if archived.is_archived(folder):
            return Unmanaged(
                f"the policy of topic {topic} was unknown when it was fetched: the partition was "
                "left unchanged",
                f"give the topic's policy with --topic-config {topic}:cleanup.policy=compact, or "
                "the policy of all such topics with --config cleanup.policy=compact",
            )
        spokesman, _ = self._metadata_of(self.root_of(folder))
        if spokesman.folder is not None:
            why = f"the cluster's metadata in {spokesman.folder} does not list topic {topic}"
        else:
            why = "; ".join((f"the policy of topic {topic} is unknown", *spokesman.rejected))
        if "log.cleanup.policy" in config:
            why += (
                ", and log.cleanup.policy in --config is the brokers' default, not the topic's "
                "policy"
            )
        return Unmanaged(
            f"{why}: the partition was left unchanged",
            "give the cluster's metadata with --metadata PATH, or also name the broker's other "
            "log roots; or give the topic's policy with --topic-config "
            f"{topic}:cleanup.policy=compact, or the policy of all such topics with --config "
            "cleanup.policy=compact",
        )

    def _reject_disowned(self, folder: str) -> None:
        """Refuse to compact a folder that is not a live partition.

        Raises:
            LogError: the folder is not a live partition of its log root.
        """
        why = partitions.why_disowned(folder)
        if why is not None:
            raise LogError(
                f"{why}: the partition is not compacted",
                path=folder,
                remedy="nothing was changed; the commands inspect, dump, read, verify and fetch "
                "can read the partition; to compact it, copy its folder to a folder named "
                f"{self.name_of(folder)} outside of the log root",
            )

    def is_policy_known(self, folder: str, config: Mapping[str, object]) -> bool:
        return self.settings(folder, config).is_policy_known

    def decide(
        self,
        log: PartitionLog,
        config: Mapping[str, object],
        now_ms: int,
        include_active: bool,
        like_broker: bool = False,
    ) -> Decision:
        told = self.settings(log.folder, config)
        settings = told.config
        found = cleanable_range(log, settings, now_ms, include_active)
        reason = found.reason
        self._reject_disowned(log.folder)
        alone = None if told.is_policy_known else self.why_unmanaged(log.folder, config)
        if alone is not None:
            reason = alone.reason
        elif not settings.compacts:
            reason = (
                f"cleanup.policy is {','.join(settings.cleanup_policy) or 'empty'}, without compact"
            )
        elif reason is None and not found.eligible:
            reason = "not due"
        strategy = Strategy[settings.compaction_strategy.upper()]
        is_whole = log.closed_end >= log.end_offset
        held_for = self._blocking_groups(log, settings)
        last_offsets, marker_producers = required_batches(
            active(log.producers, now_ms, settings.producer_id_expiration_ms)
        )
        return Decision(
            first_dirty=found.first_dirty,
            end=found.first_uncleanable,
            # Strategies other than by offset may keep a clean record and remove a dirty one. They
            # therefore elect from all records.
            elect_from=found.first_dirty if strategy is Strategy.OFFSET else 0,
            dirty_ratio=found.ratio,
            reason=reason,
            remedy=None if alone is None else alone.remedy,
            is_at_rest=alone is None and is_at_rest(found, log, settings),
            compacts=settings.compacts,
            cleanable_bytes=found.cleanable_bytes,
            overdue_ms=found.overdue_ms,
            policy=Policy(
                now_ms=now_ms,
                tombstone_retention_ms=settings.delete_retention_ms,
                shell_offset=log.high_watermark,
                old_tombstones_until_ms=_clean_until_ms(log, found.first_dirty)
                - settings.delete_retention_ms,
                end_offset=_last_batch_end(log) if include_active or is_whole else -1,
                strategy=strategy,
                strategy_header=settings.compaction_strategy_header,
                pinned_offset=-1 if strategy is Strategy.OFFSET else log.end_offset,
                keep_tombstones=strategy is not Strategy.OFFSET
                and _has_records_from(log, found.first_uncleanable),
                held_from=holds.held_from(held_for),
                hold_ms=holds.hold_ms(settings.hold_tombstones_max_ms),
                last_offsets=last_offsets,
                marker_producers=marker_producers,
            ),
            index_interval_bytes=settings.index_interval_bytes,
            max_keyless_ratio=settings.max_keyless_ratio,
            held_for=held_for,
        )

    def _blocking_groups(
        self, log: PartitionLog, settings: KafkaTopicConfig
    ) -> tuple[BlockingGroup, ...]:
        groups = settings.hold_tombstones_for_groups
        if not groups:
            return ()
        positions: dict[str, int] = {}
        reasons: dict[str, str] = {}
        if archived.is_archived(log.folder):
            for name, position, *_ in self._rounds.contents(log.folder).groups:
                positions[name] = position
        else:
            for root in {self.root_of(log.folder), *self._sources.roots}:
                with suppress(NotALog):
                    there = self._positions_in(root, log.name, groups, reasons)
                    for group, offset in there.items():
                        # if several roots have an offset, use the lowest
                        positions[group] = min(offset, positions.get(group, offset))
            for group in reasons:  # do not use an older offset: the unreadable one may be newer
                positions.pop(group, None)
        named = settings.hold_tombstones_positions  # this setting has precedence over the log roots
        if named:
            wrong: dict[str, str] = {}
            positions |= self._positions_in(named, log.name, groups, wrong)
            for group in wrong:
                positions.pop(group, None)
            reasons |= wrong
        return holds.blocking_groups(groups, positions, log.end_offset, reasons)

    def _positions_in(
        self, path: str, name: TopicPartition, groups: Sequence[str], reasons: dict[str, str]
    ) -> dict[str, int]:
        """The groups' committed offsets in a partition, from the root or archive at ``path``.

        If a group's newest offset may be unreadable, the reason is added to ``reasons``. The
        offsets are cached for ``_ASK_AGAIN_S``, because thousands of partitions need them.
        """
        now = time.monotonic()
        last = self._positions.get(path)
        if last is None or now - last[0] > _ASK_AGAIN_S:
            told: GroupPositions | NotALog
            try:
                told = positions_in(path)
            except NotALog as error:
                told = error
            last = self._positions[path] = (now, told)
        if isinstance(last[1], NotALog):
            raise last[1]
        there, offsets = last[1], {}
        for group in groups:
            place = GroupPartition.of(group, name)
            commit, unread = there.offsets.get(place), there.unread_of(place)
            if unread is not None:
                reasons[group] = unread.message
            elif commit is not None:
                offsets[group] = commit.offset
        return offsets

    def group(
        self, log: PartitionLog, end: int, config: Mapping[str, object], like_broker: bool = False
    ) -> list[list[int]]:
        settings = self.settings(log.folder, config).config
        place = {segment.base_offset: n for n, segment in enumerate(log.segments)}
        groups = group_segments(
            log.segments, end, settings.segment_bytes, settings.segment_index_bytes
        )
        return [[place[segment.base_offset] for segment in group] for group in groups]

    def expired(self, log: PartitionLog, config: Mapping[str, object], now_ms: int) -> Retention:
        """The segments that retention deletes, by known settings (docs/decisions/retention.md)."""
        settings = self.settings(log.folder, config)
        if not settings.is_policy_known:
            first = log.segments[0].base_offset if log.segments else log.log_start
            return Retention(
                segments=(),
                rolls=False,
                first_base=first,
                log_start=log.log_start,
                stays="the topic's policy is unknown",
            )
        found = expired(log, settings.of_retention, now_ms)
        if not settings.config.deletes or (settings.is_policy_stated and settings.is_age_stated):
            return found
        unknown = _AGE_UNKNOWN if settings.is_policy_stated else _POLICY_UNKNOWN
        return replace(found, stays=found.stays and f"{found.stays}; {unknown}")

    # ------------------------------------------------------------------ store

    cut = staticmethod(pieces.cuts_of)
    index_checker = staticmethod(index_checker)

    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        return KafkaFormat(plain_bytes)

    def recover(self, folder: str) -> None:
        if not archived.is_archived(folder):  # an archive needs no recovery
            store.recover(folder)

    def read(self, folder: str, spend: Spend | None = None) -> PartitionLog:
        if archived.is_archived(folder):
            return self._rounds.read(folder)
        if tiered.is_tier(folder):
            return tier_and_root.read(folder, self._sources.roots, self._sources.metadata).log
        return store.read_partition(folder)

    read_below = staticmethod(store.read_partition)

    def judged(self, log: PartitionLog, config: Mapping[str, object]) -> PartitionLog:
        if not log.holes:
            return log
        settings = None
        with suppress(LogError):  # without the cluster's metadata, settings are unknown
            settings = self.settings(log.folder, config)
        found = judge_holes(log, log.holes, settings, config)
        return replace(log, problems=(*log.problems, *found))

    def read_judged(self, folder: str, config: Mapping[str, object] | None) -> PartitionLog:
        """List one partition for a reader. Adds the problems that depend on topic settings."""
        return self.judged(store.read_partition(folder), config or {})

    check_unmoved = staticmethod(beside_a_broker.check_unmoved)

    def check_writable(self, log: PartitionLog, end: int) -> None:
        if not archived.is_archived(log.folder):  # objects of an archive are never changed
            store.reject_unwritable(log.folder, end)

    def aborted_by_log(self, log: PartitionLog) -> tuple[AbortedTransaction, ...]:
        return read_history(log).aborted

    def estimate_records(self, log: PartitionLog) -> int:
        if archived.is_archived(log.folder):
            known = [each.records for each in self._rounds.contents(log.folder).segments]
            if None not in known:
                return sum(each or 0 for each in known)
        return pieces.estimate_records(log)

    def segment_path(self, log: PartitionLog, base_offset: int) -> str:
        return index_files.segment_path(log.folder, base_offset)

    def appender(self, base_offset: int, unit: RewriteUnit) -> SegmentAppender:
        place = unit.folder and partition_and_round(unit.folder)
        if place:
            base = base_offset if unit.part == 0 else None
            stores = unit.limits.stores
            return ArchivedSegment(*place, base, unit.index_interval_bytes, stores)
        is_first = unit.part == 0
        return StagedSegment(
            base_offset,
            unit.folder,
            unit.index_interval_bytes if is_first else None,
            unit.source,
            is_first=is_first and unit.parts > 1,
        )

    def join_parts(self, parts: SegmentParts) -> SegmentOutput:
        if partition_and_round(parts.folder) is not None:
            return archiving.join_parts(parts)
        return join_parts(parts)

    def discard(self, part: SegmentOutput) -> None:
        if part.stored is not None:
            self._rounds.discard_part(part)
        else:
            super().discard(part)

    def untouched(self, folders: Sequence[str], to: str | None) -> list[UntouchedFile]:
        own = [
            folder
            for folder in folders
            if self.archive_of(folder, to) is None and not tiered.is_tier(folder)
        ]
        return untouched_by_round(own, is_copy=to is not None)

    def archive_of(self, folder: str, to: str | None = None) -> str | None:
        is_archived = archived.is_archived(folder)
        if to is not None:
            return to.rstrip("/") if is_archived or is_address(to) else None
        return os.path.dirname(self.root_of(folder)) if is_archived else None

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        if _makes_archive(log, to):
            return self._rounds.output_folder(log, to)
        if to is None:
            return log.folder
        return publishing.staging_folder(os.path.join(to, str(log.name)), log.folder)

    def starts_writing(self, log: PartitionLog, to: str | None) -> bool:
        return _makes_archive(log, to)

    def begin_writing(self, logs: Sequence[PartitionLog], to: str | None) -> None:
        self._rounds.begin_all(logs, to)

    def swap(self, wave: Sequence[CommitPlan]) -> list[LogError | OSError | None]:
        if wave and archived.is_archived(wave[0].log.folder):
            return self._rounds.swap(wave)
        works = []
        notes: dict[str, committing.CommitNotes] = {}
        for new in wave:
            assert new.first_dirty is not None
            shared = notes.setdefault(self.root_of(new.log.folder), committing.CommitNotes())
            works.append(
                committing.swap(
                    new.log, _outputs(new.sources, new.outputs), new.first_dirty, shared
                )
            )
        return side_by_side(works)

    def record(self, root: str, first_dirty: Mapping[TopicPartition, int]) -> None:
        # An archive has no checkpoint. Its manifest has the first dirty offset.
        if not archived.is_root(root, first_dirty):
            committing.record(root, first_dirty)

    def delete_replaced(self, logs: Sequence[PartitionLog]) -> list[LogError | OSError | None]:
        if logs and archived.is_archived(logs[0].folder):  # the next compaction removes old objects
            return [None] * len(logs)
        return side_by_side(committing.delete_replaced(log.folder) for log in logs)

    def publish_copies(
        self, copies: Sequence[CommitPlan], to: str
    ) -> list[LogError | OSError | None]:
        if is_address(to) or (copies and _makes_archive(copies[0].log, to)):
            return self._rounds.publish(copies, to, self._archived_metadata)
        root = os.path.abspath(to)
        wanted = [
            publishing.PartitionCopy(
                copy.log,
                _outputs(copy.sources, copy.outputs),
                os.path.join(root, str(copy.log.name)),
                copy.first_dirty,
                copy.retention,
            )
            for copy in copies
        ]
        return publishing.publish_copies(wanted, root)

    def retain(
        self, wave: Sequence[tuple[PartitionLog, Retention]]
    ) -> list[LogError | OSError | None]:
        if wave and archived.is_archived(wave[0][0].folder):
            return self._rounds.retain(wave)
        errors: list[LogError | OSError | None] = [None] * len(wave)
        places: dict[str, list[int]] = {}
        for place, (log, _) in enumerate(wave):
            places.setdefault(self.root_of(log.folder), []).append(place)
        for root, inside in places.items():
            found = retaining.retain_all([wave[place] for place in inside], checkpoint_root=root)
            for place, error in zip(inside, found, strict=True):
                errors[place] = error
        return errors


def _makes_archive(log: PartitionLog, to: str | None) -> bool:
    """Whether a compaction writes to an archive: the log's own, or a new one at ``to``."""
    if archived.is_archived(log.folder) or (to is not None and is_address(to)):
        return True
    return tiered.is_tier(log.folder)


def _has_records_from(log: PartitionLog, base_offset: int) -> bool:
    return any(s.size_bytes for s in log.segments if s.base_offset >= base_offset)


def _clean_until_ms(log: PartitionLog, first_dirty: int) -> int:
    """Modification time of the last segment that begins below ``first_dirty``; 0 if none does."""
    return next((s.mtime_ms for s in reversed(log.segments) if s.base_offset < first_dirty), 0)


def _last_batch_end(log: PartitionLog) -> int:
    """The end offset of the log's last batch. -1 if the last segment is empty."""
    return log.end_offset if log.segments[-1].base_offset < log.end_offset else -1


def _outputs(
    sources: Sequence[Sequence[Segment]], outputs: Sequence[SegmentOutput]
) -> list[NewSegment]:
    return [
        NewSegment(
            base_offset=new.base_offset,
            sources=tuple(group),
            log_path=new.log_path,
            index_path=new.index_path,
            time_index_path=new.time_index_path,
            transaction_index_path=new.transaction_index_path,
        )
        for group, new in zip(sources, outputs, strict=True)
    ]


def _find_topic_metadata(
    topic: str, spokesman: MetadataSource, state: Hashable
) -> TopicMetadata | None:
    """The metadata of a topic. None without a metadata log, or if it does not list the topic."""
    if spokesman.folder is None:
        return None
    configs = _configs_of(spokesman.folder, state)
    if configs is None or topic not in configs.topics:
        return None
    return TopicMetadata(
        topic=configs.topics[topic],
        broker=configs.brokers.get(spokesman.node or "", {}) if spokesman.node else {},
        brokers=configs.brokers.get("", {}),
    )


@lru_cache(maxsize=16)
def _configs_of(folder: str, state: Hashable) -> metadata_log.ClusterConfigs | None:
    """The settings in a folder's metadata log, cached until the log's ``state`` changes."""
    return metadata_log.cluster_configs(folder)


KAFKA = KafkaSystem()
