"""``explain``: why a partition is not clean, why a key has duplicates, why a delete is still there;
and until when.

The rules answer themselves: scan, election and judgement run over the partition as in a round, in
this process, and nothing is written. They run twice, over the range of the next round and over the
whole log, as if all of it were closed and replicated: what only the second run finds superseded
waits for the range to move on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lastwrite.commands.compact import TopicConfig, find_told, overrides
from lastwrite.commands.systems import kafka_alone
from lastwrite.config.cleaner import CleanerConfig
from lastwrite.engine.context import Context, Options
from lastwrite.engine.record_states import RecordStates, record_states
from lastwrite.engine.round import run_round
from lastwrite.engine.rules.keyless import is_refused, may_drop, refusal
from lastwrite.engine.rules.ranges import Range, cleanable_range
from lastwrite.engine.system import Decision, Sources
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, LogHeld
from lastwrite.kafka.look.explain_counts import Hit, WaitingRecords
from lastwrite.kafka.look.problems import kafka_problem_of
from lastwrite.kafka.rules.explain_range import policy_reason, range_reasons
from lastwrite.kafka.rules.explain_record import RoundFacts, fate_of
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.system import KAFKA, KafkaSystem
from lastwrite.model.log import PartitionLog, Problem, ProblemKind
from lastwrite.model.policy import Strategy
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits
from lastwrite.reports.explanation import (
    ExplainReport,
    Fate,
    PartitionExplanation,
    Reason,
    RecordExplanation,
    Rule,
)
from lastwrite.spark.folder_exchange import FolderExchange
from lastwrite.spark.inline import place_of
from lastwrite.spark.use import runner_for
from lastwrite.storage.quarantine import read_quarantine


def explain(
    path: str,
    system: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    key: bytes | None = None,
    include_active: bool = False,
    memory: str | int | None = None,
    progress: Progress | None = None,
    topic_config: TopicConfig | None = None,
    metadata: str | None = None,
    drop_keyless: bool = False,
) -> ExplainReport:
    """Why the partitions at ``path`` are not clean, and when that changes under today's settings.

    Args:
        path: a log root, or a partition's folder.
        config: settings under upstream's names, as ``compact`` takes them.
        now_ms: the clock, milliseconds since 1970; None: now.
        key: every record of this key is listed, each with why it is still there and when it goes.
        include_active: the active segment counts as closed, as with ``compact``.
        memory: what may be used at once, in bytes or as ``"2g"``.
        topic_config, metadata: as for ``compact``.
        drop_keyless: as ``compact`` takes it.

    Raises:
        NotALog, InvalidConfig: nothing was read.

    Starts no Spark, and changes nothing. Damage, and partitions that a broker or another run holds,
    do not raise: they stand in the report.
    """
    config = may_drop(config, drop_keyless)
    kafka_alone(system, str(path), "explain").check_config(config)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    report = ExplainReport(path=str(path), now_ms=now)
    sources = Sources(overrides=overrides(topic_config), metadata=metadata)
    kafka, folders = find_told([str(path)], KAFKA.name, topic, partition, sources)
    assert isinstance(kafka, KafkaSystem)
    with runner_for(place_of(None), "", memory, {}, NoProgress()) as (runner, plan):
        exchange = FolderExchange(runner)
        try:
            job = _Job(
                kafka,
                config,
                now,
                include_active,
                key,
                exchange,
                plan.limits(),
                progress or NoProgress(),
            )
            report.partitions = [job.partition(folder) for folder in folders]
        finally:
            exchange.close()
    return report


@dataclass(frozen=True, slots=True)
class _Job:
    """What one call asks for."""

    kafka: KafkaSystem
    config: Mapping[str, object]
    now_ms: int
    include_active: bool
    key: bytes | None
    exchange: FolderExchange
    limits: Limits
    progress: Progress

    def partition(self, folder: str) -> PartitionExplanation:
        name = self.kafka.name_of(folder)
        out = PartitionExplanation(topic=name.topic, partition=name.partition, folder=folder)
        held = self._held(folder)
        try:
            log = self.kafka.read(folder)
            settings = self.kafka.settings(folder, self.config).config
            decision = self.kafka.decide(log, self.config, self.now_ms, self.include_active)
        except (LogError, OSError) as error:
            if held is not None:  # its files change while they are read
                out.reasons = [held]
                out.summary = held.message
                return out
            if isinstance(error, InvalidConfig):
                raise
            out.problems.append(_problem(error, folder))
            out.reasons = _damage(out.problems)
            out.summary = "it is damaged"
            return out
        found = cleanable_range(log, settings, self.now_ms, self.include_active)
        out.problems = [] if held is not None else list(log.problems)
        self._why(out, log, settings, found, held)
        if not out.problems and held is None:
            self._records(out, log, settings, decision, found)
        return out

    def _held(self, folder: str) -> Reason | None:
        """Who works on the partition; None: nobody does."""
        try:
            self.kafka.refuse_if_held(self.kafka.root_of(folder), [self.kafka.name_of(folder)])
        except LogHeld as held:
            change = "when it stops; until then explain reads no records, and the figures are from a moment ago"
            return Reason(Rule.HELD, held.problem, change)
        return None

    # ------------------------------------------------------------------ the partition

    def _why(
        self,
        out: PartitionExplanation,
        log: PartitionLog,
        settings: KafkaTopicConfig,
        found: Range,
        held: Reason | None,
    ) -> None:
        out.first_dirty_offset, out.first_uncleanable_offset = (
            found.first_dirty,
            found.first_uncleanable,
        )
        out.end_offset, out.dirty_ratio = log.end_offset, found.ratio
        out.clean_bytes, out.cleanable_bytes = found.clean_bytes, found.cleanable_bytes
        alone = self.kafka.leaves_alone(log.folder, self.config)
        policy = policy_reason(settings)
        if alone is not None:
            policy = Reason(Rule.POLICY, alone.reason, f"as soon as it is set: {alone.remedy}")
        reasons = [] if policy is None else [policy]
        if not CleanerConfig.from_names(self.config).enable:
            change = "with true; lastwrite compact runs all the same"
            reasons.append(Reason(Rule.CLEANER, "log.cleaner.enable is false", change))
        reasons += _damage(out.problems)
        try:
            staged = read_quarantine(self.kafka.root_of(log.folder), self.kafka.notes).get(log.name)
        except CorruptLog as error:
            out.problems.append(kafka_problem_of(error, log.folder))
            staged = None
        if staged is not None:
            reasons.append(
                Reason(
                    Rule.SET_ASIDE,
                    f"{staged.tries} rounds of the cleaner failed since {staged.since_ms}: {staged.reason}",
                    f"with a round that succeeds: the next is tried from {staged.next_try_ms} on, or at once after "
                    "lastwrite release",
                    staged.next_try_ms,
                )
            )
        if held is not None:
            reasons.append(held)
        out.reasons = [
            *reasons,
            *range_reasons(found, log, settings, self.now_ms, self.include_active),
        ]
        out.is_due = found.eligible and settings.compacts and alone is None and not out.problems
        out.summary = (
            _summary(out, found)
            if held is None
            else f"{held.message}; by the rules {_summary(out, found)}"
        )

    # ------------------------------------------------------------------ its records

    def _records(
        self,
        out: PartitionExplanation,
        log: PartitionLog,
        settings: KafkaTopicConfig,
        decision: Decision,
        found: Range,
    ) -> None:
        end = max(log.end_offset, log.segments[-1].base_offset + 1)
        try:
            context = self._context(self.progress)
            following = record_states(context, log, decision, found.first_uncleanable)
            everything = record_states(context, log, decision, end)
            reading = WaitingRecords(log, decision, self.include_active, self.key, self.limits)
            for number, piece in enumerate(following.pieces):
                reading.piece(piece, following.of(number), everything.of(number))
        except (LogError, OSError) as error:
            out.problems.append(_problem(error, log.folder))
            out.reasons = [*_damage(out.problems), *out.reasons]
            out.is_due = False
            out.summary = "it is damaged"
            return
        out.waiting = reading.waiting
        self._keyless(out, following, decision)
        if self.key is not None:
            around = self._around(out, decision, settings, found, reading.hits)
            out.records = _explained(reading.hits, around, *self._expired(log, settings))

    def _context(self, progress: Progress) -> Context:
        options = Options(
            config=self.config, now_ms=self.now_ms, include_active=self.include_active, dry_run=True
        )
        return Context(self.kafka, self.exchange, 1, self.limits, options, progress)

    @staticmethod
    def _keyless(out: PartitionExplanation, following: RecordStates, decision: Decision) -> None:
        """A round would find that too many records have no key."""
        scans = [
            scan
            for scan, piece in zip(following.scans, following.pieces, strict=True)
            if piece.keyed
        ]
        found, data = (
            sum(scan.keyless for scan in scans),
            sum(scan.records - scan.hidden for scan in scans),
        )
        most = decision.max_keyless_ratio
        if not is_refused(found, data, most):
            return
        first = min(scan.first_keyless for scan in scans if scan.keyless)
        change = "with --drop-keyless, if they may be lost"
        out.reasons = [
            *out.reasons,
            Reason(Rule.KEYLESS, refusal(found, data, first, most), change),
        ]
        if out.is_due:
            out.is_due = False
            out.summary = f"not cleaned: {out.reasons[-1].message}"

    def _expired(self, log: PartitionLog, settings: KafkaTopicConfig) -> tuple[int, str]:
        """Below which offset retention takes all segments when it follows the next compaction, and
        why.
        """
        if not settings.deletes and log.log_start <= log.segments[0].base_offset:
            return 0, ""
        # It asks of the segments that a round leaves, so a round is measured.
        (report,) = run_round(self._context(NoProgress()), [log.folder]).partitions
        if not report.retention:
            return 0, ""
        gone = report.retention[-1]
        if report.log_start_after != report.log_start_before:
            below = report.log_start_after
        else:  # the log starts inside the first segment that stays
            below = next(
                (s.base_offset for s in log.segments if s.base_offset > gone.base_offset),
                None,
            )
        return below or 0, gone.reason

    def _around(
        self,
        out: PartitionExplanation,
        decision: Decision,
        settings: KafkaTopicConfig,
        found: Range,
        hits: Sequence[Hit],
    ) -> RoundFacts:
        alive = [hit.facts for hit in hits if not hit.facts.aborted]
        return RoundFacts(
            now_ms=self.now_ms,
            first_dirty=found.first_dirty,
            first_uncleanable=found.first_uncleanable,
            delete_retention_ms=settings.delete_retention_ms,
            old_tombstones_until_ms=decision.policy.old_tombstones_until_ms,
            blocking=None if out.is_due else _blocking(out.reasons),
            reasons=tuple(out.reasons),
            winner=_last(
                facts.offset for facts in alive if facts.is_in_range and not facts.shadowed
            ),
            winner_ever=_last(facts.offset for facts in alive if not facts.shadowed_ever),
            by_offset=decision.policy.strategy is Strategy.OFFSET,
        )


def _problem(error: LogError | OSError, folder: str) -> Problem:
    return kafka_problem_of(error if isinstance(error, LogError) else LogError(str(error)), folder)


def _damage(problems: Sequence[Problem]) -> list[Reason]:
    damage = [problem for problem in problems if problem.kind is ProblemKind.DAMAGED] or list(
        problems
    )
    return [Reason(Rule.DAMAGE, str(damage[0]), "when that is repaired")] if damage else []


def _blocking(reasons: Sequence[Reason]) -> Reason | None:
    """Of the reasons of a partition that is not due, the one that has to go first."""
    ranked = (Rule.POLICY, Rule.DAMAGE, Rule.KEYLESS, Rule.DIRTY_RATIO)
    for rule in ranked:
        for reason in reasons:
            if reason.rule is rule:
                return reason
    held = [reason for reason in reasons if reason.from_offset is not None]
    others = (reason for reason in reasons if reason.rule is not Rule.HELD)
    return min(held, key=lambda reason: reason.from_offset or 0) if held else next(others, None)


def _summary(out: PartitionExplanation, found: Range) -> str:
    if out.is_due:
        over = f", and it is overdue by {found.overdue_ms} ms" if found.overdue_ms else ""
        return (
            f"due: a round now cleans offsets {found.first_dirty} to {found.first_uncleanable - 1}; "
            f"{found.cleanable_bytes} of {found.clean_bytes + found.cleanable_bytes} bytes are dirty, a share of "
            f"{found.ratio:.4g}{over}"
        )
    if any(reason.rule is Rule.CLEAN for reason in out.reasons):
        return "clean"
    blocking = _blocking(out.reasons)
    return "not due" if blocking is None else f"not due: {blocking.message}"


def _explained(
    hits: Sequence[Hit], around: RoundFacts, below: int, expired: str
) -> list[RecordExplanation]:
    """Each record of the key, oldest first, with its fate; the segments ``below`` an offset have
    ``expired``.
    """
    out = []
    for hit in hits:
        fate, message, change, at_ms = fate_of(hit.facts, around)
        if hit.facts.offset < below and fate is not Fate.NEXT_ROUND:
            fate, at_ms = Fate.NEXT_ROUND, around.now_ms
            message += f"; but its segment has expired: {expired}"
            change = "retention, which follows every compaction, due or not, deletes the segment"
        out.append(
            RecordExplanation(
                offset=hit.facts.offset,
                timestamp_ms=hit.timestamp_ms,
                segment=hit.segment,
                position=hit.position,
                value_bytes=hit.value_bytes,
                part=hit.facts.part,
                fate=fate,
                message=message,
                change=change,
                at_ms=at_ms,
            )
        )
    return out


def _last(offsets: Iterable[int]) -> int | None:
    return max(offsets, default=None)
