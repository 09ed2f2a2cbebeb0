"""Explain why a partition is not clean, a key has duplicates, or a tombstone was not removed.

An explanation includes when this will change.

The engine's scan, election and judgement run over the partition as in a compaction round, but
nothing is written. They run twice: over the range of the next round, and over the entire log as if
all of it were closed and replicated. A record that is superseded only in the second run stays until
a later round whose range reaches further.

Each system has a ``RecordExplainer``, which puts its rules and records into words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple

from msgspec import structs

from lastwrite.config.cleaner import CleanerConfig
from lastwrite.config.keyless import is_over_limit, refusal
from lastwrite.engine.context import Context
from lastwrite.engine.system import Decision, System
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, LogHeld, located
from lastwrite.explanation.outcomes import OutcomeRules, RecordFacts, RoundFacts
from lastwrite.explanation.record_states import RecordStates, record_states
from lastwrite.explanation.records import KeyRecord, WaitingRecords
from lastwrite.model.columns import (
    ABORTED,
    BAD_HORIZON,
    IS_OLD,
    IS_TRANSACTIONAL,
    NO_HORIZON,
    SHADOWED,
    TOMBSTONE,
)
from lastwrite.model.log import PartitionLog, Problem, ProblemKind, any_damaged
from lastwrite.reports.explanation import (
    LogRegion,
    PartitionExplanation,
    RangeInWords,
    Reason,
    RecordExplanation,
    RecordOutcome,
    Rule,
)
from lastwrite.storage.problems import problem_of
from lastwrite.storage.quarantine import read_quarantine
from lastwrite.storage.reading import TRIES


class RangeReasons(NamedTuple):
    """The reasons why the next round does not clean a partition, or only a part of it."""

    clean_bytes: int
    policy: Reason | None  # why the topic is not compacted; None if it is
    reasons: Sequence[Reason]  # the other reasons, in the order in which the system checks them


class RecordDescription(NamedTuple):
    """A record, described in its system's terms."""

    offset: int
    place: str  # the record's offset in the system's terms
    timestamp_ms: int
    value_bytes: int | None  # None means that the record deletes the key
    message_id: str | None = None
    is_part: bool = False


class RecordExplainer(ABC):
    """The functions that a system implements to explain its partitions and records."""

    fates: type[OutcomeRules]
    has_active = True  # whether rounds skip the last segment, unless an option includes it

    def __init__(self, system: System) -> None:
        self.system = system

    @abstractmethod
    def range_of(self, context: Context, log: PartitionLog, decision: Decision) -> RangeReasons:
        """The reasons why the next round does not clean ``log``, or only a part of it.

        ``log`` has at least one segment.
        """

    @abstractmethod
    def describe(self, log: PartitionLog, record: KeyRecord) -> RecordDescription:
        """The description of a record.

        Raises:
            LogError: the record cannot be decoded.
        """

    def stored_keys(self, key: bytes) -> Sequence[bytes]:
        """The stored forms of a key. ``has_key`` excludes other keys that have the same form."""
        return (key,)

    def has_key(self, record: KeyRecord, key: bytes) -> bool:
        """Whether a record found by one of ``stored_keys`` really has the key."""
        return True

    def span(self, first: int, end: int) -> str:
        """The range of offsets from ``first`` to below ``end``, in the system's terms."""
        number = self.fates.number
        return f"offsets {number(first)} to {number(end - 1)}"

    def open_from(self, log: PartitionLog) -> Mapping[int, int]:
        """The first offset of each open transaction, by producer."""
        return {p.producer_id: p.open_from for p in log.producers if p.open_from >= 0}

    def expired(self, context: Context, log: PartitionLog) -> tuple[int, str]:
        """The offset below which retention deletes segments after a compaction, and the reason.

        By default retention deletes no segment.
        """
        return 0, ""


def explainer_of(system: System) -> RecordExplainer:
    """The ``RecordExplainer`` of a system."""
    explainer: RecordExplainer = import_module(f"lastwrite.{system.name}.look.explain").EXPLAINER(
        system
    )
    return explainer


def explain_partition(
    explainer: RecordExplainer, context: Context, folder: str, key: bytes | None
) -> PartitionExplanation:
    """Explain one partition. If ``key`` is given, the explanation lists each record of the key.

    If the partition is damaged or locked, the explanation says so; no error is raised.

    Raises:
        InvalidConfig: the settings do not fit the partition.
    """
    moved: LogError | None = None
    for _ in range(TRIES):
        explanation = _Explanation(explainer, context, folder)
        found = explanation.explain(key)
        moved = explanation.moved
        if moved is None:
            return found
    reason = Reason(Rule.HELD, str(moved), "when no other program changes the log during explain")
    name = context.system.name_of(folder)
    return PartitionExplanation(
        topic=name.topic,
        partition=name.partition,
        folder=folder,
        reasons=[reason],
        summary=reason.message,
    )


class _Explanation:
    """Builds the explanation of one partition."""

    def __init__(self, explainer: RecordExplainer, context: Context, folder: str) -> None:
        self._tools = explainer
        self._context = context
        self._system, self._options = context.system, context.options
        name = self._system.name_of(folder)
        self._out = PartitionExplanation(topic=name.topic, partition=name.partition, folder=folder)
        self._log: PartitionLog | None = None

    @property
    def moved(self) -> LogError | None:
        """The error if a running broker has changed the log since it was listed, or None."""
        try:
            if self._log is not None:
                self._system.check_unmoved(self._log)
        except LogError as error:
            return error
        return None

    def explain(self, key: bytes | None) -> PartitionExplanation:
        out, options = self._out, self._options
        held = self._lock_reason()
        try:
            log = self._system.judged(self._system.read(out.folder), options.config)
            self._log = log
            if not log.segments:
                self._without_segments(log, held)
                return out
            is_open = options.include_active and not log.is_torn
            options = replace(options, include_active=is_open)
            self._options = options
            self._context = replace(self._context, options=options)
            decision = self._system.decide(log, options.config, options.now_ms, is_open)
            found = self._tools.range_of(self._context, log, decision)
        except (LogError, OSError) as error:
            if held is not None:  # the files are in use, and may have changed during the reading
                out.reasons = [held]
                out.summary = held.message
                return out
            if isinstance(error, InvalidConfig):
                raise
            self._damaged(error)
            return out
        out.problems = [] if held is not None else list(log.problems)
        self._find_reason(log, decision, found, held)
        if not self._is_wrong and held is None:
            self._records(log, decision, key)
        return out

    def _lock_reason(self) -> Reason | None:
        """The reason why the partition is in use, or None."""
        folder, system = self._out.folder, self._system
        root = system.root_of(folder)
        try:
            system.reject_if_locked(root, [system.name_of(folder)])
        except LogHeld as held:
            change = (
                "when that process stops; until then explain reads no records, and its "
                "figures may be out of date"
            )
            return Reason(Rule.HELD, held.problem, change)
        try:
            system.reject_unclean(root, self._options.config)
        except LogHeld as held:
            return Reason(Rule.HELD, held.problem, f"after this: {held.remedy}")
        return None

    def _without_segments(self, log: PartitionLog, held: Reason | None) -> None:
        out = self._out
        out.problems = [] if held is not None else list(log.problems)
        empty = Reason(Rule.EMPTY, "the log has no segment", "when a record is written")
        out.reasons = _damage(out.problems) or ([empty] if held is None else [held, empty])
        out.end_offset = log.end_offset
        out.summary = (
            "the log is damaged" if self._is_wrong else f"not due: {out.reasons[0].message}"
        )

    def _damaged(self, error: LogError | OSError) -> None:
        out = self._out
        out.problems.append(self._problem(error))
        out.reasons = [*_damage(out.problems), *out.reasons]
        out.is_due = False
        is_damaged = any_damaged(out.problems)
        out.summary = "the log is damaged" if is_damaged else "the log cannot be read"

    @property
    def _is_wrong(self) -> bool:
        """Whether the partition has problems that prevent a round."""
        return any(not problem.is_note for problem in self._out.problems)

    def _problem(self, error: LogError | OSError) -> Problem:
        found = error if isinstance(error, LogError) else LogError(str(error))
        return problem_of(found, self._out.folder, remedy=self._system.damage_remedy)

    # ------------------------------------------------------------------ the partition

    def _find_reason(
        self, log: PartitionLog, decision: Decision, found: RangeReasons, held: Reason | None
    ) -> None:
        out, config = self._out, self._options.config
        place = self._tools.fates.place
        out.first_dirty_offset, out.first_uncleanable_offset = decision.first_dirty, decision.end
        out.end_offset, out.dirty_ratio = log.end_offset, decision.dirty_ratio
        out.clean_bytes, out.cleanable_bytes = found.clean_bytes, decision.cleanable_bytes
        out.in_words = RangeInWords(
            place(decision.first_dirty), place(decision.end), place(log.end_offset)
        )
        alone = self._system.why_unmanaged(log.folder, config)
        policy = found.policy
        if alone is not None:
            policy = Reason(Rule.POLICY, alone.reason, f"when the policy is set: {alone.remedy}")
        reasons = [] if policy is None else [policy]
        if not CleanerConfig.from_names(config).enable:
            change = "if it is true; lastwrite compact ignores this setting"
            reasons.append(Reason(Rule.CLEANER, "log.cleaner.enable is false", change))
        reasons += _damage(out.problems)
        reasons += self._quarantined(log)
        if held is not None:
            reasons.append(held)
        elif log.open_as is not None:
            change = "when the broker stops"
            if self._system.copies_beside_a_broker:
                change += "; compact --to writes a cleaned copy elsewhere while the broker runs"
            reasons.append(Reason(Rule.HELD, "a broker has the log open", change))
        out.reasons = [*reasons, *found.reasons]
        out.is_due = decision.reason is None and not self._is_wrong
        summary = self._summary(decision)
        out.summary = summary if held is None else f"{held.message}; by the rules {summary}"

    def _quarantined(self, log: PartitionLog) -> list[Reason]:
        try:
            root = self._system.root_of(log.folder)
            found = read_quarantine(root, self._system.notes).get(log.name)
        except CorruptLog as error:
            self._out.problems.append(self._problem(error))
            return []
        if found is None:
            return []
        return [
            Reason(
                Rule.SET_ASIDE,
                f"{found.tries} rounds of the cleaner have failed since time "
                f"{found.since_ms}: {found.reason}",
                "after a successful round: the cleaner tries the next from time "
                f"{found.next_try_ms} on, or at once after lastwrite release",
                found.next_try_ms,
            )
        ]

    def _summary(self, decision: Decision) -> str:
        out = self._out
        if out.is_due:
            dirty, clean = decision.cleanable_bytes, out.clean_bytes or 0
            over = (
                f"; the round is overdue by {decision.overdue_ms} ms" if decision.overdue_ms else ""
            )
            return (
                "due: a round now cleans "
                f"{self._tools.span(decision.first_dirty, decision.end)}; {dirty} of "
                f"{clean + dirty} bytes are dirty, a ratio of "
                f"{decision.dirty_ratio:.4g}{over}"
            )
        if any(reason.rule is Rule.CLEAN for reason in out.reasons):
            return "clean"
        blocking = _blocking(out.reasons)
        return "not due" if blocking is None else f"not due: {blocking.message}"

    # ------------------------------------------------------------------ its records

    def _records(self, log: PartitionLog, decision: Decision, key: bytes | None) -> None:
        end = max(log.end_offset, log.segments[-1].base_offset + 1)
        try:
            following = record_states(self._context, log, decision, decision.end)
            everything = record_states(self._context, log, decision, end)
            stored = () if key is None else self._tools.stored_keys(key)
            reading = WaitingRecords(self._context, decision, stored)
            for number, piece in enumerate(following.pieces):
                reading.piece(piece, following.of(number), everything.of(number))
            self._out.waiting = reading.waiting
            self._out.held_for = [
                structs.replace(each, until_ms=reading.held_until_ms) for each in decision.held_for
            ]
            self._keyless(following, decision)
            if key is not None:
                self._out.records = sorted(
                    (
                        record
                        # compaction treats each stored form of the key as a separate key
                        for found in reading.found
                        if any(self._has_key(one, key) for one in found)
                        for record in self._explained(log, decision, found)
                    ),
                    key=lambda record: record.offset,
                )
        except (LogError, OSError) as error:
            self._damaged(error)

    def _keyless(self, following: RecordStates, decision: Decision) -> None:
        """Add a reason if a round would skip the partition because too many records have no key."""
        out = self._out
        scans = [
            scan
            for scan, piece in zip(following.scans, following.pieces, strict=True)
            if piece.keyed
        ]
        found = sum(scan.keyless for scan in scans)
        data = sum(scan.records - scan.hidden for scan in scans)
        most = decision.max_keyless_ratio
        if not is_over_limit(found, data, most):
            return
        first = min(scan.first_keyless for scan in scans if scan.keyless)
        change = "with --drop-keyless, if the records without a key may be deleted"
        reason = Reason(Rule.KEYLESS, refusal(found, data, first, most), change)
        out.reasons = [*out.reasons, reason]
        if out.is_due:
            out.is_due = False
            out.summary = f"not cleaned: {reason.message}"

    def _has_key(self, record: KeyRecord, key: bytes) -> bool:
        with located(record.piece.path, record.position):
            return self._tools.has_key(record, key)

    def _explained(
        self, log: PartitionLog, decision: Decision, found: Sequence[KeyRecord]
    ) -> list[RecordExplanation]:
        """The records of the key, oldest first, with their outcomes."""
        out = self._out
        described = []
        for record in found:
            with located(record.piece.path, record.position):
                described.append(self._tools.describe(log, record))
        open_from = self._tools.open_from(log)
        active = len(log.segments)
        if self._tools.has_active and not self._options.include_active:
            active = bisect_left([each.base_offset for each in log.segments], log.closed_end)
        facts = [
            _facts(record, told, decision, open_from, active)
            for record, told in zip(found, described, strict=True)
        ]
        alive = [each for each in facts if not each.aborted]
        fates = self._tools.fates(
            RoundFacts(
                now_ms=self._options.now_ms,
                first_dirty=decision.first_dirty,
                end=decision.end,
                policy=decision.policy,
                blocking=None if out.is_due else _blocking(out.reasons),
                is_at_rest=decision.is_at_rest and not out.is_due,
                reasons=tuple(out.reasons),
                winner=_last([each for each in alive if each.is_in_range and not each.shadowed]),
                winner_ever=_last([each for each in alive if not each.shadowed_ever]),
                held_for=decision.held_for,
            )
        )
        expired = self._tools.expired(self._context, log)
        return [
            _with_retention(
                RecordExplanation(
                    offset=told.offset,
                    timestamp_ms=told.timestamp_ms,
                    # base offset -1, which means before all offsets, is reported as 0
                    segment=max(log.segments[record.piece.segment].base_offset, 0),
                    position=record.position,
                    value_bytes=told.value_bytes,
                    part=each.part,
                    fate=answer.fate,
                    message=answer.message,
                    change=answer.change,
                    at_ms=answer.at_ms,
                    message_id=told.message_id,
                ),
                expired,
                self._options.now_ms,
            )
            for record, told, each in zip(found, described, facts, strict=True)
            for answer in [fates.of(each)]
        ]


def _facts(
    record: KeyRecord,
    description: RecordDescription,
    decision: Decision,
    open_from: Mapping[int, int],
    active: int,
) -> RecordFacts:
    """The ``RecordFacts`` from which the outcome of a record is determined.

    ``active`` is the index of the first segment that rounds skip.
    """
    batch = record.batch
    flags, producer_id = int(batch["flags"]), int(batch["producer_id"])
    horizon, base_offset = int(batch["horizon"]), int(batch["base_offset"])
    first_open = open_from.get(producer_id) if flags & IS_TRANSACTIONAL else None
    if record.is_inside:
        part = LogRegion.CLEAN if description.offset < decision.first_dirty else LogRegion.DIRTY
    else:
        part = LogRegion.ACTIVE if record.piece.segment >= active else LogRegion.ABOVE
    return RecordFacts(
        offset=description.offset,
        place=description.place,
        part=part,
        deletes=bool(record.state_ever & TOMBSTONE),
        producer_id=producer_id,
        aborted=bool(record.state_ever & ABORTED),
        undecided=first_open is not None and base_offset >= first_open,
        goes=record.goes,
        shadowed=bool(record.state & SHADOWED),
        shadowed_ever=bool(record.state_ever & SHADOWED),
        horizon_ms=None if horizon == NO_HORIZON else horizon,
        is_old=bool(flags & IS_OLD),
        file_ms=record.piece.mtime_ns // 1_000_000,
        batch_end=int(batch["next_offset"]),
        has_bad_horizon=bool(flags & BAD_HORIZON),
        is_part=description.is_part,
    )


def _with_retention(
    record: RecordExplanation, expired: tuple[int, str], now_ms: int
) -> RecordExplanation:
    """The explanation of a record, with retention included.

    If retention will delete the record's segment, this deletion becomes the record's outcome.
    """
    below, why = expired
    if record.offset >= below or record.fate is RecordOutcome.NEXT_ROUND:
        return record
    return structs.replace(
        record,
        fate=RecordOutcome.NEXT_ROUND,
        message=f"{record.message}; but its segment has expired: {why}",
        change="retention deletes the segment after every compaction, due or not",
        at_ms=now_ms,
    )


def _damage(problems: Sequence[Problem]) -> list[Reason]:
    wrong = [problem for problem in problems if not problem.is_note]
    damage = [problem for problem in wrong if problem.kind is ProblemKind.DAMAGED] or wrong
    return [Reason(Rule.DAMAGE, str(damage[0]), "when the damage is repaired")] if damage else []


def _blocking(reasons: Sequence[Reason]) -> Reason | None:
    """The first of ``reasons`` that must end before the partition can be due."""
    for rule in (Rule.POLICY, Rule.DAMAGE, Rule.KEYLESS, Rule.DIRTY_RATIO):
        for reason in reasons:
            if reason.rule is rule:
                return reason
    held = [reason for reason in reasons if reason.from_offset is not None]
    others = (reason for reason in reasons if reason.rule is not Rule.HELD)
    return min(held, key=lambda reason: reason.from_offset or 0) if held else next(others, None)


def _last(facts: Sequence[RecordFacts]) -> RecordFacts | None:
    """The last of ``facts``, the results of the rules for records in the log's order.

    None if there are none.
    """
    return facts[-1] if facts else None
