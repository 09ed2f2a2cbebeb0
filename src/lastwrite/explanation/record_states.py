"""Scan a whole partition and elect its last writes, for read-only commands.

The result is the number of the partition's keys, or the state of every record.

The states are in scratch files, and are read piece by piece on request. So a command needs only the
memory of its workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastwrite.engine.context import Context
from lastwrite.engine.elect_step import elect_partitions
from lastwrite.engine.partition import ElectedPartition, FinishedPartition, advance
from lastwrite.engine.plan import plan_full_read
from lastwrite.engine.scan_step import scan_pieces
from lastwrite.engine.system import Decision
from lastwrite.errors import CorruptLog
from lastwrite.model.columns import SPENT, ByteArray
from lastwrite.model.log import PartitionLog
from lastwrite.model.policy import Policy
from lastwrite.model.work import PieceScan, ScanRange
from lastwrite.storage.scratch import read_states


@dataclass(frozen=True, slots=True)
class RecordStates:
    """The pieces of a partition, and the states that a round would give their records."""

    partition: ElectedPartition

    @property
    def pieces(self) -> Sequence[ScanRange]:
        return self.partition.plan.pieces

    @property
    def scans(self) -> Sequence[PieceScan]:
        return self.partition.scans

    def of(self, number: int) -> ByteArray | None:
        """The states of a piece's records, a byte each. None if the election skipped the piece."""
        if not self.pieces[number].keyed:
            return None
        states = read_states(*self.scans[number].states_location)
        spent = self.partition.transactions.used_markers[number]
        states[[marker.ordinal for marker in spent]] |= SPENT
        return states


def record_states(
    context: Context, log: PartitionLog, decision: Decision, end: int
) -> RecordStates:
    """The states of all records of ``log`` after a scan and an election.

    The election covers the segments that begin below ``end``.

    Raises:
        CorruptLog: a record cannot be read, or the log is inconsistent.
        LogError: a task failed.
    """
    found = elect_full_log(context, log, decision, end)
    if isinstance(found, ElectedPartition):
        return RecordStates(found)
    if found.error is not None:
        raise found.error
    problems = found.report.problems
    if not problems:
        raise CorruptLog(found.report.reason or "")
    raise CorruptLog(
        problems[0].message, problems[0].position, problems[0].path, problems[0].remedy
    )


def elect_full_log(
    context: Context, log: PartitionLog, decision: Decision, end: int
) -> ElectedPartition | FinishedPartition:
    """Scan a log and elect its last writes as a round does.

    ``decision`` determines the range.
    """
    scanned = scan_pieces(context, [plan_full_read(context, log, decision, end)])
    (found,) = advance(scanned, lambda open: elect_partitions(context, open))
    return found


def count_keys(context: Context, log: PartitionLog) -> int | None:
    """The exact number of distinct keys of ``log``. Returns None if records cannot be read.

    Keys that only aborted transactions wrote are not counted.
    """
    everything = Decision(
        first_dirty=0,
        end=log.end_offset,
        dirty_ratio=1.0,
        reason=None,
        policy=Policy(now_ms=0, tombstone_retention_ms=0),
    )
    found = elect_full_log(context, log, everything, log.end_offset)
    return found.winners if isinstance(found, ElectedPartition) else None
