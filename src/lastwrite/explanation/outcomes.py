"""Describe the outcome of one record in words: what compaction will do with it, when, and why.

This module decides nothing. The caller runs the engine's scan, election and judgement twice: over
the range of the next round, and over the entire log as if all of it were closed and replicated.
``RecordFacts`` has the results.

Example: ``a@0 a@1`` are in closed segments, ``a@2`` is in the active segment. The next round drops
``a@0``, because ``a@1`` supersedes it. The next round keeps ``a@1``, because ``a@2`` is outside the
round's range: only the second run reads ``a@2``. A later round drops ``a@1``, after the segment of
``a@2`` is closed.

Each system has a subclass of ``OutcomeRules`` with its terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from lastwrite.model.policy import LONG_MAX, Policy, Strategy
from lastwrite.reports.explanation import LogRegion, Reason, RecordOutcome, Rule
from lastwrite.reports.holding import BlockingGroup

_BY_OFFSET = (Strategy.OFFSET, Strategy.GROUPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFacts:
    """The results of the engine's rules for one record of the explained key."""

    offset: int
    place: str  # the record's offset in the system's terms, such as "offset 5"
    part: LogRegion  # region of the log that contains the record
    deletes: bool  # the record is a tombstone
    producer_id: int  # id of the producer, or the system's equivalent; -1 if there is none
    aborted: bool  # the record's transaction was aborted
    undecided: bool  # the record's transaction is still open
    goes: bool  # the next round drops the record
    shadowed: bool  # the key has a later write in the range of the next round
    shadowed_ever: bool  # the key has a later write anywhere in the log
    # the delete horizon of the record's batch or, if policy.ages_by_write_time, the record's write
    # time; None if no round has set a horizon yet
    horizon_ms: int | None
    is_old: bool  # the record has format v0 or v1
    file_ms: int  # time when the segment's file was last changed
    batch_end: int  # the offset after the record's batch
    has_bad_horizon: bool = False  # the batch's delete horizon is below 0, and is ignored
    is_part: bool = False  # the record is a chunk of a message, but not the last chunk

    @property
    def is_in_range(self) -> bool:
        """Whether the record's segment is in the range of the next round."""
        return self.part in (LogRegion.CLEAN, LogRegion.DIRTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """The next compaction round of the partition, and the last writes of the key."""

    now_ms: int
    first_dirty: int
    end: int  # the offset at which the round's range ends
    policy: Policy
    blocking: Reason | None  # why the round is not due; None if it is due
    is_at_rest: bool  # whether too little dirty data is the only reason why the round is not due
    reasons: tuple[Reason, ...]  # why the round's range ends before the log's end
    winner: RecordFacts | None  # the key's last write within the range; None if there is none
    winner_ever: RecordFacts | None  # the key's last write in the entire log
    held_for: tuple[BlockingGroup, ...] = ()  # consumer groups that block the removal of tombstones


class OutcomeReason(NamedTuple):
    """The outcome of a record, the reason (``message``), and the time when it can change."""

    fate: RecordOutcome
    message: str
    change: str | None = None
    at_ms: int | None = None


class OutcomeRules(ABC):
    """Describes the outcomes of the records of one key."""

    active: ClassVar[str] = "in the active segment"
    # the term for a key's last write if the policy compares versions instead of offsets
    greatest: ClassVar[str] = "the greatest version"
    forget_clean: ClassVar[str]  # the user's action that makes a round compare clean records again

    def __init__(self, round_: RoundFacts) -> None:
        self.round = round_

    @staticmethod
    def number(offset: int) -> str:
        """An offset in the system's notation."""
        return str(offset)

    @classmethod
    def place(cls, offset: int) -> str:
        """An offset in the system's terms, such as "offset 5"."""
        return f"offset {cls.number(offset)}"

    @staticmethod
    def writer(facts: RecordFacts) -> str:
        """The beginning of a clause about the transaction in which the record was written."""
        return "the record was written in"

    @abstractmethod
    def delete(self, facts: RecordFacts, message: str) -> OutcomeReason:
        """The outcome of a tombstone that is the last write of its key in the range.

        ``message`` is the beginning of the outcome's message.
        """

    def of(self, facts: RecordFacts) -> OutcomeReason:
        """The outcome of a record of the key."""
        around = self.round
        winner, winner_ever = around.winner, around.winner_ever
        if facts.undecided:
            change = (
                "the end of the transaction decides: if it aborts, the record is dropped; "
                "otherwise it is judged like any other record"
            )
            return OutcomeReason(
                RecordOutcome.LATER,
                f"{self.writer(facts)} a transaction that is still open",
                change,
            )
        if facts.aborted:
            message = f"{self.writer(facts)} a transaction that was aborted"
            return self.next(message) if facts.is_in_range else self._unreached(message, facts)
        if facts.shadowed and facts.is_in_range:
            message = f"{self._superseded(winner)}, "
            if facts.goes:
                return self.next(f"{message}within the range")
            return OutcomeReason(
                RecordOutcome.STAYS, f"{message}but compaction never removes the log's last record"
            )
        if facts.goes:  # an expired tombstone, superseded or not
            return self._delete(facts)
        if facts.shadowed_ever:
            message = self._superseded(winner_ever)
            return (self._later if facts.is_in_range else self._unreached)(message, facts)
        if facts.is_part:
            return OutcomeReason(
                RecordOutcome.STAYS,
                "the record is a part of a message; it is kept or dropped together with the "
                "last part",
            )
        if winner_ever is not None and winner_ever is not facts:
            message = (
                f"{self._superseded(winner_ever)}, but both are below the first dirty offset, "
                f"{self.number(around.first_dirty)}, so an earlier round has compared them"
            )
            return OutcomeReason(
                RecordOutcome.LATER,
                message,
                f"no later round compares them again, unless {self.forget_clean}",
            )
        if not facts.deletes:
            return OutcomeReason(RecordOutcome.STAYS, "the record is the last write of its key")
        return self._delete(facts)

    def _superseded(self, winner: RecordFacts | None) -> str:
        by_offset = self.round.policy.strategy in _BY_OFFSET
        place = "another record" if winner is None else winner.place
        return f"{place} is {'a later write' if by_offset else self.greatest} of the key"

    def _delete(self, facts: RecordFacts) -> OutcomeReason:
        is_last = self.round.winner_ever is facts
        message = (
            "the record deletes the key, and is its last write"
            if is_last
            else "the record deletes the key"
        )
        return self.delete(facts, message) if facts.is_in_range else self._unreached(message, facts)

    def next(self, message: str) -> OutcomeReason:
        """The outcome of a record that the next round drops, whether or not the round is due."""
        blocking = self.round.blocking
        if blocking is None:
            return OutcomeReason(
                RecordOutcome.NEXT_ROUND,
                message,
                "the next round drops it, and a round is due now",
                self.round.now_ms,
            )
        change = f"the next round drops it{self.if_due}"
        return OutcomeReason(RecordOutcome.NEXT_ROUND, message, change, _not_before([blocking]))

    def next_expired(self, message: str) -> OutcomeReason:
        """The outcome of an expired tombstone that the next round drops.

        If no round is due, the outcome names the option with which the user can start a round.
        """
        answer = self.next(message)
        if not self.round.is_at_rest:
            return answer
        return answer._replace(change=f"{answer.change}; compact --drop-expired-deletes drops it")

    @property
    def if_due(self) -> str:
        """A clause "; no round is due now: …" with the reason. Empty if a round is due."""
        blocking = self.round.blocking
        if blocking is None:
            return ""
        return f"; no round is due now: {blocking.message}; this changes {blocking.change}"

    def _later(self, message: str, facts: RecordFacts) -> OutcomeReason:
        """The outcome of a record in the range if the superseding record is above the range."""
        winner = self.round.winner_ever
        held, at_ms = self._holding(None if winner is None else winner.offset)
        end = self.place(self.round.end)
        message += f", but is above the range of the next round, which ends at {end}"
        change = f"the round that reaches {'it' if winner is None else winner.place} drops it{held}"
        if facts.deletes:  # a tombstone may expire before a range contains the later record
            at_ms = None
            horizon_ms = self.horizon_ms(facts)
            if horizon_ms is not None and horizon_ms <= LONG_MAX:
                change += f"; so does any round at or after time {horizon_ms}, its delete horizon"
        return OutcomeReason(RecordOutcome.LATER, message, change, at_ms)

    def horizon_ms(self, facts: RecordFacts) -> int | None:
        """The time from which on a tombstone may be removed. A time above LONG_MAX means never.

        None means that no round has set the time yet.
        """
        policy = self.round.policy
        if facts.horizon_ms is None:
            return None
        retention_ms = policy.tombstone_retention_ms if policy.ages_by_write_time else 0
        return facts.horizon_ms + retention_ms + (policy.hold_ms if self.is_held(facts) else 0)

    def is_held(self, facts: RecordFacts) -> bool:
        """Whether the record, if it is a tombstone, stays until a consumer group has read it."""
        return facts.batch_end > self.round.policy.held_from

    def held(self, facts: RecordFacts, message: str) -> OutcomeReason:
        """The outcome of an expired tombstone whose removal is blocked.

        ``message`` is the beginning of the outcome's message.
        """
        policy, end = self.round.policy, facts.batch_end
        at_ms = None if facts.horizon_ms is None else policy.held_until_ms(facts.horizon_ms)
        waited = [each for each in self.round.held_for if (each.position or 0) < end]
        who = " and ".join(each.words() for each in waited)
        names = " and ".join(each.group for each in waited)
        change = f"the first round after {names} committed {self.number(end)} or more drops it"
        if at_ms is not None:
            change += f", or the first at or after time {at_ms}, which is the limit"
        return OutcomeReason(
            RecordOutcome.LATER, f"{message} passed, and it is {who}", change, at_ms
        )

    def _unreached(self, message: str, facts: RecordFacts) -> OutcomeReason:
        """The outcome of a record above the range of the next round."""
        held, at_ms = self._holding(facts.offset)
        where = (
            self.active if facts.part is LogRegion.ACTIVE else "above the range of the next round"
        )
        message += f"; the record is {where}: a round reaches up to {self.place(self.round.end)}"
        return OutcomeReason(
            RecordOutcome.LATER, message, f"a round has to reach it first{held}", at_ms
        )

    def _holding(self, offset: int | None) -> tuple[str, int | None]:
        """A clause with the rules that exclude ``offset`` from the next round's range.

        Also returns the earliest time at which all these rules can end. None if it is unknown.
        """
        known = [r for r in self.round.reasons if r.from_offset is not None]
        # The range ends at the lowest offset of these rules, rounded down to a segment's start.
        lowest = min((r.from_offset or 0 for r in known), default=0)
        held = [r for r in known if (r.from_offset or 0) <= max(lowest, offset or 0)]
        text = ", ".join(f"{r.rule} (from {self.place(r.from_offset or 0)})" for r in held)
        return f"; it is held by: {text}" if text else "", _not_before(held)


def _not_before(reasons: Iterable[Reason]) -> int | None:
    """The earliest time at which the reasons can end. None if unknown.

    Only the compaction lag ends at a known time.
    """
    return max(
        (r.at_ms for r in reasons if r.rule is Rule.MIN_LAG and r.at_ms is not None), default=None
    )
