"""RocketMQ's share of the engine: compaction logs, their rules and their format, joined.

A queue of a topic is a partition, a file of its compaction log a segment, a record a batch of one. Two ways:

- by default each closed file is rewritten under its own name with its own survivors, one that loses nothing is left
  alone, and a pair of which nothing is left goes. A broker serves such a store (spec/rocketmq.md section 24.3);
- ``like_broker`` packs all closed files anew from address 0, byte for byte as the broker's own run.

Source: RocketMQ 5.5.0 CompactionLog, CompactionStore; spec/rocketmq.md sections 10, 11, 13, 24.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache, partial

from lastwrite.compaction.named_settings import LONG_MAX
from lastwrite.compaction.ranges import cleanable_range
from lastwrite.compaction.retention import Retention
from lastwrite.compaction.rocketmq_settings import DROP, KEEP, RocketmqConfig
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.formats.rocketmq.chunk import RocketmqFormat
from lastwrite.formats.rocketmq.names import OFFSET_DIGITS
from lastwrite.logstore import uncleanable
from lastwrite.logstore.aside import remove_aside
from lastwrite.logstore.overlap import Outcome, outcome
from lastwrite.logstore.rocketmq import lock, store
from lastwrite.logstore.rocketmq import publish as publishing
from lastwrite.logstore.rocketmq.aside import AsideFiles
from lastwrite.logstore.rocketmq.copies import copy_config
from lastwrite.logstore.rocketmq.publish import Change, Pair
from lastwrite.logstore.throttle import Spend
from lastwrite.logstore.uncleanable import Notes
from lastwrite.logstore.watching import Glance
from lastwrite.model.backlog import Backlog
from lastwrite.model.log import AbortedTransaction, PartitionLog, TopicPartition
from lastwrite.model.policy import Policy
from lastwrite.model.work import Limits, Piece, RewriteUnit, Rewritten
from lastwrite.pipeline.system import Decision, Format, IndexChecker, Renewed, SegmentAppender


class RocketmqSystem:
    """See ``pipeline.system.System`` for what each call owes."""

    name = "rocketmq"
    offset_span = LONG_MAX
    joins_parts = False  # a file has at most 2 GiB, and its records tell where they lie in it
    keeps_scans = False  # a file of ours among its own keeps a broker from loading a queue
    makes_one_segment = False
    notes = Notes(lock.PLACE, uncleanable.KAFKA.text_of, uncleanable.KAFKA.name_of, store.folder_of)
    policy_remedy = ""  # what has a compaction log is compacted
    look_ms = 15_000

    def new_format(self, plain_bytes: int, reading: int = 0) -> Format:
        return RocketmqFormat(plain_bytes)

    # ------------------------------------------------------------------ where things lie

    def find(self, path: str, topic: str | None, partition: int | None) -> list[str]:
        return store.find_queues(path, topic, partition)

    def name_of(self, folder: str) -> TopicPartition:
        return store.name_of(folder)

    def glance(self, root: str) -> list[Glance]:
        """Without a word on changes: a broker that runs keeps the daemon out, and without one nothing is written."""
        return [
            Glance(self.name_of(folder), folder, None, True)
            for folder in self.find(root, None, None)
        ]

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
        lock.refuse_unclean(root, goes_on=RocketmqConfig.from_names(config).unclean)

    def recover(self, folder: str) -> None:
        publishing.recover(store.root_of(folder), store.name_of(folder))

    def read(self, folder: str, spend: Spend | None = None) -> PartitionLog:
        return store.read_queue(folder)

    # ------------------------------------------------------------------ rules

    def check_config(self, config: Mapping[str, object]) -> None:
        RocketmqConfig.from_names(config)

    def is_policy_known(self, folder: str, config: Mapping[str, object]) -> bool:
        """What has a compaction log is compacted."""
        return True

    def decide(
        self,
        log: PartitionLog,
        config: Mapping[str, object],
        now_ms: int,
        include_active: bool,
        like_broker: bool = False,
    ) -> Decision:
        """What a round would do; as the broker: of all closed files, as soon as one is dirty, deletes at once.

        Raises:
            InvalidConfig: the active file is to be rewritten as the broker never does.
        """
        settings = _config_of(tuple((name, type(value), value) for name, value in config.items()))
        if like_broker:
            if include_active:
                raise InvalidConfig(
                    "a broker never compacts the active file",
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
        if log.checkpoint is not None:
            # Offsets have gaps: of files that were all compacted none holds the first dirty one.
            log = replace(log, checkpoint=store.first_offset_from(log, log.checkpoint))
        found = cleanable_range(log, settings, now_ms, include_active)
        cleaned = [
            s for s in log.segments if s.size_bytes and s.base_offset < found.first_uncleanable
        ]
        reason = found.reason
        if reason is None and not found.eligible:
            reason = "not due"
        return Decision(
            first_dirty=found.first_dirty,
            # Behind the last record of the files that are cleaned: of what a broker remembers the round by.
            end=store.end_offset_of(cleaned[-1]) if cleaned else found.first_uncleanable,
            elect_from=found.first_dirty,
            dirty_ratio=found.ratio,
            reason=reason,
            cleanable_bytes=found.cleanable_bytes,
            overdue_ms=found.overdue_ms,
            policy=Policy(
                # Of deletes a broker never asks the age; a store time may lie ahead of any clock.
                now_ms=LONG_MAX if like_broker else now_ms,
                tombstone_retention_ms=settings.delete_retention_ms,
                ages_by_write_time=True,
                keep_keyless=settings.keyless_messages == KEEP,
                # Without the highest offset new messages would be refused, or old ones come back (section 24.3).
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
        return [[place] for place in places]

    # ------------------------------------------------------------------ pieces

    def cut(self, log: PartitionLog, segment: int, piece_bytes: int) -> list[int]:
        return store.cuts_of(log.segments[segment], piece_bytes)

    def aborted_by_log(self, log: PartitionLog) -> tuple[AbortedTransaction, ...]:
        return ()

    def estimate_records(self, log: PartitionLog) -> int:
        """Exactly, by the units of all indexes."""
        return store.record_count(log)

    def index_checker(self, piece: Piece) -> IndexChecker:
        return store.IndexChecker(piece)

    # ------------------------------------------------------------------ outputs

    def appender(self, base_offset: int, unit: RewriteUnit) -> SegmentAppender:
        return AsideFiles(unit)

    def output_folder(self, log: PartitionLog, to: str | None) -> str:
        return publishing.aside_folder(
            store.root_of(log.folder) if to is None else os.path.abspath(to), log.name
        )

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
        """There is one part."""
        (whole,) = parts
        return whole

    def discard(self, part: Rewritten) -> None:
        """Remove what was written aside."""
        for new in (part, *part.further):
            remove_aside(new.paths)

    def swap(self, wave: Sequence[Renewed]) -> list[LogError | OSError | None]:
        """The new files and the positions, of all queues of a store in one step."""
        return _by_root(
            [store.root_of(new.log.folder) for new in wave],
            lambda root, places: publishing.publish(
                root, [_change(wave[place]) for place in places]
            ),
        )

    def record(self, root: str, first_dirty: Mapping[TopicPartition, int]) -> None:
        """``swap`` did it."""

    def tidy(self, logs: Sequence[PartitionLog]) -> list[LogError | OSError | None]:
        def of_root(root: str, places: Sequence[int]) -> list[Outcome]:
            names = [logs[place].name for place in places]
            return [outcome(partial(publishing.tidy, root, names))] * len(places)

        return _by_root([store.root_of(log.folder) for log in logs], of_root)

    def publish_copies(self, copies: Sequence[Renewed], to: str) -> list[LogError | OSError | None]:
        """Queues of another store, which with their topics' settings are what a broker can be started on."""
        root = os.path.abspath(to)
        changes = [replace(_change(copy), source=store.root_of(copy.log.folder)) for copy in copies]
        errors = publishing.publish_copies(root, changes)
        made = [change for change, error in zip(changes, errors, strict=True) if error is None]

        def finish() -> None:
            for source in sorted({change.source for change in made if change.source is not None}):
                copy_config(source, root)
            publishing.tidy(root, [change.name for change in made])

        late = outcome(finish) if made else None
        return [error or late for error in errors]

    # ------------------------------------------------------------------ retention

    def segment_path(self, log: PartitionLog, base_offset: int) -> str:
        return log.path_of(base_offset)

    def expired(self, log: PartitionLog, config: Mapping[str, object], now_ms: int) -> Retention:
        """Nothing: a compaction log knows no age and no size."""
        return Retention(
            segments=(),
            rolls=False,
            first_base=log.log_start,
            log_start=log.log_start,
            stays="a compaction log has no retention",
        )

    def backlog(
        self, log: PartitionLog, horizon: int, config: Mapping[str, object], now_ms: int
    ) -> Backlog | None:
        """Compaction changes the log itself."""
        return None

    def retain(
        self, wave: Sequence[tuple[PartitionLog, Retention]]
    ) -> list[LogError | OSError | None]:
        return [None] * len(wave)


def _change(new: Renewed) -> Change:
    """Which pairs go and which come. One without a record, which only a failed append leaves, goes unless it is the
    active one: a broker serves nothing before it (section 24.3)."""
    replaced = [segment for sources in new.sources for segment in sources]
    empty = (
        [segment for segment in new.log.segments[:-1] if not segment.size_bytes] if replaced else []
    )
    gone = [os.path.basename(segment.path) for segment in (*replaced, *empty)]
    pairs = [
        Pair(os.path.basename(made.log_path)[:OFFSET_DIGITS], made.log_path, made.index_path)
        for made in new.made
        if not made.is_gone
    ]
    first_dirty = new.log.checkpoint if new.first_dirty is None else new.first_dirty
    position = None if not first_dirty else first_dirty - 1
    return Change(name=new.log.name, log=new.log, gone=gone, pairs=pairs, position=position)


def _by_root(
    roots: Sequence[str], work: Callable[[str, Sequence[int]], Sequence[Outcome]]
) -> list[LogError | OSError | None]:
    """Do ``work`` once a store, of the places that it has in ``roots``; place for place why it failed."""
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
