"""What becomes of one record, in words: the engine's own decisions, put beside where the record
lies.

Nothing is decided here. A caller has let the next round's scan, election and judgement run, and the
same over the whole log as if it were closed and replicated; ``RecordFacts`` is what they found.
``a@0 a@1`` in closed segments and ``a@2`` in the active one: the next round drops ``a@0`` for
``a@1``; it keeps ``a@1``, which only the wider view sees superseded, by ``a@2``: a later round
takes it, once the segment of ``a@2`` is closed.

A system's share is a subclass of ``OutcomeRules`` with its words.
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
    """What the rules found of one record of the key."""

    offset: int
    place: str  # in the system's words, like "offset 5"
    part: LogRegion
    deletes: bool  # a tombstone
    producer_id: int  # or what the system has in its place; -1: none
    aborted: bool  # of a transaction that was aborted
    undecided: bool  # of one that is still open
    goes: bool  # the next round drops it
    shadowed: bool  # it has a later write in the range of the next round
    shadowed_ever: bool  # ... or anywhere in the log
    horizon_ms: int | None  # of its batch: when it may go, or where batches say so, when written
    is_old: bool  # of record format v0 or v1
    file_ms: int  # when its segment's file was changed
    batch_end: int  # the offset behind its batch
    has_bad_horizon: bool = False  # its batch's is below 0, and counts as none
    is_part: bool = False  # of a larger record, and not its last part

    @property
    def is_in_range(self) -> bool:
        """The next round rewrites its segment."""
        return self.part in (LogRegion.CLEAN, LogRegion.DIRTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """The next round, and the last writes of the key."""

    now_ms: int
    first_dirty: int
    end: int  # of its range
    policy: Policy
    blocking: Reason | None  # why it is not due
    is_at_rest: bool  # because too little is dirty, and for no other reason
    reasons: tuple[Reason, ...]  # why it does not reach further
    winner: RecordFacts | None  # the key's last write within the range; None: it has none there
    winner_ever: RecordFacts | None  # ... within the log
    held_for: tuple[BlockingGroup, ...] = ()  # readers for whom deletes are held


class OutcomeReason(NamedTuple):
    """What becomes of a record, why, what has to happen for it, and not before when."""

    fate: RecordOutcome
    message: str
    change: str | None = None
    at_ms: int | None = None


class OutcomeRules(ABC):
    """Answers for the records of one key."""

    active: ClassVar[str] = "in the active segment"
    greatest: ClassVar[str] = "the greatest version"  # of the key: its last write, not by offset
    forget_clean: ClassVar[str]  # what makes a round compare clean records again

    def __init__(self, round_: RoundFacts) -> None:
        self.round = round_

    @staticmethod
    def number(offset: int) -> str:
        """An offset as the system writes it."""
        return str(offset)

    @classmethod
    def place(cls, offset: int) -> str:
        """An offset in the system's words."""
        return f"offset {cls.number(offset)}"

    @staticmethod
    def writer(facts: RecordFacts) -> str:
        """The begin of a sentence that ends "a transaction that …"."""
        return "it was written in"

    @abstractmethod
    def delete(self, facts: RecordFacts, message: str) -> OutcomeReason:
        """The answer for a tombstone in the range that no later write there takes; ``message``
        begins its sentence.
        """

    def of(self, facts: RecordFacts) -> OutcomeReason:
        """The answer for a record of the key."""
        around = self.round
        winner, winner_ever = around.winner, around.winner_ever
        if facts.undecided:
            change = (
                "it is decided with that transaction: dropped if that aborts, else judged like any "
                "other"
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
                RecordOutcome.STAYS, f"{message}but the log's last record is never removed"
            )
        if facts.goes:  # a delete whose time has come, superseded or not
            return self._delete(facts)
        if facts.shadowed_ever:
            message = self._superseded(winner_ever)
            return (self._later if facts.is_in_range else self._unreached)(message, facts)
        if facts.is_part:
            return OutcomeReason(
                RecordOutcome.STAYS, "it is a part of a message, and stays and goes with the last"
            )
        if winner_ever is not None and winner_ever is not facts:
            message = (
                f"{self._superseded(winner_ever)}, but both lie below the first dirty offset, "
                f"{self.number(around.first_dirty)}, where an earlier round has compared all keys"
            )
            return OutcomeReason(
                RecordOutcome.LATER,
                message,
                f"no round compares them again, unless {self.forget_clean}",
            )
        if not facts.deletes:
            return OutcomeReason(RecordOutcome.STAYS, "it is the key's last write")
        return self._delete(facts)

    def _superseded(self, winner: RecordFacts | None) -> str:
        by_offset = self.round.policy.strategy in _BY_OFFSET
        place = "another record" if winner is None else winner.place
        return f"{place} is {'a later write' if by_offset else self.greatest} of the key"

    def _delete(self, facts: RecordFacts) -> OutcomeReason:
        is_last = self.round.winner_ever is facts
        message = "it deletes the key, and is its last write" if is_last else "it deletes the key"
        return self.delete(facts, message) if facts.is_in_range else self._unreached(message, facts)

    def next(self, message: str) -> OutcomeReason:
        """It goes with the next round, whenever that comes."""
        blocking = self.round.blocking
        if blocking is None:
            return OutcomeReason(
                RecordOutcome.NEXT_ROUND,
                message,
                "the next round drops it, and one is due now",
                self.round.now_ms,
            )
        change = f"the next round drops it{self.if_due}"
        return OutcomeReason(RecordOutcome.NEXT_ROUND, message, change, _not_before([blocking]))

    def next_expired(self, message: str) -> OutcomeReason:
        """``next`` of a delete whose time has passed: such a round may be asked for."""
        answer = self.next(message)
        if not self.round.is_at_rest:
            return answer
        return answer._replace(change=f"{answer.change}; compact --drop-expired-deletes drops it")

    @property
    def if_due(self) -> str:
        """The end of a sentence about the next round, where none is due."""
        blocking = self.round.blocking
        if blocking is None:
            return ""
        return f"; none is due now: {blocking.message}; that ends {blocking.change}"

    def _later(self, message: str, facts: RecordFacts) -> OutcomeReason:
        """The record is in the range, what supersedes it is not."""
        winner = self.round.winner_ever
        held, at_ms = self._holding(None if winner is None else winner.offset)
        end = self.place(self.round.end)
        message += f", but lies above the range of the next round, which ends at {end}"
        change = f"the round that reaches {'it' if winner is None else winner.place} drops it{held}"
        if facts.deletes:  # whichever comes first
            at_ms = None
            horizon_ms = self.horizon_ms(facts)
            if horizon_ms is not None and horizon_ms <= LONG_MAX:
                change += f"; so does any round at or after time {horizon_ms}, its delete horizon"
        return OutcomeReason(RecordOutcome.LATER, message, change, at_ms)

    def horizon_ms(self, facts: RecordFacts) -> int | None:
        """When a tombstone may go; None: no round has said so yet. Above LONG_MAX: never."""
        policy = self.round.policy
        if facts.horizon_ms is None:
            return None
        retention_ms = policy.tombstone_retention_ms if policy.ages_by_write_time else 0
        return facts.horizon_ms + retention_ms + (policy.hold_ms if self.is_held(facts) else 0)

    def is_held(self, facts: RecordFacts) -> bool:
        """Whether a delete is held for a reader."""
        return facts.batch_end > self.round.policy.held_from

    def held(self, facts: RecordFacts, message: str) -> OutcomeReason:
        """The answer for a delete whose time has come, and that is held; ``message`` begins it."""
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
        """The record itself lies above the range."""
        held, at_ms = self._holding(facts.offset)
        where = (
            self.active if facts.part is LogRegion.ACTIVE else "above the range of the next round"
        )
        message += f"; it lies {where}: a round reaches up to {self.place(self.round.end)}"
        return OutcomeReason(
            RecordOutcome.LATER, message, f"a round has to reach it first{held}", at_ms
        )

    def _holding(self, offset: int | None) -> tuple[str, int | None]:
        """Which rules keep a round from reaching ``offset``, which lies above its range; and not
        before when it may.
        """
        known = [r for r in self.round.reasons if r.from_offset is not None]
        # The lowest one ends the range, which is then rounded down to a segment's begin.
        lowest = min((r.from_offset or 0 for r in known), default=0)
        held = [r for r in known if (r.from_offset or 0) <= max(lowest, offset or 0)]
        said = ", ".join(f"{r.rule} (from {self.place(r.from_offset or 0)})" for r in held)
        return f"; it is held by: {said}" if said else "", _not_before(held)


def _not_before(reasons: Iterable[Reason]) -> int | None:
    """When the clock allows it: only for the compaction lag nothing but the clock counts."""
    return max(
        (r.at_ms for r in reasons if r.rule is Rule.MIN_LAG and r.at_ms is not None), default=None
    )
