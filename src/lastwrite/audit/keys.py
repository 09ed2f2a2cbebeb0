"""How many distinct keys a partition holds: scan and election over all of it, in this process or on Spark.

Memory is that of the workers, whatever the log's size: entries go to scratch files, buckets are counted one after
the other.
"""

from __future__ import annotations

from lastwrite.compaction.election import bucket_bits
from lastwrite.compaction.transactions import aborted_table, merge
from lastwrite.model.log import AbortedTransaction, PartitionLog
from lastwrite.model.policy import Policy
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import Limits, PieceScan, ScanUnit
from lastwrite.pipeline.compact import exchange_for
from lastwrite.pipeline.engine import cut_into_pieces, elect_units, new_secret, split_by_bytes
from lastwrite.pipeline.runner import Failed, Runner
from lastwrite.pipeline.system import System

_NOBODY = NoProgress()


def count_keys(system: System, log: PartitionLog, runner: Runner, limits: Limits) -> int | None:
    """The distinct keys of ``log``, exactly; None where records cannot be read.

    Records of aborted transactions have none.
    """
    try:
        return _count(system, log, log.aborted, runner, limits)
    except _Contradiction:  # of the transaction index by the log, which counts
        return _count(system, log, system.aborted_by_log(log), runner, limits)


class _Contradiction(Exception):
    """Log and transaction index disagree on what was aborted."""


def _count(
    system: System,
    log: PartitionLog,
    aborted: tuple[AbortedTransaction, ...],
    runner: Runner,
    limits: Limits,
) -> int | None:
    exchange = exchange_for(runner)
    try:
        bits = bucket_bits(system.estimate_records(log))
        secret = new_secret()
        pieces = cut_into_pieces(system, log, log.end_offset)
        units = [
            ScanUnit(
                partition=0,
                system=system.name,
                pieces=tuple(some),
                first_dirty=0,
                bits=bits,
                exact=False,
                secret=secret,
                policy=Policy(now_ms=0, tombstone_retention_ms=0),
                aborted=aborted_table(aborted, 0, log.end_offset),
                limits=limits,
                scratch=exchange.scratch,
            )
            for some in split_by_bytes(pieces, max(8 << 20, log.size_bytes // (2 * runner.workers)))
        ]
        scans: list[PieceScan] = []
        for answer in exchange.scan(units, _NOBODY):
            if isinstance(answer, Failed) or any(scan.problem is not None for scan in answer):
                return None
            scans += answer
        scans.sort(key=lambda scan: scan.piece)
        if aborted is log.aborted and merge([scan.transactions for scan in scans]).lie is not None:
            raise _Contradiction
        winners = 0
        for elected in exchange.elect(
            list(elect_units(0, bits, scans, False, limits, runner.workers)), _NOBODY
        ):
            if isinstance(elected, Failed):
                return None
            winners += elected.winners
        return winners
    finally:
        exchange.close()
