"""Kafka's share of the engine: its store, its rules and its format, joined."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache

import numpy as np

from lastwrite.compaction.grouping import group_segments
from lastwrite.compaction.producers import active, kept_batches
from lastwrite.compaction.ranges import cleanable_range
from lastwrite.compaction.retention import Retention, expired
from lastwrite.compaction.settings import INT_MAX, KafkaTopicConfig, is_setting
from lastwrite.errors import CorruptLog, LogError
from lastwrite.formats.kafka import index_truth
from lastwrite.formats.kafka.batch import MAGIC, decode_batch, decode_batch_header
from lastwrite.formats.kafka.chunk import KafkaFormat
from lastwrite.formats.kafka.index import OFFSET_ENTRY, TIME_ENTRY
from lastwrite.logstore import commit as committing
from lastwrite.logstore import kafka as store
from lastwrite.logstore import lock, metadata_log, uncleanable
from lastwrite.logstore import publish as publishing
from lastwrite.logstore import retention as retaining
from lastwrite.logstore.aside import AsideSegment, remove_aside
from lastwrite.logstore.overlap import side_by_side
from lastwrite.logstore.producers import read_history
from lastwrite.logstore.reading import SegmentReader
from lastwrite.logstore.throttle import Spend
from lastwrite.logstore.watching import Glance, glance
from lastwrite.model.backlog import Backlog
from lastwrite.model.columns import BatchTable
from lastwrite.model.log import AbortedTransaction, PartitionLog, Segment, TopicPartition
from lastwrite.model.policy import Policy, Strategy
from lastwrite.model.work import Limits, Piece, RewriteUnit, Rewritten
from lastwrite.pipeline.chunks import Chunks
from lastwrite.pipeline.rewrite import settle
from lastwrite.pipeline.system import Decision, Format, IndexChecker, Renewed, SegmentAppender

_POLICY = {"cleanup.policy", "log.cleanup.policy"}
_AGE = {"retention.ms", "log.retention.ms", "log.retention.minutes", "log.retention.hours"}
_BROKERS_FILE = {
    "log.dirs",
    "log.dir",
}  # who gives a broker's whole file states by silence that it has the default
_AGE_UNKNOWN = (
    "retention.ms is set neither by the topic nor here, and the brokers' own is not known"
)
_HEADER_BYTES = 61
_SAMPLES = 32
_SAMPLE_BYTES = 1 << 20


class KafkaSystem:
    """See ``pipeline.system.System`` for what each call owes.

    ``metadata_roots``: where the cluster's metadata log may lie if not beside the partition: a broker of several log
    roots has it in one of them.
    """

    name = "kafka"
    offset_span = INT_MAX  # index entries hold 31 bits
    joins_parts = True
    keeps_scans = True
    makes_one_segment = False
    notes = uncleanable.KAFKA
    policy_remedy = "give --config cleanup.policy=compact if all of them are, or their settings by --config-file"
    look_ms = 15_000

    def __init__(self, metadata_roots: Sequence[str] = ()) -> None:
        self._metadata_roots = tuple(metadata_roots)

    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        return KafkaFormat(plain_bytes)

    # ------------------------------------------------------------------ where things lie

    def find(self, path: str, topic: str | None, partition: int | None) -> list[str]:
        return store.find_partitions(path, topic, partition)

    def name_of(self, folder: str) -> TopicPartition:
        return store.partition_name(folder)

    def glance(self, root: str) -> list[Glance]:
        return glance(root)

    def root_of(self, folder: str) -> str:
        return store.root_of(folder)

    def hold(self, root: str, names: Collection[TopicPartition]) -> AbstractContextManager[None]:
        return lock.hold(root, names)

    def try_hold(
        self, root: str, names: Collection[TopicPartition]
    ) -> AbstractContextManager[set[TopicPartition]]:
        return lock.try_hold(root, names)

    def broker_of(self, root: str) -> str | None:
        return lock.broker_of(root)

    def refuse_if_held(self, root: str, names: Collection[TopicPartition]) -> None:
        lock.refuse_if_held(root, names)

    def refuse_unclean(self, root: str, config: Mapping[str, object]) -> None:
        """It never matters: what a crash left is seen as a broker's start would leave it."""

    def recover(self, folder: str) -> None:
        store.recover(folder)

    def read(self, folder: str, spend: Spend | None = None) -> PartitionLog:
        return store.read_partition(folder)

    # ------------------------------------------------------------------ rules

    def check_config(self, config: Mapping[str, object]) -> None:
        KafkaTopicConfig.from_names(config)

    def settings(self, log: PartitionLog, config: Mapping[str, object]) -> KafkaTopicConfig:
        """The topic's settings: ``config``, else its own from the cluster's metadata log, else Kafka's defaults.

        Where the topic is in no metadata log the policy is ``compact`` unless ``config`` says otherwise: who calls for
        compaction of a log without a policy means it. A topic that is in one and sets none has Kafka's default,
        ``delete`` (docs/decisions).
        """
        own = self._own_settings(log.folder)
        merged = {
            **{name: value for name, value in (own or {}).items() if is_setting(name)},
            **config,
        }
        if not _POLICY & merged.keys():
            merged["cleanup.policy"] = "compact" if own is None else "delete"
        return _config_of(tuple((name, type(value), value) for name, value in merged.items()))

    def _own_settings(self, folder: str) -> dict[str, str] | None:
        """What the metadata log says of the topic; None: no metadata log knows it."""
        for root in (self.root_of(folder), *self._metadata_roots):
            topics = _topics_of(root, metadata_log.state(root))
            if topics is not None:
                return topics.get(self.name_of(folder).topic)
        return None

    def is_policy_known(self, folder: str, config: Mapping[str, object]) -> bool:
        return bool(_POLICY & config.keys()) or self._own_settings(folder) is not None

    def decide(
        self,
        log: PartitionLog,
        config: Mapping[str, object],
        now_ms: int,
        include_active: bool,
        like_broker: bool = False,
    ) -> Decision:
        settings = self.settings(log, config)
        found = cleanable_range(log, settings, now_ms, include_active)
        reason = found.reason
        if not settings.compacts:
            reason = (
                f"cleanup.policy is {','.join(settings.cleanup_policy) or 'empty'}, without compact"
            )
        elif reason is None and not found.eligible:
            reason = "not due"
        strategy = Strategy[settings.compaction_strategy.upper()]
        last_offsets, marker_producers = kept_batches(
            active(log.producers, now_ms, settings.producer_id_expiration_ms)
        )
        return Decision(
            first_dirty=found.first_dirty,
            end=found.first_uncleanable,
            # By another strategy a clean record may beat a dirty one, so all take part.
            elect_from=found.first_dirty if strategy is Strategy.OFFSET else 0,
            dirty_ratio=found.ratio,
            reason=reason,
            compacts=settings.compacts,
            cleanable_bytes=found.cleanable_bytes,
            overdue_ms=found.overdue_ms,
            policy=Policy(
                now_ms=now_ms,
                tombstone_retention_ms=settings.delete_retention_ms,
                shell_offset=log.high_watermark,
                old_tombstones_until_ms=_clean_until_ms(log, found.first_dirty)
                - settings.delete_retention_ms,
                end_offset=_last_batch_end(log) if include_active else -1,
                strategy=strategy,
                strategy_header=settings.compaction_strategy_header,
                pinned_offset=-1 if strategy is Strategy.OFFSET else log.end_offset,
                keep_tombstones=strategy is not Strategy.OFFSET
                and any(
                    s.size_bytes for s in log.segments if s.base_offset >= found.first_uncleanable
                ),
                last_offsets=last_offsets,
                marker_producers=marker_producers,
            ),
            index_interval_bytes=settings.index_interval_bytes,
        )

    def group(
        self, log: PartitionLog, end: int, config: Mapping[str, object], like_broker: bool = False
    ) -> list[list[int]]:
        settings = self.settings(log, config)
        place = {segment.base_offset: n for n, segment in enumerate(log.segments)}
        groups = group_segments(
            log.segments, end, settings.segment_bytes, settings.segment_index_bytes
        )
        return [[place[segment.base_offset] for segment in group] for group in groups]

    # ------------------------------------------------------------------ pieces

    def cut(self, log: PartitionLog, segment: int, piece_bytes: int) -> list[int]:
        """Cut by the offset index, which the scan then proves; a segment without one is one piece."""
        source = log.segments[segment]
        cuts = [0]
        if source.size_bytes > piece_bytes * 3 // 2:
            positions = np.asarray(store.read_offset_index(source)[1])
            count = -(-source.size_bytes // piece_bytes)
            for n in range(1, count):
                found = int(np.searchsorted(positions, source.size_bytes * n // count))
                if found < len(positions) and cuts[-1] < int(positions[found]) < source.size_bytes:
                    cuts.append(int(positions[found]))
        if source.size_bytes:
            cuts.append(source.size_bytes)
        return cuts

    def aborted_by_log(self, log: PartitionLog) -> tuple[AbortedTransaction, ...]:
        return read_history(log).aborted

    def estimate_records(self, log: PartitionLog) -> int:
        """About how many records there are, from the first batch of some segments."""
        filled = [segment for segment in log.segments if segment.size_bytes >= _HEADER_BYTES]
        step = max(1, len(filled) // _SAMPLES)
        records, sampled = 0.0, 0
        header = np.empty(_HEADER_BYTES, dtype=np.uint8)
        for segment in filled[::step]:
            with SegmentReader(segment.path, segment.file_bytes, segment.mtime_ns) as reader:
                reader.read_into(header, 0)
                try:
                    first = decode_batch_header(memoryview(header), 0)
                    if first.magic < MAGIC and first.size_bytes <= min(
                        _SAMPLE_BYTES, segment.size_bytes
                    ):
                        entry = np.empty(
                            first.size_bytes, dtype=np.uint8
                        )  # only inside stands how many it holds
                        reader.read_into(entry, 0)
                        first = decode_batch(memoryview(entry), 0, _SAMPLE_BYTES << 4).header
                except LogError:  # the scan will name it
                    continue
            records += segment.size_bytes * max(first.record_count, 1) / (first.batch_length + 12)
            sampled += segment.size_bytes
        total = log.size_bytes
        return int(records * total / sampled) if sampled else total // 64

    def index_checker(self, piece: Piece) -> IndexChecker:
        return KafkaIndexChecker(piece)

    # ------------------------------------------------------------------ outputs

    def appender(self, base_offset: int, unit: RewriteUnit) -> SegmentAppender:
        return AsideSegment(
            base_offset, unit.folder, unit.index_interval_bytes if unit.parts == 1 else None
        )

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        if to is None:
            return log.folder
        return publishing.staging_folder(os.path.join(to, str(log.name)))

    def join_parts(
        self,
        log: PartitionLog,
        base_offset: int,
        parts: Sequence[Rewritten],
        folder: str,
        index_interval_bytes: int,
        limits: Limits,
        aborted: tuple[AbortedTransaction, ...],
        mtime_ns: int,
    ) -> Rewritten:
        """One segment of its parts; a single part is the segment already.

        The parts are whole batches, so their bytes are joined as they are; the indexes come of a walk over the whole,
        which proves every batch by its checksum once more.
        """
        if len(parts) == 1:
            return parts[0]
        appender = AsideSegment(base_offset, folder, index_interval_bytes)
        whole = Rewritten(parts[0].partition, parts[0].group, 0, base_offset=base_offset)
        try:
            path = appender.take_parts([part.log_path for part in parts])
            seen = os.stat(path)
            piece = Piece(
                0,
                0,
                path,
                0,
                seen.st_size,
                seen.st_size,
                seen.st_mtime_ns,
                base_offset,
                2**63 - 1,
                True,
            )
            for chunk in Chunks(limits).of(self.new_format(limits.plain_bytes), piece):
                columns = [
                    chunk.table[name] for name in ("origin", "size", "next_offset", "max_timestamp")
                ]
                appender.index(np.stack(columns, axis=1).astype(np.int64), chunk.shift)
            appender.finish(whole, mtime_ns, aborted)
        except BaseException:
            appender.abandon()
            for part in parts:
                self.discard(part)
            raise
        settle([whole])
        if whole.error is not None:
            raise whole.error
        return whole

    def discard(self, part: Rewritten) -> None:
        """Remove what was written aside."""
        for new in (part, *part.further):
            remove_aside(
                (new.log_path, new.index_path, new.time_index_path, new.transaction_index_path)
            )

    def swap(self, wave: Sequence[Renewed]) -> list[LogError | OSError | None]:
        works = []
        notes: dict[str, committing.Notes] = {}
        for new in wave:
            assert new.first_dirty is not None
            shared = notes.setdefault(self.root_of(new.log.folder), committing.Notes())
            works.append(
                committing.swap(new.log, _outputs(new.sources, new.made), new.first_dirty, shared)
            )
        return side_by_side(works)

    def record(self, root: str, first_dirty: Mapping[TopicPartition, int]) -> None:
        committing.record(root, first_dirty)

    def tidy(self, logs: Sequence[PartitionLog]) -> list[LogError | OSError | None]:
        return side_by_side(committing.tidy(log.folder) for log in logs)

    def publish_copies(self, copies: Sequence[Renewed], to: str) -> list[LogError | OSError | None]:
        root = os.path.abspath(to)
        wanted = [
            publishing.Copy(
                copy.log,
                _outputs(copy.sources, copy.made),
                os.path.join(root, str(copy.log.name)),
                copy.first_dirty,
                copy.retention,
            )
            for copy in copies
        ]
        return publishing.publish_copies(wanted, root)

    # ------------------------------------------------------------------ retention

    def segment_path(self, log: PartitionLog, base_offset: int) -> str:
        return store.segment_path(log.folder, base_offset)

    def expired(self, log: PartitionLog, config: Mapping[str, object], now_ms: int) -> Retention:
        """By the topic's settings. Where nobody states ``retention.ms`` nothing goes by age (docs/decisions)."""
        settings = self.settings(log, config)
        if not settings.deletes or self._is_age_stated(log.folder, config):
            return expired(log, settings, now_ms)
        found = expired(log, replace(settings, retention_ms=-1), now_ms)
        return replace(found, stays=found.stays and f"{found.stays}; {_AGE_UNKNOWN}")

    def _is_age_stated(self, folder: str, config: Mapping[str, object]) -> bool:
        own = self._own_settings(folder)
        if own is None or config.keys() & (_POLICY | _BROKERS_FILE):
            return True
        return bool(_AGE & (own.keys() | config.keys()))

    def backlog(
        self, log: PartitionLog, horizon: int, config: Mapping[str, object], now_ms: int
    ) -> Backlog | None:
        """Compaction changes the log itself."""
        return None

    def retain(
        self, wave: Sequence[tuple[PartitionLog, Retention]]
    ) -> list[LogError | OSError | None]:
        errors: list[LogError | OSError | None] = [None] * len(wave)
        places: dict[str, list[int]] = {}
        for place, (log, _) in enumerate(wave):
            places.setdefault(self.root_of(log.folder), []).append(place)
        for root, inside in places.items():
            found = retaining.retain_all([wave[place] for place in inside], checkpoint_root=root)
            for place, error in zip(inside, found, strict=True):
                errors[place] = error
        return errors


def _clean_until_ms(log: PartitionLog, first_dirty: int) -> int:
    """When the last segment that begins below ``first_dirty`` was changed; 0: there is none."""
    return next((s.mtime_ms for s in reversed(log.segments) if s.base_offset < first_dirty), 0)


def _last_batch_end(log: PartitionLog) -> int:
    """The log's end where its last batch alone tells it; -1: an empty active segment bears it in its name."""
    return log.end_offset if log.segments[-1].base_offset < log.end_offset else -1


def _outputs(
    sources: Sequence[Sequence[Segment]], made: Sequence[Rewritten]
) -> list[committing.Output]:
    return [
        committing.Output(
            base_offset=new.base_offset,
            sources=tuple(group),
            log_path=new.log_path,
            index_path=new.index_path,
            time_index_path=new.time_index_path,
            transaction_index_path=new.transaction_index_path,
        )
        for group, new in zip(sources, made, strict=True)
    ]


@lru_cache(maxsize=256)
def _config_of(named: tuple[tuple[str, type, object], ...]) -> KafkaTopicConfig:
    """Parsed and checked once: most partitions of a root have the same settings."""
    return KafkaTopicConfig.from_names({name: value for name, _, value in named})


@lru_cache(maxsize=16)
def _topics_of(root: str, state: Hashable) -> dict[str, dict[str, str]] | None:
    """``metadata_log.topic_configs``, read once as long as the metadata log is in the same ``state``."""
    return metadata_log.topic_configs(root)


class KafkaIndexChecker:
    """Holds the entries of a segment's indexes against the batches of a piece; see ``formats.kafka.index_truth``."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        offsets, positions = store.read_offset_index(piece)
        first, end = np.searchsorted(positions, [piece.start, piece.end]).tolist()
        self._first, self._offsets, self._positions = (
            first,
            offsets[first:end],
            positions[first:end],
        )
        self._times, self._time_offsets = store.read_time_index(piece)
        self._reached, self._last = index_truth.NO_TIME, -1

    def check(self, table: BatchTable, shift: int) -> None:
        begins = table["origin"] + shift
        end = int(begins[-1]) + int(table["origin_size"][-1])
        lie = index_truth.false_offset_entry(
            self._offsets, self._positions, begins, end, table["base_offset"]
        )
        if lie is not None:
            row = self._first + lie.row
            self._refuse(lie.problem, row * OFFSET_ENTRY.size, store.index_path(self._piece.path))
        last = table["next_offset"] - 1
        before = self._last if self._last >= 0 else int(last[0])
        lie = index_truth.false_time_entry(
            self._times, self._time_offsets, last, table["max_timestamp"], self._reached, before
        )
        if lie is not None:
            self._refuse(
                lie.problem, lie.row * TIME_ENTRY.size, store.time_index_path(self._piece.path)
            )
        self._reached = max(self._reached, int(table["max_timestamp"].max()))
        self._last = int(last[-1])

    @staticmethod
    def _refuse(problem: str, position: int, path: str) -> None:
        raise CorruptLog(problem, position, path, "delete the index: a broker makes it anew")


KAFKA = KafkaSystem()
