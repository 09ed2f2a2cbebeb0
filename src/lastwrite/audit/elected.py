"""The state of every record of one partition after scan and election, in this process, for commands that only look.

States lie in scratch files; a piece's are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lastwrite.compaction.election import bucket_bits
from lastwrite.compaction.transactions import aborted_table, merge
from lastwrite.errors import CorruptLog
from lastwrite.logstore.scratch import read_states
from lastwrite.model.columns import SPENT, ByteArray
from lastwrite.model.log import AbortedTransaction, PartitionLog
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits, PendingMarker, Piece, PieceScan, ScanUnit
from lastwrite.pipeline.engine import (
    Exchange,
    cut_into_pieces,
    elect_units,
    new_secret,
    split_by_bytes,
)
from lastwrite.pipeline.runner import Failed
from lastwrite.pipeline.system import Decision, System

_SCAN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Elected:
    """A partition's pieces, and what a round would know of each."""

    pieces: Sequence[Piece]
    scans: Sequence[PieceScan]
    spent: Sequence[Sequence[PendingMarker]]

    def states(self, number: int) -> ByteArray | None:
        """A byte a record of the piece; None: it lies above the end that was asked for."""
        if not self.pieces[number].keyed:
            return None
        scan = self.scans[number]
        states = read_states(scan.states, scan.states_at, scan.records)
        states[[marker.ordinal for marker in self.spent[number]]] |= SPENT
        return states


def elected(
    system: System,
    log: PartitionLog,
    decision: Decision,
    end: int,
    exchange: Exchange,
    limits: Limits,
    progress: Progress,
) -> Elected:
    """Scan ``log``, and elect among the records of the segments that begin below ``end``.

    Raises:
        CorruptLog: a record cannot be read, or the log contradicts itself.
    """
    pieces = cut_into_pieces(system, log, end)
    bits = bucket_bits(system.estimate_records(log))
    scans = _scan(system, log.aborted, pieces, bits, decision, exchange, limits, progress)
    merged = merge([scan.transactions for scan in scans])
    if merged.lie is not None:  # the transaction index contradicts the log, which is right
        scans = _scan(
            system, system.aborted_by_log(log), pieces, bits, decision, exchange, limits, progress
        )
        merged = merge([scan.transactions for scan in scans])
        if merged.lie is not None:
            raise CorruptLog(
                f"the transaction that ends at offset {merged.lie} is aborted and not aborted"
            )
    units = elect_units(0, bits, scans, False, limits, 1, decision.policy.strategy)
    for answer in exchange.elect(list(units), NoProgress()):
        if isinstance(answer, Failed):
            raise answer.error
    return Elected(pieces, scans, merged.spent)


def _scan(
    system: System,
    aborted: Iterable[AbortedTransaction],
    pieces: Sequence[Piece],
    bits: int,
    decision: Decision,
    exchange: Exchange,
    limits: Limits,
    progress: Progress,
) -> list[PieceScan]:
    secret = new_secret()
    units = [
        ScanUnit(
            partition=0,
            system=system.name,
            pieces=tuple(some),
            first_dirty=decision.elect_from,
            bits=bits,
            exact=False,
            secret=secret,
            policy=decision.policy,
            aborted=aborted_table(aborted, some[0].lowest_offset, some[-1].end_offset),
            limits=limits,
            scratch=exchange.scratch,
        )
        for some in split_by_bytes(pieces, _SCAN_BYTES)
    ]
    scans: list[PieceScan] = []
    for answer in exchange.scan(units, progress):
        if isinstance(answer, Failed):
            raise answer.error
        scans += answer
    for scan in scans:
        if scan.problem is not None:
            raise CorruptLog(
                scan.problem.message, scan.problem.position, scan.problem.path, scan.problem.remedy
            )
    return sorted(scans, key=lambda scan: scan.piece)
