"""The stage of ``verify`` between reading and comparing: decide on the transactions of two logs.

A few batches determine which transactions were aborted, which batches must stay, and the last
stable offset. ``read_contents`` has stored a row about each of these batches (a *fact*). For each
partition, a task applies ``verification.batch_invariants`` to all facts. The task stores for
``compare`` which records may be missing and which batches must stay. ``batch_invariants`` describes
the memory needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from lastwrite.model.columns import Int64Array
from lastwrite.model.log import PartitionLog, Problem, ProblemKind
from lastwrite.reports.verification import Transactions, Violation
from lastwrite.storage.scratch import ScratchWriter
from lastwrite.verification.batch_invariants import (
    ChangedDecision,
    Facts,
    TransactionHistory,
    history,
    owed_batches,
    redecided,
    unmarked,
    wrongly_converted,
)
from lastwrite.verification.proof import LogProof, log_proof_of
from lastwrite.verification.rows import ABORT_MARKER, BASE, COMMIT_MARKER, PRODUCER
from lastwrite.verification.units import FactBlock, Lookups

_EXAMPLES = 20  # most violations of a kind that are reported


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One log, and the rows that describe its batches, in the order of the log."""

    log: PartitionLog
    blocks: tuple[FactBlock, ...]


@dataclass(frozen=True, slots=True)
class DecideUnit:
    """The input of the task for one partition."""

    partition: int
    system: str
    before: LogFacts | None
    after: LogFacts
    clock_ms: int  # time by which it is decided whether a producer has expired
    producer_expiration_ms: int
    grown_from: int | None  # first offset that the earlier log lacks; None if nothing was appended
    scratch: str | None


@dataclass(slots=True)
class DecidedTransactions:
    """The outcomes of the transactions of one partition, and the resulting problems."""

    partition: int
    transactions: Transactions
    # the last stable offset of the earlier log or, if there is none, of the present log
    limit: int
    lookups: Lookups | None = None
    problems: list[Problem] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)  # at most _EXAMPLES of a kind
    violation_count: int = 0

    def break_promise(self, broken: Iterable[Violation]) -> None:
        for n, violation in enumerate(broken):
            self.violation_count += 1
            if n < _EXAMPLES:
                self.violations.append(violation)


class _Blocks(Sequence[Int64Array]):
    """Rows that describe batches, in blocks. A block is read from its file when it is accessed."""

    def __init__(self, blocks: Sequence[FactBlock]) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, n: int) -> Int64Array:  # type: ignore[override]
        return self._blocks[n].read()


def decide_transactions(unit: DecideUnit) -> DecidedTransactions:
    """Decide on the transactions of one partition, by the rows on the batches of both logs."""
    proof = log_proof_of(unit.system)
    blocks = _Blocks(unit.after.blocks)
    found = history(blocks)
    settled = DecidedTransactions(
        unit.partition, _figures(found), found.last_stable_offset(unit.after.log.high_watermark)
    )
    contradictions = _structure(proof, unit.after.log, found, unmarked_counts=unit.before is None)
    if unit.before is None:
        settled.problems += contradictions
        return settled
    # Contradictions in the earlier log are only reported. In the present log they are violations.
    settled.break_promise(
        Violation("transaction_index", contradiction.message, None, contradiction.path)
        for contradiction in contradictions
    )
    earlier = _Blocks(unit.before.blocks)
    was = history(earlier)
    settled.limit = was.last_stable_offset(proof.bounds(unit.before.log, unit.after.log).end)
    settled.problems += _structure(proof, unit.before.log, was, unmarked_counts=True)
    comparable = blocks if unit.grown_from is None else _below(blocks, unit.grown_from)
    path_of = unit.after.log.path_of
    settled.break_promise(
        Violation("redecided", _describe_batch(batch), batch.offset, path_of(batch.offset))
        for batch in redecided(
            comparable, was, found, max(unit.before.log.log_start, unit.after.log.log_start)
        )
    )
    settled.break_promise(
        Violation(
            "batch_added", "no earlier batch can have become this batch", offset, path_of(offset)
        )
        for offset in wrongly_converted(earlier, comparable)
    )
    snapshot = proof.snapshot(unit.before.log)
    owed = owed_batches(
        earlier, unit.before.log.log_start, snapshot, unit.clock_ms, unit.producer_expiration_ms
    )
    # a batch need not stay if its producer has written a later batch
    if unit.grown_from is not None:
        owed = owed[~np.isin(owed, _continued(earlier, blocks, unit.grown_from))]
    discardable = was.discardable
    if unit.scratch is not None and (len(discardable) or len(owed)):
        with ScratchWriter(unit.scratch, "lookups") as writer:
            at = writer.append(*(numbers for numbers in (discardable, owed) if len(numbers)))
        settled.lookups = Lookups(*at, len(discardable), len(owed))
    return settled


def _below(blocks: Facts, end: int) -> list[Int64Array]:
    """The rows on batches that begin below the offset ``end``."""
    return [block[block[:, BASE] < end] for block in blocks]


def _continued(earlier: Facts, blocks: Facts, end: int) -> Int64Array:
    """The base offsets of batches whose producers wrote again at the offset ``end`` or later."""
    nothing: Int64Array = np.empty(0, dtype=np.int64)
    again = np.unique(np.concatenate([nothing, *(b[b[:, BASE] >= end, PRODUCER] for b in blocks)]))
    theirs = (block[np.isin(block[:, PRODUCER], again), BASE] for block in earlier)
    found: Int64Array = np.concatenate([nothing, *theirs])
    return found


def _structure(
    proof: LogProof, log: PartitionLog, found: TransactionHistory, unmarked_counts: bool
) -> list[Problem]:
    """The problems in the structure of one log's transactions."""
    first_open = int(found.open[0, 0]) if len(found.open) else None
    problems = proof.transactions(log).problems(found.transactions, first_open)
    lost = unmarked(found, proof.snapshot(log)) if unmarked_counts else ()
    for first, _, producer in islice(lost, 1):
        problems.append(
            Problem(
                ProblemKind.DAMAGED,
                f"producer {producer} began a transaction at offset {first}, but the marker "
                "that ends it is missing. Readers treat its data as open, or as decided by a "
                "later marker",
                log.path_of(int(first)),
                None,
                proof.damage_remedy,
            )
        )
    return problems


def _describe_batch(batch: ChangedDecision) -> str:
    was = "aborted" if batch.was_aborted else "committed"
    now = "open" if batch.is_open else "committed" if batch.was_aborted else "aborted"
    return (
        f"a transaction of producer {batch.producer_id} was {was}, and readers now treat its data "
        f"as {now}"
    )


def _figures(found: TransactionHistory) -> Transactions:
    return Transactions(
        open=len(found.open_transactions),
        aborted=found.count(ABORT_MARKER),
        committed=found.count(COMMIT_MARKER),
        aborted_records=found.aborted_records,
    )
