"""What becomes of one record, in words: the engine's own decisions, put beside where the record
lies.

Nothing is decided here. A caller has let the next round's scan, election and judgement run, and the
same over the whole log as if it were closed and replicated; ``RecordFacts`` is what they found.
``a@0 a@1`` in closed segments and ``a@2`` in the active one: the next round drops ``a@0`` for
``a@1``; it keeps ``a@1``, which only the wider view sees superseded, by ``a@2``: a later round
takes it, once the segment of ``a@2`` is closed.

Source: docs/formats/kafka-cleaning.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lastwrite.reports.explanation import Fate, Part, Reason, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFacts:
    """What the rules found of one record of the key."""

    offset: int
    part: Part
    deletes: bool  # a tombstone
    producer_id: int
    aborted: bool  # of a transaction that was aborted
    undecided: bool  # of one that is still open
    goes: bool  # the next round drops it
    shadowed: bool  # it has a later write in the range of the next round
    shadowed_ever: bool  # ... or anywhere in the log
    horizon_ms: int | None  # of its batch
    is_old: bool  # of record format v0 or v1
    file_ms: int  # when its segment's file was changed

    @property
    def is_in_range(self) -> bool:
        """The next round rewrites its segment."""
        return self.part in (Part.CLEAN, Part.DIRTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """The next round, and the last writes of the key."""

    now_ms: int
    first_dirty: int
    first_uncleanable: int
    delete_retention_ms: int
    old_tombstones_until_ms: int
    blocking: Reason | None  # why it is not due
    reasons: tuple[Reason, ...]  # why it does not reach further
    winner: int | None  # offset of the key's last write within the range; None: it has none there
    winner_ever: int | None  # ... within the log
    by_offset: bool = True  # False: another strategy decides which write is the last


def fate_of(facts: RecordFacts, around: RoundFacts) -> tuple[Fate, str, str | None, int | None]:
    """What becomes of the record, why, what has to happen for it, and not before when."""
    if facts.undecided:
        return (
            Fate.LATER,
            f"producer {facts.producer_id} wrote it in a transaction that is still open",
            "it is decided with that transaction: dropped if that aborts, else judged like any other",
            None,
        )
    in_range = facts.is_in_range
    if facts.aborted:
        message = f"producer {facts.producer_id} wrote it in a transaction that was aborted"
        return _next(message, around) if in_range else _unreached(message, facts, around)
    if facts.goes and facts.shadowed:
        return _next(f"{_superseded(around.winner, around)}, within the range", around)
    if facts.shadowed and in_range:
        return (
            Fate.STAYS,
            f"{_superseded(around.winner, around)}, but the log's last record is never removed",
            None,
            None,
        )
    if facts.goes:  # a delete whose time has come, superseded or not
        return _delete(facts, around, in_range)
    if facts.shadowed_ever:
        message = _superseded(around.winner_ever, around)
        return _later(message, facts, around) if in_range else _unreached(message, facts, around)
    if around.winner_ever is not None and around.winner_ever != facts.offset:
        return (
            Fate.LATER,
            f"{_superseded(around.winner_ever, around)}, but both lie below the first dirty offset, "
            f"{around.first_dirty}, where an earlier round has compared all keys",
            "no round compares them again, unless the partition's line is taken out of cleaner-offset-checkpoint",
            None,
        )
    if not facts.deletes:
        return Fate.STAYS, "it is the key's last write", None, None
    return _delete(facts, around, in_range)


def _superseded(winner: int | None, around: RoundFacts) -> str:
    return f"offset {winner} is {'a later write' if around.by_offset else 'the greatest version'} of the key"


def _delete(
    facts: RecordFacts, around: RoundFacts, in_range: bool
) -> tuple[Fate, str, str | None, int | None]:
    """The fate of a tombstone that no later write within the range takes."""
    is_last = around.winner_ever == facts.offset
    message = "it deletes the key, and is its last write" if is_last else "it deletes the key"
    if not in_range:
        return _unreached(message, facts, around)
    if facts.is_old:
        until = around.old_tombstones_until_ms
        message += f"; its record format is v0 or v1, where a delete ages by its file, changed at {facts.file_ms}"
        if facts.goes:
            return _next(f"{message}, and goes with files of {until} or before", around)
        return (
            Fate.LATER,
            f"{message}; only those of {until} or before may go: delete.retention.ms, {around.delete_retention_ms}, "
            "before the last change of the clean part",
            "a round that rewrites its segment gives it a delete horizon; the first round at or after that drops it",
            None,
        )
    if facts.horizon_ms is None:
        horizon = around.now_ms + around.delete_retention_ms
        return (
            Fate.LATER,
            f"{message}; no round has kept it yet, so it has no delete horizon",
            f"the next round gives it one, delete.retention.ms, {around.delete_retention_ms}, after its own time: "
            f"{horizon} if it ran now{_if_due(around)}; the first round at or after that drops it",
            horizon,
        )
    if facts.goes:
        late = around.now_ms - facts.horizon_ms
        return _next(
            f"{message}; its delete horizon, {facts.horizon_ms}, passed {late} ms ago", around
        )
    if facts.horizon_ms <= around.now_ms:
        return (
            Fate.LATER,
            f"{message}; its delete horizon, {facts.horizon_ms}, passed, but an older version of the key may lie above "
            f"offset {around.first_uncleanable}, where the next round does not reach: the order is not that of offsets",
            "the first round that reaches the log's end drops it",
            None,
        )
    return (
        Fate.LATER,
        f"{message}; its delete horizon, {facts.horizon_ms}, is {facts.horizon_ms - around.now_ms} ms ahead",
        "the first round at or after that drops it, and a round needs dirty data",
        facts.horizon_ms,
    )


def _next(message: str, around: RoundFacts) -> tuple[Fate, str, str | None, int | None]:
    """It goes with the next round, whenever that comes."""
    if around.blocking is None:
        return (
            Fate.NEXT_ROUND,
            message,
            "the next round drops it, and one is due now",
            around.now_ms,
        )
    return (
        Fate.NEXT_ROUND,
        message,
        f"the next round drops it{_if_due(around)}",
        _not_before([around.blocking]),
    )


def _if_due(around: RoundFacts) -> str:
    if around.blocking is None:
        return ""
    return f"; none is due now: {around.blocking.message}; that ends {around.blocking.change}"


def _later(
    message: str, facts: RecordFacts, around: RoundFacts
) -> tuple[Fate, str, str | None, int | None]:
    """The record is in the range, what supersedes it is not."""
    held, at_ms = _holding(around.winner_ever, around)
    message = f"{message}, but lies above the range of the next round, which ends at offset {around.first_uncleanable}"
    change = f"the round that reaches offset {around.winner_ever} drops it{held}"
    if facts.deletes:  # whichever comes first
        at_ms = None
        if facts.horizon_ms is not None:
            change += f"; so does any round at or after {facts.horizon_ms}, its delete horizon"
    return Fate.LATER, message, change, at_ms


def _unreached(
    message: str, facts: RecordFacts, around: RoundFacts
) -> tuple[Fate, str, str | None, int | None]:
    """The record itself lies above the range."""
    held, at_ms = _holding(facts.offset, around)
    place = (
        "in the active segment"
        if facts.part is Part.ACTIVE
        else "above the range of the next round"
    )
    message = f"{message}; it lies {place}: a round reaches up to offset {around.first_uncleanable}"
    return Fate.LATER, message, f"a round has to reach it first{held}", at_ms


def _holding(offset: int | None, around: RoundFacts) -> tuple[str, int | None]:
    """Which rules keep a round from reaching ``offset``, which lies above its range; and not before
    when it may.
    """
    from_offsets = [
        reason.from_offset for reason in around.reasons if reason.from_offset is not None
    ]
    # The lowest one ends the range, which is then rounded down to a segment's begin.
    lowest = min(from_offsets, default=0)
    held = [
        reason
        for reason in around.reasons
        if reason.from_offset is not None and reason.from_offset <= max(lowest, offset or 0)
    ]
    said = ", ".join(f"{reason.rule} (from offset {reason.from_offset})" for reason in held)
    return f"; it is held by: {said}" if said else "", _not_before(held)


def _not_before(reasons: Iterable[Reason]) -> int | None:
    """When the clock allows it: only for the compaction lag nothing but the clock counts."""
    return max(
        (r.at_ms for r in reasons if r.rule is Rule.MIN_LAG and r.at_ms is not None), default=None
    )
