"""Pulsar's share of the engine: topic folders, their rules and their format, joined.

A topic, or one partition of it, is a partition; a ledger a segment; an entry a batch of one or many messages. A round
takes the compacted ledger and what came after its horizon, and writes one new compacted ledger, up to a new horizon.

Source: Pulsar 4.2.4 AbstractTwoPhaseCompactor, PublishingOrderCompactor, EventTimeOrderCompactor; spec/pulsar.md
sections 7 to 13, 27, 30.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache

from lastwrite.compaction.backlog import backlog_of
from lastwrite.compaction.named_settings import LONG_MAX
from lastwrite.compaction.pulsar_settings import THRESHOLDS, PulsarConfig
from lastwrite.compaction.retention import Retention
from lastwrite.errors import LogError
from lastwrite.formats.pulsar.chunk import KEEPS_PREFIX, LIKE_BROKER, TELLS_GROUPS, PulsarFormat
from lastwrite.formats.pulsar.position import Position
from lastwrite.logstore.overlap import overlapped
from lastwrite.logstore.pulsar import aside, lock, publish, store, watching
from lastwrite.logstore.pulsar.backlog import raw_ledgers
from lastwrite.logstore.pulsar.manifest import EVENT_TIME, PUBLISHING
from lastwrite.logstore.pulsar.publish import NewLedger
from lastwrite.logstore.pulsar.topic import find_topics, name_of, partition_of
from lastwrite.logstore.throttle import Spend
from lastwrite.logstore.watching import Glance
from lastwrite.model.backlog import Backlog
from lastwrite.model.log import AbortedTransaction, PartitionLog, TopicPartition
from lastwrite.model.policy import Policy, Strategy
from lastwrite.model.work import Limits, Piece, RewriteUnit, Rewritten
from lastwrite.pipeline.system import Decision, Format, IndexChecker, Renewed, SegmentAppender

_PIECE_BYTES = (
    8 << 20
)  # parts are joined for next to nothing, so that a single ledger is work for all


class PulsarSystem:
    """See ``pipeline.system.System`` for what each call owes."""

    name = "pulsar"
    offset_span = LONG_MAX
    joins_parts = True
    keeps_scans = False  # the ledgers of one round are not those of the next
    makes_one_segment = True
    notes = watching.NOTES
    policy_remedy = "give --config compactionThreshold=100M: a topic with more than that to compact is compacted"
    look_ms = 60_000  # brokerServiceCompactionMonitorIntervalInSeconds

    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        return PulsarFormat(plain_bytes, reading)

    # ------------------------------------------------------------------ where things lie

    def find(self, path: str, topic: str | None, partition: int | None) -> list[str]:
        return find_topics(path, topic, partition)

    def name_of(self, folder: str) -> TopicPartition:
        return partition_of(name_of(folder))

    def glance(self, root: str) -> list[Glance]:
        return watching.glance(root)

    def root_of(self, folder: str) -> str:
        """Topics share nothing on disk."""
        return folder

    def hold(self, root: str, names: Collection[TopicPartition]) -> AbstractContextManager[None]:
        return lock.hold(root, names)

    def try_hold(
        self, root: str, names: Collection[TopicPartition]
    ) -> AbstractContextManager[set[TopicPartition]]:
        return lock.try_hold(root, names)

    def broker_of(self, root: str) -> str | None:
        """No broker opens a topic folder."""
        return None

    def refuse_if_held(self, root: str, names: Collection[TopicPartition]) -> None:
        lock.refuse_if_held(root, names)

    def refuse_unclean(self, root: str, config: Mapping[str, object]) -> None:
        """What lies in a topic folder was closed."""

    def recover(self, folder: str) -> None:
        publish.recover(folder)

    def read(self, folder: str, spend: Spend | None = None) -> PartitionLog:
        return store.read_topic(folder, spend)

    # ------------------------------------------------------------------ rules

    def check_config(self, config: Mapping[str, object]) -> None:
        PulsarConfig.from_names(config)

    def is_policy_known(self, folder: str, config: Mapping[str, object]) -> bool:
        """Any topic can be compacted; a daemon has to be told from when on."""
        return bool(THRESHOLDS & config.keys())

    def decide(
        self,
        log: PartitionLog,
        config: Mapping[str, object],
        now_ms: int,
        include_active: bool,
        like_broker: bool = False,
    ) -> Decision:
        """A round is due as soon as the horizon can move; nothing in it depends on the clock."""
        settings = _config_of(tuple((name, type(value), value) for name, value in config.items()))
        first_dirty = log.segments[0].base_offset if log.checkpoint is None else log.checkpoint
        end = max(log.high_watermark, first_dirty)
        fresh = sum(s.size_bytes for s in log.segments if first_dirty <= s.base_offset < end)
        whole = fresh + sum(s.size_bytes for s in log.segments if s.base_offset < first_dirty)
        # By event time the fold begins with what survived; a broker compares all it reads, and so parts of messages.
        strategy = Strategy.EVENT_TIME if settings.by_event_time else Strategy.OFFSET
        if strategy is Strategy.OFFSET and not like_broker and store.has_parts(log):
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
            index_interval_bytes=aside.BLOCK_BYTES,
            policy=Policy(
                # A delete acts at once: its horizon is 0, and no clock stands before that.
                now_ms=max(now_ms, 0),
                tombstone_retention_ms=0,
                ages_by_write_time=True,
                keep_keyless=settings.retain_null_key,
                strategy=strategy,
                reading=reading,
            ),
        )

    def group(
        self, log: PartitionLog, end: int, config: Mapping[str, object], like_broker: bool = False
    ) -> list[list[int]]:
        places = [n for n, segment in enumerate(log.segments) if segment.base_offset < end]
        return [places] if places else []

    # ------------------------------------------------------------------ pieces

    def cut(self, log: PartitionLog, segment: int, piece_bytes: int) -> list[int]:
        return store.cuts_of(log.segments[segment], min(piece_bytes, _PIECE_BYTES))

    def aborted_by_log(self, log: PartitionLog) -> tuple[AbortedTransaction, ...]:
        """The log tells them in the first place."""
        return log.aborted

    def estimate_records(self, log: PartitionLog) -> int:
        """By the surveys, with the places of a compacted batch that are empty."""
        return store.record_count(log)

    def index_checker(self, piece: Piece) -> IndexChecker:
        return store.IndexChecker(piece)

    # ------------------------------------------------------------------ outputs

    def appender(self, base_offset: int, unit: RewriteUnit) -> SegmentAppender:
        return aside.AsideLedger(unit)

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        return log.folder if to is None else publish.copy_aside_folder(log, to)

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
        return parts[0] if len(parts) == 1 else aside.join(folder, parts, base_offset)

    def discard(self, part: Rewritten) -> None:
        """Remove what was written aside."""
        aside.discard(part.log_path)

    def swap(self, wave: Sequence[Renewed]) -> list[LogError | OSError | None]:
        def publish_one(new: Renewed) -> LogError | OSError | None:
            ledger = _new_ledger(new)
            return None if ledger is None else publish.publish(new.log, ledger)

        return list(overlapped(publish_one, wave))

    def record(self, root: str, first_dirty: Mapping[TopicPartition, int]) -> None:
        """The manifest has it."""

    def tidy(self, logs: Sequence[PartitionLog]) -> list[LogError | OSError | None]:
        return list(overlapped(publish.tidy, logs))

    def publish_copies(self, copies: Sequence[Renewed], to: str) -> list[LogError | OSError | None]:
        """Topics of another archive: what a reader of compacted topics needs, without the backlog that it does not."""
        return list(
            overlapped(lambda copy: publish.publish_copy(copy.log, _new_ledger(copy), to), copies)
        )

    # ------------------------------------------------------------------ retention

    def segment_path(self, log: PartitionLog, base_offset: int) -> str:
        return log.path_of(base_offset)

    def expired(self, log: PartitionLog, config: Mapping[str, object], now_ms: int) -> Retention:
        """Nothing: raw ledgers are other readers' too, and go by their own retention."""
        return Retention(
            segments=(),
            rolls=False,
            first_base=log.log_start,
            log_start=log.log_start,
            stays="compaction removes no raw ledger",
        )

    def backlog(
        self, log: PartitionLog, horizon: int, config: Mapping[str, object], now_ms: int
    ) -> Backlog | None:
        """The raw ledgers, by the retention that ``config`` states."""
        settings = _config_of(tuple((name, type(value), value) for name, value in config.items()))
        return backlog_of(
            raw_ledgers(log.folder),
            horizon,
            settings.retention_ms,
            settings.retention_bytes,
            now_ms,
        )

    def retain(
        self, wave: Sequence[tuple[PartitionLog, Retention]]
    ) -> list[LogError | OSError | None]:
        return [None] * len(wave)


def waits(fresh: int, threshold: int) -> str | None:
    """Why no broker would compact a topic by itself of which compaction has not seen so many bytes; None: it would.

    Source: spec/pulsar.md section 18.
    """
    if threshold == 0:
        return "compactionThreshold is 0: it is compacted when somebody asks"
    if fresh <= threshold:
        return f"{fresh} bytes lie beyond the horizon, and compactionThreshold is {threshold}"
    return None


def _nothing_new(log: PartitionLog) -> str:
    """Why the horizon cannot move."""
    if log.first_unstable_offset is not None:
        return (
            f"a transaction that is not decided begins at {Position.of(log.first_unstable_offset)}"
        )
    if log.checkpoint is not None:
        behind = Position.of(log.checkpoint)
        return f"no message lies beyond the horizon, {behind.ledger}:{behind.entry - 1}"
    return "there is no message"


def _new_ledger(new: Renewed) -> NewLedger | None:
    """What was written aside, and what it is; None: nothing was."""
    if not new.made or new.policy is None or new.first_dirty is None:
        return None
    (made,), (sources,) = new.made, new.sources
    raw = {Position.of(segment.base_offset).ledger for segment in sources if segment.base_offset}
    return NewLedger(
        path=made.log_path,
        horizon=Position.of(new.first_dirty - 1),
        messages=made.records,
        order=EVENT_TIME if new.policy.strategy is Strategy.EVENT_TIME else PUBLISHING,
        retain_null_key=new.policy.keep_keyless,
        parts=store.has_parts(new.log),
        read=sum(made.counts),
        ledgers=tuple(sorted(raw)),
    )


@lru_cache(maxsize=256)
def _config_of(named: tuple[tuple[str, type, object], ...]) -> PulsarConfig:
    return PulsarConfig.from_names({name: value for name, _, value in named})


PULSAR = PulsarSystem()
